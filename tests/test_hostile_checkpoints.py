"""Checkpoints and options that were damaged or made up: one sentence each, in bounded memory."""

import copy
import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asr_data import bounded_memory, small_checkpoint, write_corpus

from prnn.asr import InputError
from prnn.asr.checkpoint import load_recogniser_parts
from prnn.asr.options import TrainingOptions
from prnn.asr.training import train

DEEP = 100_000  # more than any stack


FEATURES: list[tuple[str, object, str]] = [
    *(("frame_length_ms", value, "it must be at least 5 and at most 200") for value in (0, 1e-300, -1, 1e308, 10**400)),
    *(("frame_shift_ms", value, "it must be at least 1 and at most 200") for value in (0, -10.0, 1e9)),
    *(("sample_rate", value, "it must be at least 1000 and at most 192000") for value in (0, 1, -1, 10**9, 2**70)),
    *(("num_mel_bins", value, "it must be at least 1 and at most 512") for value in (0, -80, 10**9)),
    *((name, value, "it must be a") for name in ("frame_shift_ms", "sample_rate") for value in (None, "10", [], True)),
    ("frame_shift_ms", math.nan, "frame_shift_ms is nan; it must be at least 1"),
    ("frame_shift_ms", math.inf, "frame_shift_ms is inf; it must be finite"),
    ("sample_rate", 16000.0, "sample_rate is 16000.0; it must be an int"),
    ("high_freq", "7600", "high_freq is '7600'; it must be a number"),
    *(("high_freq", v, "with a sample_rate of 16000 it must be 100 to 8000, or -7900 to 0") for v in (1, 8001, -1e4)),
    ("dither", 1.0, "unknown features option dither; known are frame_length_ms"),
    ("num_mel_bins", 40, "feature_dim is 80; its features and tokenizer make it 40"),
]


def loading_fails(tmp_path: Path, contents: object) -> str:
    path = tmp_path / "hostile.ckpt"
    torch.save(contents, path)
    with pytest.raises(InputError) as caught:
        load_recogniser_parts(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert len(message) < len(str(path)) + 500
    return message.removeprefix(f"{path}: ")


whole_checkpoint = cache(small_checkpoint)


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    checkpoint: dict[str, Any] = copy.deepcopy(whole_checkpoint())
    change(checkpoint)
    return checkpoint


@pytest.mark.parametrize(("name", "value", "message"), FEATURES)
def test_features_of_a_checkpoint(tmp_path: Path, name: str, value: object, message: str) -> None:
    contents = changed(lambda checkpoint: checkpoint["prnn"]["features"].update({name: value}))
    assert message in loading_fails(tmp_path, contents)


def test_a_checkpoint_that_does_not_say_where_its_mel_bins_end(tmp_path: Path) -> None:
    torch.save(changed(lambda checkpoint: checkpoint["prnn"]["features"].pop("high_freq")), tmp_path / "old.ckpt")
    assert load_recogniser_parts(tmp_path / "old.ckpt")[1].high_freq == 0.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, value)
            for name in ("encoder_hidden", "joiner_dim")
            for value in (0, 10**7, 2**62, None, 16.0, True, [])
        ),
        *((name, 10**9) for name in ("encoder_layers", "predictor_layers", "predictor_context", "frame_stack")),
        *(("durations", value) for value in ([], None, [0], [10**30, 1], "01", [[0]], list(range(17)))),
        ("vocab_size", 10**12),
        ("dropout", math.nan),
        ("ctc_weight", 10**400),
        ("loss", {}),
        ("encoder_cell", None),
        ("blank", 1),
    ],
)
def test_the_model_of_a_checkpoint(tmp_path: Path, name: str, value: object) -> None:
    contents = changed(lambda checkpoint: checkpoint["prnn"]["model"].update({name: value}))
    assert f"({name} is " in loading_fails(tmp_path, contents)


@pytest.mark.parametrize("sizes", [{"encoder_hidden": 2**20}, {"encoder_layers": 1000}, {"vocab_size": 2**24}], ids=str)
def test_sizes_that_the_weights_do_not_have_take_no_memory(tmp_path: Path, sizes: dict[str, int]) -> None:
    contents = changed(lambda checkpoint: checkpoint["prnn"]["model"].update(sizes))
    with bounded_memory():
        assert "a damaged checkpoint" in loading_fails(tmp_path, contents)


def weight(checkpoint: dict[str, Any], tensor: object) -> None:
    checkpoint["state_dict"]["model.joiner.output.bias"] = tensor


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("state_dict"), "'state_dict' is missing"),
        (lambda c: c.update(state_dict=None), "state_dict is None; it must be a mapping"),
        (lambda c: c.update(state_dict=[]), "state_dict is []; it must be a mapping"),
        (lambda c: c["prnn"].pop("model"), "'model' is missing"),
        (lambda c: c["prnn"].update(model=[]), "the transducer is []; it must be a mapping"),
        (lambda c: c["prnn"].update(model=None), "the transducer is None; it must be a mapping"),
        (lambda c: c["prnn"].update(model={}), "vocab_size is missing from the transducer's options"),
        (lambda c: c["prnn"]["model"].update(hidden=1), "unknown transducer option hidden; known are blank"),
        (lambda c: c["prnn"]["model"].update({7: 1}), "unknown transducer option 7; known are blank"),
        (lambda c: c["prnn"].update(features=None), "features is None; it must be a mapping"),
        (lambda c: c["prnn"].update(characters=None), "characters is None; it must be a list"),
        (lambda c: c["prnn"].update(characters=["a", "b", "b"]), "characters holds a character twice"),
        (lambda c: c["prnn"].update(characters=["a", "b", ["c"]]), "characters holds ['c']; each must be"),
        (
            lambda c: c["prnn"].update(characters=["a", "b", "\ud800"]),
            "characters holds '\\ud800', half of a surrogate",
        ),
        (lambda c: c["prnn"].update(characters=list("abcd")), "vocab_size is 4; its features and tokenizer make it 5"),
        (lambda c: c["prnn"].update(format=[]), "a checkpoint of format []"),
        (lambda c: c["prnn"].update(format=True), "a checkpoint of format True"),
        (lambda c: c.update(prnn=None), "a torch file, but not a checkpoint of prnn train"),
        (lambda c: weight(c, None), "joiner.output.bias is NoneType; it must be a dense tensor"),
        (lambda c: weight(c, torch.zeros(3)), "joiner.output.bias has shape (3,) and torch.float32; it must have (4,)"),
        (
            lambda c: weight(c, torch.zeros(4).double()),
            "has shape (4,) and torch.float64; it must have (4,) and torch.f",
        ),
        (lambda c: weight(c, torch.zeros(1).expand(4)), "joiner.output.bias does not have its elements one after"),
        (lambda c: weight(c, torch.tensor([0, 0, 0, math.nan])), "joiner.output.bias has elements that are not finite"),
        (lambda c: weight(c, torch.zeros(4).to_sparse()), "joiner.output.bias is Tensor; it must be a dense tensor"),
        (lambda c: c["state_dict"].update({"model.x": torch.zeros(1)}), "'x' is not of this model"),
        (lambda c: c["state_dict"].pop("model.joiner.output.bias"), "'joiner.output.bias' is missing"),
    ],
)
def test_parts_of_a_checkpoint(tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    assert message in loading_fails(tmp_path, changed(change))


def test_a_checkpoint_nested_deep(tmp_path: Path) -> None:
    """Made by hand: Python's own pickler does not nest so deep."""
    path = tmp_path / "deep.ckpt"
    nested = b"]" * 20_000 + b"a" * 19_999
    for head, tail, message in (
        (b"}X\x06\0\0\0formatK\x02sX\x07\0\0\0version", b"s", "a checkpoint of format 2, written by prnn of type list"),
        (b"}X\x06\0\0\0formatK\x01sX\x05\0\0\0model", b"s", "the transducer is of type list, too large to show"),
        (b"", b"", "a torch file, but not a checkpoint of prnn train"),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/data.pkl", b"\x80\x02}X\x04\0\0\0prnn" + head + nested + tail + b"s.")
            archive.writestr("a/version", "3\n")
        with pytest.raises(InputError) as caught:
            load_recogniser_parts(path)
        assert message in str(caught.value)


def test_a_checkpoint_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "whole.ckpt"
    torch.save(small_checkpoint(), path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    cut = tmp_path / "cut.ckpt"
    for size in (0, 1, *rng.integers(2, len(whole), 20).tolist()):
        cut.write_bytes(whole[:size])
        with pytest.raises(InputError, match="not a checkpoint, or a damaged one"):
            load_recogniser_parts(cut)


def flipped(whole: bytes, rng: np.random.Generator) -> bytes:
    bit = int(rng.integers(8 * len(whole)))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_a_flipped_bit_changes_no_weight(tmp_path: Path) -> None:
    """It is refused, or lies where nothing is read."""
    path = tmp_path / "damaged.ckpt"
    torch.save(small_checkpoint(), path)
    whole, rng, refused = path.read_bytes(), np.random.default_rng(0), 0
    model, *rest = load_recogniser_parts(path)
    for _ in range(60):
        path.write_bytes(flipped(whole, rng))
        try:
            found, *other = load_recogniser_parts(path)
        except InputError:
            refused += 1
        else:
            assert other == rest
            assert all(torch.equal(found.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert refused > 20


def test_a_checkpoint_that_is_compressed_is_refused(tmp_path: Path) -> None:
    """It could be of any size."""
    torch.save(small_checkpoint(), tmp_path / "whole.ckpt")
    with zipfile.ZipFile(tmp_path / "whole.ckpt") as whole, zipfile.ZipFile(tmp_path / "a.ckpt", "w") as packed:
        for name in whole.namelist():
            packed.writestr(name, whole.read(name), zipfile.ZIP_DEFLATED)
    with pytest.raises(InputError, match="not a checkpoint, or a damaged one"):
        load_recogniser_parts(tmp_path / "a.ckpt")


# A training's folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainingOptions:
    folder = tmp_path_factory.mktemp("trained")
    manifest = write_corpus(folder / "data", "tones", ["ab", "c"])
    model = {"encoder_hidden": 4, "encoder_layers": 1, "predictor": "stateless", "predictor_hidden": 4, "joiner_dim": 4}
    options = TrainingOptions(manifest, manifest, folder / "out", model=model, accelerator="cpu", epochs=1, pictures=0)
    train(options, progress=False)
    return options


def resuming_fails(options: TrainingOptions) -> str:
    with pytest.raises(InputError) as caught:
        train(options, progress=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_training_does_not_go_on_from_a_flipped_bit(trained: TrainingOptions) -> None:
    path = trained.output / "last.ckpt"
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        name = max(archive.infolist(), key=lambda member: member.file_size)
    damaged = bytearray(whole)
    damaged[name.header_offset + 200] ^= 64
    path.write_bytes(damaged)
    try:
        assert "has another checksum than when it was saved" in resuming_fails(replace(trained, epochs=2))
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "Expecting value: line 1 column 1"),
        (b"[]", "the training is []; it must be a mapping of options to values"),
        (b"null", "the training is None; it must be a mapping"),
        (b"{}", "manifest is missing from the training's options"),
        (b"[" * DEEP, "recursion"),
        ('{"manifest": "a"}'.encode("utf-16"), "codec can't decode"),
        (b'{"manifest": "a", "valid": "b", "seed": ' + b"9" * 5000 + b"}", "limit"),
        (b'{"manifest": 1, "valid": "b"}', "manifest is 1; it must be a path"),
        (b'{"manifest": "a", "valid": "b", "epochs": 0}', "epochs is 0; it must be at least 1"),
        (b'{"manifest": "a", "valid": "b", "lr": NaN}', "lr is nan; it must be more than 0"),
        (b'{"manifest": "a", "valid": "b", "batch_seconds": 1e308}', "batch_seconds is 1e+308; it must be more than 0"),
        (b'{"manifest": "a", "valid": "b", "model": []}', "model is []; it must be a mapping"),
        (b'{"manifest": "a", "valid": "b", "model": {"dropout": 2}}', "dropout is 2; it must be at least 0 and less"),
        (b'{"manifest": "a", "valid": "b", "augmentation": null}', "the augmentation is None; it must be a mapping"),
        (b'{"manifest": "a", "valid": "b", "augmentation": {"gain_db": 1e9}}', "gain_db is 1000000000.0; it must"),
        (b'{"manifest": "a", "valid": "b", "layers": 3}', "unknown training option layers; known are accelerator"),
    ],
)
def test_the_options_of_a_folder(trained: TrainingOptions, contents: bytes, message: str) -> None:
    record = trained.output / "options.json"
    before = record.read_bytes()
    record.write_bytes(contents)
    try:
        found = resuming_fails(trained)
    finally:
        record.write_bytes(before)
    assert found.startswith(f"{record}: ")
    assert message in found
    assert found.endswith("; take another --output, or --restart")
    train(trained, progress=False)


@contextmanager
def changed_checkpoint(trained: TrainingOptions, change: Callable[[dict[str, Any]], object]) -> Iterator[Path]:
    """The last checkpoint of a training, changed meanwhile."""
    last = trained.output / "last.ckpt"
    before = last.read_bytes()
    contents = torch.load(last, weights_only=True)
    change(contents)
    torch.save(contents, last)
    try:
        yield last
    finally:
        last.write_bytes(before)


def resuming_fails_from(trained: TrainingOptions, change: Callable[[dict[str, Any]], object]) -> str:
    """The error of a training that goes on from its last checkpoint, changed meanwhile."""
    with changed_checkpoint(trained, change):
        return resuming_fails(replace(trained, epochs=2))


def optimizer(checkpoint: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = checkpoint["optimizer_states"][0]
    return state


def checkpoints(checkpoint: dict[str, Any]) -> dict[str, Any]:
    (state,) = (state for state in checkpoint["callbacks"].values() if "validated" in state)
    return state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("optimizer_states"), "'optimizer_states' is missing"),
        (lambda c: c.update(optimizer_states=[]), "not enough values"),
        (lambda c: c.pop("lr_schedulers"), "'lr_schedulers' is missing"),
        (lambda c: c.update(progress=None), "the progress is None; it must be a mapping"),
        (lambda c: c["progress"].update(epoch=-1), "epoch is -1; it must be at least 0"),
        (lambda c: c["progress"].update(batch=10), "batch is 10; it must be at most pass_batches, 1"),
        (lambda c: c["progress"].update(pass_batches=0), "pass_batches is 0; it must be at least 1"),
        (lambda c: c["progress"].update(processes="2"), "processes is '2'; it must be an int"),
        (lambda c: c["progress"].update(order_batch=2**70), "order_batch is"),
        (lambda c: c["progress"].update(place=1), "unknown progress option place"),
        (lambda c: checkpoints(c).update(lowest_wer="low"), "lowest_wer is 'low'; it must be a number"),
        (
            lambda c: checkpoints(c).update(best=[0.0, "low"]),
            "best is [0.0, 'low']; it must be a list of three numbers",
        ),
        (lambda c: checkpoints(c).update(kept=[[0.5, 1]]), "kept has [0.5, 1]; it must hold"),
        (lambda c: checkpoints(c).update(kept=[[0.5, -1.0]]), "kept has [0.5, -1.0]; it must hold"),
        (lambda c: checkpoints(c).update(kept=3), "not iterable"),
        (lambda c: checkpoints(c).update(validated=[[1, 1.0]]), "validated has [1, 1.0]; it must hold"),
        (lambda c: c.update(loops=[]), "loops is []; it must be a mapping"),
        (lambda c: c["loops"].update(fit_loop={}), "loops.state_dict is None; it must be of type dict"),
        (lambda c: c["loops"]["fit_loop"].update(epoch_progress=[]), "loops.epoch_progress is []; it must be of type"),
        (
            lambda c: c["loops"]["fit_loop"]["epoch_progress"]["total"].update(ready="1"),
            "loops.epoch_progress.total.ready is '1'; it must be of type int",
        ),
        (lambda c: c.update(callbacks=None), "callbacks is None; it must be a mapping"),
        (lambda c: c.update(global_step=-1), "global_step is -1; it must be an int of 0 or more"),
        (lambda c: c.update(global_step="1"), "global_step is '1'; it must be an int"),
        (lambda c: optimizer(c)["state"].pop(0), "'0' is missing"),
        (lambda c: optimizer(c)["state"][0].update(exp_avg=torch.zeros(1)), "exp_avg of parameter 0 has shape (1,)"),
        (lambda c: optimizer(c)["state"][0].update(step=[1.0]), "not 'list'"),
        (
            lambda c: optimizer(c)["state"][0].update(step=torch.tensor(9.0)),
            "the optimizer's step of parameter 0 is not",
        ),
        (lambda c: weight(c, torch.zeros(9)), "joiner.output.bias has shape (9,)"),
    ],
)
def test_what_a_training_goes_on_from(
    trained: TrainingOptions, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    found = resuming_fails_from(trained, change)
    assert found.startswith(f"{trained.output / 'last.ckpt'}: a damaged checkpoint (")
    assert message in found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["prnn"].update(characters=list("abd")), "with other symbols than the texts of {} has now"),
        (lambda c: c["prnn"]["model"].update(dropout=0.25), "of another model"),
    ],
)
def test_a_training_of_another_kind(
    trained: TrainingOptions, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    found = resuming_fails_from(trained, change)
    expected = f"{trained.output} holds a training {message.format(trained.manifest)}"
    assert found == f"{expected}: take another --output, or --restart"


@pytest.mark.parametrize(
    "change",
    [
        lambda c: optimizer(c)["param_groups"][0].update(betas=None),
        lambda c: optimizer(c)["param_groups"][0].update(lr="fast"),
        lambda c: optimizer(c).update(param_groups=3),
        lambda c: c["lr_schedulers"][0].update(last_epoch=7),
        lambda c: c.update(lr_schedulers=None),
        lambda c: c.pop("progress"),  # as checkpoints once were
    ],
)
def test_rates_follow_from_the_options(trained: TrainingOptions, change: Callable[[dict[str, Any]], object]) -> None:
    """The rates that a checkpoint holds are not read."""
    try:
        with changed_checkpoint(trained, change) as last:
            train(replace(trained, epochs=2), progress=False)
            after = torch.load(last, weights_only=True)
    finally:
        train(trained, progress=False)
    (group,) = optimizer(after)["param_groups"]
    assert group["betas"] == (0.9, 0.98)
    assert group["lr"] == pytest.approx(2e-5)
    assert after["global_step"] == 2

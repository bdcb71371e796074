"""Trainings that begin with a checkpoint's weights (--init), and several manifests (--also)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from asr_data import write_corpus

from prnn.asr import CharTokenizer, FeatureConfig, InputError, Recogniser
from prnn.asr.checkpoint import describe, read_checkpoint
from prnn.asr.configuration import parse
from prnn.asr.data import open_data
from prnn.asr.initial import begin_from
from prnn.asr.options import TrainingOptions
from prnn.cli import main
from prnn.transducer import Transducer, TransducerConfig

MODEL: dict[str, Any] = {
    "encoder_cell": "gru", "encoder_hidden": 6, "encoder_layers": 2, "frame_stack": 4, "frame_stride": 2,
    "predictor": "stateless", "predictor_hidden": 5, "joiner_dim": 7, "ctc_weight": 0.3, "encoder_norm": "after",
}  # fmt: skip


def made(characters: str, **changes: Any) -> tuple[Transducer, CharTokenizer]:
    config = TransducerConfig(len(characters) + 1, **{**MODEL, **changes})
    return Transducer.from_config(config), CharTokenizer(characters)


def saved(path: Path, characters: str, **changes: Any) -> Transducer:
    """A checkpoint of a model of random weights and statistics."""
    model, tokenizer = made(characters, **changes)
    model.encoder.set_normalization(torch.randn(80), torch.rand(80) + 0.5)
    assert model.config is not None
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    torch.save({"prnn": describe(model.config, FeatureConfig(), tokenizer), "state_dict": state}, path)
    return model


@pytest.mark.parametrize("loss", ["full", "pruned", "tdt"])
@pytest.mark.parametrize("predictor", ["stateless", "lstm"])
def test_rows_of_symbols_that_both_have(tmp_path: Path, predictor: str, loss: str) -> None:
    """And everything that does not go by symbols; rows of others stay."""
    changes = {"predictor": predictor, "loss": loss, "durations": (0, 1, 2)}
    old = saved(tmp_path / "old.ckpt", "abcx", **changes)
    new, tokenizer = made("bcdefa", **{**changes, "durations": (1, 0, 4)})
    before = {name: value.clone() for name, value in new.state_dict().items()}
    sentence = begin_from(tmp_path / "old.ckpt", new, FeatureConfig(), tokenizer)
    assert sentence == f"begins with {tmp_path / 'old.ckpt'}: its encoder, and its weights of 3 of 6 symbols"
    source = {0: 0, 1: 2, 2: 3, 6: 1}  # blank, b, c, a
    durations = {7: 6, 8: 5} if loss == "tdt" else {}
    theirs, by_symbol = old.state_dict(), 0
    for name, value in new.state_dict().items():
        if not name.startswith(("predictor.embedding", "joiner.output", "ctc_output", "simple_joiner")):
            assert torch.equal(value, theirs[name]), name
            continue
        by_symbol += 1
        rows = source | (durations if name.startswith("joiner.output") else {})
        for row in range(len(value)):
            expected = theirs[name][rows[row]] if row in rows else before[name][row]
            assert torch.equal(value[row], expected), (name, row)
    assert by_symbol >= 5


def test_a_layer_that_the_checkpoint_lacks_stays(tmp_path: Path) -> None:
    saved(tmp_path / "old.ckpt", "ab", ctc_weight=0.0)
    new, tokenizer = made("ab")
    before = new.ctc_output.weight.clone()  # type: ignore[union-attr]
    begin_from(tmp_path / "old.ckpt", new, FeatureConfig(), tokenizer)
    assert torch.equal(new.ctc_output.weight, before)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_hidden": 8}, "of a model of other shapes (encoder_hidden is 8, there 6): "),
        ({"encoder_layers": 1}, "of a model of other shapes (encoder_layers is 1, there 2): encoder.rnn.blocks.1"),
        ({"encoder_cell": "lstm"}, "(encoder_cell is lstm, there gru): encoder.rnn.blocks.0.layer."),
        ({"predictor": "lstm"}, "(predictor is lstm, there stateless): predictor."),
        ({"joiner_dim": 9, "frame_stack": 3}, "(frame_stack is 3, there 4, joiner_dim is 9, there 7): "),
    ],
)
def test_other_shapes_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    saved(tmp_path / "old.ckpt", "ab")
    model, tokenizer = made("ab", **changes)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InputError) as caught:
        begin_from(tmp_path / "old.ckpt", model, FeatureConfig(), tokenizer)
    assert str(caught.value).startswith(f"{tmp_path / 'old.ckpt'}: ")
    assert message in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_other_features_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "old.ckpt", "ab")
    model, tokenizer = made("ab")
    with pytest.raises(InputError, match=r"of other features: high_freq is 0, there -400\.0$"):
        begin_from(tmp_path / "old.ckpt", model, FeatureConfig(high_freq=0), tokenizer)


def test_the_checkpoints_options_are_the_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "old.ckpt", "ab")
    command = ["--manifest", "a", "--valid", "b", "--init", str(tmp_path / "old.ckpt")]
    options = parse([*command, "--dropout", "0.4"])[0]
    assert options.init == tmp_path / "old.ckpt"
    model = options.transducer(3, 80)
    assert {name: getattr(model, name) for name in MODEL} == MODEL
    assert model.dropout == 0.4
    assert options.lr == 1e-3  # the default of its cell
    with pytest.raises(SystemExit):
        parse([*command, "--print_config"])
    assert "encoder_cell: gru" in capsys.readouterr().out
    (tmp_path / "config.yaml").write_text(f"init: {tmp_path / 'old.ckpt'}\nmodel: {{joiner_dim: 9}}\n")
    model = parse([*command[:4], "--config", str(tmp_path / "config.yaml")])[0].transducer(3, 80)
    assert (model.encoder_cell, model.joiner_dim) == ("gru", 9)
    with pytest.raises(SystemExit):
        parse([*command[:5], str(tmp_path / "none.ckpt")])
    assert f"{tmp_path / 'none.ckpt'}: no such file" in capsys.readouterr().err


def test_a_training_goes_on_from_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At a rate of nearly zero the model stays the checkpoint's, with its statistics; a second run goes on from its own
    last checkpoint, not from the other's."""
    old = saved(tmp_path / "old.ckpt", "abx")
    manifest = write_corpus(tmp_path / "data", "tones", ["ab", "c"])
    command = ["train", "--manifest", manifest, "--valid", manifest, "--output", tmp_path / "out", "--lr", 1e-12]
    command += ["--init", tmp_path / "old.ckpt", "--accelerator", "cpu", "--no-progress", "--pictures", 0, "--epochs"]
    assert main([str(word) for word in (*command, 1)]) == 0
    output = capsys.readouterr().out
    assert f"begins with {tmp_path / 'old.ckpt'}: its encoder, and its weights of 2 of 3 symbols" in output
    assert "standard deviation" not in output
    new = Recogniser.load(tmp_path / "out" / "model.ckpt")
    for name, value in old.encoder.state_dict().items():
        torch.testing.assert_close(new.model.encoder.state_dict()[name], value, rtol=0, atol=1e-6)
    assert new.tokenizer.characters == ("a", "b", "c")  # type: ignore[attr-defined]
    assert main([str(word) for word in (*command, 2)]) == 0
    assert "going on from" in capsys.readouterr().out
    assert read_checkpoint(tmp_path / "out" / "last.ckpt")["global_step"] == 2


def test_several_manifests(tmp_path: Path) -> None:
    """An epoch has each as often as it says."""
    paths = [write_corpus(tmp_path / name, name, texts) for name, texts in (("one", ["ab"]), ("two", ["c", "ca"]))]
    options = TrainingOptions(paths[0], paths[0], also=(f"{paths[1]}:3", str(paths[0])), batch_size=1)
    data = open_data(options, 0)
    assert data.utterances == 1 + 3 * 2 + 1
    texts = [text for batch in data.loader for text in batch.texts]
    assert {text: texts.count(text) for text in texts} == {"ab": 2, "c": 3, "ca": 3}
    assert parse(["--manifest", "a", "--valid", "b", "--also", "[c.jsonl:2, d.jsonl]"])[0].manifests == [
        (Path("a"), 1), (Path("c.jsonl"), 2), (Path("d.jsonl"), 1),
    ]  # fmt: skip


def test_manifests_that_cannot_be_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"also has 'a:0'; a manifest may be there 1 to 1000 times"):
        TrainingOptions(Path("a"), Path("b"), also=("a:0",))
    with pytest.raises(TypeError, match="also is 'a'; it must be a tuple of strs"):
        TrainingOptions(Path("a"), Path("b"), also="a")  # type: ignore[arg-type]
    manifest = write_corpus(tmp_path, "tones", ["ab"])
    for first, other in ((manifest, "x.jsonl.gz"), (Path("x.jsonl.gz"), str(manifest))):
        with pytest.raises(InputError, match=r"^x\.jsonl\.gz: of Lhotse's manifests a training takes one"):
            open_data(TrainingOptions(first, manifest, also=(other,)), 0)
    with pytest.raises(SystemExit):
        parse(["--manifest", "a", "--valid", "b", "--also", "3"])
    assert "also is 3; it must be a list such as [own.jsonl:5, more.jsonl]" in capsys.readouterr().err

"""Options of a training: accumulation, steps, more of either later, averages, devices, nodes, the log."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import torch
from asr_data import write_corpus
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_interrupted_training import Killer, assert_same_training, killer, kills, small  # noqa: F401
from torch.multiprocessing import reductions

from prnn.asr import CharTokenizer, InputError, Recogniser, compute_features, read_manifest
from prnn.asr.audio import read_audio
from prnn.asr.augment import Augmentation
from prnn.asr.averaging import mean_of_checkpoints
from prnn.asr.checkpoint import read_checkpoint
from prnn.asr.dataset import UtteranceDataset, load_audio
from prnn.asr.evaluation import evaluate
from prnn.asr.fbank import Fbank
from prnn.asr.feature_config import FeatureConfig
from prnn.asr.folder import averaged_checkpoint, best_checkpoint, last_checkpoint
from prnn.asr.loader import PREFETCH, BatchLoader
from prnn.asr.masks import draw_masks
from prnn.asr.options import TrainingOptions
from prnn.asr.progress import Progress, ends
from prnn.asr.sampler import BucketSampler
from prnn.asr.task import TransducerTask
from prnn.asr.training import train
from prnn.cli import main

TEXTS = ["ab ca", "cab", "b", "acc ab", "ba", "c b"]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data"), "tones", TEXTS)


def run(options: TrainingOptions) -> dict[str, Any]:
    """The last checkpoint of a training."""
    train(options, progress=False)
    return read_checkpoint(last_checkpoint(options.output))


def scalars(output: Path) -> EventAccumulator:
    events = EventAccumulator(str(output / "tensorboard"), size_guidance={"scalars": 0, "images": 0, "audio": 0})
    events.Reload()
    return events


def assert_same_weights(one: dict[str, Any], two: dict[str, Any], tolerance: float = 0.0) -> None:
    for name, tensor in one["state_dict"].items():
        torch.testing.assert_close(tensor, two["state_dict"][name], atol=tolerance, rtol=0)


def assert_same_gradients(one: dict[str, Any], two: dict[str, Any]) -> None:
    """By the optimizer's means of them. Not by the weights: Adam divides a gradient by its own size, so that a weight
    whose gradient is nearly zero moves by what was rounded."""
    states = [checkpoint["optimizer_states"][0]["state"] for checkpoint in (one, two)]
    assert states[0].keys() == states[1].keys()
    for index, state in states[0].items():
        mean, other = state["exp_avg"], states[1][index]["exp_avg"]
        assert (mean - other).norm() < 2e-6 * mean.norm(), f"parameter {index}"


def test_gradients_of_several_batches_make_a_step(manifest: Path, tmp_path: Path) -> None:
    """Batches of one utterance, of which two make a step, are worth batches of two."""
    base = small(manifest, tmp_path / "whole", epochs=2, batch_size=6, warmup=0.0)
    base = replace(base, model={**base.model, "dropout": 0.0}, augmentation=Augmentation(0, 0, 0, 0, 0))
    whole = run(base)
    parts = run(replace(base, output=tmp_path / "parts", batch_size=1, accumulate=6))
    assert whole["global_step"] == parts["global_step"] == 2
    assert_same_gradients(whole, parts)


@pytest.mark.parametrize(
    ("steps", "size", "accumulate", "expected"),
    [(7, 3, 1, (7, 7)), (6, 3, 1, (6, 6)), (5, 5, 2, (5, 9)), (1, 5, 2, (1, 2)), (3, 5, 2, (3, 5)), (1, 3, 9, (1, 3))],
)
def test_where_a_training_of_steps_ends(steps: int, size: int, accumulate: int, expected: tuple[int, int]) -> None:
    options = TrainingOptions(Path("a"), Path("b"), steps=steps, accumulate=accumulate)
    assert ends(Progress(pass_batches=size), 0, options) == expected
    whole = -(-size // accumulate)
    for done in range(steps + 1):  # the same from wherever it stands
        epoch, step = divmod(done, whole)
        progress = Progress(epoch, min(size, step * accumulate), size)
        assert ends(progress, done, options) == expected
    epochs = TrainingOptions(Path("a"), Path("b"), epochs=4, accumulate=accumulate)
    for done in range(4 * whole + 1):
        epoch, step = divmod(done, whole)
        assert ends(Progress(epoch, min(size, step * accumulate), size), done, epochs) == (4 * whole, 4 * size)


def test_a_training_ends_after_so_many_steps(manifest: Path, tmp_path: Path) -> None:
    """With a validation at its end, and a learning rate that has come down."""
    options = small(manifest, tmp_path / "out", steps=5, epochs=1, checkpoint_every=100, log_every=1)
    checkpoint = run(options)
    assert checkpoint["global_step"] == 5
    events = scalars(options.output)
    assert [event.step for event in events.Scalars("valid/wer")] == [2, 4]  # counted from 0
    assert events.Scalars("train/lr")[-1].value < 0.2 * options.lr
    written = last_checkpoint(options.output).stat().st_mtime_ns
    train(options, progress=False)
    assert last_checkpoint(options.output).stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("first", "then"),
    [({"epochs": 1}, {"epochs": 3}), ({"steps": 2}, {"steps": 7}), ({"steps": 4}, {"epochs": 3, "steps": None})],
    ids=str,
)
def test_a_training_is_extended(
    manifest: Path, tmp_path: Path, first: dict[str, Any], then: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches of the extended training are those of one that was as long from the beginning, its rates from then
    on, too."""
    seen: list[tuple[int, tuple[str, ...], float]] = []
    step = TransducerTask.training_step

    def training_step(self: TransducerTask, batch: Any, index: int) -> torch.Tensor:
        seen.append((self.global_step, tuple(batch.texts), self.trainer.optimizers[0].param_groups[0]["lr"]))
        return step(self, batch, index)

    monkeypatch.setattr(TransducerTask, "training_step", training_step)
    straight = small(manifest, tmp_path / "straight", **then)
    run(straight)
    expected, seen[:] = list(seen), []
    extended = replace(straight, output=tmp_path / "extended", **{"steps": None, **first})
    done = run(extended)["global_step"]
    run(replace(straight, output=extended.output))
    assert [entry[:2] for entry in seen] == [entry[:2] for entry in expected]
    assert seen[done:] == expected[done:]
    with pytest.raises(InputError, match=r"holds a training of \d+ steps, which is more, and steps is 1: take more"):
        run(replace(straight, output=extended.output, steps=1))


def test_as_long_as_its_rates_do_not_change_an_extended_training_is_the_long_one(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the midst and told to be longer, before the rates differ."""
    straight = small(manifest, tmp_path / "straight", epochs=3, warmup=1.0, accumulate=2)
    run(straight)
    run(replace(straight, output=tmp_path / "killed"))
    assert_same_training(straight.output, tmp_path / "killed")


@pytest.mark.parametrize(
    "changes",
    [
        {"ema": 0.9, "augmentation": Augmentation(time_masks=2, frequency_masks=1)},  # masks hold the features' mean
        {"accumulate": 2, "steps": 5, "batch_size": 1, "epochs": 1},
        {"average": 2, "average_of": "last"},
        {"features_on": "device", "workers": 1},
    ],
    ids=str,
)
def test_killed_at_every_point_with_options(
    killer: Killer,  # noqa: F811
    manifest: Path,
    tmp_path: Path,
    changes: dict[str, Any],
) -> None:
    straight = small(manifest, tmp_path / "straight", epochs=2, checkpoint_every=2)
    straight = replace(straight, **changes)
    killer.arm(None)
    run(straight)
    killed = replace(straight, output=tmp_path / "killed")
    assert kills(killer, killed, [*range(3, killer.points + 1, 4), None]) > 2
    assert_same_training(straight.output, killed.output)
    if straight.average:
        assert_same_weights(*(read_checkpoint(averaged_checkpoint(o.output)) for o in (straight, killed)))


def test_moving_average(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The average is validated and saved; the test computes it step by step."""
    expected: dict[str, torch.Tensor] = {}
    zero_grad = TransducerTask.on_train_batch_start

    def observed(self: TransducerTask, *arguments: Any) -> None:
        if self.global_step > 0:
            for name, tensor in self.state_dict().items():
                before = expected.get(name)
                expected[name] = tensor.clone() if before is None else 0.5 * before + 0.5 * tensor
        zero_grad(self, *arguments)

    monkeypatch.setattr(TransducerTask, "on_train_batch_start", observed)
    options = small(manifest, tmp_path / "out", epochs=2, ema=0.5, valid_every=2, checkpoint_every=1)
    last = run(options)
    current = {name: 0.5 * tensor + 0.5 * last["current_model_state"][name] for name, tensor in expected.items()}
    for name, tensor in current.items():
        torch.testing.assert_close(last["state_dict"][name], tensor, atol=1e-6, rtol=0)
    assert_same_weights(read_checkpoint(best_checkpoint(options.output)), last)
    assert not torch.equal(*(last[key]["model.joiner.output.weight"] for key in ("state_dict", "current_model_state")))


@pytest.mark.parametrize("of", ["best", "last"])
def test_mean_of_validated_models(manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], of: str) -> None:
    options = small(manifest, tmp_path / "out", epochs=4, average=2, average_of=of)
    run(options)
    kept = sorted(options.output.glob("validated-*.ckpt"))
    assert len(kept) == 2
    if of == "last":
        assert [path.name for path in kept] == ["validated-000000009.ckpt", "validated-000000012.ckpt"]
    mean = read_checkpoint(averaged_checkpoint(options.output))["state_dict"]
    weights = [read_checkpoint(path)["state_dict"] for path in kept]
    for name, tensor in mean.items():
        torch.testing.assert_close(tensor, (weights[0][name] + weights[1][name]) / 2, atol=1e-6, rtol=0)
    averaged_checkpoint(options.output).unlink()  # as a kill leaves it: without the mean, with models of it no more
    kept[0].with_name("validated-000000001.ckpt").write_bytes(kept[0].read_bytes())
    run(options)
    assert sorted(options.output.glob("validated-*.ckpt")) == kept
    assert_same_weights({"state_dict": mean}, read_checkpoint(averaged_checkpoint(options.output)))
    wer = evaluate(Recogniser.load(averaged_checkpoint(options.output)), read_manifest(manifest)).rates.wer
    assert f"mean of 2 models: WER {100 * wer:.2f} %" in capsys.readouterr().out
    with pytest.raises(InputError, match="no such file"):
        mean_of_checkpoints([kept[0], tmp_path / "none.ckpt"])


def test_another_mean_after_the_end(manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The mean is made anew if it is to be of other models, and a line says which of these are not there."""
    options = small(manifest, tmp_path / "out", epochs=4, average=3, average_of="last")
    run(options)

    def mean_is_of(average: int, of: str, names: list[str], message: str) -> None:
        capsys.readouterr()
        run(replace(options, average=average, average_of=of))
        weights = [read_checkpoint(options.output / f"validated-{name:0>9}.ckpt")["state_dict"] for name in names]
        mean = {name: sum(each[name].double() for each in weights) / len(weights) for name in weights[0]}
        mean = {name: tensor.to(weights[0][name].dtype) for name, tensor in mean.items()}
        assert_same_weights({"state_dict": mean}, read_checkpoint(averaged_checkpoint(options.output)), 1e-6)
        assert message in capsys.readouterr().out

    assert len(list(options.output.glob("validated-*.ckpt"))) == 3
    mean_is_of(3, "last", ["6", "9", "12"], "mean of 3 models: in " + str(averaged_checkpoint(options.output)))
    mean_is_of(2, "last", ["9", "12"], "mean of 2 models: WER")
    mean_is_of(3, "last", ["6", "9", "12"], "mean of 3 models: WER")
    missing = "of the last 4 validated models were kept, since average or average_of was another when they"
    mean_is_of(4, "last", ["6", "9", "12"], f"\n3 {missing} were validated: train for longer, or --restart\n")
    mean_is_of(9, "last", ["6", "9", "12"], f"\n3 {missing}")
    capsys.readouterr()
    run(replace(options, average=0))
    assert "mean of " not in capsys.readouterr().out
    # As many models as were validated, and fewer than were wanted.
    options = replace(options, output=tmp_path / "short", epochs=2, average=5)
    run(options)
    assert "average is 5, but 2 validated models are kept\n" in capsys.readouterr().out
    mean_is_of(1, "last", ["6"], "mean of 1 models: WER")
    mean_is_of(5, "best", ["3", "6"], "mean of 2 models: WER")


def test_a_mean_of_models_that_were_not_kept(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = small(manifest, tmp_path / "out", epochs=2)
    run(options)
    run(replace(options, average=2))
    assert "0 of the best 2 validated models were kept" in capsys.readouterr().out
    assert not averaged_checkpoint(options.output).exists()
    # The options of a training that goes on are.
    run(replace(options, average=2, average_of="last", epochs=4))
    assert "mean of 2 models: WER" in (said := capsys.readouterr().out)
    assert "were kept" not in said


def test_the_log(manifest: Path, tmp_path: Path) -> None:
    options = small(manifest, tmp_path / "out", epochs=2, pictures=2, log_every=1)
    run(options)
    events = scalars(options.output)
    assert {"train/gradient_norm", "train/skipped_steps", "train/lr", "valid/wer"} <= set(events.Tags()["scalars"])
    assert [event.value for event in events.Scalars("train/skipped_steps")] == [0.0] * 6
    assert len(events.Scalars("train/gradient_norm")) == 6
    assert all(event.value > 0 for event in events.Scalars("train/gradient_norm"))
    assert [event.step for event in events.Scalars("train/step_ms")] == [1, 2, 4, 5]  # none across a validation
    assert all(event.value > 0 for event in events.Scalars("train/step_ms"))
    for name in ("train/waiting", "train/waiting_for_device"):
        assert len(events.Scalars(name)) == 4
        assert all(0 <= event.value <= 1 for event in events.Scalars(name))
    assert sorted(events.Tags()["images"]) == sorted(events.Tags()["audio"]) == ["valid/0", "valid/1"]
    assert [image.step for image in events.Images("valid/0")] == [3, 6]
    (audio,) = events.Audio("valid/1")
    assert audio.sample_rate == 16000
    assert audio.length_frames == len(read_audio(manifest.parent / "tones-1.wav")[0])


@pytest.mark.parametrize(
    "config",
    [
        FeatureConfig(),
        FeatureConfig(num_mel_bins=40, high_freq=0),
        FeatureConfig(sample_rate=8000, frame_shift_ms=12.5, frame_length_ms=32),
        FeatureConfig(frame_shift_ms=7.3, frame_length_ms=21.7),
    ],
    ids=lambda config: f"{config.num_mel_bins} bins {config.frame_shift_ms}",
)
def test_features_of_a_device_are_kaldi_native_fbanks(config: FeatureConfig) -> None:
    rng = np.random.default_rng(0)
    recordings = [0.3 * rng.standard_normal(count) for count in (16000, 161, 1234, 8000, 80, 100, 40)]
    recordings.append(0.3 * np.sin(np.arange(9000) * 0.1) + 1e-3 * rng.standard_normal(9000) + 0.2)
    audio = torch.nn.utils.rnn.pad_sequence([torch.tensor(r).float() for r in recordings], batch_first=True)
    lengths = torch.tensor([len(recording) for recording in recordings])
    for row, size in zip(audio, lengths, strict=True):
        row[size:] = torch.nan
    features, counts = Fbank(config)(audio, lengths)
    for row, count, recording in zip(features, counts, recordings, strict=True):
        expected = compute_features(recording.astype(np.float32), config.sample_rate, config)
        assert count == len(expected)
        torch.testing.assert_close(row[:count], expected, atol=1e-3, rtol=0)
        assert not row[count:].any()


def test_augmented_on_the_device_as_by_the_workers(manifest: Path) -> None:
    from prnn.transducer import Transducer

    utterances, augmentation = (
        read_manifest(manifest),
        Augmentation(gain_db=6, time_share=0.5, time_warp=10, start_epoch=1),
    )
    batches = []
    for audio in (False, True):
        dataset = UtteranceDataset(utterances, CharTokenizer("abc "), FeatureConfig(), augmentation, 3, 0, audio)
        dataset.mean = torch.full((80,), -7.0)
        order = BucketSampler([u.duration for u in utterances], 3, 100.0, seed=5)
        batches.append(list(BatchLoader(dataset, order)))
    options = small(manifest, manifest.parent, features_on="device")
    model = Transducer.from_config(options.transducer(5, 80))
    model.encoder.set_normalization(torch.full((80,), -7.0), torch.ones(80))  # type: ignore[union-attr]
    task = TransducerTask(model, FeatureConfig(), CharTokenizer("abc "), options)
    for workers, device in zip(*batches, strict=True):
        assert device.audio
        computed = task.with_features(device)
        # A float32 FFT errs by a share of the frame's loudest amplitude, so that the logarithm of a faint band, which
        # an FFT of this machine's instructions rounds otherwise, has a larger error than that of a loud one.
        fainter = (workers.features.amax(-1, keepdim=True) - workers.features) / 2
        limits = 1e-4 + 4 * torch.finfo(torch.float32).eps * fainter.exp()
        assert ((computed.features - workers.features).abs() < limits).all()
        assert torch.equal(computed.feature_lengths, workers.feature_lengths)
        assert (computed.texts, computed.after) == (workers.texts, workers.after)
        assert bool((workers.features == -7).any())


@pytest.mark.parametrize(("batch_bytes", "fits"), [(2**22, True), (64, False)])
def test_a_batch_comes_in_a_slot(manifest: Path, batch_bytes: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the processes that prepare it, or, if it is too large, as one tensor: each tensor of a message takes a
    connection to its sender."""
    utterances, augmentation = read_manifest(manifest), Augmentation(time_warp=10, start_epoch=1)
    dataset = UtteranceDataset(utterances, CharTokenizer("abc "), FeatureConfig(), augmentation, 3, 0, audio=True)
    order = BucketSampler([u.duration for u in utterances], 3, 100.0, seed=5)
    received = []
    rebuild = reductions.rebuild_storage_fd

    @wraps(rebuild)  # it is sent by its name
    def counted(*arguments: Any) -> Any:
        received.append(arguments)
        return rebuild(*arguments)

    monkeypatch.setattr(reductions, "rebuild_storage_fd", counted)
    loaders = BatchLoader(dataset, order, workers=1, batch_bytes=batch_bytes), BatchLoader(dataset, order)
    sent, made = ([batch for _ in range(PREFETCH) for batch in loader] for loader in loaders)
    assert len(sent) > PREFETCH + 2  # slots have been used again
    assert len(received) == (0 if fits else len(sent))
    loaders[0].close()
    for one, two in zip(sent, made, strict=True):
        assert one.masks is not None
        for mine, other in zip((*one[:4], *one.masks), (*two[:4], *two.masks), strict=True):
            assert mine.dtype == other.dtype
            assert torch.equal(mine, other)
        assert one[4:6] + one[7:] == two[4:6] + two[7:]


def test_samples_are_resampled_for_the_device(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, "tones", ["ab"], rate=44100)
    (utterance,) = read_manifest(manifest)
    audio = load_audio(utterance, FeatureConfig())
    assert abs(len(audio) - 16000 * utterance.duration) <= 1


def test_time_masks_as_a_share_of_the_utterance() -> None:
    augmentation = Augmentation(frequency_masks=2, frequency_width=27, time_masks=10, time_width=1000, time_share=0.05)
    runs = []
    for seed in range(100):
        masked = draw_masks(augmentation, 400, 80, np.random.default_rng(seed)).frames[:, 0].numpy()
        assert masked.sum() <= 10 * 20
        edges = np.flatnonzero(np.diff(np.concatenate([[0], masked, [0]])))
        runs.append(max((end - start for start, end in pairwise(edges) if masked[start]), default=0))
    assert max(runs) >= 20
    assert draw_masks(augmentation, 19, 80, np.random.default_rng(0)).frames.sum() == 0


def test_time_is_warped_as_by_two_interpolations() -> None:
    """Before and after the place that moves, by up to so many frames."""
    augmentation = Augmentation(gain_db=0, frequency_masks=0, time_masks=0, time_warp=8)
    features, moved = torch.randn(60, 3, dtype=torch.float64), []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rng.uniform()  # of the gain
        old = int(rng.integers(9, 52))
        moved.append(int(rng.integers(-8, 9)))
        new = old + moved[-1]
        parts = [
            torch.nn.functional.interpolate(part.T[None], size=size, mode="linear")[0].T
            for part, size in ((features[:old], new), (features[old:], 60 - new))
        ]
        masks = draw_masks(augmentation, 60, 3, np.random.default_rng(seed))
        torch.testing.assert_close(masks(features, torch.zeros(3)), torch.cat(parts))
    assert (min(moved), max(moved)) == (-8, 8)
    assert torch.equal(
        draw_masks(augmentation, 17, 3, np.random.default_rng(0))(features[:17], torch.zeros(3)), features[:17]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speeds": ()}, "speeds is (); it must hold numbers of at least 0.5"),
        ({"speeds": (0.9, 3.0)}, "speeds is (0.9, 3.0); it must hold numbers of at least 0.5 and at most 2"),
        ({"speeds": ("1",)}, "it must be a tuple of floats"),
        ({"snr_low": 30.0}, "snr_low is 30; it must be at most snr_high, 20"),
        ({"noise": 3}, "noise is 3; it must be a path"),
        ({"time_share": 1.5}, "time_share is 1.5; it must be at least 0 and at most 1"),
    ],
    ids=str,
)
def test_augmentation_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        Augmentation(**changes)
    assert message in str(caught.value)


def command(manifest: Path, output: Path, *more: object) -> list[str]:
    return [str(word) for word in (
        "train", "--manifest", manifest, "--valid", manifest, "--output", output, "--epochs", 4, "--batch-size", 1,
        "--hidden", 8, "--layers", 1, "--valid-every", 4, "--accelerator", "cpu", "--no-progress", "--pictures", 0,
        "--checkpoint-every", 1, *more,
    )]  # fmt: skip


def prnn(*arguments: str) -> subprocess.CompletedProcess[str]:
    """For trainings with several processes, of which the first starts the others with its own command line."""
    return forked.run("-m", "prnn", *arguments)


def free_port() -> int:
    """One below those that the system gives to whoever asks for any, so that nobody else gets it meanwhile."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.Random(os.getpid()).sample(range(first // 2, first), 100):
        with socket.socket() as server, contextlib.suppress(OSError):
            server.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def test_two_nodes_of_torchrun(manifest: Path, tmp_path: Path) -> None:
    """A node is a torchrun here; together they do what two processes of one node do. Then one process goes on."""
    one = prnn(*command(manifest, tmp_path / "one", "--devices", 2))
    assert one.returncode == 0, one.stderr
    assert [one.stdout.count(told) for told in ("12 steps", "epoch 4, step 12", "best model")] == [1, 1, 1]
    port = free_port()
    nodes = [
        forked.Process(
            "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1",
            "--master-addr", "127.0.0.1", "--master-port", str(port), "-m", "prnn",
            *command(manifest, tmp_path / "two", "--num_nodes", 2, "--restart"),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [node.stdout.read() for node in nodes]
    assert [node.wait() for node in nodes] == [0, 0], [node.errors() for node in nodes]
    assert [output.count("best model") for output in outputs] == [1, 0]
    last = [read_checkpoint(tmp_path / name / "last.ckpt") for name in ("one", "two")]
    assert last[0]["global_step"] == 4 * 3
    assert_same_weights(*last)

    assert main(command(manifest, tmp_path / "two", "--epochs", 6)) == 0
    checkpoint = read_checkpoint(tmp_path / "two" / "last.ckpt")
    assert checkpoint["global_step"] == 4 * 3 + 2 * 6
    assert checkpoint["progress"]["processes"] == 1


def test_processes_accumulate_together(manifest: Path, tmp_path: Path) -> None:
    """Two processes with three batches each make the step of one process with six."""
    still = ["--epochs", 1, "--warmup", 0, "--dropout", 0, "--gain-db", 0, "--mask-bins", 0, "--mask-frames", 0]
    assert main(command(manifest, tmp_path / "one", *still, "--accumulate", 6)) == 0
    two = prnn(*command(manifest, tmp_path / "two", *still, "--devices", 2, "--accumulate", 3))
    assert two.returncode == 0, two.stderr
    last = [read_checkpoint(tmp_path / name / "last.ckpt") for name in ("one", "two")]
    assert [checkpoint["global_step"] for checkpoint in last] == [1, 1]
    assert_same_gradients(*last)


def test_processes_that_cannot_begin_say_so_once(manifest: Path, tmp_path: Path) -> None:
    """And they have no threads of gloo's any more: these would abort a process now and then as it ends."""
    (tmp_path / "program.py").write_text(
        "import sys, torch, prnn.cli\n"
        "status = prnn.cli.main(sys.argv[1:])\n"
        "sys.exit(1 if torch.distributed.is_initialized() else status)\n"
    )
    arguments = command(tmp_path / "none.jsonl", tmp_path / "out", "--devices", 3)
    missing = forked.run("-m", "program", *arguments, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (missing.returncode, missing.stdout) == (2, ""), missing.stderr
    assert missing.stderr == f"prnn: {tmp_path / 'none.jsonl'}: no such file\n"
    assert not (tmp_path / "out").exists()
    assert main(command(manifest, tmp_path / "two", "--epochs", 2)) == 0
    recorded = (tmp_path / "two" / "options.json").read_text()
    less = prnn(*command(manifest, tmp_path / "two", "--epochs", 1, "--devices", 2))
    assert (less.returncode, less.stdout) == (2, "")
    assert less.stderr.startswith(f"prnn: {tmp_path / 'two'} holds a training of ")
    assert less.stderr.count("\n") == 1
    assert (tmp_path / "two" / "options.json").read_text() == recorded


def wait_for_the_end_of_group(group: int) -> None:
    """Its processes have closed their files, and the system may still be about to remove them."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.killpg(group, 0)
            time.sleep(0.01)


@pytest.mark.parametrize(("devices", "kill"), [(2, os.kill), (1, os.killpg)])
def test_terminated_processes_end_together(
    manifest: Path, tmp_path: Path, devices: int, kill: Callable[[int, int], None]
) -> None:
    """With a status and one sentence that say so; also where those that prepare batches have got the signal."""
    more = ["--devices", devices, "--epochs", 10000, "--valid-every", 1, "--workers", 2 - devices]
    arguments = command(manifest, tmp_path / "out", *more)
    process = forked.Process("-m", "prnn", *arguments, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert any(line.startswith("epoch 1,") for line in process.stdout)
    kill(process.pid, signal.SIGTERM)
    process.stdout.read()
    sentence = f"prnn: terminated; the same command goes on from {tmp_path / 'out/last.ckpt'}\n"
    assert (process.wait(), process.errors()) == (128 + signal.SIGTERM, sentence)
    wait_for_the_end_of_group(process.pid)
    assert read_checkpoint(tmp_path / "out/last.ckpt")["global_step"] > 0


def test_other_devices_in_the_midst_of_a_pass() -> None:
    progress = Progress(epoch=2, batch=5, pass_batches=10, order_epoch=2, order_batch=5, processes=2)
    one = progress.with_processes(1, 20)
    assert (one.epoch, one.batch, one.done, one.after) == (2, 10, 50, (2, 10))
    four = progress.with_processes(4, 5)
    assert (four.epoch, four.batch, four.done, four.after) == (2, 2, 12, (2, 2))
    assert progress.with_processes(2, 10) is progress
    begun = Progress(epoch=2, batch=1, pass_batches=10, order_epoch=2, order_batch=1)
    assert begun.with_processes(10, 1).batch == 1


def test_nodes_that_nobody_started(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = small(manifest, tmp_path / "out", num_nodes=2)
    with pytest.raises(InputError, match=r"^num_nodes is 2: torchrun must start prnn train on every node"):
        run(options)
    started = {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2", "RANK": "0"}
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert main(command(manifest, tmp_path / "out")) == 2
    message = "torchrun started 2 processes on this node; devices 1 and num_nodes 1 make it 1"
    assert capsys.readouterr().err == f"prnn: {message}\n"
    assert not (tmp_path / "out").exists()


def test_gradients_of_several_steps_are_looked_at_at_once(tmp_path: Path) -> None:
    """As on a GPU: the first of the latest gradients without numbers is known, and how many steps were skipped."""
    from prnn.transducer import Transducer

    options = small(tmp_path / "a", tmp_path / "b")
    model = Transducer.from_config(options.transducer(4, 80))
    task = TransducerTask(model, FeatureConfig(), CharTokenizer("abc"), options)
    nan = float("nan")
    for step, norms, since, skipped in (
        (4, (1.0, nan, 1.0, nan), 4, 2),
        (6, (nan, nan), 4, 4),
        (9, (2.0, float("inf"), nan), 8, 6),
        (10, (3.0,), 0, 6),
    ):
        task._norms += [torch.tensor(norm) for norm in norms]
        task._look_at_gradients(step)
        assert (task._bad_since, task._skipped, task._steps, task._norms) == (since, skipped, step, [])

"""Training: it learns, in one process and in two; its batches, their order, its learning rate."""

import gc
import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asr_data import write_corpus
from torch import Tensor

from prnn.asr import CharTokenizer, FeatureConfig, InputError, Recogniser, read_manifest, training
from prnn.asr.augment import Augmentation
from prnn.asr.checkpoint import read_checkpoint
from prnn.asr.data import open_data
from prnn.asr.dataset import (
    Position,
    Request,
    UtteranceDataset,
    feature_statistics,
    feature_sums,
    load_features,
)
from prnn.asr.evaluation import evaluate
from prnn.asr.loader import BatchLoader
from prnn.asr.manifest import Utterance
from prnn.asr.options import TrainingOptions
from prnn.asr.sampler import BucketSampler
from prnn.asr.task import schedule, schedule_after
from prnn.asr.training import train
from prnn.cli import main

TEXTS = ["ab ca", "cab", "b", "acc ab"]
SMALL_MODEL = {
    "encoder_hidden": 48,
    "encoder_layers": 1,
    "predictor": "stateless",
    "predictor_hidden": 16,
    "joiner_dim": 32,
    "frame_stack": 4,
    "ctc_weight": 0.3,
}


def options(folder: Path, **changes: object) -> TrainingOptions:
    manifest = write_corpus(folder / "data", "tones", TEXTS)
    base = TrainingOptions(
        manifest, manifest, folder / "out", model=SMALL_MODEL, accelerator="cpu", batch_size=4, lr=1e-2, epochs=160,
        valid_every=160, augmentation=Augmentation(frequency_width=0, time_width=0),
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def test_four_utterances_are_learnt_by_heart(tmp_path: Path) -> None:
    opts = options(tmp_path)
    best = train(opts, progress=False)
    recogniser = Recogniser.load(best)
    utterances = read_manifest(opts.manifest)
    result = evaluate(recogniser, utterances)
    assert result.texts == TEXTS
    assert result.rates == (0.0, 0.0)
    assert evaluate(recogniser, utterances, beam=3).texts == TEXTS
    assert recogniser.tokenizer.characters == (" ", "a", "b", "c")
    assert float(recogniser.model.encoder.feature_mean.abs().min()) > 0

    # Whoever runs the same command again gets the same model, at once; other options need another folder.
    saved = read_checkpoint(best)["state_dict"]
    assert train(opts, progress=False) == best
    again = read_checkpoint(best)["state_dict"]
    assert all(torch.equal(saved[name], again[name]) for name in saved)
    with pytest.raises(InputError, match=r"holds a training with lr 0\.01, not 0\.02"):
        train(replace(opts, lr=0.02), progress=False)


def test_two_processes_train_together(tmp_path: Path) -> None:
    """In a batch job of SLURM, too, which has started one process."""
    slurm = {"JOB_ID": "1", "JOB_NAME": "x", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}
    manifest = write_corpus(tmp_path / "data", "tones", TEXTS)
    command = f"""train --manifest {manifest} --valid {manifest} --output {tmp_path / "out"} --epochs 6 --batch-size 1
        --hidden 16 --layers 1 --valid-every 6 --accelerator cpu --devices 2 --no-progress"""
    environment = {**os.environ, **{f"SLURM_{name}": value for name, value in slurm.items()}}
    command = [sys.executable, "-m", "prnn", *command.split()]  # no fork: as users begin it
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("12 steps") == 1
    assert result.stdout.count("epoch 6, step 12") == 1
    assert result.stdout.count("best model") == 1
    assert read_checkpoint(tmp_path / "out" / "last.ckpt")["global_step"] == 12


@pytest.mark.parametrize("lost", [False, True])
def test_processes_that_prepare_batches_end_with_the_training(
    tmp_path: Path, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it ends. At the end of the program, torch before 2.13 waits five seconds for each of them."""

    def sums(*arguments: Any) -> Tensor:
        result = feature_sums(*arguments)
        if lost:
            (tmp_path / "data" / "tones-2.wav").unlink()
        return result

    monkeypatch.setattr(training, "feature_sums", sums)
    before = set(active_children())
    gc.disable()  # the program ends before cycles are collected
    try:
        with pytest.raises(InputError, match=r"tones-2\.wav") if lost else nullcontext():
            train(options(tmp_path, epochs=2, valid_every=2, batch_size=1, workers=2), progress=False)
        assert set(active_children()) == before
    finally:
        gc.enable()


@pytest.fixture
def dataset(tmp_path: Path) -> UtteranceDataset:
    utterances = read_manifest(write_corpus(tmp_path, "tones", TEXTS * 5))
    augmentation = Augmentation(gain_db=3)
    return UtteranceDataset(utterances, CharTokenizer("abc "), FeatureConfig(), augmentation, 0, 10**8)


def test_the_loader_goes_on_after_any_number_of_steps(dataset: UtteranceDataset) -> None:
    def loader() -> BatchLoader:
        return BatchLoader(dataset, BucketSampler([u.duration for u in dataset.utterances], 3, 100.0, seed=5))

    straight = loader()
    batches = [batch for _ in range(3) for batch in straight]
    assert len(batches) == 3 * len(straight)
    for done in (0, 3, len(straight), len(straight) + 1):
        resumed = loader()
        resumed.start(batches[done - 1].after if done else Position(0, 0), done)
        rest = [batch for _ in range(3) for batch in resumed][: len(batches) - done]
        assert len(rest) == len(batches) - done
        for batch, other in zip(batches[done:], rest, strict=True):
            assert batch.texts == other.texts
            assert torch.equal(batch.features, other.features)


def test_processes_share_the_batches_of_an_epoch(dataset: UtteranceDataset) -> None:
    order = BucketSampler([u.duration for u in dataset.utterances], 3, 100.0, seed=5)
    loaders = [BatchLoader(dataset, order, process=process, processes=3) for process in range(3)]
    assert [len(loader) for loader in loaders] == [len(order) // 3] * 3
    shares = [batch.texts for loader in loaders for batch in loader]
    whole = [batch.texts for batch in BatchLoader(dataset, order)]
    for texts in shares:
        whole.remove(texts)
    assert len(whole) == len(order) % 3
    assert [order.epoch(0, process, 100) for process in (0, len(order))] == [order.epoch(0, 0, 100)] * 2
    assert len(order.epoch(0, 1, 100)) == 1


@pytest.mark.parametrize("processes", [2, 3, 8])
def test_processes_have_batches_of_similar_durations(processes: int) -> None:
    durations = np.random.default_rng(0).gamma(4.0, 3.0, size=5000)
    order = BucketSampler(durations.tolist(), 8, 1e9, seed=1)
    left_out = set()
    for number in range(3):
        shares = [order.epoch(number, process, processes) for process in range(processes)]
        assert {len(share) for share in shares} == {len(order) // processes}
        longest = np.array([[durations[batch].max() for batch in share] for share in shares])
        assert longest.max(0).mean() < 1.03 * longest.mean()
        taken = [index for share in shares for batch in share for index in batch]
        assert len(taken) == len(set(taken))
        left_out.add(tuple(sorted(set(range(5000)) - set(taken))))
    assert len(left_out) == (3 if len(order) % processes else 1)


def test_every_epoch_has_every_utterance_once_in_another_order() -> None:
    durations = np.random.default_rng(0).uniform(0.5, 6, size=200).tolist()
    order = BucketSampler(durations, 8, 20.0, seed=1)
    epochs = [order.epoch(number) for number in range(3)]
    assert epochs[0] == order.epoch(0)
    assert epochs[0] != epochs[1]
    assert BucketSampler(durations, 8, 20.0, seed=2).epoch(0) != epochs[0]
    for epoch in epochs:
        assert len(epoch) == len(order)
        assert sorted(index for batch in epoch for index in batch) == list(range(200))
        for batch in epoch:
            longest = max(durations[index] for index in batch)
            assert len(batch) <= 8
            assert longest * len(batch) <= 20.0
            assert longest - min(durations[index] for index in batch) < 1.5
    assert [len(batch) for batch in BucketSampler([30.0, 30.0], 8, 20.0, seed=1).epoch(0)] == [1, 1]
    assert BucketSampler([3.0, 1.0, 2.0], 2, 20.0, seed=None).epoch(0) == [[1, 2], [0]]


def test_a_batch_is_padded_and_cached(dataset: UtteranceDataset) -> None:
    batch = next(iter(BatchLoader(dataset, BucketSampler([u.duration for u in dataset.utterances], 20, 100.0, seed=0))))
    assert batch.features.shape == (len(batch.texts), int(batch.feature_lengths.max()), 80)
    tokenizer = CharTokenizer("abc ")
    for row, size, text in zip(batch.targets, batch.target_lengths, batch.texts, strict=True):
        assert tokenizer.decode(row[:size].tolist()) == text
    cached = UtteranceDataset(dataset.utterances, tokenizer, FeatureConfig(), cache_bytes=10**8)
    uncached = UtteranceDataset(dataset.utterances, tokenizer, FeatureConfig())
    first = cached.example(0, 0).features
    again = [cached.example(0, epoch).features for epoch in (1, 2)]
    assert torch.equal(again[0], first)
    assert again[0].data_ptr() == again[1].data_ptr()
    assert uncached.example(0, 0).features is not uncached.example(0, 0).features
    assert torch.equal(uncached.example(0, 0).features, first)


@pytest.mark.parametrize("room", [0, 10**8])
def test_a_batch_is_loaded_by_several_threads(
    dataset: UtteranceDataset, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Each waits here until there is another. The batch is that of one utterance after the other."""
    together = threading.Barrier(2)

    def load(utterance: Utterance, config: FeatureConfig) -> Tensor:
        together.wait(timeout=200)
        return load_features(utterance, config)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    order = [3, 0, 2, 1]
    expected = [load_features(dataset.utterances[index], FeatureConfig()) for index in order]
    plain = UtteranceDataset(dataset.utterances, CharTokenizer("abc "), FeatureConfig(), cache_bytes=room)
    monkeypatch.setattr("prnn.asr.dataset.load_features", load)
    for _ in range(2):
        batch = plain.batch(Request(order, Position(0, 1)))
        for row, size, features in zip(batch.features, batch.feature_lengths, expected, strict=True):
            assert torch.equal(row[:size], features)
    assert together.n_waiting == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_an_utterance_that_cannot_be_used_is_one_sentence(tmp_path: Path, workers: int) -> None:
    """Also when another process came upon it."""
    manifest = write_corpus(tmp_path, "tones", TEXTS)
    dataset = UtteranceDataset(read_manifest(manifest), CharTokenizer("abc "), FeatureConfig())
    (tmp_path / "tones-2.wav").write_bytes(b"RIFF")
    loader = BatchLoader(dataset, BucketSampler([u.duration for u in dataset.utterances], 2, 100.0, seed=0), workers)
    with pytest.raises(InputError) as caught:
        list(loader)
    assert str(caught.value).startswith(f"{manifest}, line 3: {tmp_path / 'tones-2.wav'}: not a recording")
    assert "\n" not in str(caught.value)


def test_no_room_for_the_batches_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    monkeypatch.setattr("prnn.asr.loader.PackedBatch", full)
    manifest = write_corpus(tmp_path, "t", ["ab"])
    command = f"train --manifest {manifest} --valid {manifest} --output {tmp_path / 'out'} --hidden 4 --workers 1"
    assert main([*command.split(), "--accelerator", "cpu", "--no-progress", "--pictures", "0"]) == 2
    assert capsys.readouterr().err.startswith("prnn: /dev/shm has no room for the batches that --workers")


def test_feature_statistics(dataset: UtteranceDataset) -> None:
    sums = [feature_sums(dataset.sample(500, process, 3), FeatureConfig(), torch.device("cpu")) for process in range(3)]
    mean, std = feature_statistics(sum(sums))
    every = torch.cat([dataset.features(index) for index in range(len(dataset))])
    torch.testing.assert_close(mean, every.mean(dim=0), atol=1e-4, rtol=0)
    torch.testing.assert_close(std, every.std(dim=0, correction=0), atol=1e-3, rtol=0)


@pytest.mark.parametrize("audio", [False, True])
def test_what_the_statistics_read_is_not_read_again(
    dataset: UtteranceDataset, audio: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = UtteranceDataset(dataset.utterances, CharTokenizer("abc "), FeatureConfig(), cache_bytes=10**7, audio=audio)
    sample = list(kept.sample(500))
    for name in ("load_audio", "load_features"):
        monkeypatch.setattr(f"prnn.asr.dataset.{name}", None)
    for index, one in enumerate(sample):
        assert torch.equal(kept.example(index, 0).features, one)


@pytest.mark.parametrize("warmup", [0.0, 0.1])
def test_learning_rate(warmup: float) -> None:
    """Bit for bit that of torch's schedulers, also when only its end is known."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    rates = schedule(optimizer, 100, warmup)
    factors = []
    for step in range(101):
        factors.append(2 * optimizer.param_groups[0]["lr"])
        state, lr = schedule_after(step, 0.5, 100, warmup)
        assert 2 * lr == factors[-1]
        assert state == rates.state_dict()
        optimizer.step()
        rates.step()
    if warmup:
        assert factors[:11] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0])
    else:
        assert factors[:2] == pytest.approx([1.0, 1.0])
    assert factors[100] == pytest.approx(0.01)
    assert all(a > b for a, b in pairwise(factors[10:]))


def test_recordings_of_a_lower_sample_rate_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opts = options(tmp_path, epochs=1, valid_every=1)
    write_corpus(tmp_path / "data", "low", TEXTS[:3], rate=8000)
    low = opts.manifest.with_name("low.jsonl")
    mixed = opts.manifest.with_name("mixed.jsonl")
    mixed.write_text(low.read_text() + opts.manifest.read_text())
    expected = (
        f"{mixed}: 3 of 7 recordings looked at have a lower sample rate (3 of 8000 Hz) than the features, 16000 Hz. "
        "They are resampled, and have nothing above half their own rate, where the highest mel bins stay empty; "
        "--features.sample_rate 8000 leaves these bins out\n"
    )
    train(replace(opts, manifest=mixed), progress=False)
    assert capsys.readouterr().out.count(expected) == 1
    train(replace(opts, manifest=mixed, epochs=2), progress=False)  # goes on
    assert "sample rate" not in capsys.readouterr().out
    narrow = FeatureConfig(sample_rate=8000)
    for none in (opts, replace(opts, manifest=mixed, features=narrow)):
        data = open_data(none, 0)
        assert data.report_rates(none.manifest, none.features) == ""
        data.close()


def test_a_text_with_an_unknown_character_is_named(tmp_path: Path) -> None:
    utterances = read_manifest(write_corpus(tmp_path, "tones", ["ab", "abc"]))
    with pytest.raises(InputError, match=r"line 2: the text has 'c', which is not among the characters 'ab'"):
        UtteranceDataset(utterances, CharTokenizer("ab"), FeatureConfig())


def test_tokenizer() -> None:
    tokenizer = CharTokenizer.from_texts(["so", "größe"])
    assert "".join(tokenizer.characters) == "egorsßö"
    assert len(tokenizer) == 8
    assert tokenizer.decode(tokenizer.encode("großes")) == "großes"
    assert min(tokenizer.encode("so")) > CharTokenizer.blank
    for characters, message in (("", "is empty"), (["ab"], "one character"), ("aa", "twice")):
        with pytest.raises(ValueError, match=message):
            CharTokenizer(characters)
    for label in (0, 8, -1):
        with pytest.raises(ValueError, match=f"label {label} is not between 1 and 7"):
            tokenizer.decode([label])

"""Batches by the durations in them, and which utterances a training takes."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asr_data import write_corpus
from test_cuts import cut_set
from test_interrupted_training import small

from prnn.asr import InputError
from prnn.asr.data import open_data
from prnn.asr.options import TrainingOptions
from prnn.asr.sampler import BucketSampler
from prnn.asr.training import train
from prnn.cli import main

TEXTS = ["a", "bb ca", "abc abc abc", "acc ab", "cab"]
SECONDS = [0.08 * (len(text) + 2) for text in TEXTS]


@pytest.mark.parametrize("outliers", [[600.0], [600.0, 590.0], [600.0, 45.0, 31.0, 0.2]])
def test_long_recordings_leave_the_batches_of_others_alone(outliers: list[float]) -> None:
    durations = np.random.default_rng(0).uniform(1, 10, size=4000).tolist()
    usual = len(BucketSampler(durations, 64, 320.0, seed=1))
    order = BucketSampler(durations + outliers, 64, 320.0, seed=1)
    assert usual <= len(order) <= usual + len(outliers)
    batches = order.epoch(0)
    assert len(batches) == len(order)
    alone = [batch for batch in batches if len(batch) == 1]
    assert sorted(batch[0] for batch in alone) == [4000 + place for place, d in enumerate(outliers) if d > 320]


@pytest.mark.parametrize("seed", [None, 3])
def test_every_batch_keeps_to_its_bounds(seed: int | None) -> None:
    """Whatever the durations are: batches have no more than they may, and no less than they must."""
    for draw in range(20):
        rng = np.random.default_rng(draw)
        durations = rng.lognormal(rng.uniform(-1, 3), rng.uniform(0, 2), size=int(rng.integers(1, 2000)))
        size, seconds = int(rng.integers(1, 100)), float(rng.uniform(1, 500))
        order = BucketSampler(durations.tolist(), size, seconds, seed)
        batches = order.epoch(1)
        assert len(batches) == len(order)
        assert Counter(index for batch in batches for index in batch) == Counter(range(len(durations)))
        padded = [len(batch) * durations[batch].max() for batch in batches]
        assert all(
            len(batch) <= size and (len(batch) == 1 or total <= seconds)
            for batch, total in zip(batches, padded, strict=True)
        )
        least = max(len(durations) / size, durations.clip(max=seconds).sum() / seconds)
        assert len(batches) <= 2 * least + 20


def taken(options: TrainingOptions) -> tuple[list[str], list[str]]:
    """The texts of an epoch, sorted, and the notes on the manifest."""
    data = open_data(options, 0)
    try:
        return sorted(text for batch in data.loader for text in batch.texts), data.notes
    finally:
        data.close()


@pytest.mark.parametrize("kind", ["jsonl", "cuts"])
def test_short_and_long_utterances_are_left_out(tmp_path: Path, kind: str) -> None:
    """Utterances that are left out are counted, and its characters are no labels."""
    path, valid = tmp_path / "tones.jsonl", write_corpus(tmp_path / "valid", "v", ["ab c"])
    if kind == "cuts":
        path = tmp_path / "cuts.jsonl.gz"
        cut_set(tmp_path, TEXTS).to_file(path)
    else:
        write_corpus(tmp_path, "tones", TEXTS)
    every = small(path, tmp_path / "out", valid=valid)
    assert taken(every) == (sorted(TEXTS), [])
    some = replace(every, min_duration=0.3, max_duration=0.8)
    left_out = f"1 of {SECONDS[0]:.1f} s in all shorter than min_duration, 0.3 s, 1 of {SECONDS[2]:.1f} s in all longer"
    notes = [f"{path}: left out: {left_out} than max_duration, 0.8 s"]
    assert taken(some) == (sorted(TEXTS[1:2] + TEXTS[3:]), notes)
    for bound in ("min_duration", "max_duration"):
        edge = taken(replace(every, **{bound: SECONDS[4]}))  # the bounds themselves are taken
        assert "cab" in edge[0]
    with pytest.raises(
        InputError, match=f"^{path}: all utterances are left out: 5 of 2.* shorter than min_duration, 9"
    ):
        open_data(replace(every, min_duration=9.0), 0)


@pytest.mark.parametrize("kind", ["jsonl", "cuts"])
def test_an_utterance_longer_than_a_batch_is_named(tmp_path: Path, kind: str) -> None:
    path, valid = tmp_path / "tones.jsonl", write_corpus(tmp_path / "valid", "v", ["ab c"])
    if kind == "cuts":
        path = tmp_path / "cuts.jsonl.gz"
        cut_set(tmp_path, TEXTS).to_file(path)
    else:
        write_corpus(tmp_path, "tones", TEXTS)
    texts, notes = taken(small(path, tmp_path / "out", valid=valid, batch_seconds=0.7))
    assert texts == sorted(TEXTS)
    assert notes == [
        f"{path}: 1 of 5 utterances are longer than batch_seconds, 0.7 s; each is a batch of its own, the longest of "
        f"{SECONDS[2]:.1f} s; --max-duration leaves such ones out"
    ]


def test_the_training_says_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write_corpus(tmp_path, "tones", TEXTS)
    options = small(manifest, tmp_path / "out", epochs=1, max_duration=0.8)
    train(options, progress=False)
    printed = capsys.readouterr().out
    assert f"{manifest}: left out: 1 of {SECONDS[2]:.1f} s in all longer than max_duration, 0.8 s\n" in printed
    assert "4 training utterances" in printed
    with pytest.raises(InputError, match=r"holds a training with max_duration 0\.8, not None"):
        train(replace(options, max_duration=None), progress=False)


def test_bounds_that_exclude_each_other_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "m.jsonl"
    manifest.write_text(json.dumps({"audio_filepath": "none.wav", "duration": 1, "text": "a"}) + "\n")
    command = ["train", "--manifest", str(manifest), "--valid", str(manifest), "--min-duration", "2"]
    with pytest.raises(SystemExit):
        main([*command, "--max-duration", "1"])
    assert "max_duration is 1; it must be at least min_duration, 2" in capsys.readouterr().err

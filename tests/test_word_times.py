"""Times of words: what a model's delays are measured to be, and words without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from asr_data import write_corpus
from tones_model import FRAME, RATE, save, tone_recogniser, tones

from prnn.asr import InputError, Recogniser, compute_features
from prnn.asr.transcript import words_of
from prnn.asr.word_times import DelayMeter, WordDelays, delays_of, speech_bounds
from prnn.cli import main
from prnn.transducer import Hypothesis


def test_speech_bounds() -> None:
    """Three tones of 60 ms in 100 ms each, after 200 ms of silence and before 100 ms."""
    first, last = speech_bounds(compute_features(tones("..abc."), RATE).numpy()) or (0, 0)
    assert first == pytest.approx(20, abs=2)
    assert last == pytest.approx(46, abs=2)


def test_measured_delays_are_taken_off(tmp_path: Path) -> None:
    """A recogniser that emits each symbol 5 encoder frames late, by what is measured and by what it then says."""
    recogniser = tone_recogniser()
    texts = ["..abc.", "...c.b", ".a b..", "..ca...", "b"]
    meter = DelayMeter(recogniser.model.encoder.frame_stride)
    samples = [np.concatenate([tones("." * 4), tones(text), tones("....")]) for text in texts]
    late = 5
    for piece in samples:
        features = compute_features(piece, RATE)[None]
        lengths = torch.tensor([features.shape[1]])
        (found,) = recogniser.model.greedy_search(features, lengths)
        found.timestamps[:] = [frame + late for frame in found.timestamps]
        meter.add(features, lengths, [found])
    counts = meter.taken(torch.device("cpu"))
    delays = DelayMeter.delays(counts + counts, 0.01)
    assert delays.begin == pytest.approx(late * FRAME, abs=0.03)
    assert DelayMeter.delays(meter.taken(torch.device("cpu")), 0.01) == WordDelays()

    hypothesis = Hypothesis([1, 2, 3, 4], 0.0, [20, 24, 26, 40], [0.0] * 4)  # "ab", " ", "c"
    plain = words_of(hypothesis, recogniser.tokenizer, FRAME)
    moved = words_of(hypothesis, recogniser.tokenizer, FRAME, WordDelays(0.1, -0.02))
    assert [(word.text, word.confidence) for word in moved] == [(word.text, word.confidence) for word in plain]
    assert [word.start for word in moved] == pytest.approx([word.start - 0.1 for word in plain])
    assert moved[-1].end == pytest.approx(plain[-1].end + 0.02)


def test_words_meet_where_they_would_overlap() -> None:
    tokenizer = tone_recogniser().tokenizer
    hypothesis = Hypothesis([1, 3, 2, 3, 4], 0.0, [1, 2, 10, 11, 12], [0.0] * 5)  # "a", " ", "b", " ", "c"
    first, second, third = words_of(hypothesis, tokenizer, 0.04, WordDelays(0.3, -0.08))
    assert first.start == 0.0
    assert first.end <= second.start <= second.end <= third.start <= third.end
    assert second.end == third.start


def test_a_training_saves_what_it_has_measured(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path / "data", "tones", ["ab", "c"])
    command = ["train", "--manifest", manifest, "--valid", manifest, "--output", tmp_path / "out", "--hidden", 8,
               "--layers", 1, "--accelerator", "cpu", "--no-progress", "--pictures", 0, "--epochs", 1]  # fmt: skip
    assert main(list(map(str, command))) == 0
    described = torch.load(tmp_path / "out/model.ckpt", weights_only=True)["prnn"]
    assert Recogniser.load(tmp_path / "out/model.ckpt").delays == delays_of(described)

    checkpoint = torch.load(save(tone_recogniser(), tmp_path / "model.ckpt"), weights_only=True)
    for values, message in (
        ([0.3], "list of two"),
        ([0.3, "x"], "list of two"),
        ([0.3, float("nan")], "from -10 to 10"),
    ):
        torch.save({**checkpoint, "prnn": {**checkpoint["prnn"], "word_delays": values}}, tmp_path / "model.ckpt")
        with pytest.raises(InputError, match=message):
            Recogniser.load(tmp_path / "model.ckpt")
    del checkpoint["prnn"]["word_delays"]
    torch.save(checkpoint, tmp_path / "model.ckpt")
    assert Recogniser.load(tmp_path / "model.ckpt").delays == WordDelays()

"""A training's messages about whether it learns; and augmentation that begins later."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from asr_data import write_corpus
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from prnn.asr import CharTokenizer, FeatureConfig, read_manifest
from prnn.asr.augment import Augmentation
from prnn.asr.dataset import Batch, Position, Request, UtteranceDataset
from prnn.asr.learning import Learning, blank_share, ctc_spells
from prnn.asr.options import TrainingOptions
from prnn.asr.training import train
from prnn.transducer import LossParts

OPTIONS = TrainingOptions(Path("a"), Path("b"), model={"ctc_weight": 0.3})


def batch(texts: list[str]) -> Batch:
    tokenizer = CharTokenizer("abc")
    targets = [torch.tensor(tokenizer.encode(text)) for text in texts]
    padded = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=3)
    lengths = torch.tensor([len(text) for text in texts])
    return Batch(torch.zeros(len(texts), 5, 80), torch.full((len(texts),), 5), padded, lengths, texts)


def add(learning: Learning, parts: LossParts, batch: Batch) -> None:
    learning.add(parts, batch, torch.full((len(batch.texts),), 8))


def parts(transducer: float, ctc: float | None) -> LossParts:
    as_tensor = None if ctc is None else torch.tensor(ctc)
    return LossParts(torch.tensor(0.0), torch.tensor(transducer), None, as_tensor)


def test_guessing_is_the_entropy_of_the_symbols_seen() -> None:
    learning = Learning(OPTIONS, 4)
    assert learning.guessing == 0
    add(learning, parts(6.0, 3.0), batch(["aab", "a"]))
    assert learning.guessing == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(4))
    add(learning, parts(2.0, 1.0), batch(["bbcc"]))
    shares = np.array([3, 3, 2]) / 8
    assert learning.guessing == pytest.approx(-(shares * np.log(shares)).sum())
    assert learning.taken(torch.device("cpu")).tolist() == [2 * 6 + 2, 2 * 3 + 1, 8, 8, 3, 0]
    assert learning.taken(torch.device("cpu")).tolist() == [0] * 6


def test_sums_of_more_batches_than_are_kept() -> None:
    """A message that is due between two logs takes nothing from the sums of the second."""
    learning = Learning(OPTIONS, 4)
    losses, symbols = np.zeros(2), 0
    for step in range(1, 251):
        texts = ["ab"] * (1 + step % 3)
        add(learning, parts(0.5 * step, 0.25 * step), batch(texts))
        learning.stuck(step)
        losses += len(texts) * np.array([0.5, 0.25]) * step
        symbols += 2 * len(texts)
        if step in (30, 250):
            expected = [*losses, symbols, symbols, symbols / 2, 0]
            assert learning.taken(torch.device("cpu")).tolist() == pytest.approx(expected)
            losses, symbols = np.zeros(2), 0


def test_symbols_that_ctc_has_no_frames_for() -> None:
    """Its loss of these utterances is 0, and their symbols do not count to the others' loss."""
    found = batch(["aabb", "abcab", "aab", ""])
    frames = torch.tensor([5, 5, 4, 1])
    assert ctc_spells(found, frames).tolist() == [False, True, True, True]
    learning = Learning(OPTIONS, 4)
    learning.add(parts(6.0, 3.0), found, frames)
    assert learning.taken(torch.device("cpu")).tolist() == [24, 12, 12, 8, 4, 1]
    learning.add(parts(6.0, None), found, frames)
    assert learning.taken(torch.device("cpu")).tolist() == [24, 24, 12, 12, 4, 0]


@pytest.mark.parametrize("ctc", [True, False])
def test_a_training_that_learns_nothing_says_so(ctc: bool) -> None:
    """After 500 steps and again after 1000, by the last 100 steps' losses."""
    said = []
    learning = Learning(replace(OPTIONS, model={"ctc_weight": 0.3 if ctc else 0.0}), 4)
    for step in range(1, 1601):
        loss = 9.0 if 300 < step <= 400 or step > 1500 else 3 * math.log(3)
        add(learning, parts(0.1 if ctc else loss, loss if ctc else None), batch(["abc"]))
        if (message := learning.stuck(step)) is not None:
            said.append((step, message))
    assert [step for step, _ in said] == [500, 1000]
    kind = "CTC loss" if ctc else "loss"
    start = f"after 500 steps the {kind} is 1.10 a symbol, and that of guessing symbols by how often they occur 1.10"
    assert said[0][1].startswith(start)
    for hint in ("a lower lr than 0.00", "warmup than", "start_epoch"):
        assert hint in said[0][1]


def test_nothing_is_said_while_the_rate_rises() -> None:
    learning = Learning(OPTIONS, 4)
    said = []
    for step in range(1, 1001):
        add(learning, parts(0.1, 3 * math.log(3)), batch(["abc"]))
        said += [step] if learning.stuck(step, 501) is not None else []
    assert said == [1000]


def test_a_training_that_learns_says_nothing() -> None:
    learning = Learning(OPTIONS, 4)
    for step in range(1, 1001):
        add(learning, parts(0.1, 3 * 0.8 * math.log(3)), batch(["abc"]))
        assert learning.stuck(step) is None


def test_a_training_that_loses_what_it_had_learnt() -> None:
    learning, said = Learning(OPTIONS, 4), []
    for step in range(1, 1001):
        add(learning, parts(0.1, 3 * (0.5 if step <= 500 else 1.0) * math.log(3)), batch(["abc"]))
        said += [message] if (message := learning.stuck(step)) is not None else []
    (message,) = said
    assert message.startswith("after 1000 steps the CTC loss is 1.10 a symbol")
    assert "after 500 steps it was 0.55. The training has become unstable" in message
    assert "begin again with a lower lr than 0.002" in message


def test_blanks_of_real_frames() -> None:
    logits = torch.zeros(2, 4, 3)
    logits[0, :3, 0] = 1
    logits[0, 3:, 1] = 1
    logits[1, 0, 2] = 1
    logits[1, 1, 0] = 1
    assert blank_share(logits, torch.tensor([4, 2]), 0).item() == pytest.approx(4 / 6)


def test_the_log_of_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write_corpus(tmp_path, "tones", ["ab ca", "cab", "b"])
    model = {"encoder_hidden": 8, "encoder_layers": 1, "predictor": "stateless", "joiner_dim": 8, "ctc_weight": 0.3}
    options = TrainingOptions(
        manifest, manifest, tmp_path / "out", model=model, accelerator="cpu", epochs=2, log_every=1, pictures=0
    )
    train(options, progress=False)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    number = r"(\d+\.\d+)"
    found = [
        re.match(
            rf"epoch \d, step \d: training loss a symbol {number}, CTC {number} \(guessing {number}\), lr [\d.e-]+; "
            rf"validation loss {number}, WER {number} %, CER {number} %, "
            r"blanks \d+ % \((\d+) % with the right symbols\)$",
            line,
        )
        for line in lines
    ]
    assert len(found) == 2
    shares = np.array([3, 3, 2, 1]) / 9  # a, b, c, space
    entropy = -(shares * np.log(shares)).sum()
    assert all(match is not None and float(match[3]) == round(entropy, 2) for match in found)
    events = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    events.Reload()
    values = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
    assert found[0] is not None
    assert values["train/transducer_a_symbol"] == pytest.approx(float(found[0][1]), abs=0.006)
    assert values["train/ctc_a_symbol"] == pytest.approx(float(found[0][2]), abs=0.006)
    assert values["train/ctc_a_symbol"] == pytest.approx(values["train/ctc"] * 3 / 9)
    assert values["train/guessing_a_symbol"] == pytest.approx(entropy)
    assert 0 <= values["train/ctc_blanks"] <= 1
    assert 0 < values["valid/blanks"] <= 1


@pytest.mark.parametrize("audio", [False, True])
def test_masks_begin_with_their_epoch(tmp_path: Path, audio: bool) -> None:
    """The gain is that of the same utterance and epoch without a start."""
    utterances = read_manifest(write_corpus(tmp_path, "tones", ["ab ca", "cab"]))
    later, now = (Augmentation(time_warp=3, start_epoch=start) for start in (3, 1))
    gain = Augmentation(frequency_masks=0, time_masks=0)

    def made(augmentation: Augmentation, epoch: int) -> Batch:
        dataset = UtteranceDataset(utterances, CharTokenizer("abc "), FeatureConfig(), augmentation, 3, 0, audio)
        return dataset.batch(Request([0, 1], Position(epoch, 1)))

    for epoch, same in ((0, gain), (1, gain), (2, now), (3, now)):
        found, wanted = made(later, epoch), made(same, epoch)
        assert torch.equal(found.features, wanted.features)
        if audio:
            assert found.masks is not None
            assert wanted.masks is not None
            assert torch.equal(found.masks.bins, wanted.masks.bins)
            assert (found.masks.times is None) == (epoch < 2)


def test_too_few_frames_for_ctc_are_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write_corpus(tmp_path, "tones", ["abcabcabcabc", "b"])
    model = {
        "encoder_hidden": 8, "encoder_layers": 1, "predictor": "stateless", "joiner_dim": 8, "ctc_weight": 0.3,
        "frame_stack": 16, "frame_stride": 16,
    }  # fmt: skip
    options = TrainingOptions(
        manifest, manifest, tmp_path / "out", model=model, accelerator="cpu", epochs=2, pictures=0
    )
    train(options, progress=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "CTC leaves" in line] == [
        "1 of 2 utterances trained on have fewer encoder frames than symbols (and blanks between equal ones): CTC "
        "leaves them out; model.frame_stride is 16, a smaller one takes them in"
    ]

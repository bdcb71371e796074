"""Small rules of training, augmentation and losses, each by itself."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from asr_data import small_config, write_corpus
from lhotse import MonoCut, Recording, SupervisionSegment

import prnn
from prnn.asr import CharTokenizer, FeatureConfig, read_manifest
from prnn.asr.augment import Augmentation
from prnn.asr.cuts import CutDataset
from prnn.asr.dataset import Position, Request, UtteranceDataset
from prnn.asr.masks import draw_masks
from prnn.asr.options import TrainingOptions
from prnn.asr.sampler import BucketSampler
from prnn.asr.task import TransducerTask
from prnn.compat import speechbrain
from prnn.losses._checks import integers
from prnn.transducer import Transducer


def test_the_batches_left_over_are_others_in_each_epoch() -> None:
    """Several processes have as many batches each: what is over is drawn anew, so that all get trained on."""
    order = BucketSampler(list(np.linspace(1, 2, 11)), 1, 100.0, seed=0)
    left = []
    for epoch in range(40):
        shares = [order.epoch(epoch, process, 4) for process in range(4)]
        taken = {item for share in shares for batch in share for item in batch}
        assert [len(share) for share in shares] == [2] * 4
        assert len(taken) == 8
        left.append(frozenset(range(11)) - taken)
    assert len(set(left)) > 20
    assert set().union(*left) == set(range(11))
    assert left == [
        frozenset(range(11)) - {i for p in range(4) for batch in order.epoch(epoch, p, 4) for i in batch}
        for epoch in range(40)
    ]


def test_a_validation_loss_is_the_mean_over_utterances(tmp_path: Path) -> None:
    """Batches of different sizes, each with the mean of its own."""
    manifest = write_corpus(tmp_path, "tones", ["ab ca", "c", "b ab", "a b c ab"])
    tokenizer = CharTokenizer("abc ")
    options = TrainingOptions(manifest, manifest, tmp_path, accelerator="cpu")
    torch.manual_seed(0)
    model = Transducer.from_config(small_config(len(tokenizer))).eval()
    task = TransducerTask(model, FeatureConfig(), tokenizer, options)
    logged: dict[str, float] = {}
    task.log = lambda name, value, **more: logged.update({name: float(value)})  # type: ignore[method-assign,assignment]
    task.print = lambda *lines: None  # type: ignore[method-assign]
    task._trainer = type("Stub", (), {"state": type("State", (), {"fn": None}), "callback_metrics": {}})()  # type: ignore[assignment]
    dataset = UtteranceDataset(read_manifest(manifest), tokenizer, FeatureConfig())
    batches = [dataset.batch(Request(items, Position(0, 1))) for items in ([0, 1, 2], [3])]
    with torch.no_grad():
        for number, batch in enumerate(batches):
            task.validation_step(batch, number)
        task.on_validation_epoch_end()
        losses = [float(model.loss_parts(*batch[:4]).transducer) for batch in batches]
    assert abs(losses[0] - losses[1]) > 0.1
    assert logged["valid/loss"] == pytest.approx((3 * losses[0] + losses[1]) / 4, rel=1e-6)


@pytest.mark.parametrize("decibels", [6.0, 20.0])
def test_a_gain_in_decibels_of_amplitude(decibels: float) -> None:
    """Features are logarithms of power: samples times g add 2 ln g, which is ln 10 / 10 a decibel."""
    augmentation = Augmentation(decibels, 0, 0, 0, 0)
    gains = [float(draw_masks(augmentation, 5, 4, np.random.default_rng(seed)).gain) for seed in range(2000)]
    most = 2 * math.log(10 ** (decibels / 20))
    assert max(map(abs, gains)) == pytest.approx(most, rel=0.01)
    assert max(map(abs, gains)) <= most
    assert np.mean(gains) == pytest.approx(0, abs=0.05 * most)


def test_cuts_of_one_epoch_are_augmented_in_different_ways(tmp_path: Path) -> None:
    """By their names: the same recording under another is changed in another way, and under its own always alike."""
    (utterance,) = read_manifest(write_corpus(tmp_path, "tones", ["ab ca"]))
    recording = Recording.from_file(utterance.audio, recording_id="r")
    said = SupervisionSegment("s", "r", 0, recording.duration, text="ab ca")
    dataset = CutDataset(tmp_path, CharTokenizer("abc "), FeatureConfig(), Augmentation(), seed=3)

    def features(name: str) -> torch.Tensor:
        cut = MonoCut(name, 0, recording.duration, 0, recording=recording, supervisions=[said])
        return dataset.example(cut, 1).features

    assert torch.equal(features("one"), features("one"))
    assert not torch.equal(features("one"), features("two"))


@pytest.mark.parametrize("value", [2**32 + 3, -(2**32) + 3, 2**63 - 1, -(2**63)])
def test_int64_that_int32_lacks_is_out_of_range(value: int) -> None:
    """In whatever it comes; cut to 32 bits, the first of these would be 3."""
    device = torch.device("cpu")
    for given in (
        np.array([value]),
        [value],
        torch.tensor([value, 0])[::2],
        torch.nn.Parameter(torch.tensor([value]), False),
    ):
        found = int(integers(given, "lengths", device)[0])
        assert found == (2**31 - 1 if value > 0 else -(2**31))
    log_probs = torch.zeros(5, 1, 4).log_softmax(-1)
    with pytest.raises(ValueError, match="input_lengths"):
        prnn.ctc_loss(log_probs, torch.tensor([[1]]), np.array([value]), np.array([1]))


@pytest.mark.parametrize("frames", [7, 10, 29, 100, 1000])
def test_lengths_as_fractions_are_rounded(frames: int) -> None:
    """n / T times T may lie a little below n."""
    counts = torch.arange(1, frames + 1)
    logits = torch.randn(2, frames, 2, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.ones(2, 1, dtype=torch.int32)
    fractions = counts.float() / frames
    below = [int(n) for n in counts if int(fractions[n - 1] * frames) < n] or [frames - 1]
    for length in below[:3]:
        given = torch.full((2,), length, dtype=torch.float32) / frames
        found = speechbrain.transducer_loss(logits, targets, given, torch.ones(2), 0, "none", use_torchaudio=True)
        lengths = torch.full((2,), length, dtype=torch.int32)
        expected = prnn.rnnt_loss(logits, targets, lengths, torch.ones(2, dtype=torch.int32), 0, reduction="none")
        assert torch.equal(found, expected)
    assert any(int(fractions[n - 1] * frames) < n for n in counts) or frames < 29


def test_lengths_of_targets_as_fractions_are_rounded() -> None:
    logits = torch.randn(1, 5, 30, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.ones(1, 29, dtype=torch.int32)
    length = next(n for n in range(1, 29) if int(torch.tensor([n / 29], dtype=torch.float32) * 29) < n)
    given = torch.tensor([length], dtype=torch.float32) / 29
    found = speechbrain.transducer_loss(logits, targets, torch.ones(1), given, 0, "none", use_torchaudio=True)
    frames, lengths = torch.tensor([5], dtype=torch.int32), torch.tensor([length], dtype=torch.int32)
    assert torch.equal(found, prnn.rnnt_loss(logits, targets, frames, lengths, 0, reduction="none"))

"""Log-mel features: the same numbers whole and in pieces, at any sample rate; statistics; augmentation."""

import numpy as np
import pytest
import torch

from prnn.asr import FeatureConfig, OnlineFeatures, compute_features
from prnn.asr.augment import Augmentation
from prnn.asr.masks import draw_masks


def noise(count: int) -> np.ndarray:
    return (0.1 * np.random.default_rng(0).standard_normal(count)).astype(np.float32)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100])
@pytest.mark.parametrize("piece", [7, 160, 1234, 100000])
def test_pieces_give_the_frames_of_the_whole(rate: int, piece: int) -> None:
    samples = noise(rate // 2)
    whole = compute_features(samples, rate)
    online = OnlineFeatures(rate)
    frames = []
    for start in range(0, len(samples), piece):
        online.accept_waveform(samples[start : start + piece])
        ready = online.num_frames_ready
        frames.append(online.pop())
        assert len(frames[-1]) == ready
        assert online.num_frames_ready == 0
    online.input_finished()
    frames.append(online.pop())
    assert torch.equal(torch.cat(frames), whole)
    assert whole.shape == (50, 80)
    assert whole.dtype == torch.float32


def test_frames_come_as_soon_as_their_window_is_full() -> None:
    online = OnlineFeatures(16000)
    samples = noise(16000)
    for start in range(0, 16000, 160):
        online.accept_waveform(samples[start : start + 160])
    # A frame is centred on its 10 ms; its window of 25 ms reaches 12.5 ms beyond the centre.
    assert online.num_frames_ready >= 98


def test_a_tone_lights_its_mel_bin() -> None:
    def mel(hertz: float) -> float:
        return 1127 * np.log(1 + hertz / 700)

    for hertz in (440.0, 2000.0, 6000.0):
        samples = 0.5 * np.sin(2 * np.pi * hertz * np.arange(16000) / 16000).astype(np.float32)
        brightest = int(compute_features(samples, 16000).mean(dim=0).argmax())
        expected = (mel(hertz) - mel(20)) / (mel(7600) - mel(20)) * 81 - 1
        assert abs(brightest - expected) < 1.5


def test_upper_edge_of_the_mel_bins() -> None:
    samples = noise(16000)
    default = compute_features(samples, 16000)
    assert torch.equal(default, compute_features(samples, 16000, FeatureConfig(high_freq=7600)))
    to_nyquist = compute_features(samples, 16000, FeatureConfig(high_freq=0))
    assert torch.equal(to_nyquist, compute_features(samples, 16000, FeatureConfig(high_freq=8000)))
    assert not torch.equal(default, to_nyquist)


def test_resampling_keeps_what_is_heard() -> None:
    seconds = np.arange(44100) / 44100
    at_44100 = (0.3 * np.sin(2 * np.pi * 700 * seconds)).astype(np.float32)
    at_16000 = (0.3 * np.sin(2 * np.pi * 700 * np.arange(16000) / 16000)).astype(np.float32)
    difference = compute_features(at_44100, 44100).exp() - compute_features(at_16000, 16000).exp()
    assert float(difference[5:-5].abs().max()) < 0.01 * float(compute_features(at_16000, 16000).exp().max())


def test_config_and_refusals() -> None:
    assert compute_features(noise(16000), 16000, FeatureConfig(num_mel_bins=40)).shape == (100, 40)
    with pytest.raises(ValueError, match="sample_rate is 0"):
        OnlineFeatures(0)
    online = OnlineFeatures(16000)
    with pytest.raises(ValueError, match=r"shape \(2, 10\)"):
        online.accept_waveform(np.zeros((2, 10), np.float32))
    online.input_finished()
    online.input_finished()
    with pytest.raises(RuntimeError, match="after input_finished"):
        online.accept_waveform(noise(100))
    assert online.pop().shape == (0, 80)


@pytest.mark.parametrize(
    "samples", [np.zeros(400, np.int16), np.zeros(400, bool), None, "loud"], ids=["int16", "bool", "None", "str"]
)
def test_samples_that_are_not_floating_point_numbers(samples: object) -> None:
    with pytest.raises(TypeError, match=r"^samples have dtype \S+; they must be floating-point numbers from -1 to 1$"):
        OnlineFeatures(16000).accept_waveform(samples)  # type: ignore[arg-type]


def test_augmentation() -> None:
    features, mean = torch.randn(60, 80), torch.full((80,), -5.0)
    original = features.clone()
    augment = Augmentation(gain_db=6, frequency_masks=2, frequency_width=8, time_masks=2, time_width=10)
    changed = draw_masks(augment, 60, 80, np.random.default_rng(1))(features, mean)
    assert torch.equal(features, original)
    assert torch.equal(changed, draw_masks(augment, 60, 80, np.random.default_rng(1))(features, mean))
    masked = changed == -5.0
    rows, columns = masked.all(dim=1), masked.all(dim=0)
    assert 1 <= int(rows.sum()) <= 20
    assert 1 <= int(columns.sum()) <= 16
    assert torch.equal(masked, rows[:, None] | columns)
    gain = (changed - features)[~masked]
    assert float(gain.std()) < 1e-5
    assert abs(float(gain.mean())) <= 6 * np.log(10) / 10
    off = Augmentation(gain_db=0, frequency_width=0, time_width=0)
    assert torch.equal(draw_masks(off, 60, 80, np.random.default_rng(0))(features, mean), features)

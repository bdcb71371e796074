"""Log-mel features of a batch of recordings at once, on the device of the training."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from prnn._options_text import options_text

from .features import FeatureConfig

_LOW_FREQ = 20.0  # hertz
_PREEMPHASIS = 0.97
_WINDOW_POWER = 0.85  # Povey's window: Hann's to this power


def _mel(hertz: Tensor) -> Tensor:
    return 1127.0 * torch.log1p(hertz / 700.0)


def frame_count(samples: Tensor | int, config: FeatureConfig) -> Tensor | int:
    """How many frames so many samples have."""
    shift = int(config.sample_rate * 0.001 * config.frame_shift_ms)
    return (samples + shift // 2) // shift


def fewest_samples(config: FeatureConfig) -> int:
    """How many samples a recording of one frame has at least."""
    shift = int(config.sample_rate * 0.001 * config.frame_shift_ms)
    return shift - shift // 2


class Fbank(nn.Module):
    """What `compute_features` computes with kaldi-native-fbank, to float32's accuracy, for recordings of the features'
    sample rate.

    Args:
        config: what the features are.
    """

    window: Tensor
    banks: Tensor

    def __init__(self, config: FeatureConfig) -> None:
        super().__init__()
        self.config = config
        self._shift = int(config.sample_rate * 0.001 * config.frame_shift_ms)
        self._length = int(config.sample_rate * 0.001 * config.frame_length_ms)
        self._padded = 1 << (self._length - 1).bit_length()
        phase = 2 * math.pi * torch.arange(self._length, dtype=torch.float64) / (self._length - 1)
        window = (0.5 - 0.5 * phase.cos()).pow(_WINDOW_POWER)
        self.register_buffer("window", window.float(), persistent=False)
        self.register_buffer("banks", self._mel_banks().float(), persistent=False)

    def extra_repr(self) -> str:
        return options_text(self)

    def _mel_banks(self) -> Tensor:
        """Triangles of equal width on the mel scale: (FFT bins without the last, mel bins)."""
        config, nyquist = self.config, self.config.sample_rate / 2
        high = config.high_freq if config.high_freq > 0 else nyquist + config.high_freq
        low_mel, high_mel = _mel(torch.tensor([_LOW_FREQ, high], dtype=torch.float64)).tolist()
        width = (high_mel - low_mel) / (config.num_mel_bins + 1)
        mel = _mel(torch.arange(self._padded // 2, dtype=torch.float64) * config.sample_rate / self._padded)[:, None]
        left = low_mel + width * torch.arange(config.num_mel_bins, dtype=torch.float64)
        return torch.minimum((mel - left) / width, (left + 2 * width - mel) / width).clamp(min=0)

    @torch.no_grad()
    def forward(self, audio: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the features.

        Args:
            audio: (N, S), float32, from -1 to 1; what lies beyond a recording's length is not read.
            lengths: (N,), int64, on the CPU, samples of each.

        Returns:
            Features (N, T, bins), zero beyond a recording's frames; and their numbers, (N,), int64, on the CPU.
        """
        counts = frame_count(lengths, self.config)
        assert isinstance(counts, Tensor)
        most = int(counts.max())
        # Frames are centred on their shift; beyond its ends a recording is mirrored.
        before = self._length // 2 - self._shift // 2
        index = torch.arange(-before, (most - 1) * self._shift - before + self._length, device=audio.device)
        size = lengths.to(audio.device, non_blocking=True)[:, None].clamp(min=1)
        index = index.remainder(2 * size)
        mirrored = audio.gather(1, torch.minimum(index, 2 * size - 1 - index))
        frames = mirrored.unfold(1, self._length, self._shift)
        frames = frames - frames.mean(dim=2, keepdim=True)
        previous = torch.cat([frames[..., :1], frames[..., :-1]], dim=2)
        frames = (frames - _PREEMPHASIS * previous) * self.window
        with torch.autocast(audio.device.type, enabled=False):
            power = torch.fft.rfft(frames, n=self._padded)[..., :-1].abs().square()
            mels = (power @ self.banks).clamp(min=torch.finfo(torch.float32).eps).log()
        real = torch.arange(most, device=audio.device) < counts.to(audio.device, non_blocking=True)[:, None]
        return torch.where(real[..., None], mels, 0.0), counts

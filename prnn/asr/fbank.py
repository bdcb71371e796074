"""Log-mel features of a batch of recordings at once, on the device of the training."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from prnn._options_text import options_text

from .feature_config import FeatureConfig

_LOW_FREQ = 20.0  # hertz
_PREEMPHASIS = 0.97
_WINDOW_POWER = 0.85  # Povey's window: Hann's to this power


def _mel(hertz: Tensor) -> Tensor:
    return 1127.0 * torch.log1p(hertz / 700.0)


def _product(x: Tensor, matrix: Tensor) -> Tensor:
    """x (..., K) times a matrix (K, N), to float32's accuracy also where torch lets a GPU round factors to tf32: each
    factor is the sum of what tf32 holds of it and of the rest."""
    if not x.is_cuda:
        return x @ matrix
    x_high, high = _high_bits(x), _high_bits(matrix)
    x_low, low = x - x_high, matrix - high
    return x_high @ high + (x_low @ high + x_high @ low)


def _high_bits(x: Tensor) -> Tensor:
    """float32 cut to the 11 significant bits of tf32."""
    return (x.contiguous().view(torch.int32) & -0x2000).view(torch.float32)


def frame_count(samples: Tensor | int, config: FeatureConfig) -> Tensor | int:
    """The number of frames of so many samples."""
    shift = int(config.sample_rate * 0.001 * config.frame_shift_ms)
    return (samples + shift // 2) // shift


def fewest_samples(config: FeatureConfig) -> int:
    """The least number of samples of a recording with one frame."""
    shift = int(config.sample_rate * 0.001 * config.frame_shift_ms)
    return shift - shift // 2


class Fbank(nn.Module):
    """Computes the features of `compute_features` (kaldi-native-fbank) to float32's accuracy, for recordings of the
    features' sample rate.

    The Fourier transform is a product with its matrix. cuFFT is not used: on a stream beside a training, one of its
    kernels (regular_fft_r2c, CUDA 13.0) read an illegal address (docs/training.md).

    Args:
        config: what the features are.

    Attributes:
        frame_length, frame_shift: samples of a frame, and from frame to frame.
        before: samples by which the first frame begins before the recording.
    """

    window: Tensor
    fourier: Tensor
    banks: Tensor

    def __init__(self, config: FeatureConfig) -> None:
        super().__init__()
        self.config = config
        self.frame_shift = int(config.sample_rate * 0.001 * config.frame_shift_ms)
        self.frame_length = int(config.sample_rate * 0.001 * config.frame_length_ms)
        # Frames are centred on their shift: the first one begins so many samples before the recording.
        self.before = self.frame_length // 2 - self.frame_shift // 2
        self._padded = 1 << (self.frame_length - 1).bit_length()  # samples of a transform, of which the last are zeros
        phase = 2 * math.pi * torch.arange(self.frame_length, dtype=torch.float64) / (self.frame_length - 1)
        window = (0.5 - 0.5 * phase.cos()).pow(_WINDOW_POWER)
        self.register_buffer("window", window.float(), persistent=False)
        self.register_buffer("fourier", self._fourier().float(), persistent=False)
        self.register_buffer("banks", self._mel_banks().float(), persistent=False)

    def extra_repr(self) -> str:
        return options_text(self)

    def _fourier(self) -> Tensor:
        """The discrete Fourier transform of a frame's samples: real parts of all FFT bins but the last, then imaginary
        parts, (frame length, FFT length)."""
        samples, bins = torch.arange(self.frame_length)[:, None], torch.arange(self._padded // 2)
        turn = (samples * bins % self._padded).double() * (2 * math.pi / self._padded)
        return torch.cat([turn.cos(), -turn.sin()], dim=1)

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
        # Beyond its ends a recording is mirrored.
        end = (most - 1) * self.frame_shift - self.before + self.frame_length
        index = torch.arange(-self.before, end, device=audio.device)
        size = lengths.to(audio.device, non_blocking=True)[:, None].clamp(min=1)
        index = index.remainder(2 * size)
        mirrored = audio.gather(1, torch.minimum(index, 2 * size - 1 - index))
        mels = self.of_frames(mirrored.unfold(1, self.frame_length, self.frame_shift))
        real = torch.arange(most, device=audio.device) < counts.to(audio.device, non_blocking=True)[:, None]
        return torch.where(real[..., None], mels, 0.0), counts

    @torch.no_grad()
    def of_frames(self, frames: Tensor) -> Tensor:
        """Frames (N, T, frame_length), float32 samples, to features (N, T, bins)."""
        frames = frames - frames.mean(dim=2, keepdim=True)
        previous = torch.cat([frames[..., :1], frames[..., :-1]], dim=2)
        frames = (frames - _PREEMPHASIS * previous) * self.window
        with torch.autocast(frames.device.type, enabled=False):
            parts = _product(frames, self.fourier).square().unflatten(-1, (2, -1))
            return _product(parts.sum(-2), self.banks).clamp(min=torch.finfo(torch.float32).eps).log()

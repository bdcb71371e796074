"""Log-mel features, computed online by kaldi-native-fbank.

Training and streaming go through the same object, fed with the whole recording or with pieces of it: the frames are the
same numbers.
"""

from __future__ import annotations

import kaldi_native_fbank as knf
import numpy as np
import soxr
import torch
from torch import Tensor

from prnn._fields import Within

from .feature_config import FeatureConfig

SAMPLE_RATES = Within(1000, 384_000)  # of recordings, in hertz
_DEFAULT = FeatureConfig()
_LOUDEST = 2.0**31  # whose power is finite
_LOUDEST_RECORDING = 100.0  # louder than any whose samples are from -1 to 1, with gain; softer than 8-bit integers


def check_samples(samples: np.ndarray) -> None:
    """Raises ValueError unless all samples are finite, and small enough for their power to be."""
    peak = float(np.abs(samples).max(initial=0.0))
    if not np.isfinite(peak):
        raise ValueError("the recording has samples that are not finite numbers")
    if peak > _LOUDEST:
        raise ValueError(f"the recording has samples of {peak:g}; they must be at most {_LOUDEST:.0f}, better 1")


def check_recording(samples: np.ndarray) -> None:
    """Raises ValueError unless all samples are finite, and of the size of those from -1 to 1, or of some that were
    amplified: features of others would be of another loudness than any that a model has seen."""
    check_samples(samples)
    peak = float(np.abs(samples).max(initial=0.0))
    if peak > _LOUDEST_RECORDING:
        raise ValueError(
            f"the recording has samples of {peak:g}, and floating-point samples are from -1 to 1 (at most "
            f"{_LOUDEST_RECORDING:g} is taken); integers that were written as such are to be divided, those of 16 bits "
            "by 32768"
        )


class OnlineFeatures:
    """Log-mel frames of one recording, as far as its samples have come.

    Feed samples with :meth:`accept_waveform`, take the frames that are ready with :meth:`pop`, and call
    :meth:`input_finished` after the last samples: it releases the last frames. However the samples are cut into pieces,
    the frames are the same, bit by bit.

    Args:
        sample_rate: of the samples that will come, in hertz.
        config: what the features are.
    """

    def __init__(self, sample_rate: int, config: FeatureConfig = _DEFAULT) -> None:
        if not SAMPLE_RATES.accepts(sample_rate):
            raise ValueError(f"sample_rate is {sample_rate}; it must be {SAMPLE_RATES}")
        options = knf.FbankOptions()
        options.frame_opts.samp_freq = config.sample_rate
        options.frame_opts.frame_shift_ms = config.frame_shift_ms
        options.frame_opts.frame_length_ms = config.frame_length_ms
        options.frame_opts.dither = 0.0
        options.frame_opts.snip_edges = False
        options.mel_opts.num_bins = config.num_mel_bins
        options.mel_opts.high_freq = config.high_freq
        self.config = config
        self._fbank = knf.OnlineFbank(options)
        self._resampler: soxr.ResampleStream | None = None
        if sample_rate != config.sample_rate:
            self._resampler = soxr.ResampleStream(sample_rate, config.sample_rate, num_channels=1, dtype="float32")
        self._taken = 0
        self._finished = False

    def accept_waveform(self, samples: np.ndarray) -> None:
        """Takes the next samples: float32 of shape (samples,), from -1 to 1, of any number."""
        self._accept(samples, last=False)

    def input_finished(self) -> None:
        """Says that no more samples will come, which makes the last frames ready."""
        if not self._finished:
            if self._resampler is not None:
                self._accept(np.zeros(0, np.float32), last=True)
            self._fbank.input_finished()
            self._finished = True

    def _accept(self, samples: np.ndarray, last: bool) -> None:
        if self._finished:
            raise RuntimeError("samples came after input_finished()")
        samples = np.asarray(samples)
        if not np.issubdtype(samples.dtype, np.floating):  # 16-bit integers would be 90 dB too loud
            raise TypeError(f"samples have dtype {samples.dtype}; they must be floating-point numbers from -1 to 1")
        samples = np.ascontiguousarray(samples, dtype=np.float32)
        if samples.ndim != 1:
            raise ValueError(f"samples have shape {samples.shape}; they must have one dimension")
        check_samples(samples)
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples, last=last)
        if len(samples):
            # pybind11 copies a sequence number by number, those of a memoryview faster than those of an array.
            self._fbank.accept_waveform(self.config.sample_rate, samples.data)

    @property
    def num_frames_ready(self) -> int:
        """Frames that :meth:`pop` would return now."""
        return int(self._fbank.num_frames_ready) - self._taken

    def pop(self) -> Tensor:
        """Returns the frames that are ready and were not returned before: float32 of shape (frames, num_mel_bins)."""
        ready = int(self._fbank.num_frames_ready)
        if ready == self._taken:
            return torch.zeros(0, self.config.num_mel_bins, device="cpu")
        frames = np.stack([self._fbank.get_frame(index) for index in range(self._taken, ready)])
        self._fbank.pop(ready - self._taken)
        self._taken = ready
        return torch.from_numpy(frames)


def resampled(samples: np.ndarray, rate: float, wanted: float) -> np.ndarray:
    """Samples (S,) of a recording at another rate, in hertz; themselves where the rates are the same."""
    return samples if rate == wanted else soxr.resample(samples, rate, wanted)


def compute_features(samples: np.ndarray, sample_rate: int, config: FeatureConfig = _DEFAULT) -> Tensor:
    """Returns the frames of a whole recording: float32 of shape (frames, num_mel_bins).

    Args:
        samples: float32 of shape (samples,), mono, from -1 to 1.
        sample_rate: in hertz; resampled when it is not that of ``config``.
        config: what the features are.
    """
    online = OnlineFeatures(sample_rate, config)
    online.accept_waveform(samples)
    online.input_finished()
    return online.pop()

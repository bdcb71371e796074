"""Streaming encoders: what a transducer asks of one, and frames normalised, stacked and subsampled for layers."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from prnn._options_text import options_text
from prnn.transducer.checks import require_at_least

State = tuple[Tensor, ...]


class StreamingEncoder(Protocol):
    """The interface that `Transducer` wants of an encoder. A streaming state is a NamedTuple of tensors and tuples of
    tensors, all of them with the batch first."""

    output_dim: int
    feature_dim: int
    frame_stride: int
    feature_mean: Tensor  # (F,), of the features; `prnn train` puts it where features are masked

    def set_normalization(self, mean: Tensor, std: Tensor) -> None:
        """Normalise features to (x - mean) / std from now on; both are (F,). `prnn train` calls it once."""
        ...

    def __call__(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Whole utterances: (N, T, F) and (N,) to (N, T', output_dim) and (N,)."""
        ...

    def initial_state(self, batch: int) -> EncoderState:
        """The state before the first frame."""
        ...

    def step(self, chunk: Tensor, lengths: Tensor, state: EncoderState) -> tuple[Tensor, Tensor, EncoderState]:
        """A chunk (N, C, F), (N,) of its frames real, to outputs (N, M, output_dim), their numbers (N,), the state."""
        ...

    def finish(self, state: EncoderState) -> tuple[Tensor, Tensor, EncoderState]:
        """Encodes the frames still waiting in the state, once no more will come."""
        ...


class EncoderState(NamedTuple):
    """Where each stream of a batch of N stands.

    Attributes:
        frames: (N, frame_stack - 1, F) normalised frames that wait for more, the first `counts` of each row.
        counts: (N,) int64, how many wait.
        hidden: the layers' states, each with N rows; of recurrent ones (N, layers, size): h, and c of an LSTM.
    """

    frames: Tensor
    counts: Tensor
    hidden: State


def _times(size: int, lengths: Tensor) -> Tensor:
    """(N, size) bool: whether a position lies within its row's length."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def _most(lengths: Tensor) -> int:
    return int(lengths.max()) if len(lengths) else 0


class StackingEncoder(nn.Module):
    """An encoder over stacked frames, whose layers a subclass has. Encoder frame j sees input frames j * frame_stride
    to j * frame_stride + frame_stack - 1, and what the layers remember of those before; T frames give
    ceil(T / frame_stride). Frames beyond the end count as the mean.

    Features are normalised by the buffers `feature_mean` and `feature_inv_std`, both (F,), which are 0 and 1 until
    `set_normalization`, and which the state_dict carries.

    A subclass has `layers` and `initial_layers`; for ``prnn train --encoder-class`` also a class method
    ``from_config(config)``. Chunks give what the whole gives if its layers do.

    Args:
        feature_dim: size F of an input frame.
        output_dim: size of an encoder frame.
        frame_stack: how many frames are seen at once.
        frame_stride: input frames per encoder frame, at most frame_stack; None means frame_stack.

    Raises:
        ValueError, TypeError: naming the argument and its value.
    """

    feature_mean: Tensor
    feature_inv_std: Tensor

    def __init__(
        self, feature_dim: int, output_dim: int, frame_stack: int = 1, frame_stride: int | None = None
    ) -> None:
        super().__init__()
        for name, value in (("feature_dim", feature_dim), ("output_dim", output_dim), ("frame_stack", frame_stack)):
            require_at_least(name, value, 1)
        stride = frame_stack if frame_stride is None else frame_stride
        require_at_least("frame_stride", stride, 1)
        if stride > frame_stack:
            raise ValueError(f"frame_stride is {stride}; it must be at most frame_stack, {frame_stack}")
        self.feature_dim = feature_dim
        self.output_dim = output_dim
        self.frame_stack = frame_stack
        self.frame_stride = stride
        self.register_buffer("feature_mean", torch.zeros(feature_dim))
        self.register_buffer("feature_inv_std", torch.ones(feature_dim))

    def extra_repr(self) -> str:
        return options_text(self)

    def layers(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """The layers over stacked frames.

        Args:
            x: (N, T, frame_stack * F), T from 1 up.
            state: after the frames before, as `initial_layers` and this return it, N rows each; None is the state
                before the first frame.
            lengths: (N,) int64 on the CPU (under torch.compile and torch.export: on any device), 1 to T, the real
                frames of each row; None means all T.

        Returns:
            Encoder frames (N, T, output_dim), zero beyond lengths; the state after each row's last one.
        """
        raise NotImplementedError(f"{type(self).__name__} has no layers()")

    def initial_layers(self, batch: int) -> State:
        """The layers' state before the first frame, tensors of `batch` rows each."""
        raise NotImplementedError(f"{type(self).__name__} has no initial_layers()")

    def set_normalization(self, mean: Tensor, std: Tensor) -> None:
        """Normalise features to (x - mean) / std from now on; both are (F,), std positive."""
        for name, value in (("mean", mean), ("std", std)):
            if value.shape != (self.feature_dim,):
                raise ValueError(f"{name} has shape {tuple(value.shape)}; it must be ({self.feature_dim},)")
        if not bool((std > 0).all()):
            raise ValueError(f"std has a smallest value of {float(std.min())}; it must be positive")
        self.feature_mean.copy_(mean)
        self.feature_inv_std.copy_(1.0 / std)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Whole utterances.

        Args:
            features: (N, T, F). What lies beyond an utterance's length never matters.
            lengths: (N,) int64, on the same device, or on the CPU, where looking at them waits for nothing.

        Returns:
            Encoder frames (N, T', output_dim), zero beyond their lengths, and their numbers (N,), int64, on the device
            of `lengths`. T' is the largest of these; under torch.compile and torch.export, where no shape may depend on
            values, it is that of T input frames.
        """
        out_lengths = (lengths + self.frame_stride - 1) // self.frame_stride
        normal = self._normalize(features, lengths.to(features.device, non_blocking=True))
        if torch.compiler.is_compiling():
            out = self._run_padded(normal, out_lengths)
        else:
            out, _ = self._run(self._stack(normal, _most(out_lengths)), out_lengths, None)
        return out, out_lengths

    def initial_state(self, batch: int) -> EncoderState:
        """The state of `batch` streams before their first frame."""
        counts = torch.zeros(batch, dtype=torch.int64, device=self.feature_mean.device)
        frames = self.feature_mean.new_zeros(batch, self.frame_stack - 1, self.feature_dim)
        return EncoderState(frames, counts, self.initial_layers(batch))

    def step(self, chunk: Tensor, lengths: Tensor, state: EncoderState) -> tuple[Tensor, Tensor, EncoderState]:
        """The encoder frames that a chunk completes.

        Args:
            chunk: (N, C, F), C from 0 up. What lies beyond a row's length never matters.
            lengths: (N,) int64, the real frames of each row, 0 to C.
            state: of the streams before the chunk.

        Returns:
            Encoder frames (N, M, output_dim), zero beyond their numbers; their numbers (N,), int64; the state after.
        """
        x, ready, waiting, counts = self.stacked(chunk, lengths, state)
        out, hidden = self._run(x, ready, state.hidden)
        return out, ready, EncoderState(waiting, counts, hidden)

    def stacked(self, chunk: Tensor, lengths: Tensor, state: EncoderState) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the layers' inputs of a step: stacked frames (N, M, frame_stack * F), their numbers (N,), and what
        waits after it, `EncoderState.frames` and `counts`."""
        if (together := self._stacked_together(chunk, lengths, state)) is not None:
            return together
        frames, counts = self._append(state, self._normalize(chunk, lengths), lengths)
        ready = torch.clamp((counts - self.frame_stack) // self.frame_stride + 1, min=0)
        used = ready * self.frame_stride
        kept = self.frame_stack - 1
        index = used[:, None] + torch.arange(kept, device=used.device)
        index = index.clamp(max=max(frames.shape[1] - 1, 0))[:, :, None].expand(-1, -1, self.feature_dim)
        waiting = frames.gather(1, index) if frames.shape[1] else frames
        counts = counts - used
        waiting = waiting.masked_fill(~_times(kept, counts)[:, :, None], 0.0)
        return self._stack(frames, _most(ready)), ready, waiting, counts

    def _stacked_together(
        self, chunk: Tensor, lengths: Tensor, state: EncoderState
    ) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """`stacked` on a CPU where all rows have as many frames, or None."""
        if chunk.is_cuda or not len(chunk):
            return None
        (waiting, *others), given = state.counts.tolist(), lengths.tolist()
        if any(count != waiting for count in others) or any(count != chunk.shape[1] for count in given):
            return None
        x, ready, kept, left = self.stacked_alike(chunk, state.frames, waiting)
        return x, torch.full_like(lengths, ready), kept, torch.full_like(lengths, left)

    def stacked_alike(self, chunk: Tensor, frames: Tensor, waiting: int) -> tuple[Tensor, int, Tensor, int]:
        """`stacked` where `waiting` of the `frames` (N, frame_stack - 1, F) of each row wait and all of the chunk are
        real: in few operations, for what these take is most of a small encoder's time on a chunk, and without a look at
        a number on a GPU.

        Returns:
            Stacked frames (N, M, frame_stack * F); M; the frames that wait, and how many. Where none did and none do,
            these are the `frames` given.
        """
        x = (chunk.to(self.feature_mean.dtype) - self.feature_mean) * self.feature_inv_std
        if waiting:
            x = torch.cat([frames[:, :waiting], x], dim=1)
        ready, left = self.ready_of(x.shape[1])
        kept = torch.zeros_like(frames) if waiting or left else frames
        if left:
            kept[:, :left] = x[:, x.shape[1] - left :]
        return self._stack(x, ready), ready, kept, left

    def ready_of(self, frames: int) -> tuple[int, int]:
        """How many stacked frames so many frames of a stream that goes on give, and how many wait then."""
        ready = max((frames - self.frame_stack) // self.frame_stride + 1, 0)
        return ready, frames - ready * self.frame_stride

    def stacked_rest(self, state: EncoderState) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`stacked` of what still waits, once no more frames will come."""
        ready = (state.counts + self.frame_stride - 1) // self.frame_stride
        x = self._stack(state.frames, _most(ready))
        return x, ready, torch.zeros_like(state.frames), torch.zeros_like(state.counts)

    def finish(self, state: EncoderState) -> tuple[Tensor, Tensor, EncoderState]:
        """The encoder frames of what still waits, as `step` returns them."""
        x, ready, waiting, counts = self.stacked_rest(state)
        out, hidden = self._run(x, ready, state.hidden)
        return out, ready, EncoderState(waiting, counts, hidden)

    def _normalize(self, features: Tensor, lengths: Tensor) -> Tensor:
        normal = (features.to(self.feature_mean.dtype) - self.feature_mean) * self.feature_inv_std
        return normal.masked_fill(~_times(features.shape[1], lengths)[:, :, None], 0.0)

    def _append(self, state: EncoderState, chunk: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Waiting frames and new ones in one row each, (N, frame_stack - 1 + C, F), and their numbers."""
        both = torch.cat([state.frames, chunk], dim=1)
        counts = state.counts + lengths
        position = torch.arange(both.shape[1], device=both.device)
        gap = self.frame_stack - 1 - state.counts
        index = position + torch.where(position < state.counts[:, None], 0, gap[:, None])
        index = index.clamp(max=max(both.shape[1] - 1, 0))[:, :, None].expand(-1, -1, self.feature_dim)
        return both.gather(1, index).masked_fill(~_times(both.shape[1], counts)[:, :, None], 0.0), counts

    def _stack(self, frames: Tensor, outputs: int) -> Tensor:
        """Frames (N, T, F), zero beyond their ends, to stacked ones (N, outputs, frame_stack * F)."""
        batch, length, size = frames.shape
        if not outputs:
            return frames.new_zeros(batch, 0, self.frame_stack * size)
        needed = (outputs - 1) * self.frame_stride + self.frame_stack
        frames = functional.pad(frames, (0, 0, 0, needed - length)) if needed > length else frames[:, :needed]
        if self.frame_stride == self.frame_stack:
            return frames.reshape(batch, outputs, -1)
        return frames.unfold(1, self.frame_stack, self.frame_stride).transpose(2, 3).reshape(batch, outputs, -1)

    def _run_padded(self, normal: Tensor, lengths: Tensor) -> Tensor:
        """The layers over whole utterances (N, T, F), without a look at the values of `lengths`."""
        batch, length, size = normal.shape
        outputs = (length + self.frame_stride - 1) // self.frame_stride
        # `_stack` by indices: its slices leave torch.export conditions on T that it cannot prove.
        first = torch.arange(outputs, device=normal.device) * self.frame_stride
        index = first[:, None] + torch.arange(self.frame_stack, device=normal.device)
        padded = functional.pad(normal, (0, 0, 0, self.frame_stack))
        stacked = padded[:, index].reshape(batch, outputs, self.frame_stack * size)
        out, _ = self.layers(stacked, None, lengths.clamp(min=1))
        masked: Tensor = out.masked_fill(~_times(outputs, lengths.to(out.device))[:, :, None], 0.0)
        return masked

    def _run(self, x: Tensor, lengths: Tensor, hidden: State | None) -> tuple[Tensor, State]:
        """The layers over rows of differing lengths, 0 among them; `hidden` None is zero."""
        batch, size, _ = x.shape
        hidden = self.initial_layers(batch) if hidden is None else hidden
        on_host = lengths.cpu()
        rows = on_host.nonzero()[:, 0]
        if not len(rows):
            return x.new_zeros(batch, size, self.output_dim), hidden
        if bool((on_host == size).all()):
            return self.layers(x, hidden, None)
        if len(rows) == batch:
            return self.layers(x, hidden, on_host)
        some = rows.to(x.device)
        padded, after = self.layers(x[some], tuple(h[some] for h in hidden), on_host[rows])
        full = padded.new_zeros(batch, size, self.output_dim).index_copy(0, some, padded)
        return full, tuple(h.index_copy(0, some, a) for h, a in zip(hidden, after, strict=True))

"""A streaming encoder: frames stacked and subsampled, then unidirectional recurrent layers."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from prnn._options_text import options_text
from prnn.transducer.checks import require_at_least, require_choice
from prnn.transducer.config import ENCODER_CELLS, NORMS, TransducerConfig
from prnn.transducer.recurrent import RecurrentBlocks, State, recurrent, run_recurrent, with_cell_state


class StreamingEncoder(Protocol):
    """What `Transducer` asks of an encoder. A streaming state is a NamedTuple of tensors and tuples of tensors, all of
    them with the batch first."""

    output_dim: int
    feature_dim: int
    frame_stride: int

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
        """What the frames still waiting in the state give, once no more will come."""
        ...


class EncoderState(NamedTuple):
    """Where each stream of a batch of N stands.

    Attributes:
        frames: (N, frame_stack - 1, F) normalised frames that wait for more, the first `counts` of each row.
        counts: (N,) int64, how many wait.
        hidden: the layers' states, each (N, layers, size): h, and c of an LSTM.
    """

    frames: Tensor
    counts: Tensor
    hidden: State


def _times(size: int, lengths: Tensor) -> Tensor:
    """(N, size) bool: whether a position lies within its row's length."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def _most(lengths: Tensor) -> int:
    return int(lengths.max()) if len(lengths) else 0


class Encoder(nn.Module):
    """Encoder frame j sees input frames j * frame_stride to j * frame_stride + frame_stack - 1, and through the layers
    everything before; T frames give ceil(T / frame_stride). Frames beyond the end count as the mean.

    Features are normalised by the buffers `feature_mean` and `feature_inv_std`, both (F,), which are 0 and 1 until
    `set_normalization`, and which the state_dict carries.

    Args:
        feature_dim: size F of an input frame.
        hidden_size: hidden size of each layer.
        num_layers: number of layers.
        cell: "lstm", "gru", "rnn" (of tanh) or "layer_norm_lstm".
        frame_stack: how many frames are seen at once.
        frame_stride: input frames per encoder frame, at most frame_stack; None means frame_stack.
        proj_size: size of an LSTM's recurrent projection, which then is output_dim; 0 is none.
        dropout: probability of dropping, between layers and on the output, in training; with residuals, norms or
            feed-forward modules on what layers and modules compute, before residuals are added.
        residual: adds the input of each layer but the first to its output, and of each feed-forward module.
        norm: layer normalisation, "none", "before" layers (but the first) and feed-forward modules and at the output,
            or "after" them.
        feedforward: width of a feed-forward module after each layer; 0 is none.
        zoneout, recurrent_dropout: of the layers, as in prnn.nn; none with proj_size.

    Raises:
        ValueError, TypeError: naming the argument and its value.
    """

    feature_mean: Tensor
    feature_inv_std: Tensor

    def __init__(
        self,
        feature_dim: int,
        hidden_size: int,
        num_layers: int,
        cell: str = "lstm",
        frame_stack: int = 1,
        frame_stride: int | None = None,
        proj_size: int = 0,
        dropout: float = 0.0,
        residual: bool = False,
        norm: str = "none",
        feedforward: int = 0,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_choice("cell", cell, ENCODER_CELLS)
        require_choice("norm", norm, NORMS)
        require_at_least("feedforward", feedforward, 0)
        for name, value in (("feature_dim", feature_dim), ("num_layers", num_layers), ("frame_stack", frame_stack)):
            require_at_least(name, value, 1)
        stride = frame_stack if frame_stride is None else frame_stride
        require_at_least("frame_stride", stride, 1)
        if stride > frame_stack:
            raise ValueError(f"frame_stride is {stride}; it must be at most frame_stack, {frame_stack}")
        if proj_size and cell != "lstm":
            raise ValueError(f"proj_size is {proj_size}; only an lstm encoder has one")
        self.cell = cell
        self.feature_dim = feature_dim
        self.frame_stack = frame_stack
        self.frame_stride = stride
        self.output_dim = proj_size or hidden_size
        size = frame_stack * feature_dim
        masks = {"zoneout": zoneout, "recurrent_dropout": recurrent_dropout}
        self.rnn: Any  # its layers have num_layers and hidden_size
        in_blocks = residual or norm != "none" or feedforward > 0
        if in_blocks:
            self.rnn = RecurrentBlocks(
                cell, size, hidden_size, num_layers, proj_size, residual, norm, feedforward, dropout, **masks
            )
        else:
            self.rnn = recurrent(cell, size, hidden_size, num_layers, proj_size, dropout, **masks)
        self.dropout = nn.Dropout(0.0 if in_blocks else dropout)
        self.register_buffer("feature_mean", torch.zeros(feature_dim))
        self.register_buffer("feature_inv_std", torch.ones(feature_dim))

    def extra_repr(self) -> str:
        return options_text(self)

    @classmethod
    def from_config(cls, config: TransducerConfig) -> Encoder:
        """The encoder that a config describes."""
        return cls(
            config.feature_dim,
            config.encoder_hidden,
            config.encoder_layers,
            config.encoder_cell,
            config.frame_stack,
            config.frame_stride,
            config.encoder_projection,
            config.dropout,
            config.encoder_residual,
            config.encoder_norm,
            config.encoder_feedforward,
            config.encoder_zoneout,
            config.encoder_recurrent_dropout,
        )

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
        dropped: Tensor = self.dropout(out)
        return dropped, out_lengths

    def initial_state(self, batch: int) -> EncoderState:
        """The state of `batch` streams before their first frame."""
        zeros = self.feature_mean.new_zeros
        layers = self.rnn.num_layers
        hidden: State = (zeros(batch, layers, self.output_dim),)
        if with_cell_state(self.cell):
            hidden += (zeros(batch, layers, self.rnn.hidden_size),)
        counts = torch.zeros(batch, dtype=torch.int64, device=self.feature_mean.device)
        return EncoderState(zeros(batch, self.frame_stack - 1, self.feature_dim), counts, hidden)

    def step(self, chunk: Tensor, lengths: Tensor, state: EncoderState) -> tuple[Tensor, Tensor, EncoderState]:
        """The encoder frames that a chunk completes.

        Args:
            chunk: (N, C, F), C from 0 up. What lies beyond a row's length never matters.
            lengths: (N,) int64, the real frames of each row, 0 to C.
            state: of the streams before the chunk.

        Returns:
            Encoder frames (N, M, output_dim), zero beyond their numbers; their numbers (N,), int64; the state after.
        """
        frames, counts = self._append(state, self._normalize(chunk, lengths), lengths)
        ready = torch.clamp((counts - self.frame_stack) // self.frame_stride + 1, min=0)
        out, hidden = self._run(self._stack(frames, _most(ready)), ready, state.hidden)
        used = ready * self.frame_stride
        kept = self.frame_stack - 1
        index = used[:, None] + torch.arange(kept, device=used.device)
        index = index.clamp(max=max(frames.shape[1] - 1, 0))[:, :, None].expand(-1, -1, self.feature_dim)
        waiting = frames.gather(1, index) if frames.shape[1] else frames
        counts = counts - used
        return out, ready, EncoderState(waiting.masked_fill(~_times(kept, counts)[:, :, None], 0.0), counts, hidden)

    def finish(self, state: EncoderState) -> tuple[Tensor, Tensor, EncoderState]:
        """The encoder frames of what still waits, as `step` returns them."""
        ready = (state.counts + self.frame_stride - 1) // self.frame_stride
        out, hidden = self._run(self._stack(state.frames, _most(ready)), ready, state.hidden)
        return out, ready, EncoderState(torch.zeros_like(state.frames), torch.zeros_like(state.counts), hidden)

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
        frames = functional.pad(frames, (0, 0, 0, max(needed - length, 0)))[:, :needed]
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
        out, _ = run_recurrent(self.rnn, stacked, None, lengths.clamp(min=1))
        masked: Tensor = out.masked_fill(~_times(outputs, lengths.to(out.device))[:, :, None], 0.0)
        return masked

    def _run(self, x: Tensor, lengths: Tensor, hidden: State | None) -> tuple[Tensor, State]:
        """The layers over rows of differing lengths, 0 among them; `hidden` None is zero."""
        batch, size, _ = x.shape
        hidden = self.initial_state(batch).hidden if hidden is None else hidden
        on_host = lengths.cpu()
        rows = on_host.nonzero()[:, 0]
        if not len(rows):
            return x.new_zeros(batch, size, self.output_dim), hidden
        if bool((on_host == size).all()):
            return self._layers(x, hidden)
        if len(rows) == batch:
            return self._layers(x, hidden, on_host)
        some = rows.to(x.device)
        padded, after = self._layers(x[some], tuple(h[some] for h in hidden), on_host[rows])
        full = padded.new_zeros(batch, size, self.output_dim).index_copy(0, some, padded)
        return full, tuple(h.index_copy(0, some, a) for h, a in zip(hidden, after, strict=True))

    def _layers(self, x: Tensor, hidden: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """The layers over rows of lengths from 1 up, on the CPU; the output is zero beyond these."""
        layers_first = tuple(h.transpose(0, 1).contiguous() for h in hidden)
        out, after = run_recurrent(self.rnn, x, layers_first, lengths)
        return out, tuple(h.transpose(0, 1) for h in after)

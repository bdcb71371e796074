"""The recurrent layers of an encoder: a stack of prnn.nn's, or blocks of a layer each with residuals, layer
normalisation and a feed-forward module."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import prnn.nn
from prnn._options_text import options_text

State = tuple[Tensor, ...]
_PRNN = (prnn.nn.LSTM, prnn.nn.GRU, prnn.nn.RNN, prnn.nn.LayerNormLSTM)


def with_cell_state(cell: str) -> bool:
    """Whether the state of such layers is h and c; else it is h."""
    return cell in ("lstm", "layer_norm_lstm")


def recurrent(
    cell: str,
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    proj_size: int = 0,
    dropout: float = 0.0,
    zoneout: float = 0.0,
    recurrent_dropout: float = 0.0,
) -> nn.Module:
    """Layers of prnn.nn with the batch first.

    Args:
        cell: "lstm", "gru", "rnn" (tanh) or "layer_norm_lstm" (``normalize="gates"``).
        input_size, hidden_size, num_layers, proj_size, dropout, zoneout, recurrent_dropout: as those of the modules;
            dropout is that between layers. "rnn" has no zoneout.
    """
    options: dict[str, Any] = {
        "num_layers": num_layers,
        "batch_first": True,
        "dropout": dropout if num_layers > 1 else 0.0,
        "zoneout": zoneout,
        "recurrent_dropout": recurrent_dropout,
    }
    if cell == "lstm":
        return prnn.nn.LSTM(input_size, hidden_size, proj_size=proj_size, **options)
    if cell == "rnn" and options.pop("zoneout") > 0:
        raise ValueError(f"zoneout is {zoneout}, but cell is 'rnn', which has none")
    kinds = {"gru": prnn.nn.GRU, "rnn": prnn.nn.RNN, "layer_norm_lstm": prnn.nn.LayerNormLSTM}
    return kinds[cell](input_size, hidden_size, **options)


def run_recurrent(
    layers: nn.Module, x: Tensor | PackedSequence, state: State | None, lengths: Tensor | None = None
) -> tuple[Tensor, State]:
    """Layers over rows (N, T, I), zero beyond their lengths in the result.

    Args:
        layers: with the batch first; prnn's, torch's as ``prnn.convert_back`` leaves them, or `RecurrentBlocks`.
        x: (N, T, I).
        state: layers first, (L, N, size) each; None is zeros.
        lengths: (N,), from 1 to T; None means all T. For torch's layers, on the CPU.
    """
    hx = state if state is None or len(state) > 1 else state[0]
    if lengths is None:
        out, after = layers(x, hx)
    elif isinstance(layers, (*_PRNN, RecurrentBlocks)):
        out, after = layers(x, hx, lengths=lengths)
    else:  # a PackedSequence waits for the GPU
        packed = pack_padded_sequence(cast(Tensor, x), lengths, batch_first=True, enforce_sorted=False)
        out, after = layers(packed, hx)
        out = pad_packed_sequence(out, batch_first=True, total_length=cast(Tensor, x).shape[1])[0]
    return out, after if isinstance(after, tuple) else (after,)


class FeedForward(nn.Module):
    """W2 dropout(SiLU(W1 x + b1)) + b2, as in the blocks of icefall's LSTM and conformer encoders.

    Args:
        size: of input and output.
        width: of the layer between them.
        dropout: probability of dropping, in training.
    """

    def __init__(self, size: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(size, width)
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(width, size)

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) to (..., size)."""
        out: Tensor = self.outer(self.dropout(nn.functional.silu(self.inner(x))))
        return out


class RecurrentBlock(nn.Module):
    """A recurrent layer, and a feed-forward module if `feedforward` is not 0. Of both: y = f(x), with a residual
    y = x + f(x); normalised before, f(LN(x)), or after, LN(y). Dropout is applied to f's results.

    Args:
        layer: the recurrent layer, with the batch first.
        size: size of its output.
        residual: whether inputs are added; to the recurrent layer's output only in a block that is not the first.
        is_first: whether the block's input is the encoder's, whose size is not `size` and which is normalised already:
            it is not added, nor normalised before the layer.
        norm: "none", "before" or "after".
        feedforward: width of the feed-forward module; 0 is none.
        dropout: probability of dropping, in training.
    """

    def __init__(
        self,
        layer: nn.Module,
        size: int,
        residual: bool = False,
        norm: str = "none",
        feedforward: int = 0,
        dropout: float = 0.0,
        is_first: bool = False,
    ) -> None:
        super().__init__()
        self.residual = residual
        self.norm_is_before = norm == "before"
        self.is_first = is_first
        self.layer = layer
        has_norm = norm == "after" or (self.norm_is_before and not is_first)
        self.norm = nn.LayerNorm(size) if has_norm else nn.Identity()
        self.feedforward = FeedForward(size, feedforward, dropout) if feedforward else None
        self.feedforward_norm = nn.LayerNorm(size) if feedforward and norm != "none" else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """(N, T, I) to (N, T, size); beyond a row's length the result is anything finite."""
        out, after = run_recurrent(self.layer, self.norm(x) if self.norm_is_before else x, state, lengths)
        out = self._joined(x, out, self.residual and not self.is_first, self.norm)
        if self.feedforward is not None:
            inner = self.feedforward(self.feedforward_norm(out) if self.norm_is_before else out)
            out = self._joined(out, inner, self.residual, self.feedforward_norm)
        return out, after

    def _joined(self, x: Tensor, y: Tensor, residual: bool, norm: nn.Module) -> Tensor:
        y = self.dropout(y)
        y = x + y if residual else y
        return y if self.norm_is_before else norm(y)


class RecurrentBlocks(nn.Module):
    """`RecurrentBlock`s, called as torch.nn's recurrent layers with ``batch_first=True`` are, and prnn's with
    ``lengths=``. With a norm before the layers the output is normalised, too.

    Args:
        cell: "lstm", "gru", "rnn" or "layer_norm_lstm".
        input_size: size of the input.
        hidden_size: hidden size of each layer.
        num_layers: number of blocks.
        proj_size: size of an LSTM's recurrent projection, which then is that of the output; 0 is none.
        residual, norm, feedforward, dropout: as in `RecurrentBlock`.
        zoneout, recurrent_dropout: as in prnn.nn.
    """

    def __init__(
        self,
        cell: str,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        proj_size: int = 0,
        residual: bool = False,
        norm: str = "none",
        feedforward: int = 0,
        dropout: float = 0.0,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.proj_size = proj_size
        self.residual = residual
        self.norm = norm
        size = proj_size or hidden_size
        self.blocks = nn.ModuleList()
        for number in range(num_layers):
            width = size if number else input_size
            layer = recurrent(
                cell, width, hidden_size, proj_size=proj_size, zoneout=zoneout, recurrent_dropout=recurrent_dropout
            )
            self.blocks.append(RecurrentBlock(layer, size, residual, norm, feedforward, dropout, number == 0))
        self.output_norm = nn.LayerNorm(size) if norm == "before" else nn.Identity()

    def extra_repr(self) -> str:
        return options_text(self)

    def forward(
        self, x: Tensor, hx: Tensor | State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor | State]:
        """Runs the blocks.

        Args:
            x: (N, T, input_size).
            hx: h, or (h, c), each (L, N, size); None is zeros.
            lengths: (N,), from 1 to T; None means all T.

        Returns:
            (N, T, output size), zero beyond lengths; the states after, as hx.
        """
        states = (hx,) if isinstance(hx, Tensor) else hx
        after = []
        for number, block in enumerate(self.blocks):
            state = None if states is None else tuple(s[number : number + 1].contiguous() for s in states)
            x, end = block(x, state, lengths)
            after.append(end)
        x = self.output_norm(x)
        if lengths is not None:
            places = torch.arange(x.shape[1], device=x.device)
            x = x.masked_fill((places >= lengths.to(x.device, non_blocking=True)[:, None])[:, :, None], 0.0)
        joined = tuple(torch.cat(parts) for parts in zip(*after, strict=True))
        return x, joined if len(joined) > 1 else joined[0]

"""prnnRunStreamLayers on tensors: recurrent layers of streams on a CPU, whose weights are prepared once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._handles import DTYPES, handle

__all__ = ["PreparedLayers", "prepare", "run"]

LayerWeights = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


class PreparedLayers(NamedTuple):
    """Layers as the library reads them."""

    layers: _C.StreamLayers
    buffer: Tensor
    dtype: torch.dtype
    output_size: int


def prepare(mode: int, weights: Sequence[LayerWeights]) -> PreparedLayers:
    """Layers of PRNN_LSTM or PRNN_GRU, of float32 or float64 on the CPU.

    Args:
        mode: `_C.LSTM` or `_C.GRU`.
        weights: of each layer those of the input and of h, (G H, I) and (G H, P), their biases (G H,), which may be
            None, and of the projection (P, H), None without one.
    """
    first = weights[0][0]
    state = weights[0][1].shape[1]
    hidden = first.shape[0] // (4 if mode == _C.LSTM else 3)
    projection = state if weights[0][4] is not None else 0
    layers = _C.StreamLayers(DTYPES[first.dtype], mode, len(weights), first.shape[1], hidden, projection)
    kept = [[None if w is None else w.detach().contiguous() for w in layer] for layer in weights]
    library = handle(first.device)
    size = _C.stream_layers_prepared_size(library, layers)
    buffer = torch.empty(size, dtype=torch.uint8, device=first.device)
    addresses = [[0 if w is None else w.data_ptr() for w in layer] for layer in kept]
    _C.stream_layers_prepare(library, layers, addresses, buffer.data_ptr(), size)
    return PreparedLayers(layers, buffer, first.dtype, state)


def run(
    prepared: PreparedLayers, x: Tensor, lengths: Tensor | None, slots: Tensor | None, h: Tensor, c: Tensor | None
) -> Tensor:
    """The layers' outputs (N, T, P), zero beyond lengths.

    Args:
        x: (N, T, I), N and T at least 1, of the prepared type.
        lengths: (N,) int32, 0 to T; None means all T.
        slots: (N,) int32, different ones; None means 0 to N - 1.
        h, c: states of all slots, (S, L, P) and (S, L, H), contiguous, which are written; c of an LSTM.
    """
    batch, frames, _ = x.shape
    x = x.contiguous()
    shape = (batch, frames, prepared.output_size)
    y = x.new_empty(shape) if lengths is None else x.new_zeros(shape)
    library = handle(x.device)
    size = _C.stream_layers_workspace_size(library, prepared.layers, batch, frames)
    workspace = torch.empty(size, dtype=torch.uint8, device=x.device)
    arrays = [0 if tensor is None else tensor.data_ptr() for tensor in (x, lengths, slots, h, c, y)]
    _C.stream_layers_run(
        library, prepared.layers, prepared.buffer.data_ptr(), batch, frames, arrays, workspace.data_ptr(), size
    )
    return y

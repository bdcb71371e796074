"""An encoder's layers by libprnn (prnnRunStreamLayers), for encoders that it knows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prnn import _C
from prnn._ops import stream_layers
from prnn.transducer.encoder import Encoder
from prnn.transducer.resident import LAYERS, is_plain
from prnn.transducer.stacking import State

_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


class ResidentLayers:
    """Layers whose weights are prepared once, with states of streams in slots of a pool.

    Args:
        prepared: the layers.
    """

    def __init__(self, prepared: stream_layers.PreparedLayers) -> None:
        self.prepared = prepared

    def run(self, x: Tensor, counts: Tensor | None, rows: Tensor | None, hidden: State) -> Tensor:
        """Encoder frames (N, M, output size) of stacked frames (N, M, I), zero beyond (N,) `counts`, None: all M;
        writes `hidden`, h and c of the slots (N,) `rows`."""
        if not x.shape[1]:
            return x.new_zeros(len(x), 0, self.prepared.output_size)
        lengths = None if counts is None or bool((counts == x.shape[1]).all()) else counts.int()
        slots = None if rows is None else rows.int()
        return stream_layers.run(self.prepared, x, lengths, slots, hidden[0], hidden[1] if len(hidden) > 1 else None)


def resident_layers(encoder: object) -> ResidentLayers | None:
    """The library's layers of an encoder in eval mode, or None if it has none for its modules, types and device."""
    if type(encoder) is not Encoder or torch.is_autocast_enabled("cpu"):
        return None
    rnn = encoder.rnn
    masks = getattr(rnn, "zoneout", 0.0) > 0 or getattr(rnn, "heads", 1) > 1
    if not is_plain(rnn, *LAYERS) or masks or rnn.bidirectional:
        return None
    weights = [tuple(getattr(rnn, f"{name}_l{layer}", None) for name in _NAMES) for layer in range(rnn.num_layers)]
    tensors = [weight for layer in weights for weight in layer if weight is not None]
    dtype = tensors[0].dtype
    if dtype not in (torch.float32, torch.float64):
        return None
    alike = all(t.is_cpu and t.dtype == dtype and t.layout == torch.strided for t in tensors)
    if not alike or any(type(t) not in (Tensor, nn.Parameter) for t in tensors):
        return None
    mode = _C.LSTM if LAYERS[type(rnn)] == "lstm" else _C.GRU
    return ResidentLayers(stream_layers.prepare(mode, weights))  # type: ignore[arg-type]

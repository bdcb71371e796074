"""LSTMs in bfloat16 on the CPU. prnn's kernels keep float32's accuracy, for which AMX multiplies twice; torch's
(oneDNN) multiply once, and with many sequences are the faster ones. Each serves the calls in which it is. torch's GRU
and RNN round after each operation."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from prnn._ops._operator import _undisturbed, is_plain

__all__ = ["run_torchs"]

# Measured, docs/cpu_kernels.md. Calls of fewer rows, over all timesteps, or fewer sequences are prnn's. Under autocast
# the weights are float32, and so is what prnn computes.
_ROWS = 256
_ROWS_OF_AUTOCAST = 64
_BATCH = 8
_LARGE_HIDDEN, _BATCH_OF_LARGE = 257, 32


@functools.cache
def _has_amx() -> bool:
    """Whether the processor has AMX, of which torch makes use."""
    found = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return found is not None and bool(found())


def _is_faster(is_autocast: bool, hidden: int, steps: int, batch: int) -> bool:
    """Whether torch's LSTM is the faster one for so many timesteps and sequences."""
    if not _has_amx():
        return False
    if is_autocast:
        return steps * batch >= _ROWS_OF_AUTOCAST and batch >= _BATCH
    return steps * batch >= _ROWS and batch >= (_BATCH_OF_LARGE if hidden >= _LARGE_HIDDEN else _BATCH)


def run_torchs(
    module: Any, input: Tensor, hx: Tensor | None, cx: Tensor | None, batch_sizes: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """An LSTM's call without lengths, resets, masks and cells of every step by torch's operator, or None where
    prnn's is to serve it: also whatever is traced or transformed, and other cells.

    input: (T, N, I), or packed with batch_sizes. Returns output, hy, cy and cells, which have no elements."""
    if module.mode != "LSTM":
        return None
    is_autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if is_autocast else input.dtype
    if dtype != torch.bfloat16 or input.dtype not in (dtype, torch.float32):
        return None
    if module.backend == "persistent" or module.heads > 1 or module.proj_size > 0:
        return None  # of a projection torch warns that oneDNN has none
    if not _undisturbed() or not is_plain(input):
        return None
    steps, batch = input.shape[:2] if batch_sizes is None else (batch_sizes.size(0), int(batch_sizes[0]))
    parameters = module._parameters
    weights = [parameters.get(name) for name in module._flat_weights_names]
    for weight in weights:
        if type(weight) is not Parameter or weight.dtype != input.dtype:  # parametrised, or wrong, which prnn's says
            return None
    if not _is_faster(is_autocast, module.hidden_size, steps, batch):
        return None

    states = module.num_layers * (2 if module.bidirectional else 1)
    state = [input.new_zeros(states, batch, module.hidden_size) if given is None else given for given in (hx, cx)]
    options = (module.bias, module.num_layers, module.dropout, module.training, module.bidirectional)
    if batch_sizes is None:
        output, hy, cy = torch.lstm(input, state, weights, *options, False)
    else:
        output, hy, cy = torch.lstm(input, batch_sizes, state, weights, *options)
    return output, hy, cy, input.new_empty(0)

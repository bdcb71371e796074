"""Recurrent layers in 16 bits on the CPU. prnn's kernels compute them in float32, with weights that each call converts;
torch's LSTM (oneDNN) computes in float32, too, and reads 16-bit weights as they are, with the units of processors that
have some. Each serves the calls in which it is the faster one. torch's GRU and RNN round after each operation."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from prnn._ops._operator import _undisturbed, is_plain

__all__ = ["run_torchs"]

# Measured, docs/cpu_kernels.md: what conversion of the weights costs is spread over the timesteps, and the processor's
# 16-bit units pay with many sequences of large layers.
_FEW_STEPS = 2
_FEW_ROWS = 8
_WEIGHTS_A_STEP = 3 * 2**12  # H^2, in inference
_WEIGHTS_A_TRAINING_STEP = 12 * 2**12
_BATCH_OF_TRAINING = 8  # bfloat16


@functools.cache
def _has_units(dtype: torch.dtype) -> bool:
    """Whether the processor has instructions for products of the type, of which torch makes use."""
    if dtype == torch.bfloat16:
        found = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    else:
        found = getattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", None)
    return found is not None and bool(found())


def _is_faster(dtype: torch.dtype, hidden: int, steps: int, batch: int, trains: bool) -> bool:
    """Whether torch's LSTM is the faster one for so many timesteps and sequences."""
    if not _has_units(dtype):
        return False
    if dtype == torch.bfloat16:
        return not trains or batch >= _BATCH_OF_TRAINING
    most = _WEIGHTS_A_TRAINING_STEP if trains else _WEIGHTS_A_STEP
    return steps <= _FEW_STEPS or steps * batch <= _FEW_ROWS or hidden**2 > most * steps


def run_torchs(
    module: Any, input: Tensor, hx: Tensor | None, cx: Tensor | None, batch_sizes: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """An LSTM's call without lengths, resets, masks and cells of every step by torch's operator, or None where
    prnn's is to serve it: also whatever is traced or transformed, and other cells.

    input: (T, N, I), or packed with batch_sizes. Returns output, hy, cy and cells, which have no elements."""
    if module.mode != "LSTM":
        return None
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
    if dtype not in (torch.float16, torch.bfloat16) or input.dtype not in (dtype, torch.float32):
        return None
    if module.backend == "persistent" or module.heads > 1 or module.proj_size > 0:
        return None  # of a projection torch warns that oneDNN has none
    if not _undisturbed() or not is_plain(input):
        return None
    steps, batch = input.shape[:2] if batch_sizes is None else (batch_sizes.size(0), int(batch_sizes[0]))
    parameters = module._parameters
    weights = [parameters.get(name) for name in module._flat_weights_names]
    trains = input.requires_grad
    for weight in weights:
        if type(weight) is not Parameter or weight.dtype != input.dtype:  # parametrised, or wrong, which prnn's says
            return None
        trains = trains or weight.requires_grad
    if batch * steps == 0 or not _is_faster(
        dtype, module.hidden_size, steps, batch, trains and torch.is_grad_enabled()
    ):
        return None

    states = module.num_layers * (2 if module.bidirectional else 1)
    state = [input.new_zeros(states, batch, module.hidden_size) if given is None else given for given in (hx, cx)]
    options = (module.bias, module.num_layers, module.dropout, module.training, module.bidirectional)
    if batch_sizes is None:
        output, hy, cy = torch.lstm(input, state, weights, *options, False)
    else:
        output, hy, cy = torch.lstm(input, batch_sizes, state, weights, *options)
    return output, hy, cy, input.new_empty(0)

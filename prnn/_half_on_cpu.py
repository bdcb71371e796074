"""Recurrent layers in 16 bits on the CPU. prnn's kernels compute them in float32, with weights that each call converts;
torch's own operators read them as they are, with the 16-bit units of processors that have some. Each serves the calls
in which it is the faster one."""

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
_MANY_PRODUCTS = 2**20  # H^2 N, bfloat16
_BATCH_OF_LSTM_TRAINING = 8


@functools.cache
def _has_units(dtype: torch.dtype) -> bool:
    """Whether the processor has instructions for products of the type, of which torch makes use."""
    if dtype == torch.bfloat16:
        found = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    else:
        found = getattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", None)
    return found is not None and bool(found())


def _is_faster(module: Any, dtype: torch.dtype, steps: int, batch: int, trains: bool) -> bool:
    """Whether torch's operator is the faster one for so many timesteps and sequences."""
    if not _has_units(dtype):
        return module.mode != "LSTM" and steps * batch == 1
    is_bfloat = dtype == torch.bfloat16
    if module.mode == "LSTM" and is_bfloat:
        return not trains or batch >= _BATCH_OF_LSTM_TRAINING
    weights, most = module.hidden_size**2, _WEIGHTS_A_TRAINING_STEP if trains else _WEIGHTS_A_STEP
    if steps <= _FEW_STEPS or steps * batch <= _FEW_ROWS or weights > most * steps:
        return True
    return is_bfloat and weights * batch > _MANY_PRODUCTS


def run_torchs(
    module: Any, input: Tensor, hx: Tensor | None, cx: Tensor | None, batch_sizes: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """A prnn.nn layer's call without lengths, resets, masks and cells of every step by torch's operator, or None where
    prnn's is to serve it: also whatever is traced or transformed.

    input: (T, N, I), or packed with batch_sizes. Returns output, hy, cy and cells; the latter, and cy of an RNN and a
    GRU, have no elements."""
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
    if batch * steps == 0 or not _is_faster(module, dtype, steps, batch, trains and torch.is_grad_enabled()):
        return None

    states = module.num_layers * (2 if module.bidirectional else 1)
    if hx is None:
        hx = input.new_zeros(states, batch, module.hidden_size)
    if cx is None and module.mode == "LSTM":
        cx = input.new_zeros(states, batch, module.hidden_size)
    state = hx if cx is None else (hx, cx)
    options = (module.bias, module.num_layers, module.dropout, module.training, module.bidirectional)
    run = getattr(torch, module.mode.lower())  # torch.lstm, gru, rnn_tanh, rnn_relu
    if batch_sizes is None:
        output, hy, *rest = run(input, state, weights, *options, False)
    else:
        output, hy, *rest = run(input, batch_sizes, state, weights, *options)
    nothing = input.new_empty(0)
    return output, hy, rest[0] if rest else nothing, nothing

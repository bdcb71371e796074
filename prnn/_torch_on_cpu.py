"""Calls on the CPU that torch's operators serve, where docs/cpu_kernels.md measured them to be the faster ones.

In bfloat16 prnn's kernels keep float32's accuracy, for which they multiply float operands twice, as two bfloat16
numbers each; torch's multiply once, and with many sequences are the faster ones. torch's GRU and RNN round after each
operation."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from prnn import _C
from prnn._ops._handles import handle
from prnn._state_masks import mask_configuration

__all__ = ["run_torchs", "takes_torchs"]

_OPERATORS: dict[str, Any] = {
    "LSTM": torch.lstm,
    "GRU": torch.gru,
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
}


@functools.cache
def _processor() -> str:
    """The instruction set of the library's kernels: "CPU AMX"."""
    rnn = _C.Rnn(_C.LSTM, _C.BFLOAT16, 64, 1, 64, False)
    device: str = rnn.query(handle(torch.device("cpu")), [1])["device"]
    return device


def _is_faster(
    processor: str, is_autocast: bool, mode: str, training: bool, hidden: int, steps: int, batch: int
) -> bool:
    """Whether torch's layer is the faster one for so many timesteps and sequences, under autocast, where the weights
    are float32 and so is what prnn computes, or without."""
    has_amx = processor == "CPU AMX"
    if not has_amx and processor != "CPU AVX-512 BF16":
        return False
    if mode == "LSTM":
        gains_early = hidden <= 256 or (is_autocast if has_amx else not training)
        return steps * batch >= 256 and batch >= (8 if gains_early else 32)
    return not has_amx and hidden >= 256 and batch * hidden >= 16_384 and (training or is_autocast or steps >= 4)


def takes_torchs(module: Any) -> bool:
    """Whether calls in bfloat16 may be torch's. Of a projection torch warns that oneDNN has none."""
    is_plain = module.heads == 1 and module.proj_size == 0 and module.normalize == "none" and module.mode in _OPERATORS
    return is_plain and module.backend != "persistent" and mask_configuration(module) == (0.0, 0)


def run_torchs(
    module: Any,
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    training: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """An eager call of plain tensors, without lengths, resets and cells of every step, by torch's operator, or None
    where prnn's kernels are to serve it.

    input: (T, N, I), or packed with batch_sizes. weights: in their packed order. Returns output, hy, cy and cells, of
    which the last has no elements."""
    is_autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if is_autocast else input.dtype
    if dtype != torch.bfloat16 or input.dtype not in (dtype, torch.float32):
        return None
    steps, batch = input.shape[:2] if batch_sizes is None else (batch_sizes.size(0), int(batch_sizes[0]))
    if not _is_faster(_processor(), is_autocast, module.mode, training, module.hidden_size, steps, batch):
        return None
    by_name = dict(zip(module._packed_names, weights, strict=False))  # without bias, zeros are the last
    weights = [by_name[name] for name in module._flat_weights_names]
    for weight in weights:
        if type(weight) is not Parameter or weight.dtype != input.dtype:  # parametrised, or of a wrong type
            return None
    states = module.num_layers * (2 if module.bidirectional else 1)
    given = [
        input.new_zeros(states, batch, module.hidden_size) if state is None else state
        for state in ((hx, cx) if module.mode == "LSTM" else (hx,))
    ]
    state = given if module.mode == "LSTM" else given[0]
    data = (input, state, weights) if batch_sizes is None else (input, batch_sizes, state, weights)
    options = (module.bias, module.num_layers, module.dropout, module.training, module.bidirectional)
    results = _OPERATORS[module.mode](*data, *options, *((False,) if batch_sizes is None else ()))
    nothing = input.new_empty(0)
    output, hy, cy = results if module.mode == "LSTM" else (*results, nothing)
    return output, hy, cy, nothing

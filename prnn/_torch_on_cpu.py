"""Calls on the CPU that torch's operators serve, where docs/cpu_kernels.md measured them to be the faster ones.

In bfloat16 prnn's kernels keep float32's accuracy, for which they multiply float operands twice, as two bfloat16
numbers each; torch's multiply once, and with many sequences are the faster ones. torch's GRU and RNN round after each
operation."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from prnn._state_masks import uses_masks

__all__ = ["run_torchs", "takes_torchs"]


class _Calls(NamedTuple):
    """Calls that torch serves faster: at least so many of each, and no more than most_."""

    cells: tuple[str, ...]  # the first letters of modules' modes
    training: bool | None = None  # None: and inference
    steps: int = 1
    batch: int = 1
    rows: int = 1  # steps * batch
    states: int = 1  # batch * hidden
    elements: int = 1  # rows * hidden
    hidden: int = 1
    most_steps: float = math.inf
    most_hidden: float = math.inf

    def hold(self, mode: str, training: bool, hidden: int, steps: int, batch: int) -> bool:
        return (
            mode.startswith(self.cells)
            and self.training in (None, training)
            and self.steps <= steps <= self.most_steps
            and batch >= self.batch
            and steps * batch >= self.rows
            and batch * hidden >= self.states
            and steps * batch * hidden >= self.elements
            and self.hidden <= hidden <= self.most_hidden
        )


_RNNS = ("GRU", "RNN")

# Measured, docs/cpu_kernels.md. By instruction set and whether the call is under autocast, where the weights are
# float32 and so is what prnn computes. Inference of one timestep has no rule without autocast: its operands are
# bfloat16 numbers, which prnn's kernels multiply once, too. On AMX GRU and RNN have none.
_TORCHS = {
    ("AMX", False): (
        _Calls(("LSTM",), batch=8, rows=256, most_hidden=256),
        _Calls(("LSTM",), batch=32, rows=256),
    ),
    ("AMX", True): (_Calls(("LSTM",), batch=8, rows=64),),
    ("AVX512_BF16", False): (
        _Calls(("LSTM",), training=False, steps=2, batch=8, rows=160, elements=32_000),
        _Calls(("LSTM",), training=True, steps=2, batch=8, rows=256, elements=32_000, most_hidden=512),
        _Calls(("LSTM",), training=True, steps=2, batch=64, rows=256, elements=32_000),
        _Calls(("GRU",), training=False, steps=2, states=32_768, hidden=257),
        _Calls(("GRU",), training=False, steps=4, states=16_384, hidden=257),
        _Calls(("RNN",), training=False, steps=2, states=65_536, hidden=257),
        _Calls(("RNN",), training=False, steps=4, states=32_768, hidden=257),
        _Calls(_RNNS, training=True, states=8_192, hidden=257, most_steps=1),
        _Calls(_RNNS, training=True, states=16_384, hidden=256),
        _Calls(_RNNS, training=True, steps=16, states=32_768, hidden=128),
    ),
    ("AVX512_BF16", True): (
        _Calls(("LSTM",), training=False, batch=8, rows=64),
        _Calls(("LSTM",), training=True, batch=8, rows=256, most_hidden=512),
        _Calls(("LSTM",), training=True, batch=64, rows=256),
        _Calls(_RNNS, training=False, states=8_192, hidden=257),
        _Calls(_RNNS, states=16_384, hidden=256),
    ),
}


@functools.cache
def _instructions() -> str:
    """Returns the processor's instructions for bfloat16 that torch uses, or nothing."""
    for name, check in (("AMX", "_is_amx_tile_supported"), ("AVX512_BF16", "_is_avx512_bf16_supported")):
        found = getattr(torch.cpu, check, None)
        if found is not None and found():
            return name
    return ""


@functools.lru_cache(maxsize=4096)
def _is_faster(
    instructions: str, is_autocast: bool, mode: str, training: bool, hidden: int, steps: int, batch: int
) -> bool:
    """Whether torch's layer is the faster one for so many timesteps and sequences."""
    calls = _TORCHS.get((instructions, is_autocast), ())
    return any(some.hold(mode, training, hidden, steps, batch) for some in calls)


def takes_torchs(module: Any) -> bool:
    """Whether calls in bfloat16 may be torch's. Of a projection torch warns that oneDNN has none."""
    is_plain = module.heads == 1 and module.proj_size == 0 and module.normalize == "none"
    return is_plain and module.backend != "persistent" and not uses_masks(module)


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
    if not _is_faster(_instructions(), is_autocast, module.mode, training, module.hidden_size, steps, batch):
        return None
    by_name = dict(zip(module._packed_names, weights, strict=False))  # without bias, zeros are the last
    weights = [by_name[name] for name in module._flat_weights_names]
    for weight in weights:
        if type(weight) is not Parameter or weight.dtype != input.dtype:  # parametrised, or of a wrong type
            return None
    return _run_operator(module, input, hx, cx, weights, batch_sizes)


def _run_operator(
    module: Any,
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """torch's operator, with run_torchs()'s results. weights: in torch's order."""
    batch = input.size(1) if batch_sizes is None else int(batch_sizes[0])
    is_lstm = module.mode == "LSTM"
    states = module.num_layers * (2 if module.bidirectional else 1)
    given = [
        input.new_zeros(states, batch, module.hidden_size) if state is None else state
        for state in ((hx, cx) if is_lstm else (hx,))
    ]
    state = given if is_lstm else given[0]
    operators: dict[str, Any] = {
        "LSTM": torch.lstm,
        "GRU": torch.gru,
        "RNN_TANH": torch.rnn_tanh,
        "RNN_RELU": torch.rnn_relu,
    }
    options = (module.bias, module.num_layers, module.dropout, module.training, module.bidirectional)
    if batch_sizes is None:
        results = operators[module.mode](input, state, weights, *options, False)
    else:
        results = operators[module.mode](input, batch_sizes, state, weights, *options)
    nothing = input.new_empty(0)
    output, hy, cy = results if is_lstm else (*results, nothing)
    return output, hy, cy, nothing

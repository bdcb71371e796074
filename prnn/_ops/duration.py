"""The losses of transducers with durations, TDT and multi-blank, as torch operators; see prnn/_ops/_loss.py.

`logits` are contiguous (N, T, U + 1, C). The duration logits of TDT are a contiguous tensor of their own, or, where
`duration_logits` is None, the last ones of every cell's C. Gradients come back in the same form; those of duration
logits that are not a tensor of their own are an empty tensor. call_duration_rnnt_loss takes a reduction and what the
operator duration_rnnt_loss takes, with duration_logits=None, tensors and the rest in a tuple each, and returns the
reduced costs, with less to do on the way there.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from prnn import _C
from prnn._ops._handles import DTYPES
from prnn._ops._loss import (
    Options,
    _blocks,
    _Calls,
    _Chosen,
    _Needs,
    _new_costs,
    _pointer,
    _reserve,
    _run_backward,
    _run_forward,
)
from prnn._ops._loss_operator import differentiate_loss, directly
from prnn._ops._operator import operator
from prnn._ops._reduction import Reduction
from prnn._ops.rnnt import _RNNT_NAMES

_NAMES = {
    _C.DURATION_TDT: _RNNT_NAMES | {"durationCount": "the number of durations"},
    _C.DURATION_MULTI_BLANK: _RNNT_NAMES | {"durations": "big_blank_durations"},
}


_CALLS = {
    type: _Calls(kernels, _C.duration_rnnt_loss_sizes, _C.duration_rnnt_loss_forward, _C.duration_rnnt_loss_backward)
    for type, kernels in ((_C.DURATION_TDT, "TDT loss"), (_C.DURATION_MULTI_BLANK, "multi-blank loss"))
}
duration_options = _Chosen(_C.DURATION_RNNT_LOSS_FIELDS, "type")
_CLASSES, _TYPE = (list(dict(_C.DURATION_RNNT_LOSS_FIELDS)).index(name) for name in ("classes", "type"))


def _options(logits: Tensor, duration_logits: Tensor | None, durations: list[int], type: int, *chosen: Any) -> Options:
    joint = type == _C.DURATION_TDT and duration_logits is None
    stride = logits.shape[-1] if joint else 0
    classes = logits.shape[-1] - (len(durations) if joint else 0)
    batch, frames, width, _ = logits.shape
    sizes = batch, frames, width - 1, classes, stride, stride
    return (DTYPES[logits.dtype], *sizes, durations, type, *chosen)


def _duration_pointer(logits: Tensor, duration_logits: Tensor | None, options: Options) -> int:
    if duration_logits is None and options[_TYPE] == _C.DURATION_TDT:
        return logits.data_ptr() + options[_CLASSES] * logits.element_size()
    return _pointer(duration_logits)


def _addresses(tensors: Sequence[Any], options: Options) -> tuple[int, ...]:
    logits, duration_logits, targets, logit_lengths, target_lengths = tensors
    return (
        logits.data_ptr(),
        _duration_pointer(logits, duration_logits, options),
        targets.data_ptr(),
        logit_lengths.data_ptr(),
        target_lengths.data_ptr(),
    )


def _reserve_size(logits: Tensor, durations: list[int]) -> int:
    """At least what libprnn wants on any device: per cell 2 normalisers and a multiple of 4 for the shares of symbol,
    blanks and durations and their sums."""
    cells = logits.numel() // logits.shape[-1]
    return _blocks(max(4, logits.element_size()) * cells * (len(durations) + 10) + 24 * logits.shape[0] + 256)


def _forward(
    tensors: tuple[Any, ...], rest: tuple[Any, ...], reduction: Reduction | None, reserve: Tensor | None = None
) -> tuple[Tensor, Tensor, _Needs]:
    """Computes costs (N,), or their reduction, and the reserve, from the operator's arguments. logits are
    (N, T, U + 1, C), targets (N, U)."""
    logits, durations, type = tensors[0], rest[0], rest[1]
    options = _options(*tensors[:2], durations, *rest[1:-1])
    addresses = _addresses(tensors, options)
    calls, batch = _CALLS[type], logits.shape[0]
    return _run_forward(calls, _NAMES[type], options, logits, addresses, batch, rest[-1], reduction, reserve)


def _loss(*inputs: Any) -> tuple[Tensor, Tensor]:
    return _forward(inputs[:5], inputs[5:], None, _loss_fake(*inputs)[1])[:2]


def _backward(gradient: Tensor, tensors: tuple[Any, ...], needs: _Needs) -> tuple[Tensor, Tensor]:
    *arrays, reserve = tensors
    logits, duration_logits = arrays[:2]
    options, _ = needs
    gradients, duration_gradients = _loss_backward_fake(gradient, logits, duration_logits)
    addresses = _addresses(arrays, options)
    addresses += (
        gradients.data_ptr(),
        _duration_pointer(gradients, None if duration_logits is None else duration_gradients, options),
    )
    type = options[_TYPE]
    _run_backward(_CALLS[type], _NAMES[type], needs, logits, addresses, gradient, reserve)
    return gradients, duration_gradients


def _loss_backward(cost_gradients: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    options = _options(*arguments[:2], *arguments[6:])
    return _backward(cost_gradients, arguments[:6], (options, None))


def _loss_fake(
    logits: Tensor,
    duration_logits: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    durations: list[int],
    *rest: Any,
) -> tuple[Tensor, Tensor]:
    costs = _new_costs(logits, logits.shape[0])
    return costs, _reserve(_reserve_size(logits, durations) if rest[-1] else 0, logits)


def _loss_backward_fake(
    cost_gradients: Tensor, logits: Tensor, duration_logits: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor]:
    return logits.new_empty(logits.shape), logits.new_empty(0 if duration_logits is None else duration_logits.shape)


_INPUTS = "Tensor logits, Tensor? duration_logits, Tensor targets, Tensor logit_lengths, Tensor target_lengths"
duration_rnnt_loss = operator(
    f"duration_rnnt_loss({_INPUTS}, int[] durations, {duration_options.schema}, bool keep) -> "
    "(Tensor costs, Tensor reserve)",
    _loss,
    _loss_fake,
)
duration_rnnt_loss_backward = operator(
    f"duration_rnnt_loss_backward(Tensor cost_gradients, {_INPUTS}, Tensor reserve, int[] durations, "
    f"{duration_options.schema}) -> (Tensor gradients, Tensor duration_gradients)",
    _loss_backward,
    _loss_backward_fake,
)


call_duration_rnnt_loss = directly(
    duration_rnnt_loss,
    differentiate_loss(duration_rnnt_loss, duration_rnnt_loss_backward, 5),
    _forward,
    lambda *arguments: _backward(*arguments)[0],
)

"""The losses of transducers with durations, TDT and multi-blank, as torch operators; see prnn/_ops/_loss.py.

`logits` are contiguous (N, T, U + 1, C). The duration logits of TDT are a contiguous tensor of their own, or, where
`duration_logits` is None, the last ones of every cell's C. Gradients come back in the same form; those of duration
logits that are not a tensor of their own are an empty tensor. call_duration_rnnt_loss takes a reduction and what the
operator duration_rnnt_loss takes, with duration_logits=None, and returns the reduced costs, with less to do on the way
there.
"""

from functools import partial
from typing import Any

from torch import Tensor

from prnn import _C
from prnn._ops._handles import DTYPES
from prnn._ops._loss import (
    _blocks,
    _Calls,
    _Chosen,
    _new_costs,
    _pointer,
    _reserve,
    _run_backward,
    _run_forward,
)
from prnn._ops._operator import differentiate, directly, operator
from prnn._ops._reduction import Reduction
from prnn._ops.rnnt import _RNNT_NAMES

_NAMES = {
    _C.DURATION_TDT: _RNNT_NAMES | {"durationCount": "the number of durations"},
    _C.DURATION_MULTI_BLANK: _RNNT_NAMES | {"durations": "big_blank_durations"},
}


_CALLS = _Calls(_C.duration_rnnt_loss_sizes, _C.duration_rnnt_loss_forward, _C.duration_rnnt_loss_backward)
duration_options = _Chosen(_C.DurationRnntLossOptions, "type")


def _options(
    logits: Tensor, duration_logits: Tensor | None, durations: list[int], type: int, *chosen: Any
) -> _C.DurationRnntLossOptions:
    joint = type == _C.DURATION_TDT and duration_logits is None
    stride = logits.shape[-1] if joint else 0
    classes = logits.shape[-1] - (len(durations) if joint else 0)
    batch, frames, width, _ = logits.shape
    sizes = batch, frames, width - 1, classes, stride, stride
    options = _C.DurationRnntLossOptions(DTYPES[logits.dtype], *sizes, type, *chosen)
    options.set_durations(durations)
    return options


def _duration_pointer(logits: Tensor, duration_logits: Tensor | None, options: _C.DurationRnntLossOptions) -> int:
    if duration_logits is None and options.type == _C.DURATION_TDT:
        return logits.data_ptr() + options.classes * logits.element_size()
    return _pointer(duration_logits)


def _addresses(
    logits: Tensor,
    duration_logits: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    options: _C.DurationRnntLossOptions,
) -> tuple[int, ...]:
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
    *inputs: Any, reduction: Reduction | None = None, reserve: Tensor | None = None
) -> tuple[Tensor, Tensor, _C.DurationRnntLossOptions]:
    """inputs of the operator: costs (N,), or what reduction makes of them; the reserve; the options. logits are
    (N, T, U + 1, C), targets (N, U)."""
    logits, duration_logits, targets, logit_lengths, target_lengths, durations, type = inputs[:7]
    options = _options(logits, duration_logits, durations, *inputs[6:-1])
    result, reserve = _run_forward(
        _CALLS,
        _NAMES[type],
        options,
        logits,
        _addresses(logits, duration_logits, targets, logit_lengths, target_lengths, options),
        logits.shape[0],
        inputs[-1],
        reduction,
        reserve,
    )
    return result, reserve, options


def _loss(logits: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    reserve = _reserve(_reserve_size(logits, rest[4]) if rest[-1] else 0, logits)
    return partial(_forward, reserve=reserve)(logits, *rest)[:2]


def _backward(
    gradient: Tensor,
    logits: Tensor,
    duration_logits: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    reserve: Tensor,
    options: _C.DurationRnntLossOptions,
    reduction: Reduction | None,
) -> tuple[Tensor, Tensor]:
    gradients, duration_gradients = _loss_backward_fake(gradient, logits, duration_logits)
    addresses = _addresses(logits, duration_logits, targets, logit_lengths, target_lengths, options)
    addresses += (
        gradients.data_ptr(),
        _duration_pointer(gradients, None if duration_logits is None else duration_gradients, options),
    )
    _run_backward(_CALLS, _NAMES[options.type], options, logits, addresses, gradient, reserve, reduction)
    return gradients, duration_gradients


def _loss_backward(
    cost_gradients: Tensor,
    logits: Tensor,
    duration_logits: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    reserve: Tensor,
    durations: list[int],
    *chosen: Any,
) -> tuple[Tensor, Tensor]:
    options = _options(logits, duration_logits, durations, *chosen)
    arrays = logits, duration_logits, targets, logit_lengths, target_lengths
    return _backward(cost_gradients, *arrays, reserve, options, None)


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


def _setup(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
    ctx.numbers = inputs[5:]
    ctx.save_for_backward(*inputs[:5], outputs[1])


def _gradients(ctx: Any, cost_gradients: Tensor, _: Tensor | None = None) -> tuple[Tensor | None, ...]:
    *numbers, keep = ctx.numbers
    if not keep:
        raise RuntimeError("prnn::duration_rnnt_loss was called with keep=False; its gradient needs keep=True")
    tensors = ctx.saved_tensors
    gradients, duration_gradients = duration_rnnt_loss_backward(cost_gradients, *tensors, *numbers)
    return gradients, None if tensors[1] is None else duration_gradients, *(None,) * (3 + len(ctx.numbers))


differentiate(duration_rnnt_loss, _setup, _gradients, duration_rnnt_loss_backward)
call_duration_rnnt_loss = directly(
    duration_rnnt_loss, _setup, _gradients, _forward, lambda *arguments: _backward(*arguments)[0]
)

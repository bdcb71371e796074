"""RNN-T as torch operators: schema, fake kernel, autograd; see _loss.py."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._handles import DTYPES, device_of, handle
from prnn._ops._loss import (
    _SHARED_NAMES,
    Options,
    _blocks,
    _bound,
    _Calls,
    _Chosen,
    _costs_cpu,
    _gradients_for,
    _Needs,
    _new_costs,
    _pointer,
    _reserve,
    _run,
    _run_backward,
    _run_forward,
    _space,
    _workspace,
)
from prnn._ops._loss_operator import differentiate_loss, directly
from prnn._ops._operator import operator
from prnn._ops._reduction import Reduction

_RNNT_NAMES = {
    **_SHARED_NAMES,
    "frameLengths": "logit_lengths",
    "rangeBegins": "ranges",
    "rows": "the number of rows of logits",
}


_CALLS = _Calls("RNN-T loss", _C.rnnt_loss_sizes, _C.rnnt_loss_forward, _C.rnnt_loss_backward)
rnnt_options = _Chosen(_C.RNNT_LOSS_FIELDS, "input")


def _options(
    activations: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    range_begins: Tensor | None,
    max_frames: int,
    max_targets: int,
    *chosen: Any,
) -> Options:
    """The layout follows from the shapes: (rows, V) is packed, and ranges make (N, T, R, V) pruned."""
    shape = activations.shape
    packed, padded = len(shape) == 2, targets.dim() == 2
    elements = targets.numel()
    return (
        DTYPES[activations.dtype],
        _C.RNNT_PACKED if packed else _C.RNNT_PADDED if range_begins is None else _C.RNNT_PRUNED,
        _C.TARGETS_PADDED if padded else _C.TARGETS_CONCATENATED,
        logit_lengths.shape[0],
        _bound(logit_lengths, max_frames, shape[0]) if packed else shape[1],
        targets.shape[1] if padded else _bound(target_lengths, max_targets, elements),
        elements,
        shape[0],  # read if packed
        0 if packed else shape[2],  # read if pruned
        shape[-1],
        *chosen,
    )


def _addresses(tensors: Sequence[Any]) -> tuple[int, ...]:
    activations, targets, logit_lengths, target_lengths, range_begins = tensors
    return (
        activations.data_ptr(),
        targets.data_ptr(),
        logit_lengths.data_ptr(),
        target_lengths.data_ptr(),
        _pointer(range_begins),
    )


def _rnnt_reserve_size(activations: Tensor, batch: int, input: int) -> int:
    rows = activations.numel() // activations.shape[-1]
    per_row = 4 if input == _C.LOSS_LOGITS else 2
    return _blocks(max(4, activations.element_size()) * rows * per_row + 24 * batch + 256)


def _rnnt_forward(
    tensors: tuple[Any, ...], rest: tuple[Any, ...], reduction: Reduction | None, reserve: Tensor | None = None
) -> tuple[Tensor, Tensor, _Needs]:
    """Computes costs (N,), or their reduction, and the reserve, from the operator's arguments. activations are
    (N, T, U + 1, V), (rows, V), or with range_begins (N, T) (N, T, R, V)."""
    options, addresses, batch = _options(*tensors, *rest[:-1]), _addresses(tensors), tensors[2].shape[0]
    return _run_forward(_CALLS, _RNNT_NAMES, options, tensors[0], addresses, batch, rest[-1], reduction, reserve)


def rnnt_costs_cpu(reduction: Reduction | None, tensors: tuple[Any, ...], rest: tuple[Any, ...]) -> Tensor:
    """As call_rnnt_loss without ranges, where a kernel may be called, the data are on the CPU and no gradient is
    wanted. Targets and lengths may be int64."""
    options, batch = _options(*tensors, *rest[:-1]), tensors[2].shape[0]
    return _costs_cpu(_C.rnnt_costs_cpu, _RNNT_NAMES, options, tensors[:4], batch, reduction)


def _rnnt_loss(*inputs: Any) -> tuple[Tensor, Tensor]:
    return _rnnt_forward(inputs[:5], inputs[5:], None, _rnnt_loss_fake(*inputs)[1])[:2]


def _rnnt_backward(gradient: Tensor, tensors: tuple[Any, ...], needs: _Needs, inplace: bool = False) -> Tensor:
    *arrays, reserve = tensors
    activations = arrays[0]
    gradients = _gradients_for(activations, inplace)
    addresses = *_addresses(arrays), gradients.data_ptr()
    _run_backward(_CALLS, _RNNT_NAMES, needs, activations, addresses, gradient, reserve)
    return gradients


def _rnnt_loss_backward(cost_gradients: Tensor, *arguments: Any) -> Tensor:
    options = _options(*arguments[:5], *arguments[6:])
    return _rnnt_backward(cost_gradients, arguments[:6], (options, None))


def _rnnt_loss_fake(*inputs: Any) -> tuple[Tensor, Tensor]:
    activations, logit_lengths, input, keep = inputs[0], inputs[2], inputs[7], inputs[-1]
    batch = logit_lengths.shape[0]
    costs = _new_costs(activations, batch)
    return costs, _reserve(_rnnt_reserve_size(activations, batch, input) if keep else 0, activations)


def _rnnt_loss_backward_fake(cost_gradients: Tensor, activations: Tensor, *_: Any) -> Tensor:
    return _gradients_for(activations, False)


_RNNT = "Tensor activations, Tensor targets, Tensor logit_lengths, Tensor target_lengths"
_RNNT_NUMBERS = f"int max_frames, int max_targets, {rnnt_options.schema}"
rnnt_loss = operator(
    f"rnnt_loss({_RNNT}, Tensor? range_begins, {_RNNT_NUMBERS}, bool keep) -> (Tensor costs, Tensor reserve)",
    _rnnt_loss,
    _rnnt_loss_fake,
)
rnnt_loss_backward = operator(
    f"rnnt_loss_backward(Tensor cost_gradients, {_RNNT}, Tensor? range_begins, Tensor reserve, {_RNNT_NUMBERS}) -> "
    "Tensor",
    _rnnt_loss_backward,
    _rnnt_loss_backward_fake,
)


_rnnt_gradients = differentiate_loss(rnnt_loss, rnnt_loss_backward, 5)
call_rnnt_loss, call_rnnt_loss_inplace = (
    directly(rnnt_loss, _rnnt_gradients, _rnnt_forward, backward)
    for backward in (_rnnt_backward, partial(_rnnt_backward, inplace=True))
)


_ALIGN_NAMES = _RNNT_NAMES | {"frameLengths": "input_lengths"}


def _rnnt_align(
    activations: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor, *chosen: Any
) -> tuple[Tensor, Tensor]:
    """activations as rnnt_loss, not pruned; targets (N, U): scores (N,), frames (N, U)."""
    arrays = activations, targets, logit_lengths, target_lengths, None
    options = _options(*arrays, -1, -1, *chosen)
    scores = _new_costs(activations, logit_lengths.shape[0])
    frames = torch.empty_like(targets)
    with device_of(activations):
        library = handle(activations.device)
        size = _run(_C.rnnt_align_workspace_size, _ALIGN_NAMES, library, options)
        workspace = _workspace(size, activations)
        pointers = map(_pointer, (*arrays, scores, frames))
        _run(_C.rnnt_align, _ALIGN_NAMES, library, options, *pointers, *_space(workspace))
    return scores, frames


def _rnnt_align_fake(activations: Tensor, targets: Tensor, logit_lengths: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    scores = _new_costs(activations, logit_lengths.shape[0])
    return scores, torch.empty_like(targets)


rnnt_align = operator(
    f"rnnt_align({_RNNT}, {rnnt_options.schema}) -> (Tensor scores, Tensor frames)",
    _rnnt_align,
    _rnnt_align_fake,
)

"""CTC as torch operators: schema, fake kernel, autograd; see _loss.py."""

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

_CTC_NAMES = {**_SHARED_NAMES, "frameLengths": "input_lengths"}


_CALLS = _Calls("CTC loss", _C.ctc_loss_sizes, _C.ctc_loss_forward, _C.ctc_loss_backward)
ctc_options = _Chosen(_C.CTC_LOSS_FIELDS, "input")


def _options(activations: Tensor, targets: Tensor, target_lengths: Tensor, max_targets: int, *chosen: Any) -> Options:
    frames, batch, classes = activations.shape
    time_stride, batch_stride, _ = activations.stride()
    width, padded = targets.shape[-1], targets.dim() == 2
    elements = targets.numel() if padded else width
    return (
        DTYPES[activations.dtype],
        _C.TARGETS_PADDED if padded else _C.TARGETS_CONCATENATED,
        batch,
        frames,
        width if padded else _bound(target_lengths, max_targets, elements),
        elements,
        classes,
        time_stride,
        batch_stride,
        *chosen,
    )


def _ctc_reserve_size(activations: Tensor, targets: Tensor, max_targets: int) -> int:
    """At least what libprnn wants on any device, from shapes alone, which a compiler may only know as symbols."""
    frames, batch, _ = activations.shape
    longest = targets.shape[-1] if targets.dim() == 2 or max_targets < 0 else max_targets
    width = 3 * batch + targets.numel() if activations.device.type == "cpu" else batch * (3 + longest)
    per_sequence = 5 * (targets.shape[-1] + 1) + 24
    return _blocks(max(4, activations.element_size()) * frames * width + batch * per_sequence + 256)


def _ctc_forward(
    tensors: tuple[Tensor, ...], rest: tuple[Any, ...], reduction: Reduction | None, reserve: Tensor | None = None
) -> tuple[Tensor, Tensor, _Needs]:
    """Computes costs (N,), or their reduction, and the reserve, from the operator's arguments. activations are (T, N,
    V), targets (N, L) or (sum of lengths,)."""
    activations, targets, input_lengths, target_lengths = tensors
    options = _options(activations, targets, target_lengths, *rest[:-1])
    addresses = activations.data_ptr(), targets.data_ptr(), input_lengths.data_ptr(), target_lengths.data_ptr()
    batch = activations.shape[1]
    return _run_forward(_CALLS, _CTC_NAMES, options, activations, addresses, batch, rest[-1], reduction, reserve)


def ctc_costs_cpu(reduction: Reduction | None, tensors: tuple[Tensor, ...], rest: tuple[Any, ...]) -> Tensor:
    """As call_ctc_loss, where a kernel may be called, the data are on the CPU and no gradient is wanted. Targets and
    lengths may be int64."""
    activations, targets, _, target_lengths = tensors
    options = _options(activations, targets, target_lengths, *rest[:-1])
    return _costs_cpu(_C.ctc_costs_cpu, _CTC_NAMES, options, tensors, activations.shape[1], reduction)


def _ctc_loss(*inputs: Any) -> tuple[Tensor, Tensor]:
    return _ctc_forward(inputs[:4], inputs[4:], None, _ctc_loss_fake(*inputs)[1])[:2]


def _ctc_backward(gradient: Tensor, tensors: tuple[Tensor, ...], needs: _Needs, inplace: bool = False) -> Tensor:
    activations, targets, input_lengths, target_lengths, reserve = tensors
    gradients = _gradients_for(activations, inplace)
    addresses = (
        activations.data_ptr(),
        targets.data_ptr(),
        input_lengths.data_ptr(),
        target_lengths.data_ptr(),
        gradients.data_ptr(),
    )
    _run_backward(_CALLS, _CTC_NAMES, needs, activations, addresses, gradient, reserve)
    return gradients


def _ctc_loss_backward(cost_gradients: Tensor, *arguments: Any) -> Tensor:
    tensors = arguments[:5]
    options = _options(tensors[0], tensors[1], tensors[3], *arguments[5:])
    return _ctc_backward(cost_gradients, tensors, (options, None))


def _ctc_loss_fake(activations: Tensor, targets: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    costs = _new_costs(activations, activations.shape[1])
    max_targets, keep = rest[2], rest[-1]
    return costs, _reserve(_ctc_reserve_size(activations, targets, max_targets) if keep else 0, activations)


def _ctc_loss_backward_fake(cost_gradients: Tensor, activations: Tensor, *_: Any) -> Tensor:
    return _gradients_for(activations, False)


_CTC = "Tensor activations, Tensor targets, Tensor input_lengths, Tensor target_lengths"
ctc_loss = operator(
    f"ctc_loss({_CTC}, int max_targets, {ctc_options.schema}, bool keep) -> (Tensor costs, Tensor reserve)",
    _ctc_loss,
    _ctc_loss_fake,
)
ctc_loss_backward = operator(
    f"ctc_loss_backward(Tensor cost_gradients, {_CTC}, Tensor reserve, int max_targets, {ctc_options.schema}) -> "
    "Tensor",
    _ctc_loss_backward,
    _ctc_loss_backward_fake,
)


_ctc_gradients = differentiate_loss(ctc_loss, ctc_loss_backward, 4)
call_ctc_loss, call_ctc_loss_inplace = (
    directly(ctc_loss, _ctc_gradients, _ctc_forward, backward)
    for backward in (_ctc_backward, partial(_ctc_backward, inplace=True))
)


def _ctc_align(
    activations: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, *chosen: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """activations (T, N, V), targets (N, L): scores (N,), begins and ends (N, L)."""
    options = _options(activations, targets, target_lengths, -1, *chosen)
    scores = _new_costs(activations, activations.shape[1])
    begins, ends = torch.empty_like(targets), torch.empty_like(targets)
    arrays = activations, targets, input_lengths, target_lengths, scores, begins, ends
    with device_of(activations):
        library = handle(activations.device)
        size = _run(_C.ctc_align_workspace_size, _CTC_NAMES, library, options)
        workspace = _workspace(size, activations)
        _run(_C.ctc_align, _CTC_NAMES, library, options, *map(_pointer, arrays), *_space(workspace))
    return scores, begins, ends


def _ctc_align_fake(activations: Tensor, targets: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    scores = _new_costs(activations, activations.shape[1])
    return scores, torch.empty_like(targets), torch.empty_like(targets)


ctc_align = operator(
    f"ctc_align({_CTC}, {ctc_options.schema}) -> (Tensor scores, Tensor begins, Tensor ends)",
    _ctc_align,
    _ctc_align_fake,
)

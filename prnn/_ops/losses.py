"""The losses as torch operators: schema, fake kernel, autograd. prnn/losses/ checks arguments and calls these.

Every operator takes tensors that prnn/losses/ has brought into shape: activations whose last dimension is contiguous,
int32 symbols and lengths, all on one device. Values are checked by libprnn. `reserve` is what a forward operator keeps
for its backward one, as bytes; it is empty where `keep` is False. `max_frames` and `max_targets` bound the lengths
where no shape does, in packed activations and concatenated targets; -1: look at the lengths where that costs nothing,
and else take as many as there are in all.

call_ctc_loss and call_rnnt_loss take a reduction and what the operators ctc_loss and rnnt_loss take, and return the
reduced costs, with less to do on the way there; those with _inplace write the gradients where the activations are, if
nobody traces or transforms the call.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._handles import DTYPES, device_of, handle
from prnn._ops._operator import differentiate, directly, operator
from prnn._ops._reduction import Reduction


def _workspace(size: int, like: Tensor) -> Tensor:
    return like.new_empty(size, dtype=torch.uint8)


def _reserve(size: int, like: Tensor) -> Tensor:
    # An operator's outputs must be reproducible in all their bytes, and padding is not written.
    return like.new_zeros(size, dtype=torch.uint8)


_SMALL = 2**20  # bytes


def _forward_space(
    activations: Tensor,
    batch: int,
    sizes: tuple[int, int],
    keep: bool,
    reduction: Reduction | None,
    reserve: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, tuple[int | float, ...]]:
    """The result of a forward call, the reserve space (`reserve`, if given), the workspace, and what the binding takes
    from the costs on. sizes: of workspace and reserve space. With a reduction there is room behind the reserve space
    for the costs, and later for their gradients."""
    dtype = torch.float64 if activations.dtype == torch.float64 else torch.float32
    size, reserve_size = sizes[0], sizes[1] if keep else 0
    room = 0 if reduction is None else 8 * batch
    if reserve is None and (not keep or reserve_size + size <= _SMALL):  # one piece of memory, for each takes time
        workspace = reserve = activations.new_empty(reserve_size + size + room, dtype=torch.uint8)
        begin = reserve.data_ptr()
        workspace_at = begin + reserve_size
    else:
        workspace = activations.new_empty(size, dtype=torch.uint8)
        workspace_at = workspace.data_ptr()
        if reserve is None:
            reserve = activations.new_empty(reserve_size + room, dtype=torch.uint8)
        begin = reserve.data_ptr()
    length = reserve.numel()
    spaces = workspace_at, size, begin if keep else 0, length
    result = activations.new_empty(batch if reduction is None else (), dtype=dtype)
    if reduction is None or reduction.changes_nothing():
        return result, reserve, workspace, (result.data_ptr(), *spaces, 1.0, 0, 0)
    return result, reserve, workspace, (begin + length - room, *spaces, *reduction.weights(), result.data_ptr())


def _backward_space(
    gradient: Tensor, reserve: Tensor, reduction: Reduction | None
) -> tuple[Tensor, tuple[int | float, ...]]:
    """What the binding takes from the gradients of the costs on, and the tensor that has to stay while it is used.
    gradient: of the costs, or of the loss if there is a reduction."""
    begin, length = reserve.data_ptr(), reserve.numel()
    if reduction is None or reduction.changes_nothing():
        gradient = gradient.contiguous()
        return gradient, (gradient.data_ptr(), begin, length, 1.0, 0, 0)
    costs_at = begin + length - 8 * reduction.batch
    return gradient, (costs_at, begin, length, *reduction.weights(), gradient.data_ptr())


def _bound(lengths: Tensor, given: int, total: int) -> int:
    """No less than the largest valid length, of at most `total`."""
    if given >= 0:
        return min(given, total)
    return max(0, min(total, int(lengths.max()))) if lengths.device.type == "cpu" else total


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _space(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel()


def _new_costs(activations: Tensor, batch: int) -> Tensor:
    dtype = torch.float64 if activations.dtype == torch.float64 else torch.float32
    return activations.new_empty(batch, dtype=dtype)


def _blocks(size: int) -> int:
    return (size + 255) // 256 * 256


_C_NAMES = re.compile(
    r"\b(frameLengths|targetLengths|maxFrames|maxTargets|targetElements|rangeBegins|fastEmitLambda|delayPenalty)\b"
)


def _run(function: Callable[..., Any], names: dict[str, str], *arguments: Any) -> Any:
    """Calls a function of libprnn; what it says of bad arguments names them as Python does."""
    try:
        return function(*arguments)
    except ValueError as error:
        raise ValueError(_C_NAMES.sub(lambda found: names[found[0]], str(error))) from None


def _gradients_for(activations: Tensor, inplace: bool) -> Tensor:
    """Where gradients go: the strides of the activations, or the activations themselves. Whoever still needs those
    for another derivative is told by torch, for they count as modified."""
    if not inplace:
        if activations.is_contiguous():
            return torch.empty_like(activations)
        return torch.empty_strided(
            activations.shape, activations.stride(), dtype=activations.dtype, device=activations.device
        )
    torch.autograd.graph.increment_version(activations)
    return activations.detach()


# ---- CTC ----

_SHARED_NAMES = {
    "targetLengths": "target_lengths",
    "maxFrames": "max_frames",
    "maxTargets": "max_target_length",
    "targetElements": "the number of targets",
}
_CTC_NAMES = {**_SHARED_NAMES, "frameLengths": "input_lengths"}


def _ctc_options(
    activations: Tensor,
    targets: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_logits: bool,
    max_targets: int,
    zero_infinity: bool = False,
) -> _C.CtcLossOptions:
    frames, batch, classes = activations.shape
    time_stride, batch_stride, _ = activations.stride()
    padded = targets.dim() == 2
    elements = targets.numel()
    return _C.CtcLossOptions(
        DTYPES[activations.dtype],
        _C.LOSS_LOGITS if from_logits else _C.LOSS_LOG_PROBS,
        _C.TARGETS_PADDED if padded else _C.TARGETS_CONCATENATED,
        batch,
        frames,
        targets.shape[1] if padded else _bound(target_lengths, max_targets, elements),
        elements,
        classes,
        blank,
        time_stride,
        batch_stride,
        zero_infinity,
    )


def _ctc_reserve_size(activations: Tensor, targets: Tensor, max_targets: int) -> int:
    """At least what libprnn wants on any device, from shapes alone, which a compiler may only know as symbols."""
    frames, batch, _ = activations.shape
    longest = targets.shape[-1] if targets.dim() == 2 or max_targets < 0 else max_targets
    width = 3 * batch + targets.numel() if activations.device.type == "cpu" else batch * (3 + longest)
    per_sequence = 5 * (targets.shape[-1] + 1) + 24
    return _blocks(max(4, activations.element_size()) * frames * width + batch * per_sequence + 256)


def _ctc_forward(
    activations: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_logits: bool,
    max_targets: int,
    zero_infinity: bool,
    keep: bool,
    reduction: Reduction | None = None,
    reserve: Tensor | None = None,
) -> tuple[Tensor, Tensor, _C.CtcLossOptions]:
    """activations (T, N, V), targets (N, L) or (sum of lengths,): costs (N,), or what reduction makes of them; the
    reserve; the options."""
    options = _ctc_options(activations, targets, target_lengths, blank, from_logits, max_targets, zero_infinity)
    with device_of(activations):
        library = handle(activations.device)
        sizes = _run(_C.ctc_loss_sizes, _CTC_NAMES, library, options)
        result, reserve, _, space = _forward_space(activations, activations.shape[1], sizes, keep, reduction, reserve)
        _run(
            _C.ctc_loss_forward,
            _CTC_NAMES,
            library,
            options,
            activations.data_ptr(),
            targets.data_ptr(),
            input_lengths.data_ptr(),
            target_lengths.data_ptr(),
            *space,
        )
    return result, reserve, options


def _ctc_loss(activations: Tensor, targets: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, max_targets, _, keep = rest
    reserve = _reserve(_ctc_reserve_size(activations, targets, max_targets) if keep else 0, activations)
    return partial(_ctc_forward, reserve=reserve)(activations, targets, *rest)[:2]


def _ctc_backward(
    gradient: Tensor,
    activations: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    reserve: Tensor,
    options: _C.CtcLossOptions,
    reduction: Reduction | None,
    inplace: bool = False,
) -> Tensor:
    gradients = _gradients_for(activations, inplace)
    with device_of(activations):
        gradient, space = _backward_space(gradient, reserve, reduction)
        _run(
            _C.ctc_loss_backward,
            _CTC_NAMES,
            handle(activations.device),
            options,
            activations.data_ptr(),
            targets.data_ptr(),
            input_lengths.data_ptr(),
            target_lengths.data_ptr(),
            gradients.data_ptr(),
            *space,
        )
    return gradients


def _ctc_loss_backward(
    cost_gradients: Tensor,
    activations: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    reserve: Tensor,
    blank: int,
    from_logits: bool,
    max_targets: int,
) -> Tensor:
    options = _ctc_options(activations, targets, target_lengths, blank, from_logits, max_targets)
    arrays = activations, targets, input_lengths, target_lengths
    return _ctc_backward(cost_gradients, *arrays, reserve, options, None)


def _ctc_loss_fake(activations: Tensor, targets: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    costs = _new_costs(activations, activations.shape[1])
    max_targets, _, keep = rest[-3:]
    return costs, _reserve(_ctc_reserve_size(activations, targets, max_targets) if keep else 0, activations)


def _ctc_loss_backward_fake(cost_gradients: Tensor, activations: Tensor, *_: Any) -> Tensor:
    return _gradients_for(activations, False)


_CTC = "Tensor activations, Tensor targets, Tensor input_lengths, Tensor target_lengths"
ctc_loss = operator(
    f"ctc_loss({_CTC}, int blank, bool from_logits, int max_targets, bool zero_infinity, bool keep) -> "
    "(Tensor costs, Tensor reserve)",
    _ctc_loss,
    _ctc_loss_fake,
)
ctc_loss_backward = operator(
    f"ctc_loss_backward(Tensor cost_gradients, {_CTC}, Tensor reserve, int blank, bool from_logits, int max_targets) "
    "-> Tensor",
    _ctc_loss_backward,
    _ctc_loss_backward_fake,
)


def _ctc_setup(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
    ctx.numbers = inputs[4:]
    ctx.save_for_backward(*inputs[:4], outputs[1])


def _ctc_gradients(ctx: Any, cost_gradients: Tensor, _: Tensor | None = None) -> tuple[Tensor | None, ...]:
    *options, _, keep = ctx.numbers
    if not keep:
        raise RuntimeError("prnn::ctc_loss was called with keep=False; its gradient needs keep=True")
    return ctc_loss_backward(cost_gradients, *ctx.saved_tensors, *options), *(None,) * 8


differentiate(ctc_loss, _ctc_setup, _ctc_gradients, ctc_loss_backward)
call_ctc_loss, call_ctc_loss_inplace = (
    directly(ctc_loss, _ctc_setup, _ctc_gradients, _ctc_forward, backward)
    for backward in (_ctc_backward, partial(_ctc_backward, inplace=True))
)


def _ctc_align(
    activations: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_logits: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """activations (T, N, V), targets (N, L): scores (N,), begins and ends (N, L)."""
    options = _ctc_options(activations, targets, target_lengths, blank, from_logits, -1)
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
    f"ctc_align({_CTC}, int blank, bool from_logits) -> (Tensor scores, Tensor begins, Tensor ends)",
    _ctc_align,
    _ctc_align_fake,
)


# ---- RNN-T ----

_RNNT_NAMES = {
    **_SHARED_NAMES,
    "frameLengths": "logit_lengths",
    "rangeBegins": "ranges",
    "fastEmitLambda": "fastemit_lambda",
    "delayPenalty": "delay_penalty",
}


def _rnnt_options(
    activations: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    range_begins: Tensor | None,
    input: int,
    rnnt_type: int,
    blank: int,
    max_frames: int,
    max_targets: int,
    fastemit_lambda: float = 0.0,
    clamp: float = 0.0,
    delay_penalty: float = 0.0,
    zero_infinity: bool = False,
) -> _C.RnntLossOptions:
    """The layout follows from the shapes: (rows, V) is packed, and ranges make (N, T, R, V) pruned."""
    shape = activations.shape
    packed, padded = len(shape) == 2, targets.dim() == 2
    elements = targets.numel()
    return _C.RnntLossOptions(
        DTYPES[activations.dtype],
        input,
        _C.RNNT_PACKED if packed else _C.RNNT_PADDED if range_begins is None else _C.RNNT_PRUNED,
        _C.TARGETS_PADDED if padded else _C.TARGETS_CONCATENATED,
        rnnt_type,
        logit_lengths.shape[0],
        _bound(logit_lengths, max_frames, shape[0]) if packed else shape[1],
        targets.shape[1] if padded else _bound(target_lengths, max_targets, elements),
        elements,
        shape[0],  # read if packed
        0 if packed else shape[2],  # read if pruned
        shape[-1],
        blank,
        zero_infinity,
        fastemit_lambda,
        clamp,
        delay_penalty,
    )


def _rnnt_reserve_size(activations: Tensor, batch: int, input: int) -> int:
    rows = activations.numel() // activations.shape[-1]
    per_row = 4 if input == _C.LOSS_LOGITS else 2
    return _blocks(max(4, activations.element_size()) * rows * per_row + 24 * batch + 256)


def _rnnt_forward(
    activations: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    range_begins: Tensor | None,
    input: int,
    rnnt_type: int,
    blank: int,
    max_frames: int,
    max_targets: int,
    fastemit_lambda: float,
    clamp: float,
    delay_penalty: float,
    zero_infinity: bool,
    keep: bool,
    reduction: Reduction | None = None,
    reserve: Tensor | None = None,
) -> tuple[Tensor, Tensor, _C.RnntLossOptions]:
    """activations (N, T, U + 1, V), (rows, V), or with range_begins (N, T) (N, T, R, V): costs (N,), or what reduction
    makes of them; the reserve; the options."""
    options = _rnnt_options(
        activations,
        targets,
        logit_lengths,
        target_lengths,
        range_begins,
        input,
        rnnt_type,
        blank,
        max_frames,
        max_targets,
        fastemit_lambda,
        clamp,
        delay_penalty,
        zero_infinity,
    )
    with device_of(activations):
        library = handle(activations.device)
        sizes = _run(_C.rnnt_loss_sizes, _RNNT_NAMES, library, options)
        result, reserve, _, space = _forward_space(activations, logit_lengths.shape[0], sizes, keep, reduction, reserve)
        _run(
            _C.rnnt_loss_forward,
            _RNNT_NAMES,
            library,
            options,
            activations.data_ptr(),
            targets.data_ptr(),
            logit_lengths.data_ptr(),
            target_lengths.data_ptr(),
            _pointer(range_begins),
            *space,
        )
    return result, reserve, options


def _rnnt_loss(activations: Tensor, targets: Tensor, logit_lengths: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    size = _rnnt_reserve_size(activations, logit_lengths.shape[0], rest[2]) if rest[-1] else 0
    forward = partial(_rnnt_forward, reserve=_reserve(size, activations))
    return forward(activations, targets, logit_lengths, *rest)[:2]


def _rnnt_backward(
    gradient: Tensor,
    activations: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    range_begins: Tensor | None,
    reserve: Tensor,
    options: _C.RnntLossOptions,
    reduction: Reduction | None,
    inplace: bool = False,
) -> Tensor:
    gradients = _gradients_for(activations, inplace)
    with device_of(activations):
        gradient, space = _backward_space(gradient, reserve, reduction)
        _run(
            _C.rnnt_loss_backward,
            _RNNT_NAMES,
            handle(activations.device),
            options,
            activations.data_ptr(),
            targets.data_ptr(),
            logit_lengths.data_ptr(),
            target_lengths.data_ptr(),
            _pointer(range_begins),
            gradients.data_ptr(),
            *space,
        )
    return gradients


def _rnnt_loss_backward(
    cost_gradients: Tensor,
    activations: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    range_begins: Tensor | None,
    reserve: Tensor,
    *numbers: Any,
) -> Tensor:
    arrays = activations, targets, logit_lengths, target_lengths, range_begins
    return _rnnt_backward(cost_gradients, *arrays, reserve, _rnnt_options(*arrays, *numbers), None)


def _rnnt_loss_fake(
    activations: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    range_begins: Tensor | None,
    input: int,
    *rest: Any,
) -> tuple[Tensor, Tensor]:
    batch = logit_lengths.shape[0]
    costs = _new_costs(activations, batch)
    return costs, _reserve(_rnnt_reserve_size(activations, batch, input) if rest[-1] else 0, activations)


def _rnnt_loss_backward_fake(cost_gradients: Tensor, activations: Tensor, *_: Any) -> Tensor:
    return _gradients_for(activations, False)


_RNNT = "Tensor activations, Tensor targets, Tensor logit_lengths, Tensor target_lengths"
_RNNT_NUMBERS = (
    "int input, int rnnt_type, int blank, int max_frames, int max_targets, float fastemit_lambda, float clamp"
)
rnnt_loss = operator(
    f"rnnt_loss({_RNNT}, Tensor? range_begins, {_RNNT_NUMBERS}, float delay_penalty, bool zero_infinity, bool keep) -> "
    "(Tensor costs, Tensor reserve)",
    _rnnt_loss,
    _rnnt_loss_fake,
)
rnnt_loss_backward = operator(
    f"rnnt_loss_backward(Tensor cost_gradients, {_RNNT}, Tensor? range_begins, Tensor reserve, {_RNNT_NUMBERS}) -> "
    "Tensor",
    _rnnt_loss_backward,
    _rnnt_loss_backward_fake,
)


def _rnnt_setup(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
    ctx.numbers = inputs[5:]
    ctx.save_for_backward(*inputs[:5], outputs[1])


def _rnnt_gradients(ctx: Any, cost_gradients: Tensor, _: Tensor | None = None) -> tuple[Tensor | None, ...]:
    *options, _, _, keep = ctx.numbers
    if not keep:
        raise RuntimeError("prnn::rnnt_loss was called with keep=False; its gradient needs keep=True")
    return rnnt_loss_backward(cost_gradients, *ctx.saved_tensors, *options), *(None,) * 14


differentiate(rnnt_loss, _rnnt_setup, _rnnt_gradients, rnnt_loss_backward)
call_rnnt_loss, call_rnnt_loss_inplace = (
    directly(rnnt_loss, _rnnt_setup, _rnnt_gradients, _rnnt_forward, backward)
    for backward in (_rnnt_backward, partial(_rnnt_backward, inplace=True))
)


def _rnnt_align(
    activations: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    input: int,
    rnnt_type: int,
    blank: int,
    delay_penalty: float,
) -> tuple[Tensor, Tensor]:
    """activations as rnnt_loss, not pruned; targets (N, U): scores (N,), frames (N, U)."""
    arrays = activations, targets, logit_lengths, target_lengths, None
    options = _rnnt_options(*arrays, input, rnnt_type, blank, -1, -1, delay_penalty=delay_penalty)
    scores = _new_costs(activations, logit_lengths.shape[0])
    frames = torch.empty_like(targets)
    with device_of(activations):
        library = handle(activations.device)
        size = _run(_C.rnnt_align_workspace_size, _RNNT_NAMES | _CTC_NAMES, library, options)
        workspace = _workspace(size, activations)
        pointers = map(_pointer, (*arrays, scores, frames))
        _run(_C.rnnt_align, _RNNT_NAMES | _CTC_NAMES, library, options, *pointers, *_space(workspace))
    return scores, frames


def _rnnt_align_fake(activations: Tensor, targets: Tensor, logit_lengths: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    scores = _new_costs(activations, logit_lengths.shape[0])
    return scores, torch.empty_like(targets)


rnnt_align = operator(
    f"rnnt_align({_RNNT}, int input, int rnnt_type, int blank, float delay_penalty) -> (Tensor scores, Tensor frames)",
    _rnnt_align,
    _rnnt_align_fake,
)


# ---- Pruned RNN-T ----


def _mutual_information_options(px: Tensor, py: Tensor) -> _C.MutualInformationOptions:
    options = _C.MutualInformationOptions()
    options.dtype = DTYPES[py.dtype]
    options.batch, options.symbols, options.frames = px.shape[0], px.shape[1], py.shape[2]
    options.type = _C.RNNT_REGULAR if px.shape[2] > py.shape[2] else _C.RNNT_MODIFIED
    return options


def _mutual_information(
    px: Tensor, py: Tensor, boundary: Tensor | None, want_gradients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """px (N, S, T + 1) or (N, S, T), py (N, S + 1, T): scores (N,), and px's and py's gradients, or empty tensors."""
    options = _mutual_information_options(px, py)
    scores = px.new_empty(px.shape[0])
    px_gradients = px.new_empty(px.shape if want_gradients else 0)
    py_gradients = py.new_empty(py.shape if want_gradients else 0)
    with device_of(px):
        library = handle(px.device)
        workspace = _workspace(_C.mutual_information_workspace_size(library, options), px)
        _C.mutual_information(
            library,
            options,
            px.data_ptr(),
            py.data_ptr(),
            _pointer(boundary),
            scores.data_ptr(),
            px_gradients.data_ptr(),
            py_gradients.data_ptr(),
            workspace.data_ptr(),
            workspace.numel(),
        )
    return scores, px_gradients, py_gradients


def _mutual_information_fake(
    px: Tensor, py: Tensor, boundary: Tensor | None, want_gradients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    scores = px.new_empty(px.shape[0])
    return scores, px.new_empty(px.shape if want_gradients else 0), py.new_empty(py.shape if want_gradients else 0)


def _mutual_information_backward(
    score_gradients: Tensor, px: Tensor, py: Tensor, px_gradients: Tensor, py_gradients: Tensor
) -> tuple[Tensor, Tensor]:
    """px and py are there so that autograd knows the results to depend on them."""
    factors = score_gradients.reshape(-1, 1, 1)
    return factors * px_gradients, factors * py_gradients


mutual_information = operator(
    "mutual_information(Tensor px, Tensor py, Tensor? boundary, bool want_gradients) -> "
    "(Tensor scores, Tensor px_gradients, Tensor py_gradients)",
    _mutual_information,
    _mutual_information_fake,
)
mutual_information_backward = operator(
    "mutual_information_backward(Tensor score_gradients, Tensor px, Tensor py, Tensor px_gradients, "
    "Tensor py_gradients) -> (Tensor, Tensor)",
    _mutual_information_backward,
    _mutual_information_backward,
)


def _mutual_information_setup(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.want_gradients = inputs[3]
    ctx.mark_non_differentiable(*outputs[1:])
    ctx.save_for_backward(*inputs[:2], *outputs[1:])


def _mutual_information_gradients(ctx: Any, score_gradients: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    if not ctx.want_gradients:
        raise RuntimeError("prnn::mutual_information was called with want_gradients=False")
    return *mutual_information_backward(score_gradients, *ctx.saved_tensors), None, None


differentiate(mutual_information, _mutual_information_setup, _mutual_information_gradients, mutual_information_backward)


def _rnnt_prune_ranges(px_gradients: Tensor, py_gradients: Tensor, boundary: Tensor, prune_range: int) -> Tensor:
    """The first kept symbol position of each frame, (N, T) int32."""
    options = _mutual_information_options(px_gradients, py_gradients)
    begins = torch.empty((py_gradients.shape[0], py_gradients.shape[2]), dtype=torch.int32, device=py_gradients.device)
    with device_of(py_gradients):
        library = handle(py_gradients.device)
        _C.rnnt_prune_ranges(
            library,
            options,
            px_gradients.data_ptr(),
            py_gradients.data_ptr(),
            boundary.data_ptr(),
            prune_range,
            begins.data_ptr(),
        )
    return begins


def _rnnt_prune_ranges_fake(px_gradients: Tensor, py_gradients: Tensor, *_: Any) -> Tensor:
    return torch.empty((py_gradients.shape[0], py_gradients.shape[2]), dtype=torch.int32, device=py_gradients.device)


rnnt_prune_ranges = operator(
    "rnnt_prune_ranges(Tensor px_gradients, Tensor py_gradients, Tensor boundary, int prune_range) -> Tensor",
    _rnnt_prune_ranges,
    _rnnt_prune_ranges_fake,
)

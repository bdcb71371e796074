"""The losses as torch operators: schema, fake kernel, autograd. prnn/losses/ checks arguments and calls these.

Every operator takes tensors that prnn/losses/ has brought into shape: activations whose last dimension is contiguous,
int32 symbols and lengths, all on one device. Values are checked by libprnn. `reserve` is what a forward operator keeps
for its backward one, as bytes; it is empty where `keep` is False.
"""

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from prnn import _C

_DTYPES = {
    torch.float32: _C.FLOAT,
    torch.float64: _C.DOUBLE,
    torch.float16: _C.HALF,
    torch.bfloat16: _C.BFLOAT16,
}


class _Handles(threading.local):
    """The calling thread's library handles: a handle is used by one thread at a time."""

    def __init__(self) -> None:
        self.of: dict[torch.device, _C.Handle] = {}


_handles = _Handles()


@contextlib.contextmanager
def _handle(device: torch.device) -> Iterator[_C.Handle]:
    """The calling thread's handle for a device, set to torch's current stream there."""
    handles = _handles.of
    if device.type == "cpu":
        if device not in handles:
            handles[device] = _C.Handle.cpu()
        yield handles[device]
        return
    with torch.cuda.device(device):
        if device not in handles:
            handles[device] = _C.Handle.cuda()
        handles[device].set_stream(torch.cuda.current_stream(device).cuda_stream)
        yield handles[device]


def _workspace(size: int, like: Tensor) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device=like.device)


def _reserve(size: int, like: Tensor) -> Tensor:
    # Zeros, because an operator's outputs must be reproducible in all their bytes, and padding is not written.
    return torch.zeros(size, dtype=torch.uint8, device=like.device)


def _largest(lengths: Tensor, bound: int) -> int:
    """The largest length, where looking costs nothing; elsewhere what is known to be no less."""
    return max(0, min(bound, int(lengths.max()))) if lengths.device.type == "cpu" else bound


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _once_differentiable(name: str) -> None:
    """Has the second derivative through a backward operator fail with a sentence of our own."""

    def refuse(ctx: object, *gradients: Tensor) -> None:
        raise RuntimeError(f"{name} can be differentiated once; its gradient has no gradient (create_graph=True)")

    torch.library.register_autograd(f"prnn::{name}_backward", refuse)


def _cost_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _blocks(size: int) -> int:
    return (size + 255) // 256 * 256


# ---- CTC ----


def _ctc_options(
    activations: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, blank: int, from_logits: bool
) -> _C.CtcLossOptions:
    options = _C.CtcLossOptions()
    options.dtype = _DTYPES[activations.dtype]
    options.input = _C.LOSS_LOGITS if from_logits else _C.LOSS_LOG_PROBS
    options.max_frames, options.batch, options.classes = activations.shape
    options.time_stride, options.batch_stride = activations.stride()[:2]
    options.blank = blank
    if targets.dim() == 2:
        options.max_targets = targets.shape[1]
    else:
        options.target_layout = _C.TARGETS_CONCATENATED
        options.target_elements = targets.numel()
        options.max_targets = _largest(target_lengths, targets.numel())
    return options


def _ctc_reserve_size(activations: Tensor, targets: Tensor) -> int:
    """At least what libprnn wants on any device, from shapes alone, which a compiler may only know as symbols."""
    frames, batch, _ = activations.shape
    width = 3 * batch + targets.numel() if activations.device.type == "cpu" else batch * (3 + targets.shape[-1])
    per_sequence = 5 * (targets.shape[-1] + 1) + 24
    return _blocks(max(4, activations.element_size()) * frames * width + batch * per_sequence + 256)


@torch.library.custom_op("prnn::ctc_loss", mutates_args=())
def ctc_loss(
    activations: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_logits: bool,
    zero_infinity: bool,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """activations (T, N, V), targets (N, L) or (sum of lengths,): costs (N,) and the reserve."""
    options = _ctc_options(activations, targets, input_lengths, target_lengths, blank, from_logits)
    options.zero_infinity = zero_infinity
    costs = activations.new_empty(activations.shape[1], dtype=_cost_dtype(activations.dtype))
    reserve = _reserve(_ctc_reserve_size(activations, targets) if keep else 0, activations)
    with _handle(activations.device) as handle:
        workspace = _workspace(_C.ctc_loss_workspace_size(handle, options), activations)
        _C.ctc_loss_forward(
            handle,
            options,
            activations.data_ptr(),
            targets.data_ptr(),
            input_lengths.data_ptr(),
            target_lengths.data_ptr(),
            costs.data_ptr(),
            workspace.data_ptr(),
            workspace.numel(),
            reserve.data_ptr() if keep else 0,
            reserve.numel(),
        )
    return costs, reserve


@ctc_loss.register_fake
def _(
    activations: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_logits: bool,
    zero_infinity: bool,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    costs = activations.new_empty(activations.shape[1], dtype=_cost_dtype(activations.dtype))
    return costs, _reserve(_ctc_reserve_size(activations, targets) if keep else 0, activations)


@torch.library.custom_op("prnn::ctc_loss_backward", mutates_args=())
def ctc_loss_backward(
    cost_gradients: Tensor,
    activations: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    reserve: Tensor,
    blank: int,
    from_logits: bool,
) -> Tensor:
    options = _ctc_options(activations, targets, input_lengths, target_lengths, blank, from_logits)
    gradients = torch.empty_strided(
        activations.shape, activations.stride(), dtype=activations.dtype, device=activations.device
    )
    cost_gradients = cost_gradients.contiguous()
    with _handle(activations.device) as handle:
        _C.ctc_loss_backward(
            handle,
            options,
            activations.data_ptr(),
            targets.data_ptr(),
            input_lengths.data_ptr(),
            target_lengths.data_ptr(),
            cost_gradients.data_ptr(),
            gradients.data_ptr(),
            reserve.data_ptr(),
            reserve.numel(),
        )
    return gradients


@ctc_loss_backward.register_fake
def _(
    cost_gradients: Tensor,
    activations: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    reserve: Tensor,
    blank: int,
    from_logits: bool,
) -> Tensor:
    return torch.empty_strided(
        activations.shape, activations.stride(), dtype=activations.dtype, device=activations.device
    )


def _ctc_setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    activations, targets, input_lengths, target_lengths, ctx.blank, ctx.from_logits, _, ctx.keep = inputs
    ctx.save_for_backward(activations, targets, input_lengths, target_lengths, output[1])


def _ctc_backward(ctx, cost_gradients, _):  # type: ignore[no-untyped-def]
    if not ctx.keep:
        raise RuntimeError("prnn::ctc_loss was called with keep=False; its gradient needs keep=True")
    gradients = ctc_loss_backward(cost_gradients, *ctx.saved_tensors, ctx.blank, ctx.from_logits)
    return gradients, None, None, None, None, None, None, None


ctc_loss.register_autograd(_ctc_backward, setup_context=_ctc_setup)
_once_differentiable("ctc_loss")


@torch.library.custom_op("prnn::ctc_align", mutates_args=())
def ctc_align(
    activations: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_logits: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """activations (T, N, V), targets (N, L): scores (N,), begins and ends (N, L)."""
    options = _ctc_options(activations, targets, input_lengths, target_lengths, blank, from_logits)
    scores = activations.new_empty(activations.shape[1], dtype=_cost_dtype(activations.dtype))
    begins, ends = torch.empty_like(targets), torch.empty_like(targets)
    with _handle(activations.device) as handle:
        workspace = _workspace(_C.ctc_align_workspace_size(handle, options), activations)
        _C.ctc_align(
            handle,
            options,
            activations.data_ptr(),
            targets.data_ptr(),
            input_lengths.data_ptr(),
            target_lengths.data_ptr(),
            scores.data_ptr(),
            begins.data_ptr(),
            ends.data_ptr(),
            workspace.data_ptr(),
            workspace.numel(),
        )
    return scores, begins, ends


@ctc_align.register_fake
def _(
    activations: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_logits: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    scores = activations.new_empty(activations.shape[1], dtype=_cost_dtype(activations.dtype))
    return scores, torch.empty_like(targets), torch.empty_like(targets)


# ---- RNN-T ----


def _rnnt_options(
    activations: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    range_begins: Tensor | None,
    input: int,
    rnnt_type: int,
    blank: int,
    delay_penalty: float,
) -> _C.RnntLossOptions:
    """The layout follows from the shapes: (rows, V) is packed, and ranges make (N, T, R, V) pruned."""
    options = _C.RnntLossOptions()
    options.dtype = _DTYPES[activations.dtype]
    options.input, options.type, options.blank = input, rnnt_type, blank
    options.delay_penalty = delay_penalty
    options.batch, options.classes = logit_lengths.numel(), activations.shape[-1]
    if targets.dim() == 2:
        options.max_targets = targets.shape[1]
    else:
        options.target_layout = _C.TARGETS_CONCATENATED
        options.target_elements = targets.numel()
        options.max_targets = _largest(target_lengths, targets.numel())
    if activations.dim() == 2:
        options.layout = _C.RNNT_PACKED
        options.rows = activations.shape[0]
        options.max_frames = _largest(logit_lengths, activations.shape[0])
    else:
        options.max_frames = activations.shape[1]
        if range_begins is not None:
            options.layout, options.prune_range = _C.RNNT_PRUNED, activations.shape[2]
    return options


def _rnnt_reserve_size(activations: Tensor, batch: int, input: int) -> int:
    rows = activations.numel() // activations.shape[-1]
    per_row = 4 if input == _C.LOSS_LOGITS else 2
    return _blocks(max(4, activations.element_size()) * rows * per_row + 24 * batch + 256)


@torch.library.custom_op("prnn::rnnt_loss", mutates_args=())
def rnnt_loss(
    activations: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    range_begins: Tensor | None,
    input: int,
    rnnt_type: int,
    blank: int,
    zero_infinity: bool,
    fastemit_lambda: float,
    clamp: float,
    delay_penalty: float,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """activations (N, T, U + 1, V), (rows, V), or with range_begins (N, T) (N, T, R, V): costs (N,), reserve."""
    options = _rnnt_options(
        activations, targets, logit_lengths, target_lengths, range_begins, input, rnnt_type, blank, delay_penalty
    )
    options.zero_infinity = zero_infinity
    options.fastemit_lambda, options.clamp = fastemit_lambda, clamp
    costs = activations.new_empty(logit_lengths.shape[0], dtype=_cost_dtype(activations.dtype))
    reserve = _reserve(_rnnt_reserve_size(activations, logit_lengths.shape[0], input) if keep else 0, activations)
    with _handle(activations.device) as handle:
        workspace = _workspace(_C.rnnt_loss_workspace_size(handle, options), activations)
        _C.rnnt_loss_forward(
            handle,
            options,
            activations.data_ptr(),
            targets.data_ptr(),
            logit_lengths.data_ptr(),
            target_lengths.data_ptr(),
            _pointer(range_begins),
            costs.data_ptr(),
            workspace.data_ptr(),
            workspace.numel(),
            reserve.data_ptr() if keep else 0,
            reserve.numel(),
        )
    return costs, reserve


@rnnt_loss.register_fake
def _(
    activations: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    range_begins: Tensor | None,
    input: int,
    rnnt_type: int,
    blank: int,
    zero_infinity: bool,
    fastemit_lambda: float,
    clamp: float,
    delay_penalty: float,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    costs = activations.new_empty(logit_lengths.shape[0], dtype=_cost_dtype(activations.dtype))
    return costs, _reserve(_rnnt_reserve_size(activations, logit_lengths.shape[0], input) if keep else 0, activations)


@torch.library.custom_op("prnn::rnnt_loss_backward", mutates_args=())
def rnnt_loss_backward(
    cost_gradients: Tensor,
    activations: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    range_begins: Tensor | None,
    reserve: Tensor,
    input: int,
    rnnt_type: int,
    blank: int,
    fastemit_lambda: float,
    clamp: float,
) -> Tensor:
    options = _rnnt_options(
        activations, targets, logit_lengths, target_lengths, range_begins, input, rnnt_type, blank, 0.0
    )
    options.fastemit_lambda, options.clamp = fastemit_lambda, clamp
    gradients = activations.new_empty(activations.shape)
    cost_gradients = cost_gradients.contiguous()
    with _handle(activations.device) as handle:
        _C.rnnt_loss_backward(
            handle,
            options,
            activations.data_ptr(),
            targets.data_ptr(),
            logit_lengths.data_ptr(),
            target_lengths.data_ptr(),
            _pointer(range_begins),
            cost_gradients.data_ptr(),
            gradients.data_ptr(),
            reserve.data_ptr(),
            reserve.numel(),
        )
    return gradients


@rnnt_loss_backward.register_fake
def _(
    cost_gradients: Tensor,
    activations: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    range_begins: Tensor | None,
    reserve: Tensor,
    input: int,
    rnnt_type: int,
    blank: int,
    fastemit_lambda: float,
    clamp: float,
) -> Tensor:
    return activations.new_empty(activations.shape)


def _rnnt_setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    activations, targets, logit_lengths, target_lengths, range_begins = inputs[:5]
    input, rnnt_type, blank, _, fastemit_lambda, clamp, _, ctx.keep = inputs[5:]
    ctx.options = (input, rnnt_type, blank, fastemit_lambda, clamp)
    ctx.save_for_backward(activations, targets, logit_lengths, target_lengths, range_begins, output[1])


def _rnnt_backward(ctx, cost_gradients, _):  # type: ignore[no-untyped-def]
    if not ctx.keep:
        raise RuntimeError("prnn::rnnt_loss was called with keep=False; its gradient needs keep=True")
    return rnnt_loss_backward(cost_gradients, *ctx.saved_tensors, *ctx.options), *(None,) * 12


rnnt_loss.register_autograd(_rnnt_backward, setup_context=_rnnt_setup)
_once_differentiable("rnnt_loss")


@torch.library.custom_op("prnn::rnnt_align", mutates_args=())
def rnnt_align(
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
    options = _rnnt_options(
        activations, targets, logit_lengths, target_lengths, None, input, rnnt_type, blank, delay_penalty
    )
    scores = activations.new_empty(logit_lengths.shape[0], dtype=_cost_dtype(activations.dtype))
    frames = torch.empty_like(targets)
    with _handle(activations.device) as handle:
        workspace = _workspace(_C.rnnt_align_workspace_size(handle, options), activations)
        _C.rnnt_align(
            handle,
            options,
            activations.data_ptr(),
            targets.data_ptr(),
            logit_lengths.data_ptr(),
            target_lengths.data_ptr(),
            0,
            scores.data_ptr(),
            frames.data_ptr(),
            workspace.data_ptr(),
            workspace.numel(),
        )
    return scores, frames


@rnnt_align.register_fake
def _(
    activations: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    input: int,
    rnnt_type: int,
    blank: int,
    delay_penalty: float,
) -> tuple[Tensor, Tensor]:
    scores = activations.new_empty(logit_lengths.shape[0], dtype=_cost_dtype(activations.dtype))
    return scores, torch.empty_like(targets)


# ---- Pruned RNN-T ----


def _mutual_information_options(px: Tensor, py: Tensor) -> _C.MutualInformationOptions:
    options = _C.MutualInformationOptions()
    options.dtype = _DTYPES[py.dtype]
    options.batch, options.symbols, options.frames = px.shape[0], px.shape[1], py.shape[2]
    options.type = _C.RNNT_REGULAR if px.shape[2] > py.shape[2] else _C.RNNT_MODIFIED
    return options


@torch.library.custom_op("prnn::mutual_information", mutates_args=())
def mutual_information(
    px: Tensor, py: Tensor, boundary: Tensor | None, want_gradients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """px (N, S, T + 1) or (N, S, T), py (N, S + 1, T): scores (N,), and px's and py's gradients, or empty tensors."""
    options = _mutual_information_options(px, py)
    scores = px.new_empty(px.shape[0])
    px_gradients = px.new_empty(px.shape if want_gradients else 0)
    py_gradients = py.new_empty(py.shape if want_gradients else 0)
    with _handle(px.device) as handle:
        workspace = _workspace(_C.mutual_information_workspace_size(handle, options), px)
        _C.mutual_information(
            handle,
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


@mutual_information.register_fake
def _(px: Tensor, py: Tensor, boundary: Tensor | None, want_gradients: bool) -> tuple[Tensor, Tensor, Tensor]:
    scores = px.new_empty(px.shape[0])
    return scores, px.new_empty(px.shape if want_gradients else 0), py.new_empty(py.shape if want_gradients else 0)


def _mutual_information_setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.want_gradients = inputs[3]
    ctx.save_for_backward(output[1], output[2])


@torch.library.custom_op("prnn::mutual_information_backward", mutates_args=())
def mutual_information_backward(
    score_gradients: Tensor, px_gradients: Tensor, py_gradients: Tensor
) -> tuple[Tensor, Tensor]:
    factors = score_gradients.reshape(-1, 1, 1)
    return factors * px_gradients, factors * py_gradients


@mutual_information_backward.register_fake
def _(score_gradients: Tensor, px_gradients: Tensor, py_gradients: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(px_gradients), torch.empty_like(py_gradients)


def _mutual_information_backward(ctx, score_gradients, _px, _py):  # type: ignore[no-untyped-def]
    if not ctx.want_gradients:
        raise RuntimeError("prnn::mutual_information was called with want_gradients=False")
    return *mutual_information_backward(score_gradients, *ctx.saved_tensors), None, None


mutual_information.register_autograd(_mutual_information_backward, setup_context=_mutual_information_setup)
_once_differentiable("mutual_information")


@torch.library.custom_op("prnn::rnnt_prune_ranges", mutates_args=())
def rnnt_prune_ranges(px_gradients: Tensor, py_gradients: Tensor, boundary: Tensor, prune_range: int) -> Tensor:
    """The first kept symbol position of each frame, (N, T) int32."""
    options = _mutual_information_options(px_gradients, py_gradients)
    begins = torch.empty((py_gradients.shape[0], py_gradients.shape[2]), dtype=torch.int32, device=py_gradients.device)
    with _handle(py_gradients.device) as handle:
        _C.rnnt_prune_ranges(
            handle,
            options,
            px_gradients.data_ptr(),
            py_gradients.data_ptr(),
            boundary.data_ptr(),
            prune_range,
            begins.data_ptr(),
        )
    return begins


@rnnt_prune_ranges.register_fake
def _(px_gradients: Tensor, py_gradients: Tensor, boundary: Tensor, prune_range: int) -> Tensor:
    return torch.empty((py_gradients.shape[0], py_gradients.shape[2]), dtype=torch.int32, device=py_gradients.device)

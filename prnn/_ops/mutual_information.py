"""The recursion of pruned RNN-T, and its ranges, as torch operators; see _loss.py."""

import warnings
from typing import Any

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._handles import DTYPES, device_of, handle
from prnn._ops._loss import Options, _pointer, _run, _workspace
from prnn._ops._operator import differentiate, operator


def _mutual_information_options(px: Tensor, py: Tensor) -> Options:
    type = _C.RNNT_REGULAR if px.shape[2] > py.shape[2] else _C.RNNT_MODIFIED
    return (DTYPES[py.dtype], type, *px.shape[:2], py.shape[2])


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


def least_prune_range(ends: Tensor) -> int:
    """How many positions must be kept so that each "regular" lattice with these ends (s_end, t_end), (N, 2), has a
    path: from the first to the last position in t_end frames, R - 1 a frame, so that (R - 1) t_end >= s_end."""
    return int((-(-ends[:, 0] // ends[:, 1].clamp(min=1)) + 1).max())


def _rnnt_prune_ranges(px_gradients: Tensor, py_gradients: Tensor, boundary: Tensor, prune_range: int) -> Tensor:
    """The first kept symbol position of each frame, (N, T) int32."""
    options = _mutual_information_options(px_gradients, py_gradients)
    if (
        boundary.is_cpu
        and options[1] == _C.RNNT_REGULAR
        and prune_range < (least := least_prune_range(boundary[:, 2:]))
    ):
        # Under torch.compile, where the result's size cannot follow from values.
        warnings.warn(f"s_range is {prune_range}; with less than {least} some sequences have no path", stacklevel=1)
    begins = torch.empty((py_gradients.shape[0], py_gradients.shape[2]), dtype=torch.int32, device=py_gradients.device)
    with device_of(py_gradients):
        library = handle(py_gradients.device)
        _run(
            _C.rnnt_prune_ranges,
            {"pruneRange": "s_range"},
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

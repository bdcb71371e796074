"""Pruned RNN-T (Kuang et al. 2022) with the names, signatures and results of the package fast_rnnt.

First a cheap loss with a joiner that only adds (`rnnt_loss_simple` or `rnnt_loss_smoothed`), whose occupation tells
which few symbols matter in each frame (`get_rnnt_prune_ranges`); then the full joiner on those alone
(`do_rnnt_pruning`, `rnnt_loss_pruned`). `from prnn.losses import pruned as fast_rnnt` serves code written for that
package.

Sizes: N sequences, S symbols, T frames, V classes, R symbols kept a frame. `symbols` (N, S) holds integers from 0 to
V - 1, padded with any such; a symbol may be the blank: its arc scores as the blank's and leads where a symbol's leads.
`boundary` (N, 4) has rows (first symbol, first frame, end of symbols, end of frames); None means (0, 0, S, T).
`rnnt_type` and `delay_penalty` are those of `prnn.rnnt_loss`. Every loss is differentiable once.
"""

import warnings

import torch
from torch import Tensor

from prnn import _C
from prnn._ops.mutual_information import least_prune_range, rnnt_prune_ranges
from prnn._ops.rnnt import call_rnnt_loss, rnnt_options
from prnn.losses import _checks
from prnn.losses._pruned_scores import (
    joint_scores,
    pruned_scores,
    simple_scores,
    smoothed_scores,
)
from prnn.losses.recursion import (
    Occupation,
    checked_boundary,
    checked_scores,
    joint_mutual_information_recursion,
    lattice_scores,
    mutual_information_recursion,
)

__all__ = [
    "do_rnnt_pruning",
    "get_rnnt_logprobs",
    "get_rnnt_logprobs_joint",
    "get_rnnt_logprobs_pruned",
    "get_rnnt_logprobs_smoothed",
    "get_rnnt_prune_ranges",
    "joint_mutual_information_recursion",
    "mutual_information_recursion",
    "rnnt_loss",
    "rnnt_loss_pruned",
    "rnnt_loss_simple",
    "rnnt_loss_smoothed",
]


def _checked_symbols(symbols: object, shape: tuple[int, int], classes: int, device: torch.device) -> Tensor:
    """int64 symbols for indexing. Only on the CPU are the values looked at here."""
    result = _checks.integers(symbols, "symbols", device)
    if tuple(result.shape) != shape:
        raise ValueError(f"symbols has the shape {tuple(result.shape)}; it must be {shape}")
    if _checks.can_look_at(result) and result.numel() > 0:
        low, high = int(result.min()), int(result.max())
        if low < 0 or high >= classes:
            raise ValueError(
                f"symbols holds {low if low < 0 else high}; with {classes} classes it must be 0 to {classes - 1}, "
                "padding included"
            )
    return result.long()


def _loss(
    px: Tensor,
    py: Tensor,
    boundary: Tensor | None,
    rnnt_type: str,
    delay_penalty: float,
    reduction: str,
    return_grad: bool,
) -> Tensor | tuple[Tensor, Occupation]:
    """The loss for scores px (N, S, T) and py (N, S + 1, T)."""
    px, py = lattice_scores(px, py, boundary, rnnt_type, delay_penalty)
    if not _checks.flag(return_grad, "return_grad"):
        return _checks.reduce(-mutual_information_recursion(px, py, boundary), reduction)
    scores, occupation = mutual_information_recursion(px, py, boundary, return_grad=True)
    return _checks.reduce(-scores, reduction), occupation


def _checked_options(rnnt_type: str, delay_penalty: object, reduction: str) -> float:
    """The delay penalty."""
    _checks.choice(rnnt_type, "rnnt_type", _checks.RNNT_TYPES)
    _checks.choice(reduction, "reduction", _checks.REDUCTIONS)
    return _checks.number(delay_penalty, "delay_penalty")


# ---- The joiner that adds ----


def _checked_simple(
    lm: object, am: object, symbols: object, termination_symbol: object, boundary: object
) -> tuple[Tensor, Tensor, Tensor, int, Tensor | None]:
    am = _checks.activations(am, "am", {3: "(N, T, V)"})
    lm = _checks.activations(lm, "lm", {3: "(N, S + 1, V)"})
    if lm.shape[0] != am.shape[0] or lm.shape[2] != am.shape[2]:
        raise ValueError(
            f"lm and am have the shapes {tuple(lm.shape)} and {tuple(am.shape)}; "
            "they must be (N, S + 1, V) and (N, T, V)"
        )
    if lm.device != am.device or lm.dtype != am.dtype:
        raise ValueError(
            f"lm is {lm.dtype} on {lm.device} and am {am.dtype} on {am.device}; they must be of one dtype on one device"
        )
    classes = am.shape[2]
    blank = _checks.blank_index(termination_symbol, classes, "termination_symbol")
    index = _checked_symbols(symbols, (lm.shape[0], lm.shape[1] - 1), classes, am.device)
    limits = checked_boundary(boundary, am.shape[0], lm.shape[1] - 1, am.shape[1], am.device)
    return lm, am, index, blank, limits


def get_rnnt_logprobs(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    rnnt_type: str = "regular",
    boundary: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """px and py of `rnnt_loss_simple`, for `mutual_information_recursion`; the arguments are those."""
    lm, am, symbols, blank, limits = _checked_simple(lm, am, symbols, termination_symbol, boundary)
    _checks.choice(rnnt_type, "rnnt_type", _checks.RNNT_TYPES)
    return lattice_scores(*simple_scores(lm, am, symbols, blank, limits), limits, rnnt_type)


def rnnt_loss_simple(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: str = "regular",
    delay_penalty: float = 0.0,
    reduction: str = "mean",
    return_grad: bool = False,
) -> Tensor | tuple[Tensor, Occupation]:
    """RNN-T loss where the logits are lm[n, s] + am[n, t], in memory of N x S x T.

    Args:
        lm: (N, S + 1, V), logits of the predictor.
        am: (N, T, V), logits of the encoder.
        symbols, boundary, rnnt_type, delay_penalty: see the module.
        termination_symbol: the blank.
        reduction: "none", "mean" over the batch, or "sum".
        return_grad: also return the occupation (px_grad, py_grad) of `mutual_information_recursion`.

    Returns:
        The loss, (N,) or (); with return_grad (loss, (px_grad, py_grad)).
    """
    lm, am, symbols, blank, limits = _checked_simple(lm, am, symbols, termination_symbol, boundary)
    delay_penalty = _checked_options(rnnt_type, delay_penalty, reduction)
    px, py = simple_scores(lm, am, symbols, blank, limits)
    return _loss(px, py, limits, rnnt_type, delay_penalty, reduction, return_grad)


def get_rnnt_logprobs_smoothed(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    lm_only_scale: float = 0.1,
    am_only_scale: float = 0.1,
    boundary: Tensor | None = None,
    rnnt_type: str = "regular",
) -> tuple[Tensor, Tensor]:
    """px and py of `rnnt_loss_smoothed`, for `mutual_information_recursion`; the arguments are those."""
    lm, am, symbols, blank, limits = _checked_simple(lm, am, symbols, termination_symbol, boundary)
    _checks.choice(rnnt_type, "rnnt_type", _checks.RNNT_TYPES)
    lm_scale, am_scale = _checks.number(lm_only_scale, "lm_only_scale"), _checks.number(am_only_scale, "am_only_scale")
    scores = smoothed_scores(lm, am, symbols, blank, lm_scale, am_scale, limits)
    return lattice_scores(*scores, limits, rnnt_type)


def rnnt_loss_smoothed(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    lm_only_scale: float = 0.1,
    am_only_scale: float = 0.1,
    boundary: Tensor | None = None,
    rnnt_type: str = "regular",
    delay_penalty: float = 0.0,
    reduction: str = "mean",
    return_grad: bool = False,
) -> Tensor | tuple[Tensor, Occupation]:
    """`rnnt_loss_simple` with log-probabilities interpolated with those that lm alone and am alone would give.

    Args:
        lm_only_scale: weight of the log-probabilities from lm alone.
        am_only_scale: weight of those from am with the average of lm's distributions over the batch, for which, as in
            fast_rnnt, all of lm is read, padding too.
        The others: as for `rnnt_loss_simple`.
    """
    lm, am, symbols, blank, limits = _checked_simple(lm, am, symbols, termination_symbol, boundary)
    delay_penalty = _checked_options(rnnt_type, delay_penalty, reduction)
    lm_scale, am_scale = _checks.number(lm_only_scale, "lm_only_scale"), _checks.number(am_only_scale, "am_only_scale")
    px, py = smoothed_scores(lm, am, symbols, blank, lm_scale, am_scale, limits)
    return _loss(px, py, limits, rnnt_type, delay_penalty, reduction, return_grad)


# ---- Pruning ----


def get_rnnt_prune_ranges(px_grad: Tensor, py_grad: Tensor, boundary: Tensor, s_range: int) -> Tensor:
    """Which symbol positions to keep in each frame.

    Args:
        px_grad, py_grad: occupation from `rnnt_loss_simple` or `rnnt_loss_smoothed` with return_grad.
        boundary: (N, 4), see the module. One on a GPU is waited for, because R may depend on it; one on the CPU is not.
        s_range: how many positions to keep, R. Where that is too few for any path through a "regular" lattice, as many
            as it takes, with a warning; where there are fewer than R positions, all, S + 1. Under torch.compile and
            torch.export the result's size cannot follow from values: there R is s_range, or 2 for 1, and a sequence for
            which that is too few has an infinite `rnnt_loss_pruned`, after a warning if the tensors are on the CPU.

    Returns:
        (N, T, R) int64: [n, t] = first, first + 1, ..., with first 0 in frame 0, never decreasing, growing by less than
        R a frame (at most 1 for the types but "regular"), and reaching the last symbol in the last frame.
    """
    px_grad, py_grad = checked_scores(px_grad, py_grad, ("px_grad", "py_grad"))
    batch, positions, frames = py_grad.shape
    limits = checked_boundary(boundary, batch, positions - 1, frames, py_grad.device)
    if limits is None:
        raise TypeError("boundary is None; it must be a tensor of integers (N, 4)")
    s_range = _checks.integer(s_range, "s_range", 1, 2**31 - 1)
    if px_grad.shape[2] > frames:
        needed = min(2, positions)  # with 1, the window could not move
        if _checks.has_values(limits):
            on_host = isinstance(boundary, Tensor) and boundary.device.type == "cpu"
            needed = max(needed, least_prune_range((boundary if on_host else limits)[:, 2:]))
            if s_range < needed:
                warnings.warn(f"s_range is {s_range}; {needed} are kept, without which no path remains", stacklevel=2)
        s_range = max(s_range, needed)
    s_range = min(s_range, positions)
    begins = rnnt_prune_ranges(px_grad.detach().contiguous(), py_grad.detach().contiguous(), limits, s_range)
    return begins.long().unsqueeze(2) + torch.arange(s_range, device=begins.device)


def _checked_ranges(ranges: object, batch: int, frames: int, device: torch.device) -> Tensor:
    result = _checks.integers(ranges, "ranges", device)
    if result.dim() != 3 or result.shape[:2] != (batch, frames) or result.shape[2] == 0:
        raise ValueError(f"ranges has the shape {tuple(result.shape)}; it must be ({batch}, {frames}, R), R at least 1")
    return result


def do_rnnt_pruning(am: Tensor, lm: Tensor, ranges: Tensor) -> tuple[Tensor, Tensor]:
    """The joiner's inputs for the kept positions.

    Args:
        am: (N, T, C), encoder output.
        lm: (N, S + 1, C2), predictor output.
        ranges: (N, T, R) from `get_rnnt_prune_ranges`.

    Returns:
        (N, T, R, C), am in a view, and (N, T, R, C2).
    """
    _checks.activations(am, "am", {3: "(N, T, C)"})  # whose type stays as it is
    _checks.activations(lm, "lm", {3: "(N, S + 1, C)"})
    if am.device != lm.device:
        raise ValueError(f"am is on {am.device} and lm on {lm.device}; they must be on one device")
    if am.shape[0] != lm.shape[0]:
        raise ValueError(f"am and lm have the shapes {tuple(am.shape)} and {tuple(lm.shape)}; they must agree in N")
    index = _checked_ranges(ranges, am.shape[0], am.shape[1], am.device).long()
    _check_ranges_within(index, lm.shape[1] - 1)
    kept = index.shape[2]
    rows = index.reshape(index.shape[0], -1, 1).expand(-1, -1, lm.shape[2])
    pruned = lm.gather(1, rows).reshape(*index.shape, lm.shape[2])
    return am.unsqueeze(2).expand(-1, -1, kept, -1), pruned


def _checked_logits(logits: object, symbols: object, termination_symbol: object) -> tuple[Tensor, Tensor, int]:
    x = _checks.activations(logits, "logits", {4: "(N, T, S + 1 or R, V)"})
    given = _checks.integers(symbols, "symbols", x.device)
    if given.dim() != 2 or given.shape[0] != x.shape[0]:
        raise ValueError(f"symbols has the shape {tuple(given.shape)}; it must be ({x.shape[0]}, S)")
    classes = x.shape[3]
    blank = _checks.blank_index(termination_symbol, classes, "termination_symbol")
    return x, _checked_symbols(given, (given.shape[0], given.shape[1]), classes, x.device), blank


def _check_positions(logits: Tensor, symbols: Tensor) -> None:
    if logits.shape[2] != symbols.shape[1] + 1:
        raise ValueError(
            f"logits has the shape {tuple(logits.shape)} and symbols {tuple(symbols.shape)}; the third size of logits "
            f"must be S + 1, here {symbols.shape[1] + 1}"
        )


def get_rnnt_logprobs_joint(
    logits: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: str = "regular",
) -> tuple[Tensor, Tensor]:
    """px and py of full logits (N, T, S + 1, V), for `mutual_information_recursion`."""
    x, symbols, blank = _checked_logits(logits, symbols, termination_symbol)
    _check_positions(x, symbols)
    _checks.choice(rnnt_type, "rnnt_type", _checks.RNNT_TYPES)
    limits = checked_boundary(boundary, x.shape[0], symbols.shape[1], x.shape[1], x.device)
    return lattice_scores(*joint_scores(x, symbols, blank, limits), limits, rnnt_type)


def get_rnnt_logprobs_pruned(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: str = "regular",
) -> tuple[Tensor, Tensor]:
    """px and py of pruned logits (N, T, R, V), minus infinity where pruned, for `mutual_information_recursion`."""
    x, symbols, blank = _checked_logits(logits, symbols, termination_symbol)
    index = _pruned_index(ranges, x, symbols)
    _checks.choice(rnnt_type, "rnnt_type", _checks.RNNT_TYPES)
    limits = checked_boundary(boundary, x.shape[0], symbols.shape[1], x.shape[1], x.device)
    return lattice_scores(*pruned_scores(x, symbols, index, blank, limits), limits, rnnt_type)


def _pruned_index(ranges: object, logits: Tensor, symbols: Tensor) -> Tensor:
    index = _checked_ranges(ranges, logits.shape[0], logits.shape[1], logits.device)
    if index.shape[2] != logits.shape[2]:
        raise ValueError(
            f"ranges and logits have the shapes {tuple(index.shape)} and {tuple(logits.shape)}; they must agree in R"
        )
    _check_ranges_within(index, symbols.shape[1])
    return index.long()


def _check_ranges_within(index: Tensor, last: int) -> None:
    if _checks.can_look_at(index):
        low, high = int(index.min()), int(index.max())
        if low < 0 or high > last:
            raise ValueError(
                f"ranges holds {low if low < 0 else high}; with symbols (N, {last}) it must be 0 to {last}"
            )


def _begins_at_zero(limits: Tensor | None) -> bool:
    """Whether the boundary is known, without synchronising, to be just lengths."""
    if limits is None:
        return True
    return _checks.can_look_at(limits) and not bool(limits[:, :2].any()) and bool((limits[:, 3] > 0).all())


def _fused_loss(
    logits: Tensor,
    symbols: Tensor,
    begins: Tensor | None,
    blank: int,
    limits: Tensor | None,
    rnnt_type: str,
    delay_penalty: float,
    reduction: str,
) -> Tensor:
    """The loss without px and py in between."""
    logits, symbols = logits.contiguous(), symbols.int()
    if limits is None:
        batch, frames = logits.shape[:2]
        limits = symbols.new_tensor([0, 0, symbols.shape[1], frames]).expand(batch, 4)
    return call_rnnt_loss(
        _checks.reduction_of(reduction, logits.shape[0]),
        (logits, symbols, limits[:, 3].contiguous(), limits[:, 2].contiguous(), begins),
        (
            -1,
            -1,
            *rnnt_options(
                input=_C.LOSS_LOGITS,
                rnnt_type=_checks.RNNT_TYPES.index(rnnt_type),
                blank=blank,
                blank_targets=True,
                delay_penalty=delay_penalty,
            ),
            _checks.wants_gradient(logits),
        ),
    )


def rnnt_loss(
    logits: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: str = "regular",
    delay_penalty: float = 0.0,
    reduction: str = "mean",
    return_grad: bool = False,
) -> Tensor | tuple[Tensor, Occupation]:
    """RNN-T loss of full logits (N, T, S + 1, V), with the signature of fast_rnnt; see `prnn.rnnt_loss` for more
    options. The other arguments and the result are those of `rnnt_loss_simple`."""
    x, symbols, blank = _checked_logits(logits, symbols, termination_symbol)
    _check_positions(x, symbols)
    delay_penalty = _checked_options(rnnt_type, delay_penalty, reduction)
    limits = checked_boundary(boundary, x.shape[0], symbols.shape[1], x.shape[1], x.device)
    if not _checks.flag(return_grad, "return_grad") and _begins_at_zero(limits):
        return _fused_loss(x, symbols, None, blank, limits, rnnt_type, delay_penalty, reduction)
    px, py = joint_scores(x, symbols, blank, limits)
    return _loss(px, py, limits, rnnt_type, delay_penalty, reduction, return_grad)


def rnnt_loss_pruned(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: str = "regular",
    delay_penalty: float = 0.0,
    reduction: str = "mean",
    return_grad: bool = False,
) -> Tensor | tuple[Tensor, Occupation]:
    """RNN-T loss over the paths through kept positions alone.

    Args:
        logits: (N, T, R, V), the joiner's output for what `do_rnnt_pruning` gave.
        ranges: (N, T, R) from `get_rnnt_prune_ranges`.
        The others: as for `rnnt_loss_simple`.

    Returns:
        As `rnnt_loss_simple`. The loss is that of `rnnt_loss` if R is S + 1.
    """
    x, symbols, blank = _checked_logits(logits, symbols, termination_symbol)
    index = _pruned_index(ranges, x, symbols)
    delay_penalty = _checked_options(rnnt_type, delay_penalty, reduction)
    limits = checked_boundary(boundary, x.shape[0], symbols.shape[1], x.shape[1], x.device)
    if not _checks.flag(return_grad, "return_grad") and _begins_at_zero(limits):
        begins = index[:, :, 0].int().contiguous()
        return _fused_loss(x, symbols, begins, blank, limits, rnnt_type, delay_penalty, reduction)
    px, py = pruned_scores(x, symbols, index, blank, limits)
    return _loss(px, py, limits, rnnt_type, delay_penalty, reduction, return_grad)

"""The recursion of pruned RNN-T over scores that the caller computed, as fast_rnnt and k2 define it."""

from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from prnn._ops import mutual_information as ops
from prnn.losses import _checks

Occupation = tuple[Tensor, Tensor]


def checked_boundary(boundary: object, batch: int, symbols: int, frames: int, device: torch.device) -> Tensor | None:
    """(N, 4) int32, or None. Only on the CPU are the values looked at."""
    if boundary is None:
        return None
    result = _checks.integers(boundary, "boundary", device)
    if result.shape != (batch, 4):
        raise ValueError(
            f"boundary has the shape {tuple(result.shape)}; it must be ({batch}, 4), "
            "the columns first symbol, first frame, end of symbols, end of frames"
        )
    if _checks.can_look_at(result):
        begins, ends = result[:, :2], result[:, 2:]
        bad = (begins < 0) | (begins > ends) | (ends > ends.new_tensor((symbols, frames)))
        if bad.any():  # tolist() of torch 2.6 fails inside torch.func's transforms
            n, axis = map(int, bad.nonzero()[0])
            what, most = ("st"[axis], (symbols, frames)[axis])
            raise ValueError(
                f"boundary[{n}] has {what}_begin {int(begins[n, axis])} and {what}_end {int(ends[n, axis])}; "
                f"they must rise from 0 to at most {most}"
            )
    return result


def checked_scores(px: object, py: object, names: tuple[str, str]) -> tuple[Tensor, Tensor]:
    """px (N, S, T + 1) or (N, S, T) and py (N, S + 1, T), or gradients of theirs, of one dtype on one device."""
    if not isinstance(px, Tensor) or not isinstance(py, Tensor) or px.dtype != py.dtype:
        kinds = [str(v.dtype) if isinstance(v, Tensor) else f"a {type(v).__name__}" for v in (px, py)]
        raise TypeError(
            f"{names[0]} and {names[1]} are {kinds[0]} and {kinds[1]}; they must be tensors of one floating dtype"
        )
    if px.device != py.device:
        raise ValueError(f"{names[0]} is on {px.device} and {names[1]} on {py.device}; they must be on one device")
    second = _checks.activations(py, names[1], {3: "(N, S + 1, T)"})
    batch, positions, frames = second.shape
    if px.dim() != 3 or px.shape[:2] != (batch, positions - 1) or px.shape[2] - frames not in (0, 1):
        raise ValueError(
            f"{names[0]} and {names[1]} have the shapes {tuple(px.shape)} and {tuple(py.shape)}; "
            "they must be (N, S, T + 1) or (N, S, T), and (N, S + 1, T)"
        )
    first = px if px.numel() == 0 else _checks.activations(px, names[0], {3: "(N, S, T + 1) or (N, S, T)"})
    return first.to(second.dtype), second


def lattice_scores(
    px: Tensor, py: Tensor, boundary: Tensor | None, rnnt_type: str, delay_penalty: float = 0.0
) -> tuple[Tensor, Tensor]:
    """px and py as the recursion wants them for a type of RNN-T.

    Args:
        px: (N, S, T), log-probability of target s in frame t.
        py: (N, S + 1, T), log-probability of the blank.
        boundary: (N, 4) or None.
        rnnt_type: "regular", "modified", "constrained" or "final_blank".
        delay_penalty: added to px, delay_penalty ((t_end - 1) / 2 - t).

    Returns:
        px (N, S, T + 1) for "regular", (N, S, T) for the others, and py. Contiguous.
    """
    batch, _, frames = py.shape
    time = torch.arange(frames, device=py.device)
    if delay_penalty != 0.0:
        ends = py.new_full((batch,), frames) if boundary is None else boundary[:, 3].to(py.dtype)
        px = px + delay_penalty * ((ends - 1).reshape(-1, 1, 1) / 2 - time)
    if rnnt_type == "constrained":
        px = px + py[:, 1:]
    elif rnnt_type == "final_blank":
        last = frames - 1 if boundary is None else boundary[:, 3].reshape(-1, 1, 1) - 1
        px = px.masked_fill(time == last, float("-inf"))
    elif rnnt_type == "regular":
        # No symbol after the last frame.
        if boundary is not None:
            px = px.masked_fill(time >= boundary[:, 3].reshape(-1, 1, 1), float("-inf"))
        px = torch.nn.functional.pad(px, (0, 1), value=float("-inf"))
    return px.contiguous(), py.contiguous()


@overload
def mutual_information_recursion(
    px: Tensor, py: Tensor, boundary: Tensor | None = ..., return_grad: Literal[False] = ...
) -> Tensor: ...


@overload
def mutual_information_recursion(
    px: Tensor, py: Tensor, boundary: Tensor | None = ..., *, return_grad: Literal[True]
) -> tuple[Tensor, Occupation]: ...


@overload
def mutual_information_recursion(
    px: Tensor, py: Tensor, boundary: Tensor | None, return_grad: bool
) -> Tensor | tuple[Tensor, Occupation]: ...


def mutual_information_recursion(
    px: Tensor, py: Tensor, boundary: Tensor | None = None, return_grad: bool = False
) -> Tensor | tuple[Tensor, Occupation]:
    """log of the sum over all monotonic paths through a lattice, with the signature of fast_rnnt's function.

    p(0, 0) = 0, p(s, t) = log(exp(p(s-1, t') + px(s-1, t')) + exp(p(s, t-1) + py(s, t-1))), where t' is t if px has
    T + 1 columns and t - 1 ("modified") if it has T. Can be differentiated once.

    Args:
        px: (N, S, T + 1) or (N, S, T), scores of going from s to s + 1; minus infinity forbids it.
        py: (N, S + 1, T), scores of going from t to t + 1; dtype of px.
        boundary: (N, 4) integers, rows (s_begin, t_begin, s_end, t_end) with 0 <= s_begin <= s_end <= S and
            0 <= t_begin <= t_end <= T; None means (0, 0, S, T).
        return_grad: also return the gradients of the scores' sum.

    Returns:
        (N,), p(s_end, t_end), minus infinity without a path. With return_grad (scores, (px_grad, py_grad)), the
        gradients, without a derivative of their own, as the probabilities with which a path takes each arc.

    Raises:
        TypeError, ValueError: as `prnn.rnnt_loss`.
    """
    px, py = checked_scores(px, py, ("px", "py"))
    limits = checked_boundary(boundary, py.shape[0], px.shape[1], py.shape[2], py.device)
    return_grad = _checks.flag(return_grad, "return_grad")
    want = return_grad or _checks.wants_gradient(px) or _checks.wants_gradient(py)
    scores, px_grad, py_grad = ops.mutual_information(px.contiguous(), py.contiguous(), limits, want)
    return (scores, (px_grad.detach(), py_grad.detach())) if return_grad else scores


def joint_mutual_information_recursion(
    px: Sequence[Tensor], py: Sequence[Tensor], boundary: Tensor | None = None
) -> Tensor:
    """The recursion on sums of several px and py, with the score broken down into the contributions of each.

    Args:
        px, py: sequences of K tensors, each as for `mutual_information_recursion`.
        boundary: as there.

    Returns:
        (K, N), which adds up over K to the score of the summed px and py. Contribution k is the sum of px[k] and py[k]
        over a path, averaged over the paths; the first also holds the difference that makes the sum come out. Its
        gradient is that of the score.
    """
    px_all, py_all = _stacked(px, "px"), _stacked(py, "py")
    if len(px_all) != len(py_all):
        raise ValueError(f"px and py have {len(px_all)} and {len(py_all)} tensors; they must be as many")
    with torch.no_grad():
        scores, (px_grad, py_grad) = mutual_information_recursion(
            px_all.sum(0), py_all.sum(0), boundary, return_grad=True
        )
    # Zero for what no path takes, which may be minus infinity, or anything in padding.
    px_taken, py_taken = torch.where(px_grad != 0, px_all, 0), torch.where(py_grad != 0, py_all, 0)
    parts = (px_grad * px_taken).sum((2, 3)) + (py_grad * py_taken).sum((2, 3))
    rest = (scores - parts.sum(0)).detach()
    return torch.cat((parts[:1] + rest, parts[1:]))


def _stacked(tensors: object, name: str) -> Tensor:
    """(K, ...) of K tensors."""
    if not isinstance(tensors, (Sequence, Tensor)) or not all(isinstance(x, Tensor) for x in tensors):
        raise TypeError(f"{name} is a {type(tensors).__name__}; it must be a sequence of tensors")
    kinds = [f"{tuple(x.shape)} {x.dtype} {x.device}" for x in tensors]
    if len(set(kinds)) != 1:
        raise ValueError(f"{name} has [{', '.join(kinds)}]; it must have at least one tensor, and all of one kind")
    return torch.stack(tuple(tensors))

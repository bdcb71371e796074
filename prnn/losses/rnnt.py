"""RNN-T, the transducer loss (Graves 2012)."""

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from prnn import _C
from prnn._ops import rnnt as ops
from prnn.losses import _checks
from prnn.losses._module import LossModule
from prnn.losses.recursion import lattice_scores, mutual_information_recursion

Lengths = Tensor | Sequence[int] | int
Occupation = tuple[Tensor, Tensor]
_SHAPES = {4: "(N, T, U + 1, V)", 2: "(rows, V)"}


def batch_arguments(
    x: Tensor,
    targets: object,
    logit_lengths: object,
    target_lengths: object,
    gathered: bool = False,
    max_targets: int = -1,
    names: tuple[str, str] = ("logits", "logit_lengths"),
    takes_int64: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """targets, logit_lengths and target_lengths as the operators take them, for activations (N, T, U + 1, V) or
    (rows, V). max_targets bounds target_lengths, or is -1. names: of activations and logit_lengths. takes_int64: as for
    _checks.integers."""
    shape, device = x.shape, x.device
    packed = len(shape) == 2
    given = logit_lengths, target_lengths
    if packed:
        logit_lengths = _checks.integers(logit_lengths, names[1], device, takes_int64)
        batch = logit_lengths.numel()
    else:
        batch = shape[0]
    frames = _checks.lengths(logit_lengths, names[1], batch, device, takes_int64)
    lengths = _checks.lengths(target_lengths, "target_lengths", batch, device, takes_int64)
    if targets is None and gathered:
        # Not read, but for its width.
        width = max_targets if packed else shape[2] - 1
        if width < 0:
            width = int(lengths.max().clamp(min=0))
        symbols = lengths.new_zeros((batch, width))
    else:
        symbols = _checks.integers(targets, "targets", device, takes_int64)
        found = tuple(symbols.shape)
        if len(found) not in (1, 2):
            raise ValueError(f"targets has the shape {found}; it must be (N, U) or (sum of target_lengths,)")
        if len(found) == 1 and not packed:
            raise ValueError(
                f"targets has the shape {found}; it must be ({batch}, {shape[2] - 1}). "
                "Targets one after the other go with packed logits (rows, V)"
            )
        if len(found) == 2 and found[0] != batch:
            raise ValueError(f"targets has the shape {found}; it must be ({batch}, U), a row for each sequence")
        if not packed and found[1] != shape[2] - 1:
            raise ValueError(
                f"{names[0]} has the shape {tuple(shape)} and targets {found}; the third size of {names[0]} must be "
                f"U + 1, here {found[1] + 1}"
            )
    if packed:
        _check_totals(x, symbols, *given)
    return symbols, frames, lengths


def _check_totals(x: Tensor, symbols: Tensor, logit_lengths: object, target_lengths: object) -> None:
    """Refuses packed logits and targets of which something is left over, where one can look at the lengths; those on a
    CPU libprnn refuses."""
    if x.device.type == "cpu":
        return
    frames = _checks.host_lengths(logit_lengths, "logit_lengths")
    lengths = _checks.host_lengths(target_lengths, "target_lengths")
    if lengths is None or min(lengths) < 0:
        return
    if frames is not None and min(frames) > 0:
        cells = sum(t * (u + 1) for t, u in zip(frames, lengths, strict=True))
        _checks.total(x.shape[0], "the number of rows of logits", cells, "the lengths make")
    if symbols.dim() == 1:
        _checks.total(symbols.numel(), "the number of targets", sum(lengths), "target_lengths add up to")


def input_kind(x: Tensor, fused_log_softmax: bool, gathered: bool) -> int:
    if not gathered:
        return _C.LOSS_LOGITS if fused_log_softmax else _C.LOSS_LOG_PROBS
    if x.shape[-1] != 2:
        raise ValueError(f"logits has the shape {tuple(x.shape)}; gathered, its last dimension must be 2")
    return _C.LOSS_GATHERED


@overload
def rnnt_loss(
    logits: Tensor,
    targets: Tensor | None,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = ...,
    clamp: float = ...,
    reduction: str = ...,
    fused_log_softmax: bool = ...,
    *,
    fastemit_lambda: float = ...,
    delay_penalty: float = ...,
    rnnt_type: str = ...,
    gathered: bool = ...,
    average_frames: bool = ...,
    zero_infinity: bool = ...,
    inplace: bool = ...,
    max_frames: int | None = ...,
    max_target_length: int | None = ...,
    return_grad: Literal[False] = ...,
) -> Tensor: ...


@overload
def rnnt_loss(
    logits: Tensor,
    targets: Tensor | None,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = ...,
    clamp: float = ...,
    reduction: str = ...,
    fused_log_softmax: bool = ...,
    *,
    fastemit_lambda: float = ...,
    delay_penalty: float = ...,
    rnnt_type: str = ...,
    gathered: bool = ...,
    average_frames: bool = ...,
    zero_infinity: bool = ...,
    inplace: bool = ...,
    max_frames: int | None = ...,
    max_target_length: int | None = ...,
    return_grad: Literal[True],
) -> tuple[Tensor, Occupation]: ...


def rnnt_loss(
    logits: Tensor,
    targets: Tensor | None,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = -1,
    clamp: float = -1.0,
    reduction: str = "mean",
    fused_log_softmax: bool = True,
    *,
    fastemit_lambda: float = 0.0,
    delay_penalty: float = 0.0,
    rnnt_type: str = "regular",
    gathered: bool = False,
    average_frames: bool = False,
    zero_infinity: bool = False,
    inplace: bool = False,
    max_frames: int | None = None,
    max_target_length: int | None = None,
    return_grad: bool = False,
) -> Tensor | tuple[Tensor, Occupation]:
    """RNN-T loss with the signature of torchaudio.functional.rnnt_loss, and the options of warp_rnnt and fast_rnnt.

    The cost of a sequence is -log of the probability, summed over all paths through its T_n x (U_n + 1) lattice, of its
    targets; docs/losses.md has the formulas. Can be differentiated once.

    Args:
        logits: (N, T, U + 1, V), or packed: (rows, V), sequence n a block of T_n (U_n + 1) rows, frame after frame,
            the blocks one after the other, and no rows beyond them. float32 or float64, or half types, for which the
            loss is computed and returned in float32.
        targets: symbols, integers from 0 to V - 1 but not the blank: (N, U), padded with anything; or for packed logits
            also (sum of target_lengths,), no more. May be None if gathered.
        logit_lengths: (N,), frames T_n of each sequence, 1 to T.
        target_lengths: (N,), symbols U_n of each sequence, 0 to U.
        blank: index of the blank; negative counts from V. The default, as torchaudio's, is the last.
        clamp: each element of the gradient with respect to logits is limited to [-clamp, clamp], before it is
            multiplied with what comes from the reduction; <= 0: not limited.
        reduction: "none", "sum", or "mean" over the batch.
        fused_log_softmax: whether a log-softmax is applied over V; if not, logits are log-probabilities.
        fastemit_lambda: FastEmit (Yu et al. 2021): the gradients of label log-probabilities are multiplied by
            1 + fastemit_lambda. The cost is not changed.
        delay_penalty: emitting a label in frame t scores delay_penalty ((T_n - 1) / 2 - t) more, in cost and gradients.
        rnnt_type: "regular"; "modified": at most one label a frame, each label going on to the next frame;
            "constrained": as modified, the label followed by the blank of the same frame; "final_blank": as modified,
            the last frame emitting the blank alone.
        gathered: logits are log-probabilities (N, T, U + 1, 2) or (rows, 2), of the blank and of the next target.
        average_frames: each cost is divided by its number of frames.
        zero_infinity: a sequence without a path costs 0 instead of infinity. Its gradients are zero in either case.
        inplace: the backward pass writes the gradients where the logits are, which saves memory of their size. By
            setting it the caller promises that nobody needs the logits after the loss; whatever has kept them for its
            own derivative (a softmax, another loss, a second backward pass) is told by torch that they were modified.
            Refused for a leaf that requires a gradient, or a view of one. Without effect on logits that have to be
            copied first (strides, half types on the CPU), and under torch.compile and torch.func.
        max_frames: an upper bound of logit_lengths, for packed logits, whose shape does not tell. Not given, lengths on
            the host are looked at; for lengths on a GPU, which would have to be waited for, the number of rows is
            taken, and workspace and time grow with rows x symbols. A longer sequence counts as bad input.
        max_target_length: the same of target_lengths, for targets one after the other (or None); not given and on a
            GPU, the number of targets.
        return_grad: also return the occupation of the lattice.

    Returns:
        The loss: (N,) for "none", else (). With return_grad (loss, (px_grad, py_grad)): the probabilities, without
        derivative, with which a path emits target u in frame t, (N, U, T + 1) for "regular" or (N, U, T), and takes the
        blank, (N, U + 1, T): what get_rnnt_prune_ranges takes. Not for packed logits.

    Raises:
        TypeError: an argument of another type or dtype.
        ValueError: shapes that disagree, a length or a symbol out of range. The message has the value. On a GPU lengths
            and symbols are checked there: a bad sequence costs NaN and has zero gradients; rows and targets left over
            are refused if the lengths are on the host, and else count as padding.
    """
    x = _checks.activations(logits, "logits", _SHAPES)
    _checks.choice(reduction, "reduction", _checks.REDUCTIONS)
    gathered, average_frames = _checks.flag(gathered, "gathered"), _checks.flag(average_frames, "average_frames")
    return_grad = _checks.flag(return_grad, "return_grad")
    options = _options(
        input_kind(x, _checks.flag(fused_log_softmax, "fused_log_softmax"), gathered),
        x.shape[-1],
        blank,
        clamp,
        fastemit_lambda,
        delay_penalty,
        rnnt_type,
        zero_infinity,
    )
    packed, padded = x.dim() == 2, isinstance(targets, Tensor) and targets.dim() == 2
    bounds = (
        _checks.length_bound(
            max_frames,
            "max_frames",
            logit_lengths,
            "logit_lengths",
            None if packed else "it goes with packed logits (rows, V)",
        ),
        _checks.length_bound(
            max_target_length,
            "max_target_length",
            target_lengths,
            "target_lengths",
            "it goes with targets (sum of target_lengths,)" if padded or not packed else None,
        ),
    )
    if return_grad and packed:
        raise ValueError(f"return_grad is True; it is not available for packed logits, here {tuple(x.shape)}")
    keep = _checks.wants_gradient(x)
    costs_alone = not keep and _checks.runs_on_cpu(x)
    symbols, frames, lengths = batch_arguments(
        x, targets, logit_lengths, target_lengths, gathered, bounds[1], takes_int64=costs_alone
    )
    x = x.contiguous()
    if _checks.flag(inplace, "inplace") and keep:
        _checks.overwritable(x, "logits")
    with_gradient = ops.call_rnnt_loss_inplace if inplace else ops.call_rnnt_loss
    call = ops.rnnt_costs_cpu if costs_alone else with_gradient
    loss = call(
        _checks.reduction_of(reduction, frames.shape[0], frames if average_frames else None),
        (x, symbols, frames, lengths, None),
        (*bounds, *options, keep),
    )
    if average_frames and reduction == "none":
        loss = loss / frames
    if not return_grad:
        return loss
    with torch.no_grad():
        return loss, _occupation(x, symbols, frames, lengths, rnnt_type, ops.rnnt_options.named(options))


@_checks.remembered
def _options(
    input: int,
    classes: int,
    blank: object,
    clamp: object,
    fastemit_lambda: object,
    delay_penalty: object,
    rnnt_type: object,
    zero_infinity: object,
) -> tuple[Any, ...]:
    return ops.rnnt_options(
        input=input,
        rnnt_type=_checks.RNNT_TYPES.index(_checks.choice(rnnt_type, "rnnt_type", _checks.RNNT_TYPES)),
        blank=0 if input == _C.LOSS_GATHERED else _checks.blank_index(blank, classes),
        zero_infinity=_checks.flag(zero_infinity, "zero_infinity"),
        fastemit_lambda=_checks.number(fastemit_lambda, "fastemit_lambda", 0.0),
        clamp=_checks.clamp_limit(clamp),
        delay_penalty=_checks.number(delay_penalty, "delay_penalty"),
    )


def _occupation(
    x: Tensor,
    symbols: Tensor,
    frames: Tensor,
    lengths: Tensor,
    rnnt_type: str,
    options: dict[str, Any],
) -> Occupation:
    input, blank, delay_penalty = (options[name] for name in ("input", "blank", "delay_penalty"))
    zeros = torch.zeros_like(lengths)
    boundary = torch.stack((zeros, zeros, lengths, frames), dim=1).long()
    if input == _C.LOSS_LOGITS:
        x = x.log_softmax(dim=-1)
    if input == _C.LOSS_GATHERED:
        label, blanks = x[:, :, :-1, 1], x[..., 0]
    else:
        safe = symbols.long().clamp(0, x.shape[-1] - 1)  # padding may be anything
        index = safe[:, None, :, None].expand(-1, x.shape[1], -1, 1)
        label, blanks = x[:, :, :-1].gather(3, index).squeeze(3), x[..., blank]
    px, py = lattice_scores(label.transpose(1, 2), blanks.transpose(1, 2), boundary, rnnt_type, delay_penalty)
    _, occupation = mutual_information_recursion(px, py, boundary, return_grad=True)
    return occupation


class RNNTLoss(LossModule):
    """`rnnt_loss` as a module, with the signature of torchaudio.transforms.RNNTLoss."""

    def __init__(
        self,
        blank: int = -1,
        clamp: float = -1.0,
        reduction: str = "mean",
        fused_log_softmax: bool = True,
        *,
        fastemit_lambda: float = 0.0,
        delay_penalty: float = 0.0,
        rnnt_type: str = "regular",
        gathered: bool = False,
        average_frames: bool = False,
        zero_infinity: bool = False,
        inplace: bool = False,
    ) -> None:
        super().__init__()
        self.blank = blank
        self.clamp = clamp
        self.reduction = _checks.choice(reduction, "reduction", _checks.REDUCTIONS)
        self.fused_log_softmax = fused_log_softmax
        self.fastemit_lambda = fastemit_lambda
        self.delay_penalty = delay_penalty
        self.rnnt_type = _checks.choice(rnnt_type, "rnnt_type", _checks.RNNT_TYPES)
        self.gathered = gathered
        self.average_frames = average_frames
        self.zero_infinity = zero_infinity
        self.inplace = inplace

    def forward(
        self,
        logits: Tensor,
        targets: Tensor | None,
        logit_lengths: Lengths,
        target_lengths: Lengths,
        *,
        max_frames: int | None = None,
        max_target_length: int | None = None,
    ) -> Tensor:
        return rnnt_loss(
            logits,
            targets,
            logit_lengths,
            target_lengths,
            self.blank,
            self.clamp,
            self.reduction,
            self.fused_log_softmax,
            fastemit_lambda=self.fastemit_lambda,
            delay_penalty=self.delay_penalty,
            rnnt_type=self.rnnt_type,
            gathered=self.gathered,
            average_frames=self.average_frames,
            zero_infinity=self.zero_infinity,
            inplace=self.inplace,
            max_frames=max_frames,
            max_target_length=max_target_length,
        )

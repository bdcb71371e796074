"""Connectionist temporal classification (Graves et al. 2006)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from prnn import _C
from prnn._ops import ctc as ops
from prnn.losses import _checks
from prnn.losses._module import LossModule

_SHAPES = {3: "(T, N, V)", 2: "(T, V)"}


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int] | int,
    target_lengths: Tensor | Sequence[int] | int,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
    *,
    from_logits: bool = True,
    inplace: bool = False,
    max_target_length: int | None = None,
) -> Tensor:
    """CTC loss with the signature of torch.nn.functional.ctc_loss; takes logits directly.

    The cost of a sequence is -log of the probability, summed over all paths, of its targets. With from_logits the
    log-softmax is part of the loss. Log-probabilities that are normalised pass through it unchanged, so that both they
    and logits may be given, and costs and gradients are torch's. Without from_logits the values are taken as they are,
    and the gradient is that of the cost with respect to just them.

    A sequence that its frames are too few for costs infinity and has zero gradients. There is no limit on the length
    of targets. Can be differentiated once.

    Args:
        log_probs: (T, N, V), or (T, V) for a single sequence; float32 or float64, or half types, for which the loss is
            computed and returned in float32. Any strides.
        targets: symbols, integers from 0 to V - 1 but not the blank. (N, L), padded with anything, or all sequences
            one after the other, (sum of target_lengths,), no more. (L,) for a single sequence.
        input_lengths: (N,), frames of each sequence, 0 to T.
        target_lengths: (N,), symbols of each sequence, 0 to L.
        blank: index of the blank; negative counts from V.
        reduction: "none" gives (N,); "sum" the sum; "mean" the mean over the batch of each cost divided by its number
            of symbols, which is taken as at least 1.
        zero_infinity: a sequence without a path costs 0 instead of infinity.
        from_logits: whether a log-softmax is applied over V.
        inplace: the backward pass writes the gradients where log_probs are, which saves memory of their size; see
            `rnnt_loss`, whose conditions hold here too.
        max_target_length: an upper bound of target_lengths, for targets one after the other. Not given, lengths on the
            host are looked at; for lengths on a GPU the number of targets is taken, and workspace and time grow with
            it. A longer sequence counts as bad input.

    Returns:
        (N,) for "none", () for a single sequence or another reduction.

    Raises:
        TypeError: an argument of another type or dtype.
        ValueError: shapes that disagree, a length or a symbol out of range. The message has the value. On a GPU lengths
            and symbols are checked there: a bad sequence costs NaN and has zero gradients; targets left over are
            refused if the lengths are on the host, and else count as padding.
    """
    x = _checks.activations(log_probs, "log_probs", _SHAPES)
    single = x.dim() == 2
    if single:
        x = x.unsqueeze(1)
    _, batch, classes = x.shape
    device = x.device
    options = _options(classes, blank, reduction, zero_infinity, from_logits)
    padded = isinstance(targets, Tensor) and targets.dim() == 2
    bound = -1
    if max_target_length is not None or not padded:
        bound = _checks.length_bound(
            max_target_length,
            "max_target_length",
            target_lengths,
            "target_lengths",
            "it goes with targets (sum of target_lengths,)" if padded else None,
        )
    given = target_lengths
    keep = _checks.wants_gradient(x)
    costs_alone = not keep and _checks.runs_on_cpu(x)
    input_lengths = _checks.lengths(input_lengths, "input_lengths", batch, device, costs_alone)
    target_lengths = _checks.lengths(target_lengths, "target_lengths", batch, device, costs_alone)
    targets = _checks.integers(targets, "targets", device, costs_alone)
    found = targets.shape
    if len(found) != 1 and (len(found) != 2 or found[0] != batch):
        raise ValueError(f"targets has the shape {tuple(found)}; it must be ({batch}, L) or (sum of target_lengths,)")
    known = None if len(found) == 2 or x.is_cpu else _checks.host_lengths(given, "target_lengths")
    if known is not None and min(known) >= 0:
        _checks.total(targets.numel(), "the number of targets", sum(known), "target_lengths add up to")
    if not (x.is_contiguous() or x.transpose(0, 1).is_contiguous()):
        x = x.contiguous()
    if _checks.flag(inplace, "inplace") and keep:
        _checks.overwritable(x, "log_probs")
    with_gradient = ops.call_ctc_loss_inplace if inplace else ops.call_ctc_loss
    call = ops.ctc_costs_cpu if costs_alone else with_gradient
    loss = call(
        _checks.reduction_of(reduction, batch, target_lengths if reduction == "mean" else None),
        (x, targets, input_lengths, target_lengths),
        (bound, *options, keep),
    )
    return loss[0] if single and reduction == "none" else loss


@_checks.remembered
def _options(
    classes: int, blank: object, reduction: object, zero_infinity: object, from_logits: object
) -> tuple[Any, ...]:
    _checks.choice(reduction, "reduction", _checks.REDUCTIONS)
    return ops.ctc_options(
        input=_C.LOSS_LOGITS if _checks.flag(from_logits, "from_logits") else _C.LOSS_LOG_PROBS,
        blank=_checks.blank_index(blank, classes),
        zero_infinity=_checks.flag(zero_infinity, "zero_infinity"),
    )


class CTCLoss(LossModule):
    """`ctc_loss` as a module, with the signature of torch.nn.CTCLoss."""

    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
        *,
        from_logits: bool = True,
        inplace: bool = False,
    ) -> None:
        super().__init__()
        self.blank = blank
        self.reduction = _checks.choice(reduction, "reduction", _checks.REDUCTIONS)
        self.zero_infinity = zero_infinity
        self.from_logits = from_logits
        self.inplace = inplace

    def forward(
        self,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Tensor | Sequence[int] | int,
        target_lengths: Tensor | Sequence[int] | int,
        *,
        max_target_length: int | None = None,
    ) -> Tensor:
        return ctc_loss(
            log_probs,
            targets,
            input_lengths,
            target_lengths,
            self.blank,
            self.reduction,
            self.zero_infinity,
            from_logits=self.from_logits,
            inplace=self.inplace,
            max_target_length=max_target_length,
        )

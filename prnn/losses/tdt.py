"""TDT, the token-and-duration transducer loss (Xu et al. 2023)."""

from collections.abc import Sequence

from torch import Tensor

from prnn import _C
from prnn._ops import duration as ops
from prnn.losses import _checks
from prnn.losses._module import LossModule
from prnn.losses.rnnt import Lengths, batch_arguments

_SHAPE = {4: "(N, T, U + 1, C)"}


def tdt_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    blank: int,
    durations: Sequence[int],
    reduction: str = "mean",
    fastemit_lambda: float = 0.0,
    clamp: float = -1.0,
    sigma: float = 0.0,
    omega: float = 0.0,
    *,
    duration_logits: Tensor | None = None,
    zero_infinity: bool = False,
) -> Tensor:
    """Token-and-duration transducer loss (Xu et al. 2023, arXiv:2304.06795), with the options of NeMo's.

    In every frame that is visited a token, a symbol or the blank, and a duration are predicted, each with a softmax of
    its own; the duration says how many frames on the next prediction is made. A symbol may take the duration 0, a blank
    may not. The cost of a sequence is -log of the probability, summed over all paths, of its targets; a path ends by a
    blank whose duration leads exactly to T_n. docs/losses.md has the formulas. Can be differentiated once.

    Args:
        logits: (N, T, U + 1, V + D), the V token logits of a cell, its symbols and the blank, followed by its D
            duration logits; or (N, T, U + 1, V), with duration_logits beside them. float32 or float64, or half types,
            for which the loss is computed and returned in float32.
        targets: (N, U) symbols, integers from 0 to V - 1 but not the blank, padded with anything.
        logit_lengths: (N,), frames T_n of each sequence, 1 to T.
        target_lengths: (N,), symbols U_n of each sequence, 0 to U.
        blank: index of the blank; negative counts from V, so that -1 is the last token.
        durations: the number of frames that each of the D duration logits stands for: 1 to 16 different integers, none
            negative, at least one positive; [0, 1, 2, 3, 4], say.
        reduction: "none", "sum", or "mean" over the batch.
        fastemit_lambda: FastEmit (Yu et al. 2021): the gradients of the scores of symbols' arcs are multiplied by
            1 + fastemit_lambda. The cost is not changed.
        clamp: each element of the gradient with respect to logits is limited to [-clamp, clamp], before it is
            multiplied with what comes from the reduction; <= 0: not limited.
        sigma: logit under-normalisation: the token's log-probability is lowered by sigma, at every arc of a path, so
            that paths of fewer arcs, with longer durations, score more. The paper uses 0.05.
        omega: 0 to 1: the cost is 1 - omega times that of TDT plus omega times the RNN-T loss of the token logits
            (without sigma). This is the expectation of what NeMo does, which draws one of the two for each batch with
            probability omega; to draw them, give 1.0 or 0.0. The paper uses 0.1.
        duration_logits: (N, T, U + 1, D), dtype and device those of logits; None: they are the last D of logits.
        zero_infinity: a sequence without a path costs 0 instead of infinity. Its gradients are zero in either case.

    Returns:
        The loss: (N,) for "none", else ().

    Raises:
        TypeError: an argument of another type or dtype.
        ValueError: shapes that disagree, a length, symbol or duration out of range. The message has the value.
    """
    x = _checks.activations(logits, "logits", _SHAPE)
    steps = _checks.durations(durations, "durations")
    own = None if duration_logits is None else _checks.activations(duration_logits, "duration_logits", _SHAPE)
    classes = x.shape[-1]
    if own is None:
        classes -= len(steps)
        if classes < 1:
            raise ValueError(f"logits has the shape {tuple(x.shape)}; with {len(steps)} durations C must be larger")
    elif own.shape != (*x.shape[:-1], len(steps)):
        wanted = (*x.shape[:-1], len(steps))
        raise ValueError(
            f"duration_logits has the shape {tuple(own.shape)}; with logits {tuple(x.shape)} it must be {wanted}"
        )
    elif own.dtype != x.dtype or own.device != x.device:
        raise ValueError(
            f"duration_logits is {own.dtype} on {own.device}; it must be {x.dtype} on {x.device}, as logits"
        )
    _checks.choice(reduction, "reduction", _checks.REDUCTIONS)
    tensors = (
        x.contiguous(),
        None if own is None else own.contiguous(),
        *batch_arguments(x, targets, logit_lengths, target_lengths),
    )
    rest = (
        steps,
        *ops.duration_options(
            type=_C.DURATION_TDT,
            blank=_checks.blank_index(blank, classes),
            sigma=_checks.number(sigma, "sigma"),
            omega=_checks.number(omega, "omega", 0.0, 1.0),
            fastemit_lambda=_checks.number(fastemit_lambda, "fastemit_lambda", 0.0),
            clamp=_checks.clamp_limit(clamp),
            zero_infinity=_checks.flag(zero_infinity, "zero_infinity"),
        ),
        _checks.wants_gradient(x) or (own is not None and _checks.wants_gradient(own)),
    )
    # The direct call looks at the gradient that its first argument wants, and with logits apart there are two.
    if own is None:
        return ops.call_duration_rnnt_loss(_checks.reduction_of(reduction, x.shape[0]), tensors, rest)
    return _checks.reduce(ops.duration_rnnt_loss(*tensors, *rest)[0], reduction)


class TDTLoss(LossModule):
    """`tdt_loss` as a module, with the arguments of NeMo's TDTLossNumba."""

    def __init__(
        self,
        blank: int,
        durations: Sequence[int],
        reduction: str = "mean",
        fastemit_lambda: float = 0.0,
        clamp: float = -1.0,
        sigma: float = 0.0,
        omega: float = 0.0,
        *,
        zero_infinity: bool = False,
    ) -> None:
        super().__init__()
        self.blank = blank
        self.durations = _checks.durations(durations, "durations")
        self.reduction = _checks.choice(reduction, "reduction", _checks.REDUCTIONS)
        self.fastemit_lambda = fastemit_lambda
        self.clamp = clamp
        self.sigma = sigma
        self.omega = omega
        self.zero_infinity = zero_infinity

    def forward(
        self,
        logits: Tensor,
        targets: Tensor,
        logit_lengths: Lengths,
        target_lengths: Lengths,
        duration_logits: Tensor | None = None,
    ) -> Tensor:
        return tdt_loss(
            logits,
            targets,
            logit_lengths,
            target_lengths,
            self.blank,
            self.durations,
            self.reduction,
            self.fastemit_lambda,
            self.clamp,
            self.sigma,
            self.omega,
            duration_logits=duration_logits,
            zero_infinity=self.zero_infinity,
        )

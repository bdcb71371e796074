"""The multi-blank transducer loss (Xu et al. 2022)."""

from collections.abc import Sequence

from torch import Tensor

from prnn import _C
from prnn._ops import duration as ops
from prnn.losses import _checks
from prnn.losses._module import LossModule
from prnn.losses.rnnt import Lengths, batch_arguments


def multi_blank_rnnt_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    blank: int,
    big_blank_durations: Sequence[int],
    reduction: str = "mean",
    fastemit_lambda: float = 0.0,
    clamp: float = -1.0,
    sigma: float = 0.0,
    *,
    zero_infinity: bool = False,
) -> Tensor:
    """Multi-blank transducer loss (Xu et al. 2022, arXiv:2211.03541), with the options and indices of NeMo's.

    RNN-T with additional classes, big blanks, each of which goes on by a fixed number of frames at once. The cost of a
    sequence is -log of the probability, summed over all paths, of its targets; no blank leads beyond T_n.
    docs/losses.md has the formulas. Can be differentiated once.

    Args:
        logits: (N, T, U + 1, V), over symbols, big blanks and the blank. float32 or float64, or half types, for which
            the loss is computed and returned in float32.
        targets: (N, U) symbols, integers from 0 to V - 1 but no blank, padded with anything.
        logit_lengths: (N,), frames T_n of each sequence, 1 to T.
        target_lengths: (N,), symbols U_n of each sequence, 0 to U.
        blank: index of the blank of one frame; negative counts from V, so that -1 is the last.
        big_blank_durations: the frames of big blank i, which has the index blank - 1 - i: up to 16 different integers
            of at least 2; [2, 4, 8], say. Empty is RNN-T.
        reduction: "none", "sum", or "mean" over the batch.
        fastemit_lambda: FastEmit (Yu et al. 2021): the gradients of symbols' log-probabilities are multiplied by
            1 + fastemit_lambda. The cost is not changed.
        clamp: each element of the gradient with respect to logits is limited to [-clamp, clamp], before it is
            multiplied with what comes from the reduction; <= 0: not limited.
        sigma: logit under-normalisation: every log-probability is lowered by sigma, so that paths of fewer arcs, with
            big blanks, score more. The paper uses 0.05.
        zero_infinity: a sequence without a path costs 0 instead of infinity. Its gradients are zero in either case.

    Returns:
        The loss: (N,) for "none", else ().

    Raises:
        TypeError: an argument of another type or dtype.
        ValueError: shapes that disagree, a length, symbol or duration out of range. The message has the value.
    """
    x = _checks.activations(logits, "logits", {4: "(N, T, U + 1, V)"})
    _checks.choice(reduction, "reduction", _checks.REDUCTIONS)
    return ops.call_duration_rnnt_loss(
        _checks.reduction_of(reduction, x.shape[0]),
        (x.contiguous(), None, *batch_arguments(x, targets, logit_lengths, target_lengths)),
        (
            _checks.durations(big_blank_durations, "big_blank_durations"),
            *ops.duration_options(
                type=_C.DURATION_MULTI_BLANK,
                blank=_checks.blank_index(blank, x.shape[-1]),
                sigma=_checks.number(sigma, "sigma"),
                fastemit_lambda=_checks.number(fastemit_lambda, "fastemit_lambda", 0.0),
                clamp=_checks.clamp_limit(clamp),
                zero_infinity=_checks.flag(zero_infinity, "zero_infinity"),
            ),
            _checks.wants_gradient(x),
        ),
    )


class MultiBlankRNNTLoss(LossModule):
    """`multi_blank_rnnt_loss` as a module, with the arguments of NeMo's MultiblankRNNTLossNumba."""

    def __init__(
        self,
        blank: int,
        big_blank_durations: Sequence[int],
        reduction: str = "mean",
        fastemit_lambda: float = 0.0,
        clamp: float = -1.0,
        sigma: float = 0.0,
        *,
        zero_infinity: bool = False,
    ) -> None:
        super().__init__()
        self.blank = blank
        self.big_blank_durations = _checks.durations(big_blank_durations, "big_blank_durations")
        self.reduction = _checks.choice(reduction, "reduction", _checks.REDUCTIONS)
        self.fastemit_lambda = fastemit_lambda
        self.clamp = clamp
        self.sigma = sigma
        self.zero_infinity = zero_infinity

    def forward(self, logits: Tensor, targets: Tensor, logit_lengths: Lengths, target_lengths: Lengths) -> Tensor:
        return multi_blank_rnnt_loss(
            logits,
            targets,
            logit_lengths,
            target_lengths,
            self.blank,
            self.big_blank_durations,
            self.reduction,
            self.fastemit_lambda,
            self.clamp,
            self.sigma,
            zero_infinity=self.zero_infinity,
        )

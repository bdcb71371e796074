"""warp_rnnt (1ytic/warp-rnnt 0.7): `from prnn.compat import warp_rnnt`.

Log-probabilities in, one cost a sequence out; blank 0 and no reduction unless told otherwise. Beyond the original: the
CPU, float64, lengths and labels of any integer type. Symbols that are the blank are refused.
"""

from typing import Any

from torch import Tensor

import prnn
from prnn.compat._names import names
from prnn.losses._module import refuse_scripting

__all__ = ["RNNTLoss", "RNNTLossCompact", "rnnt_loss"]


@names(logits="log_probs", targets="labels", logit_lengths="frames_lengths", target_lengths="labels_lengths")
def rnnt_loss(
    log_probs: Tensor,
    labels: Tensor,
    frames_lengths: Tensor,
    labels_lengths: Tensor,
    average_frames: bool | None = False,
    reduction: str | None = "none",
    blank: int = 0,
    gather: bool = False,
    fastemit_lambda: float = 0.0,
    compact: bool = False,
) -> Tensor:
    """RNN-T loss of log-probabilities.

    Args:
        log_probs: (N, T, U, V), or compact: (sum of frames_lengths (labels_lengths + 1), V).
        labels: (N, U - 1), or compact: (sum of labels_lengths,).
        frames_lengths, labels_lengths: (N,).
        average_frames: each cost is divided by its number of frames.
        reduction: "none" or None, "sum", or "mean" over the batch.
        blank: index of the blank. -1: log_probs are (N, T, U, 2), of the blank and of the next label.
        gather: without effect; results are equal, and prnn keeps four numbers a cell in either case.
        fastemit_lambda: FastEmit; the costs are not changed.
        compact: the packed layout. Its lengths are waited for, as in the original.

    Returns:
        (N,) or (), dtype of log_probs.
    """
    return prnn.rnnt_loss(
        log_probs,
        labels,
        frames_lengths,
        labels_lengths,
        blank,
        reduction="none" if reduction is None else reduction,
        fused_log_softmax=False,
        gathered=blank == -1,
        average_frames=bool(average_frames),
        fastemit_lambda=fastemit_lambda,
        max_frames=int(frames_lengths.max()) if compact else None,
        max_target_length=int(labels_lengths.max()) if compact else None,
    )


class RNNTLoss:
    """The original's autograd function: `RNNTLoss.apply(...)` gives costs (N,)."""

    @staticmethod
    def apply(
        log_probs: Tensor,
        labels: Tensor,
        frames_lengths: Tensor,
        labels_lengths: Tensor,
        blank: int = 0,
        fastemit_lambda: float = 0.0,
    ) -> Tensor:
        return rnnt_loss(
            log_probs, labels, frames_lengths, labels_lengths, blank=blank, fastemit_lambda=fastemit_lambda
        )


class RNNTLossCompact:
    """The loss of the packed layout. Whether gradients are wanted follows from log_probs."""

    @staticmethod
    def apply(
        log_probs: Tensor,
        labels: Tensor,
        frames_lengths: Tensor,
        labels_lengths: Tensor,
        blank: int = 0,
        fastemit_lambda: float = 0.0,
        *unused: Any,
    ) -> Tensor:
        return rnnt_loss(
            log_probs,
            labels,
            frames_lengths,
            labels_lengths,
            blank=blank,
            fastemit_lambda=fastemit_lambda,
            compact=True,
        )


refuse_scripting(globals()[name] for name in __all__)

"""optimized_transducer (csukuangfj): `from prnn.compat import optimized_transducer`.

Packed logits or log-probabilities in; no default blank; the loss has the shape (). As in the original, the gradients of
logits are written where the logits are, unless these are a leaf. Beyond the original: float64, half types, lengths and
targets of any integer type.
"""

from torch import Tensor

import prnn
from prnn.losses._module import LossModule, refuse_scripting

__all__ = ["TransducerLoss", "transducer_loss"]


def transducer_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    from_log_softmax: bool,
    one_sym_per_frame: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """RNN-T loss of packed logits.

    Args:
        logits: (sum of logit_lengths (target_lengths + 1), V), sequence after sequence, frame after frame.
        targets: (N, U), padded.
        logit_lengths, target_lengths: (N,). Those of a GPU are waited for, as in the original.
        blank: index of the blank.
        from_log_softmax: logits are log-probabilities.
        one_sym_per_frame: at most one symbol a frame, and the blank in the last one: `rnnt_type="final_blank"` of
            `prnn.rnnt_loss`.
        reduction: "mean" over the batch, or "sum".

    Returns:
        ().
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}; it must be 'mean' or 'sum'")
    return prnn.rnnt_loss(
        logits,
        targets,
        logit_lengths,
        target_lengths,
        blank,
        reduction=reduction,
        fused_log_softmax=not from_log_softmax,
        rnnt_type="final_blank" if one_sym_per_frame else "regular",
        inplace=not from_log_softmax and not logits.is_leaf and logits._base is None,
        max_frames=int(logit_lengths.max()),
    )


class TransducerLoss(LossModule):
    """`transducer_loss` as a module."""

    def __init__(self, blank: int, reduction: str = "mean") -> None:
        super().__init__()
        self.blank = blank
        self.reduction = reduction

    def forward(
        self,
        logits: Tensor,
        targets: Tensor,
        logit_lengths: Tensor,
        target_lengths: Tensor,
        from_log_softmax: bool,
        one_sym_per_frame: bool = False,
    ) -> Tensor:
        return transducer_loss(
            logits,
            targets,
            logit_lengths,
            target_lengths,
            self.blank,
            from_log_softmax,
            one_sym_per_frame,
            self.reduction,
        )


refuse_scripting(globals()[name] for name in __all__)

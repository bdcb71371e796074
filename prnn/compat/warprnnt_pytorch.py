"""warprnnt_pytorch (HawkAaron/warp-transducer): `from prnn.compat import warprnnt_pytorch`.

Logits in; blank 0; "mean" is over the batch, whatever the target lengths; a reduced loss has the shape (1,). Beyond the
original: lengths and labels of any integer type, activations of any strides.
"""

from torch import Tensor

import prnn
from prnn.compat._names import names
from prnn.compat._results import write_costs_and_gradients
from prnn.losses._module import LossModule, refuse_scripting

__all__ = ["RNNTLoss", "cpu_rnnt", "gpu_rnnt", "rnnt_loss"]


@names(logits="acts", targets="labels", logit_lengths="act_lens", target_lengths="label_lens")
def rnnt_loss(
    acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor, blank: int = 0, reduction: str = "mean"
) -> Tensor:
    """RNN-T loss of logits.

    Args:
        acts: (N, T, U, V).
        labels: (N, U - 1).
        act_lens, label_lens: (N,).
        blank: index of the blank.
        reduction: "none", "sum", or "mean" over the batch.

    Returns:
        (N,) for "none", else (1,); dtype and device of acts.
    """
    loss = prnn.rnnt_loss(acts, labels, act_lens, label_lens, blank, reduction=reduction)
    return loss.reshape(-1).to(acts.dtype)


class RNNTLoss(LossModule):
    """`rnnt_loss` as a module."""

    def __init__(self, blank: int = 0, reduction: str = "mean") -> None:
        super().__init__()
        self.blank = blank
        self.reduction = reduction

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        return rnnt_loss(acts, labels, act_lens, label_lens, self.blank, self.reduction)


def cpu_rnnt(
    acts: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    costs: Tensor,
    grads: Tensor,
    blank_label: int,
    num_threads: int,
) -> int:
    """Costs (N,) of log-probabilities, and their gradients unless grads is empty, into costs and grads. Returns 0."""
    return _compute(acts, labels, input_lengths, label_lengths, costs, grads, blank_label, fused_log_softmax=False)


def gpu_rnnt(
    acts: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    costs: Tensor,
    grads: Tensor,
    blank_label: int,
    num_threads: int,
) -> int:
    """The loss of logits on a GPU; costs lie on either device."""
    return _compute(acts, labels, input_lengths, label_lengths, costs, grads, blank_label, fused_log_softmax=True)


@names(
    logits="acts", targets="labels", logit_lengths="input_lengths", target_lengths="label_lengths", blank="blank_label"
)
def _compute(
    acts: Tensor,
    labels: Tensor,
    input_lengths: Tensor,
    label_lengths: Tensor,
    costs: Tensor,
    grads: Tensor,
    blank: int,
    fused_log_softmax: bool,
) -> int:
    write_costs_and_gradients(
        lambda x: prnn.rnnt_loss(
            x, labels, input_lengths, label_lengths, blank, reduction="none", fused_log_softmax=fused_log_softmax
        ),
        acts,
        costs,
        grads,
    )
    return 0


refuse_scripting(globals()[name] for name in __all__)

"""warpctc_pytorch (SeanNaren/warp-ctc): `from prnn.compat import warpctc_pytorch`.

Logits in; the loss is the sum over the batch, of the shape (1,) and on the CPU, unless an average is asked for; a
sequence without a path costs 0. Beyond the original: float64, lengths and labels of any integer type and on any device.
"""

from torch import Tensor

import prnn
from prnn.compat._names import names
from prnn.compat._results import write_costs_and_gradients
from prnn.losses._module import LossModule, refuse_scripting

__all__ = ["CTCLoss", "cpu_ctc", "gpu_ctc"]


class CTCLoss(LossModule):
    """CTC loss of logits.

    Args:
        blank: index of the blank.
        size_average: the sum is divided by the batch size.
        length_average: the sum is divided by the number of all frames; size_average is not looked at then.
    """

    def __init__(self, blank: int = 0, size_average: bool = False, length_average: bool = False) -> None:
        super().__init__()
        self.blank = blank
        self.size_average = size_average
        self.length_average = length_average

    @names(log_probs="acts", targets="labels", input_lengths="act_lens", target_lengths="label_lens")
    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        """acts (T, N, V), labels of all sequences one after the other, act_lens and label_lens (N,): the loss (1,), in
        float32 and on the CPU wherever acts are."""
        if labels.dim() != 1:
            raise ValueError(f"labels has the shape {tuple(labels.shape)}; it must be (sum of label_lens,)")
        loss = prnn.ctc_loss(acts, labels, act_lens, label_lens, self.blank, "sum", zero_infinity=True)
        if self.length_average:
            loss = loss / int(act_lens.sum())
        elif self.size_average:
            loss = loss / acts.shape[1]
        return loss.reshape(1).float().cpu()


@names(log_probs="probs", targets="labels", input_lengths="sizes", target_lengths="label_sizes", blank="blank_label")
def cpu_ctc(
    probs: Tensor,
    grads: Tensor,
    labels: Tensor,
    label_sizes: Tensor,
    sizes: Tensor,
    minibatch_size: int,
    costs: Tensor,
    blank_label: int,
) -> int:
    """Costs (N,) of logits (T, N, V), and their gradients unless grads is empty, into costs and grads. Returns 1."""
    write_costs_and_gradients(
        lambda x: prnn.ctc_loss(x, labels, sizes, label_sizes, blank_label, "none", zero_infinity=True),
        probs,
        costs,
        grads,
    )
    return 1


gpu_ctc = cpu_ctc


refuse_scripting(globals()[name] for name in __all__)

"""speechbrain's transducer loss: `from prnn.compat import speechbrain`, or `prnn.compat.install("speechbrain")`.

`transducer_loss` of speechbrain.nnet.losses, whose lengths are fractions, and `TransducerLoss` of its numba
implementation. Logits in. As in that implementation, each cost is divided by its number of frames, its gradient is not,
and the gradient of "mean" is that of the sum. With use_torchaudio, which versions before 1.1 have and default to, costs
and gradients are torchaudio's: nothing is divided by the frames, and "mean" has its own gradient. Beyond the original:
the CPU.
"""

import functools
import importlib
import inspect
from typing import Any

from torch import Tensor

import prnn
from prnn.compat._names import names
from prnn.compat._results import with_gradient_of
from prnn.losses._module import LossModule, refuse_scripting

__all__ = ["TransducerLoss", "transducer_loss"]


@names(logit_lengths="input_lens", target_lengths="target_lens", blank="blank_index")
def transducer_loss(
    logits: Tensor,
    targets: Tensor,
    input_lens: Tensor,
    target_lens: Tensor,
    blank_index: int,
    reduction: str = "mean",
    use_torchaudio: bool = False,
) -> Tensor:
    """RNN-T loss of logits.

    Args:
        logits: (N, T, U, V).
        targets: (N, U - 1).
        input_lens, target_lens: (N,), lengths as fractions of T and of U - 1.
        blank_index: index of the blank.
        reduction: "none", "sum", or "mean" over the batch.
        use_torchaudio: costs and gradients as torchaudio's; see the module.

    Returns:
        (N,) or (), dtype of logits.
    """
    frames = (input_lens * logits.shape[1]).round().int()
    lengths = (target_lens * targets.shape[1]).round().int()
    if use_torchaudio:
        return prnn.rnnt_loss(logits, targets, frames, lengths, blank_index, reduction=reduction).to(logits.dtype)
    return _averaged(logits, targets, frames, lengths, blank_index, reduction)


def _averaged(logits: Tensor, labels: Tensor, frames: Tensor, lengths: Tensor, blank: int, reduction: str) -> Tensor:
    """The numba implementation's values and gradients."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}; it must be one of 'none', 'mean', 'sum'")
    costs = prnn.rnnt_loss(logits, labels, frames, lengths, blank, reduction="none").to(logits.dtype)
    values = costs.detach() / frames.to(costs.device)
    if reduction == "none":
        return with_gradient_of(values, costs)
    return with_gradient_of(values.mean() if reduction == "mean" else values.sum(), costs.sum())


class TransducerLoss(LossModule):
    """The loss of logits (N, T, U, V) with lengths in frames and labels."""

    def __init__(self, blank: int = 0, reduction: str = "mean") -> None:
        super().__init__()
        self.blank = blank
        self.reduction = reduction

    @names(targets="labels", logit_lengths="T", target_lengths="U")
    def forward(self, logits: Tensor, labels: Tensor, T: Tensor, U: Tensor) -> Tensor:
        return _averaged(logits, labels, T, U, self.blank, self.reduction)


def _install() -> list[str]:
    """Replaces speechbrain's function in speechbrain, with the default of the version that is installed."""
    losses: Any = importlib.import_module("speechbrain.nnet.losses")
    present = losses.transducer_loss
    if getattr(present, "func", present) is transducer_loss:
        return []
    has_choice = "use_torchaudio" in inspect.signature(present).parameters
    losses.transducer_loss = functools.partial(transducer_loss, use_torchaudio=True) if has_choice else transducer_loss
    return [f"{losses.__name__}.transducer_loss"]


refuse_scripting(globals()[name] for name in __all__)

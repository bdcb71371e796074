"""From the costs of a batch to the number that is differentiated, and back."""

from typing import NamedTuple

from torch import Tensor


class Reduction(NamedTuple):
    """The mean over the batch, or the sum, of costs[n] / max(1, lengths[n]); without lengths nothing is divided by."""

    mean: bool
    batch: int
    lengths: Tensor | None = None

    def changes_nothing(self) -> bool:
        """Whether the loss is the batch's only cost."""
        return self.batch == 1 and self.lengths is None

    def of(self, costs: Tensor) -> Tensor:
        """In torch operations, which can be traced and differentiated."""
        if self.lengths is not None:
            costs = costs / self.lengths.clamp(min=1)
        return costs.mean() if self.mean else costs.sum()

    def spread(self, gradient: Tensor) -> Tensor:
        """The gradients of the costs, likewise."""
        gradients = (gradient / self.batch if self.mean else gradient).expand(self.batch)
        return gradients if self.lengths is None else gradients / self.lengths.clamp(min=1)

    def weights(self) -> tuple[float, int]:
        """As libprnn takes them: the factor of all costs, and the address of the lengths."""
        return 1.0 / self.batch if self.mean else 1.0, 0 if self.lengths is None else self.lengths.data_ptr()

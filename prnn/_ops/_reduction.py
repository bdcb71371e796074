"""From the costs of a batch to the number that is differentiated, and back, in one launch each."""

from typing import NamedTuple

from torch import Tensor

from prnn import _C
from prnn._ops._handles import DTYPES


class Reduction(NamedTuple):
    """The mean over the batch, or the sum, of costs[n] / max(1, lengths[n]); without lengths nothing is divided by."""

    mean: bool
    lengths: Tensor | None = None

    def of(self, costs: Tensor) -> Tensor:
        """In torch operations, which can be traced and differentiated."""
        if self.lengths is not None:
            costs = costs / self.lengths.clamp(min=1)
        return costs.mean() if self.mean else costs.sum()

    def spread(self, gradient: Tensor, batch: int) -> Tensor:
        """The gradients of the costs, likewise."""
        gradients = (gradient / batch if self.mean else gradient).expand(batch)
        return gradients if self.lengths is None else gradients / self.lengths.clamp(min=1)

    def run(self, library: _C.Handle, costs: Tensor) -> Tensor:
        """The loss, by the library; the costs' GPU must be the current one."""
        loss = costs.new_empty(())
        addresses = costs.data_ptr(), loss.data_ptr()
        _C.reduce_costs(library, DTYPES[costs.dtype], *self._weights(costs), *addresses)
        return loss

    def run_backward(self, library: _C.Handle, gradient: Tensor, batch: int) -> Tensor:
        """The gradients of the costs, likewise."""
        gradients = gradient.new_empty(batch)
        addresses = gradient.data_ptr(), gradients.data_ptr()
        _C.reduce_costs_backward(library, DTYPES[gradient.dtype], *self._weights(gradients), *addresses)
        return gradients

    def _weights(self, costs: Tensor) -> tuple[int, float, int]:
        batch = costs.shape[0]
        return batch, 1.0 / batch if self.mean else 1.0, 0 if self.lengths is None else self.lengths.data_ptr()

"""From the costs of a batch to the number that is differentiated, and back."""

from torch import Tensor

# (mean, batch, lengths): the mean over the batch, or the sum, of costs[n] / max(1, lengths[n]); without lengths nothing
# is divided by. A tuple, which takes less time to make than an object.
Reduction = tuple[bool, int, Tensor | None]

# As libprnn takes it: the factor of all costs, and the address of the lengths.
Weights = tuple[float, int]


def reduce_costs(costs: Tensor, reduction: Reduction) -> Tensor:
    """In torch operations, which can be traced and differentiated."""
    mean, _, lengths = reduction
    if lengths is not None:
        costs = costs / lengths.clamp(min=1)
    return costs.mean() if mean else costs.sum()


def spread_gradient(gradient: Tensor, reduction: Reduction) -> Tensor:
    """The gradients of the costs, likewise."""
    mean, batch, lengths = reduction
    gradients = (gradient / batch if mean else gradient).expand(batch)
    return gradients if lengths is None else gradients / lengths.clamp(min=1)


def weights_of(reduction: Reduction) -> Weights | None:
    """None where the loss is the batch's only cost."""
    mean, batch, lengths = reduction
    if lengths is None:
        return None if batch == 1 else (1.0 / batch if mean else 1.0, 0)
    return 1.0 / batch if mean else 1.0, lengths.data_ptr()

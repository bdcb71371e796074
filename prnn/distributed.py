"""Training on several GPUs, with a process for each."""

from __future__ import annotations

import math
from itertools import chain, zip_longest

import torch
from torch import Tensor, nn
from torch.distributed import ReduceOp, all_gather_object, all_reduce, broadcast, get_world_size

__all__ = ["GradientMean", "batch_share"]


class GradientMean:
    """The mean of a model's gradients over all processes, in the place of `DistributedDataParallel`:

        average = GradientMean(model, torch.bfloat16)   # once
        model(*batch).backward()
        average()
        optimizer.step()

    A recurrent stack has the gradients of all its weights at its end: they are sent together, by one reduction. The
    model's inputs stay where they are, lengths on the CPU. Backward may come several times before a call, and processes
    may use different parameters. docs/transducer.md has what it costs.

    Args:
        module: its parameters are of one dtype and on one device. torch.distributed's default group must exist, and all
            processes must have the same model; they begin with the first one's weights. Every process makes the object,
            and calls it, as often as the others.
        dtype: in which gradients are added up; None is their own. bfloat16 halves the time, and rounds by as much as
            bfloat16 autocast has rounded the gradients already.

    The mean counts every process alike. Where batches differ in size, see `batch_share`.

    Raises:
        ValueError: parameters of different dtypes or devices, or processes with different models; in all of them.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype | None = None) -> None:
        self._module = module
        self._dtype = dtype
        kinds = {f"{parameter.dtype} on {parameter.device}" for parameter in self._parameters()}
        if len(kinds) != 1:
            raise ValueError(f"the parameters are {', '.join(sorted(kinds)) or 'none'}; they must be of one kind")
        _require_same_model(module)
        with torch.no_grad():
            for tensor in chain(module.parameters(), module.buffers()):
                broadcast(tensor, src=0)

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self._module.parameters() if parameter.requires_grad]

    @torch.no_grad()
    def __call__(self) -> None:
        """Puts the mean in the place of each gradient. A parameter without a gradient counts as having zeros."""
        parameters = self._parameters()
        sizes = [parameter.numel() for parameter in parameters]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        mean = torch.empty(sum(sizes), dtype=self._dtype or parameters[0].dtype, device=parameters[0].device)
        pieces = mean.split(sizes)
        torch._foreach_copy_([piece.view(grad.shape) for piece, grad in zip(pieces, grads, strict=True)], grads)
        if mean.is_cuda:
            all_reduce(mean, ReduceOp.AVG)
        else:  # gloo has no mean
            all_reduce(mean)
            mean /= get_world_size()
        mean = mean.to(parameters[0].dtype)
        for parameter, piece in zip(parameters, mean.split(sizes), strict=True):
            parameter.grad = piece.view(parameter.shape)


def batch_share(weight: float, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    """The factor of a mean loss with which `GradientMean` gives the gradients of the loss over all processes' batches,
    although these differ in size:

        share = batch_share(len(features), features.device)
        (model(features, ...) * share).backward()
        average()

    Every process calls it as often as the others. One whose data has ended calls ``batch_share(0)``, and then
    `GradientMean`, without a backward.

    Args:
        weight: what this process's loss is the mean over, 0 or more: utterances for the mean of prnn's transducers and
            transducer losses, target symbols or frames where a loss divides by these.
        device: of the result, one that the default process group communicates on.
        dtype: of the result.

    Returns:
        A scalar: weight x processes / the sum of all processes' weights; 1 where all are equal, 0 where all are 0.
        Nothing waits for the GPU.

    Raises:
        ValueError: a weight that is negative or not finite; in this process alone.
    """
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"weight is {weight}; it must be a finite number of at least 0")
    total = torch.full((), weight, dtype=torch.float64, device=device)
    all_reduce(total)
    share = torch.where(total > 0, weight * get_world_size() / total, 0)
    return share.to(dtype)


def _require_same_model(module: nn.Module) -> None:
    """Tensors of other sizes than the first process's would end or hang the processes."""
    mine = [
        f"{name} of shape {tuple(tensor.shape)} and {tensor.dtype}{' with a gradient' * tensor.requires_grad}"
        for name, tensor in chain(module.named_parameters(), module.named_buffers())
    ]
    all_models: list[list[str]] = [[] for _ in range(get_world_size())]
    all_gather_object(all_models, mine)
    for rank, model in enumerate(all_models):
        for first, other in zip_longest(all_models[0], model, fillvalue="nothing"):
            if first != other:
                raise ValueError(f"the processes have different models: process 0 has {first}, process {rank} {other}")

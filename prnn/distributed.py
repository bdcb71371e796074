"""Training on several GPUs, with a process for each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.distributed import ReduceOp, Work, all_reduce, broadcast, get_world_size

__all__ = ["GradientMean"]


class GradientMean:
    """The mean of a model's gradients over all processes, in the place of `DistributedDataParallel`:

        average = GradientMean(model, torch.bfloat16, early=model.encoder)   # once
        model(*batch).backward()
        average()
        optimizer.step()

    A recurrent stack has the gradients of all its weights at its end: they are sent together, by one reduction. The
    model's inputs stay where they are, lengths on the CPU. Backward may come several times before a call.
    docs/transducer.md has what it costs.

    Args:
        module: its parameters are of one dtype and on one device. torch.distributed's default group must exist, and all
            processes must have the same model; they begin with the first one's weights.
        dtype: in which gradients are added up; None is their own. bfloat16 halves the time, and rounds by as much as
            bfloat16 autocast has rounded the gradients already.
        early: a part of the module whose gradients come before others, sent while those are computed.

    Raises:
        ValueError: parameters of different dtypes or devices.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype | None = None, early: nn.Module | None = None) -> None:
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        kinds = {f"{parameter.dtype} on {parameter.device}" for parameter in parameters}
        if len(kinds) != 1:
            raise ValueError(f"the parameters are {', '.join(sorted(kinds)) or 'none'}; they must be of one kind")
        with torch.no_grad():
            for tensor in chain(module.parameters(), module.buffers()):
                broadcast(tensor, src=0)
        first = set() if early is None else set(early.parameters())
        self._early = _Part([parameter for parameter in parameters if parameter in first], dtype)
        self._rest = _Part([parameter for parameter in parameters if parameter not in first], dtype)
        self._early.begin_after_backward()

    def __call__(self) -> None:
        """Puts the mean in the place of each gradient. A parameter without a gradient counts as having zeros."""
        if not self._early.begun:
            self._early.begin()
        self._rest.begin()
        self._early.end()
        self._rest.end()


class _Part:
    """Gradients that are sent together."""

    def __init__(self, parameters: Sequence[nn.Parameter], dtype: torch.dtype | None) -> None:
        self._parameters = parameters
        self._dtype = dtype
        self._missing = len(parameters)
        self._sum: Tensor | None = None
        self._work: Work | None = None

    @property
    def begun(self) -> bool:
        return self._work is not None

    def begin_after_backward(self) -> None:
        """Begins whenever backward has brought all gradients."""

        def count(_: Tensor) -> None:
            self._missing -= 1
            if self._missing == 0:
                self.begin()

        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(count)

    @torch.no_grad()
    def begin(self) -> None:
        self._missing = len(self._parameters)
        if self._work is not None:  # of a backward before: these gradients have what it had
            self._work.wait()
        if not self._parameters:
            return
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        size = sum(grad.numel() for grad in grads)
        self._sum = torch.empty(size, dtype=self._dtype or grads[0].dtype, device=grads[0].device)
        pieces = self._sum.split([grad.numel() for grad in grads])
        torch._foreach_copy_([piece.view(grad.shape) for piece, grad in zip(pieces, grads, strict=True)], grads)
        # Gloo, on the CPU, has no mean.
        self._work = all_reduce(self._sum, ReduceOp.AVG if self._sum.is_cuda else ReduceOp.SUM, async_op=True)

    @torch.no_grad()
    def end(self) -> None:
        if self._work is None or self._sum is None:
            return
        self._work.wait()
        means = self._sum.to(self._parameters[0].dtype)
        if not means.is_cuda:
            means /= get_world_size()
        for parameter, mean in zip(self._parameters, means.split([p.numel() for p in self._parameters]), strict=True):
            parameter.grad = mean.view(parameter.shape)
        self._sum = self._work = None
        self._missing = len(self._parameters)

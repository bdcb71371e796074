"""Several processes that train together: on the devices of one machine, or of several."""

from __future__ import annotations

import os

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import distributed

from prnn.distributed import GradientMean

from .errors import InputError
from .options import TrainingOptions


class DataParallel(DDPStrategy):
    """GradientMean in the place of DistributedDataParallel; `dtype` is GradientMean's."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self._dtype = dtype

    def configure_ddp(self) -> None:
        assert self.model is not None
        self._average = GradientMean(self.model, self._dtype)

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        assert self.lightning_module is not None
        if not self.lightning_module.trainer.fit_loop.epoch_loop._should_accumulate():
            self._average()


def under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def require_processes(options: TrainingOptions) -> None:
    """Raises InputError unless the processes that there are, or that Lightning can start, are those of the options."""
    if not under_torchrun():
        if options.num_nodes > 1:
            raise InputError(
                f"num_nodes is {options.num_nodes}: torchrun must start prnn train on every node "
                f"(torchrun --nnodes {options.num_nodes} --nproc-per-node {options.devices} -m prnn train ...)"
            )
        return
    for name, variable in (("devices", "LOCAL_WORLD_SIZE"), ("processes", "WORLD_SIZE")):
        started, wanted = int(os.environ[variable]), getattr(options, name)
        if started != wanted:
            place = "on this node" if name == "devices" else "on all nodes"
            raise InputError(
                f"torchrun started {started} processes {place}; devices {options.devices} and num_nodes "
                f"{options.num_nodes} make it {wanted}"
            )


def process_number(options: TrainingOptions) -> int:
    """Which of the processes of a training this is. Lightning, or torchrun, tells them."""
    if options.processes == 1:
        return 0
    return int(os.environ.get("RANK" if under_torchrun() else "LOCAL_RANK", "0"))


def begin_together(options: TrainingOptions, problem: str | None) -> str | None:
    """Under torchrun, where all processes begin at once: waits until the first one has prepared the folder. Elsewhere
    it is the first one that starts the others.

    Args:
        problem: what hinders the first process.

    Returns:
        What hinders it, to all.
    """
    if options.processes == 1 or not under_torchrun():
        return problem
    if not distributed.is_initialized():
        on_gpu = options.accelerator != "cpu" and torch.cuda.is_available()
        if on_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("nccl" if on_gpu else "gloo")
    told = [problem]
    distributed.broadcast_object_list(told, src=0)
    return told[0]

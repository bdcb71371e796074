"""Several processes that train together: on the devices of one machine, or of several."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import active_children
from typing import NoReturn, TypeVar

import lightning
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from torch import Tensor, distributed

from prnn.distributed import GradientMean

from .errors import InputError
from .options import TrainingOptions

_T = TypeVar("_T")
_FILES, _FILES_OF_WORKER = 40, 10  # open at most, of a training and of each process that prepares batches for it


class DataParallel(DDPStrategy):
    """GradientMean in the place of DistributedDataParallel.

    Lightning would have the processes ask one another before each step whether one of them has got SIGTERM, for which
    host and GPU wait; here it ends them (`Terminated`).

    Args:
        dtype: GradientMean's.
        launcher: what has started the other processes; None if torchrun has.
    """

    def __init__(self, dtype: torch.dtype | None, launcher: _SubprocessScriptLauncher | None) -> None:
        super().__init__(cluster_environment=None if launcher is None else launcher.cluster_environment)
        self._dtype = dtype
        self._begun = launcher

    def _configure_launcher(self) -> None:
        self._launcher = self._begun

    def on_train_start(self) -> None:
        assert self.lightning_module is not None
        self.lightning_module.trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]

    def configure_ddp(self) -> None:
        assert self.model is not None
        self._average = GradientMean(self.model, self._dtype)

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        assert self.lightning_module is not None
        if not self.lightning_module.trainer.fit_loop.epoch_loop._should_accumulate():
            self._average()


class Terminated(Callback):
    """SIGTERM ends a training with a sentence and status 143, Ctrl-C with KeyboardInterrupt: where one process trains,
    after the step that it is at and a checkpoint. Several processes, a validation, and what has got a second signal end
    at once, and can go on from the last checkpoint. Of one process, Lightning would make SIGTERM's status 0.

    Args:
        launcher: what has started the other processes, if there are any and torchrun has not.
        save_then: saves a checkpoint after the present step, and then calls its argument.
        how_to_go_on: the words of the sentence on how the training goes on, if it can.
    """

    def __init__(
        self,
        launcher: _SubprocessScriptLauncher | None,
        save_then: Callable[[Callable[[], NoReturn]], None],
        how_to_go_on: Callable[[], str],
    ) -> None:
        self._begun = launcher
        self._save_then = save_then
        self._how_to_go_on = how_to_go_on
        self._asked = False
        self._speaks = True

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        alone = trainer.world_size == 1
        self._speaks = trainer.is_global_zero

        def received(number: int, frame: object) -> None:
            if not alone or not trainer.training or self._asked:
                self._end(number)
            self._asked = True
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # DataLoader has an error raised when its processes end
            self._save_then(partial(self._end, number))

        signal.signal(signal.SIGTERM, received)
        if alone:  # Lightning ends the others
            signal.signal(signal.SIGINT, received)

    def on_exception(self, trainer: lightning.Trainer, module: lightning.LightningModule, error: BaseException) -> None:
        if self._asked and isinstance(error, Exception):  # the signal has ended those that prepare batches, too
            self._end(signal.SIGTERM)

    def _end(self, number: int) -> NoReturn:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # DataLoader has an error raised when its processes end
        if self._begun is not None:
            self._begun.kill(signal.SIGKILL)
            for process in self._begun.procs:
                process.wait()
        for worker in active_children():  # they prepare batches
            worker.kill()
            worker.join()
        with suppress(RuntimeError):  # they are being written to
            sys.stdout.flush()
            if self._speaks:
                cleared = "\r\x1b[K" if sys.stderr.isatty() else ""  # of the line of progress
                words = "; ".join(filter(None, ("terminated", self._how_to_go_on())))
                print(f"{cleared}prnn: {words}", file=sys.stderr, flush=True)
        os._exit(128 + number)  # an exception would be lost where torch has called Python to write a checkpoint


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


def require_open_files(options: TrainingOptions) -> None:
    """Lets this process have as many files open as its workers need, by whose sockets batches come.

    Raises:
        InputError: it may not.
    """
    needed = _FILES + _FILES_OF_WORKER * options.workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if options.workers == 0 or soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InputError(
            f"a process may have {hard} files open here (ulimit -n), and {options.workers} workers need {needed}; "
            "raise the limit, or take fewer --workers"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def process_number(options: TrainingOptions) -> int:
    """The number of this process of a training, as Lightning or torchrun gives it."""
    if options.processes == 1:
        return 0
    return int(os.environ.get("RANK" if under_torchrun() else "LOCAL_RANK", "0"))


def start_processes(options: TrainingOptions) -> _SubprocessScriptLauncher | None:
    """Starts the other processes of a training, unless torchrun has. Lightning would when it begins to fit; here they
    read the data while the first one does."""
    if options.processes == 1 or under_torchrun():
        return None
    launcher = _SubprocessScriptLauncher(LightningEnvironment(), options.devices, num_nodes=1)
    launcher.launch(lambda: None)
    return launcher


def in_all_processes(options: TrainingOptions, work: Callable[[], _T]) -> _T:
    """Runs `work` in each process of a training and returns its result; afterwards the processes can communicate.

    Raises:
        InputError: and whatever else `work` raises, in the first process; the others end without a word if it fails in
            any of them.
    """
    if options.processes == 1:
        return work()
    error: Exception | None = None
    try:
        result = work()
    except Exception as caught:  # whatever it is, the others wait to hear of it
        error = caught
    process = process_number(options)
    if not distributed.is_initialized():
        device = communication_device(options)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            rank=process,
            world_size=options.processes,
            device_id=device if device.type == "cuda" else None,
        )
    problems: list[str | None] = [None] * options.processes
    distributed.all_gather_object(problems, None if error is None else f"{error}")
    if any(problem is not None for problem in problems):
        distributed.destroy_process_group()
        if process != 0:
            # Lightning kills the first process if one that it has started fails.
            raise SystemExit(2 if under_torchrun() else 0)
        raise error or InputError(next(problem for problem in problems if problem is not None))
    return result


@contextmanager
def communicating() -> Iterator[None]:
    """Ends what the processes of a training communicate by, when they need it no more or one of them fails. One of
    gloo's threads would else need Python while the process ends, and abort it."""
    try:
        yield
    except BaseException:
        # NCCL's end may wait for operations that the other processes never begin; it needs none.
        if distributed.is_initialized() and distributed.get_backend() == "gloo":
            distributed.destroy_process_group()
        raise
    if distributed.is_initialized():
        distributed.destroy_process_group()


def communication_device(options: TrainingOptions) -> torch.device:
    """The device of the tensors that this process sends to the others."""
    if options.accelerator == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def total(tensor: Tensor) -> Tensor:
    """The sum of a tensor over the processes of a training, on the CPU. It must lie where they communicate."""
    if distributed.is_initialized():
        distributed.all_reduce(tensor)
    return tensor.cpu()

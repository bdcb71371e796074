"""A training's position, kept in its checkpoints, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from prnn._fields import Within, check_fields

from .dataset import Position
from .options import TrainingOptions

_Number = Annotated[int, Within(0, 2**62)]


@dataclass(frozen=True)
class Progress:
    """A training's position, kept in its checkpoints.

    Args:
        epoch: passes over the data that have been trained on.
        batch: batches of the present pass, of each process.
        pass_batches: batches in a pass, of each process.
        order_epoch: the sampler's epoch from which the last batch came.
        order_batch: number of that batch in it.
        processes: how many trained together.
    """

    epoch: _Number = 0
    batch: _Number = 0
    pass_batches: Annotated[int, Within(1, 2**62)] = 1
    order_epoch: _Number = 0
    order_batch: _Number = 0
    processes: Annotated[int, Within(1, 2**20)] = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if self.batch > self.pass_batches:
            raise ValueError(f"batch is {self.batch}; it must be at most pass_batches, {self.pass_batches}")

    @property
    def after(self) -> Position:
        """The position in the sampler's batches."""
        return Position(self.order_epoch, self.order_batch)

    @property
    def done(self) -> int:
        """Batches of each process since the beginning."""
        return self.epoch * self.pass_batches + self.batch

    def with_processes(self, processes: int, pass_batches: int) -> Progress:
        """This position for another number of processes that share as many batches."""
        if (processes, pass_batches) == (self.processes, self.pass_batches):
            return self
        return Progress(
            self.epoch,
            max(min(self.batch, 1), self.batch * pass_batches // self.pass_batches),
            pass_batches,
            self.order_epoch,
            self.order_batch * self.processes // processes,
            processes,
        )

    @staticmethod
    def of_steps(steps: int, pass_batches: int, accumulate: int, processes: int) -> Progress:
        """The position of a training after so many steps, all with the given number of processes."""
        epoch, step = divmod(steps, -(-pass_batches // accumulate))
        batch = step * accumulate
        return Progress(epoch, batch, pass_batches, epoch, batch, processes)


def ends(progress: Progress, steps: int, options: TrainingOptions) -> tuple[int, int]:
    """The steps of the optimizer, and the batches of each process, at which a training ends, from where it stands after
    so many steps. One of them is less than those done, if the options ask for less."""
    size, accumulate = progress.pass_batches, options.accumulate
    whole = -(-size // accumulate)
    rest = -(-(size - progress.batch) // accumulate)
    if options.steps is None:
        left = options.epochs - progress.epoch
        return steps + rest + (left - 1) * whole, options.epochs * size
    left = options.steps - steps
    if left <= rest:
        return options.steps, progress.done + min(left * accumulate, size - progress.batch)
    passes, last = divmod(left - rest, whole)
    return options.steps, (progress.epoch + 1 + passes) * size + min(last * accumulate, size)


def set_progress(fit_loop: dict[str, Any], progress: Progress) -> None:
    """Sets the state of Lightning's fit loop, in place, to a position in the midst of a pass."""
    epochs, batches = fit_loop["epoch_progress"], fit_loop["epoch_loop.batch_progress"]
    natural = batches["current"]["ready"] == progress.batch and epochs["current"]["processed"] == progress.epoch
    if natural or progress.batch == progress.pass_batches:
        return
    epoch = {"ready": progress.epoch + 1, "started": progress.epoch + 1, "processed": progress.epoch}
    for part in ("total", "current"):
        epochs[part].update(epoch, completed=progress.epoch)
    # At the end of a step, a batch is processed and not yet completed.
    batches["current"].update(dict.fromkeys(("ready", "started", "processed"), progress.batch))
    for part in ("total", "current"):
        batches[part]["completed"] = batches[part]["processed"] - 1
    batches["is_last_batch"] = False

"""Where a training stands, and how far it has to go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from prnn._fields import Within, check_fields

from .dataset import Position
from .options import TrainingOptions

_Number = Annotated[int, Within(0, 2**62)]


@dataclass(frozen=True)
class Progress:
    """Where a training stands.

    Args:
        epoch: passes over the data that have been trained on.
        batch: batches of the present pass, of each process.
        pass_batches: batches in a pass, of each process.
        order_epoch: epoch of the order from which the last batch came.
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
        """The place in the order."""
        return Position(self.order_epoch, self.order_batch)

    @property
    def done(self) -> int:
        """Batches of each process since the beginning."""
        return self.epoch * self.pass_batches + self.batch

    def with_processes(self, processes: int, pass_batches: int) -> Progress:
        """The same place among as many batches, shared by another number of processes."""
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
        """Where a training stands that has done so many steps, always with as many processes."""
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

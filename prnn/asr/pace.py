"""How fast a training goes, for its log, and how far it has come, for the terminal."""

from __future__ import annotations

import time
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback, TQDMProgressBar

from .loader import Ahead


class Pace(Callback):
    """Logs the milliseconds of a step, and the share of the time that the training has waited for batches, since the
    entry before; validations do not count.

    Args:
        batches: of the training.
        every: steps between the entries.
    """

    def __init__(self, batches: Ahead, every: int) -> None:
        self._batches = batches
        self._every = every
        self._since: tuple[int, float, float] | None = None  # step, time, seconds waited

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step % self._every != 0 or (self._since is not None and step == self._since[0]):
            return
        now = step, time.perf_counter(), self._batches.waited
        if self._since is not None:
            steps, seconds, waited = (end - begin for end, begin in zip(now, self._since, strict=True))
            module.log("train/step_ms", 1000 * seconds / steps)
            module.log("train/waiting", waited / seconds)
        self._since = now

    def on_validation_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._since = None


class ProgressBar(TQDMProgressBar):
    """Shows the loss that the log has got last: to show that of each step, Lightning would wait for each of them."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=10)

    def get_metrics(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> Any:
        loss = trainer.logged_metrics.get("train/loss")
        shown = {} if loss is None else {"train/loss": float(loss)}
        return super().get_metrics(trainer, module) | shown

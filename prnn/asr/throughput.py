"""Callbacks that report a training's speed in its log, and its progress on the terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.callbacks.progress import progress_bar

from .loader import Prefetcher
from .task import TransducerTask


class ThroughputLog(Callback):
    """Logs the milliseconds of a step, and the shares of the time that the training has waited for batches and for the
    device, since the entry before; validations do not count. In what is left the host has worked: Python, and sending
    work to the device.

    Args:
        batches: of the training.
        every: steps between the entries.
    """

    def __init__(self, batches: Prefetcher, every: int) -> None:
        self._batches = batches
        self._every = every
        self._since: tuple[int, float, float, float] | None = None  # step, time, seconds waited for batches and device

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, TransducerTask)
        step = trainer.global_step
        if step % self._every != 0 or (self._since is not None and step == self._since[0]):
            return
        now = step, time.perf_counter(), self._batches.waited, module.waited
        if self._since is not None:
            steps, seconds, batches, device = (end - begin for end, begin in zip(now, self._since, strict=True))
            shares = {"waiting": batches / seconds, "waiting_for_device": device / seconds}
            module.write_log({"step_ms": 1000 * seconds / steps, **shares}, step - 1)
        self._since = now

    def on_validation_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._since = None


class ProgressBar(progress_bar.ProgressBar):
    """Shows a training's progress, its latest logged values and its estimated end: on a terminal a line that changes,
    elsewhere a line every 30 seconds, on the standard error.

    The estimate is the time since the first batch of this run, validations included, over the share of the training
    that was done in it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stream = sys.stderr
        self._changes = self._stream.isatty()
        self.is_enabled = True
        self._began: tuple[float, int] | None = None  # when, and after how many batches
        self._shown = time.monotonic()

    def enable(self) -> None:
        """Lightning calls this, and the other, around what needs none."""
        self.is_enabled = True

    def disable(self) -> None:
        """See enable."""
        self.is_enabled = False

    def print(self, *values: Any, **options: Any) -> None:
        """Prints on the standard output, in the place of the line."""
        self._clear()
        print(*values, **options, flush=True)

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, *_: Any) -> None:
        if self._began is None:
            self._began = time.monotonic(), module.progress.done
        self._show(lambda: self._text(trainer, module))

    def on_validation_batch_end(
        self, trainer: lightning.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        batches = sum(trainer.num_val_batches)
        self._show(lambda: f"{self._text(trainer, module)}, validation {batch_idx + 1}/{batches}")

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        self._clear()

    def on_exception(self, trainer: lightning.Trainer, module: Any, exception: BaseException) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._changes and self.is_enabled:
            print("\r\x1b[K", end="", file=self._stream, flush=True)

    def _show(self, text: Callable[[], str]) -> None:
        if not self.is_enabled or time.monotonic() - self._shown < (0.2 if self._changes else 30):
            return
        self._shown = time.monotonic()
        if self._changes:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text()[:width]}", end="", file=self._stream, flush=True)
        else:
            print(text(), file=self._stream, flush=True)

    def _text(self, trainer: lightning.Trainer, module: Any) -> str:
        done, total = module.progress.done, module.total_batches
        parts = [f"epoch {module.progress.epoch + 1}", f"step {trainer.global_step} of {module.total_steps}"]
        parts.append(f"{100 * done / total:.0f} %")
        if self._began is not None and done > self._began[1]:
            seconds = (time.monotonic() - self._began[0]) / (done - self._began[1]) * (total - done)
            end = time.localtime(time.time() + seconds)
            day = "" if seconds < 12 * 3600 else "%a "
            parts.append(f"{_duration(seconds)} left, until {time.strftime(f'{day}%H:%M', end)}")
        logged = {**trainer.logged_metrics, **module.logged}
        for name, text in (
            ("train/loss", "loss {:.3f}"),
            ("valid/wer", "WER {:.2%}"),
            ("train/step_ms", "{:.0f} ms a step"),
            ("train/waiting", "of which {:.0%} waiting for batches"),
            ("train/waiting_for_device", "{:.0%} for the device"),
        ):
            if name in logged:
                parts.append(text.format(float(logged[name])).replace("%", " %"))
        return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

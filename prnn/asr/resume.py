"""Going on with an interrupted training: what is saved when, and where the training then stands."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback

from prnn._fields import shown

from .folder import best_checkpoint, last_checkpoint, replacing


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes checkpoints whole or not at all."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        with replacing(Path(path)) as file:
            torch.save(checkpoint, file)


class Checkpoints(Callback):
    """Saves the model with the lowest validation WER, and what an interrupted training goes on from.

    The latter is saved between steps, and after an epoch's last step when the validation is over: what follows a
    checkpoint is always a training step, or nothing.

    Args:
        output: the training's folder.
        every: steps between the checkpoints to go on from.
    """

    def __init__(self, output: Path, every: int) -> None:
        self._output = output
        self._every = every
        self._lowest = math.inf

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step % self._every == 0 and batch_idx + 1 < trainer.num_training_batches:
            trainer.save_checkpoint(last_checkpoint(self._output))

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        wer = trainer.strategy.broadcast(float(trainer.callback_metrics["valid/wer"]))
        if wer < self._lowest:
            self._lowest = wer
            trainer.save_checkpoint(best_checkpoint(self._output), weights_only=True)

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if trainer.global_step % self._every == 0 or trainer.current_epoch + 1 == trainer.max_epochs:
            trainer.save_checkpoint(last_checkpoint(self._output))

    def state_dict(self) -> dict[str, Any]:
        return {"lowest_wer": self._lowest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._lowest = state["lowest_wer"]


def require_same_kind(name: str, value: Any, expected: Any) -> None:
    """Raises TypeError unless nested dictionaries have the keys and types of others, such as Lightning's own."""
    if type(value) is not type(expected):
        raise TypeError(f"{name} is {shown(value)}; it must be of type {type(expected).__name__}")
    if isinstance(expected, dict):
        for key, item in expected.items():
            require_same_kind(f"{name}.{key}", value.get(key), item)

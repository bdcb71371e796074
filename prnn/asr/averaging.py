"""Means of weights: over the steps of a training, and over several of its models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import Tensor

from .checkpoint import load_recogniser_parts
from .errors import InputError


class MovingAverage(EMAWeightAveraging):
    """An exponential moving average of the weights, which is validated in their place, and saved as the model.

    Args:
        decay: share of the average that a step keeps.
    """

    def __init__(self, decay: float) -> None:
        super().__init__(decay=decay, use_buffers=False)  # mean and deviation of the features stay what they are
        self._decay = decay

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Updates the average after a step. That of `AveragedModel` waits for the GPU to read its counter, and sends it
        an operation for each weight."""
        if trainer.global_step <= self._latest_update_step:
            return
        assert self._average_model is not None
        averaged, weights = (
            [weight.detach() for weight in module.parameters()] for module in (self._average_model.module, pl_module)
        )
        if self._latest_update_step:
            torch._foreach_lerp_(averaged, weights, 1 - self._decay)
        else:
            torch._foreach_copy_(averaged, weights)
        self._average_model.n_averaged += 1
        self._latest_update_step = trainer.global_step

    @contextmanager
    def in_place_of(self, module: lightning.LightningModule) -> Iterator[None]:
        """Within it the module has the averaged weights."""
        self._swap_models(module)
        try:
            yield
        finally:
            self._swap_models(module)


def mean_of_checkpoints(paths: Sequence[Path], encoder_class: str | None = None) -> dict[str, Tensor]:
    """The mean of the weights of several models of the same kind: a state_dict.

    Args:
        paths: of their checkpoints.
        encoder_class: as for `build_model`.

    Raises:
        InputError: a checkpoint is missing, damaged, or of another model than the first one.
    """
    first, *others = paths
    model, features, tokenizer = load_recogniser_parts(first, encoder_class)
    total = {name: tensor.double() for name, tensor in model.state_dict().items()}
    for path in others:
        other, *rest = load_recogniser_parts(path, encoder_class)
        if (other.config, *rest) != (model.config, features, tokenizer):
            raise InputError(f"{path}: it is of another model than {first}")
        for name, tensor in other.state_dict().items():
            total[name] += tensor
    return {name: (tensor / len(paths)).to(model.state_dict()[name].dtype) for name, tensor in total.items()}

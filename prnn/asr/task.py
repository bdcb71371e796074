"""The transducer as a Lightning module: what a training step, a validation and a checkpoint are."""

from __future__ import annotations

import math
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from prnn.transducer import Transducer

from .checkpoint import describe
from .dataset import Batch
from .features import FeatureConfig
from .metrics import error_rates
from .tokenizer import CharTokenizer


def learning_rate_factor(step: int, total: int, warmup: int) -> float:
    """The share of the peak learning rate at a step: up linearly over ``warmup`` steps, then down along a cosine to 1 %
    at ``total``."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress))


class TransducerTask(lightning.LightningModule):
    """Trains a transducer.

    Args:
        model: with a config, as ``Transducer.from_config`` makes it.
        features: of the batches that will come.
        tokenizer: of their targets.
        lr: peak learning rate of AdamW.
        weight_decay: of AdamW.
        total_steps: length of the learning-rate schedule.
        warmup_steps: of those, how many the rate rises.
    """

    def __init__(
        self,
        model: Transducer,
        features: FeatureConfig,
        tokenizer: CharTokenizer,
        lr: float,
        weight_decay: float,
        total_steps: int,
        warmup_steps: int,
    ) -> None:
        super().__init__()
        self.model = model
        self.features = features
        self.tokenizer = tokenizer
        self.lr = lr
        self.weight_decay = weight_decay
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self._rng_state: Tensor | None = None
        self._cuda_rng_state: Tensor | None = None
        self._references: list[str] = []
        self._hypotheses: list[str] = []

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        return batch._replace(features=batch.features.to(device))  # the rest is looked at on the CPU

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        parts = self.model.loss_parts(*batch[:4])
        size = len(batch.texts)
        self.log("train/loss", parts.total, batch_size=size, prog_bar=True)
        self.log("train/transducer", parts.transducer, batch_size=size)
        if parts.ctc is not None:
            self.log("train/ctc", parts.ctc, batch_size=size)
        self.log("train/lr", self.trainer.optimizers[0].param_groups[0]["lr"], batch_size=size)
        return parts.total

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        self.log("train/gradient_norm", torch.nn.utils.get_total_norm(gradients))

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        parts = self.model.loss_parts(*batch[:4])
        self.log("valid/loss", parts.transducer, batch_size=len(batch.texts))
        self._references += batch.texts
        hypotheses = self.model.greedy_search(batch.features, batch.feature_lengths)
        self._hypotheses += [self.tokenizer.decode(hypothesis.tokens) for hypothesis in hypotheses]

    def on_validation_epoch_end(self) -> None:
        rates = error_rates(self._references, self._hypotheses)
        self._references, self._hypotheses = [], []
        self.log("valid/wer", rates.wer, prog_bar=True)
        self.log("valid/cer", rates.cer)
        loss = float(self.trainer.callback_metrics["valid/loss"])
        self.print(
            f"epoch {self.current_epoch + 1}, step {self.global_step}: "
            f"validation loss {loss:.3f}, WER {100 * rates.wer:.2f} %, CER {100 * rates.cer:.2f} %"
        )

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        optimizer = AdamW(self.parameters(), lr=self.lr, weight_decay=self.weight_decay, betas=(0.9, 0.98))
        schedule = LambdaLR(optimizer, lambda step: learning_rate_factor(step, self.total_steps, self.warmup_steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        assert self.model.config is not None
        checkpoint["prnn"] = describe(self.model.config, self.features, self.tokenizer)
        checkpoint["rng_state"] = torch.get_rng_state()
        if self.device.type == "cuda":
            checkpoint["cuda_rng_state"] = torch.cuda.get_rng_state(self.device)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._rng_state = checkpoint["rng_state"]
        self._cuda_rng_state = checkpoint.get("cuda_rng_state")

    def on_train_start(self) -> None:
        if self._rng_state is not None:
            torch.set_rng_state(self._rng_state.cpu())
        if self._cuda_rng_state is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(self._cuda_rng_state.cpu(), self.device)

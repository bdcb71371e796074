"""The transducer as a Lightning module: what a training step, a validation and a checkpoint are."""

from __future__ import annotations

import math
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from prnn.distributed import batch_share
from prnn.transducer import Transducer

from .checkpoint import damage_reported, describe
from .dataset import Batch
from .errors import InputError
from .features import FeatureConfig
from .folder import last_checkpoint
from .metrics import error_rates
from .options import TrainingOptions
from .resume import require_same_kind
from .tokenizer import Tokenizer

# Looking at a gradient of a GPU waits for it.
_LOOK_EVERY = 10
# float16's scale begins at 2^16, and is halved after each step that overflows.
_SCALER_PATIENCE = 30


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
        options: of the training.
        epoch_steps: steps in an epoch.
    """

    def __init__(
        self,
        model: Transducer,
        features: FeatureConfig,
        tokenizer: Tokenizer,
        options: TrainingOptions,
        epoch_steps: int,
    ) -> None:
        super().__init__()
        self.model = model
        self.features = features
        self.tokenizer = tokenizer
        self.options = options
        self.epoch_steps = epoch_steps
        self._bad_since: Tensor | None = None
        self._references: list[str] = []
        self._hypotheses: list[str] = []

    @property
    def total_steps(self) -> int:
        """Steps of the whole training."""
        return self.options.epochs * self.epoch_steps

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
        if self.trainer.world_size == 1:
            return parts.total
        return parts.total * batch_share(size, parts.total.device)

    def on_train_batch_start(self, batch: Batch, batch_index: int) -> None:
        # Dropout is a function of seed, step and process, so that no generator's state has to outlive an interruption.
        sequence = np.random.SeedSequence([self.options.seed, self.global_step, self.global_rank])
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        self.log("train/gradient_norm", norm)
        step = self.global_step + 1
        before = self._bad_since if self._bad_since is not None else torch.zeros_like(norm, dtype=torch.int64)
        self._bad_since = torch.where(norm.isfinite(), 0, torch.where(before > 0, before, step))
        if not norm.is_cuda or step % _LOOK_EVERY == 0:
            self._stop_if_diverged(step)

    def _stop_if_diverged(self, step: int) -> None:
        """Raises InputError if the gradients up to this step are not numbers; with float16, only once that has been so
        for longer than its scale takes to settle."""
        since = 0 if self._bad_since is None else int(self._bad_since)
        patience = 1 if getattr(self.trainer.precision_plugin, "scaler", None) is None else _SCALER_PATIENCE
        if since and step - since + 1 >= patience:
            raise self._diverged(f"the gradients of step {since} are not finite numbers")

    def _diverged(self, reason: str) -> InputError:
        return InputError(
            f"the training has diverged: {reason}; the checkpoints in {self.options.output} are of steps before; "
            f"take a lower lr than {self.options.lr:g}, and --restart"
        )

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
        if math.isnan(loss):
            raise self._diverged(f"the validation loss after step {self.global_step} is not a number")
        self.print(
            f"epoch {self.current_epoch + 1}, step {self.global_step}: "
            f"validation loss {loss:.3f}, WER {100 * rates.wer:.2f} %, CER {100 * rates.cer:.2f} %"
        )

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        options, total = self.options, self.total_steps
        warmup = max(1, int(options.warmup * total))
        optimizer = AdamW(self.parameters(), lr=options.lr, weight_decay=options.weight_decay, betas=(0.9, 0.98))
        schedule = LambdaLR(optimizer, lambda step: learning_rate_factor(step, total, warmup))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._stop_if_diverged(self.global_step)
        if not bool(torch.stack([parameter.isfinite().all() for parameter in self.parameters()]).all()):
            raise self._diverged(f"weights after step {self.global_step} are not finite numbers")
        assert self.model.config is not None
        checkpoint["prnn"] = describe(self.model.config, self.features, self.tokenizer)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        with damage_reported(last_checkpoint(self.options.output)):
            require_same_kind("loops", checkpoint["loops"]["fit_loop"], self.trainer.fit_loop.state_dict())

"""The transducer as a Lightning module: what a training step, a validation and a checkpoint are."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from prnn.distributed import batch_share
from prnn.transducer import Transducer

from .checkpoint import damage_reported, describe, require_same_kind
from .dataset import Batch, Position
from .errors import InputError
from .fbank import Fbank
from .feature_config import FeatureConfig
from .folder import last_checkpoint
from .learning import Learning, blank_share, ctc_spells
from .metrics import ErrorCounts, count_errors
from .options import TrainingOptions
from .parallel import total
from .progress import Progress, ends, set_progress
from .tokenizer import Tokenizer
from .word_times import NO_DELAYS, DelayMeter, delays_of

# Looking at a gradient of a GPU waits for it.
_LOOK_EVERY = 10
# float16's scale begins at 2^16, and is halved after each step that overflows.
_SCALER_PATIENCE = 30


def warmup_steps(total: int, warmup: float) -> int:
    """The steps in which the learning rate rises."""
    return max(1, int(warmup * total))


def schedule(optimizer: torch.optim.Optimizer, total: int, warmup: float) -> SequentialLR:
    """The learning rate over `total` steps: up linearly over the share `warmup` of them, then down along a cosine to
    1 %."""
    rising = warmup_steps(total, warmup)
    up = LinearLR(optimizer, start_factor=1 / rising, total_iters=max(1, rising - 1))
    down = CosineAnnealingLR(optimizer, max(1, total - rising), eta_min=0.01 * optimizer.param_groups[0]["initial_lr"])
    return SequentialLR(optimizer, [up, down], milestones=[rising])


def schedule_after(steps: int, lr: float, total: int, warmup: float) -> tuple[dict[str, Any], float]:
    """The state of such a schedule after so many steps, and the learning rate it then gives."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
    begun = schedule(optimizer, total, warmup)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no step of this optimizer comes between
        for _ in range(steps):
            begun.step()
    return begun.state_dict(), optimizer.param_groups[0]["lr"]


def _seed_generator(device: torch.device, seed: int) -> None:
    """Seeds this device's generator alone: torch.manual_seed also records a call for each device not in use."""
    index = device.index if device.index is not None else 0
    generator = torch.cuda.default_generators[index] if device.type == "cuda" else torch.default_generator
    generator.manual_seed(seed)


class TransducerTask(lightning.LightningModule):
    """Trains a transducer.

    Args:
        model: with a config, as ``Transducer.from_config`` makes it.
        features: of the batches that will come.
        tokenizer: of their targets.
        options: of the training.
        pass_batches: batches of each process in a pass over the data.
        validates: whether this process's validation batches count; with too few for all, some have another's.

    Attributes:
        waited: seconds that training steps have waited for the device.
        logged: the latest value of each scalar of the training's log.
    """

    def __init__(
        self,
        model: Transducer,
        features: FeatureConfig,
        tokenizer: Tokenizer,
        options: TrainingOptions,
        pass_batches: int = 1,
        validates: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.features = features
        self.tokenizer = tokenizer
        self.options = options
        self._began = Progress(pass_batches=pass_batches, processes=options.processes)
        self._under_way: tuple[int, int, Position] | None = None  # epoch, batches of it, and position after the last
        self.total_steps, self.total_batches = ends(self.progress, 0, options)
        self.trained_on: dict[str, object] = {}  # `Selection.trained_on`
        self.mean_of: list[int] = []  # after which steps the models were saved that these weights are the mean of
        self.fbank = Fbank(features) if options.features_on == "device" else None
        self.learning = Learning(options, len(tokenizer))
        self.waited = 0.0
        self.logged: dict[str, float] = {}
        self._entry: dict[str, Tensor | float] = {}  # of the log, of the step that is under way
        self._said_unspelled = False
        self._steps = self._skipped = 0  # of this run; those whose gradients were not finite numbers
        self._bad_since = 0  # the first step of those without a finite gradient between; 0 if the last one had one
        self._norms: list[Tensor] = []  # of the gradients of the latest steps, which are still to be looked at
        self._validates = validates
        self._loss_sum: Tensor | float = 0.0
        self._references: list[str] = []
        self._hypotheses: list[str] = []
        self.delays, self._meter = NO_DELAYS, DelayMeter(model.encoder.frame_stride)
        self._emitted = np.zeros(3, np.int64)  # frames of the validation, symbols found in them, and of the references

    @property
    def progress(self) -> Progress:
        """The position after the batch that is under way."""
        if self._under_way is None:
            return self._began
        epoch, batch, after = self._under_way
        return replace(self._began, epoch=epoch, batch=batch, order_epoch=after.epoch, order_batch=after.batch)

    def go_on_from(self, progress: Progress, steps: int) -> None:
        """The training stands there, after so many steps."""
        self._began = progress
        self.total_steps, self.total_batches = ends(progress, steps, self.options)

    def prepared(self, batch: Batch, device: torch.device) -> Batch:
        """A batch with features on the device of the training, augmented."""
        return self.on_after_batch_transfer(self.transfer_batch_to_device(batch, device, 0), 0)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        masks = None if batch.masks is None else batch.masks.to(device)
        # The rest is looked at on the CPU.
        return batch._replace(features=batch.features.to(device, non_blocking=True), masks=masks)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        return self.with_features(batch) if batch.audio else batch

    def with_features(self, batch: Batch) -> Batch:
        """A batch of samples as one of features, augmented."""
        assert self.fbank is not None
        features, lengths = self.fbank(batch.features, batch.feature_lengths)
        if batch.masks is not None:
            real = (
                torch.arange(features.shape[1], device=features.device)
                < lengths.to(features.device, non_blocking=True)[:, None]
            )
            features = batch.masks(features, self.model.encoder.feature_mean).where(real[..., None], 0.0)
        return batch._replace(features=features, feature_lengths=lengths, audio=False, masks=None)

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        size = len(batch.texts)
        with self._ctc_logits() as logits:
            parts = self.model.loss_parts(*batch[:4])
        frames = self._frames(batch.feature_lengths)
        self.learning.add(parts, batch, frames)
        if self._logs():
            a_symbol = size / max(1, int(batch.target_lengths.sum()))
            values: dict[str, Tensor | float] = {
                "loss": parts.total,
                "transducer": parts.transducer,
                "transducer_a_symbol": parts.transducer * a_symbol,
                "guessing_a_symbol": self.learning.guessing,
                "lr": self.trainer.optimizers[0].param_groups[0]["lr"],
            }
            if parts.ctc is not None:
                spelled = int(batch.target_lengths[ctc_spells(batch, frames)].sum())
                values |= {
                    "ctc": parts.ctc,
                    "ctc_a_symbol": parts.ctc * size / max(1, spelled),
                    "ctc_blanks": blank_share(logits[0], frames, self.model.blank),
                }
            self._entry = values
        if self.trainer.world_size == 1:
            return parts.total
        return parts.total * batch_share(size, parts.total.device)

    @contextmanager
    def _ctc_logits(self) -> Iterator[list[Tensor]]:
        """Collects the CTC logits (N, T, V) that the model computes within; none in steps without a log entry."""
        found: list[Tensor] = []
        layer = self.model.ctc_output if self._logs() else None
        hook = None
        if layer is not None:
            hook = layer.register_forward_hook(lambda module, inputs, output: found.append(output.detach()))
        try:
            yield found
        finally:
            if hook is not None:
                hook.remove()

    def _frames(self, lengths: Tensor) -> Tensor:
        """The encoder frames of so many feature frames."""
        stride = self.model.encoder.frame_stride
        return (lengths + stride - 1) // stride

    def _logs(self) -> bool:
        """Whether the step that is under way has an entry in the log."""
        return (self.global_step + 1) % self.options.log_every == 0

    def on_train_batch_start(self, batch: Batch, batch_index: int) -> None:
        # Dropout is a function of seed, step and process, so that no generator's state has to outlive an interruption.
        key = [self.options.seed, self.global_step, self.global_rank]
        if self.options.accumulate > 1:
            key.append(batch_index % self.options.accumulate)
        _seed_generator(self.device, int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]))
        if self.current_epoch + 1 == self.trainer.max_epochs:
            self.trainer.check_val_every_n_epoch = 1  # the end is validated, whatever valid_every is
        self._under_way = self.current_epoch, batch_index + 1, batch.after

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.options.clip)
        self._norms.append(norm)
        step = self.global_step + 1
        if self._logs():
            self._look_at_gradients(step)
            self._entry |= {"gradient_norm": norm, "skipped_steps": self._skipped / self._steps}
            self.write_log(self._entry, self.global_step)
        if not norm.is_cuda or step % _LOOK_EVERY == 0:
            self._stop_if_diverged(step)
        rising = warmup_steps(self.total_steps, self.options.warmup)
        if (message := self.learning.stuck(step, rising)) is not None:
            self.print(message)

    def write_log(self, values: Mapping[str, Tensor | float], step: int) -> None:
        """Writes scalars of a step, counted from 0, to the log, under "train/". Lightning's own ``log`` takes
        milliseconds of Python for each.

        Args:
            values: Python's numbers, and tensors of one element on the device, which all wait for it once.
            step: number of the step.
        """
        tensors = [value.detach().float().reshape(()) for value in values.values() if isinstance(value, Tensor)]
        numbers = iter(self._on_host(torch.stack(tensors)) if tensors else ())
        entry = {
            f"train/{name}": next(numbers) if isinstance(value, Tensor) else float(value)
            for name, value in values.items()
        }
        self.logged |= entry
        if self.trainer.logger is not None:
            self.trainer.logger.log_metrics(entry, step)

    def _on_host(self, values: Tensor) -> list[Any]:
        """The values of a tensor, for which the host may have to wait."""
        began = time.perf_counter()
        found: list[Any] = values.tolist()
        self.waited += time.perf_counter() - began
        return found

    def _look_at_gradients(self, step: int) -> None:
        """Counts the gradients up to this step that are not numbers."""
        norms = self._on_host(torch.stack(self._norms)) if self._norms else []
        for number, norm in enumerate(norms, step + 1 - len(norms)):
            finite = math.isfinite(norm)
            self._skipped += not finite
            self._bad_since = 0 if finite else self._bad_since or number
        self._steps += len(norms)
        self._norms = []

    def _stop_if_diverged(self, step: int) -> None:
        """Raises InputError if the gradients up to this step are not numbers; with float16, only once that has been so
        for longer than its scale takes to settle."""
        self._look_at_gradients(step)
        patience = 1 if getattr(self.trainer.precision_plugin, "scaler", None) is None else _SCALER_PATIENCE
        if (since := self._bad_since) and step - since + 1 >= patience:
            raise self._diverged(f"the gradients of step {since} are not finite numbers")

    def _diverged(self, reason: str) -> InputError:
        return InputError(
            f"the training has diverged: {reason}; the checkpoints in {self.options.output} are of steps before; "
            f"take a lower lr than {self.options.lr:g}, and --restart"
        )

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        if not self._validates:
            return
        parts = self.model.loss_parts(*batch[:4])
        self._loss_sum = self._loss_sum + parts.transducer.double() * len(batch.texts)
        self._references += batch.texts
        hypotheses = self.model.greedy_search(batch.features, batch.feature_lengths)
        self._meter.add(batch.features, batch.feature_lengths, hypotheses)
        self._hypotheses += [self.tokenizer.decode(hypothesis.tokens) for hypothesis in hypotheses]
        found = sum(len(hypothesis.tokens) for hypothesis in hypotheses)
        self._emitted += [int(self._frames(batch.feature_lengths).sum()), found, int(batch.target_lengths.sum())]

    def on_validation_epoch_end(self) -> None:
        own = [len(self._references), *self._emitted, *count_errors(self._references, self._hypotheses)]
        sums = torch.tensor([float(self._loss_sum), *own], dtype=torch.float64, device=self.device)
        of_words = self._meter.taken(self.device)
        sums = total(torch.cat([of_words, self.learning.taken(self.device), sums]))
        self.delays = DelayMeter.delays(sums[: len(of_words)], self.features.frame_shift_ms / 1000)
        sums = sums[len(of_words) :]
        transducer, ctc, symbols, spelled, trained_on, unspelled, *valid = sums.tolist()
        loss_sum, utterances, frames, found, wanted, *counts = valid
        loss, rates = loss_sum / utterances, ErrorCounts(*map(int, counts)).rates
        self._loss_sum, self._references, self._hypotheses, self._emitted = 0.0, [], [], self._emitted * 0
        blanks, in_references = (frames / (frames + emitted) for emitted in (found, wanted))
        self.log("valid/loss", loss)
        self.log("valid/wer", rates.wer, prog_bar=True)
        self.log("valid/cer", rates.cer)
        self.log("valid/blanks", blanks)
        if math.isnan(loss):
            raise self._diverged(f"the validation loss after step {self.global_step} is not a number")
        if self.trainer.state.fn != TrainerFn.FITTING:
            return
        of_ctc = "" if self.model.ctc_output is None else f", CTC {ctc / max(spelled, 1):.2f}"
        self.print(
            f"epoch {self.current_epoch + 1}, step {self.global_step}: "
            f"training loss a symbol {transducer / max(symbols, 1):.2f}{of_ctc} "
            f"(guessing {self.learning.guessing:.2f}), "
            f"lr {self.trainer.optimizers[0].param_groups[0]['lr']:.2g}; "
            f"validation loss {loss:.3f}, WER {100 * rates.wer:.2f} %, CER {100 * rates.cer:.2f} %, "
            f"blanks {100 * blanks:.0f} % ({100 * in_references:.0f} % with the right symbols)"
        )
        if unspelled and not self._said_unspelled:
            self._said_unspelled = True
            self.print(
                f"{unspelled:.0f} of {trained_on:.0f} utterances trained on have fewer encoder frames than symbols "
                "(and blanks between equal ones): CTC leaves them out; model.frame_stride is "
                f"{self.model.encoder.frame_stride}, a smaller one takes them in"
            )

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        options = self.options
        betas = (options.beta1, options.beta2)
        # float16's gradients must be unscaled before they are clipped, which the fused step would do after it.
        fused = options.precision != "16-mixed"
        optimizer = AdamW(
            self.parameters(), lr=options.lr, betas=betas, eps=options.eps, weight_decay=options.weight_decay,
            fused=fused or None,
        )  # fmt: skip
        rates = schedule(optimizer, self.total_steps, options.warmup)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rates, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._stop_if_diverged(self.global_step)
        if not bool(torch.stack([parameter.isfinite().all() for parameter in self.parameters()]).all()):
            raise self._diverged(f"weights after step {self.global_step} are not finite numbers")
        assert self.model.config is not None
        checkpoint["prnn"] = describe(self.model.config, self.features, self.tokenizer, self.delays)
        checkpoint["progress"] = asdict(self.progress)
        checkpoint["trained_on"] = self.trained_on
        if self.mean_of:
            checkpoint["mean_of"] = self.mean_of

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        with damage_reported(last_checkpoint(self.options.output)):
            loop = checkpoint["loops"]["fit_loop"]
            require_same_kind("loops", loop, self.trainer.fit_loop.state_dict())
            set_progress(loop, self.progress)
            self.delays = delays_of(checkpoint["prnn"])
            # Learning rates are those of the training as it is to be now, which may be longer than it was to be.
            fresh = self.configure_optimizers()["optimizer"].state_dict()
            rates, lr = schedule_after(
                checkpoint["global_step"], self.options.lr, self.total_steps, self.options.warmup
            )
            fresh["param_groups"][0]["lr"] = lr
            checkpoint["optimizer_states"] = [{**fresh, "state": checkpoint["optimizer_states"][0]["state"]}]
            checkpoint["lr_schedulers"] = [rates]

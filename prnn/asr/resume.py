"""Checkpoints of a training, and resuming from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import lightning
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from prnn._fields import from_plain, shown

from .averaging import MovingAverage
from .checkpoint import damage_reported, mapping, parts, read_checkpoint, require_tensor, weights
from .errors import InputError
from .folder import best_checkpoint, last_checkpoint, replacing, validated_checkpoint
from .options import TrainingOptions
from .progress import Progress
from .task import TransducerTask


class AtomicCheckpoints(TorchCheckpointIO):
    """Writes checkpoints whole or not at all."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        with replacing(Path(path)) as file:
            torch.save(checkpoint, file)


class Checkpoints(Callback):
    """Saves the best model, the models to average, and the last checkpoint, from which an interrupted training resumes.

    The best model is that of the lowest validation WER, of equal ones that of the lowest CER, then of the lowest loss.
    Where words are not written apart, CER comes before WER.

    The last checkpoint is saved between steps, and after an epoch's last step when the validation is over, so that a
    resumed training begins with a training step.

    Args:
        options: of the training.
        average: of the weights, if that is what is validated.
        words: whether the validation texts have words (`has_words`).
    """

    def __init__(self, options: TrainingOptions, average: MovingAverage | None, words: bool = True) -> None:
        self._output = options.output
        self._every = options.checkpoint_every
        self._accumulate = options.accumulate
        self._keep = options.average
        self._keep_best = options.average_of == "best"
        self._average = average
        self._words = words
        self._best = [math.inf] * 3  # WER, CER and loss
        self._validated: list[list[float]] = []  # WER, CER, loss and step
        self._kept: list[list[float]] = []  # those of them whose models are saved
        self._then: Callable[[], NoReturn] | None = None

    def save_then(self, then: Callable[[], NoReturn]) -> None:
        """Saves the last checkpoint at the next point from which a training can resume, then calls ``then``."""
        self._then = then

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        stepped = (batch_idx + 1) % self._accumulate == 0
        if stepped and self._is_due(trainer) and batch_idx + 1 < trainer.num_training_batches:
            self._save_last(trainer)

    def _is_due(self, trainer: lightning.Trainer) -> bool:
        return self._then is not None or trainer.global_step % self._every == 0

    def on_validation_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        metrics = trainer.callback_metrics  # the same in all processes
        results = [float(metrics[f"valid/{name}"]) for name in ("wer", "cer", "loss")]
        with self._average.in_place_of(module) if self._average is not None else nullcontext():
            if self._rank(results) < self._rank(self._best):
                self._best = results
                trainer.save_checkpoint(best_checkpoint(self._output), weights_only=True)
            model = [*results, float(trainer.global_step)]
            self._validated, kept = (
                [*(entry for entry in entries if entry[-1] != model[-1]), model]
                for entries in (self._validated, self._kept)
            )
            self._kept = self._wanted(kept)
            if model in self._kept:
                trainer.save_checkpoint(validated_checkpoint(self._output, trainer.global_step), weights_only=True)

    def _rank(self, results: list[float]) -> tuple[float, ...]:
        """The sort key of a validated model (WER, CER, loss); the lowest is the best."""
        wer, cer, loss = results[:3]
        return (wer, cer, loss) if self._words else (cer, wer, loss)

    def _wanted(self, models: list[list[float]]) -> list[list[float]]:
        """The models to average."""
        order = sorted(models, key=lambda entry: (self._rank(entry) if self._keep_best else (), -entry[-1]))
        return order[: self._keep]

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self._is_due(trainer) or trainer.current_epoch + 1 == trainer.max_epochs:
            self._save_last(trainer)

    def _save_last(self, trainer: lightning.Trainer) -> None:
        trainer.save_checkpoint(last_checkpoint(self._output))
        if trainer.is_global_zero:
            self._keep_only(self.kept())
        if self._then is not None:
            self._then()

    def _keep_only(self, models: list[Path]) -> None:
        for path in set(self._output.glob("validated-*.ckpt")) - set(models):
            path.unlink(missing_ok=True)

    def kept_steps(self) -> list[int]:
        """The steps after which the models to average were saved."""
        return sorted(int(entry[-1]) for entry in self._kept)

    def kept(self) -> list[Path]:
        """The files of the models to average."""
        return [validated_checkpoint(self._output, step) for step in self.kept_steps()]

    def shortage(self) -> str:
        """Explains why fewer models can be averaged than the options ask for; empty if none is missing."""
        wanted = self._wanted(self._validated)
        found = sum(entry in self._kept for entry in wanted)
        if found < len(wanted):
            which = f"the {'best' if self._keep_best else 'last'} {len(wanted)} validated models"
            return (
                f"{found} of {which} were kept, since average or average_of was another when they were validated: "
                "train for longer, or --restart"
            )
        return f"average is {self._keep}, but {found} validated models are kept" if found < self._keep else ""

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "validated": self._validated, "kept": self._kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # An old checkpoint knows no CER and no loss, and an older one only the models that were kept.
        self._best = state["best"] if "best" in state else [state["lowest_wer"], math.inf, math.inf]
        kept, self._validated = (
            [entry if len(entry) == 4 else [entry[0], math.inf, math.inf, entry[1]] for entry in entries]
            for entries in (state.get("kept", []), state.get("validated", state.get("kept", [])))
        )
        self._kept = kept
        self._keep_only(self.kept())  # a kill may have left others, beside the last checkpoint of a training, too
        self._kept = self._wanted(kept)


def _are_floats(values: Any, *lengths: int) -> bool:
    return isinstance(values, list) and len(values) in lengths and all(type(value) is float for value in values)


def require_callbacks(callbacks: dict[str, Any]) -> None:
    """Raises TypeError or ValueError unless a checkpoint's callbacks have states that these here can load."""
    for state in callbacks.values():
        if "best" in state and not _are_floats(state["best"], 3):
            raise TypeError(f"best is {shown(state['best'])}; it must be a list of three numbers")
        if "lowest_wer" in state and type(state["lowest_wer"]) is not float:
            raise TypeError(f"lowest_wer is {shown(state['lowest_wer'])}; it must be a number")
        for name in ("validated", "kept"):
            for entry in state.get(name, []):
                if not _are_floats(entry, 2, 4) or not 0 <= entry[-1] < 2**53:
                    raise ValueError(f"{name} has {shown(entry)}; it must hold error rates and steps")
        update = state.get("latest_update_step", 0)
        if type(update) is not int or not update >= 0:
            raise ValueError(f"latest_update_step is {shown(update)}; it must be an int of at least 0")


def read_progress(
    path: Path, task: TransducerTask, processes: int, pass_batches: int
) -> tuple[int, Progress, dict[str, Tensor]]:
    """The number of steps that an interrupted training has done, its position and its model's state. Checks everything
    in the checkpoint that resuming reads.

    Args:
        path: its last checkpoint.
        task: the training, from its beginning.
        processes: how many train together now.
        pass_batches: batches of each of them in a pass over the data.

    Raises:
        InputError: as :func:`read_checkpoint`, or the checkpoint is damaged, or of another model, of other symbols or
            other utterances.
    """
    checkpoint = read_checkpoint(path)
    with damage_reported(path):
        *kind, tokenizer = parts(checkpoint)
        if tokenizer != task.tokenizer:
            source = task.options.tokenizer or f"the texts of {task.options.manifest}"
            raise InputError(
                f"{path.parent} holds a training with other symbols than {source} has now: "
                "take another --output, or --restart"
            )
        found = checkpoint.get("trained_on")  # an old checkpoint does not say it
        if found is not None and found != task.trained_on:
            count, manifest = task.trained_on.get("utterances"), task.options.manifest
            other = found.get("utterances") if isinstance(found, dict) else None
            now = f"{manifest} has {count} now" if other != count else f"durations or texts of {manifest} have changed"
            raise InputError(
                f"{path.parent} holds a training on {shown(other)} utterances, and {now}: take another --output, or "
                "--restart"
            )
        if kind != [task.model.config, task.features]:
            raise InputError(f"{path.parent} holds a training of another model: take another --output, or --restart")
        state_dict = weights(mapping(checkpoint, "state_dict"), task.model)
        if task.options.ema:
            weights(mapping(checkpoint, "current_model_state"), task.model)
            require_tensor("n_averaged", mapping(checkpoint, "averaging_state")["n_averaged"], torch.tensor(0))
        steps = checkpoint["global_step"]
        if type(steps) is not int or not 0 <= steps <= 2**53:
            raise ValueError(f"global_step is {shown(steps)}; it must be an int of 0 or more")
        if "progress" in checkpoint:
            progress = from_plain(Progress, checkpoint["progress"], "progress")
        else:  # an old checkpoint: of as many processes as now
            progress = Progress.of_steps(steps, pass_batches, task.options.accumulate, processes)
        mapping(mapping(checkpoint, "loops"), "fit_loop")
        require_callbacks(mapping(checkpoint, "callbacks"))
        (state,), _ = checkpoint["optimizer_states"], checkpoint["lr_schedulers"]
        for number, parameter in enumerate(task.parameters()):
            if steps == 0:
                continue
            if not 0 <= float(state["state"][number]["step"]) <= steps:  # the float16 scaler skips some
                raise ValueError(f"the optimizer's step of parameter {number} is not one of its {steps}")
            for name in ("exp_avg", "exp_avg_sq"):
                require_tensor(f"{name} of parameter {number}", state["state"][number][name], parameter)
        return steps, progress.with_processes(processes, pass_batches), state_dict

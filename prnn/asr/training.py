"""Training a recogniser from manifests: what ``prnn train`` runs."""

from __future__ import annotations

import json
import logging
import os
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy

from prnn.distributed import GradientMean
from prnn.transducer import Encoder, Transducer, TransducerConfig

from .augment import Augmentation
from .checkpoint import read_checkpoint
from .dataset import BatchLoader, BatchOrder, UtteranceDataset, feature_statistics, make_loader
from .errors import InputError
from .features import FeatureConfig
from .manifest import read_manifest
from .task import TransducerTask
from .tokenizer import CharTokenizer


@dataclass(frozen=True)
class TrainingOptions:
    """What ``prnn train`` can be told.

    Args:
        manifest: training manifest.
        valid: validation manifest.
        output: folder for checkpoints and logs.
        epochs: passes over the training manifest.
        batch_size: most utterances in a batch.
        batch_seconds: most seconds of audio in a batch, padding included.
        lr: peak learning rate.
        warmup: share of all steps in which the learning rate rises.
        weight_decay: of AdamW.
        clip: largest norm of the gradient.
        precision: Lightning's name of it.
        accelerator: Lightning's name of it: auto, cpu, gpu.
        devices: GPUs, or processes on the CPU. Each takes batches of its own; their gradients are averaged.
        seed: of weights, order, augmentation and dropout.
        checkpoint_every: steps between the checkpoints from which an interrupted training goes on.
        valid_every: epochs between validations.
        workers: processes that prepare batches; 0 prepares them in the training process, with a cache.
        cache_gb: memory for cached features, in GB.
        model: options of ``TransducerConfig`` other than vocab_size and feature_dim.
        augmentation: of the training features.
    """

    manifest: Path
    valid: Path
    output: Path
    epochs: int = 20
    batch_size: int = 12
    batch_seconds: float = 120.0
    lr: float = 3e-3
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 5.0
    precision: str = "32-true"
    accelerator: str = "auto"
    devices: int = 1
    seed: int = 0
    checkpoint_every: int = 100
    valid_every: int = 1
    workers: int = 0
    cache_gb: float = 2.0
    model: dict[str, Any] = field(default_factory=dict)
    augmentation: Augmentation = field(default_factory=Augmentation)


class _AtomicCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint beside its place, then moves it there: a kill leaves the old one or the new one."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        partial = Path(f"{path}.partial")
        with partial.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)


class _DataParallel(DDPStrategy):
    """GradientMean in the place of DistributedDataParallel; `dtype` is GradientMean's."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self._dtype = dtype

    def configure_ddp(self) -> None:
        assert self.model is not None
        self._average = GradientMean(self.model, self._dtype)

    def post_backward(self, closure_loss: torch.Tensor) -> None:
        self._average()


def last_checkpoint(output: Path) -> Path:
    """From where an interrupted training goes on."""
    return output / "last.ckpt"


def best_checkpoint(output: Path) -> Path:
    """The model with the lowest validation WER."""
    return output / "model.ckpt"


def _process_number(options: TrainingOptions) -> int:
    """Which of the processes of a training on several devices this is. Lightning, or torchrun, tells them."""
    return int(os.environ.get("LOCAL_RANK", "0")) if options.devices > 1 else 0


def _prepare_output(options: TrainingOptions, restart: bool) -> None:
    """Makes the output folder and records the options in it; refuses a folder whose training had others."""
    if restart:
        last_checkpoint(options.output).unlink(missing_ok=True)
        best_checkpoint(options.output).unlink(missing_ok=True)
    record = options.output / "options.json"
    plain = json.loads(json.dumps(asdict(options), default=str))
    free = ("output", "accelerator", "checkpoint_every", "workers", "cache_gb")
    if record.is_file() and last_checkpoint(options.output).is_file():
        try:
            old = json.loads(record.read_text())
        except json.JSONDecodeError as error:
            raise InputError(f"{record}: not JSON; take another --output") from error
        for name in plain:
            if name not in free and old.get(name) != plain[name]:
                raise InputError(
                    f"{options.output} holds a training with {name} {old.get(name)}, not {plain[name]}: "
                    "take another --output, or --restart"
                )
    if options.output.exists() and not options.output.is_dir():
        raise InputError(f"{options.output}: not a folder")
    options.output.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(plain, indent=2) + "\n")


def _quiet() -> None:
    """Silences what Lightning says that does not concern a user of prnn."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
    warnings.filterwarnings("ignore", module=r"torch\.utils\.data\..*")


def train(options: TrainingOptions, restart: bool = False, progress: bool = True) -> Path:
    """Trains a recogniser, or goes on where an interrupted training with the same options stopped.

    Args:
        options: see there.
        restart: begins anew where ``options.output`` holds a training already.
        progress: shows a progress bar.

    Returns:
        The checkpoint with the lowest validation WER, for ``prnn transcribe``.

    Raises:
        InputError: a manifest or recording cannot be used, or the output folder holds a training with other options.
    """
    _quiet()
    if options.accelerator == "gpu" and not torch.cuda.is_available():
        raise InputError("the accelerator is gpu, but torch can use no GPU here")
    train_utterances = read_manifest(options.manifest)
    valid_utterances = read_manifest(options.valid)
    if options.devices > torch.cuda.device_count() > 0 and options.accelerator != "cpu":
        raise InputError(f"devices is {options.devices}, but there are {torch.cuda.device_count()} GPUs")
    process = _process_number(options)
    last = last_checkpoint(options.output)
    if process == 0:  # the first to run; it starts the others
        _prepare_output(options, restart)
    if last.is_file():
        read_checkpoint(last)

    lightning.seed_everything(options.seed, verbose=False)
    features = FeatureConfig()
    tokenizer = CharTokenizer.from_texts(utterance.text for utterance in train_utterances)
    cache_bytes = int(options.cache_gb * 1e9)
    dataset = UtteranceDataset(train_utterances, tokenizer, features, options.augmentation, options.seed, cache_bytes)
    valid_dataset = UtteranceDataset(valid_utterances, tokenizer, features, cache_bytes=cache_bytes // 4)
    loader = BatchLoader(
        dataset,
        BatchOrder([u.duration for u in train_utterances], options.batch_size, options.batch_seconds, options.seed),
        options.workers,
        process,
        options.devices,
    )
    valid_order = BatchOrder(
        [u.duration for u in valid_utterances], options.batch_size, options.batch_seconds, seed=None
    )
    valid_loader = make_loader(valid_dataset, valid_order.epoch(0))
    config = TransducerConfig.from_dict(
        {**options.model, "vocab_size": len(tokenizer), "feature_dim": features.num_mel_bins}
    )
    model = Transducer.from_config(config)
    mean, std = feature_statistics(dataset)
    dataset.mean = mean
    assert isinstance(model.encoder, Encoder)
    model.encoder.set_normalization(mean, std)

    total_steps = options.epochs * len(loader)
    warmup_steps = max(1, int(options.warmup * total_steps))
    task = TransducerTask(model, features, tokenizer, options.lr, options.weight_decay, total_steps, warmup_steps)
    callbacks: list[Callback] = [
        ModelCheckpoint(
            dirpath=options.output,
            filename=best_checkpoint(options.output).stem,
            monitor="valid/wer",
            save_weights_only=True,
            enable_version_counter=False,
        ),
        ModelCheckpoint(
            dirpath=options.output,
            filename=last.stem,
            every_n_train_steps=options.checkpoint_every,
            enable_version_counter=False,
        ),
    ]
    if progress:
        callbacks.append(TQDMProgressBar(refresh_rate=10))
    exchanged = torch.bfloat16 if options.precision.startswith("bf16") else None
    trainer = lightning.Trainer(
        accelerator=options.accelerator,
        devices=options.devices,
        strategy=_DataParallel(exchanged) if options.devices > 1 else "auto",
        precision=options.precision,  # type: ignore[arg-type]
        max_epochs=options.epochs,
        gradient_clip_val=options.clip,
        check_val_every_n_epoch=options.valid_every,
        num_sanity_val_steps=0,
        log_every_n_steps=10,
        callbacks=callbacks,
        plugins=[_AtomicCheckpoints()],
        logger=TensorBoardLogger(options.output, name="", version="tensorboard"),
        enable_progress_bar=progress,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    seconds = sum(utterance.duration for utterance in train_utterances)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    say = print if process == 0 else (lambda *_: None)
    say(
        f"{len(train_utterances)} training utterances ({seconds / 3600:.2f} h), {len(tokenizer) - 1} characters, "
        f"{parameters / 1e6:.2f} M parameters, {total_steps} steps"
    )
    resumed = last if last.is_file() else None
    if resumed:
        say(f"going on from {resumed}")
    trainer.fit(task, loader, valid_loader, ckpt_path=resumed, weights_only=True)
    trainer.save_checkpoint(last)  # the end, for whoever runs the same command again
    say(f"best model: {best_checkpoint(options.output)}")
    return best_checkpoint(options.output)

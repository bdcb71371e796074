"""Training a recogniser from manifests: what ``prnn train`` runs."""

from __future__ import annotations

import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback, TQDMProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy

from prnn._fields import shown
from prnn.distributed import GradientMean
from prnn.transducer import Encoder, Transducer

from .checkpoint import read_steps
from .dataset import Batches, BatchLoader, BatchOrder, UtteranceDataset, feature_statistics
from .errors import InputError
from .folder import best_checkpoint, last_checkpoint, locked, record_options
from .manifest import Utterance, read_manifest
from .options import TrainingOptions
from .resume import AtomicCheckpoints, Checkpoints
from .task import TransducerTask
from .tokenizer import CharTokenizer, PieceTokenizer, Tokenizer, unknown_characters


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


def _process_number(options: TrainingOptions) -> int:
    """Which of the processes of a training on several devices this is. Lightning, or torchrun, tells them."""
    return int(os.environ.get("LOCAL_RANK", "0")) if options.devices > 1 else 0


def _quiet() -> None:
    """Silences what Lightning says that does not concern a user of prnn."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
    warnings.filterwarnings("ignore", module=r"torch\.utils\.data\..*")


def _worker_of_tensorboard(arguments: threading.ExceptHookArgs) -> bool:
    return arguments.thread is not None and type(arguments.thread).__name__ == "_AsyncWriterThread"


@contextmanager
def _tensorboard_errors_once() -> Iterator[None]:
    """TensorBoard's thread fails where the disk is full. Its writer then says so in the training's own thread; the
    thread's traceback is one too many."""
    before = threading.excepthook
    threading.excepthook = lambda arguments: None if _worker_of_tensorboard(arguments) else before(arguments)
    try:
        yield
    finally:
        threading.excepthook = before


def train(options: TrainingOptions, restart: bool = False, progress: bool = True) -> Path:
    """Trains a recogniser, or goes on where an interrupted training with the same options stopped.

    Args:
        options: see there.
        restart: begins anew where ``options.output`` holds a training already.
        progress: shows a progress bar.

    Returns:
        The checkpoint with the lowest validation WER, for ``prnn transcribe``.

    Raises:
        InputError: a manifest or recording cannot be used; the output folder holds a training with other options,
            or one that is running; a gradient, a weight or the validation loss is not a number any more.
        OSError: the output cannot be written; the checkpoints there stay as they are.
        KeyboardInterrupt: interrupted; the same options go on from the last checkpoint.
    """
    _quiet()
    if options.accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise InputError(f"the accelerator is {options.accelerator}, but torch can use no GPU here")
    if options.devices > torch.cuda.device_count() > 0 and options.accelerator != "cpu":
        raise InputError(f"devices is {options.devices}, but there are {torch.cuda.device_count()} GPUs")
    if options.precision == "16-mixed" and (options.accelerator == "cpu" or not torch.cuda.is_available()):
        raise InputError("the precision is 16-mixed, which needs a GPU; on the CPU, take bf16-mixed or 32-true")
    utterances = read_manifest(options.manifest), read_manifest(options.valid)
    process = _process_number(options)
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):  # torchrun has restarted what it had begun anew
        restart = False
    with ExitStack() as stack:
        if process == 0:  # the first to run; it starts the others
            stack.enter_context(locked(options.output))
            record_options(options, restart)
        stack.enter_context(_tensorboard_errors_once())
        on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            _fit(options, *utterances, process, restart, progress)
        except SystemExit as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # which Lightning ignores from then on
                signal.signal(signal.SIGINT, on_interrupt)
                raise KeyboardInterrupt from error
            raise
        except OSError as error:
            if error.filename is None and error.errno is not None:
                raise OSError(error.errno, error.strerror, str(options.output)) from error
            raise
    return best_checkpoint(options.output)


def _tokenizer(options: TrainingOptions, utterances: list[Utterance]) -> Tokenizer:
    if options.tokenizer is None:
        return CharTokenizer.from_texts(utterance.text for utterance in utterances)
    return PieceTokenizer.load(options.tokenizer)


def _fit(
    options: TrainingOptions,
    train_utterances: list[Utterance],
    valid_utterances: list[Utterance],
    process: int,
    restart: bool,
    progress: bool,
) -> None:
    lightning.seed_everything(options.seed, verbose=False)
    features = options.features
    tokenizer = _tokenizer(options, train_utterances)
    unknown = unknown_characters(tokenizer, (utterance.text for utterance in valid_utterances))
    cache_bytes = int(options.cache_gb * 1e9)
    dataset = UtteranceDataset(train_utterances, tokenizer, features, options.augmentation, options.seed, cache_bytes)
    valid_dataset = UtteranceDataset(
        valid_utterances, tokenizer, features, cache_bytes=cache_bytes // 4, pass_over_unknown=True
    )
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
    valid_loader = Batches(valid_dataset, valid_order.epoch(0))
    model = Transducer.from_config(options.transducer(len(tokenizer), features.num_mel_bins))
    task = TransducerTask(model, features, tokenizer, options, len(loader))
    last = last_checkpoint(options.output)
    resumed = last if last.is_file() and not restart else None  # the first process may not have removed it yet
    if resumed:
        loader.start(read_steps(resumed, task))
    mean, std = feature_statistics(dataset)
    dataset.mean = mean
    assert isinstance(model.encoder, Encoder)
    model.encoder.set_normalization(mean, std)

    callbacks: list[Callback] = [Checkpoints(options.output, options.checkpoint_every)]
    if progress:
        callbacks.append(TQDMProgressBar(refresh_rate=10))
    exchanged = torch.bfloat16 if options.precision.startswith("bf16") else None
    trainer = lightning.Trainer(
        accelerator=options.accelerator,
        devices=options.devices,
        strategy=_DataParallel(exchanged) if options.devices > 1 else "auto",
        precision=options.precision,
        max_epochs=options.epochs,
        gradient_clip_val=options.clip,
        check_val_every_n_epoch=min(options.valid_every, options.epochs),
        num_sanity_val_steps=0,
        log_every_n_steps=10,
        callbacks=callbacks,
        plugins=[AtomicCheckpoints()],
        logger=TensorBoardLogger(options.output, name="", version="tensorboard"),
        enable_checkpointing=False,
        enable_progress_bar=progress,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    seconds = sum(utterance.duration for utterance in train_utterances)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    say = print if process == 0 else (lambda *_: None)
    say(
        f"{len(train_utterances)} training utterances ({seconds / 3600:.2f} h), {len(tokenizer) - 1} symbols, "
        f"{parameters / 1e6:.2f} M parameters, {task.total_steps} steps"
    )
    if unknown:
        most = ", ".join(f"{character!r} {count} times" for character, count in unknown.most_common(5))
        say(
            f"{options.valid}: {unknown.total()} characters, {len(unknown)} different ones, are not among the "
            f"{shown(tokenizer, str)}; they count as errors: {most}{', ...' if len(unknown) > 5 else ''}"
        )
    if resumed:
        say(f"going on from {resumed}")
    trainer.fit(task, loader, valid_loader, ckpt_path=resumed, weights_only=True)
    say(f"best model: {best_checkpoint(options.output)}")

"""Training a recogniser from manifests: what ``prnn train`` runs."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from torch import Tensor

from prnn._fields import counted

from .averaging import MovingAverage, mean_of_checkpoints
from .checkpoint import mapping, read_checkpoint
from .data import TrainingData, open_data
from .dataset import feature_statistics, feature_sums
from .errors import InputError
from .folder import (
    averaged_checkpoint,
    best_checkpoint,
    how_to_go_on,
    last_checkpoint,
    locked,
    record_options,
    require_same_options,
)
from .initial import begin_from
from .loader import Prefetcher, PreparedBesideBackward
from .notes import same_data_note, spelling_note
from .options import TrainingOptions
from .own_encoder import build_model
from .parallel import (
    DataParallel,
    Terminated,
    communicating,
    communication_device,
    in_all_processes,
    process_number,
    require_open_files,
    require_processes,
    start_processes,
    total,
)
from .resume import AtomicCheckpoints, Checkpoints, read_progress
from .task import TransducerTask
from .throughput import ProgressBar, ThroughputLog


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


@contextmanager
def _frozen_garbage() -> Iterator[None]:
    """Within it Python looks for cyclic garbage among later objects alone: a look at those of torch's and Lightning's
    modules, hundreds of thousands, takes as long as many steps."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def train(options: TrainingOptions, restart: bool = False, progress: bool = True) -> Path:
    """Trains a recogniser, or goes on where an interrupted training with the same options stopped.

    Args:
        options: see there.
        restart: begins anew where ``options.output`` holds a training already.
        progress: says on the standard error how far it has come and when it will end (`ProgressBar`).

    Returns:
        The checkpoint of the best model (`Checkpoints`), for ``prnn transcribe``.

    Raises:
        InputError: a manifest or recording cannot be used; the output folder holds a training with other options,
            or one that is running; a gradient, a weight or the validation loss is not a number any more.
        OSError: the output cannot be written; the checkpoints there stay as they are.
        KeyboardInterrupt: interrupted; the same options go on from the last checkpoint, which is of the last step where
            one process trains.
    """
    _quiet()
    if options.accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise InputError(f"the accelerator is {options.accelerator}, but torch can use no GPU here")
    if options.devices > torch.cuda.device_count() > 0 and options.accelerator != "cpu":
        raise InputError(f"devices is {options.devices}, but there are {torch.cuda.device_count()} GPUs")
    if options.precision == "16-mixed" and (options.accelerator == "cpu" or not torch.cuda.is_available()):
        raise InputError("the precision is 16-mixed, which needs a GPU; on the CPU, take bf16-mixed or 32-true")
    require_processes(options)
    require_open_files(options)
    process = process_number(options)
    launcher = start_processes(options)
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):  # torchrun has restarted what it had begun anew
        restart = False
    with communicating(), ExitStack() as stack:

        def opened() -> TrainingData:
            data = open_data(options, process)
            if process == 0:
                stack.enter_context(locked(options.output))
                require_same_options(options, restart)
            return data

        data = in_all_processes(options, opened)
        stack.callback(data.close)
        stack.enter_context(_tensorboard_errors_once())
        on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            _fit(options, data, process, launcher, progress, partial(how_to_go_on, options.output, restart))
        except SystemExit as error:
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise
        except OSError as error:
            if error.filename is None and error.errno is not None:
                raise OSError(error.errno, error.strerror, str(options.output)) from error
            raise
        finally:
            if signal.getsignal(signal.SIGINT) is not on_interrupt:  # Lightning ignores it after an interrupt
                signal.signal(signal.SIGINT, on_interrupt)
    return best_checkpoint(options.output)


def _fit(
    options: TrainingOptions,
    data: TrainingData,
    process: int,
    launcher: _SubprocessScriptLauncher | None,
    progress: bool,
    going_on: Callable[[], str],
) -> None:
    say = print if process == 0 else (lambda *_: None)
    lightning.seed_everything(options.seed, verbose=False)
    loader = data.loader
    encoder_class = options.model.get("encoder_class")
    model = build_model(options.transducer(len(data.tokenizer), options.features.num_mel_bins), encoder_class)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    task = TransducerTask(model, options.features, data.tokenizer, options, loader.pass_batches, data.validates)
    task.trained_on = data.trained_on
    last = last_checkpoint(options.output)
    resumed = last if last.is_file() else None

    def stood() -> tuple[int, dict[str, Tensor]]:
        """The steps that the training has done, and its model's state; records the options."""
        steps, state = 0, dict[str, Tensor]()
        if resumed:
            steps, stands, state = read_progress(resumed, task, options.processes, loader.pass_batches)
            task.go_on_from(stands, steps)
            loader.start(stands.after, stands.done)
            if steps > task.total_steps or task.total_batches < stands.done:
                wanted = f"epochs is {options.epochs}" if options.steps is None else f"steps is {options.steps}"
                raise InputError(
                    f"{options.output} holds a training of {steps} steps, which is more, and {wanted}: take more, "
                    "or another --output, or --restart"
                )
        if process == 0:
            record_options(options)
        return steps, state

    steps, state = in_all_processes(options, stood)
    loader.end(task.total_batches)
    say(
        f"{counted(data.utterances, 'training utterance')} ({data.hours:.2f} h), "
        f"{counted(len(data.tokenizer) - 1, 'symbol')}, {parameters / 1e6:.2f} M parameters, "
        f"{counted(task.total_steps, 'step')}"
    )
    for note in (*data.notes, spelling_note(options.manifest, data.tokenizer), same_data_note(options)):
        if note:
            say(note)
    if data.unknown:
        say(data.report(options.valid))
    if resumed:
        say(f"going on from {resumed}")
        data.train.mean = state["encoder.feature_mean"]
    elif options.init is not None:
        say(begin_from(options.init, model, options.features, data.tokenizer, encoder_class))
        data.train.mean = model.encoder.feature_mean.clone()
    else:
        say("mean and standard deviation of the features ...")
        sums = feature_sums(data.sample(), options.features, communication_device(options))
        mean, std = feature_statistics(total(sums))
        data.train.mean = mean
        model.encoder.set_normalization(mean, std)
        if process == 0 and (sentence := data.report_rates(options.manifest, options.features)):
            say(sentence)

    # In the order of their hooks: pictures are of the averaged weights, checkpoints hold the average of the last step.
    average = MovingAverage(options.ema) if options.ema else None
    checkpoints = Checkpoints(options, average, data.words)
    ahead = Prefetcher(loader, task.prepared, lambda: task.device)
    callbacks: list[Callback] = [
        Terminated(launcher, checkpoints.save_then, going_on),
        PreparedBesideBackward(ahead),
        ThroughputLog(ahead, options.log_every),
    ]
    if options.pictures and process == 0:
        from .pictures import Pictures  # and with it matplotlib

        callbacks.append(Pictures(data.shown(options.pictures)))
    callbacks += [callback for callback in (average, checkpoints) if callback is not None]
    shows = progress and process == 0
    if shows:
        callbacks.append(ProgressBar())
    exchanged = torch.bfloat16 if options.precision.startswith("bf16") else None
    passes = -(-task.total_batches // loader.pass_batches)
    trainer = lightning.Trainer(
        accelerator=options.accelerator,
        devices=options.devices,
        num_nodes=options.num_nodes,
        strategy=DataParallel(exchanged, launcher) if options.processes > 1 else "auto",
        precision=options.precision,
        max_epochs=passes,
        accumulate_grad_batches=options.accumulate,
        check_val_every_n_epoch=options.valid_every,
        reload_dataloaders_every_n_epochs=1,  # the last pass may be a shorter one
        num_sanity_val_steps=0,
        log_every_n_steps=options.log_every,
        callbacks=callbacks,
        plugins=[AtomicCheckpoints()],
        logger=TensorBoardLogger(options.output, name="", version="tensorboard"),
        enable_checkpointing=False,
        enable_progress_bar=shows,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    finished = resumed is not None and steps == task.total_steps
    if resumed and finished:
        checkpoints.load_state_dict(mapping(read_checkpoint(resumed)["callbacks"], checkpoints.state_key))
    else:
        with _frozen_garbage():
            trainer.fit(task, ahead, data.valid_loader, ckpt_path=resumed, weights_only=True)
    if finished and checkpoints.kept() and _mean_of(averaged_checkpoint(options.output)) == checkpoints.kept_steps():
        say(f"mean of {len(checkpoints.kept())} models: in {averaged_checkpoint(options.output)}, as before")
    elif checkpoints.kept():
        _average(trainer, task, checkpoints, data)
    if checkpoints.shortage():
        say(checkpoints.shortage())
    say(f"best model: {best_checkpoint(options.output)}")


def _mean_of(path: Path) -> list[int]:
    """After which steps the models were saved whose mean lies there; none if that cannot be read."""
    with suppress(InputError):
        steps = read_checkpoint(path).get("mean_of")
        if isinstance(steps, list) and all(type(step) is int for step in steps):
            return steps
    return []


def _average(trainer: lightning.Trainer, task: TransducerTask, checkpoints: Checkpoints, data: TrainingData) -> None:
    """Saves the mean of the models that were kept, and validates it."""
    paths, task.mean_of = checkpoints.kept(), checkpoints.kept_steps()
    task.model.load_state_dict(mean_of_checkpoints(paths, task.options.model.get("encoder_class")))
    path = averaged_checkpoint(task.options.output)
    # Callbacks and log of the training would take it for one of its models.
    trainer.callbacks, trainer.loggers = [], []  # type: ignore[attr-defined]
    (values,) = trainer.validate(task, data.valid_loader, verbose=False)
    trainer.save_checkpoint(path, weights_only=True)
    task.print(f"mean of {len(paths)} models: WER {100 * values['valid/wer']:.2f} %, in {path}")

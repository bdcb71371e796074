"""``prnn train``: a recogniser from recordings and their texts."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from prnn._fields import option
from prnn.asr.augment import Augmentation
from prnn.asr.errors import InputError
from prnn.asr.options import TrainingOptions
from prnn.commands.failure import reported
from prnn.transducer import TransducerConfig

_DESCRIPTION = """
Train a streaming transducer on the recordings of a manifest: one JSON object a line with audio_filepath (relative to
the manifest, or absolute), duration in seconds, and text. WAV, FLAC and whatever else libsndfile reads, at any sample
rate. An interrupted training goes on when the same command runs again. OUTPUT/model.ckpt is the best model so far, for
prnn transcribe; tensorboard --logdir OUTPUT shows the curves.
"""

# Options of the command line: the field that each sets, its metavar, its help, a default in the place of the field's.
_GENERAL: dict[str, tuple[Any, ...]] = {
    "--manifest": ("manifest", "FILE", "training manifest"),
    "--valid": ("valid", "FILE", "validation manifest"),
    "--tokenizer": ("tokenizer", "FILE", "sentencepiece model (.model); without one, characters are spelled"),
    "--output": ("output", "DIR", "checkpoints and logs (%(default)s)"),
    "--epochs": ("epochs", "N", "passes over the manifest (%(default)s)"),
    "--seed": ("seed", "N", "seed of everything random (%(default)s)"),
}
_MODEL: dict[str, tuple[Any, ...]] = {
    "--cell": ("encoder_cell", "", "encoder layers (%(default)s)", "lstm"),
    "--layers": ("encoder_layers", "N", "encoder layers (%(default)s)", 2),
    "--hidden": ("encoder_hidden", "N", "their hidden size (%(default)s)", 256),
    "--frame-stack": ("frame_stack", "N", "10 ms frames seen at once (%(default)s)", 8),
    "--frame-stride": ("frame_stride", "N", "10 ms frames a step (%(default)s)", 4),
    "--predictor": ("predictor", "", "stateless: sees the last two characters (%(default)s)", "stateless"),
    "--predictor-hidden": ("predictor_hidden", "N", "its hidden size (%(default)s)", 128),
    "--joiner": ("joiner_dim", "N", "size of the joiner (%(default)s)", 128),
    "--dropout": ("dropout", "P", "(%(default)s)", 0.0),
    "--loss": (
        "loss", "", "exact or pruned transducer loss, or that of a token-and-duration transducer (%(default)s)", "full",
    ),
    "--ctc-weight": ("ctc_weight", "W", "auxiliary CTC loss; 0 is none (%(default)s)", 0.3),
}  # fmt: skip
_OPTIMISATION: dict[str, tuple[Any, ...]] = {
    "--batch-size": ("batch_size", "N", "most utterances in a batch (%(default)s)"),
    "--batch-seconds": ("batch_seconds", "S", "most seconds in a batch, with padding (%(default)s)"),
    "--lr": ("lr", "R", "peak learning rate of AdamW (%(default)s)"),
    "--warmup": ("warmup", "P", "share of steps in which it rises; then it falls (%(default)s)"),
    "--weight-decay": ("weight_decay", "W", "(%(default)s)"),
    "--clip": ("clip", "G", "largest gradient norm (%(default)s)"),
}
_AUGMENTATION: dict[str, tuple[Any, ...]] = {
    "--gain-db": ("gain_db", "DB", "random change of level, either way (%(default)s)"),
    "--mask-bins": ("frequency_width", "N", "most mel bins masked at once; 0 is none (%(default)s)"),
    "--mask-frames": ("time_width", "N", "most frames masked at once; 0 is none (%(default)s)"),
}
_RUNNING: dict[str, tuple[Any, ...]] = {
    "--precision": ("precision", "", "(%(default)s)"),
    "--accelerator": ("accelerator", "", "(%(default)s)"),
    "--devices": ("devices", "N", "GPUs (or processes on the CPU), each with batches of its own (%(default)s)"),
    "--checkpoint-every": ("checkpoint_every", "N", "steps between checkpoints to resume from (%(default)s)"),
    "--valid-every": ("valid_every", "N", "epochs between validations (%(default)s)"),
    "--workers": (
        "workers", "N", "processes that prepare batches; 0: this one, caching features (%(default)s)",
    ),
    "--cache-gb": ("cache_gb", "GB", "memory for those features (%(default)s)"),
}  # fmt: skip


def _add(group: argparse._ActionsContainer, cls: type, options: dict[str, tuple[Any, ...]]) -> None:
    for flag, (name, metavar, text, *default) in options.items():
        arguments = option(cls, name, *default)
        if "choices" not in arguments:
            arguments["metavar"] = metavar
        group.add_argument(flag, dest=name, help=text, **arguments)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    parser = subparsers.add_parser("train", help="train a recogniser on your recordings", description=_DESCRIPTION)
    _add(parser, TrainingOptions, _GENERAL)
    parser.add_argument("--restart", action="store_true", help="begin anew where OUTPUT holds a training")
    _add(parser.add_argument_group("model"), TransducerConfig, _MODEL)
    group = parser.add_argument_group("optimisation")
    _add(group, TrainingOptions, _OPTIMISATION)
    _add(group, Augmentation, _AUGMENTATION)
    group = parser.add_argument_group("running")
    _add(group, TrainingOptions, _RUNNING)
    group.add_argument("--no-progress", action="store_true", help="no progress bar")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Trains."""

    def values(*groups: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        return {name: getattr(arguments, name) for group in groups for name, *_ in group.values()}

    with reported("prnn train"):
        if arguments.frame_stride > arguments.frame_stack:
            raise InputError(
                f"--frame-stride is {arguments.frame_stride}; it must be at most --frame-stack, {arguments.frame_stack}"
            )
        model = values(_MODEL)
        options = TrainingOptions(
            **values(_GENERAL, _OPTIMISATION, _RUNNING),
            model={**model, "predictor_embedding": model["predictor_hidden"]},
            augmentation=Augmentation(**values(_AUGMENTATION)),
        )
        from prnn.asr.training import train

        train(options, restart=arguments.restart, progress=not arguments.no_progress and sys.stderr.isatty())

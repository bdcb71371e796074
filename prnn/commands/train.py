"""``prnn train``: a recogniser from recordings and their texts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from prnn.commands.failure import reported
from prnn.commands.options import number, whole

_DESCRIPTION = """
Train a streaming transducer on the recordings of a manifest: one JSON object a line with audio_filepath (relative to
the manifest, or absolute), duration in seconds, and text. WAV, FLAC and whatever else libsndfile reads, at any sample
rate. An interrupted training goes on when the same command runs again. OUTPUT/model.ckpt is the best model so far, for
prnn transcribe; tensorboard --logdir OUTPUT shows the curves.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    parser = subparsers.add_parser("train", help="train a recogniser on your recordings", description=_DESCRIPTION)
    add = parser.add_argument
    add("--manifest", type=Path, required=True, metavar="FILE", help="training manifest")
    add("--valid", type=Path, required=True, metavar="FILE", help="validation manifest")
    add("--output", type=Path, default=Path("prnn-train"), metavar="DIR", help="checkpoints and logs (%(default)s)")
    add("--restart", action="store_true", help="begin anew where OUTPUT holds a training")
    add("--epochs", type=whole(1), default=20, metavar="N", help="passes over the manifest (%(default)s)")
    add("--seed", type=whole(0), default=0, metavar="N", help="seed of everything random (%(default)s)")

    group = parser.add_argument_group("model")
    add = group.add_argument
    add("--cell", choices=("lstm", "gru"), default="lstm", help="encoder layers (%(default)s)")
    add("--layers", type=whole(1), default=2, metavar="N", help="encoder layers (%(default)s)")
    add("--hidden", type=whole(1), default=256, metavar="N", help="their hidden size (%(default)s)")
    add("--frame-stack", type=whole(1), default=8, metavar="N", help="10 ms frames seen at once (%(default)s)")
    add("--frame-stride", type=whole(1), default=4, metavar="N", help="10 ms frames a step (%(default)s)")
    add(
        "--predictor",
        choices=("lstm", "gru", "stateless"),
        default="stateless",
        help="stateless: sees the last two characters (%(default)s)",
    )
    add("--predictor-hidden", type=whole(1), default=128, metavar="N", help="its hidden size (%(default)s)")
    add("--joiner", type=whole(1), default=128, metavar="N", help="size of the joiner (%(default)s)")
    add("--dropout", type=number(0, 0.99), default=0.0, metavar="P", help="(%(default)s)")
    add(
        "--loss",
        choices=("full", "pruned", "tdt"),
        default="full",
        help="exact or pruned transducer loss, or that of a token-and-duration transducer (%(default)s)",
    )
    add("--ctc-weight", type=number(0), default=0.3, metavar="W", help="auxiliary CTC loss; 0 is none (%(default)s)")

    group = parser.add_argument_group("optimisation")
    add = group.add_argument
    add("--batch-size", type=whole(1), default=12, metavar="N", help="most utterances in a batch (%(default)s)")
    add(
        "--batch-seconds",
        type=number(0, above=True),
        default=120.0,
        metavar="S",
        help="most seconds in a batch, with padding (%(default)s)",
    )
    add("--lr", type=number(0, above=True), default=3e-3, metavar="R", help="peak learning rate of AdamW (%(default)s)")
    add(
        "--warmup",
        type=number(0, 1),
        default=0.1,
        metavar="P",
        help="share of steps in which it rises; then it falls (%(default)s)",
    )
    add("--weight-decay", type=number(0), default=0.01, metavar="W", help="(%(default)s)")
    add("--clip", type=number(0, above=True), default=5.0, metavar="G", help="largest gradient norm (%(default)s)")
    add("--gain-db", type=number(0), default=6.0, metavar="DB", help="random change of level, either way (%(default)s)")
    add(
        "--mask-bins",
        type=whole(0),
        default=8,
        metavar="N",
        help="most mel bins masked at once; 0 is none (%(default)s)",
    )
    add(
        "--mask-frames",
        type=whole(0),
        default=6,
        metavar="N",
        help="most frames masked at once; 0 is none (%(default)s)",
    )

    group = parser.add_argument_group("running")
    add = group.add_argument
    add("--precision", choices=("32-true", "bf16-mixed", "16-mixed"), default="32-true", help="(%(default)s)")
    add("--accelerator", choices=("auto", "cpu", "gpu"), default="auto", help="(%(default)s)")
    add(
        "--devices",
        type=whole(1),
        default=1,
        metavar="N",
        help="GPUs (or processes on the CPU), each with batches of its own (%(default)s)",
    )
    add(
        "--checkpoint-every",
        type=whole(1),
        default=100,
        metavar="N",
        help="steps between checkpoints to resume from (%(default)s)",
    )
    add("--valid-every", type=whole(1), default=1, metavar="N", help="epochs between validations (%(default)s)")
    add(
        "--workers",
        type=whole(0),
        default=0,
        metavar="N",
        help="processes that prepare batches; 0: this one, caching features (%(default)s)",
    )
    add("--cache-gb", type=number(0), default=2.0, metavar="GB", help="memory for those features (%(default)s)")
    add("--no-progress", action="store_true", help="no progress bar")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Trains."""
    with reported("prnn train"):
        from prnn.asr.augment import Augmentation
        from prnn.asr.errors import InputError
        from prnn.asr.training import TrainingOptions, train

        if arguments.frame_stride > arguments.frame_stack:
            raise InputError(
                f"--frame-stride is {arguments.frame_stride}; it must be at most --frame-stack, {arguments.frame_stack}"
            )
        options = TrainingOptions(
            manifest=arguments.manifest,
            valid=arguments.valid,
            output=arguments.output,
            epochs=arguments.epochs,
            batch_size=arguments.batch_size,
            batch_seconds=arguments.batch_seconds,
            lr=arguments.lr,
            warmup=arguments.warmup,
            weight_decay=arguments.weight_decay,
            clip=arguments.clip,
            precision=arguments.precision,
            accelerator=arguments.accelerator,
            devices=arguments.devices,
            seed=arguments.seed,
            checkpoint_every=arguments.checkpoint_every,
            valid_every=min(arguments.valid_every, arguments.epochs),
            workers=arguments.workers,
            cache_gb=arguments.cache_gb,
            model={
                "encoder_cell": arguments.cell,
                "encoder_layers": arguments.layers,
                "encoder_hidden": arguments.hidden,
                "frame_stack": arguments.frame_stack,
                "frame_stride": arguments.frame_stride,
                "predictor": arguments.predictor,
                "predictor_embedding": arguments.predictor_hidden,
                "predictor_hidden": arguments.predictor_hidden,
                "joiner_dim": arguments.joiner,
                "dropout": arguments.dropout,
                "loss": arguments.loss,
                "ctc_weight": arguments.ctc_weight,
            },
            augmentation=Augmentation(
                gain_db=arguments.gain_db,
                frequency_width=arguments.mask_bins,
                time_width=arguments.mask_frames,
            ),
        )
        train(options, restart=arguments.restart, progress=not arguments.no_progress and sys.stderr.isatty())

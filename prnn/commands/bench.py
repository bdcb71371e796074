"""``prnn bench``: the programs of prnn.bench."""

from __future__ import annotations

import argparse
import runpy
import sys

from prnn.commands.failure import reported
from prnn.commands.options import add_accelerator

_FAMILIES = {"rnn": "rnn", "loss": "losses", "train": "train"}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "bench",
        help="measure against torch",
        usage="prnn bench [-h] [--accelerator {auto,cpu,gpu,cuda}] {rnn,loss,train,data,decode,jax} [OPTION ...]",
        description="Measure prnn beside torch on this machine. Options after the family are the family's own, those "
        "of the CPU others than those of a GPU: prnn bench --accelerator cpu rnn --help lists them.",
    )
    parser.add_argument(
        "family",
        choices=(*_FAMILIES, "data", "decode", "jax"),
        help="rnn: recurrent layers; loss: CTC and transducer losses; train: a whole training step; data: what reads "
        "and augments the recordings of a training; decode: greedy search of a transducer; jax: recurrent layers "
        "in JAX",
    )
    add_accelerator(parser, "what to measure, before the family")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the family; --help lists them")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Runs the program in this process."""
    with reported():
        if arguments.family == "data":
            from prnn.bench.data import main

            return main(arguments.arguments)
        import torch

        found = "gpu" if torch.cuda.is_available() else "cpu"
        device = {"auto": found, "cuda": "gpu"}.get(arguments.accelerator, arguments.accelerator)
        if arguments.family == "decode":
            from prnn.bench.decode import main as measure_decoding

            return measure_decoding(arguments.arguments, device)
        if arguments.family == "jax":
            from prnn.bench.jax_layers import main as measure_jax

            return measure_jax(arguments.arguments, device)
        sys.argv = [f"prnn bench {arguments.family}", *arguments.arguments]
        runpy.run_module(f"prnn.bench.{_FAMILIES[arguments.family]}_{device}", run_name="__main__")

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
        description="Run a program of prnn.bench with the arguments that follow.",
    )
    parser.add_argument(
        "family",
        choices=(*_FAMILIES, "data"),
        help="recurrent layers, losses, a whole training step, or the data of a training",
    )
    add_accelerator(parser, "what to measure, before the family")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="for the program; --help lists them")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Runs the program in this process."""
    with reported(f"prnn bench {arguments.family}"):
        if arguments.family == "data":
            from prnn.bench.data import main

            return main(arguments.arguments)
        import torch

        found = "gpu" if torch.cuda.is_available() else "cpu"
        device = {"auto": found, "cuda": "gpu"}.get(arguments.accelerator, arguments.accelerator)
        sys.argv = [f"prnn bench {arguments.family}", *arguments.arguments]
        runpy.run_module(f"prnn.bench.{_FAMILIES[arguments.family]}_{device}", run_name="__main__")

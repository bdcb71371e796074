"""``prnn bench``: the programs under bench/ of a checkout."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

import prnn
from prnn.commands.failure import CommandError
from prnn.commands.options import add_accelerator

_FAMILIES = {"rnn": "rnn", "loss": "losses", "train": "train"}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "bench",
        help="measure against torch",
        description="Run a program of bench/, which lies beside the package in a checkout (pip install -e . or "
        "PYTHONPATH), with the arguments that follow.",
    )
    parser.add_argument("family", choices=tuple(_FAMILIES), help="recurrent layers, losses, or a whole training step")
    add_accelerator(parser, "what to measure, before the family")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="for the program; --help lists them")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Runs the program in this process."""
    import torch

    found = "gpu" if torch.cuda.is_available() else "cpu"
    device = {"auto": found, "cuda": "gpu"}.get(arguments.accelerator, arguments.accelerator)
    folder = Path(prnn.__file__).resolve().parents[1] / "bench"
    name = f"{_FAMILIES[arguments.family]}_{device}.py"
    if not folder.is_dir():
        raise CommandError(f"prnn bench needs a checkout of prnn: there is no {folder}")
    program = folder / name
    if not program.is_file():
        raise CommandError(f"there is no benchmark of {arguments.family} on {device}: no {program}")
    sys.argv = [str(program), *arguments.arguments]
    sys.path.insert(0, str(folder))
    runpy.run_path(str(program), run_name="__main__")

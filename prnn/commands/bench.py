"""``prnn bench``: the programs of prnn.bench."""

from __future__ import annotations

import argparse
import importlib
import sys

from prnn.commands.failure import reported
from prnn.commands.options import add_accelerator

_BY_DEVICE = {
    "rnn": ("rnn", "recurrent layers"),
    "loss": ("losses", "CTC and transducer losses"),
    "train": ("train", "a whole training step"),
}
_OF_BOTH = {
    "data": "what reads and augments the recordings of a training",
    "decode": "greedy search of a transducer",
    "jax": "recurrent layers in JAX",
}
_OF_GPUS = {
    "backends": ("rnn_backends", "the resident kernels beside cuDNN: what the choice between them is made of"),
    "regret": ("rnn_regret", "how far that choice is behind the faster one, by a file of backends"),
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    descriptions = {name: text for name, (_, text) in (_BY_DEVICE | _OF_GPUS).items()} | _OF_BOTH
    families = [*_BY_DEVICE, *_OF_BOTH, *_OF_GPUS]
    parser = subparsers.add_parser(
        "bench",
        help="measure against torch",
        usage=f"prnn bench [-h] [--accelerator {{auto,cpu,gpu,cuda}}] {{{','.join(families)}}} [OPTION ...]",
        description="Measure prnn beside torch on this machine. Options after the family are the family's own, those "
        "of the CPU others than those of a GPU: prnn bench --accelerator cpu rnn --help lists them.",
    )
    parser.add_argument(
        "family",
        choices=families,
        metavar="family",
        help="; ".join(f"{name}: {descriptions[name]}" for name in [*_BY_DEVICE, *_OF_BOTH])
        + ". Of a GPU: "
        + "; ".join(f"{name}: {descriptions[name]}" for name in _OF_GPUS),
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
        if arguments.family in _OF_GPUS:
            module = _OF_GPUS[arguments.family][0]
        else:
            module = f"{_BY_DEVICE[arguments.family][0]}_{device}"
        importlib.import_module(f"prnn.bench.{module}").main()

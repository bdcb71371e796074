"""``prnn bench``: the programs of prnn.bench."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping
from typing import Any

from prnn.commands.failure import reported
from prnn.commands.options import add_accelerator

# Family -> module of prnn.bench, what it measures.
_BY_DEVICE = {  # two modules, for the CPU and for a GPU
    "rnn": ("rnn", "recurrent layers"),
    "loss": ("losses", "CTC and transducer losses"),
    "train": ("train", "a whole training step"),
    "compat": ("compat", "the losses of prnn.compat beside the packages that they stand in for"),
}
_OF_BOTH = {
    "data": ("data", "what reads and augments the recordings of a training"),
    "decode": ("decode", "greedy search of a transducer"),
    "jax": ("jax_layers", "recurrent layers in JAX"),
    "memory": ("rnn_memory", "peak memory of recurrent layers"),
}
_OF_GPUS = {
    "backends": ("rnn_backends", "the resident kernels beside cuDNN, which the choice between them goes by"),
    "regret": ("rnn_regret", "how far that choice is behind the faster one, by a file of backends"),
    "eager": ("rnn_eager", "calls of small recurrent layers with the host's time"),
    "heads": ("rnn_heads", "layers with heads beside torch"),
    "reset": ("rnn_reset", "layers with reset= beside TorchRL"),
    "flashrnn": ("rnn_flashrnn", "recurrent layers beside FlashRNN"),
}
_FAMILIES = _BY_DEVICE | _OF_BOTH | _OF_GPUS


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "bench",
        help="measure against torch",
        usage=f"prnn bench [-h] [--accelerator {{auto,cpu,gpu,cuda}}] {{{','.join(_FAMILIES)}}} [OPTION ...]",
        description="Measure prnn beside torch on this machine. Options after the family are the family's own, those "
        "of the CPU others than those of a GPU: prnn bench --accelerator cpu rnn --help lists them.",
    )
    parser.add_argument(
        "family",
        choices=list(_FAMILIES),
        metavar="family",
        help=f"{_described(_BY_DEVICE | _OF_BOTH)}. Of a GPU: {_described(_OF_GPUS)}",
    )
    add_accelerator(parser, "what to measure, before the family")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the family; --help lists them")
    return parser


def _described(families: Mapping[str, tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {text}" for name, (_, text) in families.items())


def run(arguments: argparse.Namespace) -> None:
    """Runs the program in this process."""
    family = arguments.family
    module, _ = _FAMILIES[family]
    sys.argv = [f"prnn bench {family}", *arguments.arguments]
    with reported():
        from prnn.bench.json_rows import rows_printed

        with rows_printed(arguments.arguments):
            if family == "data":  # by its options, those of prnn train; its --help needs no torch
                _load(module).main(arguments.arguments)
                return
            import torch

            found = "gpu" if torch.cuda.is_available() else "cpu"
            device = {"auto": found, "cuda": "gpu"}.get(arguments.accelerator, arguments.accelerator)
            if family in _OF_BOTH:
                _load(module).main(arguments.arguments, device)
            else:
                _load(f"{module}_{device}" if family in _BY_DEVICE else module).main()


def _load(name: str) -> Any:
    return importlib.import_module(f"prnn.bench.{name}")

"""``prnn bench``: the programs of prnn.bench."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
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
        "of the CPU others than those of a GPU: prnn bench rnn --help lists both, with --accelerator those of one.",
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
    family, options = arguments.family, arguments.arguments
    module, _ = _FAMILIES[family]
    sys.argv = [f"prnn bench {family}", *options]
    device = {"cuda": "gpu"}.get(arguments.accelerator, arguments.accelerator)
    with reported():
        from prnn.bench.json_rows import rows_printed

        with rows_printed(options):
            if family == "data":  # by its options, those of prnn train; its --help needs no torch
                _load(module).main(options)
                return
            if not {"-h", "--help"}.isdisjoint(options):
                _print_help(family, device, options)
                return
            import torch

            if device == "auto":
                device = "gpu" if torch.cuda.is_available() else "cpu"
            if family in _OF_BOTH:
                _load(module).main(options, device)
            else:
                _load(f"{module}_{device}" if family in _BY_DEVICE else module).main()


def _print_help(family: str, device: str, options: Sequence[str]) -> None:
    """Describes a family's program, without torch: the CPU's and the GPU's where no accelerator is given. Ends the
    process where there is one program."""
    parsers = _parsers(family, ("cpu", "gpu") if device == "auto" else (device,))
    if len(parsers) == 1:
        parsers[0].parse_args(options)  # of a command of the program, where one is named
    print("\n\n".join(parser.format_help() for parser in parsers), end="")


def _parsers(family: str, devices: Sequence[str] = ("cpu", "gpu")) -> list[argparse.ArgumentParser]:
    """The parsers of a family's programs on these devices."""
    from prnn.bench import command_lines

    module, _ = _FAMILIES[family]
    names = [f"{module}_{device}" for device in devices] if family in _BY_DEVICE or family == "memory" else [module]
    return [getattr(command_lines, name)() for name in names]


def program_parsers() -> dict[str, list[argparse.ArgumentParser]]:
    """The parsers of each family's programs, but for those of `data`, which takes the options of prnn train."""
    return {family: _parsers(family) for family in _FAMILIES if family != "data"}


def _load(name: str) -> Any:
    return importlib.import_module(f"prnn.bench.{name}")

"""A case of the campaign: one number, from which with the campaign's seed everything random in it follows."""

from __future__ import annotations

import collections
import importlib
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

PARTS = ("c", "python", "files")


class Finding(Exception):  # noqa: N818  # it is no error of the campaign
    """Something that the product must not do. The text says what, with the values concerned."""


@dataclass(frozen=True)
class Kind:
    """A kind of cases. `share` cases out of a round are of it; `function` (module:name) runs one."""

    part: str
    name: str
    share: int
    function: str

    def load(self) -> Callable[[Case], None]:
        module, name = self.function.split(":")
        return getattr(importlib.import_module(f"fuzz.{module}"), name)


KINDS = (
    Kind("c", "objects", 4, "c_objects:run"),
    Kind("c", "layers", 4, "c_layers:run"),
    Kind("c", "losses", 4, "c_losses:run"),
    Kind("c", "pruned", 2, "c_pruned:run"),
    Kind("c", "layer norm", 2, "c_layer_norm:run"),
    Kind("c", "decode", 2, "c_decode:run"),
    Kind("c", "streams", 1, "c_streams:run"),
    Kind("c", "starved", 1, "c_starved:run"),
    Kind("python", "layers", 3, "layers:run"),
    Kind("python", "layer options", 3, "options:run"),
    Kind("python", "lives of layers", 2, "options:run_lives"),
    Kind("python", "losses", 5, "losses:run"),
    Kind("python", "compat", 1, "compat:run"),
    Kind("python", "search", 2, "search:run"),
    Kind("python", "arguments", 4, "arguments:run"),
    Kind("files", "checkpoints", 4, "files:run_checkpoint"),
    Kind("files", "recordings", 4, "files:run_recording"),
    Kind("files", "manifests", 3, "files:run_manifest"),
    Kind("files", "command lines", 3, "files:run_command_line"),
    Kind("files", "trainings", 1, "files:run_training"),
    Kind("files", "cuts", 4, "odd_files:run_cuts"),
    Kind("files", "configurations", 2, "odd_files:run_configuration"),
    Kind("files", "containers", 4, "odd_files:run_container"),
    Kind("files", "faults", 2, "odd_files:run_fault"),
)
# The kinds by turns, so that the first cases of a part are one of each.
ROUND = tuple(kind for turn in range(max(kind.share for kind in KINDS)) for kind in KINDS if turn < kind.share)


def kind_of(number: int) -> Kind:
    return ROUND[number % len(ROUND)]


def numbers(part: str, first: int = 0) -> Iterator[int]:
    """The cases of a part, from `first` on."""
    return (number for number in itertools.count(first) if kind_of(number).part == part)


@dataclass
class Case:
    """A case's source of numbers, `random`, and where to tell what it does. `note` is what it is about to try, for the
    report if the process does not survive that; `counts` says how much was tried, by name."""

    seed: int
    number: int
    note: Callable[[str], None] = print
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed}/{self.number}")

    @property
    def kind(self) -> Kind:
        return kind_of(self.number)

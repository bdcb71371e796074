"""Types of command-line options, which refuse values that cannot work."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def whole(minimum: int) -> Callable[[str], int]:
    """An integer of at least ``minimum``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {minimum}")
        return value

    return parse


def number(minimum: float, maximum: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """A number from ``minimum`` (with ``above``, only more than it) to ``maximum``."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (value > minimum if above else value >= minimum) or value > maximum or math.isinf(value):
            bound = f"more than {minimum:g}" if above else f"at least {minimum:g}"
            bound += f" and at most {maximum:g}" if maximum < math.inf else ""
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {bound}")
        return value

    return parse

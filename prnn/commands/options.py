"""Command-line options that several commands have."""

from __future__ import annotations

import argparse

from prnn._fields import Within, number_parser
from prnn.transducer.streaming import MAX_SYMBOLS

_COUNT = number_parser(int, Within(1, 1000))


def add_search(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the search: ``beam`` and ``max_symbols``."""
    add = parser.add_argument
    add("--beam", type=_COUNT, default=1, metavar="N", help="hypotheses kept; 1 is greedy search (%(default)s)")
    help_ = "most symbols in an encoder frame (%(default)s); sherpa-onnx takes 1"
    add("--max-symbols", type=_COUNT, default=MAX_SYMBOLS, metavar="N", help=help_)

"""How fast the data of a training come, and how much of a training step is spent waiting for them: the command line,
which --help reads without torch. data_steps.py measures."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from prnn._fields import Within, number_parser
from prnn.bench.options import add_json

_DESCRIPTION = """
Measure how fast batches come (hours of audio a second, with their features on the training's device), and the share of
a training step that is spent waiting for them: a step with the loader against a step with one batch again and again.
Before that, one process prepares batches part by part, without a cache: which part is the limit, and how many processes
keep up with the steps.
Takes the options of prnn train, too. Without a manifest, a corpus of noise is made: FLAC files of 15 s, texts of 60
letters.
"""


def main(arguments: Sequence[str]) -> None:
    """Runs ``prnn bench data``."""
    count = number_parser(int, Within(1, 10**6))
    parser = argparse.ArgumentParser(prog="prnn bench data", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--batches", type=count, default=100, help="least batches of each measurement (%(default)s)")
    parser.add_argument("--files", type=count, default=256, help="recordings of the corpus of noise (%(default)s)")
    add_json(parser)
    own, rest = parser.parse_known_args(arguments)

    from prnn.bench.data_steps import measure, synthetic
    from prnn.bench.json_rows import processor, write_rows

    with ExitStack() as stack:
        if not any(argument.split("=")[0] in ("--manifest", "--config") for argument in rest):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            manifest = str(synthetic(folder, own.files))
            rest = ["--manifest", manifest, "--valid", manifest, "--cache-gb", "0", *rest]
        row, device = measure(rest, own.batches)
        if own.json:
            write_rows(own.json, [row], None if device.type == "cuda" else processor())

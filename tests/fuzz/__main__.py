"""The command behind scripts/fuzz."""

from __future__ import annotations

import argparse
import secrets
import sys

from fuzz import campaign
from fuzz.case import PARTS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz",
        description="Random trials of the C API, of Python, and of files and command lines. Prints how much was tried "
        "and what was found; exit status 1 if anything was.",
    )
    parser.add_argument("seconds", nargs="?", type=float, default=120.0, help="how long (%(default)g)")
    parser.add_argument("--seed", type=int, help="the same seed tries the same cases; a new one by default")
    parser.add_argument("--part", choices=PARTS, action="append", help="one part alone; all by default")
    parser.add_argument("--case", type=int, help="one case alone, with --seed: what repeats a finding")
    arguments = parser.parse_args()
    seed = secrets.randbelow(10**6) if arguments.seed is None else arguments.seed
    if arguments.case is not None:
        report = campaign.repeat(seed, arguments.case)
    else:
        report = campaign.run(arguments.seconds, seed, arguments.part or PARTS)
    print(report.text())
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())

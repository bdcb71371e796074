"""The process that runs cases, one after the other, and tells the campaign about them in lines of JSON on stdout."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import sys
import time
import traceback
from typing import Any

from fuzz.case import KINDS, PARTS, Case, kind_of, numbers

MEMORY_BYTES = 8 << 30  # of address space, for parts that do not limit each of their own processes
LONGEST_NOTE = 4000


class Channel:
    """Lines of JSON on what was stdout. What else is printed goes to stderr."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w", buffering=1)
        os.set_inheritable(self._file.fileno(), False)
        os.dup2(2, 1)

    def send(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields) + "\n")


def run_case(channel: Channel, seed: int, number: int) -> None:
    case = Case(seed, number, lambda text: channel.send(note=text[:LONGEST_NOTE]))
    channel.send(begin=number)
    run = case.kind.load()
    try:
        run(case)
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        channel.send(finding=f"{type(error).__name__}: {error}"[:LONGEST_NOTE], details=text[-LONGEST_NOTE:])
    channel.send(end=number, counts=case.counts)


def limit_memory() -> None:
    unlimited = "libasan" in os.environ.get("LD_PRELOAD", "") or os.path.exists("/dev/nvidiactl")
    if not unlimited:  # the sanitizer and CUDA reserve more addresses than any limit has
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.RLIM_INFINITY))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--cases", type=int, default=sys.maxsize)
    parser.add_argument("--case", type=int)
    arguments = parser.parse_args()
    channel = Channel()
    faulthandler.enable()
    if arguments.case is not None:
        limit_memory() if kind_of(arguments.case).part != "files" else None
        run_case(channel, arguments.seed, arguments.case)
        return
    if arguments.part != "files":
        limit_memory()
    until = time.monotonic() + arguments.seconds
    kinds = sum(kind.part == arguments.part for kind in KINDS)
    for count, number in enumerate(numbers(arguments.part, arguments.first)):
        late = time.monotonic() > until and count >= kinds  # however slow the machine, each kind is tried
        if late or count >= arguments.cases:
            break
        run_case(channel, arguments.seed, number)


if __name__ == "__main__":
    sys.exit(main())

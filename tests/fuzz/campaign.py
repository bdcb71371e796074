"""The campaign: starts processes that run cases, watches them, and gathers counts and findings.

A case that ends its process (a signal, a hang, too much memory) is a finding, and another process goes on with the
next case.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.case import kind_of

ROOT = Path(__file__).parents[2]
SILENCE = 180.0  # seconds without a word from a worker before it counts as hanging
REPEATED = 5  # findings that are tried alone
GRACE = 60.0  # seconds that the last case may go on when the time is over
STDERR_LINES = 25


@dataclass
class Found:
    """The first finding in `case`, by a process that ran the cases from `first` on. alone: whether the case alone
    repeats it."""

    case: int
    text: str
    details: str
    first: int
    times: int = 0
    alone: bool = True

    def lines(self, seed: int) -> list[str]:
        kind, again = kind_of(self.case), f"scripts/fuzz --seed {seed} --case {self.case}"
        times = f", {self.times} times" if self.times > 1 else ""
        return [
            "",
            f"FOUND in {kind.part} {kind.name}{times}: {self.text.strip()}",
            self.details.rstrip(),
            f"repeats it: {again}" if self.alone else f"not by {again}: it came after the cases from {self.first} on",
        ]


@dataclass
class Report:
    """A campaign's trials and findings. counts: by part and kind, then by name; findings: by signature."""

    seed: int
    counts: dict[tuple[str, str], collections.Counter[str]] = field(default_factory=dict)
    findings: dict[str, Found] = field(default_factory=dict)

    def count(self, number: int, counts: dict[str, int]) -> None:
        kind = kind_of(number)
        counter = self.counts.setdefault((kind.part, kind.name), collections.Counter())
        counter.update({"cases": 1, **counts})

    def find(self, number: int, text: str, details: str, first: int) -> None:
        kind = kind_of(number)
        signature = f"{kind.part} {kind.name}: " + re.sub(r"0x[0-9a-f]+|\d+", "#", text)[:70]
        self.findings.setdefault(signature, Found(number, text, details, first)).times += 1

    def text(self) -> str:
        lines = [f"seed {self.seed}"]
        for (part, kind), counter in sorted(self.counts.items()):
            numbers = ", ".join(f"{value} {name}" for name, value in counter.items())
            lines.append(f"{part:8}{kind:16}{numbers}")
        for found in self.findings.values():
            lines += found.lines(self.seed)
        return "\n".join([*lines, "", f"{len(self.findings)} findings" if self.findings else "nothing found"])


class Worker:
    """A process that runs cases, with a folder of its own for their files."""

    def __init__(self, *arguments: object, part: str = "", command: Sequence[str] = ("-m", "fuzz.worker")) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fuzz")
        self._stderr = (Path(self._folder.name) / "stderr").open("w+b")
        environment = {
            "OMP_NUM_THREADS": "1",
            **os.environ,
            "OMP_WAIT_POLICY": "passive",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
            "TMPDIR": self._folder.name,
        }
        if part in ("python", "files"):
            environment["CUDA_VISIBLE_DEVICES"] = (
                ""  # they are of the CPU, under a limit of memory that CUDA cannot keep
            )
        if part == "c" and "libasan" not in environment.get("LD_PRELOAD", ""):  # which has an operator new of its own
            environment["LD_PRELOAD"] = str(build_failing_new(Path(self._folder.name)))
        self._process = subprocess.Popen(
            [sys.executable, *command, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop(signal.SIGKILL)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._stderr.close()
        self._folder.cleanup()

    def messages(self, until: float) -> Iterator[dict[str, Any]]:
        """Yields what the process tells until it ends; {"died": how} last if not by itself. Past `until` it is stopped,
        which is no fault of its own."""
        assert self._process.stdout is not None
        descriptor, rest = self._process.stdout.fileno(), b""
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while True:
                if not selector.select(SILENCE):
                    self._stop(signal.SIGABRT)  # faulthandler says where it hangs
                    yield {"died": f"a hang: nothing for {SILENCE:.0f} s"}
                    return
                data = os.read(descriptor, 1 << 16)
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                yield from map(json.loads, lines)
                if time.monotonic() > until:
                    self._stop(signal.SIGKILL)
                    return
        status = self._process.wait()
        if status:
            yield {"died": signal.Signals(-status).name if status < 0 else f"exit status {status}"}

    def _stop(self, how: signal.Signals) -> None:
        self._process.send_signal(how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        self._stderr.seek(0)
        return "\n".join(self._stderr.read().decode(errors="replace").splitlines()[-STDERR_LINES:])


def build_failing_new(folder: Path) -> Path:
    """The operator new under which kind "starved" has memory run out."""
    library = folder / "failing_new.so"
    source = ROOT / "tests/c/failing_new.cc"
    compiler = os.environ.get("CXX", "g++")
    subprocess.run([compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def watch(report: Report, worker: Worker, first: int, until: float) -> int:
    """Follows a worker to its end. Returns where another goes on: past the case that this one did not survive, or past
    its last."""
    number, note, ended = first, "", True
    for message in worker.messages(until):
        if "begin" in message:
            number, note, ended = message["begin"], "", False
        elif "note" in message:
            note = message["note"]
        elif "finding" in message:
            report.find(number, message["finding"], f"{message['details']}\n{note}", first)
        elif "end" in message:
            report.count(number, message["counts"])
            ended = True
        else:
            words = worker.last_words()
            report.find(
                number, f"{message['died']}: {note[:100] or words.splitlines()[-1:]}", f"{words}\n{note}", first
            )
            if ended:
                raise RuntimeError(f"the process of the cases does not start:\n{worker.last_words()}")
    return number + 1


def run(seconds: float, seed: int, parts: Sequence[str], cases: int = sys.maxsize) -> Report:
    """Runs cases of the parts one part after the other, each for its share of the time, and so many of each at most."""
    report = Report(seed)
    for part in parts:
        until = time.monotonic() + seconds / len(parts)
        first, more = 0, cases
        while (left := until - time.monotonic()) > 0 and more > 0:
            options = ["--seed", seed, "--part", part, "--first", first, "--seconds", left, "--cases", more]
            with Worker(*options, part=part) as worker:
                after = watch(report, worker, first, until + GRACE)
            more -= sum(kind_of(number).part == part for number in range(first, after))
            first = after
    for found in list(report.findings.values())[:REPEATED]:
        found.alone = bool(repeat(seed, found.case).findings)
    return report


def repeat(seed: int, number: int) -> Report:
    """Runs one case alone."""
    report = Report(seed)
    with Worker("--seed", seed, "--case", number, part=kind_of(number).part) as worker:
        watch(report, worker, number, time.monotonic() + 10 * SILENCE)
    return report

"""A pytest plugin of scripts/test (-p tests.whole_run): workers begin with what takes longest, and every 5 % of the
work is a line of output, in place of a dot a test.

What each file takes stands in tests/seconds.txt, which `--write-seconds` measures.
"""

from __future__ import annotations

import collections
import os
import pathlib
import time
from collections.abc import Iterable
from typing import Any

import pytest
import xdist.scheduler

TABLE = pathlib.Path(__file__).parent / "seconds.txt"
# Files of fewer seconds go to a worker as a whole, which makes their fixtures once. The tests of others go one by one,
# or by their xdist_group.
SHORT = 15.0
STEP = 5  # per cent


def read_seconds() -> dict[str, float]:
    lines = map(str.split, TABLE.read_text().splitlines()) if TABLE.exists() else []
    return {f"tests/{name}": float(seconds) for name, seconds in lines}


SECONDS = read_seconds()


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def unit_of(nodeid: str) -> str:
    """The unit that one worker runs in one go: a file, a group ("@group" ends the name), or a test."""
    if "@" in nodeid.rpartition("]")[2]:
        return nodeid.rpartition("@")[2]
    file = file_of(nodeid)
    return file if SECONDS.get(file, 0) < SHORT else nodeid


class Weights:
    """The seconds of tests: those of their file, in equal parts. Files that are skipped as a whole take none."""

    def __init__(self, nodeids: Iterable[str]) -> None:
        names = list(nodeids)
        self.skipped = {file_of(name) for name in names if name.endswith("::all")}  # conftest.Skipped
        self.counts = collections.Counter(map(file_of, names))
        self.total = sum(map(self.of_file, self.counts))

    def of_file(self, file: str) -> float:
        return 0 if file in self.skipped else SECONDS.get(file, 0.005 * self.counts[file])

    def __getitem__(self, nodeid: str) -> float:
        file = file_of(nodeid)
        return self.of_file(file) / self.counts[file]


class Scheduler(xdist.scheduler.LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


class Progress:
    """On the process that the workers report to."""

    def __init__(self, config: pytest.Config) -> None:
        self.terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
        self.writes = config.getoption("write_seconds")
        self.taken: dict[str, float] = collections.defaultdict(float)
        self.weights: Weights | None = None
        self.done, self.shown, self.began = 0.0, 0, time.monotonic()

    def begin(self, nodeids: Iterable[str]) -> None:
        self.weights = self.weights or Weights(nodeids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.begin([item.nodeid for item in session.items])

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.begin(ids)

    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        if not isinstance(report, pytest.TestReport) or hasattr(report, "wasxfail"):
            return None
        if report.passed:
            return ("passed" if report.when == "call" else ""), "", ""
        outcome = "error" if report.failed and report.when != "call" else report.outcome
        return outcome, "", outcome.upper()  # the word, but no letter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        assert self.weights is not None
        self.taken[file_of(report.nodeid)] += report.duration
        if report.failed:
            self.terminal.write_line(f"FAILED {report.nodeid} ({report.when})")
        if report.when != "teardown":
            return
        self.done += self.weights[report.nodeid]
        share = int(100 * self.done / self.weights.total / STEP) * STEP if self.weights.total else 0
        if share > self.shown:
            self.shown = share
            passed = int(time.monotonic() - self.began)
            self.terminal.write_line(f"{share:3} % of the tests' work in {passed // 60}:{passed % 60:02}")

    def pytest_sessionfinish(self) -> None:
        if self.writes:
            rows = [f"{file.removeprefix('tests/')} {seconds:.1f}\n" for file, seconds in sorted(self.taken.items())]
            TABLE.write_text("".join(rows))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-seconds", action="store_true", help=f"write {TABLE.name}: what each file of tests took")


@pytest.hookimpl(trylast=True)  # after the terminal reporter
def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ and config.get_verbosity() == 0:
        config.pluginmanager.register(Progress(config), "progress")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler:
    config.option.loadscopereorder = False  # else by the numbers of tests
    return Scheduler(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, also those whose tests go one by one: a few of them may take most of the file's time."""

    def unit(item: pytest.Item) -> str:
        group = item.get_closest_marker("xdist_group")  # may be in the name only later
        return unit_of(item.nodeid) if group is None else group.args[0]

    weights = Weights([item.nodeid for item in items])
    seconds: dict[str, float] = collections.defaultdict(float)
    for item in items:
        seconds[unit(item)] = max(seconds[unit(item)], weights.of_file(file_of(item.nodeid)))
    items.sort(key=lambda item: -seconds[unit(item)])

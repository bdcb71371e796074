"""Some of the fuzz campaign (scripts/fuzz, docs/testing.md), and that it sees what it is there to see."""

import ctypes
import faulthandler
import os
import random
import signal
from collections.abc import Callable

import pytest
import torch
from fuzz import campaign
from fuzz.case import PARTS, ROUND, kind_of, numbers
from fuzz.memory import Memory
from torch import Tensor

SEED = 1  # the same cases every time
CASES = {"c": 300, "python": 14, "files": 60}  # the first 14 or 15 of a part are of all its kinds
SECONDS = 240


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_found(part: str) -> None:
    report = campaign.run(SECONDS, SEED, [part], CASES[part])
    assert not report.findings, f"\n{report.text()}"
    assert {name for _, name in report.counts} == {kind.name for kind in ROUND if kind.part == part}
    assert sum(counter["cases"] for counter in report.counts.values()) == CASES[part]


def test_a_case_follows_from_its_number() -> None:
    for part in PARTS:
        found = [number for number, _ in zip(numbers(part, 1000), range(50), strict=False)]
        assert all(kind_of(number).part == part and number >= 1000 for number in found)
    assert {kind_of(number).name for number in range(len(ROUND))} == {kind.name for kind in ROUND}


def touched(make: Callable[[Memory], Tensor], offset: int) -> int:
    """How a process ends that writes a byte at the offset from a tensor's first: 0, 3 if that was seen afterwards, or
    minus a signal."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            faulthandler.disable()
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # a sanitizer's too
            with Memory(random.Random(1)) as memory:
                ctypes.memmove(make(memory).data_ptr() + offset, b"\x05", 1)
                status = 0 if memory.intact() else 3
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_memory_around_a_tensor_is_watched() -> None:
    def output(memory: Memory) -> Tensor:
        return memory.output((5,), torch.float32)  # ends where its page does

    assert touched(output, 19) == 0
    assert touched(output, 20) == -signal.SIGSEGV
    assert touched(output, -4096) == -signal.SIGSEGV
    assert touched(output, -8) == 3
    assert touched(lambda memory: memory.input(torch.ones(5)), 0) == -signal.SIGSEGV
    assert touched(lambda memory: memory.space(16), 16) == -signal.SIGSEGV


class Told:
    """In the place of a worker: what one has told."""

    def __init__(self, *messages: dict[str, object]) -> None:
        self.told = messages

    def messages(self, until: float) -> list[dict[str, object]]:
        return list(self.told)

    def last_words(self) -> str:
        return "Fatal Python error"


def test_findings_name_the_case_that_repeats_them() -> None:
    report = campaign.Report(7)
    first, second, third = [number for number in range(100) if kind_of(number).name == "objects"][:3]
    text = {"details": "Traceback ...", "finding": "Finding: dims is 5"}
    other = {**text, "finding": "Finding: dims is 77"}
    ends = [{"end": number, "counts": {"calls": 3}} for number in (first, second)]
    worker = Told({"begin": first}, text, ends[0], {"begin": second}, other, ends[1])
    assert campaign.watch(report, worker, first, 0.0) == second + 1
    worker = Told({"begin": third}, {"note": "prnnDestroy(handle=None)"}, {"died": "SIGSEGV"})
    assert campaign.watch(report, worker, third, 0.0) == third + 1
    found = report.text()
    assert "FOUND in c objects, 2 times: Finding: dims is 5" in found
    assert "FOUND in c objects: SIGSEGV: prnnDestroy(handle=None)" in found
    assert f"repeats it: scripts/fuzz --seed 7 --case {first}" in found
    assert f"repeats it: scripts/fuzz --seed 7 --case {third}" in found
    assert "2 cases, 6 calls" in found
    assert found.endswith("2 findings")


def test_a_hang_and_a_death_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    death, hang = ("import os; os.abort()", "SIGABRT"), ("import time; time.sleep(1000)", "a hang")
    for program, how in (death, hang):
        if how == "a hang":
            monkeypatch.setattr(campaign, "SILENCE", 2.0)
        with campaign.Worker(command=["-c", program]) as worker:
            (message,) = worker.messages(float("inf"))
            assert str(message["died"]).startswith(how)

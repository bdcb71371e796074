"""Shared parts of the C API's cases: objects alive and dead, and a call whose promises are checked."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import capi
import torch
from torch import Tensor

from fuzz.case import Case, Finding
from fuzz.memory import Memory, same, snapshot

INTS = (-(2**31), -2, -1, 0, 1, 2, 3, 4, 7, 8, 9, 10, 64, 1024, 65536, 2**31 - 1)
STATUSES = range(11)
DESCRIPTORS = ("Tensor", "Filter", "Dropout", "RNN")


class Client:
    """A client of the library who errs: it keeps pointers of what it destroyed, and mixes them up."""

    def __init__(self, case: Case, memory: Memory) -> None:
        self.case, self.random, self.memory = case, case.random, memory
        self.alive: dict[str, list[int]] = {kind: [] for kind in ("Handle", *DESCRIPTORS)}
        self.dead: list[tuple[str, int]] = []
        self.around: tuple[Callable[[], None], Callable[[], None]] | None = (
            None  # called just before and after each call
        )
        # Memory that no function of the library gave.
        generator = torch.Generator().manual_seed(case.random.getrandbits(32))
        self.garbage = memory.input(torch.randint(0, 256, (4096,), generator=generator, dtype=torch.uint8), host=True)

    # Objects

    def create(self, kind: str) -> int:
        out = self.memory.output((1,), torch.int64, host=True)
        name, parameter = f"Create{kind}Descriptor", f"{kind[0].lower()}{kind[1:]}Desc"
        if kind == "RNN":
            parameter = "rnnDesc"
        if kind == "Handle":
            name, parameter = "Create" if self.memory.device == "cuda" else "CreateCPU", "handle"
        self.call(name, {parameter: out.data_ptr()}, [out], must_fail=False)
        made = int(out[0]) % 2**64
        self.dead = [item for item in self.dead if item[1] != made]
        self.alive[kind].append(made)
        return made

    def destroy(self, kind: str, pointer: int) -> None:
        name = "Destroy" if kind == "Handle" else f"Destroy{kind}Descriptor"
        parameter = capi.FUNCTIONS[f"prnn{name}"].parameters[0]
        self.call(name, {parameter: pointer}, must_fail=False)
        self.alive[kind].remove(pointer)
        self.dead.append((kind, pointer))

    def destroy_all(self) -> None:
        for kind, pointers in self.alive.items():
            for pointer in list(pointers):
                self.destroy(kind, pointer)

    def wrong(self, kind: str) -> int | None:
        """A pointer to no living object of the kind."""
        others = [pointer for other, pointers in self.alive.items() if other != kind for pointer in pointers]
        choices = [None, self.garbage.data_ptr() + self.random.randrange(2048)]
        choices += [pointer for _, pointer in self.random.sample(self.dead, min(2, len(self.dead)))]
        choices += self.random.sample(others, min(2, len(others)))
        return self.random.choice(choices)

    def pick(self, kind: str, right: float = 0.9) -> tuple[int | None, bool]:
        """A pointer, and whether it is one of a living object of the kind."""
        if self.alive[kind] and self.random.random() < right:
            return self.random.choice(self.alive[kind]), True
        return self.wrong(kind), False

    # Calls

    def call(
        self,
        name: str,
        arguments: dict[str, Any],
        outputs: Sequence[Tensor] = (),
        must_fail: bool | None = None,
        refusals: Sequence[int] = (),
        changes: dict[str, Any] | None = None,
    ) -> int:
        """The status of prnn<name>. What is checked: that it is one of the header's; that a call which failed left a
        message and wrote to none of `outputs`; and, unless None, whether it had to fail. refusals: statuses that are
        taken though it had not to. changes: what is wrong with the arguments."""
        arguments = {**arguments, **(changes or {})}
        text = ", ".join(f"{key}={shown(value)}" for key, value in arguments.items())
        if changes:
            text += f", of these changed: {', '.join(changes)}"
        self.case.note(f"prnn{name}({text})")
        before = snapshot(list(outputs))
        ready = capi.FUNCTIONS[f"prnn{name}"]
        values = [arguments[parameter] for parameter in ready.parameters]
        if self.around:
            self.around[0]()
        status = ready.pointer(*values)
        if self.around:
            self.around[1]()
        self.case.counts["calls"] += 1
        wrong = self.verdict(name, arguments, status, must_fail, refusals, same(list(outputs), before))
        if wrong:
            raise Finding(f"prnn{name} {wrong}: ({text})")
        return status

    def verdict(
        self,
        name: str,
        arguments: dict[str, Any],
        status: int,
        must_fail: bool | None,
        refusals: Sequence[int],
        untouched: bool,
    ) -> str | None:
        """Returns the fault of a call's end, if any."""
        if status == capi.SUCCESS:
            return "succeeded" if must_fail else None
        self.case.counts["refused"] += 1
        handle = arguments.get("handle")
        message = self.message(handle if handle in self.alive["Handle"] else None)
        if status not in STATUSES or status == capi.INTERNAL_ERROR:
            return f"returned {status} ({message})"
        if not untouched:
            return f"failed with {status} ({message}) and wrote to its outputs"
        if not message or not message.isprintable():
            return f"failed with {status} and the message {message!r}"
        if must_fail is False and status not in refusals:
            return f"failed with {status} ({message})"
        return None

    def message(self, handle: int | None) -> str:
        return capi.FUNCTIONS["prnnGetLastErrorMessage"].pointer(handle).decode(errors="backslashreplace")


def shown(value: Any) -> str:
    if isinstance(value, ctypes.Array):
        return f"[{', '.join(shown(item) for item in value)}]"
    return hex(value) if isinstance(value, int) and value > 2**32 else str(value)

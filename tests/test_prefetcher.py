"""Batches prepared ahead of a training on a GPU, with stand-ins for what CUDA has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="needs the packages of prnn's extra, asr")

from prnn.asr.loader import Prefetcher


class _Event:
    """An event of a stream, of the batch with a number."""

    def __init__(self, number: int, copied: list[int]) -> None:
        self.number = number
        self._copied = copied

    def synchronize(self) -> None:
        self._copied.append(self.number)


class _Loader:
    """Two passes of five batches. It uses the memory of a batch again when the second one after it is asked for."""

    def __init__(self) -> None:
        self.taken = 0
        self.copied: list[int] = []
        self.threads: list[threading.Thread] = []
        self.devices: list[torch.device] = []  # that threads have taken

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[Any]:
        for _ in range(len(self)):
            assert self.taken < 2 or self.taken - 2 in self.copied, "its memory is used again before it is copied"
            self.taken += 1
            self.threads.append(threading.current_thread())
            yield SimpleNamespace(number=self.taken - 1, features=SimpleNamespace(record_stream=lambda stream: None))


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> _Loader:
    """A loader, whose batches a stand-in for a stream copies."""
    loader = _Loader()

    def stream(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(
            device=device,
            record_event=lambda: _Event(loader.taken - 1, loader.copied),
            wait_event=lambda event: None,
        )

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: loader.devices.append(device))
    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return loader


@pytest.mark.parametrize("begins", ["never", "always", "sometimes"])
def test_order_and_memory(loader: _Loader, begins: str) -> None:
    batches = Prefetcher(loader, lambda batch, device: batch, lambda: torch.device("cuda", 1))  # type: ignore[arg-type]
    found = []
    for _ in range(2):
        for batch in batches:
            found.append(batch.number)  # type: ignore[attr-defined]
            if begins == "always" or (begins == "sometimes" and len(found) % 2):
                batches.begin()
                batches.begin()  # which changes nothing
    assert found == list(range(10))
    in_thread = {"never": [], "always": [1, 2, 3, 4, 6, 7, 8, 9], "sometimes": [1, 3, 7, 9]}[begins]
    assert [n for n, thread in enumerate(loader.threads) if thread is not threading.main_thread()] == in_thread
    assert batches.waited > 0
    assert loader.devices == [torch.device("cuda", 1)] * (0 if begins == "never" else 2)


def test_what_fails_in_the_thread_fails_in_the_training(loader: _Loader) -> None:
    def prepare(batch: Any, device: torch.device) -> Any:
        if batch.number == 1:
            raise ValueError("unusable")
        return batch

    batches = Prefetcher(loader, prepare, lambda: torch.device("cuda", 1))  # type: ignore[arg-type]
    steps = (batches.begin() for _ in batches)
    with pytest.raises(ValueError, match="unusable"):
        list(steps)
    batches.begin()  # after the end: nothing

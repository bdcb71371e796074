"""Captures of CUDA graphs."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any, Literal

import torch

__all__ = ["capture_into"]

_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def capture_into(
    graph: torch.cuda.CUDAGraph,
    memory: Any = None,
    errors: Literal["global", "thread_local", "relaxed"] = "thread_local",
) -> Iterator[None]:
    """Captures what the block launches on the current stream, which is not the default one.

    Python's garbage collection waits meanwhile: a graph that it freed in this thread would end the capture with an
    error. `torch.cuda.graph` collects first, and empties the allocator, which takes longer.

    memory: from `torch.cuda.graph_pool_handle`, of graphs that never run at the same time.
    errors: whose calls that no capture allows end it: with "thread_local" other threads may load batches.
    """
    with _one_at_a_time:  # so that nobody else begins collections again
        collects = gc.isenabled()
        gc.disable()
        try:
            graph.capture_begin(memory, capture_error_mode=errors)
            try:
                yield
            finally:
                graph.capture_end()
        finally:
            if collects:
                gc.enable()

"""CUDA graphs of searches: what launches many kernels, captured once and launched at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from prnn._ops._capture import capture_into
from prnn._ops._precision import allows_tf32_rnn
from prnn.transducer.step_result import Array, Columns, device_copy, host_copy

_MOST_GRAPHS = 64

_Result = TypeVar("_Result")
_streams = threading.local()


def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The thread's stream for captures on a GPU. One, since cuBLAS keeps a workspace for each stream."""
    stream: torch.cuda.Stream | None = getattr(_streams, str(device), None)
    if stream is None:
        stream = torch.cuda.Stream(device)
        setattr(_streams, str(device), stream)
    return stream


def captured(
    call: Callable[[], _Result], device: torch.device, memory: Any = None
) -> tuple[torch.cuda.CUDAGraph, _Result]:
    """A CUDA graph of what `call` launches, none of which runs, and what it returns. It has been called before in this
    thread, so that what modules make in their first call is there.

    memory: from `torch.cuda.graph_pool_handle`, of graphs that never run at the same time.
    """
    current, stream = torch.cuda.current_stream(device), _capture_stream(device)
    stream.wait_stream(current)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream), capture_into(graph, memory):
        result = call()
    current.wait_stream(stream)
    return graph, result


class _Captured(NamedTuple):
    """A step of B rows; a replay reads `chunk`, `table` and `weights` and writes what `columns` and `packed` are."""

    graph: torch.cuda.CUDAGraph
    chunk: Tensor
    table: Tensor | None
    weights: list[Tensor]
    columns: Columns
    packed: Tensor


class CapturedSteps:
    """The steps of a pool whose streams all have as many frames, as CUDA graphs: one for each chunk size, kind, and
    number of rows, which is rounded up. The second one alike is captured, for the first one has made what modules make
    in their first call.

    Args:
        step: (chunk, kind, table) to the columns found, without a wait for the GPU. table is that of `padded_table`, or
            None for all slots in their order.
        modules: whose parameters and buffers the steps read.
        slots: of the pool.
        device: of the pool.
    """

    def __init__(
        self,
        step: Callable[[Tensor, Any, Tensor | None], Columns],
        modules: Sequence[object],
        slots: int,
        device: torch.device,
    ) -> None:
        self._step = step
        self._modules = [module for module in modules if isinstance(module, nn.Module)]
        self._slots = slots
        self._device = device
        self._memory = torch.cuda.graph_pool_handle()
        self._graphs: dict[Hashable, _Captured | None] = {}  # the last one used at the end; None: not captured yet

    def __call__(self, chunk: Tensor, kind: Hashable, places: Array | None, ready: Array) -> Columns | None:
        """Takes a step and returns what it found, on the host. None, and no step, for the first one of a kind, and
        where no encoder frame is ready.

        Args:
            chunk: (N, ...).
            kind: of step.
            places: (N,), the streams' slots; None: all slots in their order.
            ready: (N,), encoder frames of each stream.
        """
        if not ready[0]:
            return None
        count = len(chunk)
        rows = self._slots if places is None else min(self._slots, rounded(count))
        precision = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"), allows_tf32_rnn()
        key = rows, places is None, chunk.shape[1:], chunk.dtype, kind, precision
        if key not in self._graphs:
            if len(self._graphs) >= _MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            self._graphs[key] = None
            return None
        table = None if places is None else padded_table(places, ready, rows, self._slots)
        found = self._graphs.pop(key) or self._capture(rows, chunk, kind, table)
        self._graphs[key] = found
        found.chunk[:count].copy_(chunk)
        if table is not None and found.table is not None:
            found.table.copy_(device_copy(table, self._device), non_blocking=True)
        found.graph.replay()
        columns = found.columns.unpacked(host_copy(found.packed))
        return Columns(*(column[:count] for column in columns))

    def _capture(self, rows: int, chunk: Tensor, kind: Hashable, host_table: Array | None) -> _Captured:
        still = chunk.new_zeros(rows, *chunk.shape[1:])
        table = None if host_table is None else torch.from_numpy(host_table).to(self._device, copy=True)

        def step() -> tuple[Columns, Tensor]:
            columns = self._step(still, kind, table)
            return columns, columns.packed()

        # Without autocast's copies of weights, which live no longer than its context.
        dtype, enabled = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
        with torch.autocast("cuda", dtype, enabled, cache_enabled=False):
            graph, (columns, packed) = captured(step, self._device, self._memory)
        weights = [t.detach() for module in self._modules for t in (*module.parameters(), *module.buffers())]
        return _Captured(graph, still, table, weights, columns, packed)


def rounded(count: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ..., so that few numbers of rows are captured."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


def padded_table(places: Array, ready: Array, rows: int, slots: int) -> Array:
    """(3, rows) int32: of each row the slot of its encoder's state, that of its search's state, and its encoder frames.
    Rows beyond the N given ones have the encoder's spare slot, number `slots`, others of the search's slots, and no
    frames: their search changes nothing."""
    table = np.full((3, rows), slots, np.int32)
    count = len(places)
    table[0, :count] = table[1, :count] = places
    table[2, :count] = ready
    table[2, count:] = 0
    if rows > count:
        is_other = np.ones(slots, bool)
        is_other[places] = False
        table[1, count:] = np.flatnonzero(is_other)[: rows - count]
    return table

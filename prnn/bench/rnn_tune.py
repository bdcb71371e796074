"""Measures how the resident kernels split a layer best on the GPU that is here: `prnn bench rnn --tune`.

For each cell, hidden size and batch, forward and in the data gradient: every engine, number of units a block, blocks a
cluster and replicas that has a kernel and fits, and for the best of them several poll delays. Prints the line for
src/core/gpu_table.cc and the best plans (docs/adding_a_gpu.md).
"""

import itertools
from collections.abc import Callable, Iterator

import torch

import prnn
from prnn import _C
from prnn._ops._handles import DTYPES
from prnn.bench.timing import time_graph

Plan = tuple[int, int, int, int, int]  # engine, units a block, blocks a cluster, replicas, cycles of poll delay

MODES = {"lstm": _C.LSTM, "gru": _C.GRU, "rnn": _C.RNN_TANH}
POLL_DELAYS = (0, 100, 250, 450, 700, 1000)
FIRST_DELAY = 450


class TunedLayer:
    """One layer whose input is added to the gates as it is, so that little but the resident kernels runs."""

    def __init__(self, cell: str, hidden: int, batch: int, steps: int, dtype: torch.dtype) -> None:
        self.rnn = _C.Rnn(MODES[cell], DTYPES[dtype], hidden, 1, hidden, False, skip_input=True)
        self.rnn.set_backend(_C.PERSISTENT_BACKEND)
        self.handle, self.sizes = _C.Handle.cuda(), [batch] * steps
        shape = (steps, batch, hidden)
        self.x, self.dy = (torch.randn(shape, device="cuda").mul_(0.5).to(dtype) for _ in range(2))
        self.w = torch.randn(self.rnn.params_size(), device="cuda").mul_(hidden**-0.5).to(dtype)
        self.y = torch.empty_like(self.x)
        self.work, self.reserve = torch.empty(0), torch.empty(0)

    def set_plan(self, backward: bool, plan: Plan | None) -> None:
        """Raises prnn.NotSupportedError for a plan that cannot run."""
        self.rnn.set_plan(*((None, plan) if backward else (plan, None)))
        sizes = self.rnn.workspace_size(self.handle, self.sizes), self.rnn.reserve_size(self.handle, self.sizes)
        self.work, self.reserve = (torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes)

    def forward(self, training: bool = False) -> None:
        self.handle.set_stream(torch.cuda.current_stream().cuda_stream)
        reserve = (self.reserve.data_ptr(), self.reserve.numel()) if training else (0, 0)
        memory = (self.work.data_ptr(), self.work.numel(), *reserve)
        x, w, y = (tensor.data_ptr() for tensor in (self.x, self.w, self.y))
        self.rnn.forward(self.handle, self.sizes, x, 0, 0, w, y, 0, 0, *memory)

    def backward(self) -> None:
        self.handle.set_stream(torch.cuda.current_stream().cuda_stream)
        memory = (self.work.data_ptr(), self.work.numel(), self.reserve.data_ptr(), self.reserve.numel())
        y, dy, w = (tensor.data_ptr() for tensor in (self.y, self.dy, self.w))
        self.rnn.backward_data(self.handle, self.sizes, y, dy, 0, 0, w, 0, 0, 0, 0, 0, *memory)


def candidates(batch: int) -> Iterator[tuple[int, int, int, int]]:
    """(engine, units, cluster, replicas); the library says which of them there are."""
    splits = [(_C.ENGINE_MMA, *split) for split in itertools.product((8, 16, 24, 32), (1, 2, 3, 4))]
    splits += [(_C.ENGINE_WGMMA, 0, 0), (_C.ENGINE_WGMMA_SPLIT_K, 0, 0), (_C.ENGINE_WGMMA_MULTICAST, 0, 0)]
    for split, replicas in itertools.product(splits, range(1, min(batch, 16) + 1)):
        yield *split, replicas


def time_plan(layer: TunedLayer, backward: bool, plan: Plan | None, repeats: int) -> float:
    """Microseconds of a call."""
    layer.set_plan(backward, plan)
    if backward:
        layer.forward(training=True)
    run: Callable[[], None] = layer.backward if backward else layer.forward
    return time_graph(run, repeats)


def best_plan(layer: TunedLayer, batch: int, backward: bool, repeats: int) -> tuple[float, Plan, float]:
    """(its time, the plan, the time of the library's own)."""
    own = time_plan(layer, backward, None, repeats)
    shapes: list[tuple[float, Plan]] = []
    for shape in candidates(batch):
        plan = (*shape, FIRST_DELAY)
        try:
            shapes.append((time_plan(layer, backward, plan, repeats), plan))
        except prnn.NotSupportedError:
            continue
    tried = sorted(shapes)[:2]
    for (_, shape), delay in itertools.product(sorted(shapes)[:2], POLL_DELAYS):
        plan = (*shape[:4], delay)
        tried.append((time_plan(layer, backward, plan, repeats), plan))
    return *min(tried), own


def tune(cells: list[str], hidden: list[int], batches: list[int], steps: int, dtype: torch.dtype, repeats: int) -> None:
    handle = _C.Handle.cuda()
    print(f"src/core/gpu_table.cc:\n    {_C.describe_gpu(handle)}\n")
    print("| cell | H | N | | as planned | best | engine, units, cluster, replicas, poll delay |")
    print("|---|---|---|---|---|---|---|")
    for cell, size, batch in itertools.product(cells, hidden, batches):
        torch.manual_seed(0)
        try:
            layer = TunedLayer(cell, size, batch, steps, dtype)
            layer.set_plan(False, None)
        except prnn.NotSupportedError as error:
            print(f"| {cell} | {size} | {batch} | | {error} | | |")
            continue
        for backward in (False, True):
            time, plan, own = best_plan(layer, batch, backward, repeats)
            point = f"| {cell} | {size} | {batch} | {'backward' if backward else 'forward'} |"
            print(f"{point} {own / steps:.2f} | {time / steps:.2f} | {plan} |", flush=True)

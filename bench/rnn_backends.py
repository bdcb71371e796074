"""The resident kernels and cuDNN side by side: the measurements behind PRNN_BEST_BACKEND.

    python bench/rnn_backends.py [--types bfloat16 float32 tf32 float16] [--cells lstm gru rnn] [--hidden 512 1024]
        [--layers 1] [--directions 1] [--batches 1 8 64 512] [--seconds 600] [--json FILE]

Both run through the library, replayed from CUDA graphs, so that host time does not count: inference, and a training
step (forward and the gradients of everything). Input size = hidden size. For each kind of layer the batches grow until
cuDNN has been well ahead twice; then each change of the faster one is narrowed down. Rows are printed as they come, in
microseconds a timestep; ratios are cuDNN's time over the resident kernels'.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from json_rows import write_rows

import prnn
from prnn import _C
from prnn._ops._handles import DTYPES, handle

MODES = {"lstm": _C.LSTM, "gru": _C.GRU, "rnn": _C.RNN_TANH}
TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "tf32": torch.float32, "float16": torch.float16}
BACKENDS = {"persistent": _C.PERSISTENT_BACKEND, "cudnn": _C.CUDNN_BACKEND}
HIDDEN = (512, 1024, 256, 128, 2048, 64, 768, 1536, 384)
BATCHES = (1, 8, 32, 64, 128, 256, 512, 1024, 2048)
WELL_AHEAD = 0.75  # cuDNN is, at ratios below
STATES = 1 << 22  # of a call, about: enough for its timesteps to count, few enough for many points
DEVICE = torch.device("cuda", 0)
Times = tuple[float, float]  # inference, training step


@dataclass(frozen=True)
class Kind:
    """Layers of one kind."""

    cell: str
    type: str
    layers: int
    directions: int
    hidden: int

    def __str__(self) -> str:
        return f"{self.cell} | {self.type} | {self.layers} x {self.directions} | {self.hidden}"

    def make(self, backend: str) -> _C.Rnn:
        dtype, both = DTYPES[TYPES[self.type]], self.directions == 2
        rnn = _C.Rnn(MODES[self.cell], dtype, self.hidden, self.layers, self.hidden, both, False)
        rnn.set_backend(BACKENDS[backend])
        if self.type == "tf32":
            rnn.set_math(_C.TF32_MATH)
        return rnn


@dataclass(frozen=True)
class Row:
    """A measured point: microseconds a timestep."""

    kind: Kind
    batch: int
    steps: int
    resident: Times
    cudnn: Times

    def ratios(self) -> Times:
        return self.cudnn[0] / self.resident[0], self.cudnn[1] / self.resident[1]

    def __str__(self) -> str:
        k, texts = self.kind, [f"{a:.2f} / {b:.2f}" for a, b in (self.resident, self.cudnn, self.ratios())]
        return (
            f"| {k.cell} | {k.type} | {k.layers} x {k.directions} | {k.hidden} | {self.batch} | {' | '.join(texts)} |"
        )


class Data:
    """The tensors of a call, which both backends use."""

    def __init__(self, kind: Kind, batch: int, steps: int) -> None:
        new = dict(device=DEVICE, dtype=TYPES[kind.type])
        output = (steps, batch, kind.directions * kind.hidden)
        self.sizes = [batch] * steps
        self.x = torch.randn(steps, batch, kind.hidden, **new).mul_(0.5)
        self.dy = torch.randn(output, **new)
        self.y, self.dx = torch.empty(output, **new), torch.empty_like(self.x)
        self.w = torch.rand(kind.make("persistent").params_size(), **new).sub_(0.5).mul_(2 * kind.hidden**-0.5)
        self.dw = torch.zeros_like(self.w)


class Runner:
    """Inference and a training step on one backend."""

    def __init__(self, kind: Kind, backend: str, data: Data) -> None:
        self.rnn, self.data = kind.make(backend), data
        sizes = (get(handle(DEVICE), data.sizes) for get in (self.rnn.workspace_size, self.rnn.reserve_size))
        self.work, self.reserve = (torch.empty(size, dtype=torch.uint8, device=DEVICE) for size in sizes)

    def infer(self) -> None:
        self._forward((self.work.data_ptr(), self.work.numel(), 0, 0))

    def train(self) -> None:
        d, memory = self.data, (self.work.data_ptr(), self.work.numel(), self.reserve.data_ptr(), self.reserve.numel())
        self._forward(memory)
        x, w, y, dy, dx, dw = (tensor.data_ptr() for tensor in (d.x, d.w, d.y, d.dy, d.dx, d.dw))
        self.rnn.backward_data(handle(DEVICE), d.sizes, y, dy, 0, 0, w, 0, 0, dx, 0, 0, *memory)
        self.rnn.backward_weights(handle(DEVICE), d.sizes, x, 0, y, dw, *memory)

    def _forward(self, memory: tuple[int, int, int, int]) -> None:
        x, w, y = (tensor.data_ptr() for tensor in (self.data.x, self.data.w, self.data.y))
        self.rnn.forward(handle(DEVICE), self.data.sizes, x, 0, 0, w, y, 0, 0, *memory)


def time_replays(call: Callable[[], None]) -> float:
    """Median microseconds of a replay; more of them where they are short."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            call()
        finally:
            graph.capture_end()
        times: list[float] = []
        for _ in range(16):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
            if len(times) >= 4 and sum(times) > 4e3:
                break
    return statistics.median(times[1:])


def measure(kind: Kind, batch: int) -> Row:
    """Raises prnn.NotSupportedError where one of the two does not serve the layers."""
    steps = min(max(STATES // (kind.hidden * batch), 32), 96)
    torch.manual_seed(0)
    data = Data(kind, batch, steps)
    times = []
    for backend in BACKENDS:
        runner = Runner(kind, backend, data)
        times.append((time_replays(runner.infer) / steps, time_replays(runner.train) / steps))
    return Row(kind, batch, steps, times[0], times[1])


def measure_kind(kind: Kind, batches: list[int], until: float) -> Iterator[Row]:
    """Rows of growing batches, then those between."""
    rows: list[Row] = []

    def add(batch: int) -> Row:
        row = measure(kind, batch)
        rows.append(row)
        return row

    for batch in batches:
        if time.monotonic() > until:
            return
        yield add(batch)
        if len(rows) > 1 and all(max(row.ratios()) < WELL_AHEAD for row in rows[-2:]):
            break
    between = set()
    for low, high in itertools.pairwise(rows):
        changes = any((a > 1) != (b > 1) for a, b in zip(low.ratios(), high.ratios(), strict=True))
        if changes and high.batch >= low.batch + 16:
            between.add((low.batch + high.batch) // 2 // 8 * 8)
    for batch in sorted(between):
        if time.monotonic() < until:
            yield add(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--cells", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--hidden", nargs="+", type=int, default=list(HIDDEN))
    parser.add_argument("--layers", nargs="+", type=int, default=[1])
    parser.add_argument("--directions", nargs="+", type=int, choices=[1, 2], default=[1])
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--seconds", type=float, default=600, help="no point is begun after this time")
    parser.add_argument("--json", metavar="FILE", help="where the rows go as well")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}\n")
    print("| cell | type | layers x directions | H | N | resident | cuDNN | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    rows: list[Row] = []
    order = arguments.layers, arguments.directions, arguments.hidden, arguments.types, arguments.cells
    for layers, directions, hidden, type_, cell in itertools.product(*order):
        kind = Kind(cell, type_, layers, directions, hidden)
        try:
            for row in measure_kind(kind, arguments.batches, until):
                print(row, flush=True)
                rows.append(row)
        except (prnn.NotSupportedError, RuntimeError) as error:
            print(f"| {kind} | | {error} | | |", flush=True)
        if arguments.json:
            write_rows(arguments.json, [asdict(row) for row in rows])


if __name__ == "__main__":
    main()

"""The resident kernels and cuDNN side by side: the measurements behind PRNN_BEST_BACKEND (options:
command_lines.rnn_backends)."""

import concurrent.futures
import itertools
import math
import multiprocessing
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

import prnn
from prnn import _C
from prnn._ops._handles import DTYPES, handle
from prnn._ops._measured import ALONE, Turn, replay_time
from prnn.bench import command_lines, cudnn_rnn, rnn_ratios
from prnn.bench.json_rows import write_rows
from prnn.bench.options import require_gpu

MODES = {"lstm": _C.LSTM, "gru": _C.GRU, "rnn": _C.RNN_TANH}
TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "tf32": torch.float32, "float16": torch.float16}
BACKENDS = {"persistent": _C.PERSISTENT_BACKEND, "cudnn": _C.CUDNN_BACKEND}
ALGORITHMS = ("standard", "static", "small-H")
# Sizes of random layers: some lie between those of the table, and some are no multiples of 8 or 16.
RANDOM_HIDDEN = (16, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 144, 160, 192, 200, 224, 256, 300, 320, 384)
RANDOM_HIDDEN += (400, 448, 512, 640, 768, 896, 900, 1000, 1024, 1152, 1280, 1408, 1536, 1664, 1792)
RANDOM_BATCHES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
RANDOM_STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 48, 64)
RANDOM_STACKS = ((1, 1), (1, 1), (1, 1), (1, 1), (1, 2), (2, 1), (3, 1))  # layers, directions
WELL_AHEAD = 0.7  # cuDNN is, at ratios below, if there are at least so many states:
MANY_STATES = 1 << 16
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
    dropout: float = 0
    is_ragged: bool = False
    projection: int = 0

    def __str__(self) -> str:
        more = (f", dropout {self.dropout}" if self.dropout else "") + (", lengths" if self.is_ragged else "")
        more += f", -> {self.projection}" if self.projection else ""
        return f"{self.cell} | {self.type} | {self.layers} x {self.directions}{more} | {self.hidden}"

    def batch_sizes(self, batch: int, steps: int) -> list[int]:
        """B_t of sequences with lengths from half of all timesteps to all, or of one length."""
        if not self.is_ragged:
            return [batch] * steps
        return [max(1, round(batch * min(1, 2 * (1 - t / steps)))) for t in range(steps)]

    def make(self, backend: str) -> _C.Rnn:
        dtype, both = DTYPES[TYPES[self.type]], self.directions == 2
        shape = (self.hidden, self.layers, self.hidden, both)
        rnn = _C.Rnn(MODES[self.cell], dtype, *shape, projection=self.projection, dropout=self.dropout)
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
    algorithms: dict[str, Times] = field(default_factory=dict)
    is_apart: bool = False  # the resident kernels keep the projection and the recurrent matrix apart

    def ratios(self) -> Times:
        return self.cudnn[0] / self.resident[0], self.cudnn[1] / self.resident[1]

    def __str__(self) -> str:
        k, texts = self.kind, [f"{a:.2f} / {b:.2f}" for a, b in (self.resident, self.cudnn, self.ratios())]
        if self.algorithms:
            texts.append(", ".join(f"{name} {a:.2f} / {b:.2f}" for name, (a, b) in self.algorithms.items()))
        return (
            f"| {k.cell} | {k.type} | {k.layers} x {k.directions} | {k.hidden} | {self.batch} | {self.steps} |"
            f" {' | '.join(texts)} |"
        )

    def as_json(self) -> dict[str, object]:
        """A row of write_rows(). Ratios and algorithms' times are pairs, of inference and of a training step."""
        more = {"dropout": self.kind.dropout, "ragged": self.kind.is_ragged, "ratio": self.ratios()}
        return flat(self)._asdict() | more | {"algorithms": self.algorithms}


def flat(row: Row) -> rnn_ratios.Point:
    kind, times = row.kind, (*row.resident, *row.cudnn)
    shape = (kind.cell, kind.type, kind.layers, kind.directions, kind.hidden, row.batch, row.steps)
    return rnn_ratios.Point(*shape, *times, kind.projection, int(row.is_apart))


class Data:
    """The tensors of a call, which both backends use."""

    def __init__(self, kind: Kind, batch: int, steps: int) -> None:
        new = dict(device=DEVICE, dtype=TYPES[kind.type])
        self.sizes = kind.batch_sizes(batch, steps)
        output = (sum(self.sizes), kind.directions * (kind.projection or kind.hidden))
        self.x = torch.randn(sum(self.sizes), kind.hidden, **new).mul_(0.5)
        self.dy = torch.randn(output, **new)
        self.y, self.dx = torch.empty(output, **new), torch.empty_like(self.x)
        self.w = torch.rand(kind.make("persistent").params_size(), **new).sub_(0.5).mul_(2 * kind.hidden**-0.5)
        self.dw = torch.zeros_like(self.w)


class Runner:
    """Inference and a training step on one backend."""

    def __init__(self, kind: Kind, backend: str, data: Data) -> None:
        self.rnn, self.data = kind.make(backend), data
        self.states = torch.zeros(2, dtype=torch.int64, device=DEVICE)
        if kind.dropout:
            self.rnn.set_dropout(handle(DEVICE), kind.dropout, self.states.data_ptr(), self.states.nbytes, 1)
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


def measure(kind: Kind, batch: int, steps: int, algorithms: tuple[str, ...] = (), turn: Turn = ALONE) -> Row:
    """Raises prnn.NotSupportedError where one of the two does not serve the layers. algorithms: those of cuDNN that are
    measured, too, where it is one plain layer."""
    torch.manual_seed(0)
    with turn:
        data = Data(kind, batch, steps)
        torch.cuda.synchronize()
    times = []
    for backend in BACKENDS:
        runner = Runner(kind, backend, data)
        times.append((replay_time(runner.infer, turn) / steps, replay_time(runner.train, turn) / steps))
    engine = kind.make("persistent").query(handle(DEVICE), data.sizes)["forward_engine"]
    row = Row(kind, batch, steps, times[0], times[1], is_apart=engine == "projected")
    torch.backends.cudnn.allow_tf32 = kind.type == "tf32"
    is_plain = kind == Kind(kind.cell, kind.type, 1, 1, kind.hidden)
    for name in algorithms if is_plain else ():
        try:
            direct = cudnn_rnn.CudnnRnn(kind.cell, kind.hidden, 1, name, steps, batch, TYPES[kind.type])
            both = replay_time(direct.forward, turn), replay_time(direct.train, turn)
            row.algorithms[name] = (both[0] / steps, both[1] / steps)
        except cudnn_rnn.RefusedError:
            torch.cuda.synchronize()
    return row


class Task(NamedTuple):
    """Growing batches of a kind, if need be until cuDNN is well ahead. steps: None for fewer with large layers."""

    kind: Kind
    batches: Sequence[int]
    steps: int | None = None
    algorithms: tuple[str, ...] = ()
    takes_all: bool = False


def refusal(kind: Kind, batch: int, error: Exception) -> str:
    return f"| {kind} | {batch} | | {str(error).splitlines()[0]} | | |"


def rows_of(task: Task, until: float = math.inf, turn: Turn = ALONE) -> Iterator[Row]:
    """A reason is printed where one of the two backends serves none. No row is begun after `until`."""
    far_behind, kind = 0, task.kind
    for batch in task.batches:
        if time.monotonic() > until:
            return
        steps = task.steps or min(max(STATES // (kind.hidden * batch), 32), 96)
        try:
            row = measure(kind, batch, steps, task.algorithms, turn)
        except (prnn.NotSupportedError, RuntimeError) as error:
            print(refusal(kind, batch, error), flush=True)
            return
        yield row
        is_far_behind = max(row.ratios()) < WELL_AHEAD and kind.hidden * batch >= MANY_STATES
        far_behind = far_behind + 1 if is_far_behind else 0
        if far_behind == 3 and not task.takes_all:
            return


shared_turn: Turn = ALONE  # of the processes of a pool


def share_turn(turn: Turn) -> None:
    global shared_turn
    shared_turn = turn


def work(task: Task, until: float) -> list[Row]:
    rows = list(rows_of(task, until, shared_turn))
    torch.cuda.empty_cache()
    return rows


def measure_all(tasks: Iterable[Task], processes: int, until: float) -> Iterator[Row]:
    """The rows of all tasks, printed as they come, and why there are none where a process failed."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context, share_turn, (context.Lock(),)) as pool:
        futures = {pool.submit(work, task, until): task for task in tasks}
        for done in concurrent.futures.as_completed(futures):
            try:
                rows = done.result()
            except RuntimeError as error:
                print(refusal(futures[done].kind, 0, error), flush=True)
                continue
            for row in rows:
                print(row, flush=True)
                yield row


def written(path: str, rows: Iterable[Row]) -> Iterator[Row]:
    """The rows, which are in the JSON file as soon as they are measured."""
    kept = []
    for row in rows:
        kept.append(row.as_json())
        write_rows(path, kept)
        yield row


def tasks_of(points: Iterable[rnn_ratios.Point], algorithms: tuple[str, ...] = ()) -> list[Task]:
    batches: dict[tuple[Kind, int], list[int]] = defaultdict(list)
    for p in points:
        kind = Kind(p.cell, p.type, p.layers, p.directions, p.hidden, projection=p.projection)
        batches[kind, p.steps].append(p.batch)
    return [
        Task(kind, sorted(set(found)), steps, algorithms, takes_all=True) for (kind, steps), found in batches.items()
    ]


def random_tasks(count: int, seed: int, algorithms: tuple[str, ...] = ()) -> list[Task]:
    """A point each."""
    draw = random.Random(seed).choice
    tasks = []
    for _ in range(count):
        layers, directions = draw(RANDOM_STACKS)
        kind = Kind(draw(list(MODES)), draw(list(TYPES)), layers, directions, draw(RANDOM_HIDDEN))
        tasks.append(Task(kind, [draw(RANDOM_BATCHES)], draw(RANDOM_STEPS), algorithms, takes_all=True))
    return tasks


def main() -> None:
    parser = command_lines.rnn_backends()
    arguments = parser.parse_args()
    require_gpu(parser)
    until = time.monotonic() + arguments.seconds
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}\n")
    algorithms = ALGORITHMS if arguments.algorithms else ()
    columns = ["cell", "type", "layers x directions", "H", "N", "T", "resident", "cuDNN", "ratio"]
    columns += ["cuDNN's algorithms"] * arguments.algorithms
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    if arguments.points:
        tasks = tasks_of(rnn_ratios.read(arguments.points)[1], algorithms)
    elif arguments.random:
        tasks = random_tasks(*arguments.random, algorithms)
    else:
        order = arguments.layers, arguments.directions, arguments.hidden, arguments.types, arguments.cells
        kinds = [
            Kind(cell, type_, layers, directions, hidden, arguments.dropout, arguments.ragged, projection)
            for layers, directions, hidden, type_, cell in itertools.product(*order)
            for projection in [hidden // arguments.projected if arguments.projected else 0]
        ]
        tasks = [Task(kind, arguments.batches, arguments.steps, algorithms) for kind in kinds]
    measured = measure_all(tasks, arguments.processes, until)
    if arguments.json:
        measured = written(arguments.json, measured)
    points = map(flat, measured)
    if arguments.csv:
        gpu = Kind("lstm", "float16", 1, 1, 512).make("persistent").query(handle(DEVICE), 1)["device"]
        rnn_ratios.write(arguments.csv, gpu, points)
    else:
        list(points)

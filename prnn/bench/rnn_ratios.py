"""From the rows of rnn_backends.py to the library's choice between cuDNN and the resident kernels.

    python -m prnn.bench.rnn_ratios table FILE.csv ...     the rows of src/rnn/plan/measured_ratios/*.inc
    python -m prnn.bench.rnn_ratios regret FILE.csv ...    how far the choice is behind the faster one

A GPU is not needed: the choice is that of the plans for the GPU's row. The library's table was made from
bench/results/rnn_backends_*.csv.
"""

import argparse
import bisect
import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from prnn import _C

# As in src/rnn/plan/faster.h.
BATCHES = (1, 4, 8, 16, 32, 48, 64, 96, 128, 136, 192, 256, 264, 384, 512, 520, 768, 1024, 1536, 2048)
STEPS = (1, 2, 4, 8, 16, 64)  # of plan.h
MANY_STEPS = 32  # from here on, points stand for the last of STEPS
PRECISIONS = {"bfloat16": "kBfloat16", "float16": "kHalf", "tf32": "kTf32", "float32": "kFloat32"}
CELLS = {"lstm": ("PRNN_LSTM", _C.LSTM), "gru": ("PRNN_GRU", _C.GRU), "rnn": ("PRNN_RNN_TANH", _C.RNN_TANH)}
TYPES = {"bfloat16": _C.BFLOAT16, "float16": _C.HALF, "tf32": _C.FLOAT, "float32": _C.FLOAT}
STACKS = ("kOneLayer", "kSeveralLayers", "kTwoDirections")
PROJECTED_STACKS = ("kProjected", "kProjectedLayers")
MOST = 255
CUT_OFF = 1.5  # a kind's last ratio, above which the measurement ended too early to say anything of larger batches,
ENOUGH = 256  # unless it came to so many sequences
PASSES = ("inference", "training")


class Point(NamedTuple):
    """Microseconds a timestep, inference and training, of the resident kernels and of cuDNN."""

    cell: str
    type: str
    layers: int
    directions: int
    hidden: int
    batch: int
    steps: int
    resident: float
    resident_training: float
    cudnn: float
    cudnn_training: float
    projection: int = 0

    def times(self, index: int) -> tuple[float, float]:
        """(resident, cuDNN) of one of PASSES."""
        return self[7 + index], self[9 + index]

    def row_steps(self) -> int | None:
        """Which of STEPS the point is of, None if it is of none."""
        if self.steps >= MANY_STEPS:
            return STEPS[-1]
        return self.steps if self.steps in STEPS else None

    def stack(self) -> str:
        if self.projection > 0:
            return PROJECTED_STACKS[self.layers * self.directions > 1]
        return STACKS[2 if self.directions > 1 else self.layers > 1]


def write(path: str, device: str, points: Sequence[Point]) -> None:
    """Times to a hundredth of a microsecond, after a line with the card."""
    with open(path, "w", newline="") as file:
        file.write(f"# {device}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Point._fields)
        for point in points:
            writer.writerow((*point[:7], *(f"{time:.2f}" for time in point[7:11]), point.projection))


def read(files: Iterable[str]) -> tuple[str, list[Point]]:
    """The card, and the points of all files."""
    devices, points = set(), []
    for name in files:
        with open(name, newline="") as file:
            devices.add(file.readline().removeprefix("# ").strip())
            for row in csv.DictReader(file):
                values = [convert(row.get(name, 0)) for name, convert in Point.__annotations__.items()]
                points.append(Point(*values))
    if len(devices) != 1:
        raise SystemExit(f"the files are of several GPUs: {', '.join(sorted(devices))}")
    return devices.pop(), points


def make_layers(
    cell: str, type_: str, hidden: int, layers: int = 1, directions: int = 1, projection: int = 0
) -> _C.Rnn:
    rnn = _C.Rnn(CELLS[cell][1], TYPES[type_], hidden, layers, hidden, directions == 2, projection=projection)
    if type_ == "tf32":
        rnn.set_math(_C.TF32_MATH)
    return rnn


def percent(measured: dict[int, float], batch: int, passes: Callable[[int], int]) -> int:
    """The ratio for a batch, between its measured neighbours on logarithmic scales, or that of the only one of them
    that takes as many passes over the weights; beyond the last, the last."""
    batches = sorted(measured)
    place = bisect.bisect_left(batches, batch)
    if place == len(batches) or batches[place] == batch:
        ratio = measured[batches[min(place, len(batches) - 1)]]
    elif place == 0:
        ratio = measured[batches[0]]
    else:
        low, high = batches[place - 1], batches[place]
        share = math.log(batch / low) / math.log(high / low)
        if passes(low) != passes(high):
            share = {passes(low): 0.0, passes(high): 1.0}.get(passes(batch), share)
        ratio = measured[low] ** (1 - share) * measured[high] ** share
    return min(round(100 * ratio), MOST)


def is_cut_off(measured: dict[int, float]) -> bool:
    """Whether larger batches cannot go by the last one that was measured."""
    last = max(measured)
    return last < ENOUGH and measured[last] > CUT_OFF


Rows = dict[tuple[str, str, str, int, int, int], dict[int, float]]  # cell, type, stack, pass, T, H -> N -> ratio


def table(points: Sequence[Point], gpu: str) -> Iterator[str]:
    """Lines of C++ for a row of the GPU table, those of few timesteps after the others of a cell."""
    kinds = sorted(ratios_of(points).items(), key=lambda kind: (kind[0][0], kind[0][4] < STEPS[-1], kind[0]))
    for (cell, type_, stack, index, steps, hidden), ratios in kinds:
        passes = passes_of(gpu, cell, type_, stack, hidden)
        numbers = ", ".join(str(percent(ratios, batch, passes)) for batch in BATCHES)
        name = f"{CELLS[cell][0]}, Precision::{PRECISIONS[type_]}, Stack::{stack}, {str(index == 1).lower()}"
        yield f"    {{{name}, {steps}, {hidden}, {{{numbers}}}}},"


def ratios_of(points: Iterable[Point]) -> Rows:
    """cuDNN's time over the resident kernels', none of kinds that are cut off. Where one of float16 and bfloat16
    was not measured at all, it has the other's ratios. Layers of two directions, one or several, have the geometric
    mean of theirs. Stacks larger than the largest that was measured have one layer's, and so have, with a
    projection, those of a type that was not measured; and all without one that were not measured of few timesteps."""
    found: dict[tuple[str, str, str, int, int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        steps = point.row_steps()
        for index in range(len(PASSES)) if steps is not None else ():
            resident, cudnn = point.times(index)
            found[point.cell, point.type, point.stack(), index, steps, point.hidden][point.batch].append(
                cudnn / resident
            )
    measured = {
        kind: {batch: statistics.geometric_mean(ratios) for batch, ratios in batches.items()}
        for kind, batches in found.items()
    }
    measured = {kind: ratios for kind, ratios in measured.items() if not is_cut_off(ratios)}
    for (cell, type_, *kind), ratios in list(measured.items()):
        other = {"bfloat16": "float16", "float16": "bfloat16"}.get(type_)
        if other is not None:
            measured.setdefault((cell, other, *kind), ratios)
    largest: dict[tuple[str, str, str, int], int] = defaultdict(int)
    for cell, type_, stack, _, steps, hidden in measured:
        largest[cell, type_, stack, steps] = max(largest[cell, type_, stack, steps], hidden)
    for (cell, type_, stack, index, steps, hidden), ratios in list(measured.items()):
        for other in STACKS[1:] if stack == STACKS[0] else ():
            most = largest[cell, type_, other, steps]
            if hidden > most and (most > 0 or steps < STEPS[-1]):
                measured[cell, type_, other, index, steps, hidden] = ratios
        if stack == "kProjected" and hidden > largest[cell, type_, "kProjectedLayers", steps]:
            measured[cell, type_, "kProjectedLayers", index, steps, hidden] = ratios
    return measured


def passes_of(gpu: str, cell: str, type_: str, stack: str, hidden: int) -> Callable[[int], int]:
    """How many passes over the weights a batch takes."""
    projection = hidden // 2 if stack in PROJECTED_STACKS else 0
    rnn = make_layers(cell, type_, hidden, directions=2 if stack == STACKS[2] else 1, projection=projection)
    return lambda batch: -(-batch // max(rnn.query_gpu(gpu, batch)["batch_per_pass"], 1))


def choice(gpu: str, point: Point) -> tuple[bool, bool]:
    """Whether the library goes to cuDNN, in inference and in training."""
    shape = (point.hidden, point.layers, point.directions, point.projection)
    rnn = make_layers(point.cell, point.type, *shape)
    found = rnn.query_gpu(gpu, [point.batch] * point.steps)
    return found["inference_backend"] == _C.CUDNN_BACKEND, found["backend"] == _C.CUDNN_BACKEND


def regret(gpu: str, points: Iterable[Point]) -> Iterator[str]:
    """Of each kind of layer, and few timesteps or many: points, those behind the faster one by more than 3 %, the mean
    and the worst; and the mean with the resident kernels alone, and with cuDNN alone."""
    behind: dict[tuple[str, ...], list[tuple[float, float, float, str]]] = defaultdict(list)
    for point in points:
        for index, is_cudnn in enumerate(choice(gpu, point)):
            times = point.times(index)
            where = f"H = {point.hidden}, N = {point.batch}, T = {point.steps}"
            few = "few" if point.steps < MANY_STEPS else "many"
            group = (point.cell, point.type, f"{point.layers} x {point.directions}", few, PASSES[index])
            behind[group].append((times[is_cudnn] / min(times), times[0] / min(times), times[1] / min(times), where))
    yield "| cell | type | layers x directions | T | | points | more than 3 % | mean | worst | resident | cuDNN |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for group, found in sorted(behind.items()):
        means = [math.exp(sum(math.log(point[i]) for point in found) / len(found)) for i in range(3)]
        worst = max(found)
        columns = (len(found), sum(point[0] > 1.03 for point in found), f"{means[0]:.3f}")
        columns += (f"{worst[0]:.2f} ({worst[3]})", f"{means[1]:.2f}", f"{means[2]:.2f}")
        yield f"| {' | '.join(map(str, (*group, *columns)))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "regret"])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--gpu", help="the row whose plans choose; by default the one with the card's name")
    arguments = parser.parse_args()
    device, points = read(arguments.files)
    gpu = arguments.gpu or device.removeprefix("NVIDIA ")
    print("\n".join(table(points, gpu) if arguments.what == "table" else regret(gpu, points)))


if __name__ == "__main__":
    main()

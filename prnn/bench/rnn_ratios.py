"""From the rows of rnn_backends.py to the library's choice between cuDNN and the resident kernels.

    python -m prnn.bench.rnn_ratios table FILE.csv ...     the rows of src/rnn/plan/measured_ratios/*.inc
    python -m prnn.bench.rnn_ratios regret FILE.csv ...    how far the choice is behind the faster one

A GPU is not needed: the choice is that of the plans for the GPU's row. The library's table was made from
bench/results/rnn_backends_*.csv.
"""

import argparse
import csv
import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from prnn import _C

# As in src/rnn/plan/faster.h and plan.h.
STEPS = (1, 2, 4, 8, 16, 32)
MANY_STEPS = STEPS[-1]  # from here on, points stand for the last of STEPS
PRECISIONS = {"bfloat16": "kBfloat16", "float16": "kHalf", "tf32": "kTf32", "float32": "kFloat32"}
CELLS = {"lstm": ("PRNN_LSTM", _C.LSTM), "gru": ("PRNN_GRU", _C.GRU), "rnn": ("PRNN_RNN_TANH", _C.RNN_TANH)}
TYPES = {"bfloat16": _C.BFLOAT16, "float16": _C.HALF, "tf32": _C.FLOAT, "float32": _C.FLOAT}
STACKS = ("kOneLayer", "kSeveralLayers", "kTwoDirections")
MOST = 255
SMALL = {"lstm": 128, "gru": 128, "rnn": 256}  # hidden sizes up to which cuDNN has kernels for small layers
SIXTEEN_BITS = {"bfloat16": "float16", "float16": "bfloat16"}
OTHERS_SEQUENCES = 128  # up to which it has persistent ones in float16, not in bfloat16
ONE_TILE = 8  # sequences that the resident kernels work through together
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
            apart = "Apart" if keeps_projection_apart(self.type, self.hidden, self.projection) else ""
            return f"kProjected{apart}{'Layers' if self.layers * self.directions > 1 else ''}"
        return STACKS[2 if self.directions > 1 else self.layers > 1]


def write(path: str, device: str, points: Iterable[Point]) -> None:
    """Times to a hundredth of a microsecond, after a line with the card; a line as soon as there is its point."""
    with open(path, "w", newline="", buffering=1) as file:
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


@functools.cache
def keeps_projection_apart(type_: str, hidden: int, projection: int) -> bool:
    """Whether the resident kernels multiply with both recurrent matrices one after the other."""
    layer = make_layers("lstm", type_, hidden, projection=projection)
    found = layer.query_gpu(_C.gpu_names()[0], [1] * MANY_STEPS)
    return bool(found["forward_engine"] == "projected")


Kind = tuple[str, str, str, int, int]  # cell, type, stack, T, H
Rows = dict[Kind, dict[int, tuple[float, ...]]]  # of each kind, N -> ratios


def table(points: Sequence[Point]) -> Iterator[str]:
    """Lines of C++ for a row of the GPU table, those of few timesteps after the others of a cell."""
    kinds = sorted(ratios_of(points).items(), key=lambda kind: (kind[0][0], kind[0][3] < STEPS[-1], kind[0]))
    for (cell, type_, stack, steps, hidden), ratios in kinds:
        name = f"{CELLS[cell][0]}, Precision::{PRECISIONS[type_]}, Stack::{stack}, {steps}, {hidden}"
        batches = ", ".join(
            f"{{{batch}, {', '.join(str(min(round(100 * ratio), MOST)) for ratio in found)}}}"
            for batch, found in sorted(ratios.items())
        )
        yield f"{{{name}, {{{batches}}}}},"


def ratios_of(points: Iterable[Point]) -> Rows:
    """cuDNN's time over the resident kernels'. Where one of float16 and bfloat16 was not measured, it has the other's
    ratios (`share_16_bits`). Layers of two directions, one or several, have the geometric
    mean of theirs. Stacks larger than the largest that was measured have one layer's, and so have, with a
    projection, those of a type that was not measured; and all without one that were not measured of few timesteps.
    Where kernels keep a projection apart, that goes for a tile of sequences alone: with more, cuDNN gains more in a
    stack."""
    found: dict[Kind, dict[int, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        steps = point.row_steps()
        if steps is not None:
            found[point.cell, point.type, point.stack(), steps, point.hidden][point.batch].append(point)
    measured = {kind: {n: mean_ratios(same) for n, same in batches.items()} for kind, batches in found.items()}
    share_16_bits(measured)
    largest: dict[tuple[str, str, str, int], int] = defaultdict(int)
    for cell, type_, stack, steps, hidden in measured:
        largest[cell, type_, stack, steps] = max(largest[cell, type_, stack, steps], hidden)
    for (cell, type_, stack, steps, hidden), ratios in list(measured.items()):
        for other in STACKS[1:] if stack == STACKS[0] else ():
            most = largest[cell, type_, other, steps]
            if hidden > most and (most > 0 or steps < STEPS[-1]):
                measured[cell, type_, other, steps, hidden] = ratios
        layers = f"{stack}Layers"
        if stack in ("kProjected", "kProjectedApart") and hidden > largest[cell, type_, layers, steps]:
            most = ONE_TILE if stack == "kProjectedApart" else max(ratios)
            if few := {batch: found for batch, found in ratios.items() if batch <= most}:
                measured[cell, type_, layers, steps, hidden] = few
    return measured


def share_16_bits(measured: Rows) -> None:
    """What was measured in one of the two types alone: kinds of layers, and batches of more than OTHERS_SEQUENCES. But
    cuDNN has kernels for small layers in float16 and in 32 bits, not in bfloat16: of those, stacks that were not
    measured in float16 differ from one layer as they do in tf32."""
    for (cell, type_, stack, steps, hidden), ratios in list(measured.items()):
        if hidden > SMALL[cell] and type_ in SIXTEEN_BITS:
            own = measured.setdefault((cell, SIXTEEN_BITS[type_], stack, steps, hidden), {})
            own |= {n: found for n, found in ratios.items() if not own or n > OTHERS_SEQUENCES} | own
        elif hidden <= SMALL[cell] and type_ == "tf32" and stack in STACKS[1:]:
            one, half = (measured.get((cell, other, STACKS[0], steps, hidden), {}) for other in ("tf32", "float16"))
            likely = {n: times_of(ratios[n], half[n], one[n]) for n in sorted(ratios.keys() & one.keys() & half.keys())}
            if likely:
                measured.setdefault((cell, "float16", stack, steps, hidden), likely)


def times_of(ratios: Sequence[float], by: Sequence[float], over: Sequence[float]) -> tuple[float, ...]:
    return tuple(ratio * a / b for ratio, a, b in zip(ratios, by, over, strict=True))


def mean_ratios(points: Sequence[Point]) -> tuple[float, ...]:
    """cuDNN's time over the resident kernels', of each pass."""
    times = [[point.times(index) for point in points] for index in range(len(PASSES))]
    return tuple(statistics.geometric_mean(cudnn / resident for resident, cudnn in found) for found in times)


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
    print("\n".join(table(points) if arguments.what == "table" else regret(gpu, points)))


if __name__ == "__main__":
    main()

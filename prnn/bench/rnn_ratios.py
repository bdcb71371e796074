"""From measurements of both backends to ratios of their times, and to the C++ rows by which the library chooses.

The build makes the library's table so (site_scons/ratio_tables.py, which loads this file alone): nothing here needs the
library. rnn_backends.py measures.
"""

import csv
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

# Numbers of timesteps with ratios of their own: kMeasuredSteps of src/rnn/plan/plan.h.
STEPS = (1, 2, 4, 8, 16, 32)
MANY_STEPS = STEPS[-1]  # from here on, points stand for the last of STEPS
PRECISIONS = {"bfloat16": "kBfloat16", "float16": "kHalf", "tf32": "kTf32", "float32": "kFloat32"}
MODES = {"lstm": "PRNN_LSTM", "gru": "PRNN_GRU", "rnn": "PRNN_RNN_TANH"}
STACKS = ("kOneLayer", "kSeveralLayers", "kTwoDirections")
MOST = 255
SMALL = {"lstm": 128, "gru": 128, "rnn": 256}  # hidden sizes up to which cuDNN has kernels for small layers
SIXTEEN_BITS = {"bfloat16": "float16", "float16": "bfloat16"}
OTHERS_SEQUENCES = 128  # up to which it has persistent ones in float16, not in bfloat16
ONE_TILE = 8  # sequences that the resident kernels work through together
PASSES = ("inference", "training")


class Point(NamedTuple):
    """Microseconds a timestep, inference and training, of the resident kernels and of cuDNN. The input has H values.

    steps: timesteps T. projection: its size, 0 without one. apart: 1 where the kernels keep the recurrent matrix and
    the projection apart, 0 where they multiply with the product of both.
    """

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
    apart: int = 0

    def times(self, index: int) -> tuple[float, float]:
        """(resident, cuDNN) of one of PASSES."""
        return self[7 + index], self[9 + index]

    def row_steps(self) -> int | None:
        """The number of STEPS whose ratios the point belongs to, or None."""
        if self.steps >= MANY_STEPS:
            return STEPS[-1]
        return self.steps if self.steps in STEPS else None

    def stack(self) -> str:
        if self.projection > 0:
            return f"kProjected{'Apart' * self.apart}{'Layers' if self.layers * self.directions > 1 else ''}"
        return STACKS[2 if self.directions > 1 else self.layers > 1]


def write(path: str, gpu: str, points: Iterable[Point]) -> None:
    """Writes the name of the GPU's row, then each point as soon as it is there, times with two digits."""
    with open(path, "w", newline="", buffering=1) as file:
        file.write(f"# {gpu}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Point._fields)
        for point in points:
            writer.writerow((*point[:7], *(f"{time:.2f}" for time in point[7:11]), *point[11:]))


def read(files: Iterable[str]) -> tuple[str, list[Point]]:
    """Returns the name of the GPU's row in src/core/gpu_table.cc, and the points of all files."""
    gpus, points = set(), []
    for name in files:
        with open(name, newline="") as file:
            gpus.add(file.readline().removeprefix("# ").strip())
            for row in csv.DictReader(file):
                values = [convert(row.get(name, 0)) for name, convert in Point.__annotations__.items()]
                points.append(Point(*values))
    if len(gpus) != 1:
        raise SystemExit(f"the files are of several GPUs: {', '.join(sorted(gpus))}")
    return gpus.pop(), points


Kind = tuple[str, str, str, int, int]  # cell, type, stack, T, H
Rows = dict[Kind, dict[int, tuple[float, ...]]]  # of each kind, N -> ratios


def table(points: Sequence[Point]) -> Iterator[str]:
    """The lines of a MeasuredRatios array (src/rnn/plan/faster.h): a cell's rows of few timesteps follow its others."""
    kinds = sorted(ratios_of(points).items(), key=lambda kind: (kind[0][0], kind[0][3] < STEPS[-1], kind[0]))
    for (cell, type_, stack, steps, hidden), ratios in kinds:
        name = f"{MODES[cell]}, Precision::{PRECISIONS[type_]}, Stack::{stack}, {steps}, {hidden}"
        batches = ", ".join(
            f"{{{batch}, {', '.join(str(min(round(100 * ratio), MOST)) for ratio in found)}}}"
            for batch, found in sorted(ratios.items())
        )
        yield f"{{{name}, {{{batches}}}}},"


def ratios_of(points: Iterable[Point]) -> Rows:
    """cuDNN's time over the resident kernels'. Where one of float16 and bfloat16 was not measured, it has the other's
    ratios (`share_16_bits`). Layers of two directions, one or several, have the geometric mean of theirs. Stacks larger
    than the largest that was measured have one layer's ratios, and so have, with a projection, those of a type that was
    not measured, and all without one that were not measured of few timesteps. Where kernels keep a projection apart,
    that goes for a tile of sequences alone: with more, cuDNN gains more in a stack."""
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
    """Gives one 16-bit type what was measured in the other alone: kinds of layers, and batches of more than
    OTHERS_SEQUENCES. But cuDNN has kernels for small layers in float16 and in 32 bits, not in bfloat16: stacks of those
    that were not measured in float16 differ from one layer as they do in tf32."""
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

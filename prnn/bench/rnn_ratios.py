"""From measurements of both backends to ratios of their times, and to the C++ rows by which the library chooses.

The build makes the library's table so (site_scons/ratio_tables.py, which loads this file alone): nothing here needs the
library. rnn_backends.py measures.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

MANY_STEPS = 32  # from here on the ratio depends on the number of timesteps no more: kManySteps of src/rnn/plan/plan.h
SIXTEEN_BITS = {"bfloat16": "PRNN_DATA_BFLOAT16", "float16": "PRNN_DATA_HALF"}
TYPES = SIXTEEN_BITS | {"tf32": "PRNN_DATA_FLOAT", "float32": "PRNN_DATA_FLOAT"}
MODES = {"lstm": "PRNN_LSTM", "gru": "PRNN_GRU", "rnn": "PRNN_RNN_TANH"}
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


def table(points: Iterable[Point]) -> dict[str, list[str]]:
    """The lines of a MeasuredPoint array for each kind of points (src/rnn/plan/faster.h), by its fields."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for point in sorted(points):
        is_float = point.type not in SIXTEEN_BITS
        flags = (is_float, point.type == "tf32", point.projection > 0, point.apart > 0)
        name = ", ".join((MODES[point.cell], *(str(flag).lower() for flag in flags)))
        sizes = (point.layers, point.directions, point.hidden, point.projection, point.batch)
        steps = min(point.steps, MANY_STEPS)
        step = point.resident_training / (point.layers * point.directions)
        logarithms = [math.log(cudnn / resident) for resident, cudnn in map(point.times, range(len(PASSES)))]
        texts = (f"{value:.3f}f" for value in (*logarithms, math.log(step)))
        kinds[name].append(f"{{{', '.join(map(str, (TYPES[point.type], *sizes, steps, *texts)))}}},")
    return kinds

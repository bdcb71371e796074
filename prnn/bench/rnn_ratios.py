"""From the rows of rnn_backends.py to the library's choice between cuDNN and the resident kernels.

    python -m prnn.bench.rnn_ratios table FILE.json ...     the rows of src/rnn/plan/measured_ratios.cc
    python -m prnn.bench.rnn_ratios regret FILE.json ...    how far PRNN_BEST_BACKEND is behind the faster one

A GPU is not needed: the choice is that of the plans for the GPU's row.
"""

import argparse
import bisect
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from prnn import _C

# As in src/rnn/plan/faster.h.
BATCHES = (1, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
PRECISIONS = {"bfloat16": "kBfloat16", "float16": "kHalf", "tf32": "kTf32", "float32": "kFloat32"}
CELLS = {"lstm": ("PRNN_LSTM", _C.LSTM), "gru": ("PRNN_GRU", _C.GRU), "rnn": ("PRNN_RNN_TANH", _C.RNN_TANH)}
TYPES = {"bfloat16": _C.BFLOAT16, "float16": _C.HALF, "tf32": _C.FLOAT, "float32": _C.FLOAT}
MOST = 255
PASSES = ("inference", "training")
Row = dict[str, Any]


def read(files: Iterable[str]) -> tuple[str, list[Row]]:
    """The card, and the rows of all files."""
    devices, rows = set(), []
    for name in files:
        with open(name) as file:
            run = json.load(file)
        devices.add(run["device"])
        rows += run["rows"]
    if len(devices) != 1:
        raise SystemExit(f"the files are of several GPUs: {', '.join(sorted(devices))}")
    return devices.pop(), rows


def stack_of(kind: dict[str, Any]) -> str:
    if kind["directions"] > 1:
        return "kTwoDirections"
    return "kSeveralLayers" if kind["layers"] > 1 else "kOneLayer"


def percent(measured: dict[int, float], batch: int) -> int:
    """The ratio for a batch, between its measured neighbours on logarithmic scales; beyond the last, the last."""
    batches = sorted(measured)
    place = bisect.bisect_left(batches, batch)
    if place == len(batches) or batches[place] == batch:
        ratio = measured[batches[min(place, len(batches) - 1)]]
    elif place == 0:
        ratio = measured[batches[0]]
    else:
        low, high = batches[place - 1], batches[place]
        share = math.log(batch / low) / math.log(high / low)
        ratio = measured[low] ** (1 - share) * measured[high] ** share
    return min(round(100 * ratio), MOST)


def table(rows: list[Row]) -> Iterator[str]:
    measured: dict[tuple[str, str, str, int, int], dict[int, float]] = defaultdict(dict)
    for row in rows:
        kind = row["kind"]
        for index in range(len(PASSES)):
            key = (kind["cell"], kind["type"], stack_of(kind), index, kind["hidden"])
            measured[key][row["batch"]] = row["cudnn"][index] / row["resident"][index]
    for (cell, type_, stack, index, hidden), ratios in sorted(measured.items()):
        numbers = ", ".join(str(percent(ratios, batch)) for batch in BATCHES)
        kind = f"{CELLS[cell][0]}, Precision::{PRECISIONS[type_]}, Stack::{stack}, {str(index == 1).lower()}, {hidden}"
        yield f"    {{{kind}, {{{numbers}}}}},"


def choice(gpu: str, row: Row) -> tuple[bool, bool]:
    """Whether the library goes to cuDNN, in inference and in training."""
    kind = row["kind"]
    both = kind["directions"] == 2
    rnn = _C.Rnn(CELLS[kind["cell"]][1], TYPES[kind["type"]], kind["hidden"], kind["layers"], kind["hidden"], both)
    if kind["type"] == "tf32":
        rnn.set_math(_C.TF32_MATH)
    found = rnn.query_gpu(gpu, row["batch"])
    return found["inference_backend"] == _C.CUDNN_BACKEND, found["backend"] == _C.CUDNN_BACKEND


def regret(gpu: str, rows: list[Row]) -> Iterator[str]:
    """Of each kind of layer: points, those behind by more than 3 %, the mean and the worst, for the choice of the
    library, for the resident kernels and for cuDNN."""
    behind: dict[tuple[str, str, str, str], list[tuple[float, float, float, str]]] = defaultdict(list)
    for row in rows:
        kind = row["kind"]
        for index, is_cudnn in enumerate(choice(gpu, row)):
            times = row["resident"][index], row["cudnn"][index]
            where = f"H = {kind['hidden']}, N = {row['batch']}"
            group = (kind["cell"], kind["type"], f"{kind['layers']} x {kind['directions']}", PASSES[index])
            behind[group].append((times[is_cudnn] / min(times), times[0] / min(times), times[1] / min(times), where))
    yield "| cell | type | layers x directions | | points | behind by more than 3 % | mean | worst | resident | cuDNN |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for group, points in sorted(behind.items()):
        means = [math.exp(sum(math.log(point[i]) for point in points) / len(points)) for i in range(3)]
        worst = max(points)
        columns = (len(points), sum(point[0] > 1.03 for point in points), f"{means[0]:.3f}")
        columns += (f"{worst[0]:.2f} ({worst[3]})", f"{means[1]:.2f}", f"{means[2]:.2f}")
        yield f"| {' | '.join(map(str, (*group, *columns)))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "regret"])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--gpu", help="the row whose plans choose; by default the one with the card's name")
    arguments = parser.parse_args()
    device, rows = read(arguments.files)
    gpu = arguments.gpu or device.removeprefix("NVIDIA ")
    print("\n".join(table(rows) if arguments.what == "table" else regret(gpu, rows)))


if __name__ == "__main__":
    main()

"""How far the library's choice between cuDNN and the resident kernels is behind the faster of the two."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from prnn import _C
from prnn.bench import command_lines
from prnn.bench.rnn_ratios import MANY_STEPS, PASSES, Point, read

CELLS = {"lstm": _C.LSTM, "gru": _C.GRU, "rnn": _C.RNN_TANH}
TYPES = {"bfloat16": _C.BFLOAT16, "float16": _C.HALF, "tf32": _C.FLOAT, "float32": _C.FLOAT}


def choice(gpu: str, point: Point) -> tuple[bool, bool]:
    """Whether the library goes to cuDNN, in inference and in training."""
    both = point.directions == 2
    shape = (point.hidden, point.layers, point.hidden, both)
    rnn = _C.Rnn(CELLS[point.cell], TYPES[point.type], *shape, projection=point.projection)
    if point.type == "tf32":
        rnn.set_math(_C.TF32_MATH)
    found = rnn.query_gpu(gpu, [point.batch] * point.steps)
    return found["inference_backend"] == _C.CUDNN_BACKEND, found["backend"] == _C.CUDNN_BACKEND


def regret(gpu: str, points: Iterable[Point]) -> Iterator[str]:
    """Rows for each kind of layer, with few timesteps and with many: points, those behind the faster one by more than
    3 %, the mean and the worst; and the mean with the resident kernels alone, and with cuDNN alone."""
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
    parser = command_lines.rnn_regret()
    arguments = parser.parse_args()
    measured_on, points = read(arguments.files)
    print("\n".join(regret(arguments.gpu or measured_on, points)))

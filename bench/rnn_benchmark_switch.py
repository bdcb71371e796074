"""backend="best" by estimate and by measurement (torch.backends.cudnn.benchmark), of random layers: how far each is
behind the faster of the resident kernels and cuDNN.

    python bench/rnn_benchmark_switch.py [--count 100] [--seed 1] [--seconds 300]

Layers are drawn as by prnn.bench.rnn_backends --random, and both backends timed as there. The measured choice is
that of prnn.nn, made by its first calls. "first" is how long the first training step takes.
"""

import argparse
import math
import time

import torch

import prnn
from prnn._ops import _measured
from prnn._ops._handles import handle
from prnn._ops._layer import BACKENDS
from prnn.bench.rnn_backends import TYPES, Kind, measure, random_tasks

CELLS = {"lstm": prnn.nn.LSTM, "gru": prnn.nn.GRU, "rnn": prnn.nn.RNN}


def choices_of(kind: Kind, batch: int, steps: int) -> tuple[list[int], list[int], float]:
    """The backends by estimate and by measurement, of inference and of a training step; seconds of the first step."""
    shape = (kind.hidden, kind.hidden, kind.layers)
    module = CELLS[kind.cell](*shape, bidirectional=kind.directions == 2, device="cuda", dtype=TYPES[kind.type])
    x = torch.randn(steps, batch, kind.hidden, device="cuda", dtype=TYPES[kind.type])
    rnn = kind.make("persistent")
    rnn.set_backend(BACKENDS["best"])
    plan = rnn.query(handle(x.device), [batch] * steps)
    estimated = [plan["inference_backend"], plan["backend"]]
    _measured._choices.clear()
    torch.cuda.synchronize()
    start = time.perf_counter()
    module(x)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    with torch.no_grad():
        module(x)
    made = {key[-1]: backend for key, backend in _measured._choices.items()}
    return estimated, [made[False], made[True]], seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300, help="no layer is begun after this time")
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    until = time.monotonic() + arguments.seconds
    behind: dict[str, list[float]] = {"estimate": [], "measurement": []}
    print("| cell | type | layers x directions | H | N | T | resident | cuDNN ", end="")
    print("| behind by estimate | by measurement | first, ms |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for task in random_tasks(arguments.count, arguments.seed):
        if time.monotonic() > until:
            break
        kind, batch, steps = task.kind, task.batches[0], task.steps or 1
        torch.backends.cudnn.allow_tf32 = kind.type == "tf32"
        try:
            row = measure(kind, batch, steps)
        except (prnn.NotSupportedError, RuntimeError):
            continue
        estimated, measured, seconds = choices_of(kind, batch, steps)
        ratios = []
        for name, choices in (("estimate", estimated), ("measurement", measured)):
            times = [
                (cudnn if choice == BACKENDS["cudnn"] else resident) / min(cudnn, resident)
                for choice, resident, cudnn in zip(choices, row.resident, row.cudnn, strict=True)
            ]
            behind[name] += times
            ratios.append(" / ".join(f"{time:.2f}" for time in times))
        columns = (" / ".join(f"{time:.2f}" for time in times) for times in (row.resident, row.cudnn))
        print(f"| {kind} | {batch} | {steps} | {' | '.join([*columns, *ratios])} | {seconds * 1e3:.0f} |", flush=True)
    for name, found in behind.items():
        late = sum(ratio > 1.03 for ratio in found)
        mean = math.exp(sum(map(math.log, found)) / max(len(found), 1))
        print(
            f"\n{name}: {late} of {len(found)} times behind by more than 3 %, mean {mean:.4f}, worst {max(found):.2f}"
        )


if __name__ == "__main__":
    main()

"""Eager calls of small float32 layers beside torch.nn's: the host's time counts (options: command_lines.rnn_eager)."""

import csv
import gc
import itertools
import math
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch

import prnn
from prnn.bench import command_lines
from prnn.bench.json_rows import write_rows
from prnn.bench.options import require_gpu

TURNS, CALLS = 5, 6
INFERENCE, STEP, FROZEN, FORWARD = "inference", "training step", "frozen training step", "forward with gradients"
ONE, LOOP = "one sequence, {}", "training step, timestep by timestep"
MOST_LOOPED = 8
COLUMNS = ["cell", "input", "hidden", "layers", "directions", "batch", "steps", "kind", "torch", "prnn"]
# Input and hidden size, layers, directions, batch, timesteps.
SIZES = [
    (hidden, hidden, 1, 1, batch, steps)
    for hidden, batch, steps in itertools.product((32, 64, 128, 256), (1, 16, 64), (1, 2, 4, 8, 16, 64, 128))
]
SIZES += [(10, 64, 1, 1, 64, 50), (5, 32, 1, 1, 32, 10), (8, 64, 1, 1, 8, 128), (64, 64, 2, 1, 16, 30)]
SIZES += [(32, 32, 1, 2, 16, 30), (3, 16, 2, 2, 8, 20), (64, 128, 3, 1, 4, 20)]
SIZES += [(64, 64, 2, 1, batch, steps) for batch, steps in itertools.product((1, 16), (1, 2, 4, 8))]


def calls_of(module: torch.nn.Module, x: torch.Tensor, dy: torch.Tensor) -> dict[str, Callable[[], object]]:
    leaves = [x, *module.parameters()]
    one_directional = dy.size(2) == module.hidden_size

    def infer(input: torch.Tensor) -> None:
        with torch.no_grad():
            module(input)

    def step(input: torch.Tensor, gradient: torch.Tensor) -> None:
        torch.autograd.grad(module(input)[0], leaves, gradient)

    def step_by_step() -> None:
        outputs, states = [], None
        for timestep in x.unsqueeze(1):
            output, states = module(timestep, states)
            outputs.append(output)
        torch.autograd.grad(outputs, leaves, list(dy.unsqueeze(1)))

    found = {
        INFERENCE: lambda: infer(x),
        STEP: lambda: step(x, dy),
        FROZEN: lambda: torch.autograd.grad(module(x)[0], x, dy),
        FORWARD: lambda: module(x),
    }
    if x.size(1) == 1:
        found[ONE.format(INFERENCE)] = lambda: infer(x[:, 0])
        found[ONE.format(STEP)] = lambda: step(x[:, 0], dy[:, 0])
    if one_directional and x.size(0) <= MOST_LOOPED:
        found[LOOP] = step_by_step
    return found


def time_in_turns(calls: list[Callable[[], object]]) -> list[float]:
    times: list[list[float]] = [[] for _ in calls]
    for call in calls * 2:  # the first call of a size prepares later ones
        call()
    order = list(range(len(calls)))
    for _ in range(TURNS):
        random.shuffle(order)
        for place in order:
            calls[place]()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(CALLS):
                calls[place]()
            torch.cuda.synchronize()
            times[place].append((time.perf_counter() - begin) / CALLS * 1e6)
    return [statistics.median(found) for found in times]


def measure(json: str | None) -> None:
    """Prints the rows, and writes them to this file, too, after each layer's."""
    random.seed(1)
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    points = list(itertools.product(("RNN", "GRU", "LSTM"), SIZES))
    random.shuffle(points)
    gc.disable()
    rows = []
    for cell, (width, hidden, layers, directions, batch, steps) in points:
        modules = []
        for namespace in (torch.nn, prnn.nn):
            make = getattr(namespace, cell)
            modules.append(make(width, hidden, layers, bidirectional=directions == 2, device="cuda"))
        x = torch.randn(steps, batch, width, device="cuda", requires_grad=True)
        dy = torch.randn(steps, batch, hidden * directions, device="cuda")
        theirs, ours = (calls_of(module, x, dy) for module in modules)
        for kind in theirs:
            for module in modules:
                module.requires_grad_(kind != FROZEN)
            times = (round(found, 1) for found in time_in_turns([theirs[kind], ours[kind]]))
            row = [cell, width, hidden, layers, directions, batch, steps, kind, *times]
            writer.writerow(row)
            rows.append(dict(zip(COLUMNS, row, strict=True)))
        sys.stdout.flush()
        if json:
            write_rows(json, rows)


def summarise(path: Path, json: str | None) -> None:
    ratios = defaultdict(list)
    text = path.read_text().splitlines()
    for point in csv.DictReader([line for line in text if not line.startswith("#")]):
        ratios[point["cell"], point["kind"]].append(float(point["prnn"]) / float(point["torch"]))
    print("| cell | | points | prnn_share | largest | behind |\n|---|---|---|---|---|---|")
    rows = []
    for (cell, kind), found in sorted(ratios.items()):
        share = math.exp(statistics.fmean(map(math.log, found)))
        behind = sum(ratio > 1.03 for ratio in found)
        print(f"| {cell} | {kind} | {len(found)} | {share:.2f} | {max(found):.2f} | {behind} |")
        row = {"cell": cell, "kind": kind, "points": len(found)}
        rows.append(row | {"prnn_share": round(share, 4), "largest": round(max(found), 4), "behind": behind})
    if json:
        device = text[0].removeprefix("# ") if text[0].startswith("#") else "a GPU that the file does not name"
        write_rows(json, rows, device)


def main() -> None:
    parser = command_lines.rnn_eager()
    arguments = parser.parse_args()
    if arguments.summary is None:
        require_gpu(parser)
        measure(arguments.json)
    else:
        summarise(arguments.summary, arguments.json)

"""Stacks that kernels by chunks serve, without them and by them: what src/rnn/plan/chunked_steps.cc is set by.

    python bench/rnn_chunked_points.py bench/results/rnn_chunked_points_h100.csv >without.csv
    python bench/rnn_chunked_points.py --by-chunks without.csv >points.csv

Each run times the points of a file and writes it with its own two columns anew: microseconds a timestep, inference and
a training step with all gradients, float16, input size = hidden size (or the projection's), replayed from CUDA graphs.
What runs is the library's choice: for the first run it is built with a chunked_least_steps() that returns INT64_MAX,
for the second with one that returns 0. Lengths, where a point has them, are from T / 2 to T.
"""

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

import torch

import prnn
from prnn.bench.rnn_gpu import Times, time_graph

COLUMNS = ["cell", "projection", "hidden", "layers", "steps", "batch", "lengths"]
COLUMNS += ["forward", "train", "forward_chunked", "train_chunked"]
REPEATS = 7


def times_of(point: dict[str, str], device: str = "cuda") -> Times:
    projection, hidden, layers, steps, batch = (int(point[name]) for name in COLUMNS[1:6])
    options = {"proj_size": projection} if projection else {}
    like: dict[str, Any] = {"device": device, "dtype": torch.float16}
    width = projection or hidden
    module = getattr(prnn.nn, point["cell"])(width, hidden, layers, **options, **like)
    x, dy = torch.randn(steps, batch, width, requires_grad=True, **like), torch.randn(steps, batch, width, **like)
    lengths = torch.linspace(steps, steps // 2, batch).long() if int(point["lengths"]) else None

    def forward() -> None:
        with torch.no_grad():
            module(x, lengths=lengths)

    def train() -> None:
        torch.autograd.grad(module(x, lengths=lengths)[0], [x, *module.parameters()], dy)

    return time_graph(forward, REPEATS) / steps, time_graph(train, REPEATS) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", type=Path)
    parser.add_argument("--by-chunks", action="store_true", help="the second run")
    arguments = parser.parse_args()
    first = COLUMNS.index("forward_chunked" if arguments.by_chunks else "forward")
    lines = [line for line in arguments.points.read_text().splitlines() if not line.startswith("#")]
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}")
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for point in csv.DictReader(lines):
        times = (f"{time:.2f}" for time in times_of(point))
        writer.writerow(point | dict(zip(COLUMNS[first : first + 2], times, strict=True)))
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""The kernels of large batches alone, in bfloat16 or tf32, us a timestep: as the library plans them; with --replicas
also by the multicast kernels with each number of replicas that they take, with --resets the same and 1 % of timesteps
reset.

    python bench/rnn_multicast.py [--replicas | --resets] [--tf32] [--hidden 640 896] [--batches 128 256]
"""

import argparse
import itertools

import torch

import prnn
from prnn import _C
from prnn.bench.options import COUNT, require_gpu
from prnn.bench.rnn_gpu import time_graph
from prnn.bench.rnn_tune import TunedLayer, time_plan

PLAIN = [
    *(("lstm", 1024, batch) for batch in (128, 192, 256, 512)),
    *(("gru", 1024, batch) for batch in (128, 256, 512)),
    ("lstm", 768, 256),
    *(("lstm", 512, batch) for batch in (256, 512, 1024)),
    *itertools.product(("lstm", "gru"), (640, 896), (256, 512)),
    *itertools.product(("gru",), (512, 768), (256, 512)),
]
BY_REPLICAS = [
    *itertools.product(("lstm", "gru"), (1024, 512), (32, 40, 48, 64, 96, 128, 192, 256, 512, 1024)),
    *itertools.product(("lstm", "gru"), (640, 768, 896), (48, 64, 96, 128, 192, 256, 512, 1024)),
]
TF32 = list(itertools.product(("lstm", "gru"), (512,), (33, 48, 64, 72, 96, 128, 192, 256, 512, 1024)))
Points = list[tuple[str, int, int]]
MOST_REPLICAS = 8


def make(cell: str, hidden: int, batch: int, steps: int, tf32: bool) -> TunedLayer:
    layer = TunedLayer(cell, hidden, batch, steps, torch.float32 if tf32 else torch.bfloat16)
    if tf32:
        layer.rnn.set_math(_C.TF32_MATH)
    return layer


def plain(points: Points, tf32: bool, steps: int = 128) -> None:
    print("| cell | H | N | inference | training | backward |\n|---|---|---|---|---|---|")
    for cell, hidden, batch in points:
        layer = make(cell, hidden, batch, steps, tf32)
        backward = time_plan(layer, True, None, 5) / steps
        training = time_graph(lambda layer=layer: layer.forward(training=True), 5) / steps
        inference = time_graph(layer.forward, 5) / steps
        print(f"| {cell} | {hidden} | {batch} | {inference:.2f} | {training:.2f} | {backward:.2f} |", flush=True)


def by_replicas(points: Points, tf32: bool, resets: bool, steps: int = 64) -> None:
    print("| cell | H | N | pass | planned | engine | multicast, by replicas |\n|---|---|---|---|---|---|---|")
    for cell, hidden, batch in points:
        layer = make(cell, hidden, batch, steps, tf32)
        reset = (torch.rand(steps, batch, device="cuda") < 0.01).to(torch.uint8)
        if resets:
            layer.rnn.set_extras(reset.data_ptr(), 0, 0)
        for name in ("forward", "backward"):
            planned = time_plan(layer, name == "backward", None, 5) / steps
            engine = layer.rnn.query(layer.handle, batch)[f"{name}_engine"]
            found = []
            for replicas in range(1, MOST_REPLICAS + 1):
                plan = (_C.ENGINE_WGMMA_MULTICAST, 0, 0, replicas, 0)
                try:
                    found.append(f"{replicas}: {time_plan(layer, name == 'backward', plan, 5) / steps:.2f}")
                except prnn.NotSupportedError:
                    continue
            print(
                f"| {cell} | {hidden} | {batch} | {name} | {planned:.2f} | {engine} | {' '.join(found)} |", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--replicas", action="store_true")
    kind.add_argument("--resets", action="store_true")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--hidden", nargs="+", type=COUNT, help="of the points that there are")
    parser.add_argument("--batches", nargs="+", type=COUNT)
    arguments = parser.parse_args()
    require_gpu(parser)
    torch.manual_seed(0)
    has_all = arguments.replicas or arguments.resets
    points = [
        (cell, hidden, batch)
        for cell, hidden, batch in (TF32 if arguments.tf32 else BY_REPLICAS if has_all else PLAIN)
        if hidden in (arguments.hidden or [hidden]) and batch in (arguments.batches or [batch])
    ]
    by_replicas(points, arguments.tf32, arguments.resets) if has_all else plain(points, arguments.tf32)


if __name__ == "__main__":
    main()

"""Recurrent layers on a GPU: prnn against cuDNN, called directly and through torch, microseconds per timestep.

Options: command_lines.rnn_gpu. Tables of their own: --modules rnn_modules.py, --layer-norm rnn_layer_norm.py, --tune
rnn_tune.py, the cell slstm, which cuDNN has not, rnn_slstm.py.
"""

import argparse
import math
import statistics
from collections.abc import Iterator

import torch

import prnn
from prnn.bench import command_lines, cudnn_rnn, rnn_layer_norm, rnn_modules, rnn_slstm, rnn_tune
from prnn.bench.json_rows import write_rows
from prnn.bench.options import MODULES, require_gpu
from prnn.bench.timing import Times, per_step, time_calls, time_graph, time_module

# (hidden size, batches) of one layer of every cell, and of five LSTM layers.
TARGETS = {256: (4, 32), 512: (1, 4, 8, 32, 64), 1024: (1, 4, 8, 16, 32, 64), 1792: (4, 32), 2048: (1, 4, 8, 32, 64)}
STACK_TARGETS = {512: (4, 8, 32), 1024: (4, 8, 32)}


def time_cudnn(
    cell: str, hidden: int, layers: int, steps: int, batch: int, dtype: torch.dtype, repeats: int
) -> tuple[Times, str]:
    """The best of cuDNN's algorithms, forward and train each, and their names."""
    best = [(math.inf, ""), (math.inf, "")]
    for name, *calls in cudnn_rnn.candidates(cell, hidden, layers, steps, batch, dtype):
        for index, call in enumerate(calls):
            taken = [(time_calls(call, repeats), name)]
            try:
                taken.append((time_graph(call, repeats), f"{name}, graph"))
            except (cudnn_rnn.RefusedError, RuntimeError):  # an algorithm that cannot be captured
                torch.cuda.synchronize()
            best[index] = min(best[index], *taken)
    return (best[0][0], best[1][0]), " / ".join(name for _, name in best)


def points(arguments: argparse.Namespace) -> Iterator[tuple[str, int, int, int]]:
    """(cell, layers, hidden size, batch)."""
    cells = [cell for cell in arguments.cells if cell in MODULES]
    if arguments.targets:
        for cell in cells:
            yield from ((cell, 1, hidden, batch) for hidden, batches in TARGETS.items() for batch in batches)
        if "lstm" in cells:
            yield from (("lstm", 5, hidden, batch) for hidden, batches in STACK_TARGETS.items() for batch in batches)
        return
    for cell in cells:
        for layers in arguments.layers:
            for hidden in arguments.hidden:
                yield from ((cell, layers, hidden, batch) for batch in arguments.batch)


def main() -> None:
    parser = command_lines.rnn_gpu()
    arguments = parser.parse_args()
    if arguments.json and (arguments.modules is not None or arguments.tune or arguments.layer_norm):
        parser.error(
            "--json has the rows beside cuDNN and those of slstm; --modules, --tune and --layer-norm have none"
        )
    require_gpu(parser)
    if arguments.modules is not None:
        return rnn_modules.compare(arguments.modules, arguments.steps, arguments.repeats)
    rows: list[dict[str, object]] = []
    for name in arguments.dtype:
        measure(arguments, name, rows)


def measure(arguments: argparse.Namespace, name: str, rows: list[dict[str, object]]) -> None:
    """Measures one of the types, and adds to the rows of the file."""
    dtype = torch.float32 if name == "tf32" else getattr(torch, name)
    hidden, batches, steps, repeats = arguments.hidden, arguments.batch, arguments.steps, arguments.repeats
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"
    if arguments.tune:
        return rnn_tune.tune(arguments.cells, hidden, batches, steps, dtype, repeats)
    if arguments.layer_norm:
        return rnn_layer_norm.compare(dtype, hidden, batches, steps, repeats)
    versions = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    print(f"{torch.cuda.get_device_name()}, {versions}, {name}, T = {steps}\n")
    if "slstm" in arguments.cells:
        for row in rnn_slstm.compare_on_gpu(hidden, batches, steps, dtype, repeats):
            rows.append(row | {"dtype": name})
            if arguments.json:
                write_rows(arguments.json, rows)
    if any(cell in MODULES for cell in arguments.cells):
        compare_with_cudnn(arguments, name, dtype, rows)


def compare_with_cudnn(
    arguments: argparse.Namespace, name: str, dtype: torch.dtype, rows: list[dict[str, object]]
) -> None:
    """Prints the table of a type, and adds its rows."""
    steps, repeats = arguments.steps, arguments.repeats
    print("| cell | layers | H | N | prnn fwd / train | cuDNN fwd / train | torch fwd / train | ratio fwd / train | |")
    print("|---|---|---|---|---|---|---|---|---|")
    ratios: list[Times] = []
    for cell, layers, hidden, batch in points(arguments):
        torch.manual_seed(0)
        x = torch.randn(steps, batch, hidden, device="cuda", dtype=dtype, requires_grad=True)
        dy = torch.randn_like(x)
        make = dict(num_layers=layers, device="cuda", dtype=dtype)
        where = f"| {cell} | {layers} | {hidden} | {batch} |"
        try:
            ours = getattr(prnn.nn, MODULES[cell])(hidden, hidden, **make, backend="persistent")
            mine = time_module(ours, x, dy, repeats)
        except prnn.NotSupportedError as error:
            print(f"{where} {error} | | | | |", flush=True)
            continue
        direct, algorithms = time_cudnn(cell, hidden, layers, steps, batch, dtype, repeats)
        times = {"prnn": mine, "cudnn": direct}
        if not arguments.no_torch:
            theirs = getattr(torch.nn, MODULES[cell])(hidden, hidden, **make)
            times["torch"] = time_module(theirs, x, dy, repeats)
        through_torch = per_step(times["torch"], steps) if "torch" in times else ""
        ratio = direct[0] / mine[0], direct[1] / mine[1]
        ratios.append(ratio)
        shape = {"cell": cell, "layers": layers, "hidden": hidden, "batch": batch, "steps": steps}
        found = {side: [round(time / steps, 2) for time in both] for side, both in times.items()}
        rows.append(
            shape | {"dtype": name} | found | {"ratio": [round(x, 2) for x in ratio], "cudnn_algorithms": algorithms}
        )
        if arguments.json:  # after each row: what has been measured stays if a later one fails
            write_rows(arguments.json, rows)
        print(
            f"{where} {per_step(mine, steps)} | {per_step(direct, steps)} | {through_torch} "
            f"| {ratio[0]:.2f} / {ratio[1]:.2f} | {algorithms} |",
            flush=True,
        )
    if ratios:
        forward, train = (statistics.geometric_mean(column) for column in zip(*ratios, strict=True))
        slower = sum(min(ratio) < 1 for ratio in ratios)
        print(f"\nGeometric mean of the ratios over {len(ratios)} points: {forward:.2f} / {train:.2f}.")
        print(f"Points where prnn is slower than cuDNN's best, forward or train: {slower}.")

"""Layers with heads (block-diagonal recurrent weights) beside torch on a GPU (options: command_lines.rnn_heads)."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import prnn
from prnn.bench import command_lines
from prnn.bench.json_rows import write_rows
from prnn.bench.options import MODULES, require_gpu
from prnn.bench.timing import per_step, time_graph

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
DTYPE, DEVICE = torch.bfloat16, torch.device("cuda:0")
Run = Callable[[Tensor], Tensor]


def ours(cell: str, heads: int, size: int) -> tuple[Run, list[Tensor]]:
    options: dict[str, Any] = {"heads": heads, "backend": "persistent", "device": DEVICE, "dtype": DTYPE}
    module = getattr(prnn.nn, MODULES[cell])(heads * size, heads * size, **options)
    return (lambda x: module(x)[0]), list(module.parameters())


def cudnn(cell: str, heads: int, size: int) -> tuple[Run, list[Tensor]]:
    layer = getattr(torch.nn, MODULES[cell])
    modules = torch.nn.ModuleList([layer(heads * size, size, device=DEVICE, dtype=DTYPE) for _ in range(heads)])
    return (lambda x: torch.cat([module(x)[0] for module in modules], 2)), list(modules.parameters())


def next_state(cell: str, fed: Tensor, recurrent: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One timestep of every head; gates are (K, N, G, size)."""
    if cell == "rnn":
        return torch.tanh(fed + recurrent)[:, :, 0], c
    if cell == "lstm":
        i, f, g, o = (fed + recurrent).unbind(2)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    r, z = (fed[:, :, :2] + recurrent[:, :, :2]).sigmoid().unbind(2)
    n = (fed[:, :, 2] + r * recurrent[:, :, 2]).tanh()
    return n + z * (h - n), c


def written_out(cell: str, heads: int, size: int) -> tuple[Run, list[Tensor]]:
    gates, width = GATES[cell], heads * size

    def random(*shape: int) -> Tensor:
        return (torch.randn(shape, device=DEVICE) / size**0.5).to(DTYPE).requires_grad_()

    w, b = random(gates * width, width), random(gates * width)
    r, br = random(heads, size, gates * size), random(heads, 1, gates * size)

    def run(x: Tensor) -> Tensor:
        steps, batch = x.shape[:2]
        fed = torch.nn.functional.linear(x, w, b).view(steps, batch, heads, gates, size).transpose(1, 2)
        h = c = x.new_zeros(heads, batch, size)
        outputs = []
        for t in range(steps):
            recurrent = torch.baddbmm(br, h, r).view(heads, batch, gates, size)
            h, c = next_state(cell, fed[t], recurrent, h, c)
            outputs.append(h)
        return torch.stack(outputs).transpose(1, 2).flatten(2)

    return run, [w, b, r, br]


RUNS = {"prnn": ours, "cuDNN": cudnn, "torch": written_out}


def measure(run: Run, parameters: list[Tensor], x: Tensor, dy: Tensor, repeats: int) -> tuple[float, float]:
    """Microseconds (forward, train)."""

    def forward() -> None:
        with torch.no_grad():
            run(x)

    return time_graph(forward, repeats), time_graph(lambda: torch.autograd.grad(run(x), [x, *parameters], dy), repeats)


def main() -> None:
    parser = command_lines.rnn_heads()
    arguments = parser.parse_args()
    require_gpu(parser)
    rivals = [name for name in arguments.only if name != "prnn"]
    columns = [
        "cell",
        "heads x size",
        "N",
        *arguments.only,
        *(f"ratio to {name}" for name in rivals if "prnn" in arguments.only),
    ]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, T = {arguments.steps}\n")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    points = [
        (cell, heads, size, batch)
        for size in arguments.size
        for heads in arguments.heads
        for batch in arguments.batch
        for cell in arguments.cells
    ]
    rows = []
    for cell, heads, size, batch in points:
        x = torch.randn(arguments.steps, batch, heads * size, device=DEVICE, dtype=DTYPE, requires_grad=True)
        dy = torch.randn_like(x)
        times: dict[str, tuple[float, float]] = {}
        for name in arguments.only:
            try:
                times[name] = measure(*RUNS[name](cell, heads, size), x, dy, arguments.repeats)
            except (RuntimeError, prnn.NotSupportedError) as error:
                print(f"    {name}: {type(error).__name__}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
                times[name] = (float("nan"), float("nan"))
            torch.cuda.synchronize()
        cells = [cell, f"{heads} x {size}", str(batch), *(per_step(times[name], arguments.steps) for name in times)]
        for name in rivals if "prnn" in times else ():
            cells.append(" / ".join(f"{a / b:.2f}" for a, b in zip(times[name], times["prnn"], strict=True)))
        print(f"| {' | '.join(cells)} |", flush=True)
        row: dict[str, Any] = {"cell": cell, "heads": heads, "size": size, "N": batch, "T": arguments.steps}
        rows.append(row | {f"{name} us": [round(value, 1) for value in pair] for name, pair in times.items()})
    if arguments.json:
        write_rows(arguments.json, rows)

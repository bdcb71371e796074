"""Layers with reset=, as reinforcement learning trains them, beside TorchRL's Triton kernels (options:
command_lines.rnn_reset)."""

import contextlib
import fcntl
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import prnn
from prnn.bench import command_lines
from prnn.bench.json_rows import write_rows
from prnn.bench.options import require_gpu
from prnn.bench.timing import time_calls, time_graph

try:
    from torchrl.modules.tensordict_module import _rnn_triton
except ImportError:
    _rnn_triton = None

RESETS = 0.01
COMPILED = 16, 16  # sequences and timesteps: multiples of 16, which Triton compiles the same code for
Run = Callable[[torch.Tensor], torch.Tensor]  # of x to y


def ours(cell: str, hidden: int, reset: torch.Tensor, dtype: torch.dtype) -> tuple[Run, list[torch.nn.Parameter]]:
    module = getattr(prnn.nn, cell)(hidden, hidden, device="cuda", dtype=dtype)
    return (lambda x: module(x, reset=reset)[0]), list(module.parameters())


def triton_kernels(cell: str) -> list[Any]:
    return [getattr(_rnn_triton, f"_{cell.lower()}_{direction}_kernel") for direction in ("fwd", "bwd")]


def compile_torchrl(cell: str, hidden: int, dtype: torch.dtype, trains: bool) -> None:
    """Compiles TorchRL's kernels without measuring them."""

    def run_once(call: Callable[[], None], quantiles: object) -> list[float]:
        call()
        return [1.0, 1.0, 1.0]

    kernels = triton_kernels(cell)
    timers = [kernel.do_bench for kernel in kernels]
    for kernel in kernels:
        kernel.do_bench = run_once
    batch, steps = COMPILED
    run, _ = torchrl(cell, hidden, torch.zeros(steps, batch, dtype=torch.bool, device="cuda"), dtype)
    x = torch.randn(batch, steps, hidden, device="cuda", requires_grad=True)
    with contextlib.suppress(Exception):  # measure() says why
        with torch.no_grad():
            run(x)
        if trains:
            run(x).sum().backward()
    for kernel, timer in zip(kernels, timers, strict=True):
        kernel.do_bench = timer


def torchrl(cell: str, hidden: int, reset: torch.Tensor, dtype: torch.dtype) -> tuple[Run, list[torch.nn.Parameter]]:
    parameters = list(getattr(torch.nn, cell)(hidden, hidden, device="cuda").parameters())
    steps, batch = reset.shape
    states = [torch.zeros(batch, steps, hidden, device="cuda")] * (2 if cell == "LSTM" else 1)
    flags = reset.T.contiguous()
    for kernel in triton_kernels(cell):  # Triton's tuning looks at T and H, not at the number of sequences
        kernel.cache.clear()
    run = _rnn_triton.lstm_triton if cell == "LSTM" else _rnn_triton.gru_triton
    return (lambda x: run(x, *states, *parameters, flags, dtype, input_precision="tf32")[0]), parameters


def torch_loop(cell: str, hidden: int, reset: torch.Tensor, dtype: torch.dtype) -> tuple[Run, list[torch.nn.Parameter]]:
    module = getattr(torch.nn, f"{cell}Cell")(hidden, hidden, device="cuda", dtype=dtype)
    keep = (~reset).to(dtype).unsqueeze(2)

    def run(x: torch.Tensor) -> torch.Tensor:
        outputs, state = [], x.new_zeros(2, x.size(1), hidden)
        for t in range(x.size(0)):
            state = state * keep[t]
            state = torch.stack(module(x[t], tuple(state))) if cell == "LSTM" else module(x[t], state[0])[None]
            outputs.append(state[0])
        return torch.stack(outputs)

    return run, list(module.parameters())


def measure(
    run: Run, parameters: list[torch.nn.Parameter], x: torch.Tensor, repeats: int, trains: bool = True
) -> list[float]:
    """Microseconds: eager forward and train, replayed forward and train; NaN for what did not run."""
    x.requires_grad_()
    dy = torch.randn_like(x)

    def forward() -> None:
        with torch.no_grad():
            run(x)

    def train() -> None:
        for tensor in (x, *parameters):
            tensor.grad = None
        run(x).backward(dy)

    def timed(timer: Callable[[Callable[[], None], int], float], call: Callable[[], None]) -> float:
        try:
            call()
            return timer(call, repeats)
        except Exception as error:
            print(f"    {call.__name__}: {type(error).__name__}: {str(error)[:160]}", file=sys.stderr)
            torch.cuda.synchronize()
            return math.nan

    return [
        timed(timer, call) if trains or call is forward else math.nan
        for timer in (time_calls, time_graph)
        for call in (forward, train)
    ]


def cells_of(values: list[float], scale: float = 1) -> list[str]:
    """Two table cells, forward / train each, of four values."""
    texts = ["-" if math.isnan(value) else f"{value / scale:.2f}" for value in values]
    return [f"{texts[0]} / {texts[1]}", f"{texts[2]} / {texts[3]}"]


def compare(
    cell: str, hidden: int, batch: int, dtype: torch.dtype, steps: int, repeats: int, runs: str = "train"
) -> dict[str, Any]:
    reset = torch.rand(steps, batch, device="cuda") < RESETS
    x = torch.randn(steps, batch, hidden, device="cuda")
    rival, name = (torch_loop, "torch loop") if _rnn_triton is None else (torchrl, "TorchRL")
    theirs_x = x.to(dtype) if _rnn_triton is None else x.transpose(0, 1).contiguous()
    theirs = [math.nan] * 4
    if runs != "none":
        theirs = measure(*rival(cell, hidden, reset, dtype), theirs_x, repeats, runs == "train")
    mine = measure(*ours(cell, hidden, reset, dtype), x.to(dtype), repeats)
    ratios = [a / b for a, b in zip(theirs, mine, strict=True)]
    kind = str(dtype).removeprefix("torch.")
    columns = [*cells_of(theirs, steps), *cells_of(mine, steps), *cells_of(ratios)]
    print(f"| {' | '.join(map(str, (cell, kind, hidden, batch, name, *columns)))} |", flush=True)
    row = {"cell": cell, "type": kind, "H": hidden, "N": batch, "T": steps}
    for who, side in (("prnn", mine),) if runs == "none" else (("prnn", mine), (name, theirs)):
        row[f"{who} us"] = [None if math.isnan(value) else round(value, 1) for value in side]
    return row


@contextlib.contextmanager
def turn(path: str | None) -> Iterator[None]:
    """Holds the lock of a file, and leaves the GPU idle."""
    if path is None:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def main() -> None:
    parser = command_lines.rnn_reset()
    arguments = parser.parse_args()
    require_gpu(parser)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    begun, rows = time.monotonic(), []
    kinds = [
        (cell.upper(), hidden, getattr(torch, name))
        for hidden in arguments.hidden
        for cell in arguments.cells
        for name in arguments.types
    ]
    if arguments.compile:
        part, parts = arguments.compile
        for kernel in (kernel for cell in arguments.cells for kernel in triton_kernels(cell)):
            kernel.configs = kernel.configs[part::parts]
    if _rnn_triton is not None and arguments.rival != "none":
        for kind in kinds:
            compile_torchrl(*kind, arguments.rival == "train")
    if arguments.compile:
        return
    print("| cell | type | H | N | rival | eager | replayed | prnn eager | replayed | ratio eager | ratio replayed |")
    print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for batch in arguments.batch:
        for cell, hidden, dtype in kinds:
            what = cell, hidden, batch, dtype, arguments.steps, arguments.repeats, arguments.rival
            with turn(arguments.lock):
                if time.monotonic() - begun < arguments.seconds:
                    rows.append(compare(*what))
            if arguments.json:
                write_rows(arguments.json, rows)

"""Layers with reset=, as reinforcement learning trains them, beside TorchRL's Triton kernels, us per timestep.

    python bench/rnn_reset.py [--cells lstm gru] [--hidden 128 256 512 1024] [--batch 16 64 256 1024] [--seconds 80]
                              [--json FILE]

Forward / training step with the gradients of input and parameters, eager (the host's time counts) and replayed from a
CUDA graph. One layer, input size = hidden size, 1 % of the timesteps reset. float32 in tf32, and bfloat16: prnn's layer
and its data are of that type, TorchRL's data is float32 and its recurrent product bfloat16. Its kernels are tuned anew
for every number of sequences. Ratios are TorchRL's time over prnn's. "torch loop" is a Python loop over torch.nn's
cell, for where TorchRL is not installed. "-" did not run, or cannot be captured: the reason is on stderr.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import prnn
from prnn.bench.json_rows import write_rows
from prnn.bench.rnn_gpu import time_calls, time_graph

try:
    from torchrl.modules.tensordict_module import _rnn_triton
except ImportError:
    _rnn_triton = None

RESETS = 0.01
Run = Callable[[torch.Tensor], torch.Tensor]  # of x to y


def ours(cell: str, hidden: int, reset: torch.Tensor, dtype: torch.dtype) -> tuple[Run, list[torch.nn.Parameter]]:
    module = getattr(prnn.nn, cell)(hidden, hidden, device="cuda", dtype=dtype)
    return (lambda x: module(x, reset=reset)[0]), list(module.parameters())


def torchrl(cell: str, hidden: int, reset: torch.Tensor, dtype: torch.dtype) -> tuple[Run, list[torch.nn.Parameter]]:
    parameters = list(getattr(torch.nn, cell)(hidden, hidden, device="cuda").parameters())
    steps, batch = reset.shape
    states = [torch.zeros(batch, steps, hidden, device="cuda")] * (2 if cell == "LSTM" else 1)
    flags = reset.T.contiguous()
    for direction in ("fwd", "bwd"):  # Triton's tuning looks at T and H, not at the number of sequences
        getattr(_rnn_triton, f"_{cell.lower()}_{direction}_kernel").cache.clear()
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


def measure(run: Run, parameters: list[torch.nn.Parameter], x: torch.Tensor, repeats: int) -> list[float]:
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

    return [timed(timer, call) for timer in (time_calls, time_graph) for call in (forward, train)]


def cells_of(values: list[float], scale: float = 1) -> list[str]:
    """Two table cells, forward / train each, of four values."""
    texts = ["-" if math.isnan(value) else f"{value / scale:.2f}" for value in values]
    return [f"{texts[0]} / {texts[1]}", f"{texts[2]} / {texts[3]}"]


def compare(cell: str, hidden: int, batch: int, dtype: torch.dtype, steps: int, repeats: int) -> dict[str, Any]:
    reset = torch.rand(steps, batch, device="cuda") < RESETS
    x = torch.randn(steps, batch, hidden, device="cuda")
    rival, name = (torch_loop, "torch loop") if _rnn_triton is None else (torchrl, "TorchRL")
    theirs_x = x.to(dtype) if _rnn_triton is None else x.transpose(0, 1).contiguous()
    theirs = measure(*rival(cell, hidden, reset, dtype), theirs_x, repeats)
    mine = measure(*ours(cell, hidden, reset, dtype), x.to(dtype), repeats)
    ratios = [a / b for a, b in zip(theirs, mine, strict=True)]
    kind = str(dtype).removeprefix("torch.")
    columns = [*cells_of(theirs, steps), *cells_of(mine, steps), *cells_of(ratios)]
    print(f"| {' | '.join(map(str, (cell, kind, hidden, batch, name, *columns)))} |", flush=True)
    row = {"cell": cell, "type": kind, "H": hidden, "N": batch, "T": steps}
    for who, side in (("prnn", mine), (name, theirs)):
        row[f"{who} us"] = [None if math.isnan(value) else round(value, 1) for value in side]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=["lstm", "gru"], choices=["lstm", "gru"])
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", help="file to write the rows to")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no row is begun after so many")
    arguments = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    begun, rows = time.monotonic(), []
    print("| cell | type | H | N | rival | eager | replayed | prnn eager | replayed | ratio eager | ratio replayed |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for batch in arguments.batch:
        for hidden in arguments.hidden:
            for cell in arguments.cells:
                for dtype in (torch.float32, torch.bfloat16):
                    if time.monotonic() - begun < arguments.seconds:
                        rows.append(compare(cell.upper(), hidden, batch, dtype, arguments.steps, arguments.repeats))
    if arguments.json:
        write_rows(arguments.json, rows)


if __name__ == "__main__":
    main()

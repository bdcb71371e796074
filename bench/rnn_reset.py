"""Layers with reset=, as reinforcement learning trains them, beside TorchRL's Triton kernels, us per timestep.

    python bench/rnn_reset.py [--cells lstm gru] [--hidden 128 256 512 1024] [--batch 16 64 256 1024] [--seconds 80]

Forward / training step with the gradients of input and parameters, eager (the host's time counts) and replayed from a
CUDA graph. One layer, input size = hidden size, 1 % of the timesteps reset. float32 in tf32, and bfloat16: prnn's layer
and its data are of that type, TorchRL's data is float32 and its recurrent product bfloat16. Ratios are TorchRL's time
over prnn's. "torch loop" is a Python loop over torch.nn's cell, for where TorchRL is not installed.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

import prnn
from prnn.bench.rnn_gpu import per_step, time_calls, time_graph

try:
    from torchrl.modules.tensordict_module._rnn_triton import gru_triton, lstm_triton
except ImportError:
    lstm_triton = None

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
    run = lstm_triton if cell == "LSTM" else gru_triton
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


def measure(run: Run, parameters: list[torch.nn.Parameter], x: torch.Tensor, repeats: int) -> list[tuple[float, float]]:
    """Microseconds (forward, train): eager, replayed."""
    x.requires_grad_()
    dy = torch.randn_like(run(x))

    def forward() -> None:
        with torch.no_grad():
            run(x)

    def train() -> None:
        for tensor in (x, *parameters):
            tensor.grad = None
        run(x).backward(dy)

    calls = (forward, train)
    for call in calls * 2:
        call()
    return [tuple(timer(call, repeats) for call in calls) for timer in (time_calls, time_graph)]


def compare(cell: str, hidden: int, batch: int, dtype: torch.dtype, steps: int, repeats: int) -> None:
    reset = torch.rand(steps, batch, device="cuda") < RESETS
    x = torch.randn(steps, batch, hidden, device="cuda")
    rival, name = (torch_loop, "torch loop") if lstm_triton is None else (torchrl, "TorchRL")
    theirs_x = x.to(dtype) if lstm_triton is None else x.transpose(0, 1).contiguous()
    theirs = measure(*rival(cell, hidden, reset, dtype), theirs_x, repeats)
    mine = measure(*ours(cell, hidden, reset, dtype), x.to(dtype), repeats)
    ratios = [" / ".join(f"{a / b:.2f}" for a, b in zip(*pair, strict=True)) for pair in zip(theirs, mine, strict=True)]
    times = [per_step(pair, steps) for pair in (*theirs, *mine)]
    row: list[Any] = [cell, str(dtype).removeprefix("torch."), hidden, batch, name, *times, *ratios]
    print("| " + " | ".join(map(str, row)) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", default=["lstm", "gru"], choices=["lstm", "gru"])
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no row is begun after so many")
    arguments = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    begun = time.monotonic()
    print("| cell | type | H | N | rival | eager | replayed | prnn eager | replayed | ratio eager | ratio replayed |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for batch in arguments.batch:
        for hidden in arguments.hidden:
            for cell in arguments.cells:
                for dtype in (torch.float32, torch.bfloat16):
                    if time.monotonic() - begun < arguments.seconds:
                        compare(cell.upper(), hidden, batch, dtype, arguments.steps, arguments.repeats)


if __name__ == "__main__":
    main()

"""Layers as models have them, prnn.nn beside torch.nn: `prnn bench rnn --modules`.

LSTMs with a projection, stacks with dropout and with sequences of different lengths, layers too large for the resident
kernels, float64, large batches, float32 as torch ships it (tf32) and exact, and the cuDNN backend by itself.
Microseconds per timestep of 256, forward (inference) / training step, eager and replayed from a CUDA graph; ratios are
torch's time over prnn's. Both modules of a row are measured in one run, one after the other. Input size = hidden size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch.nn.utils.rnn import pack_padded_sequence

import prnn
from prnn.bench.timing import per_step, time_calls, time_graph

HALF, BFLOAT16, FLOAT, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
WARM_UP = 2


@dataclass(frozen=True)
class Case:
    cell: str
    hidden: int
    batch: int
    dtype: torch.dtype
    layers: int = 1
    projection: int = 0
    dropout: float = 0.0
    has_lengths: bool = False
    bidirectional: bool = False
    is_exact: bool = False  # float32 without tf32
    backend: str = "best"

    def __str__(self) -> str:
        size = f"{self.layers} x {self.hidden}" if self.layers > 1 else str(self.hidden)
        options = [
            f"-> {self.projection}" if self.projection else "",
            "both directions" if self.bidirectional else "",
            f"dropout {self.dropout}" if self.dropout else "",
            "lengths" if self.has_lengths else "",
            "exact" if self.is_exact else "",
        ]
        name = " ".join(option for option in (self.cell, size, *options) if option)
        return f"{name} | {str(self.dtype).removeprefix('torch.')} | {self.batch} | {self.backend}"

    def module(self, package: object, **options: str) -> torch.nn.Module:
        """In training mode, on the GPU."""
        made: torch.nn.Module = getattr(package, self.cell)(
            self.hidden,
            self.hidden,
            self.layers,
            dropout=self.dropout,
            bidirectional=self.bidirectional,
            device="cuda",
            dtype=self.dtype,
            **({"proj_size": self.projection} if self.projection else {}),
            **options,
        )
        return made

    def input(self, steps: int) -> torch.Tensor | torch.nn.utils.rnn.PackedSequence:
        x = torch.randn(steps, self.batch, self.hidden, device="cuda", dtype=self.dtype)
        if not self.has_lengths:
            return x
        last = max(self.batch - 1, 1)
        return pack_padded_sequence(x, [steps - steps // 2 * n // last for n in range(self.batch)])


def cases() -> Iterator[Case]:
    projected = Case("LSTM", 1024, 4, HALF, projection=512)
    large = replace(projected, hidden=2048, projection=640)
    for case, dtype, batch in product((projected, large), (HALF, BFLOAT16), (4, 16)):
        yield replace(case, dtype=dtype, batch=batch)
    for case, batches in ((replace(projected, layers=12), (1, 4, 8, 16)), (replace(large, layers=8), (4, 16))):
        yield from (replace(case, batch=batch) for batch in batches)
    for batch in (4, 16):
        yield from (Case("LSTM", hidden, batch, HALF, projection=hidden // 4) for hidden in (2560, 4096))
        yield from (replace(large, batch=batch, dtype=FLOAT, is_exact=is_exact) for is_exact in (False, True))
    for option in ({}, {"dropout": 0.1}, {"has_lengths": True}, {"dropout": 0.1, "has_lengths": True}):
        if len(option) == 1:
            yield from (replace(projected, layers=12, batch=batch, **option) for batch in (4, 16))
        yield from (Case("LSTM", 1024, batch, HALF, layers=5, **option) for batch in (4, 8, 32))
    yield from (Case("LSTM", 2560, batch, HALF) for batch in (4, 32))
    yield from (Case("GRU", 3072, batch, BFLOAT16) for batch in (4, 32))
    yield Case("LSTM", 2560, 16, HALF, layers=3, dropout=0.1)
    yield from (Case(cell, 512, 16, DOUBLE) for cell in ("LSTM", "GRU", "RNN"))
    yield Case("LSTM", 128, 16, DOUBLE)
    yield Case("LSTM", 512, 16, DOUBLE, layers=3, dropout=0.1, bidirectional=True)
    for cell, hidden in product(("LSTM", "GRU", "RNN"), (512, 1024)):
        yield from (Case(cell, hidden, batch, FLOAT) for batch in (16, 64, 128, 256, 512))
    for cell, (hidden, batches) in product(("LSTM", "GRU"), ((512, (1024,)), (1024, (256, 512, 1024)))):
        yield from (Case(cell, hidden, batch, BFLOAT16) for batch in batches)
    for hidden, batches in ((128, (128, 256, 512, 1024)), (256, (512, 1024)), (512, (512, 1024)), (1024, (256, 512))):
        yield from (Case("LSTM", hidden, batch, FLOAT, is_exact=True) for batch in batches)
    for cell, dtype in product(("LSTM", "GRU"), (HALF, BFLOAT16, FLOAT)):
        yield from (Case(cell, hidden, 8, dtype, backend="cudnn") for hidden in (128, 512, 1024))
    yield Case("LSTM", 1024, 8, BFLOAT16, layers=5, backend="cudnn")
    yield Case("GRU", 512, 8, HALF, layers=3, bidirectional=True, has_lengths=True, backend="cudnn")


def steps_of_training(module: torch.nn.Module, x: object) -> tuple[Callable[[], None], Callable[[], None]]:
    """Inference and a training step with the gradients of input and parameters."""
    data = x if isinstance(x, torch.Tensor) else x.data
    data.requires_grad_()
    output = module(x)[0]
    dy = torch.randn_like(output if isinstance(output, torch.Tensor) else output.data)

    def forward() -> None:
        with torch.no_grad():
            module(x)

    def train() -> None:
        for tensor in (data, *module.parameters()):
            tensor.grad = None
        output = module(x)[0]
        (output if isinstance(output, torch.Tensor) else output.data).backward(dy)

    return forward, train


def measure(module: torch.nn.Module, x: object, repeats: int) -> list[tuple[float, float]]:
    """Microseconds (forward, train): eager, replayed."""
    calls = steps_of_training(module, x)
    calls = (_in_evaluation(module, calls[0]), calls[1])
    for call in calls * WARM_UP:
        call()
    return [tuple(time(call, repeats) for call in calls) for time in (time_calls, time_graph)]


def _in_evaluation(module: torch.nn.Module, call: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        module.eval()
        call()
        module.train()

    return run


def ratio(theirs: tuple[float, float], mine: tuple[float, float]) -> str:
    return " / ".join(f"{a / b:.2f}" for a, b in zip(theirs, mine, strict=True))


def compare(words: list[str], steps: int, repeats: int) -> None:
    """Prints the table, or its rows that have all the words."""
    print(
        "| layer | type | N | backend | torch eager | replayed | prnn eager | replayed | ratio eager | ratio replayed |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    slower = []
    for case in cases():
        if not all(word in str(case) for word in words):
            continue
        torch.backends.cudnn.allow_tf32 = not case.is_exact
        torch.manual_seed(0)
        x = case.input(steps)
        try:
            theirs = measure(case.module(torch.nn), x, repeats)
            mine = measure(case.module(prnn.nn, backend=case.backend), x, repeats)
        except (prnn.NotSupportedError, RuntimeError) as error:
            print(f"| {case} | {str(error).splitlines()[0]} | | | | | |", flush=True)
            continue
        columns = [per_step(times, steps) for times in (*theirs, *mine)]
        columns += [ratio(a, b) for a, b in zip(theirs, mine, strict=True)]
        print(f"| {case} | {' | '.join(columns)} |", flush=True)
        if any(b > 1.03 * a for pair in zip(theirs, mine, strict=True) for a, b in zip(*pair, strict=True)):
            slower.append(str(case))
    print(f"\nRows where prnn is more than 3 % slower in any column: {len(slower)}.")
    for row in slower:
        print(f"- {row}")

"""The losses of prnn.compat beside the packages that they stand in for, on a GPU (options:
command_lines.compat_gpu)."""

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from prnn.bench import command_lines
from prnn.bench.json_rows import write_rows
from prnn.bench.losses_gpu import attempt
from prnn.bench.options import require_gpu

RNNT_SHAPES = [(16, 150, 40, 28), (64, 150, 20, 5000), (16, 1500, 300, 50)]
CTC_SHAPES = [(16, 150, 40, 28), (32, 500, 80, 500), (32, 500, 80, 5000)]
DURATIONS, BIG_BLANKS = [0, 1, 2, 3, 4], [2, 4, 8]
Loss = Callable[[Any, torch.Tensor], torch.Tensor]  # of a package, and of activations


def rnnt(n: int, t: int, u: int, v: int) -> Iterator[tuple[str, str, torch.Tensor, Loss]]:
    """Name, the package's module, activations, and the call."""
    x = torch.randn(n, t, u + 1, v, device="cuda")
    y = torch.randint(1, v - len(DURATIONS) - 1, (n, u), device="cuda", dtype=torch.int32)
    frames, symbols = (torch.full((n,), length, device="cuda", dtype=torch.int32) for length in (t, u))
    batch = (y, frames, symbols)
    long = [tensor.long() for tensor in batch]
    yield "warprnnt_pytorch", "warprnnt_pytorch", x, lambda m, x: m.rnnt_loss(x, *batch, reduction="sum")

    def optimized(m: Any, x: torch.Tensor) -> torch.Tensor:
        return m.transducer_loss(x * 1, *batch, blank=0, reduction="sum", from_log_softmax=False)  # writes over it

    yield "optimized_transducer", "optimized_transducer", x.flatten(0, 2), optimized

    speechbrain = "speechbrain.nnet.loss.transducer_loss"
    yield "speechbrain", speechbrain, x, lambda m, x: m.TransducerLoss(reduction="mean")(x, *batch)
    numba = "nemo.collections.asr.parts.numba.rnnt_loss.rnnt_pytorch"
    yield "NeMo, RNNTLossNumba", numba, x, lambda m, x: m.RNNTLossNumba(reduction="sum")(x, *long)
    tdt = dict(blank=v - len(DURATIONS) - 1, durations=DURATIONS, reduction="sum", sigma=0.05)
    yield "NeMo, TDTLossNumba", numba, x, lambda m, x: m.TDTLossNumba(**tdt)(x, *long)
    big = dict(blank=v - 1, big_blank_durations=BIG_BLANKS, reduction="sum", sigma=0.05)
    yield "NeMo, MultiblankRNNTLossNumba", numba, x, lambda m, x: m.MultiblankRNNTLossNumba(**big)(x, *long)


def ctc(n: int, t: int, u: int, v: int) -> Iterator[tuple[str, str, torch.Tensor, Loss]]:
    x = torch.randn(t, n, v, device="cuda")
    y = torch.randint(1, v, (n * u,), dtype=torch.int32)  # on the CPU, as warp-ctc wants them
    frames, symbols = (torch.full((n,), length, dtype=torch.int32) for length in (t, u))
    yield "warpctc_pytorch", "warpctc_pytorch", x, lambda m, x: m.CTCLoss()(x, y, frames, symbols)


def gradient(loss: Loss, package: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    loss(package, x).sum().backward()
    return x.grad


def measure(name: str, module: str, shape: tuple[int, ...], x: torch.Tensor, loss: Loss) -> dict[str, Any] | None:
    try:
        theirs = importlib.import_module(module)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    ours = importlib.import_module(f"prnn.compat.{'nemo' if 'NeMo' in name else name}")
    row: dict[str, Any] = {"package": name, **dict(zip("NTUV", shape, strict=True))}
    for key, package in (("prnn", ours), ("theirs", theirs)):
        found = attempt(f"{name}, {key}", lambda package=package: gradient(loss, package, x))
        row[key] = found and {"ms": round(found[0], 4), "MiB": round(found[1], 1)}
    if row["prnn"] and row["theirs"]:
        row["ratio"] = round(row["theirs"]["ms"] / row["prnn"]["ms"], 2)
        right = gradient(loss, theirs, x)
        row["difference"] = ((gradient(loss, ours, x) - right).abs().max() / right.abs().max()).item()
    return row


def main() -> None:
    parser = command_lines.compat_gpu()
    arguments = parser.parse_args()
    require_gpu(parser)
    rows = []
    for shapes, calls in ((RNNT_SHAPES, rnnt), (CTC_SHAPES, ctc)):
        for shape in shapes:
            torch.manual_seed(0)
            for name, module, x, loss in calls(*shape):
                if name.startswith(tuple(arguments.only)) and (row := measure(name, module, shape, x, loss)):
                    print(row, flush=True)
                    rows.append(row)
    if arguments.json:
        write_rows(arguments.json, rows)

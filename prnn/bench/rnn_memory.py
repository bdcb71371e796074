"""Peak memory of a training step of torch.nn's and prnn.nn's recurrent layers (options:
command_lines.rnn_memory_cpu and rnn_memory_gpu)."""

import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import prnn
from prnn.bench import command_lines
from prnn.bench.json_rows import processor, write_rows
from prnn.bench.options import require_gpu

MIB, MB = 1 << 20, 10**6
PACKAGES = {"torch": torch.nn, "prnn": prnn.nn}


@dataclass(frozen=True)
class Case:
    cell: str
    hidden: int
    layers: int
    type: str
    bidirectional: bool = False
    dropout: float = 0.0
    projection: int = 0
    has_lengths: bool = False
    frozen: int = 0  # the lowest layers, that train nothing

    def __str__(self) -> str:
        options = [
            f"-> {self.projection}" if self.projection else "",
            "both directions" if self.bidirectional else "",
            f"dropout {self.dropout}" if self.dropout else "",
            "lengths" if self.has_lengths else "",
            f"{self.frozen} frozen" if self.frozen else "",
        ]
        name = " ".join(option for option in (self.cell, f"{self.layers} x {self.hidden}", *options) if option)
        return f"{name} | {self.type}"

    def module(self, package: object, device: str = "cuda", **options: object) -> torch.nn.Module:
        if self.projection:
            options["proj_size"] = self.projection
        made: torch.nn.Module = getattr(package, self.cell)(
            self.hidden,
            self.hidden,
            self.layers,
            bidirectional=self.bidirectional,
            dropout=self.dropout,
            device=device,
            dtype=getattr(torch, self.type),
            **options,
        )
        for name, parameter in made.named_parameters():
            parameter.requires_grad_(int(name.split("_l")[1].split("_")[0]) >= self.frozen)
        return made


STACK = Case("LSTM", 1024, 5, "bfloat16")
CASES: list[tuple[Case, tuple[int, ...]]] = [
    *((Case(cell, 1024, 1, "bfloat16"), (1, 4, 16, 64, 256)) for cell in ("LSTM", "GRU", "RNN")),
    *((Case(cell, 256, 1, "bfloat16"), (1, 64, 1024)) for cell in ("LSTM", "GRU", "RNN")),
    *((Case(cell, 512, 1, "float32"), (1, 16, 128, 512)) for cell in ("LSTM", "GRU", "RNN")),
    *((Case(cell, 1000, 1, "float16"), (1, 16)) for cell in ("LSTM", "GRU", "RNN")),
    (Case("LSTM", 1024, 1, "float32"), (16,)),
    *((Case(cell, 512, 3, "float32"), (1, 16, 64)) for cell in ("LSTM", "GRU", "RNN")),
    *((Case(cell, 512, 5, "bfloat16"), (1, 8, 32, 64)) for cell in ("LSTM", "GRU", "RNN")),
    (STACK, (1, 4, 8, 16, 32, 64)),
    (Case("GRU", 1024, 5, "bfloat16"), (1, 4, 32)),
    (Case("LSTM", 2048, 3, "float16"), (4, 32)),
    *((replace(STACK, layers=layers, dropout=0.1), (4, 32)) for layers in (2, 5)),
    *((replace(STACK, layers=layers, bidirectional=True), (4, 32)) for layers in (1, 3)),
    *((replace(STACK, layers=layers, has_lengths=True), (4, 32)) for layers in (1, 5)),
    *((replace(STACK, layers=layers, projection=512), (4, 32)) for layers in (1, 5)),
    *((replace(STACK, layers=layers, type="float16", projection=512), (1, 4, 8)) for layers in (3, 5, 12)),
    (replace(STACK, hidden=2048, projection=640), (16,)),
]


# A layer, sequences and timesteps.
CPU_CASES = [
    *((Case("LSTM", 256, layers, "float32"), 32, 600) for layers in (1, 2, 4, 6)),
    *((Case(cell, 256, layers, "float32"), 32, 600) for cell in ("GRU", "RNN") for layers in (1, 4)),
    (Case("LSTM", 256, 4, "float32", bidirectional=True), 32, 600),
    (Case("LSTM", 256, 4, "float32", dropout=0.1), 32, 600),
    (Case("LSTM", 256, 4, "float32", projection=128), 32, 600),
    *((Case(cell, 256, 4, "float32", frozen=3), 32, 600) for cell in ("LSTM", "GRU", "RNN")),
    *((Case("LSTM", 256, layers, "bfloat16"), 4, 1600) for layers in (1, 2, 4)),
    *((Case(cell, 256, layers, "bfloat16"), 32, 600) for cell in ("GRU", "RNN") for layers in (1, 4)),
]


def peak(module: torch.nn.Module, case: Case, batch: int, steps: int) -> float:
    """MiB of the second step."""
    padded = torch.randn(steps, batch, case.hidden, device="cuda", dtype=getattr(torch, case.type))
    x: torch.Tensor | PackedSequence = padded
    if case.has_lengths:
        lengths = [steps - steps // 2 * n // max(batch - 1, 1) for n in range(batch)]
        x = pack_padded_sequence(padded, lengths)
    data = (x.data if isinstance(x, PackedSequence) else x).requires_grad_()
    width = (1 + case.bidirectional) * (case.projection or case.hidden)
    dy = torch.randn(*data.shape[:-1], width, device="cuda", dtype=data.dtype)
    for _ in range(2):
        for parameter in (data, *module.parameters()):
            parameter.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        output = module(x)[0]
        (output.data if case.has_lengths else output).backward(dy)
        del output
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / MIB


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def peak_on_cpu(package: str, case: Case, batch: int, steps: int) -> float:
    """MB, of this process."""
    module = case.module(PACKAGES[package], "cpu")
    dtype = getattr(torch, case.type)
    x = torch.randn(steps, batch, case.hidden).to(dtype).requires_grad_(case.frozen == 0)
    dy = torch.randn(steps, batch, (1 + case.bidirectional) * (case.projection or case.hidden)).to(dtype)
    module(x[:1])[0].backward(dy[:1])
    for parameter in (x, *module.parameters()):
        parameter.grad = None
    before = resident()
    module(x)[0].backward(dy)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / MB


Row = dict[str, object]


def row_of(case: Case, batch: int, steps: int, torchs: float, prnns: float) -> Row:
    return {**asdict(case), "batch": batch, "steps": steps, "torch": round(torchs, 1), "prnn": round(prnns, 1)}


def measure_on_cpu() -> list[Row]:
    print("| layer | type | N | T | torch.nn | prnn.nn | ratio |\n|---|---|---|---|---|---|---|")
    rows = []
    for index, (case, batch, steps) in enumerate(CPU_CASES):
        command = [sys.executable, "-m", "prnn", "bench", "--accelerator", "cpu", "memory", "--one"]
        torchs, prnns = (
            float(subprocess.run([*command, package, str(index)], check=True, capture_output=True, text=True).stdout)
            for package in PACKAGES
        )
        print(f"| {case} | {batch} | {steps} | {torchs:.0f} | {prnns:.0f} | {prnns / torchs:.2f} |", flush=True)
        rows.append(row_of(case, batch, steps, torchs, prnns))
    return rows


def measure_on_gpu(steps: int, backend: str) -> list[Row]:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, T = {steps}\n")
    print("| layer | type | N | torch.nn | prnn.nn | ratio |\n|---|---|---|---|---|---|")
    rows = []
    for case, batch in ((case, batch) for case, batches in CASES for batch in batches):
        torchs, prnns = (
            peak(case.module(package, **options), case, batch, steps)
            for package, options in ((torch.nn, {}), (prnn.nn, {"backend": backend}))
        )
        print(f"| {case} | {batch} | {torchs:.0f} | {prnns:.0f} | {prnns / torchs:.2f} |", flush=True)
        rows.append(row_of(case, batch, steps, torchs, prnns))
    return rows


def main(argv: Sequence[str], device: str) -> None:
    """Measures on "cpu" or "gpu"."""
    parser = command_lines.rnn_memory_gpu() if device == "gpu" else command_lines.rnn_memory_cpu()
    arguments = parser.parse_args(argv)
    if device == "gpu":
        require_gpu(parser)
    elif arguments.one is not None:
        package, index = arguments.one
        print(peak_on_cpu(package, *CPU_CASES[int(index)]))
        return
    rows = measure_on_gpu(arguments.steps, arguments.backend) if device == "gpu" else measure_on_cpu()
    if arguments.json:
        write_rows(arguments.json, rows, None if device == "gpu" else processor())

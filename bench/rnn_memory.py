"""Peak memory of a training step of torch.nn's and prnn.nn's recurrent layers: `python bench/rnn_memory.py`.

MiB at the peak of forward and backward with the gradients of input and parameters, in torch's allocator: input,
parameters, their gradients and the output's gradient included, cuDNN's and cuBLAS's own memory not.
"""

import argparse
from dataclasses import dataclass, replace

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import prnn

MIB = 1 << 20


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--backend", choices=["persistent", "cudnn", "best"], default="best")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, T = {arguments.steps}\n")
    print("| layer | type | N | torch.nn | prnn.nn | ratio |")
    print("|---|---|---|---|---|---|")
    for case, batch in ((case, batch) for case, batches in CASES for batch in batches):
        peaks = []
        for package, options in ((torch.nn, {}), (prnn.nn, {"backend": arguments.backend})):
            peaks.append(peak(case.module(package, **options), case, batch, arguments.steps))
        columns = (batch, f"{peaks[0]:.0f}", f"{peaks[1]:.0f}", f"{peaks[1] / peaks[0]:.2f}")
        print(f"| {case} | {' | '.join(map(str, columns))} |", flush=True)


if __name__ == "__main__":
    main()

"""Peak memory of a training step of torch.nn's and prnn.nn's recurrent layers: `python bench/rnn_memory.py`.

MiB at the peak of forward and backward with the gradients of input and parameters, in torch's allocator: input,
parameters, their gradients and the output's gradient included, cuDNN's and cuBLAS's own memory not.
"""

import argparse

import torch

import prnn

MIB = 1 << 20
# (cell, hidden size, layers, type), batches
CASES = (
    (("LSTM", 1024, 1, "bfloat16"), (1, 4, 16, 64)),
    (("LSTM", 1024, 5, "bfloat16"), (4, 32)),
    (("LSTM", 256, 1, "bfloat16"), (64, 1024)),
    (("LSTM", 512, 1, "float32"), (16, 512)),
    (("LSTM", 1024, 1, "float32"), (16,)),
    (("LSTM", 512, 3, "float32"), (16,)),
    (("GRU", 1024, 1, "bfloat16"), (1, 16, 64)),
    (("GRU", 512, 3, "float32"), (16,)),
    (("RNN", 1024, 1, "bfloat16"), (1, 16, 64)),
    (("RNN", 512, 3, "float32"), (16,)),
)


def peak(module: torch.nn.Module, x: torch.Tensor, dy: torch.Tensor) -> float:
    """MiB of the second step."""
    for _ in range(2):
        for parameter in (x, *module.parameters()):
            parameter.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        module(x)[0].backward(dy)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--bidirectional", action="store_true")
    parser.add_argument("--backend", choices=["persistent", "cudnn", "best"], default="best")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, T = {arguments.steps}\n")
    print("| cell | H | layers | type | N | torch.nn | prnn.nn | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for (cell, hidden, layers, dtype), batches in CASES:
        for batch in batches:
            new = dict(device="cuda", dtype=getattr(torch, dtype))
            peaks = []
            for library in (torch.nn, prnn.nn):
                extra = {"backend": arguments.backend} if library is prnn.nn else {}
                sizes = dict(num_layers=layers, bidirectional=arguments.bidirectional)
                module = getattr(library, cell)(hidden, hidden, **sizes, **new, **extra)
                x = torch.randn(arguments.steps, batch, hidden, **new, requires_grad=True)
                dy = torch.randn(arguments.steps, batch, (1 + arguments.bidirectional) * hidden, **new)
                peaks.append(peak(module, x, dy))
                del module, x, dy
            ratio = peaks[1] / peaks[0]
            columns = (cell, hidden, layers, dtype, batch, f"{peaks[0]:.0f}", f"{peaks[1]:.0f}", f"{ratio:.2f}")
            print(f"| {' | '.join(map(str, columns))} |", flush=True)


if __name__ == "__main__":
    main()

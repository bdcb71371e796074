"""Peak memory of a training step of torch.nn's and prnn.nn's recurrent layers on the CPU:
`python bench/rnn_memory_cpu.py`.

MB by which a process's largest resident set, after forward and backward with the gradients of input and parameters,
exceeds what was resident before, where the layer has run on one timestep and input and the output's gradient lie in
memory. Each number is from a process of its own.
"""

import argparse
import resource
import subprocess
import sys

import torch
from rnn_memory import Case

import prnn

MB = 10**6
PACKAGES = {"torch": torch.nn, "prnn": prnn.nn}

# A layer, sequences and timesteps.
POINTS = [
    *((Case("LSTM", 256, layers, "float32"), 32, 600) for layers in (1, 2, 4, 6)),
    *((Case(cell, 256, layers, "float32"), 32, 600) for cell in ("GRU", "RNN") for layers in (1, 4)),
    (Case("LSTM", 256, 4, "float32", bidirectional=True), 32, 600),
    (Case("LSTM", 256, 4, "float32", dropout=0.1), 32, 600),
    (Case("LSTM", 256, 4, "float32", projection=128), 32, 600),
    *((Case(cell, 256, 4, "float32", frozen=3), 32, 600) for cell in ("LSTM", "GRU", "RNN")),
    *((Case("LSTM", 256, layers, "bfloat16"), 4, 1600) for layers in (1, 2, 4)),
    *((Case(cell, 256, layers, "bfloat16"), 32, 600) for cell in ("GRU", "RNN") for layers in (1, 4)),
]


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def peak(package: str, case: Case, batch: int, steps: int) -> float:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, metavar=("PACKAGE", "POINT"), help="one number, in this process")
    arguments = parser.parse_args()
    if arguments.one is not None:
        package, index = arguments.one
        print(peak(package, *POINTS[int(index)]))
        return
    print("| layer | type | N | T | torch.nn | prnn.nn | ratio |")
    print("|---|---|---|---|---|---|---|")
    for index, (case, batch, steps) in enumerate(POINTS):
        command = [sys.executable, __file__, "--one"]
        torchs, prnns = (
            float(subprocess.run([*command, package, str(index)], check=True, capture_output=True, text=True).stdout)
            for package in PACKAGES
        )
        print(f"| {case} | {batch} | {steps} | {torchs:.0f} | {prnns:.0f} | {prnns / torchs:.2f} |", flush=True)


if __name__ == "__main__":
    main()

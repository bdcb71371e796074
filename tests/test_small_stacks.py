"""Layers in threads whose stacks are small, as those of other languages' runtimes and of musl are."""

import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from reference import rnn as reference
from rnn_case import DATA_TYPES, RnnCase
from test_rnn_cuda import MODES

KILOBYTES = 192  # docs/c_api.md; 40 of them are for Python's own calls
SHAPES = [  # input size, hidden size, projection, sequences of each timestep
    (24, 500, 0, [33, 9, 1]),
    (24, 260, 70, [33, 9, 1]),
    (500, 500, 0, [40]),
]


def cases() -> list[RnnCase]:
    found = []
    for (input, hidden, projection, sizes), mode, dtype in itertools.product(SHAPES, MODES.values(), DATA_TYPES):
        if projection == 0 or mode == MODES["lstm"]:
            found.append(RnnCase(reference.Stack(mode, input, hidden, projection=projection), sizes, dtype))
    return found


@pytest.mark.parametrize("isa", ["portable", "amx"])
def test_a_training_step_takes_little_of_a_stack(isa: str) -> None:
    """In the calling thread and in OpenMP's."""
    sizes = {"OMP_NUM_THREADS": "2", "OMP_STACKSIZE": f"{KILOBYTES}k", "PRNN_CPU_ISA": isa}
    sizes["PYTHONPATH"] = str(Path(__file__).parent.parent)
    done = subprocess.run([sys.executable, __file__], env=os.environ | sizes, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{len(cases())} layers\n"), done.stderr


def main() -> None:
    torch.manual_seed(0)
    all_cases = cases()
    trained = []

    def train() -> None:
        for case in all_cases:
            case.train()
            trained.append(case)

    threading.stack_size(KILOBYTES * 1024)
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    print(len(trained), "layers")


if __name__ == "__main__":
    main()

"""A process that is forked after its parent used several threads: it computes with one, where OpenMP would wait for
threads that exist in the parent alone. The calls are such as have no parallel operation of torch's, which hangs."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from c_program import output_of

import prnn

SECONDS = 60  # after which a child counts as one that hangs, on a busy machine, too


def layer() -> Callable[[], Any]:
    module, x = prnn.nn.GRU(128, 128), torch.randn(8, 16, 128, requires_grad=True)

    def call() -> torch.Tensor:
        (gradient,) = torch.autograd.grad(module(x)[0].sum(), x)
        return gradient

    return call


LENGTHS = torch.full((6,), 60), torch.full((6,), 10)
TARGETS = torch.ones(6, 10, dtype=torch.int64)


def ctc() -> Callable[[], Any]:
    x = torch.randn(60, 6, 400, requires_grad=True)
    return lambda: torch.autograd.grad(prnn.ctc_loss(x, TARGETS, *LENGTHS), x)[0]


def rnnt() -> Callable[[], Any]:
    x = torch.randn(6, 60, 11, 40, requires_grad=True)
    return lambda: torch.autograd.grad(prnn.rnnt_loss(x, TARGETS, *LENGTHS, blank=0), x)[0]


def alignment() -> Callable[[], Any]:
    x = torch.randn(6, 60, 40)
    return lambda: prnn.forced_align(x, TARGETS, *LENGTHS, from_logits=False).scores


def recursion() -> Callable[[], Any]:
    px, py = torch.randn(6, 10, 61), torch.randn(6, 11, 60)
    return lambda: prnn.mutual_information_recursion(px, py)


CALLS = [layer, ctc, rnnt, alignment, recursion]


def compute(call: Callable[[], Any], results: Connection) -> None:
    results.send(call().numpy())


def main() -> None:
    """Prints the name of each call whose results in a child are those of the parent."""
    torch.manual_seed(0)
    torch.set_num_threads(2)
    fork = multiprocessing.get_context("fork")
    for make in CALLS:
        call = make()
        expected = call()
        results, sender = fork.Pipe(duplex=False)
        child = fork.Process(target=compute, args=(call, sender))
        child.start()
        is_there = results.poll(SECONDS)
        if is_there:
            torch.testing.assert_close(torch.from_numpy(results.recv()), expected)
            print(make.__name__)
        child.kill()
        if not is_there:
            break


def test_a_forked_process_computes_with_one_thread() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(Path(prnn.__file__).parent.parent)}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [make.__name__ for make in CALLS], done.stderr


def test_a_child_makes_objects_that_other_threads_of_its_parent_were_making(tmp_path: Path) -> None:
    source = Path(__file__).parent / "c/fork_beside_threads.cc"
    assert output_of(source, tmp_path, "c++") == "400\n"


if __name__ == "__main__":
    main()

"""torch's switches for float32 products, as prnn reads them: every way to set them, in a process of its own because
torch keeps what the newer ones were set to apart from the older ones."""

import itertools

import forked
import pytest
import torch

NEWER = hasattr(torch.backends.cudnn, "rnn")  # torch 2.9
VALUES = ("none", "ieee", "tf32")

PROGRAM = """
import itertools, torch
from prnn._ops._precision import allows_tf32_matmul, allows_tf32_rnn
backends = torch.backends
"""


def run(program: str) -> str:
    done = forked.run("-c", PROGRAM + program)
    assert done.returncode == 0, done.stderr
    return done.stdout


def allowed(*statements: str) -> tuple[bool, bool]:
    matmul, rnn = run("\n".join([*statements, "print(allows_tf32_matmul(), allows_tf32_rnn())"])).split()
    return matmul == "True", rnn == "True"


def test_by_default_recurrent_layers_alone_may_use_tf32() -> None:
    assert run("print(allows_tf32_matmul(), allows_tf32_rnn())").split() == ["False", "True"]


def test_older_switches() -> None:
    """torch.set_float32_matmul_precision is an older name of matmul.allow_tf32."""
    program = """
for matmul, cudnn in itertools.product((False, True), repeat=2):
    backends.cuda.matmul.allow_tf32 = matmul
    backends.cudnn.allow_tf32 = cudnn
    print(allows_tf32_matmul() == matmul, allows_tf32_rnn() == cudnn)
for precision in ("high", "highest", "medium"):
    torch.set_float32_matmul_precision(precision)
    print(allows_tf32_matmul() == (precision != "highest"), allows_tf32_rnn() == cudnn)
"""
    assert run(program).split() == ["True"] * 14


def test_compiled_code_reads_the_switch_of_recurrent_layers() -> None:
    program = """
for cudnn in (False, True):
    backends.cudnn.allow_tf32 = cudnn
    torch.compiler.reset()
    run = torch.compile(lambda x: x + allows_tf32_rnn(), fullgraph=True, backend="eager")
    print(run(torch.zeros(1)).item() == cudnn)
"""
    assert run(program).split() == ["True", "True"]


@pytest.mark.skipif(not NEWER, reason="torch has had fp32_precision since 2.9")
def test_newer_switches_in_every_combination() -> None:
    """Each of the four in each of its values; one at "none" has that of the next above it. Of matrix products, too, the
    next above is cuDNN's: torch has one switch for all that CUDA's libraries do, and names it so."""
    program = """
for all, matmul, cudnn, rnn in itertools.product(("none", "ieee", "tf32"), repeat=4):
    backends.fp32_precision = all
    backends.cuda.matmul.fp32_precision = matmul
    backends.cudnn.fp32_precision = cudnn
    backends.cudnn.rnn.fp32_precision = rnn
    print(all, matmul, cudnn, rnn, allows_tf32_matmul(), allows_tf32_rnn())
"""
    lines = run(program).splitlines()
    assert [tuple(line.split()[:4]) for line in lines] == list(itertools.product(VALUES, repeat=4))

    def effective(*values: str) -> str:
        return next((value for value in values if value != "none"), "none")

    for line in lines:
        everything, matmul, cudnn, rnn, *answers = line.split()
        expected = effective(matmul, cudnn, everything) == "tf32", effective(rnn, cudnn, everything) == "tf32"
        assert answers == [str(answer) for answer in expected], line


@pytest.mark.skipif(not NEWER, reason="torch has had fp32_precision since 2.9")
def test_older_and_newer_switches_together() -> None:
    """The one that is set last counts."""
    program = """
for old, new, new_first in itertools.product((False, True), ("none", "ieee", "tf32"), (False, True)):
    for set_new in (new_first, not new_first):
        if set_new:
            backends.cuda.matmul.fp32_precision = backends.cudnn.rnn.fp32_precision = new
        else:
            backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = old
    expected = old if new_first else new == "tf32"
    print(allows_tf32_matmul() == expected, allows_tf32_rnn() == expected)
"""
    assert run(program).split() == ["True"] * 24

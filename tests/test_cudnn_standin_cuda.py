"""An unmodified PyTorch program with and without the stand-in, on a GPU and in front of cuDNN itself."""

import pathlib
import re
import subprocess
import sys
from typing import Any

import cudnn_threads_program
import pytest
import torch
from cudnn_torch_program import CASES, make_case
from standin_case import ROOT, plain

from prnn.commands.run import child_environment

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not torch.backends.cudnn.is_available(), reason="no GPU with cuDNN"
)
# Tolerances relative to a result's largest element: rounding of sums in the types.
ROUNDING = {"float32": 1e-5, "tf32": 5e-3, "float16": 5e-3, "bfloat16": 4e-2}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results by "cpu", "cuDNN" and "prnn", and what the stand-in said at the end."""
    folder: pathlib.Path = tmp_path_factory.mktemp("torch")
    preload = child_environment()["LD_PRELOAD"]
    ways = {
        "cpu": ("cpu", plain()),
        "cuDNN": ("cuda", plain()),
        "prnn": ("cuda", plain(LD_PRELOAD=preload, PRNN_CUDNN_LOG="1")),
    }
    found: dict[str, Any] = {}
    for name, (device, environment) in ways.items():
        command = [sys.executable, str(ROOT / "tests/cudnn_torch_program.py"), device, str(folder / name)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        found[name] = torch.load(folder / name)
    found["log"] = done.stderr
    return found


def test_prnn_served_it(program: dict[str, Any]) -> None:
    # cuDNN is left the layers that it was measured to be faster at, and the log has the sixty configurations that take
    # longest.
    assert program["log"].count(": taken: ") > 20
    assert not re.search(r"prnn: cudnn\w+: ", program["log"])  # a call that failed
    assert "arguments that cuDNN is left to refuse" not in program["log"]


@pytest.mark.parametrize("number", range(CASES))
def test_results(program: dict[str, Any], number: int) -> None:
    right, cudnn, ours = (program[name][str(number)] for name in ("cpu", "cuDNN", "prnn"))
    for name, value in right.items():
        scale = value.abs().max().clamp_min(1e-3)
        by_cudnn, error = ((found[name] - value).abs().max() / scale for found in (cudnn, ours))
        assert error <= 3 * by_cudnn + ROUNDING[make_case(number)["type"]], f"{name} of {make_case(number)}"


def test_dropout(program: dict[str, Any]) -> None:
    found = program["prnn"]["masks"]
    for call in range(2):
        torch.testing.assert_close(found[f"dx {call}"], found[f"y / x {call}"])  # the forward call's mask
        kept = (found[f"dx {call}"] > 0).double().mean()
        assert abs(kept - 0.7) < 0.01
        torch.testing.assert_close(found[f"dx {call}"].max(), torch.tensor(1 / 0.7), rtol=1e-3, atol=0)
    assert (found["dx 0"] != found["dx 1"]).any()


def test_graphs(program: dict[str, Any]) -> None:
    found = program["prnn"]["graphs"]
    for name, value in found.items():
        if name.startswith("graph"):
            assert torch.equal(value, found[name.replace("graph", "eager")])


def test_threads_and_streams(program: dict[str, Any]) -> None:
    found = program["prnn"]["threads"]
    assert len(found["at once"]) == len(found["in turn"]) > 0
    for at_once, in_turn in zip(found["at once"], found["in turn"], strict=True):
        torch.testing.assert_close(at_once, in_turn)


def test_threads_that_call_it_themselves() -> None:
    """Every call of a training step, not only the forward ones, as autograd's backward calls come from one thread."""
    command = [sys.executable, cudnn_threads_program.__file__, child_environment()["LD_PRELOAD"]]
    done = subprocess.run(command, capture_output=True, text=True, env=plain(PRNN_CUDNN_LOG="1"))
    assert done.returncode == 0, done.stderr
    layers, steps = len(cudnn_threads_program.LAYERS), cudnn_threads_program.STEPS
    assert done.stdout.splitlines() == [f"layer {number}: {steps} of {steps}" for number in range(layers)]
    assert (done.stderr.count(": taken: "), done.stderr.count(": forwarded: ")) == (layers, 0)

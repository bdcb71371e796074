"""The C API where host memory runs out: ALLOC_FAILED, no output written, and the next call works."""

import os
import pathlib
import subprocess
import sys

import capi
import pytest

TESTS = pathlib.Path(__file__).resolve().parent

# Functions of a GPU alone, or without a status.
ELSEWHERE = {
    *("Create", "BorrowHandle", "DescribeGPU", "GetVersion", "GetErrorString", "GetLastErrorMessage", "GetGPUName"),
    *(f"Joint{loss}Loss{part}" for loss in ("RNNT", "TDT") for part in ("", "Forward", "Backward")),
    *(f"GetJoint{loss}Loss{what}Size" for loss in ("RNNT", "TDT") for what in ("Workspace", "Reserve")),
    *(f"Init{loss}LossOptions" for loss in ("CTC", "RNNT", "DurationRNNT", "JointRNNT", "JointTDT")),
    *("GetStream", "InitTransducerModel", "InitStreamLayers", "GetRNNCanonicalLength"),
}


@pytest.mark.skipif("sanitizers" in os.environ.get("PRNN_SCONS_OPTIONS", ""), reason="a sanitizer has an operator new")
def test_every_allocation_of_every_call_may_fail(tmp_path: pathlib.Path) -> None:
    """Includes those of worker threads: there is no exception that could leave a parallel region."""
    hook = tmp_path / "failing_new.so"
    compile_ = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", hook, TESTS / "c/failing_new.cc"]
    subprocess.run(list(map(str, compile_)), check=True)
    environment = {**os.environ, "LD_PRELOAD": str(hook), "OMP_NUM_THREADS": "2"}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    parts = ["layers", "around", "objects", "losses", "layer_norm", "search", "streams", "copies", "prepared"]
    command = [sys.executable, str(TESTS / "failing_allocations.py"), *parts]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    *lines, called = done.stdout.splitlines()
    assert {name.removeprefix("prnn") for name in capi.FUNCTIONS} - set(called.split()[1:]) == ELSEWHERE
    of_layers = [int(line.split()[-1]) for line in lines if line.startswith(("RNNForward", "RNNBackward"))]
    assert min(of_layers) > 10, f"layers allocate, or the hook is not called: {of_layers}"

"""The order of matrix products on several streams of one handle, without a GPU: compiled against a fake runtime and a
fake cuBLAS."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ["src/core/cuda/cublas.cc", "src/core/enums.cc", "src/core/status.cc", "tests/c/cublas_calls.cc"]
RUNTIME = """#pragma once
#include <cstddef>
using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorUnknown = 999 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaMallocBytes(void**, size_t);
template <class T>
cudaError_t cudaMalloc(T** memory, size_t bytes) { return cudaMallocBytes(reinterpret_cast<void**>(memory), bytes); }
cudaError_t cudaFree(void*);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus*);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
"""
ALLOC_FAILED, EXECUTION_FAILED, NOT_SUPPORTED = 2, 8, 9
CUBLAS_ALLOC_FAILED, CUBLAS_NOT_INITIALIZED = 3, 1


class Fake:
    """The program and the fake library."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.program = folder, folder / "calls"
        (folder / "cuda_runtime_api.h").write_text(RUNTIME)
        (folder / "library_types.h").touch()
        options = ["g++", "-std=c++17", "-O0", "-Wall", "-Wextra", f"-I{folder}"]
        options += [f"-I{ROOT / name}" for name in ("src", "include")]
        for command in (
            [*options, *(ROOT / source for source in SOURCES), "-o", self.program, "-ldl"],
            [*options, "-shared", "-fPIC", ROOT / "tests/c/fake_cublas.cc", "-o", folder / "libcublas.so.13"],
        ):
            subprocess.run(list(map(str, command)), check=True)

    def run(self, steps: str, fail: str = "", created: int = 0) -> list[str]:
        """The lines that the program prints. `created`: cublasCreate's status."""
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.folder), "LD_PRELOAD": "", "FAIL": fail}
        environment["CUBLAS_CREATE"] = str(created)
        command = [str(self.program), *steps.split()]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Fake:
    return Fake(tmp_path_factory.mktemp("cublas_calls"))


def test_a_product_waits_for_the_last_one(fake: Fake) -> None:
    both = [["wait 1", "product 1 in workspace 0", "record 1"], ["wait 2", "product 2 in workspace 0", "record 2"]]
    assert fake.run("1 2") == both[0] + both[1]


def test_several_products_are_one_call(fake: Fake) -> None:
    """cuBLAS is column-major: the second matrix is its first."""
    assert fake.run("-1") == ["wait 1", "3 products 1 in workspace 0, 30, 20 and 40 apart", "record 1"]


def test_products_of_a_graph_have_another_workspace_and_no_events(fake: Fake) -> None:
    lines = fake.run("capture 3 end 1")
    assert lines == ["product 3 in workspace 1", "wait 1", "product 1 in workspace 0", "record 1"]


@pytest.mark.parametrize(
    ("function", "text", "done"),
    [
        ("cudaStreamWaitEvent", "the last matrix product could not be waited for", []),
        (
            "cudaEventRecord",
            "the end of a matrix product could not be recorded",
            ["product 1 in workspace 0", "record 1"],
        ),
    ],
)
def test_events_that_fail_are_reported(fake: Fake, function: str, text: str, done: list[str]) -> None:
    """And leave no error for the next call to find."""
    assert fake.run("1", fail=function) == ["wait 1", *done, f"status {EXECUTION_FAILED}: {text}: of a fake, 0 left"]


def test_no_memory_for_a_handle_or_its_workspaces(fake: Fake) -> None:
    lines = fake.run("1", created=CUBLAS_ALLOC_FAILED)
    assert lines == [f"status {ALLOC_FAILED}: cuBLAS found no memory for a handle, 0 left"]
    lines = fake.run("1", fail="cudaMalloc")
    assert lines == [f"status {ALLOC_FAILED}: 67108864 bytes of GPU memory for cuBLAS could not be had, 0 left"]


def test_without_a_handle_products_are_refused(fake: Fake) -> None:
    (line,) = fake.run("1", created=CUBLAS_NOT_INITIALIZED)
    assert line.startswith(f"status {NOT_SUPPORTED}: cuBLAS is needed and could not be loaded")

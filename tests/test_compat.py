"""Clients of other libraries, compiled against include/compat/ and run, as C99 and as C++."""

import os
import pathlib
import shutil
import site
import subprocess

import pytest
import torch
from c_program import LANGUAGES, ROOT, output_of


def cuda_toolkit() -> pathlib.Path | None:
    """The folder of the CUDA toolkit, if there is one with headers."""
    nvcc = shutil.which("nvcc")
    folders = [os.environ.get("CUDA_HOME", "/usr/local/cuda"), *([] if nvcc is None else [f"{nvcc}/../.."])]
    found = (pathlib.Path(folder).resolve() for folder in folders)
    return next((folder for folder in found if (folder / "include/cuda_runtime_api.h").exists()), None)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("client", ["compat_cudnn", "compat_cudnn_v8", "compat_warp_ctc", "compat_warp_transducer"])
def test_client(client: str, language: str, tmp_path: pathlib.Path) -> None:
    source = ROOT / f"tests/c/{client}.c"
    assert output_of(source, tmp_path, language, defines=("PRNN_COMPAT_CPU",)) == "ok\n"


@pytest.mark.parametrize("language", LANGUAGES)
def test_client_of_cudnn_7(language: str, tmp_path: pathlib.Path) -> None:
    defines = ("PRNN_COMPAT_CPU", "PRNN_COMPAT_CUDNN_MAJOR=7")
    assert output_of(ROOT / "tests/c/compat_cudnn.c", tmp_path, language, defines) == "ok\n"


@pytest.mark.parametrize("language", LANGUAGES)
def test_client_of_cudnn_8(language: str, tmp_path: pathlib.Path) -> None:
    defines = ("PRNN_COMPAT_CPU", "PRNN_COMPAT_CUDNN_MAJOR=8")
    assert output_of(ROOT / "tests/c/compat_cudnn_v8.c", tmp_path, language, defines) == "ok\n"


CALL_OF_7 = """
#include <compat/cudnn_rnn.h>
cudnnStatus_t set(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnDropoutDescriptor_t dropout) {
  return cudnnSetRNNDescriptor(handle, rnn, 8, 1, dropout, CUDNN_SKIP_INPUT, CUDNN_UNIDIRECTIONAL, CUDNN_LSTM,
                               CUDNN_RNN_ALGO_STANDARD, %s);
}
"""


@pytest.mark.parametrize("type", ["CUDNN_DATA_FLOAT", "CUDNN_DATA_INT8"])
@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_a_call_of_cudnn_7_names_the_definition_that_it_wants(compiler: str, type: str, tmp_path: pathlib.Path) -> None:
    source = tmp_path / ("client.c" if compiler == "gcc" else "client.cc")
    source.write_text(CALL_OF_7 % type)
    command = [compiler, "-fsyntax-only", f"-I{ROOT / 'include'}", source]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode != 0
    name = "CUDNN_DATA_INT8_wants_PRNN_COMPAT_CUDNN_MAJOR_defined_as_7"
    assert (name if "INT8" in type else "define_PRNN_COMPAT_CUDNN_MAJOR_as_7") in refused.stderr
    subprocess.run([*command, "-DPRNN_COMPAT_CUDNN_MAJOR=7"], check=True)


@pytest.mark.parametrize("client", ["compat_cudnn", "compat_cudnn_v8"])
def test_cudnn_header_binds_no_name_of_cudnn(client: str, tmp_path: pathlib.Path) -> None:
    """So that a program can have the real library beside it."""
    compiled = tmp_path / "client.o"
    source = ROOT / f"tests/c/{client}.c"
    subprocess.run(["gcc", "-O0", "-c", source, f"-I{ROOT / 'include'}", "-o", compiled], check=True)
    names = subprocess.run(["nm", "-f", "posix", compiled], check=True, capture_output=True, text=True).stdout
    symbols = [line.split()[0] for line in names.splitlines()]
    assert "prnnRNNForwardTraining" in symbols
    assert [name for name in symbols if name.startswith("cudnn")] == []


def cudnn_header() -> pathlib.Path | None:
    """The folder of cuDNN's own header, if it is installed."""
    folders = [pathlib.Path("/usr/include"), pathlib.Path("/usr/include/x86_64-linux-gnu")]
    folders += [pathlib.Path(path) / "nvidia/cudnn/include" for path in site.getsitepackages()]
    return next((folder for folder in folders if (folder / "cudnn.h").exists()), None)


@pytest.mark.skipif(cudnn_header() is None or cuda_toolkit() is None, reason="needs the headers of cuDNN and CUDA")
def test_beside_the_real_cudnn_header(tmp_path: pathlib.Path) -> None:
    """prnn's own names in one translation unit with cudnn.h; compat/cudnn_rnn.h refused there."""
    source = tmp_path / "both.c"
    include = ["-I", ROOT / "include", "-isystem", cudnn_header(), "-isystem", cuda_toolkit() / "include"]
    command = ["gcc", "-std=c99", "-pedantic", "-Wall", "-Werror", "-c", *include, source, "-o", tmp_path / "both.o"]
    source.write_text(
        "#include <cudnn.h>\n#include <persistent_rnn.h>\n"
        "int both(cudnnHandle_t* a, prnnHandle_t* b) { return cudnnCreate(a) == 0 && prnnCreate(b) == 0; }\n"
    )
    subprocess.run(list(map(str, command)), check=True)
    source.write_text("#include <cudnn.h>\n#include <compat/cudnn_rnn.h>\n")
    refused = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert refused.returncode != 0
    assert "include persistent_rnn.h" in refused.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.skipif(cuda_toolkit() is None, reason="needs the CUDA toolkit's headers and runtime, to compile a client")
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("client", ["compat_warp_ctc_gpu", "compat_warp_transducer_gpu"])
def test_client_on_a_gpu(client: str, language: str, tmp_path: pathlib.Path) -> None:
    assert output_of(ROOT / f"tests/c/{client}.c", tmp_path, language, cuda=cuda_toolkit()) == "ok\n"

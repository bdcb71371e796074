"""Clients of other libraries, compiled against include/compat/ and run, as C99 and as C++."""

import os
import pathlib
import shutil

import pytest
import torch
from c_program import LANGUAGES, ROOT, output_of


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("client", ["compat_cudnn", "compat_warp_ctc", "compat_warp_transducer"])
def test_client(client: str, language: str, tmp_path: pathlib.Path) -> None:
    source = ROOT / f"tests/c/{client}.c"
    assert output_of(source, tmp_path, language, defines=("PRNN_COMPAT_CPU",)) == "ok\n"


def cuda_toolkit() -> pathlib.Path | None:
    """The folder of the CUDA toolkit, if there is one with headers."""
    nvcc = shutil.which("nvcc")
    folders = [os.environ.get("CUDA_HOME", "/usr/local/cuda"), *([] if nvcc is None else [f"{nvcc}/../.."])]
    found = (pathlib.Path(folder).resolve() for folder in folders)
    return next((folder for folder in found if (folder / "include/cuda_runtime_api.h").exists()), None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.skipif(cuda_toolkit() is None, reason="needs the CUDA toolkit's headers and runtime, to compile a client")
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("client", ["compat_warp_ctc_gpu", "compat_warp_transducer_gpu"])
def test_client_on_a_gpu(client: str, language: str, tmp_path: pathlib.Path) -> None:
    assert output_of(ROOT / f"tests/c/{client}.c", tmp_path, language, cuda=cuda_toolkit()) == "ok\n"

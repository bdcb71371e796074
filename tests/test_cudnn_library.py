"""How cuDNN is found and refused, without one: the loader alone, compiled with a small program."""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = """
#include <cstdio>
#include "core/cuda/cudnn_library.h"
#include "core/status.h"
int main() {
  try {
    std::printf("version %zu", prnn::require_cudnn_library().get_version());
  } catch (const prnn::Failure& failure) {
    std::printf("%d: %s", failure.status(), failure.what());
  }
}
"""
FUNCTIONS = re.findall(r'find\(library, "(\w+)"', (ROOT / "src/core/cuda/cudnn_library.cc").read_text())


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("loader")
    (folder / "main.cc").write_text(PROGRAM)
    sources = [folder / "main.cc", ROOT / "src/core/cuda/cudnn_library.cc", ROOT / "src/core/status.cc"]
    compile_to(folder / "main", *sources, "-ldl", f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}")
    return folder / "main"


def compile_to(target: pathlib.Path, *arguments: object) -> None:
    subprocess.run(["g++", "-std=c++17", "-o", *map(str, (target, *arguments))], check=True)


def fake_library(folder: pathlib.Path, version: int, functions: list[str]) -> pathlib.Path:
    source = "".join(f'extern "C" int {name}() {{ return 1; }}\n' for name in functions)
    (folder / "fake.cc").write_text(source + f'extern "C" unsigned long cudnnGetVersion() {{ return {version}; }}\n')
    compile_to(folder / "libfake.so", "-shared", "-fPIC", folder / "fake.cc")
    return folder / "libfake.so"


def said(program: pathlib.Path, library: object) -> str:
    environment = {**os.environ, "PRNN_CUDNN_LIBRARY": str(library), "LD_PRELOAD": ""}
    return subprocess.run([program], env=environment, capture_output=True, text=True, check=True).stdout


def test_a_file_that_is_not_there(program: pathlib.Path) -> None:
    text = said(program, "/nonexistent/libcudnn.so.9")
    assert text.startswith("9: cuDNN could not be loaded (PRNN_CUDNN_LIBRARY names its file): /nonexistent/libcudnn.so")


def test_without_a_name_the_usual_ones_are_tried(program: pathlib.Path) -> None:
    text = said(program, "")
    assert re.match(r"version \d+|9: .*libcudnn\.so\.9: .*; libcudnn\.so\.8: ", text)


def test_a_library_without_a_function(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    others = [name for name in FUNCTIONS if name not in ("cudnnGetVersion", "cudnnRNNForward")]
    text = said(program, fake_library(tmp_path, 91900, others))
    assert "lacks a function" in text
    assert "cudnnRNNForward" in text


def test_an_old_version(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    others = [name for name in FUNCTIONS if name != "cudnnGetVersion"]
    assert "is version 8400, older than 8901" in said(program, fake_library(tmp_path, 8400, others))


def test_one_that_serves(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    others = [name for name in FUNCTIONS if name != "cudnnGetVersion"]
    assert said(program, fake_library(tmp_path, 91900, others)) == "version 91900"

"""The multicast wgmma kernels, their own source, run by a host program: kernels_on_cpu/."""

import pathlib
import shutil
import subprocess

import pytest
from kernels_on_cpu.translate import make_sources

ROOT = pathlib.Path(__file__).resolve().parents[1]
HERE = pathlib.Path(__file__).parent / "kernels_on_cpu"
NVCC = shutil.which("nvcc")
FOLDERS = [pathlib.Path(NVCC).resolve().parents[1] / "include"] if NVCC else []
FOLDERS += pathlib.Path("/usr/local").glob("cuda*/include")
HEADERS = next((folder for folder in FOLDERS if (folder / "cuda_bf16.h").exists()), None)
pytestmark = [
    pytest.mark.skipif(HEADERS is None, reason="CUDA's headers are not here"),
    pytest.mark.xdist_group("kernels_on_cpu"),
]
TOLERANCE = {"tf32": 5e-5, "bfloat16": 3e-3}  # sums differ in their last digits, and then what is rounded; of storing


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("kernels_on_cpu")
    make_sources(ROOT / "src", folder / "src")
    includes = [f"-I{path}" for path in (folder / "src", ROOT / "include", HERE)]
    command = ["g++", "-std=c++17", "-O1", "-w", *includes, "-isystem", str(HEADERS), "-o", "multicast"]
    subprocess.run([*command, str(HERE / "multicast.cc")], cwd=folder, check=True)
    return folder / "multicast"


@pytest.mark.parametrize(
    ("kind", "cell", "columns", "groups", "resets", "batches"),
    [
        ("tf32", "lstm", 32, 2, False, [60, 33, 9]),
        ("tf32", "gru", 32, 2, False, [60, 33, 9]),
        ("tf32", "lstm", 32, 2, True, [64, 50, 9]),
        ("tf32", "gru", 32, 2, True, [64, 50, 9]),
        ("tf32", "lstm", 32, 1, True, [32, 20, 9]),
        ("tf32", "gru", 32, 1, False, [5] * 8),
        ("bfloat16", "lstm", 32, 2, True, [60, 33, 9]),
        ("bfloat16", "gru", 64, 2, False, [100, 70, 9]),
        ("bfloat16", "gru", 32, 1, True, [5] * 8),
    ],
)
def test_a_layer(
    program: pathlib.Path, kind: str, cell: str, columns: int, groups: int, resets: bool, batches: list[int]
) -> None:
    words = [kind, cell, columns, groups, int(resets), 1, *batches]
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    errors = {name: float(error) for name, error in map(str.split, done.stdout.splitlines())}
    of_cell = {"cells", "cy", "dcx"} if cell == "lstm" else {"dcandidate"}
    of_resets = {"dreset_hx", *(["dreset_cx"] if cell == "lstm" else [])} if resets else set()
    assert errors.keys() == {"y", "gates", "hy", "dgates", "dhx", "biases"} | of_cell | of_resets
    assert max(errors.values()) < TOLERANCE[kind], errors

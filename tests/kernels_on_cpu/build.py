"""Compiles kernels of rnn/plan/kernels.h for the CPU, and runs layers with them."""

import dataclasses
import pathlib
import shutil
import subprocess
import sys

from kernels_on_cpu.translate import make_sources

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(ROOT / "site_scons"))
import kernel_instances  # noqa: E402

CELLS, TYPES = ("rnn", "gru", "lstm"), ("float", "tf32", "half", "bfloat16")


def find_headers() -> pathlib.Path | None:
    """CUDA's."""
    nvcc = shutil.which("nvcc")
    folders = [pathlib.Path(nvcc).resolve().parents[1] / "include"] if nvcc else []
    folders += pathlib.Path("/usr/local").glob("cuda*/include")
    return next((folder for folder in folders if (folder / "cuda_bf16.h").exists()), None)


@dataclasses.dataclass(frozen=True)
class Edit:
    """A defect: what the text of a file of src/ is replaced with."""

    file: str
    old: str
    new: str


class Builder:
    """What all programs have in common is compiled once. `options`: of the compiler."""

    def __init__(self, folder: pathlib.Path, options: tuple[str, ...] = ()) -> None:
        self.folder, self.options = folder, options
        plan = [ROOT / "src/core/gpu_table.cc", *sorted((ROOT / "src/rnn/plan").glob("*.cc"))]
        self.objects = [self._compile(source, "-O0", ROOT / "src") for source in plan]
        self.objects += [self._compile(HERE / name, "-O2", ROOT / "src") for name in ("gpu.cc", "layer.cc")]

    def _compile(self, source: pathlib.Path, level: str, *folders: pathlib.Path) -> pathlib.Path:
        target = self.folder / f"{source.stem}.o"
        includes = [f"-I{path}" for path in (*folders, ROOT / "include", HERE)]
        command = ["g++", "-std=c++17", "-w", "-fno-strict-aliasing", level, *includes, *self.options]
        subprocess.run([*command, "-isystem", str(find_headers()), "-c", str(source), "-o", str(target)], check=True)
        return target

    def run_layer(self, name: str, kernels: set[str], edits: tuple[Edit, ...] = ()) -> pathlib.Path:
        """A program with the kernels "engine type cell shape" of both passes, as the table spells them."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        make_sources(ROOT / "src", folder / "src", [(edit.file, edit.old, edit.new) for edit in edits])
        names = {
            kernel: f"{kernel.engine} {TYPES[kernel.type]} {CELLS[kernel.cell]} {kernel.shape}".strip()
            for kernel in kernel_instances.read_kernels(ROOT / kernel_instances.TABLE)
        }
        assert kernels <= set(names.values()), kernels - set(names.values())
        chosen = [kernel for kernel in names if names[kernel] in kernels]
        (folder / "launchers.inc").write_text(kernel_instances.launchers_text(chosen))
        objects = [self._compile(HERE / "run_layer.cc", "-O0", folder, folder / "src")]
        for file, group in kernel_instances.instance_files(chosen).items():
            source = folder / f"{file}.cc"
            source.write_text(f'#include "instructions.h"\n{kernel_instances.instances_text(group)}')
            objects.append(self._compile(source, "-O1", folder / "src"))
        subprocess.run(["g++", *self.options, *self.objects, *objects, "-o", folder / "run_layer"], check=True)
        return folder / "run_layer"

    def run_layer_norm(self, edits: tuple[Edit, ...] = ()) -> pathlib.Path:
        """A program with the cluster kernels of an LSTM with layer normalisation, in float and tf32."""
        folder = self.folder / "layer_norm"
        shutil.rmtree(folder, ignore_errors=True)
        make_sources(ROOT / "src", folder / "src", [(edit.file, edit.old, edit.new) for edit in edits])
        objects = [self._compile(ROOT / "src/layer_norm_lstm/plan.cc", "-O0", ROOT / "src")]
        objects.append(self._compile(HERE / "run_layer_norm.cc", "-O1", folder / "src"))
        subprocess.run(["g++", *self.options, *self.objects, *objects, "-o", folder / "run_layer_norm"], check=True)
        return folder / "run_layer_norm"


def run(program: pathlib.Path, tolerance: float, cell: str, resets: int = 0, **options: object) -> None:
    """Runs a layer; the relative errors of its results must be below the tolerance."""
    words = [f"{name}={value}" for name, value in {"cell": cell, "resets": resets, **options}.items()]
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{words}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    errors = {name: float(error) for name, error in map(str.split, done.stdout.splitlines())}
    names = {"y", "hy", "dgates", "dhx", "biases"} | ({"gates"} if cell in ("lstm", "gru") else set())
    names |= {"cells", "cy", "dcx"} if cell == "lstm" else {"dcandidate"} if cell == "gru" else set()
    names |= {"dreset_hx"} if resets else set()
    names |= {"dreset_cx"} if resets and cell == "lstm" else set()
    assert errors.keys() == names
    assert max(errors.values()) < tolerance, errors

"""Compiles kernels of rnn/plan/kernels.h for the CPU, and runs layers with them."""

import dataclasses
import fcntl
import functools
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from kernels_on_cpu.translate import make_sources

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(ROOT / "site_scons"))
import kernel_instances  # noqa: E402
import ratio_tables  # noqa: E402

# Compiler's options for programs that follow the order of accesses, with addresses that addr2line finds.
ORDER = ("-DPRNN_ORDER", "-fno-pie", "-no-pie")
# Objects by what they were compiled of, kept for later runs: the compiler takes half of the tests' time.
CACHE = ROOT / os.environ.get("PRNN_CACHE", "build/cache") / "kernels_on_cpu"
PLACE = "/kernels"  # of a program's folder, in its objects, which do not depend on where it was
CELLS, TYPES = ("rnn", "gru", "lstm", "slstm"), ("float", "tf32", "half", "bfloat16")


def find_headers() -> pathlib.Path | None:
    """CUDA's."""
    nvcc = shutil.which("nvcc")
    folders = [pathlib.Path(nvcc).resolve().parents[1] / "include"] if nvcc else []
    folders += pathlib.Path("/usr/local").glob("cuda*/include")
    return next((folder for folder in folders if (folder / "cuda_bf16.h").exists()), None)


def marks(group: str) -> list[pytest.MarkDecorator]:
    """The marks of a file of tests: where it runs, and which of its tests share what they compile."""
    reason = "CUDA's headers are not here" if find_headers() is None else "coroutines are written for x86-64 alone"
    runs = find_headers() is not None and platform.machine() == "x86_64"
    return [pytest.mark.skipif(not runs, reason=reason), pytest.mark.xdist_group(group)]


def first_of_each(kind: Callable[..., object], cases: list[Any]) -> list[Any]:
    """The cases for parametrize(): of each kind all but the first have the mark `full`."""
    kinds = [kind(*case) for case in cases]
    later = [kinds.index(kinds[i]) < i for i in range(len(cases))]
    return [
        pytest.param(*case, marks=[pytest.mark.full] if is_later else [])
        for case, is_later in zip(cases, later, strict=True)
    ]


def seed_of(*case: object) -> int:
    """A case's seed of data and schedule: 1 or 2."""
    return 1 + zlib.crc32(repr(case).encode()) % 2


@dataclasses.dataclass(frozen=True)
class Edit:
    """A defect: what the text of a file of src/ is replaced with."""

    file: str
    old: str
    new: str


@functools.cache
def compiler() -> bytes:
    """Which one it is."""
    return subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout


class Builder:
    """Compiles programs into a folder of its own. What programs have in common is compiled once, by the first worker of
    pytest that needs it. `options`: of the compiler."""

    def __init__(self, factory: pytest.TempPathFactory, *options: str) -> None:
        self.folder, self.options = factory.mktemp("kernels_on_cpu"), options
        session = factory.getbasetemp()
        self.shared = (session.parent if "PYTEST_XDIST_WORKER" in os.environ else session) / "kernels_on_cpu_shared"
        self.shared.mkdir(exist_ok=True)

    def _compile(
        self, source: pathlib.Path, level: str, folder: pathlib.Path, *, more: tuple[str, ...] = ()
    ) -> pathlib.Path:
        """An object of the cache. folder: that of the sources; launchers.inc lies beside it."""
        options = ["-std=c++17", "-w", "-fno-strict-aliasing", level, *self.options, *more]
        includes = [f"-I{path}" for path in (folder.parent, folder, ROOT / "include", HERE)]
        command = ["g++", *options, *includes, "-isystem", str(find_headers()), "-E", str(source)]
        text = subprocess.run(command, check=True, capture_output=True).stdout
        text = text.replace(bytes(folder.parent), b"/prnn" if folder.parent == ROOT else os.fsencode(PLACE))
        text = text.replace(bytes(ROOT), b"/prnn")
        kept = CACHE / f"{hashlib.sha256(b' '.join([compiler(), *map(os.fsencode, options), text])).hexdigest()}.o"
        if kept.exists():
            os.utime(kept)  # .ci/run removes what was not used for long
            return kept
        preprocessed, target = self.folder / f"{source.stem}.ii", self.folder / f"{source.stem}.o"
        preprocessed.write_bytes(text)
        here = f"-fdebug-prefix-map={pathlib.Path.cwd()}=/prnn"
        subprocess.run(["g++", *options, here, "-c", str(preprocessed), "-o", str(target)], check=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        unnamed = CACHE / f"{os.getpid()}.partial"
        shutil.copy(target, unnamed)
        return unnamed.rename(kept)

    def _compile_once(self, source: pathlib.Path, level: str, *, more: tuple[str, ...] = ()) -> pathlib.Path:
        """The object of a source without a planted defect."""
        kept = self.shared / "".join([source.stem, *self.options, *more, ".o"]).replace("/", "_")
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.symlink_to(self._compile(source, level, ROOT / "src", more=more))
        return kept

    def _common_objects(self, program: str) -> list[pathlib.Path]:
        objects = [self._compile_once(HERE / "gpu.cc", "-O2")]
        if program in ("run_layer", "run_stack", "run_layer_norm"):
            objects.append(self._compile_once(HERE / "layer.cc", "-O2"))
        if program in ("run_layer", "run_stack"):
            ratios = self.folder / "measured_ratios.cc"
            ratios.write_text(ratio_tables.ratios_text())
            names = ("core/gpu_table.cc", "core/status.cc", "rnn/problem.cc")
            plan = [*(ROOT / "src" / name for name in names), ratios, *sorted((ROOT / "src/rnn/plan").glob("*.cc"))]
            objects += [self._compile_once(source, "-O0") for source in plan]
        if program in ("run_decode", "run_beam"):
            objects.append(self._compile_once(ROOT / "src/decode/cuda/search_plan.cc", "-O0"))
        return objects

    def run_layer(
        self, name: str, kernels: set[str], edits: tuple[Edit, ...] = (), *, order: bool = False
    ) -> pathlib.Path:
        """A program with the kernels "engine type cell shape" of both passes, as the table spells them.

        `order`: it follows the order of accesses, for find_unordered(), and multiplies nothing.
        """
        return self._program("run_layer", name, kernels, edits, order=order)

    def run_stack(
        self, name: str, kernels: set[str], edits: tuple[Edit, ...] = (), *, order: bool = False
    ) -> pathlib.Path:
        """A program with wavefront kernels, as run_layer(); the order is followed in those by chunks."""
        return self._program("run_stack", name, kernels, edits, order=order)

    def run_layer_norm(self, name: str, edits: tuple[Edit, ...] = (), *, order: bool = False) -> pathlib.Path:
        """A program with the cluster kernels of LSTMs with layer normalisation."""
        return self._program("run_layer_norm", name, set(), edits, order=order)

    def run_loss(self, loss: str, name: str, edits: tuple[Edit, ...] = ()) -> pathlib.Path:
        """A program with the kernels of a loss: run_<loss>.cc."""
        return self._program(f"run_{loss}", name, set(), edits)

    def run_decode(self, name: str, edits: tuple[Edit, ...] = (), *, order: bool = False) -> pathlib.Path:
        """A program with the kernels of the transducer search."""
        return self._program("run_decode", name, set(), edits, order=order)

    def run_beam(self, name: str, edits: tuple[Edit, ...] = (), *, order: bool = False) -> pathlib.Path:
        """Builds the program of the beam search."""
        return self._program("run_beam", name, set(), edits, order=order)

    def decode_plan(self) -> pathlib.Path:
        """A program that checks plans of the transducer search: decode_plan.cc."""
        sources = [HERE / "decode_plan.cc", ROOT / "src/decode/cuda/search_plan.cc", ROOT / "src/core/gpu_table.cc"]
        objects = [self._compile_once(source, "-O0") for source in sources]
        target = self.folder / "decode_plan"
        subprocess.run(["g++", *self.options, *objects, "-o", target], check=True)
        return target

    def _program(
        self, program: str, name: str, kernels: set[str], edits: tuple[Edit, ...], *, order: bool = False
    ) -> pathlib.Path:
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
        options = ORDER if order else ()
        followed = (*options, "-fsanitize=thread", "-g1") if order else ()
        own = options
        # Their kernels are in the same file, and take decisions by values.
        if program in ("run_decode", "run_beam") and order:
            own = (*followed, "-DPRNN_ORDER_MULTIPLIES")
        if program == "run_beam" and order:
            own = (*own, "-DPRNN_BFLOAT16_ALONE")  # in which the tests of the order are
        objects = [self._compile(HERE / f"{program}.cc", "-O1", folder / "src", more=own)]
        if program == "run_layer_norm":
            source = HERE / "layer_norm_kernels.cc"
            objects.append(self._compile(source, "-O1", folder / "src", more=followed))
        for kind in TYPES:  # in files of their own: floats are not loaded as where there is tf32
            group = [kernel for kernel in chosen if TYPES[kernel.type] == kind]
            if not group:
                continue
            source = folder / f"kernels_{kind}.cc"
            source.write_text(f'#include "instructions.h"\n{kernel_instances.instances_text(group)}')
            objects.append(self._compile(source, "-O1", folder / "src", more=followed))
        objects += self._common_objects(program)
        objects += [self._compile_once(HERE / "order.cc", "-O3", more=ORDER)] if order else []
        subprocess.run(["g++", *self.options, *options, *objects, "-o", folder / program], check=True)
        return folder / program


def compare(program: pathlib.Path, tolerance: float, names: set[str], **options: object) -> None:
    """Runs it; it must print the errors of all results of these names, and these must be below the tolerance."""
    words = [f"{name}={value}" for name, value in options.items()]
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{words}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    errors: dict[str, float] = {}
    for line in done.stdout.splitlines():
        result, error = line.split()
        errors[result] = max(float(error), errors.get(result, 0))
    assert errors.keys() == names
    assert all(error < tolerance for error in errors.values()), f"{words}: {errors}"


def find_unordered(program: pathlib.Path, **options: object) -> list[tuple[str, str]]:
    """Pairs of accesses that nothing orders, the earlier one first: "read" or "write", and the lines of the kernel that
    make it, "FILE:LINE CODE", from the inmost one, separated by " < "."""
    words = [f"{name}={value}" for name, value in options.items()]
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=300)
    pairs = unordered_in(program, done.stdout)
    assert done.returncode == 0 or pairs, f"{words}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return pairs


def unordered_in(program: pathlib.Path, printed: str) -> list[tuple[str, str]]:
    """The unordered pairs of accesses in what a program has printed."""
    pairs = [line.split()[1:] for line in printed.splitlines() if line.startswith("unordered ")]
    lines = _kernel_lines(program, sorted({address for pair in pairs for address in pair[1::2]}))
    return sorted({(f"{before} {lines[first]}", f"{now} {lines[last]}") for before, first, now, last in pairs})


def is_found(before: str, later: str, pairs: list[tuple[str, str]]) -> bool:
    """Whether find_unordered() has found two accesses, "read CODE" or "write CODE" with a part of their code."""

    def is_of(access: str, description: str) -> bool:
        kind, _, code = description.partition(" ")
        return access.startswith(kind) and code in access

    return any(is_of(first, before) and is_of(last, later) for first, last in pairs)


def _kernel_lines(program: pathlib.Path, addresses: list[str]) -> dict[str, str]:
    """The kernels' source lines of the calls that return to the addresses."""
    calls = {address: f"{int(address, 16) - 1:#018x}" for address in addresses}
    command = ["addr2line", "-a", "-i", "-e", str(program), *calls.values()]
    places: dict[str, list[str]] = {}
    for line in subprocess.check_output(command, text=True).splitlines() if calls else []:
        if line.startswith("0x"):
            places[line] = inlined = []
        else:
            inlined.append(line.split()[0])
    sources: dict[str, list[str]] = {}

    def shown(place: str) -> str:
        file, _, line = place.rpartition(":")
        path = program.parent / pathlib.Path(file).relative_to(PLACE)
        code = sources.setdefault(file, path.read_text().splitlines())[int(line) - 1]
        return f"{path.name}:{line} {code.strip()}"

    def is_kernel(place: str) -> bool:
        return place.startswith(f"{PLACE}/")

    return {address: " < ".join(map(shown, filter(is_kernel, places[call]))) for address, call in calls.items()}


def run(
    program: pathlib.Path,
    tolerance: float,
    cell: str,
    resets: int = 0,
    dropout: int = 0,
    backward: int = 1,
    **options: object,
) -> None:
    """A layer or a stack."""
    has_cells = cell == "lstm" or cell.startswith("slstm")
    names = {"y", "hy"} | ({"gates"} if has_cells or cell == "gru" else set()) | ({"dropped"} if dropout else set())
    names |= {"cells", "cy"} if has_cells else set()
    projects = "projection" in options
    names |= {"projected"} if projects else set()
    if backward:
        names |= {"dprojected"} if projects else set()
        names |= {"dgates", "dhx", "biases"} | ({"dcandidate"} if cell == "gru" else set())
        names |= {"dcx"} if has_cells else set()
        names |= {"dreset_hx"} if resets else set()
        names |= {"dreset_cx"} if resets and has_cells else set()
    options = {"cell": cell, "resets": resets, "dropout": dropout, "backward": backward, **options}
    compare(program, tolerance, names, **options)

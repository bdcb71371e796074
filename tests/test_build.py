"""The build itself, on a small tree of sources with prnn's own SConstruct, and what it made of prnn."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
sys.path.insert(0, str(ROOT / "site_scons"))
import kernel_instances  # noqa: E402
import nvcc_arch  # noqa: E402

needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")

SOURCES = {
    "include/prnn_types.h": "#define PRNN_MAJOR 7\n#define PRNN_MINOR 8\n#define PRNN_PATCHLEVEL 9\n",
    "src/libprnn.map": "{ global: prnn*; local: *; };\n",
    "src/core/value.h": "#pragma once\n#define VALUE 1\n",
    "src/core/value.cc": '#include "core/value.h"\nextern "C" int prnnValue() { return VALUE; }\n',
    "src/core/other.cc": 'extern "C" int other() { return 2; }\n',
    "src/core/sum_avx2.cc": "int sum() { return 3; }\n",
    "src/core/cuda/no_cuda.cc": 'extern "C" int prnnCuda() { return 0; }\n',
    "src/core/cuda/scale.cuh": '#pragma once\n#include "core/value.h"\n',
    "src/core/cuda/scale.cu": '#include "core/cuda/scale.cuh"\n'
    "__global__ void scale(float* x) { x[threadIdx.x] *= VALUE; }\n"
    'extern "C" __attribute__((visibility("default"))) int prnnCuda() { return 1; }\n',
    "src/rnn/plan/kernels.h": "#pragma once\n",  # the table of resident kernels, without any
    "python/module.cc": '#include "prnn_types.h"\nextern "C" int PyInit__C() { return PRNN_MAJOR; }\n',
}


class Tree:
    """A checkout in a folder of its own."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        shutil.copy(ROOT / "SConstruct", root)
        shutil.copytree(ROOT / "site_scons", root / "site_scons", ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in SOURCES.items():
            self.write(name, text.replace('extern "C" int', 'extern "C" __attribute__((visibility("default"))) int'))

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def scons(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "SCons", "-Q", *options]
        return subprocess.run(command, cwd=self.root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def built(self, *options: str) -> set[str]:
        """The sources that a run compiles."""
        done = self.scons(*options)
        assert done.returncode == 0, done.stdout
        return set(re.findall(r"^compiling (\S+)$", done.stdout, re.MULTILINE))


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> Tree:
    return Tree(tmp_path)


def test_header_edit_rebuilds_what_includes_it(tree: Tree) -> None:
    common = {"src/core/value.cc", "src/core/other.cc", "src/core/sum_avx2.cc", "src/core/cuda/no_cuda.cc"}
    assert tree.built("cuda=off") == common | {"build/release/python/extension.cc"}
    assert tree.built("cuda=off") == set()
    tree.write("src/core/value.h", "#pragma once\n#define VALUE 2\n")
    assert tree.built("cuda=off") == {"src/core/value.cc"}
    tree.write("include/prnn_types.h", SOURCES["include/prnn_types.h"] + "#define MORE 1\n")
    assert tree.built("cuda=off") == {"build/release/python/extension.cc"}


def test_measurements_edit_rebuilds_the_table_of_ratios(tree: Tree) -> None:
    """Each file of measurements is an entry, H200's the first."""
    tree.write("prnn/bench/rnn_ratios.py", (ROOT / "prnn/bench/rnn_ratios.py").read_text())
    source = tree.root / "build/release/generated/rnn/plan/measured_ratios.cc"
    times = {"cudnn": 1, "cudnn_training": 6, "resident": 2, "resident_training": 4}
    point = {
        "cell": "lstm",
        "type": "tf32",
        "layers": 1,
        "directions": 1,
        "hidden": 64,
        "batch": 8,
        "steps": 96,
    } | times
    for gpu in ("A10", "H200"):
        tree.write(
            f"bench/results/rnn_backends_{gpu.lower()}.csv",
            f"# {gpu}\n{','.join(point)}\n{','.join(map(str, point.values()))}\n",
        )
    tree.scons("cuda=off", str(source.relative_to(tree.root)))
    row = "{PRNN_DATA_FLOAT, 1, 1, 64, 0, 8, 32, -0.693f, 0.405f, 1.386f},"  # logarithms of 1 / 2, 6 / 4 and 4
    kinds = r'\{"(\w+)", PRNN_LSTM, true, true, false, false, kPoints\d, (\d+)\}'
    text = source.read_text()
    assert text.count(row) == 2
    assert re.findall(kinds, text) == [("H200", "1"), ("A10", "1")]
    (tree.root / "bench/results/rnn_backends_a10.csv").unlink()
    tree.scons("cuda=off", str(source.relative_to(tree.root)))
    assert re.findall(kinds, source.read_text()) == [("H200", "1")]


def test_output_is_a_line_a_file_unless_verbose(tree: Tree) -> None:
    tree.write("src/cudnn_standin/front.c", "const int front = 9;\n")
    tree.write("src/cudnn_standin/front.map", "{ global: front; local: *; };\n")
    tree.write("src/cudnn_standin/libprnn_cudnn.map", "{ local: *; };\n")
    tree.write("src/cudnn_standin/calls.cc", "int calls() { return 1; }\n")
    lines = tree.scons("cuda=off").stdout.splitlines()
    assert {"compiling src/core/value.cc", "compiling src/cudnn_standin/front.c"} <= {*lines}
    assert "linking build/release/libprnn.so.7.8.9" in lines
    assert max(map(len, lines)) < 160
    shutil.rmtree(tree.root / "build")
    lines = tree.scons("cuda=off", "verbose=on").stdout.splitlines()
    assert any(re.search(r" -c .* -O3 .*src/core/value\.cc$", line) for line in lines)
    assert max(map(len, lines)) < 1000


@needs_nvcc
def test_header_edit_rebuilds_cuda_sources(tree: Tree) -> None:
    assert "src/core/cuda/scale.cu" in tree.built("cuda=on")
    assert tree.built("cuda=on") == set()
    tree.write("src/core/value.h", "#pragma once\n#define VALUE 2\n")  # reached through scale.cuh
    assert tree.built("cuda=on") == {"src/core/value.cc", "src/core/cuda/scale.cu"}
    tree.write("src/core/cuda/scale.cuh", '#pragma once\n#include "core/value.h"\n#define MORE 1\n')
    assert tree.built("cuda=on") == {"src/core/cuda/scale.cu"}
    assert "spill" in (tree.root / "build/release/ptxas/core/cuda/scale.txt").read_text()
    files = [entry["file"] for entry in json.loads((tree.root / "compile_commands.json").read_text())]
    assert {"src/core/value.cc", "src/core/cuda/scale.cu", "build/release/python/extension.cc"} <= set(files)


@needs_nvcc
def test_a_build_folder_outside(tree: Tree, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("elsewhere")
    assert "src/core/cuda/scale.cu" in tree.built("cuda=on", f"build_dir={folder}")
    assert (folder / "release/ptxas/core/cuda/scale.txt").exists()
    assert not {"build", folder.parts[1]} & {path.name for path in tree.root.iterdir()}


@needs_nvcc
def test_broken_cuda_source_fails(tree: Tree) -> None:
    tree.write("src/core/cuda/scale.cu", "__global__ void scale(float* x) { undeclared(); }\n")
    done = tree.scons("cuda=on")
    assert done.returncode != 0
    assert "undeclared" in done.stdout


def test_a_killed_compilation_leaves_no_log(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what ptxas says would be taken for all of it."""
    nvcc = tree.root / "nvcc"
    nvcc.write_text(
        f"""#!/bin/sh
case "$*" in *--dryrun*) echo "#$ TOP={tree.root}"; exit;; esac
echo "ptxas info    : Compiling entry function 'scale' for 'sm_90a'"
[ -e {tree.root}/killed ] && {{ for i; do [ "$last" = -o ] && echo > "$i"; last=$i; done; exit; }}
touch {tree.root}/killed
kill -KILL $PPID
"""
    )
    nvcc.chmod(0o755)
    monkeypatch.setenv("NVCC", str(nvcc))
    target, log = "build/release/src/core/cuda/scale.os", tree.root / "build/release/ptxas/core/cuda/scale.txt"
    assert tree.scons("cuda=on", target).returncode != 0
    assert (tree.root / "killed").exists()
    assert not log.exists()
    assert tree.built("cuda=on", target) == {"src/core/cuda/scale.cu"}
    assert "scale" in log.read_text()
    assert list(log.parent.iterdir()) == [log]


def test_broken_source_fails(tree: Tree) -> None:
    tree.write("src/core/other.cc", "int other() { return; }\n")
    done = tree.scons("cuda=off")
    assert done.returncode != 0
    assert "other.cc:1" in done.stdout


def test_flags_of_the_environment_come_last(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPPFLAGS", "-DANSWER='40 + 2'")
    monkeypatch.setenv("CXXFLAGS", "-O1 -DOTHER=2")
    monkeypatch.setenv("LDFLAGS", "-Wl,-z,now -Wl,-rpath,'$ORIGIN/there'")
    tree.write("src/core/other.cc", 'static_assert(ANSWER == 42 && OTHER == 2, "");\n')
    tree.built("cuda=off")
    entries = json.loads((tree.root / "compile_commands.json").read_text())
    commands = {entry["file"]: entry["command"] for entry in entries}
    assert commands["src/core/other.cc"].index("-O1") > commands["src/core/other.cc"].index("-O3")
    assert commands["src/core/sum_avx2.cc"].index("-mavx2") > commands["src/core/sum_avx2.cc"].index("-O1")
    dynamic = subprocess.run(
        ["readelf", "-d", tree.root / "prnn/lib/libprnn.so.7"], capture_output=True, text=True, check=True
    ).stdout
    assert "BIND_NOW" in dynamic
    assert "[$ORIGIN/there]" in dynamic


@needs_nvcc
def test_nvcc_gets_no_flags_of_the_environment(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXXFLAGS", "-Werror=format-security")  # which nvcc takes for one of its own, and refuses
    assert "src/core/cuda/scale.cu" in tree.built("cuda=on", "cuda_arch=90a")


def test_undefined_symbol_fails(tree: Tree) -> None:
    tree.write("src/core/other.cc", 'int missing();\nextern "C" int prnnOther() { return missing(); }\n')
    done = tree.scons("cuda=off")
    assert done.returncode != 0
    assert "missing" in done.stdout


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("cuda_arc=80", "there is no option 'cuda_arc'; did you mean cuda_arch?"),
        ("colour=red", "there is no option 'colour'; the options are mode, cuda"),
        ("mode=fast", "mode"),
        ("cuda_arch=35", "cuda_arch"),
        ("sanitizers=thread", "sanitizers"),
    ],
)
def test_unknown_option_or_value_is_refused(tree: Tree, option: str, message: str) -> None:
    done = tree.scons(option)
    assert done.returncode == 2
    assert message in done.stdout
    assert not (tree.root / "build").exists()


@pytest.mark.parametrize(
    ("gpus", "archs"),
    [
        ("echo 9.0", ["90a"]),
        ("echo 8.6; echo 9.0; echo 8.6", ["86", "90a"]),
        ("echo 8.7", ["86"]),
        ("echo 10.3", ["100"]),
        ("echo 11.0", ["100"]),  # through the intermediate code
        ("echo 12.1", ["120"]),
        ("echo 7.5", ["75"]),
        ("echo 7.0", ["90a"]),
        ("echo no devices were found; exit 6", ["90a"]),
        (None, ["90a"]),
    ],
)
def test_native_is_this_machines_gpus(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, gpus: str | None, archs: list[str]
) -> None:
    if gpus is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{gpus}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    flags = nvcc_arch.arch_flags(["native"])
    assert re.findall(r"code=sm_(\w+)", " ".join(flags)) == archs
    assert re.findall(r"code=compute_(\w+)", " ".join(flags)) == [arch for arch in archs[:1] if arch != "90a"]


def test_resident_kernels_have_no_code_for_7_5() -> None:
    def codes(wanted: list[str], source: str) -> list[str]:
        return re.findall(r",code=(\w+)", " ".join(nvcc_arch.arch_flags(wanted, source)))

    instance = "build/release/generated/rnn/cuda/mma_float.cu"
    assert codes(["75", "90a"], "src/ctc/cuda/ctc_recursion.cu") == ["sm_75", "sm_90a", "compute_75"]
    assert codes(["75", "90a"], instance) == codes(["90a"], instance) == ["sm_90a"]
    assert codes(["75"], instance) == codes(["75"], "src/decode/cuda/search_float.cu") == ["sm_80", "compute_80"]
    for folder in nvcc_arch._FROM_80[1:]:  # the first one is of the build
        assert list((ROOT / folder).rglob("*.cu")), folder


def test_cuda_without_nvcc_is_refused(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVCC", "/nonexistent/nvcc")
    done = tree.scons("cuda=on")
    assert done.returncode == 2
    assert "cuda=on needs nvcc" in done.stdout
    assert "src/core/cuda/no_cuda.cc" in tree.built("cuda=auto")


@pytest.mark.parametrize("gpus", ["NVIDIA H200\nNVIDIA H200", ""])
def test_a_build_without_nvcc_on_a_machine_with_a_gpu_says_so(
    tree: Tree, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, gpus: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").write_text(f"#!/bin/sh\necho '{gpus}'\n" if gpus else "#!/bin/sh\nexit 9\n")
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("NVCC", "/nonexistent/nvcc")
    note = "this machine has a GPU (NVIDIA H200), but prnn was built for the CPU alone, since no nvcc was found"
    assert (note in tree.scons().stdout.splitlines()[-1]) == bool(gpus)
    assert note not in tree.scons("cuda=off").stdout
    tree.write("src/core/other.cc", "int other() { return; }\n")
    assert note not in tree.scons().stdout  # the error is the last that is said


@pytest.mark.parametrize(
    ("header", "archs", "said"),
    [
        ("#define CUDA_VERSION 13000\n", ["90a", "80"], "CUDA 13.0: 8.0, 9.0a"),
        ("#define CUDA_VERSION 12080\n", ["120", "100"], "CUDA 12.8: 10.0, 12.0"),
        (None, ["89"], "CUDA: 8.9"),
    ],
)
def test_what_a_build_says_of_itself(tmp_path: pathlib.Path, header: str | None, archs: list[str], said: str) -> None:
    if header is not None:
        (tmp_path / "cuda.h").write_text(header)
    assert nvcc_arch.describe_cuda_build(archs, str(tmp_path)) == said


def test_cache_spares_a_second_checkout_the_compiler(tree: Tree, tmp_path: pathlib.Path) -> None:
    cache = f"cache={tmp_path / 'new/cache'}"
    assert "src/core/value.cc" in tree.built("cuda=off", cache)
    shutil.rmtree(tree.root / "build")
    assert tree.built("cuda=off", cache) == set()


def test_a_build_for_an_older_glibc_has_the_cxx_library_inside(tree: Tree) -> None:
    """Linked with stubs; here with none, which leaves this machine's glibc."""
    shutil.copy(ROOT / "src/old_glibc.c", tree.root / "src")
    text = '#include <stdexcept>\nint other(int i) { if (i) throw std::runtime_error("i"); return 2; }\n'
    tree.write("src/core/other.cc", text)
    for options, needed in (((), True), ((f"glibc_stubs={tree.root / 'stubs'}",), False)):
        done = tree.scons("cuda=off", *options)
        assert done.returncode == 0, done.stdout
        library = tree.root / "prnn/lib/libprnn.so.7"
        dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
        assert ("libstdc++" in dynamic) == needed
        symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
        assert {line.split()[-1] for line in symbols.stdout.splitlines()} == {"prnnValue", "prnnCuda"}


def test_instruction_set_follows_from_the_name(tree: Tree) -> None:
    tree.built("cuda=off")
    commands = json.loads((tree.root / "compile_commands.json").read_text())
    assert [entry["file"] for entry in commands if "-mavx2" in entry["command"]] == ["src/core/sum_avx2.cc"]


def test_library_is_versioned_and_exports_its_own_symbols_alone(tree: Tree) -> None:
    tree.built("cuda=off")
    library = tree.root / "prnn/lib/libprnn.so.7"
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    assert {line.split()[-1] for line in symbols.splitlines()} == {"prnnValue", "prnnCuda"}
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "soname: [libprnn.so.7]" in dynamic
    assert (tree.root / "build/release/libprnn.so").resolve().name == "libprnn.so.7.8.9"


def test_process_has_one_openmp_runtime() -> None:
    # A second one would keep a second pool of threads on the same cores as torch's.
    program = "import prnn, re; print(len(set(re.findall(r'/\\S*libgomp\\S*', open('/proc/self/maps').read()))))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr


# Bytes that a kernel may spill in code for other GPUs than those of compute capability 9.0 (CUDA 13.0), which is not
# tuned: less than half of the 512 that a thread's weights take of the registers. On 12.0 four tf32 kernels of mma's
# backward pass spill 328 to 600.
UNTUNED = 256
UNTUNED_TF32 = {"sm_120": 600}


def test_resident_kernels_use_no_local_memory() -> None:
    """Neither for registers that are spilled nor for variables of which one of several addresses is taken."""
    folders = [ROOT / "build/release/ptxas" / family for family in ("rnn", "decode")]
    logs = [log for folder in folders for log in folder.rglob("*.txt")]
    if not logs:
        pytest.skip("the CUDA sources were not compiled here (no nvcc, or cuda=off)")
    local = []
    for log in logs:
        kernels = re.findall(
            r"entry function '(\S+)' for '(\S+)'\n[^\n]*\n *(\d+) bytes stack frame, (\d+) bytes spill stores",
            log.read_text(),
        )
        assert kernels, f"{log} says nothing about any kernel"
        for name, arch, frame, stores in kernels:
            tuned = arch.startswith("sm_90")
            most = UNTUNED_TF32.get(arch, UNTUNED) if "12mma_backward" in name and "Tf32" in name else UNTUNED
            if int(frame) > 0 if tuned else int(stores) > most:
                local.append(f"{log.name}: {name} for {arch}: {frame} bytes, {stores} of them spilled")
    assert not local, "\n".join(local)


# All but 90a, those of the same features together.
OTHER_ARCHITECTURES = [["75"], ["80", "86", "89"], ["100", "120"]]


@pytest.mark.full
@needs_nvcc
@pytest.mark.parametrize("archs", OTHER_ARCHITECTURES, ids="-".join)
def test_every_engine_compiles_for(archs: list[str], tmp_path: pathlib.Path) -> None:
    """One kernel of each engine and pass, since scripts/test builds for one architecture alone, 90a without a GPU; and
    what else depends on the architecture."""
    kernels: dict[str, kernel_instances.Kernel] = {}
    for kernel in kernel_instances.read_kernels(ROOT / kernel_instances.TABLE):
        kernels.setdefault(kernel.function, kernel)
    sources = [tmp_path / "kernels.cu"]
    sources[0].write_text(kernel_instances.instances_text(list(kernels.values())))
    if archs == ["75"]:  # which has losses alone
        sources = [path for path in (ROOT / "src/rnnt").rglob("*.cu") if "warp_m" in path.read_text()]
        assert sources
    if archs[0] == "80":
        sources += [path for path in (ROOT / "src/rnnt").rglob("*.cu") if "PRNN_HAS_" in path.read_text()]
        assert len(sources) > 1
    codes = ",".join(f"sm_{arch}" for arch in archs)
    options = ["-fatbin", f"-gencode=arch=compute_{archs[0]},code=[{codes}]", "-std=c++17", "-O3"]
    options += ["--expt-relaxed-constexpr", "-Xptxas=-v"]
    for source in sources:
        said = said_by_nvcc(options, source, tmp_path)
        assert all(f"for 'sm_{arch}'" in said for arch in archs)
        spills = [int(number) for number in re.findall(r"(\d+) bytes spill stores", said)]
        assert max(spills) <= UNTUNED, said


def said_by_nvcc(options: list[str], source: pathlib.Path, folder: pathlib.Path) -> str:
    """nvcc's messages while it compiles a source. They are kept until a source, a header or the compiler changes:
    the tests of all architectures take a minute."""
    version = subprocess.run([str(NVCC), "--version"], capture_output=True, check=True).stdout
    files = [path for folder in ("src", "include") for path in sorted((ROOT / folder).rglob("*.*"))]
    read = [source, *(path for path in files if path.suffix in (".h", ".cuh", ".cu"))]
    contents = [version, *map(str.encode, options), *(path.read_bytes() for path in read)]
    name = hashlib.sha256(b"\0".join(contents)).hexdigest()
    kept = ROOT / os.environ.get("PRNN_CACHE", "build/cache") / "said_by_nvcc" / f"{name}.txt"
    if kept.exists():
        os.utime(kept)  # .ci/run removes what was not used for long
        return kept.read_text()
    includes = [f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}"]
    command = [str(NVCC), *options, *includes, "-o", str(folder / "code"), str(source)]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{os.getpid()}")
    partial.write_text(done.stdout)
    partial.rename(kept)
    return done.stdout


def test_no_architecture_is_left_out() -> None:
    assert {arch for archs in OTHER_ARCHITECTURES for arch in archs} | {"90a"} == {*nvcc_arch.ARCHITECTURES}


def compile_launcher(folder: pathlib.Path, table: str, launchers: str) -> str:
    """The compiler's messages about src/rnn/cuda/launch.cc with this table of kernels and these generated functions."""
    for name, text in (("rnn/plan/kernels.h", table), ("rnn/cuda/launchers.inc", launchers)):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    dryrun = [str(NVCC), "--dryrun", "-x", "cu", "-c", "/dev/null", "-o", "/dev/null"]
    said = subprocess.run(dryrun, capture_output=True, text=True, check=True).stderr
    toolkit = re.search(r"^#\$ TOP=(.*)$", said, re.MULTILINE)
    assert toolkit is not None, said
    paths = [f"-I{path}" for path in (folder, ROOT / "src", ROOT / "include", f"{toolkit[1]}/include")]
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-fsyntax-only", *paths, ROOT / "src/rnn/cuda/launch.cc"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode == 0) == (done.stderr == ""), done.stderr
    return done.stderr


@needs_nvcc
def test_a_table_of_kernels_that_the_library_does_not_have_fails_the_build(tmp_path: pathlib.Path) -> None:
    path = ROOT / kernel_instances.TABLE
    table = path.read_text()
    launchers = kernel_instances.launchers_text(kernel_instances.read_kernels(path))
    assert compile_launcher(tmp_path / "same", table, launchers) == ""
    row = next(line for line in table.splitlines() if "Engine::kSimt, " in line)
    unread = table.replace(row, row + "\n" + row.replace("Engine::kSimt, ", "Engine::kSimt,\n"))
    shorter = table.replace(row + "\n", "")
    line = next(line for line in launchers.splitlines() if "launch_cluster_backward<__half" in line)
    for name, *texts in (
        ("a row that the generator did not read", unread, launchers),
        ("a kernel that has no row", shorter, launchers),
        ("a row that has no kernel", table, launchers.replace(line, "")),
    ):
        assert "has not read every row" in compile_launcher(tmp_path / name, *texts), name


def test_every_kernel_is_instantiated_once() -> None:
    kernels = kernel_instances.read_kernels(ROOT / kernel_instances.TABLE)
    texts = [kernel_instances.instances_text(group) for group in kernel_instances.instance_files(kernels).values()]
    assert len(kernels) > 200
    for kernel in kernels:
        line = f"template cudaError_t {kernel.function}<{kernel.arguments}>("
        assert sum(text.count(line) for text in texts) == 1
        assert f"{kernel.function}(" in (ROOT / "src" / kernel.header).read_text()


def test_instruction_set_files_share_no_functions() -> None:
    # The linker keeps one copy of an inline function or a template that several objects hold. A copy that came from a
    # file compiled for AVX-512 would then also run on machines without it. Names in isa_avx512 are that file's own.
    for isa in ("avx2", "avx512"):
        for source in ROOT.glob(f"src/**/*_{isa}.cc"):
            path = ROOT / "build/release" / source.relative_to(ROOT).with_suffix(".os")
            done = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True)
            weak = [line for line in done.stdout.splitlines() if re.match(r"\S+ [WVu] ", line)]
            shared = [line for line in weak if f"isa_{isa}::" not in line]
            assert not shared, f"{path.name} holds functions that other files may hold too:\n" + "\n".join(shared)


def test_core_includes_nothing_of_what_is_built_on_it() -> None:
    included = {
        header
        for path in (ROOT / "src/core").rglob("*")
        if path.is_file()
        for header in re.findall(r'#include "([^"]+)"', path.read_text())
    }
    assert not {header for header in included if header.startswith(("rnn/", "ctc/", "rnnt/"))}

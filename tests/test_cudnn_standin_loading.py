"""How the stand-in gets between a program and cuDNN, and when it lets every call through; with the library as built."""

import os
import pathlib
import pickle
import re
import shlex
import signal
import subprocess
import sys

import pytest
from standin_case import ROOT, build_fake, make_case, plain, run_client

from prnn.cli import main
from prnn.commands.failure import CommandError
from prnn.commands.run import _PLACEHOLDER, child_environment

LIBRARIES = ROOT / "prnn/lib"
STANDIN = LIBRARIES / "libprnn_cudnn.so"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("loading")


@pytest.fixture(scope="module")
def fake(folder: pathlib.Path) -> pathlib.Path:
    return build_fake(folder / "fake")


@pytest.fixture(scope="module")
def program(folder: pathlib.Path, fake: pathlib.Path) -> pathlib.Path:
    """tests/c/standin_loading.c, linked to the fake cuDNN as programs are linked to cuDNN."""
    source, target = ROOT / "tests/c/standin_loading.c", folder / "program"
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", source, fake, f"-Wl,-rpath,{fake.parent}", "-ldl"]
    subprocess.run(["gcc", *map(str, options), "-o", target], check=True, env=plain())
    return target


def answers(*command: object, **environment: str) -> list[list[str]]:
    """A line of the program for each way: file of cudnnRNNForward, file of cudnnGetVersion, calls that arrived."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=plain(**environment))
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def prnn_run(*arguments: object) -> list[object]:
    return [sys.executable, "-m", "prnn", "run", *arguments]


@pytest.fixture
def front(fake: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the library that `prnn run --front` preloads."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LD_PRELOAD", "")
    return child_environment(front=True, cudnn=str(fake))["LD_PRELOAD"]


def test_a_linked_program(program: pathlib.Path, fake: pathlib.Path) -> None:
    assert answers(program, "-") == [[str(fake), str(fake), "1"]]
    assert answers(program, "-", LD_PRELOAD=str(STANDIN)) == [[str(STANDIN), str(fake), "1"]]


def test_a_program_that_loads_cudnn_needs_the_front(program: pathlib.Path, fake: pathlib.Path) -> None:
    found = answers(program, "libcudnn.so.9", fake, LD_PRELOAD=str(STANDIN), LD_LIBRARY_PATH=str(fake.parent))
    assert found == [[str(fake), str(fake), "1"]] * 2


@pytest.mark.parametrize("first", ["by name", "by path"])
def test_the_front(program: pathlib.Path, fake: pathlib.Path, front: str, first: str) -> None:
    # As JAX does it: by path, to have it loaded, and then by name.
    ways = ["libcudnn.so.9", fake] if first == "by name" else [fake, "libcudnn.so.9"]
    taken, own = [str(STANDIN), str(fake), "1"], [str(fake), str(fake), "1"]
    assert answers(program, *ways, "-", LD_PRELOAD=front) == [
        *([taken, own] if first == "by name" else [own, taken]),
        taken,
    ]


@pytest.mark.parametrize("way", ["lazy", "global", "deepbind"])
def test_the_front_however_it_is_opened(program: pathlib.Path, fake: pathlib.Path, front: str, way: str) -> None:
    # TensorFlow, JAX and ONNX Runtime open it with RTLD_NOW alone, as above.
    assert answers(program, f"{way}:libcudnn.so.9", LD_PRELOAD=front) == [[str(STANDIN), str(fake), "1"]]


def test_what_stands_for_cudnns_path_may_be_looked_for() -> None:
    """By tools that follow what libraries need, auditwheel for one: a part longer than a file's name stops them."""
    (place,) = _PLACEHOLDER.findall((LIBRARIES / "libprnn_cudnn_front.so").read_bytes())
    with pytest.raises(FileNotFoundError):
        os.stat(place[:-1])


def test_a_path_of_cudnn_that_is_too_long(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path.joinpath(*(4 * [240 * "a"]), 50 * "a")
    folder.mkdir(parents=True)
    (folder / "libcudnn.so.9").write_bytes(b"")
    with pytest.raises(CommandError, match=r"libcudnn\.so\.9: the path is too long"):
        child_environment(front=True, cudnn=str(folder / "libcudnn.so.9"))


def test_the_front_is_written_where_nobody_else_can(fake: pathlib.Path, front: str) -> None:
    standin, written = front.split(":")
    assert standin == str(STANDIN)
    file = pathlib.Path(written)
    assert file.name == "libcudnn.so.9"
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0
    content = file.read_bytes()
    file.write_bytes(b"")  # damaged
    assert child_environment(front=True, cudnn=str(fake))["LD_PRELOAD"] == front
    assert file.read_bytes() == content
    file.parent.chmod(0o777)
    with pytest.raises(CommandError, match="can be written to by others"):
        child_environment(front=True, cudnn=str(fake))


def test_other_preloaded_libraries_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "libother.so")
    assert child_environment()["LD_PRELOAD"] == f"{STANDIN}:libother.so"


def test_the_launcher(fake: pathlib.Path) -> None:
    show = "import os; print(*(os.environ.get(name) for name in ('LD_PRELOAD', 'PRNN_CUDNN_LOG', 'A')))"
    command = list(map(str, prnn_run("--log", "--", sys.executable, "-c", show)))
    environment = plain(A="a b")
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout == f"{STANDIN} 1 a b\n", done.stderr


def test_the_program_has_nothing_else_of_the_launcher() -> None:
    show = [
        "sh",
        "-c",
        # The shell reads its status itself: while it starts a program, its signals are blocked.
        "env | grep -v LD_PRELOAD; ls /proc/$$/fd; printf '<%s>' \"$@\"; while read -r key value; do"
        " case $key in (SigBlk:|SigIgn:|Umask:) echo $key $value; esac; done </proc/$$/status",
    ]
    given = ["a b", "", "--", "--log", "--sep=--", "*", "'\"\\", "caf\xe9\n"]
    plainly, launched = (
        subprocess.run([*map(str, command), *show, "-", *given], capture_output=True, text=True, env=plain())
        for command in ((), prnn_run())
    )
    assert plainly.returncode == launched.returncode == 0, launched.stderr
    assert launched.stdout == plainly.stdout


NOTHING_ARRIVED = (
    "prnn: was loaded, but no call of cuDNN's recurrent layers has arrived on this machine (a program that loads cuDNN "
    "itself needs --front)\n"
)


def ran(temporary: pathlib.Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """`prnn run` with these arguments and a folder for temporary files."""
    temporary.mkdir()
    command = list(map(str, prnn_run(*arguments)))
    return subprocess.run(command, capture_output=True, text=True, env=plain(TMPDIR=str(temporary)))


def logged(temporary: pathlib.Path, *command: object) -> subprocess.CompletedProcess[str]:
    """Runs a program under `prnn run --log`. It leaves no file."""
    done = ran(temporary, "--log", "--", *command)
    assert not list(temporary.iterdir())
    return done


def test_that_no_call_arrived_is_said_once(tmp_path: pathlib.Path) -> None:
    processes = """
        import multiprocessing, os, subprocess, sys
        if os.fork() == 0: sys.exit()  # runs the exit handlers that it has inherited
        os.wait()
        assert os.path.isdir(os.environ["PRNN_CUDNN_LOG_MARK"].split(":", 1)[1])
        subprocess.run([sys.executable, "-c", ""], check=True)
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool: pool.map(abs, [1])
        sys.exit(3)
    """
    (tmp_path / "program.py").write_text("if __name__ == '__main__':" + processes)
    done = logged(tmp_path / "python", sys.executable, tmp_path / "program.py")
    assert (done.returncode, done.stderr) == (3, NOTHING_ARRIVED)
    done = logged(tmp_path / "bash", "bash", "-c", f"{sys.executable} -c ''; exec bash -c 'exit 4'")
    assert (done.returncode, done.stderr) == (4, NOTHING_ARRIVED)
    done = ran(tmp_path / "no log", "bash", "-c", "exit 5")
    assert (done.returncode, done.stderr) == (5, "")
    done = logged(tmp_path / "no program", tmp_path / "no program")
    assert (done.returncode, done.stderr) == (2, f"prnn: {tmp_path / 'no program'}: permission denied\n")
    done = ran(tmp_path / "killed", "--log", "bash", "-c", "kill -TERM $$")
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")


@pytest.mark.parametrize("place", ["first process", "child"])
def test_that_a_call_arrived_in_any_process(fake: pathlib.Path, tmp_path: pathlib.Path, place: str) -> None:
    (tmp_path / "job").write_bytes(pickle.dumps([make_case(0)]))
    client = [sys.executable, ROOT / "tests/cudnn_client.py", STANDIN, fake, tmp_path / "job", tmp_path / "results"]
    command = shlex.join(map(str, client))
    done = logged(tmp_path / "files", *(client if place == "first process" else ["bash", "-c", f"{command}; exit 0"]))
    assert done.returncode == 0
    assert "prnn: calls of cuDNN's recurrent layers" in done.stderr
    assert "float32, batch 3: forwarded: " in done.stderr
    assert NOTHING_ARRIVED not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "run needs a program: prnn run -- python train.py"),
        (["--", ""], "run needs a program: prnn run -- python train.py"),
        (["--log", "--"], "run needs a program: prnn run -- python train.py"),
        (["nonexistent-program"], "nonexistent-program: no such file or directory"),
        (["--front", "--cudnn", "nonexistent.so", "true"], "--cudnn nonexistent.so: there is no such file"),
        (["--cudnn", "libcudnn.so.9", "true"], "--cudnn is of use with --front only"),
    ],
)
def test_what_the_launcher_refuses(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = (signal.SIGPIPE, signal.SIGXFSZ)
    handlers = [signal.getsignal(number) for number in numbers]
    assert main(["run", *arguments]) == 2
    assert capsys.readouterr().err == f"prnn: {message}\n"
    assert [signal.getsignal(number) for number in numbers] == handlers


def test_exports() -> None:
    symbols = subprocess.run(["nm", "-D", "--defined-only", STANDIN], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in symbols.splitlines() if " T " in line}
    functions = (
        "cudnnGetRNNTempSpaceSizes",
        "cudnnRNNForward",
        "cudnnRNNBackwardData_v8",
        "cudnnRNNBackwardWeights_v8",
    )
    assert names == {f"{name}@@libcudnn.so.9" for name in functions}
    needed = subprocess.run(["readelf", "-d", STANDIN], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"NEEDED.*(prnn|gomp|cuda|cudnn)", needed)  # started with every process under prnn run


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PRNN_CUDNN": "off"}, ""),
        ({"PRNN_CUDNN": "yes"}, 'PRNN_CUDNN is "yes", which is neither on nor off'),
        ({"FAKE_CUDNN_VERSION": "100200"}, "libcudnn.so.9 is cuDNN 10; prnn stands in for version 9"),
        ({"FAKE_CUDNN_VERSION": "8907"}, "libcudnn.so.9 is cuDNN 8; prnn stands in for version 9"),
    ],
    ids=["off", "neither on nor off", "version 10", "version 8"],
)
def test_everything_is_forwarded(
    folder: pathlib.Path, fake: pathlib.Path, environment: dict[str, str], message: str
) -> None:
    (result,), said = run_client(folder, STANDIN, fake, [make_case(0)], **environment)
    assert result["calls"] == [1, 1, 1, 1]
    assert result["sizes"] == (1000, 500)
    assert said.count("\n") == (1 if message else 0)
    assert message in said


def test_a_cudnn_without_one_of_the_functions(folder: pathlib.Path) -> None:
    lacking = build_fake(folder / "lacking", "-DFAKE_WITHOUT_GET_CLIP")
    (result,), said = run_client(folder, STANDIN, lacking, [make_case(0)])
    assert result["calls"] == [1, 1, 1, 1]
    assert said == (
        f"prnn: cuDNN's recurrent layers run as without prnn: {lacking} has no function cudnnRNNGetClip_v9\n"
    )


LOADER = """
#include <dlfcn.h>
#include <cstdio>
#include "core/cuda/cudnn_library.h"
int main() {
  Dl_info info;
  dladdr(reinterpret_cast<void*>(prnn::require_cudnn_library().forward), &info);
  std::puts(info.dli_fname);
}
"""


def test_prnns_own_calls_go_past_the_stand_in(folder: pathlib.Path, fake: pathlib.Path, front: str) -> None:
    (folder / "loader.cc").write_text(LOADER)
    sources = [folder / "loader.cc", ROOT / "src/core/cuda/cudnn_library.cc", ROOT / "src/core/status.cc"]
    options = ["-std=c++17", f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}", *sources, "-ldl", "-o", folder / "loader"]
    subprocess.run(["g++", *map(str, options)], check=True, env=plain())
    assert answers(folder / "loader", LD_PRELOAD=front, PRNN_CUDNN_LIBRARY="") == [[str(fake)]]

"""`scons install` as a C or C++ programmer uses it: headers, library and pkg-config file under a prefix."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def options_of_build() -> list[str]:
    """The options of the build under test, so that nothing is compiled again and its clients have the same runtime:
    those that scripts/test says, or what the last run of scons wrote down."""
    if "PRNN_SCONS_OPTIONS" in os.environ:
        return os.environ["PRNN_SCONS_OPTIONS"].split()
    commands = (ROOT / "compile_commands.json").read_text()
    archs = sorted(set(re.findall(r"code=sm_(\w+)", commands)))
    return ["cuda=on", f"cuda_arch={','.join(archs)}"] if archs else ["cuda=off"]


SCONS_OPTIONS = options_of_build()
SANITIZERS = [
    f"-fsanitize={value}" for name, _, value in (o.partition("=") for o in SCONS_OPTIONS) if name == "sanitizers"
]
STRICT = ["-pedantic", "-Wall", "-Wextra", "-Werror", *SANITIZERS]

pytestmark = pytest.mark.xdist_group("scons")  # one run of scons at a time


def run(*command: object, **environment: str) -> str:
    # LD_PRELOAD is for the Python that runs the tests.
    environment = {**os.environ, **environment, "LD_PRELOAD": ""}
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("a prefix")
    run(sys.executable, "-m", "SCons", "-Q", *SCONS_OPTIONS, "install", f"prefix={folder}")
    return folder


def pkg_config(prefix: pathlib.Path, *what: str) -> list[str]:
    return shlex.split(run("pkg-config", *what, "prnn", PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig")))


def test_install_layout(prefix: pathlib.Path) -> None:
    (version,) = pkg_config(prefix, "--modversion")
    names = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}
    headers = {str(path.relative_to(ROOT)) for path in (ROOT / "include").rglob("*.h")}
    libraries = {f"lib/libprnn.so.{version}", f"lib/libprnn.so.{version.split('.')[0]}", "lib/libprnn.so"}
    cmake = {f"lib/cmake/prnn/prnn-config{part}.cmake" for part in ("", "-version")}
    assert names == headers | libraries | cmake | {"lib/pkgconfig/prnn.pc"}
    assert (prefix / "lib/libprnn.so").resolve().name == f"libprnn.so.{version}"


@pytest.mark.parametrize(
    ("libdir", "written"), [("lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"), ("/lib64", "/lib64")]
)
def test_a_package_is_made_in_a_folder_of_its_own(tmp_path: pathlib.Path, libdir: str, written: str) -> None:
    options = ("prefix=/usr", f"libdir={libdir}", f"destdir={tmp_path}")
    run(sys.executable, "-m", "SCons", "-Q", *SCONS_OPTIONS, "install", *options)
    folder = tmp_path / written[1:]
    assert {path.name for path in folder.glob("*.so")} == {"libprnn.so"}
    assert (tmp_path / "usr/include/persistent_rnn.h").exists()
    found = run("pkg-config", "--variable=libdir", "prnn", PKG_CONFIG_PATH=str(folder / "pkgconfig"))
    assert found.strip() == written


@pytest.mark.parametrize("option", ["prefix", "libdir"])
def test_a_folder_without_a_name(option: str) -> None:
    command = [sys.executable, "-m", "SCons", "-Q", *SCONS_OPTIONS, "install", f"{option}="]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, f"{option} is empty; it must be a folder" in done.stderr) == (2, True)


def test_exports_are_the_declared_functions(prefix: pathlib.Path) -> None:
    symbols = run("nm", "-D", "--defined-only", prefix / "lib/libprnn.so")
    exported = {line.split()[-1] for line in symbols.splitlines()}
    text = "".join(path.read_text() for path in (prefix / "include").glob("*.h"))
    assert exported == set(re.findall(r"^PRNN_API [^;(]*?(prnn\w+)\(", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("client", "compiler"),
    [("client.c", ["gcc", "-std=c99"]), ("client.cc", ["g++", "-std=c++11"])],
    ids=["C99", "C++"],
)
def test_client(prefix: pathlib.Path, tmp_path: pathlib.Path, client: str, compiler: list[str]) -> None:
    flags = pkg_config(prefix, "--cflags", "--libs")
    run(*compiler, *STRICT, ROOT / "tests/c" / client, "-o", tmp_path / "client", *flags, "-lm")
    assert run(tmp_path / "client", LD_LIBRARY_PATH=str(prefix / "lib")) == "ok\n"


LISTS = """
cmake_minimum_required(VERSION 3.16)
project(client C)
find_package(prnn {wanted} REQUIRED)
add_executable(client {root}/tests/c/client.c)
target_link_libraries(client PRIVATE prnn::prnn m)
target_link_options(client PRIVATE {flags})
"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake on this machine")
def test_client_of_cmake(prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (version,) = pkg_config(prefix, "--modversion")
    major, minor = map(int, version.split(".")[:2])

    def configure(wanted: str) -> subprocess.CompletedProcess[str]:
        text = LISTS.format(wanted=wanted, root=ROOT, flags=" ".join(SANITIZERS))
        (tmp_path / "CMakeLists.txt").write_text(text)
        command = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "out"), f"-DCMAKE_PREFIX_PATH={prefix}"]
        return subprocess.run(command, capture_output=True, text=True)

    for wanted in (f"{major}.{minor + 1}", f"{major + 1}.0"):
        refused = configure(wanted)
        assert refused.returncode != 0
        assert "compatible with requested version" in " ".join(refused.stderr.split())
    done = configure(f"{major}.{minor}")
    assert done.returncode == 0, done.stderr
    run("cmake", "--build", tmp_path / "out")
    assert run(tmp_path / "out/client") == "ok\n"  # the library is found where it was installed

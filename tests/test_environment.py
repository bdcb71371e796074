"""scripts/environment.sh and scripts/install_torch.py: environments are whole or made anew, and torch needs no CUDA."""

import ctypes
import importlib.metadata
import os
import pathlib
import runpy
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from prnn import _extras

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"

# Makes environments of a python that installs whatever does not say "broken".
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip "*) shift $(($# - 1)); cp "$1" "$(dirname "$0")/../installed" && ! grep broken "$1" >&2 ;;
esac
"""


class Checkout:
    """The scripts' environments of one requirement file, in a folder of their own."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root, self.environment = root, root / ".venv"
        (root / "requirements").mkdir()
        (root / "python").write_text(PYTHON)
        (root / "python").chmod(0o755)

    def use(self, requirements: str) -> subprocess.CompletedProcess[str]:
        (self.root / "requirements/some.txt").write_text(requirements)
        command = f"set -e; source {SCRIPTS / 'environment.sh'}; use_environment some.txt; echo $VIRTUAL_ENV"
        environment = {"PATH": os.environ["PATH"], "PYTHON": str(self.root / "python")}
        return subprocess.run(["bash", "-c", command], cwd=self.root, env=environment, capture_output=True, text=True)


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> Checkout:
    return Checkout(tmp_path)


def test_an_environment_is_made_once(checkout: Checkout) -> None:
    first, second = checkout.use("numpy\n"), checkout.use("numpy\n")
    made = "installing requirements/some.txt into .venv\n"
    assert (first.returncode, first.stdout) == (0, f"{made}{checkout.environment}\n"), first.stderr
    assert (second.returncode, second.stdout) == (0, f"{checkout.environment}\n")
    kept = checkout.environment / "kept"
    kept.touch()
    assert checkout.use("scipy\n").stdout.startswith(made)
    assert kept.exists()
    assert (checkout.environment / "installed").read_text() == "scipy\n"


def test_one_that_was_not_made_whole_is_made_anew(checkout: Checkout) -> None:
    failed = checkout.use("broken\n")
    assert failed.returncode != 0
    assert "requirements/some.txt were not installed into .venv" in failed.stderr
    (checkout.environment / "half").touch()
    assert checkout.use("broken\n").returncode != 0  # not there by mistake, either
    assert not (checkout.environment / "half").exists()
    assert checkout.use("numpy\n").returncode == 0


def test_libraries_that_are_not_installed_are_replaced_by_empty_ones(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library loads that is linked to such a one, with a versioned symbol, as long as it does not call it."""

    def link(name: str, source: str, *flags: str) -> None:
        command = ["gcc", "-shared", "-fPIC", "-Wl,-z,lazy", "-Wl,-rpath,$ORIGIN", "-x", "c", "-", "-x", "none"]
        command += ["-o", tmp_path / name, *flags]
        subprocess.run(command, input=source, text=True, check=True)

    (tmp_path / "versions").write_text("libaway.so.3 { *; };\n")
    link(
        "libaway.so.3",
        "int away() { return 1; }",
        "-Wl,-soname,libaway.so.3",
        f"-Wl,--version-script={tmp_path}/versions",
    )
    link("libuser.so", "int away(); int two() { return 2; } int three() { return away() + 2; }",
         "-Wl,--no-as-needed", str(tmp_path / "libaway.so.3"))  # fmt: skip
    (tmp_path / "libaway.so.3").unlink()
    monkeypatch.setattr(sys, "argv", ["install_torch.py", "0"])
    install_torch = runpy.run_path(str(SCRIPTS / "install_torch.py"))
    monkeypatch.setitem(install_torch["install_empty_libraries"].__globals__, "PACKAGES", tmp_path)
    install_torch["install_empty_libraries"](tmp_path)
    assert ctypes.CDLL(str(tmp_path / "libuser.so"), mode=os.RTLD_LAZY).two() == 2
    assert "RTLD_LAZY" in (tmp_path / "lazy_binding.pth").read_text()


@pytest.fixture
def cpu_index() -> Iterator[str]:
    """The address of an index that has a torch."""

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/torch/" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_machine_without_a_gpu_takes_torch_for_cpus(
    cpu_index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From PyTorch's index, where that answers."""
    monkeypatch.setattr(sys, "argv", ["install_torch.py", "--index"])
    script = runpy.run_path(str(SCRIPTS / "install_torch.py"))
    named = script["main"].__globals__
    for index, has_gpu, options in (
        (cpu_index, False, ["--extra-index-url", cpu_index]),
        (cpu_index, True, []),
        (f"{cpu_index}/none", False, []),
        ("http://127.0.0.1:9", False, []),
    ):
        monkeypatch.setitem(named, "CPU_INDEX", index)
        monkeypatch.setitem(named, "has_gpu", lambda has_gpu=has_gpu: has_gpu)
        assert script["index_options"]() == options


@pytest.mark.parametrize(("status", "whole"), [(0, False), (1, True)])
def test_a_torch_that_cannot_be_imported_is_installed_whole(
    status: int, whole: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["install_torch.py", "0"])
    script = runpy.run_path(str(SCRIPTS / "install_torch.py"))
    named, installed = script["main"].__globals__, []
    required = ["nvidia-cuda-runtime-cu12==1", "nvidia-cublas-cu12==1", "triton==1", "sympy"]
    monkeypatch.setitem(named, "PACKAGES", tmp_path)
    monkeypatch.setitem(named, "has_gpu", lambda: False)
    monkeypatch.setitem(named, "index_options", lambda: [])
    monkeypatch.setitem(named, "pip_install", lambda *arguments: installed.append(arguments))
    monkeypatch.setitem(named, "install_empty_libraries", lambda folder: (tmp_path / "lazy_binding.pth").touch())
    monkeypatch.setattr("importlib.metadata.requires", lambda name: required)
    monkeypatch.setattr("subprocess.run", lambda *arguments: subprocess.CompletedProcess(arguments, status))
    script["main"]("1.0")
    expected = [("--no-deps", "torch==1.0"), ("nvidia-cuda-runtime-cu12==1", "sympy")]
    assert installed == expected + [("torch==1.0",)] * whole
    assert (tmp_path / "lazy_binding.pth").exists() is not whole


def brought(requirements: list[str]) -> set[str]:
    """The packages that pip installs for these, with their own requirements, of those that are here."""
    found: set[str] = set()
    left = [(requirement, "") for requirement in requirements]
    while left:
        text, extra = left.pop()
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of CUDA, beside a torch without
        if name not in found or requirement.extras:
            left += [(inner, wanted) for inner in needed for wanted in ("", *requirement.extras)]
        found.add(name)
    return found


IMPORTS = """
import importlib, pkgutil, sys
from importlib.machinery import PathFinder

class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in sys.argv[1].split(",") else super().find_spec(name, path, target)

    @staticmethod
    def find_distributions(*arguments, **named):  # which packages ask for what they use where it is installed
        found = PathFinder.find_distributions(*arguments, **named)
        return (distribution for distribution in found if distribution.name not in sys.argv[2].split(","))

sys.meta_path[:] = [Present if finder is PathFinder else finder for finder in sys.meta_path]
import prnn.asr
for module in pkgutil.walk_packages(prnn.asr.__path__, "prnn.asr."):
    importlib.import_module(module.name)
"""


def test_the_extras_name_all_that_is_imported(tmp_path: pathlib.Path) -> None:
    """Also what a package imports and does not require itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    known = brought([*project["dependencies"], *extras["asr"], *extras["export"]])
    modules = importlib.metadata.packages_distributions()
    absent = {module for module, names in modules.items() if not known & {canonicalize_name(name) for name in names}}
    assert {"pytest", "pip"} < absent
    others = {name for names in modules.values() for name in names if canonicalize_name(name) not in known}
    command = [sys.executable, "-c", IMPORTS, ",".join(absent - {"prnn"}), ",".join(others - {"prnn"})]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_missing_package_is_of_the_extra_that_has_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {
        Requirement(requirement).name: extra for extra, requirements in extras.items() for requirement in requirements
    } == _extras._EXTRAS


def test_a_release_has_the_headers_of_the_oldest_jaxlib() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (jax,) = map(Requirement, extras["jax"])
    oldest = min(specifier.version for specifier in jax.specifier)
    assert f"\njaxlib=={oldest}.0\n" in (ROOT / "requirements/release.txt").read_text()


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_of_the_test_command_makes_nothing(word: str) -> None:
    done = subprocess.run(
        [SCRIPTS / "test", word], env={"PATH": os.environ["PATH"], "PYTHON": "false"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Checks style")
    assert "--full" in done.stdout
    assert "set -e" not in done.stdout

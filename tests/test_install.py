"""pip installs what SCons builds: from the source distribution, as a copy and editable, into fresh environments."""

import os
import pathlib
import subprocess
import sysconfig
import venv

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPORT = "import prnn, prnn._C, os; print(prnn.__version__, os.path.dirname(prnn.__file__), prnn._C.__file__)"

pytestmark = pytest.mark.xdist_group("install")  # one source tree for all


@pytest.fixture
def python(tmp_path: pathlib.Path) -> pathlib.Path:
    """The interpreter of a fresh environment that sees this one's packages."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return tmp_path / "venv/bin/python"


def run(*command: object, cwd: pathlib.Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout


def pip_install(python: pathlib.Path, source: pathlib.Path, *options: str) -> None:
    settings = (
        "--config-settings=cuda=off",
        f"--config-settings=cache={ROOT / os.environ.get('PRNN_CACHE', 'build/cache')}",
    )
    options += ("--no-deps", "--no-build-isolation", *settings)
    run(python, "-m", "pip", "install", "--quiet", *options, cwd=source)


def test_groups_have_a_worker_each(request: pytest.FixtureRequest) -> None:
    """By suffixes of the tests' names, which pytest-xdist 3.8 fails to write with pytest 9.2."""
    if request.config.getoption("loadgroup", False):
        assert request.node.nodeid.endswith("@install")


def test_pip_install(source: pathlib.Path, python: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pip_install(python, source, ".")
    version, package, extension = run(python, "-c", REPORT, cwd=tmp_path).split()
    assert version == source.name.removeprefix("prnn-")
    assert package.startswith(str(tmp_path / "venv"))
    assert extension == f"{package}/_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    assert pathlib.Path(package, "py.typed").exists()


def test_pip_install_editable(source: pathlib.Path, python: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pip_install(python, source, "--editable", ".")
    _, package, extension = run(python, "-c", REPORT, cwd=tmp_path).split()
    assert package == str(source / "prnn")
    assert extension == f"{package}/_C{sysconfig.get_config_var('EXT_SUFFIX')}"


@pytest.mark.parametrize("option", ["--config-settings=cudda=off", "--config-settings=mode=fast"])
def test_failed_build_fails_the_installation(source: pathlib.Path, python: pathlib.Path, option: str) -> None:
    command = [python, "-m", "pip", "install", "--no-deps", "--no-build-isolation", option, "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode != 0
    assert "prnn was not built: scons ended with exit status 2" in done.stdout + done.stderr

"""The wheel of ./scripts/wheel, in an environment that has torch and nothing of the checkout."""

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "site_scons"))
import pep517  # noqa: E402
import python_builds  # noqa: E402

BUILD = ROOT / "site_scons/portable_wheel.py"
SETTINGS = ["cuda=off", f"cache={ROOT / os.environ.get('PRNN_CACHE', 'build/cache')}"]

pytestmark = pytest.mark.xdist_group("install")  # one source tree for all


@pytest.fixture(scope="module")
def wheel(source: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("wheel")
    said = run(sys.executable, source / BUILD.relative_to(ROOT), "--output", folder, *SETTINGS, cwd=source)
    (wheel,) = folder.iterdir()
    assert re.search(rf"^{re.escape(str(wheel))}: \d+\.\d MB\n", said, re.MULTILINE)
    return wheel


@pytest.fixture(scope="module")
def python(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The interpreter of a fresh environment with the wheel, which sees this one's packages."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    return folder / "bin/python"


def run(*command: object, cwd: pathlib.Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, text=True, capture_output=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_name_and_contents(wheel: pathlib.Path) -> None:
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(rf"prnn-[\d.]+\+cpu-{version}-{version}-manylinux_2_\d+_\w+\.whl", wheel.name)


def test_only_a_wheel_without_cuda_says_so(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its name and metadata, and only where the wheel is for others."""
    monkeypatch.setattr(pep517, "ROOT", tmp_path)
    monkeypatch.setattr(pep517, "_run_scons", lambda settings: None)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    library = tmp_path / "prnn/lib/libprnn.so.0"
    library.parent.mkdir(parents=True)
    version = pep517.read_version()
    for code, names_device, wanted in (
        (b"", True, f"{version}+cpu"), (b".nv_fatbin", True, version), (b"", False, version),
    ):  # fmt: skip
        library.write_bytes(b"\x7fELF" + code)
        name = pep517.build_wheel(tmp_path, names_device=names_device)
        assert name.startswith(f"prnn-{wanted}-cp")
        with zipfile.ZipFile(tmp_path / name) as archive:
            assert f"\nVersion: {wanted}\n" in archive.read(f"prnn-{wanted}.dist-info/METADATA").decode()


def test_tags_of_one_python_and_of_several() -> None:
    one = python_builds.python_build(sys.executable)
    assert one.suffix == sysconfig.get_config_var("EXT_SUFFIX")
    assert one.version == one.abi == f"cp{sys.version_info.major}{sys.version_info.minor}"
    other = python_builds.PythonBuild(".cpython-399-x86_64-linux-gnu.so", "cp399", "cp399", [])
    platform = sysconfig.get_platform().replace("-", "_")
    assert pep517._wheel_tags([one]) == [f"{one.version}-{one.version}-{platform}"]
    assert pep517._wheel_tags([one, other]) == [f"{one.version}-none-{platform}", f"cp399-none-{platform}"]


def test_a_wheel_of_several_pythons(tmp_path: pathlib.Path) -> None:
    """Its name, and what it says of itself."""
    pythons = [python_builds.PythonBuild(f".{name}.so", name, name, []) for name in ("cp311", "cp313")]
    name = pep517._write_wheel(tmp_path, {"prnn/_C.cp311.so": b"1", "prnn/_C.cp313.so": b"2"}, pythons)
    python, abi, platform = name.removesuffix(".whl").split("-")[2:]
    assert (python, abi) == ("cp311.cp313", "none")
    with zipfile.ZipFile(tmp_path / name) as archive:
        (said,) = (archive.read(entry).decode() for entry in archive.namelist() if entry.endswith("/WHEEL"))
    assert re.findall("Tag: (.*)", said) == [f"cp311-none-{platform}", f"cp313-none-{platform}"]


def test_an_older_python_is_told_which_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(SystemExit, match=r"prnn requires Python >= 3\.11; this is "):
        pep517._metadata()


def test_what_it_must_do(python: pathlib.Path, tmp_path: pathlib.Path) -> None:
    place = run(python, ROOT / "tests/installed_program.py", ROOT / "README.md", cwd=tmp_path).strip()
    assert pathlib.Path(place).is_relative_to(python.parents[1])


def test_command_line(python: pathlib.Path, tmp_path: pathlib.Path) -> None:
    program = python.parent / "prnn"
    assert run(program, "info", cwd=tmp_path).startswith("prnn ")
    arguments = [
        "--threads",
        "1",
        "--steps",
        "2",
        "--seconds",
        "0.01",
        "--cells",
        "LSTM",
        "--hidden",
        "8",
        "--batch",
        "1",
    ]
    assert "LSTM" in run(program, "bench", "--device", "cpu", "rnn", *arguments, cwd=tmp_path)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("cuda", "write NAME=VALUE"),
        ("cudda=off", "not built"),
        ("pythons=/nonexistent/python", "/nonexistent/python is no Python that runs"),
    ],
)
def test_bad_options_are_refused(argument: str, message: str, tmp_path: pathlib.Path) -> None:
    command = [sys.executable, str(BUILD), "--output", str(tmp_path / "out"), argument]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert message in done.stderr
    assert not (tmp_path / "out").exists()

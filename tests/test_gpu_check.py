"""scripts/gpu_check without a GPU: which tests it runs, limits of time, and the table at its end."""

import dataclasses
import importlib.util
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SPEC = importlib.util.spec_from_file_location("gpu_groups", ROOT / "scripts/gpu_groups.py")
assert SPEC is not None
assert SPEC.loader is not None
gpu: Any = importlib.util.module_from_spec(SPEC)
sys.modules["gpu_groups"] = gpu
SPEC.loader.exec_module(gpu)

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
GOOD, BAD = (sys.executable, "-c", "print('found')"), (sys.executable, "-c", "raise SystemExit(3)")


def test_every_test_of_a_gpu_is_in_a_group() -> None:
    run = {word for group in gpu.groups() if group.is_tests for command in group.commands for word in command}
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        of_gpu = re.search(r"needs a GPU|needs_gpu|os.environ.*CUDA_VISIBLE", path.read_text())
        if of_gpu and path.name != pathlib.Path(__file__).name:
            assert f"tests/{path.name}" in run, path.name
    assert {word for word in run if word.startswith("tests/")} <= {
        f"tests/{p.name}" for p in (ROOT / "tests").iterdir()
    }


def test_expressions_of_sanitizers_choose_tests() -> None:
    """Words of -k that no test has any more would check nothing."""
    for group in gpu.groups():
        for command in group.commands:
            if command[0] != "compute-sanitizer" or "-k" not in command:
                continue
            text = (ROOT / command[-3]).read_text()
            words = set(re.findall(r"\w+", command[-1])) - {"and", "or", "not", "cuda"}
            assert words
            assert [word for word in words if word not in text] == [], group.name


def test_choice() -> None:
    known = gpu.groups()
    assert gpu.choose([], known) == known
    assert [g.name for g in gpu.choose(["layers=7.5", "search"], known)] == ["search", "layers"]
    assert gpu.choose(["layers=7.5"], known)[0].seconds == 7.5
    assert all(g.name.startswith("memcheck_") for g in gpu.choose(["memcheck"], known))
    assert all(g.is_tests for g in gpu.choose(["tests"], known))
    assert len({g.name for g in known}) == len(known)
    for words, message in (["nothing"], "no group 'nothing'"), (["search=soon"], "the seconds of search are 'soon'"):
        with pytest.raises(ValueError, match=message):
            gpu.choose(words, known)


def test_wrong_names_are_refused_before_anything_is_built() -> None:
    done = subprocess.run([ROOT / "scripts/gpu_check", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "there is no group 'nothing'" in done.stderr
    assert done.stdout == ""


def test_limits_and_table(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(gpu, "_GRACE", 0.1)
    groups = [
        gpu.Group("good", 60, (GOOD, GOOD)),
        gpu.Group("bad", 60, (GOOD, BAD)),
        gpu.Group("missing", 60, (("a-program-that-there-is-not",),)),
        gpu.Group("slow", 0.2, (GOOD, SLEEP, GOOD)),
        gpu.Group("slower", 60, (SLEEP,)),
        gpu.Group("late", 60, (GOOD,)),
    ]
    begin = time.monotonic()
    outcomes = gpu.run_all(groups, 3.0, tmp_path / "logs")
    assert time.monotonic() - begin < 20
    assert [(o.passed, o.failed) for o in outcomes] == [(2, 0), (1, 1), (0, 1), (1, 0), (0, 0), (0, 0)]
    assert [o.note[:7] for o in outcomes] == ["", "", "", "stopped", "stopped", "not run"]
    assert "found" in (tmp_path / "logs/good.log").read_text()
    assert "raise SystemExit(3)" in capsys.readouterr().out  # of what failed the log is shown
    rows = gpu.table(outcomes).splitlines()
    assert rows[0].split() == ["group", "passed", "failed", "seconds"]
    assert rows[2].split() == ["bad", "1", "1", "0"]
    assert rows[4].endswith("stopped at its limit of 0 s")


def test_tests_are_counted_also_of_a_group_that_is_stopped(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(gpu, "_GRACE", 0.1)
    file = tmp_path / "test_it.py"
    file.write_text("import time\ndef test_a(): pass\ndef test_b(): assert 0\ndef test_c(missing): pass\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds
    options = ("-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "xdist", "-n", "1", str(file))
    group = gpu.Group("some", 60, ((sys.executable, *options),))
    outcome = gpu.run(group, 60, tmp_path / "log")
    assert (outcome.passed, outcome.failed, outcome.note) == (1, 2, "")
    nothing = dataclasses.replace(group, commands=((sys.executable, *options, "-k", "nothing"),))
    assert gpu.run(nothing, 60, tmp_path / "log").failed == 1
    lines = "tests/test_it.py::test_a PASSED    [ 50%]\ntests/test_it.py::test_b[x y] FAILED   [100%]\n"
    assert gpu._counts(lines) == (1, 1)


def test_what_runs_last(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(gpu, "_GRACE", 0.1)
    marked = tmp_path / "marked"
    last = (sys.executable, "-c", f"open({str(marked)!r}, 'w')")
    outcome = gpu.run(gpu.Group("slow", 1, (SLEEP,), last), 0.1, tmp_path / "log")
    assert marked.exists()
    assert outcome.note == "stopped at its limit of 0 s"

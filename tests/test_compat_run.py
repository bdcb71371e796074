"""`prnn run --compat`: programs that import packages whose losses are replaced, in each of their processes."""

import os
import pathlib
import subprocess
import sys

import pytest
from test_compat_install import WHOLE

import prnn.compat
from prnn.cli import main
from prnn.commands import run
from prnn.compat import _count, nemo, transformers
from prnn.compat.startup import sitecustomize

FUNCTIONAL = "def rnnt_loss(*_, **__): raise AssertionError\nforced_align = rnnt_loss\n"
PACKAGES = {
    "torchaudio/__init__.py": "from torchaudio import functional, transforms\n",
    "torchaudio/functional.py": FUNCTIONAL,
    "torchaudio/transforms.py": "RNNTLoss = None\n",
    "sitecustomize.py": "import builtins\nbuiltins.own_sitecustomize = True\n",
}
PROGRAM = """
import multiprocessing, sys
assert "prnn" not in sys.modules and own_sitecustomize

def work(_):
    import torch
    from torchaudio.functional import rnnt_loss
    import warp_rnnt
    assert warp_rnnt.__name__ == "prnn.compat.warp_rnnt"
    logits = torch.zeros(1, 2, 2, 3, requires_grad=True)
    return float(rnnt_loss(logits, torch.tensor([[1]]), torch.tensor([2]), torch.tensor([1])).detach())

if __name__ == "__main__":
    if "fork" in sys.argv:
        print(work(0))
        for calls in (2, 0):
            process = multiprocessing.get_context("fork").Process(target=lambda: [work(0) for _ in range(calls)])
            process.start()
            process.join()
        sys.exit()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [0])[0], work(0))
    sys.exit(3)
"""


@pytest.fixture
def packages(tmp_path: pathlib.Path) -> pathlib.Path:
    for name, text in PACKAGES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def launched(
    packages: pathlib.Path, *arguments: str, program: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    root = pathlib.Path(prnn.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(root)])}
    command = [
        sys.executable,
        "-m",
        "prnn",
        "run",
        *arguments,
        "--",
        sys.executable,
        str(packages / "program.py"),
        *program,
    ]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_each_process_of_a_program(packages: pathlib.Path) -> None:
    done = launched(packages, "--log", "--compat", "torchaudio,warp_rnnt")
    assert done.returncode == 3, done.stderr
    first, second = map(float, done.stdout.split())
    assert first == second == pytest.approx(2.6027, abs=1e-3)  # 2 paths of 3 arcs, each a third
    for target in ("torchaudio.functional.rnnt_loss", "torchaudio.transforms.RNNTLoss", "warp_rnnt"):
        assert done.stderr.count(f"prnn.compat: {target} is prnn's\n") == 2
    assert "prnn: calls of losses and searches: rnnt_loss 1\n" in done.stderr


def test_calls_of_forked_processes_are_counted(packages: pathlib.Path) -> None:
    """Each says its own, one without calls nothing."""
    done = launched(packages, "--log", "--compat", "torchaudio,warp_rnnt", program=("fork",))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "calls of losses" in line]
    assert lines == [f"prnn: calls of losses and searches: rnnt_loss {count}" for count in (2, 1)]


def test_a_package_that_cannot_be_replaced_stays(packages: pathlib.Path) -> None:
    (packages / "torchaudio/transforms.py").unlink()
    (packages / "torchaudio/__init__.py").write_text("from torchaudio import functional\n")
    (packages / "program.py").write_text("import torchaudio; print(torchaudio.functional.rnnt_loss.__module__)")
    done = launched(packages, "--compat", "torchaudio")
    assert done.stdout == "torchaudio.functional\n"
    assert "prnn run: torchaudio keeps its own functions: ImportError: torchaudio cannot be imported" in done.stderr


def test_names_that_there_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--compat", "torchaudio,espnet", "--", "true"]) == 2
    assert "--compat torchaudio,espnet: 'espnet' is none of fast_rnnt, flashrnn, k2, nemo" in capsys.readouterr().err


def test_tables_agree() -> None:
    known = (*prnn.compat._WHOLE, *prnn.compat._PARTS)
    assert sorted(known) == sorted(run._PACKAGES) == sorted((*sitecustomize.WHOLE, *sitecustomize.MODULES))
    assert sorted(sitecustomize.WHOLE) == sorted(WHOLE)
    assert sitecustomize.MODULES["transformers"] == transformers.TRIGGERS
    assert sitecustomize.MODULES["nemo"] == nemo.TRIGGERS
    assert all(hasattr(prnn, name) for name in _count.NAMES)

"""Commands that the system lacks something for, or ends a part of: a sentence each."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from asr_data import write_corpus

from prnn.commands.failure import CommandError
from prnn.commands.run import _private_folder

TRAIN = [
    "train", "--epochs", "1", "--hidden", "4", "--layers", "1", "--accelerator", "cpu", "--pictures", "0",
    "--no-progress",
]  # fmt: skip


def run(folder: Path, *options: str, prepare: str) -> subprocess.CompletedProcess[str]:
    manifest = str(write_corpus(folder, "tones", ["ab", "c", "b", "ca"]))
    program = f"{prepare}\nimport sys\nfrom prnn.cli import main\nsys.exit(main(sys.argv[1:]))"
    more = ["--manifest", manifest, "--valid", manifest, "--output", str(folder / "out")]
    return forked.run("-c", program, *TRAIN, *more, *options)


def test_a_process_that_prepares_batches_is_killed(tmp_path: Path) -> None:
    """As the kernel does with one that takes too much memory."""
    prepare = """
import os, signal
import prnn.asr.dataset as dataset
from torch.utils.data import get_worker_info

def killed(self, request):
    os.kill(os.getpid() if get_worker_info() else 0, signal.SIGKILL)

dataset.UtteranceDataset.batch = killed
"""
    done = run(tmp_path, "--workers", "1", prepare=prepare)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("prnn: a process that prepares batches was ended from outside, as a system does that has no")
    assert "take fewer --workers or a smaller batch" in line


def test_few_open_files(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))"
    done = run(tmp_path, "--workers", "2", prepare=limit)
    assert done.returncode == 2
    expected = (
        "prnn: a process may have 16 files open here (ulimit -n), and 2 workers need 60; raise the limit, or take"
    )
    assert done.stderr.startswith(expected)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["train", "transcribe"])
def test_little_address_space(command: str) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (400_000_000, 400_000_000))

    command_line = [sys.executable, "-m", "prnn", command, "model.ckpt"]
    done = subprocess.run(command_line, capture_output=True, text=True, check=False, preexec_fn=limited)
    assert done.returncode == 2
    expected = "prnn: the address space of this process is limited to 400 MB (ulimit -v); torch and prnn take 1000 MB"
    assert done.stderr.startswith(expected)
    assert done.stderr.count("\n") == 1


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 5)
    with pytest.raises(CommandError, match="this user has no home folder for --front to write to; set XDG_CACHE_HOME"):
        _private_folder("cudnn")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _private_folder("cudnn") == tmp_path / "prnn" / "cudnn"
    assert os.stat(tmp_path / "prnn" / "cudnn").st_mode & 0o77 == 0

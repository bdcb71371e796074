"""How files are replaced: whole or not at all, and no other file is touched."""

import errno
import os
import re
import stat
from pathlib import Path

import pytest

from prnn.asr import InputError
from prnn.asr.folder import locked, replacing, written


def links(folder: Path, name: str) -> Path:
    """A file, to which links lead by names that something else might use for a file in the making."""
    other = folder / "other"
    other.write_text("precious")
    for link in (f"{name}.partial", f"{name}.tmp", f"{name}.{os.getpid()}.partial"):
        (folder / link).symlink_to(other)
    return other


@pytest.mark.parametrize("write", [replacing, written])
def test_no_link_is_followed(tmp_path: Path, write: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that has by chance the name of the file in the making."""
    other = links(tmp_path, "results")
    with write(tmp_path / "results") as file:  # type: ignore[operator]
        assert Path(file.name) not in {tmp_path / "results", tmp_path / "results.partial"}
        assert Path(file.name).parent == tmp_path
        file.write(b"new")
    assert ((tmp_path / "results").read_text(), other.read_text()) == ("new", "precious")
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    (tmp_path / f"results.{'0' * 16}.partial").symlink_to(other)
    with pytest.raises(FileExistsError), write(tmp_path / "results"):  # type: ignore[operator]
        pass
    assert ((tmp_path / "results").read_text(), other.read_text()) == ("new", "precious")
    assert (tmp_path / f"results.{'0' * 16}.partial").is_symlink()


def test_a_file_has_the_mode_of_the_process(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "a") as file:
            file.write(b"a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a crash of the machine may leave the name with nothing behind it."""
    (tmp_path / "a").write_text("old")
    done: list[str] = []
    fsync, rename = os.fsync, os.replace

    def synchronised(descriptor: int) -> None:
        done.append(f"{os.fstat(descriptor).st_size} bytes on the disk")
        fsync(descriptor)

    def renamed(old: Path, new: Path) -> None:
        done.append(f"{new.name} in place")
        rename(old, new)

    monkeypatch.setattr("os.fsync", synchronised)
    monkeypatch.setattr("os.replace", renamed)
    with replacing(tmp_path / "a") as file:
        file.write(b"new")
    assert done == ["3 bytes on the disk", "a in place"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_a_kill_has_left_is_removed(tmp_path: Path) -> None:
    """By the next training in the folder; the user's own files stay."""
    for name in ("last.ckpt.0123456789abcdef.partial", "options.json.0123456789abcdef.partial", "my.partial", "a.ckpt"):
        (tmp_path / name).touch()
    with locked(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ckpt", "lock", "my.partial"]


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.lockf", refuse)
    message = f"{tmp_path}: its file system keeps no locks (no locks available), without which two trainings could"
    with pytest.raises(InputError, match=re.escape(message)), locked(tmp_path):
        pass

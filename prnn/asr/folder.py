"""The folder of a training: what lies in it, who may write to it, and how its files are replaced."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from prnn._fields import from_plain, shown

from .errors import InputError
from .options import TrainingOptions

# Options that a training may be continued with others of.
_FREE = (
    "output", "epochs", "steps", "average", "average_of", "accelerator", "devices", "num_nodes", "checkpoint_every",
    "valid_every", "log_every", "pictures", "workers", "cache_gb", "features_on",
)  # fmt: skip


def last_checkpoint(output: Path) -> Path:
    """From where an interrupted training goes on."""
    return output / "last.ckpt"


def how_to_go_on(output: Path, restart: bool) -> str:
    """The words of a message about an interrupted training that can go on; empty if it has no checkpoint yet.

    Args:
        output: its folder.
        restart: whether it was begun with --restart.
    """
    last = last_checkpoint(output)
    command = f"the same command{' without --restart' if restart else ''}"
    return f"{command} goes on from {last}" if last.exists() else ""


def averaged_checkpoint(output: Path) -> Path:
    """The mean of several validated models."""
    return output / "averaged.ckpt"


def validated_checkpoint(output: Path, step: int) -> Path:
    """A model kept for that mean."""
    return output / f"validated-{step:09d}.ckpt"


def best_checkpoint(output: Path) -> Path:
    """The model with the best validation."""
    return output / "model.ckpt"


def require_place(path: Path) -> None:
    """Raises OSError unless a file can be written there, before the work whose results it is to hold."""
    if path.is_dir():
        reason = errno.EISDIR
    elif not path.parent.is_dir():
        reason = errno.ENOENT
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = errno.EROFS if os.statvfs(path.parent).f_flag & os.ST_RDONLY else errno.EACCES
    else:
        return
    raise OSError(reason, os.strerror(reason), str(path))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write in the place of ``path``, which stays as it is until all has been written: a kill or a full disk
    leaves the old file or the new one. A kill may leave the new one under a name of its own, FILE.RANDOM.partial.

    Raises:
        OSError: with the name of the file, whatever the writer made of it.
    """
    partial: Path | None = None
    try:
        name = Path(f"{path}.{secrets.token_hex(8)}.partial")
        with name.open("xb") as file:  # which opens nothing that is there, a link neither
            partial = name
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except Exception as error:
        if partial is not None:
            partial.unlink(missing_ok=True)
        cause: BaseException | None = error  # torch.save has an error of its own for what Python's file raised
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        if cause is None:
            raise
        raise OSError(cause.errno, cause.strerror, str(path)) from error


def written(path: Path) -> AbstractContextManager[BinaryIO]:
    """A file for results, which takes its place whole; devices, pipes and links are written to as they are."""
    return path.open("wb") if path.is_symlink() or (path.exists() and not path.is_file()) else replacing(path)


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Makes the folder and keeps other trainings out of it, until the end of the block or of the process.

    Raises:
        InputError: not a folder, a name that is not UTF-8, or another training is running there.
    """
    try:
        str(output).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{output}: its name is not UTF-8, as those of the logs in it must be") from error
    if output.exists() and not output.is_dir():
        raise InputError(f"{output}: not a folder")
    output.mkdir(parents=True, exist_ok=True)
    # POSIX record locks: the processes that prepare batches, forked from this one, do not inherit them.
    with (output / "lock").open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise InputError(f"{output}: another training is running there; wait, or take another --output") from error
        except OSError as error:
            raise InputError(
                f"{output}: its file system keeps no locks ({(error.strerror or str(error)).lower()}), without which "
                "two trainings could write there at once; take an --output on another one, or mount this one with locks"
            ) from error
        for path in (*output.glob("*.ckpt.*.partial"), *output.glob("options.json.*.partial")):  # a kill has left them
            path.unlink(missing_ok=True)
        yield


def _bound(options: TrainingOptions) -> dict[str, object]:
    """The options that an interrupted training must have again, with the names that a configuration gives them."""
    plain = {name: value for name, value in asdict(options).items() if name not in _FREE}
    plain["model"] = options.transducer(vocab_size=2, feature_dim=1).to_dict()
    bound: dict[str, object] = {}
    for name, value in plain.items():
        bound |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
    return bound


def _record(output: Path) -> Path:
    """The options of a folder's training."""
    return output / "options.json"


def require_same_options(options: TrainingOptions, restart: bool) -> None:
    """Refuses the folder if its training had other options.

    Args:
        options: of the training that is to run.
        restart: whether what the folder holds is deleted.

    Raises:
        InputError: the folder's options cannot be read, or are others.
    """
    output, record = options.output, _record(options.output)
    if restart:
        for path in (last_checkpoint(output), best_checkpoint(output), averaged_checkpoint(output)):
            path.unlink(missing_ok=True)
        for path in output.glob("validated-*.ckpt"):
            path.unlink(missing_ok=True)
    if record.is_file() and last_checkpoint(output).is_file():
        try:
            old = from_plain(TrainingOptions, json.loads(record.read_text(encoding="utf-8")), "training")
        except (ValueError, TypeError, RecursionError) as error:  # ValueError: not UTF-8, not JSON
            raise InputError(f"{record}: {shown(error, str)}; take another --output, or --restart") from error
        before, now = _bound(old), _bound(options)
        for name, value in now.items():
            if before[name] != value:
                raise InputError(
                    f"{output} holds a training with {name} {shown(before[name], str)}, not {shown(value, str)}: "
                    "take another --output, or --restart"
                )


def record_options(options: TrainingOptions) -> None:
    """Writes the options into the folder."""
    with replacing(_record(options.output)) as file:
        file.write((json.dumps(asdict(options), indent=2, default=str) + "\n").encode())

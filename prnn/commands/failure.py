"""How a command says that it cannot go on."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prnn._errors import NotSupportedError
from prnn._extras import install_command
from prnn.asr.errors import InputError, InputWarning

# torch's words where a worker finds no room, or is killed for that, or may not make a file so large (ulimit -f)
_NO_SHARED_MEMORY = ("shared memory(shm)", "workers are out of shared memory", "unable to resize file </torch_")
_MOST_WARNINGS = 3  # of which each recording of a large manifest might have one


class CommandError(Exception):
    """Its message is the one sentence that the user reads before exit status 2."""


@contextmanager
def _warnings_shown() -> Iterator[None]:
    """Prints the first warnings about input as sentences that begin with the program's name."""
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("always", InputWarning)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            nonlocal count
            if not issubclass(category, InputWarning):
                others(message, category, *where, **more)
                return
            count += 1
            if count <= _MOST_WARNINGS:
                print(f"prnn: {message}", file=sys.stderr)
            elif count == _MOST_WARNINGS + 1:
                print("prnn: there are more warnings like these, which are not shown", file=sys.stderr)

        warnings.showwarning = show
        yield


@contextmanager
def reported() -> Iterator[None]:
    """Turns unusable input, what prnn does not support, and packages that are not installed into a CommandError, whose
    message follows the program's name. Warnings about input are printed."""
    try:
        with _warnings_shown():
            yield
    except (InputError, NotSupportedError) as error:
        raise CommandError(str(error)) from error
    except ModuleNotFoundError as error:
        raise CommandError(_missing(error)) from error
    except BrokenPipeError:
        raise
    except OSError as error:  # a folder that cannot be written, a full disk
        place = "" if error.filename is None else f"{error.filename}: "
        raise CommandError(f"{place}{(error.strerror or str(error)).lower()}") from error
    except (MemoryError, RuntimeError) as error:
        if any(words in str(error) for words in _NO_SHARED_MEMORY):
            raise CommandError(
                "/dev/shm has no room for the batches that --workers prepare ahead; take fewer workers, "
                "or make it larger (docker run --shm-size), or files there (ulimit -f)"
            ) from error
        if re.search("DataLoader worker .*(killed by signal|exited unexpectedly)", str(error)):
            raise CommandError(
                "a process that prepares batches was ended from outside, as a system does that has no memory left; "
                "take fewer --workers or a smaller batch, and go on with the same command"
            ) from error
        scarce = "out of memory" in str(error) or "can't allocate memory" in str(error)  # torch's words
        if not isinstance(error, MemoryError) and not scarce:
            raise
        raise CommandError("not enough memory; take a smaller model, batch or beam") from error


def _missing(error: ModuleNotFoundError) -> str:
    return f"the package {error.name} is not installed; {install_command(error.name or '')} brings it"

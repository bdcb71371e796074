"""``prnn run``: an unmodified program whose recurrent layers on cuDNN are served by prnn where prnn is faster, and, if
asked for, the transducer losses of the packages that it imports."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import pathlib
import re
import signal
import stat
import tempfile
from collections.abc import Sequence

from prnn.commands.failure import CommandError

_PACKAGE = pathlib.Path(__file__).resolve().parent.parent
_LIBRARIES = _PACKAGE / "lib"
_PACKAGES = (
    "fast_rnnt",
    "flashrnn",
    "k2",
    "nemo",
    "optimized_transducer",
    "speechbrain",
    "tirex",
    "torchaudio",
    "transformers",
    "warp_rnnt",
    "warpctc_pytorch",
    "warprnnt_pytorch",
    "xlstm",
)  # of prnn.compat, which is not imported here, for it imports torch
_PLACEHOLDER = re.compile(rb"/prnn-cudnn-path[-/]+\0")  # site_scons/site_tools/cudnn_standin.py


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "run",
        help="run an unmodified program (PyTorch, JAX) with prnn in the place of cuDNN's recurrent layers",
        usage="prnn run [-h] [--compat NAME[,NAME ...]] [--log] [--front] [--cudnn FILE] -- COMMAND [ARGUMENT ...]",
        description="Run a program with prnn in the place of cuDNN 9's recurrent layers, wherever prnn's kernels are "
        "faster; cuDNN serves the rest. Sets the program's environment (LD_PRELOAD, and PYTHONPATH with --compat) and "
        "changes nothing else. With PRNN_CUDNN=off in the environment, cuDNN serves every call.",
    )
    parser.add_argument(
        "--compat",
        metavar="NAME[,NAME ...]",
        help="also puts prnn's losses and sLSTM in the place of these packages', in every process of the program, as "
        f"prnn.compat.install does, and says so on stderr: {', '.join(_PACKAGES)}",
    )
    parser.add_argument(
        "--log",
        action="store_true",
        help="print at the end which calls prnn took and which not, why, and their time; with --compat also how often "
        "losses and searches were called",
    )
    parser.add_argument(
        "--front",
        action="store_true",
        help="for programs that load cuDNN themselves, such as JAX, instead of being linked to it, such as PyTorch",
    )
    parser.add_argument(
        "--cudnn",
        metavar="FILE",
        help="with --front: the libcudnn.so.9 that the program uses (that of this Python's nvidia.cudnn package)",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program and its arguments")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Replaces this process by the program. Returns only by raising a CommandError."""
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command or not command[0]:
        raise CommandError("run needs a program: prnn run -- python train.py")
    if arguments.cudnn is not None and not arguments.front:
        raise CommandError("--cudnn is of use with --front only")
    packages = [] if arguments.compat is None else arguments.compat.split(",")
    for name in packages:
        if name not in _PACKAGES:
            raise CommandError(f"--compat {arguments.compat}: {name!r} is none of {', '.join(_PACKAGES)}")
    environment = child_environment(log=arguments.log, front=arguments.front, cudnn=arguments.cudnn, packages=packages)
    # Python ignores these, and so would the program if that stayed.
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    mark = _mark(environment) if arguments.log else None
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        if mark is not None:
            os.rmdir(mark)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        raise CommandError(f"{command[0]}: {(error.strerror or str(error)).lower()}") from error


def child_environment(
    *, log: bool = False, front: bool = False, cudnn: str | None = None, packages: Sequence[str] = ()
) -> dict[str, str]:
    """This process's environment, changed as the options say."""
    environment = dict(os.environ)
    libraries = [_library("libprnn_cudnn.so")]
    if front:
        libraries.append(_front(_cudnn(cudnn)))
    environment["LD_PRELOAD"] = _joined(libraries, environment.get("LD_PRELOAD", ""))
    if log:
        environment["PRNN_CUDNN_LOG"] = "1"
    if packages:
        # Each Python process of the program imports sitecustomize from there.
        before = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join([str(_PACKAGE / "compat/startup"), *([before] if before else [])])
        environment["PRNN_COMPAT"] = ",".join(packages)
        if log:
            environment["PRNN_COMPAT_LOG"] = "1"
    return environment


def _mark(environment: dict[str, str]) -> str | None:
    """An empty folder, named in the environment with this process, which is the program's first one. The program's
    processes remove it: the one with the first call, or else this one at its end, which then says that there was none.
    """
    try:
        folder = tempfile.mkdtemp(prefix="prnn-run-")
    except OSError:  # there is nowhere to write: the program runs without
        return None
    environment["PRNN_CUDNN_LOG_MARK"] = f"{os.getpid()}:{folder}"
    return folder


def _library(name: str) -> pathlib.Path:
    path = _LIBRARIES / name
    if not path.is_file():
        raise CommandError(f"{path} is missing; build prnn again (scons, or pip install)")
    return path


def _joined(libraries: list[pathlib.Path], others: str) -> str:
    for library in libraries:
        if re.search(r"[\s:]", str(library)):
            raise CommandError(f"{str(library)!r} cannot be preloaded: its path has a space or a colon")
    return ":".join([*map(str, libraries), *([others] if others else [])])


def _cudnn(named: str | None) -> pathlib.Path:
    """The absolute path of cuDNN."""
    if named is not None:
        path = pathlib.Path(os.path.abspath(named))
        if not path.is_file():
            raise CommandError(f"--cudnn {named}: there is no such file")
        return path
    try:
        spec = importlib.util.find_spec("nvidia.cudnn")
    except ModuleNotFoundError:
        spec = None
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = pathlib.Path(folder, "lib/libcudnn.so.9")
        if path.is_file():
            return path
    raise CommandError("this Python has no package nvidia.cudnn with a libcudnn.so.9; --cudnn names the file")


def _front(cudnn: pathlib.Path) -> pathlib.Path:
    """The library to put in front of ``cudnn``, written to the user's cache."""
    template = _library("libprnn_cudnn_front.so").read_bytes()
    places = _PLACEHOLDER.findall(template)
    path = os.fsencode(cudnn)
    if len(places) != 1:
        raise CommandError("libprnn_cudnn_front.so is not as it was built; build prnn again")
    if len(path) >= len(places[0]):
        raise CommandError(f"{cudnn}: the path is too long")
    content = template.replace(places[0], path.ljust(len(places[0]), b"\0"))
    folder = _private_folder(f"cudnn-{hashlib.sha256(content).hexdigest()[:32]}")
    front = folder / "libcudnn.so.9"
    if not front.is_file() or front.read_bytes() != content:
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(content)
        os.replace(file.name, front)
    return front


def _private_folder(name: str) -> pathlib.Path:
    """A folder of the user's cache that nobody else can write to."""
    try:
        top = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "prnn").absolute()
    except RuntimeError as error:  # neither HOME nor an entry in passwd, as of a number that a container runs under
        raise CommandError("this user has no home folder for --front to write to; set XDG_CACHE_HOME to one") from error
    folder = top / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in (top, folder):
            status = part.stat()
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise CommandError(f"{part} belongs to another user or can be written to by others; it is not used")
    except OSError as error:
        raise CommandError(f"{folder}: {(error.strerror or str(error)).lower()}") from error
    return folder

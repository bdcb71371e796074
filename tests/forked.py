"""Python programs in processes of their own that need not import torch, Lightning and prnn, which takes seconds: forks
of one server, which has, for all workers of pytest.

`python -m tests.forked NAME` is the server. It ends with the last worker. To its forks sys.executable is
tests/forked_python, so that what they start is forked as well.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import io
import json
import os
import pathlib
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Mapping
from typing import IO, Any, NoReturn

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", os.getpid())
NAME = sys.argv[-1] if __name__ == "__main__" else f"prnn-tests-{RUN}"  # of the server's socket


class Process:
    """A program that runs, in a session of its own: Python's `arguments`, which begin with -m or -c."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None, stdout: IO[str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        read, write = os.pipe()
        self.stdout = os.fdopen(read)
        request = {"arguments": arguments, "environment": dict(os.environ if env is None else env), "cwd": os.getcwd()}
        self._server = connect()
        files = [write if stdout is None else stdout.fileno(), self._errors.fileno()]
        socket.send_fds(self._server, [json.dumps(request).encode() + b"\n"], files)
        os.close(write)
        self._answers = self._server.makefile()
        self.pid = int(self._answers.readline())

    def wait(self) -> int:
        """Waits for its end. Returns its exit status, or minus a signal."""
        return os.waitstatus_to_exitcode(int(self._answers.readline()))

    def errors(self) -> str:
        """The text that the process has written to stderr."""
        self._errors.seek(0)
        return self._errors.read()


def run(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=env), as Process runs it."""
    with tempfile.TemporaryFile("w+") as printed:
        process = Process(*arguments, env=env, stdout=printed)
        status = process.wait()
        printed.seek(0)
        return subprocess.CompletedProcess(arguments, status, printed.read(), process.errors())


def connect() -> socket.socket:
    keep_server()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"\0{NAME}")
    return connection


@functools.cache
def keep_server() -> socket.socket:
    """A connection that keeps the server, which is started if it is not there."""
    connection = socket.socket(socket.AF_UNIX)
    for attempt in range(600):
        with contextlib.suppress(ConnectionRefusedError):
            connection.connect(f"\0{NAME}")
            connection.sendall(b"keep\n")
            return connection
        if attempt == 0:
            command = [sys.executable, "-m", "tests.forked", NAME]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}  # forks set their own number
            subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True, env=environment)
        time.sleep(0.1)
    raise TimeoutError("the server of tests/forked.py did not start")


# ---- The server ----

MODULES = ("prnn.cli", "prnn.asr.training", "torch.distributed.launcher.api", "torch.utils.tensorboard")


def serve(name: str) -> dict[str, Any] | None:
    """Forks a process for each request. Returns the request, there, and nothing when the last worker has ended."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"\0{name}")
    except OSError:
        return None  # another worker's server is there
    listener.listen(64)
    for module in MODULES:
        with contextlib.suppress(ImportError):  # beside another torch there is no Lightning
            importlib.import_module(module)
    ended, wake = os.pipe()
    for end in (ended, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    for source in (listener, ended):
        selector.register(source, selectors.EVENT_READ)
    keepers: set[Any] = set()
    running: dict[int, socket.socket] = {}
    began = False
    while keepers or running or not began:
        for key, _ in selector.select():
            source = key.fileobj
            if source is listener:
                connection, _ = listener.accept()
                selector.register(connection, selectors.EVENT_READ)
            elif source == ended:
                os.read(ended, 4096)
            else:
                assert isinstance(source, socket.socket)
                data, files, *_ = socket.recv_fds(source, 1 << 20, 2)
                while data and not data.endswith(b"\n"):
                    data += source.recv(1 << 20)
                if data == b"keep\n":
                    keepers.add(source)
                    began = True
                elif data:
                    pid = os.fork()
                    if pid == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        selector.close()
                        for descriptor in (*running.values(), *keepers, source, listener):
                            descriptor.close()
                        return {"files": files, **json.loads(data)}
                    for descriptor in files:
                        os.close(descriptor)
                    running[pid] = source
                    source.sendall(b"%d\n" % pid)
                else:  # the worker has ended
                    selector.unregister(source)
                    keepers.discard(source)
                    for pid in [pid for pid, client in running.items() if client is source]:
                        os.killpg(pid, signal.SIGKILL)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            with contextlib.suppress(OSError):
                running[pid].sendall(b"%d\n" % status)
            del running[pid]
    return None


def begin(request: dict[str, Any]) -> None:
    """Makes this process one that was started with the request's arguments, and runs its program."""
    os.setsid()
    for number, descriptor in enumerate(request["files"], 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"], PRNN_TESTS_SERVER=NAME)
    sys.executable = str(ROOT / "tests/forked_python")
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.chdir(request["cwd"])
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), write_through=True)
    else:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    kind, program, *arguments = request["arguments"]
    sys.argv = [kind, *arguments]
    if kind == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    assert kind == "-c"
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    exec(compile(program, "<string>", "exec"), module.__dict__)


def end(status: object) -> NoReturn:
    """Ends as Python does, but for freeing what the server has imported, which takes longer than most programs."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(status, str):
        print(status, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 0 if status is None else 1)


if __name__ == "__main__":
    request = serve(sys.argv[1])
    if request is None:
        os._exit(0)
    try:
        begin(request)
        end(None)
    except SystemExit as stopped:
        end(stopped.code)
    except BaseException:
        traceback.print_exc()
        end(1)

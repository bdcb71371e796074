"""A command line run in a process of its own, forked from one that has imported everything, with limits of memory and
time; and what its end must look like."""

from __future__ import annotations

import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import asr_data
import torch

import prnn.asr.evaluation
import prnn.asr.training  # for all that are forked
import prnn.commands.transcribe  # noqa: F401
from fuzz.case import Case, Finding
from prnn.cli import main

CPU_SECONDS = 20
SECONDS = 100.0  # of waiting, which may be for other processes
MORE_MEMORY = 3 << 30  # bytes beyond those of the process that is forked
LONGEST_SENTENCE = 1000
MPG123 = ("Note: ", "Warning: Xing", "[src/libmpg123/")  # libsndfile's decoder has its own words on stderr
WARNING = "cancel one another out"  # channels, before what is wrong
SENTENCE = re.compile(r"prnn( \w+)?: .*\S.*")
TRAIN_SIZES = ("--hidden", "8", "--layers", "1", "--predictor-hidden", "4", "--joiner", "4", "--accelerator", "cpu")


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str


@cache
def materials() -> Path:
    """A folder with a checkpoint, recordings and their manifest, and a finished training, made once a process."""
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="materials"))
    torch.manual_seed(0)
    torch.save(asr_data.small_checkpoint(), folder / "model.ckpt")
    asr_data.write_corpus(folder, "tones", ["ab", "c", "cab"])
    return folder


def train_arguments(output: Path) -> list[str]:
    manifest = str(materials() / "tones.jsonl")
    return [
        "train",
        "--manifest",
        manifest,
        "--valid",
        manifest,
        "--output",
        str(output),
        "--epochs",
        "1",
        *TRAIN_SIZES,
    ]


@cache
def finished_training() -> Path:
    folder = materials() / "trained"
    outcome = run_forked(train_arguments(folder))
    if outcome.status != 0:
        raise RuntimeError(f"a plain training failed: {outcome}")
    return folder


def child(arguments: Sequence[str], out: int, err: int, limits: Mapping[int, int]) -> NoReturn:
    """The forked process."""
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(tempfile.mkdtemp(dir=materials()))  # for files whose names are not where they should be
        os.dup2(out, 1), os.dup2(err, 2)
        if "libasan" not in os.environ.get("LD_PRELOAD", ""):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + MORE_MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        os.environ["HOME"] = os.getcwd()
        sys.modules["sounddevice"] = None  # type: ignore[assignment]  # whatever microphone there is
        sys.argv = ["prnn", *arguments]
        for kind, limit in limits.items():
            resource.setrlimit(kind, (limit, limit))
        status = main(list(arguments))
    except SystemExit as stopped:
        status = stopped.code if isinstance(stopped.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)


def run_forked(arguments: Sequence[str], limits: Mapping[int, int] = MappingProxyType({})) -> Outcome:
    """Runs a command, with limits of the system's by their numbers. A status below 0 is a signal."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = os.fork()
        if process == 0:
            child(arguments, out.fileno(), err.fileno(), limits)
        pidfd = os.pidfd_open(process)
        in_time = bool(select.select([pidfd], [], [], SECONDS)[0])
        os.close(pidfd)
        if not in_time:
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        out.seek(0), err.seek(0)
        texts = [file.read().decode(errors="replace") for file in (out, err)]
    if not in_time:
        raise Finding(f"a hang: {SECONDS:g} s without an end")
    return Outcome(os.waitstatus_to_exitcode(status), *texts)


def run_command(
    case: Case, arguments: Sequence[str], about: str = "", limits: Mapping[int, int] = MappingProxyType({})
) -> Outcome:
    """Runs a command whose input may be wrong: status 0, or 2 with one sentence."""
    shown = " ".join(ascii(argument)[1:-1] for argument in arguments)[:1500]
    case.note(f"prnn {shown}\n{about}")
    case.counts["commands"] += 1
    outcome = run_forked(arguments, limits)
    text = outcome.err + outcome.out
    wrong = None
    if outcome.status < 0:
        name = signal.Signals(-outcome.status).name
        wrong = f"a hang: {CPU_SECONDS} s of computing" if name == "SIGXCPU" else name
    elif "Traceback" in text or outcome.status not in (0, 2):
        last = [line for line in outcome.err.splitlines() if line.strip()][-1:]
        wrong = f"status {outcome.status}, {''.join(last)[:300]}"
    elif outcome.status == 2:
        case.counts["refused"] += 1
        lines = [line for line in outcome.err.splitlines() if not line.startswith(MPG123) and WARNING not in line]
        usage = bool(lines) and lines[0].startswith("usage:")
        sentence = lines[-1] if usage or len(lines) == 1 else ""
        if not SENTENCE.fullmatch(sentence) or len(sentence) > LONGEST_SENTENCE:
            wrong = f"status 2 and not one sentence: {outcome.err[:600]!r}"
    if wrong:
        raise Finding(
            f"prnn {arguments[0] if arguments else ''}: {wrong}\n{about}\n{outcome.err[-2500:]}\n(prnn {shown})"
        )
    return outcome


def workplace() -> tempfile.TemporaryDirectory[str]:
    """A folder for a case's files."""
    return tempfile.TemporaryDirectory(dir=materials())


def copy_training(folder: Path) -> Path:
    output = folder / "output"
    shutil.copytree(finished_training(), output)
    return output

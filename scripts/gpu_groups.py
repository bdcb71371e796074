"""The checks of scripts/gpu_check: groups of tests, sanitizers and benchmarks, each with a limit of time, first those
that a change breaks most easily.

    scripts/gpu_check [--seconds N] [--logs FOLDER] [--no-build] [GROUP[=SECONDS] ...]
    scripts/gpu_check --list

GROUP is a group, or the first word of several: `memcheck` stands for memcheck_search, memcheck_joint and so on, `tests`
for all groups of tests. Without any all run. SECONDS replaces a group's limit; --seconds bounds all of them together:
what then has no time left does not run. The output of each group goes to FOLDER (build/gpu_check). The last lines are a
table of groups with what passed and failed in how many seconds. Exit status 1 unless all of them ran and passed."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
_GRACE = 15  # seconds in which a command that is stopped may say how far it came
_TAIL = 60  # lines of a log that are shown of a group that failed

Command = tuple[str, ...]
_BUILD: Command = (PYTHON, "-m", "SCons", "-Q", "cuda=on")


@dataclasses.dataclass(frozen=True)
class Group:
    """Commands that run one after the other.

    Attributes:
        name: in small letters; before the first "_" the family.
        seconds: the limit of all commands together.
        commands: each counts as one that passed or failed, but for those of pytest, whose tests count.
        last: runs after them, whatever became of them and of the limit.
    """

    name: str
    seconds: float
    commands: tuple[Command, ...]
    last: Command | None = None

    @property
    def family(self) -> str:
        return self.name.partition("_")[0]

    @property
    def is_tests(self) -> bool:
        return all("pytest" in command and command[0] == PYTHON for command in self.commands)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A group's result: how many tests or commands passed and failed, in how many seconds, and a note."""

    name: str
    passed: int
    failed: int
    seconds: float
    note: str = ""


def _tests(name: str, seconds: float, *files: str) -> Group:
    workers = min(os.cpu_count() or 1, 8)
    options = ("-v", "-n", str(workers), "--dist", "loadgroup")
    paths = sorted({str(path.relative_to(ROOT)) for file in files for path in (ROOT / "tests").glob(file)})
    return Group(name, seconds, ((PYTHON, "-m", "pytest", *options, *paths),))


def _sanitized(tool: str, *arguments: str) -> Command:
    # racecheck and initcheck report also what prnn is not to blame for, which _is_reported() tells apart.
    options: tuple[str, ...] = ("--error-exitcode", "1")
    if tool in ("racecheck", "initcheck"):
        options = ("--print-limit", "100000")
    elif tool == "synccheck" and arguments[0].endswith("gpu_small_grid.py"):
        options += ("--num-cuda-barriers", "65536")  # no room for it with large launches
    return ("compute-sanitizer", "--tool", tool, *options, PYTHON, *arguments)


def _pytest(file: str, which: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-q", f"tests/{file}", "-k", which)


# racecheck does not see that blocks wait for what they exchange: a GRU's state is read from shared memory before the
# block publishes it, and overwritten after all blocks have (docs/decoder_kernel.md).
_EACH_KIND: Command = ("racecheck of each kind of tests/gpu_small_grid.py",)
_TYPES = ("float16", "bfloat16", "float32")
_SEARCH = "greedy and not 640 and not gru"
_JOINT_TDT = "(cuda and equals and 40 and (omega or 15)) or types or bad_lengths"
_JOINT = "(cuda and (equals and 40 or ranges or no_bias)) or (types and (51 or 64)) or bad_lengths or in_float32"
_LOSSES = {
    "test_losses_cuda.py": "options_equal or wide or gathered or pruned or align or concatenated",
    "test_duration_losses_cuda.py": "options_equal or long_durations or wide",
}


def _sanitizers(tool: str) -> list[Group]:
    losses = [_pytest(file, which) for file, which in _LOSSES.items()]
    found = [
        Group(f"{tool}_search", 200, (_sanitized(tool, *_pytest("test_decode_cuda.py", _SEARCH)),)),
        Group(f"{tool}_tdt", 300, (_sanitized(tool, *_pytest("test_joint_tdt_loss.py", _JOINT_TDT)),)),
        Group(f"{tool}_joint", 300, (_sanitized(tool, *_pytest("test_joint_rnnt_loss.py", _JOINT)),)),
        Group(f"{tool}_losses", 400, tuple(_sanitized(tool, *arguments) for arguments in losses)),
    ]
    if tool != "racecheck":
        return [*found, Group(f"{tool}_layers", 900, (_sanitized(tool, "tests/gpu_small_grid.py"),))]
    # racecheck records ten million hazards of a process, so each kind of kernels has a process. It does not follow what
    # orders the multicast kernels, whose reports docs/resident_kernels.md sorts; tests/test_kernels_on_cpu.py does.
    return [*found, Group("racecheck_layers", 1800, (_EACH_KIND,))]


def _bench(name: str, seconds: float, *arguments: Sequence[str]) -> Group:
    return Group(f"bench_{name}", seconds, tuple((PYTHON, "-m", "prnn", "bench", *words) for words in arguments))


def _search_benchmarks() -> list[list[str]]:
    return [
        ["decode", "--dtype", dtype, *model, "--seconds", "0.5"]
        for dtype in ("bfloat16", "float32")
        for model in ([], ["--tdt"])
    ]


def groups() -> list[Group]:
    """All groups, in the order in which they run; last the tests of a GPU that no other has."""
    found = _named_groups()
    named = {word for group in found if group.is_tests for command in group.commands for word in command}
    paths = sorted((ROOT / "tests").glob("test_*_cuda.py"))
    others = [path.name for path in paths if str(path.relative_to(ROOT)) not in named]
    return [*found, *([_tests("others", 300, *others)] if others else [])]


def _named_groups() -> list[Group]:
    return [
        Group("selftest", 120, ((PYTHON, "-m", "prnn", "selftest"),)),
        _tests(
            "search",
            240,
            *("test_decode_cuda.py", "test_transducer_search_cuda.py", "test_transducer_cuda.py"),
            "test_stream_pool_cuda.py",
        ),
        _tests("tdt", 180, "test_joint_tdt_loss.py"),
        _tests("joint", 240, "test_joint_rnnt_loss.py"),
        _tests("busy", 240, "test_busy_stream_cuda.py"),
        _tests(
            "losses",
            400,
            *("test_losses_cuda.py", "test_duration_losses_cuda.py", "test_loss_reductions.py", "test_compat.py"),
            *("test_compat_cuda.py", "test_compat_nemo_cuda.py", "test_transformers_models_cuda.py"),
            *("test_losses_inplace.py", "test_losses_transforms.py", "test_losses_c_api.py"),
        ),
        _tests(
            "calls",
            600,
            *("test_*calls_cuda.py", "test_frozen_layers_cuda.py", "test_nn_*cuda.py"),
            *("test_nn_transforms.py", "test_sequences.py", "test_transfer.py", "test_binding.py"),
        ),
        _tests("training", 400, "test_training_cuda.py", "test_recognition.py", "test_cli.py"),
        _tests("layers", 1200, "test_rnn_*cuda.py", "test_slstm_cuda.py", "test_layer_norm_lstm*cuda.py"),
        _tests("cudnn", 600, "test_rnn_cudnn.py", "test_rnn_accuracy_cudnn.py", "test_cudnn_standin_cuda.py"),
        _tests("rows", 600, "test_gpu_rows.py"),
        _tests("gpus", 300, "test_multi_gpu.py"),
        *_sanitizers("memcheck"),
        _bench("search", 120, *_search_benchmarks()),
        _bench("durations", 120, ["loss", "--only", "durations", "--json", "build/gpu_check/durations_{gpu}.json"]),
        *_sanitizers("racecheck"),
        *_sanitizers("initcheck"),
        *_sanitizers("synccheck"),
        _bench(
            "rnn",
            3600,
            [
                "rnn",
                "--targets",
                "--dtype",
                "float16",
                "bfloat16",
                "float32",
                "--json",
                "build/gpu_check/rnn_{gpu}.json",
            ],
        ),
        _bench("losses", 900, ["loss", "--json", "build/gpu_check/losses_{gpu}.json"]),
        _bench("training", 900, ["train", "--json", "build/gpu_check/train_{gpu}.json"]),
        # The code of compute capability 8.0, which a later GPU's driver translates.
        Group(
            "sm80",
            1200,
            (
                (*_BUILD, "cuda_arch=80", "build_dir=build/sm80"),
                (PYTHON, "-m", "pytest", "-q", "tests/test_gpu_rows.py"),
            ),
            last=(*_BUILD, "cuda_arch=native"),
        ),
    ]


# ---- Running ----


def choose(words: Sequence[str], known: Sequence[Group]) -> list[Group]:
    """The groups that words name, in the order of `known`; all of them without any.

    Raises:
        ValueError: a word names no group, or its seconds are no positive number.
    """
    limits: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition("=")
        named = [g for g in known if name in (g.name, g.family) or (name == "tests" and g.is_tests)]
        if not named:
            raise ValueError(f"there is no group '{name}'; --list names them")
        if text and not re.fullmatch(r"\d+(\.\d+)?", text):
            raise ValueError(f"the seconds of {name} are '{text}'; they must be a positive number")
        limits |= {group.name: float(text) if text else group.seconds for group in named}
    if not words:
        limits = {group.name: group.seconds for group in known}
    return [dataclasses.replace(g, seconds=limits[g.name]) for g in known if g.name in limits]


def run(group: Group, limit: float, log: Path) -> Outcome:
    """Runs a group's commands, until the limit of seconds. Their output goes to `log`."""
    begin, passed, failed, note = time.monotonic(), 0, 0, ""
    log.write_text("")
    try:
        commands = _expanded(group.commands)
    except (OSError, subprocess.CalledProcessError) as error:
        return Outcome(group.name, 0, 1, time.monotonic() - begin, str(error))
    for command in commands:
        start = log.stat().st_size
        left = limit - (time.monotonic() - begin)
        status = _run_command(command, left, log) if left > 0 else None
        text = log.read_bytes()[start:].decode(errors="replace")
        if group.is_tests:
            of_tests = _counts(text)
            passed, failed = passed + of_tests[0], failed + of_tests[1]
            failed += status not in (None, 0) and of_tests[1] == 0  # nothing collected, say
        elif status is not None:
            is_good = status == 0 and not _is_reported(command, text)
            passed, failed = passed + is_good, failed + (not is_good)
        if status is None:
            note = f"stopped at its limit of {limit:.0f} s"
            break
    if group.last is not None and _run_command(group.last, math.inf, log) != 0:
        note = f"{' '.join(group.last)} failed"
    return Outcome(group.name, passed, failed, time.monotonic() - begin, note)


def _run_command(command: Command, limit: float, log: Path) -> int | None:
    """Its exit status; None where it was stopped."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *_python_path()])}
    if "pytest" in command:
        environment["OMP_NUM_THREADS"] = "1"
    if command[0] == "compute-sanitizer":
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    with log.open("ab") as file:
        file.write(f"$ {' '.join(command)}\n".encode())
        file.flush()
        try:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            file.write(f"{error}\n".encode())
            return 127
        return _wait(process, limit)


def _wait(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """Its exit status; None where the limit of seconds ended it."""
    try:
        return process.wait(None if limit == math.inf else limit)
    except subprocess.TimeoutExpired:
        _end(process, signal.SIGINT)  # pytest then says what failed so far
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
        return None
    finally:
        _end(process, signal.SIGKILL)
        process.wait()


def _end(process: subprocess.Popen[bytes], kind: signal.Signals) -> None:
    """Sends a signal to a command and to all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, kind)


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _expanded(commands: Sequence[Command]) -> list[Command]:
    """Commands with the card's name, and one for each kind of kernels."""
    found: list[Command] = []
    for command in commands:
        if command is _EACH_KIND:
            listed = subprocess.run(
                [PYTHON, "tests/gpu_small_grid.py", "--list"], cwd=ROOT, capture_output=True, text=True, check=True
            )
            kinds = [kind for kind in listed.stdout.split() if "multicast" not in kind]
            found += [_sanitized("racecheck", "tests/gpu_small_grid.py", kind) for kind in kinds]
        else:
            found.append(tuple(word.format(gpu=_gpu()) if "{" in word else word for word in command))
    return found


def _gpu() -> str:
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    name = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return name.replace("NVIDIA ", "").replace(" ", "_").lower()


def _counts(text: str) -> tuple[int, int]:
    """How many tests passed and failed, by the lines that pytest -v prints as they end, with several processes or
    one."""
    several = re.findall(r"^\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|ERROR)\b", text, re.MULTILINE)
    one = re.findall(r"^tests/\S+::.* (PASSED|FAILED|ERROR) +\[ *\d+%\]$", text, re.MULTILINE)
    ended = several + one
    return ended.count("PASSED"), len(ended) - ended.count("PASSED")


def _is_reported(command: Command, text: str) -> bool:
    """Whether racecheck or initcheck says something of prnn's kernels. cuBLAS's hand over in ways that racecheck does
    not follow, and write partial sums that initcheck does not see."""
    lines = text.splitlines()
    if "racecheck" in command:
        places = [i for i, line in enumerate(lines) if "Race reported" in line]
        return any("prnn::" in line for i in places for line in lines[i : i + 4])
    if "initcheck" in command:
        places = [i for i, line in enumerate(lines) if "Uninitialized" in line]
        followed = [line for i in places for line in lines[i : i + 2] if " at " in line]
        return any("cublasLt::splitKreduce_kernel" not in line for line in followed)
    return False


def table(outcomes: Sequence[Outcome]) -> str:
    """The summary."""
    rows = [f"{'group':20} {'passed':>7} {'failed':>7} {'seconds':>8}"]
    rows += [f"{o.name:20} {o.passed:7} {o.failed:7} {o.seconds:8.0f}  {o.note}".rstrip() for o in outcomes]
    return "\n".join(rows)


def run_all(chosen: Sequence[Group], seconds: float, logs: Path) -> list[Outcome]:
    """Runs groups within so many seconds, and says what became of each."""
    logs.mkdir(parents=True, exist_ok=True)
    end, outcomes = time.monotonic() + seconds, []
    for group in chosen:
        left = end - time.monotonic()
        if left < 1:
            outcomes.append(Outcome(group.name, 0, 0, 0, "not run: no time left"))
            continue
        log = logs / f"{group.name}.log"
        print(f"{group.name}: at most {min(left, group.seconds):.0f} s, output in {log}", flush=True)
        try:
            outcome = run(group, min(left, group.seconds), log)
        except KeyboardInterrupt:
            outcomes.append(Outcome(group.name, 0, 0, 0, "interrupted"))
            break
        outcomes.append(outcome)
        lines = log.read_text(errors="replace").splitlines()
        if outcome.failed:
            print("\n".join(lines[-_TAIL:]))
        elif group.family == "bench":
            print("\n".join(line for line in lines if not line.startswith("$")))
        print(table([outcome]).splitlines()[1], flush=True)
    return outcomes


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [options] [GROUP[=SECONDS] ...]",
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="of all groups together")
    parser.add_argument("--logs", type=Path, default=ROOT / "build/gpu_check", help="folder of the groups' output")
    parser.add_argument("--list", action="store_true", help="names the groups, their limits and what they run")
    parser.add_argument("--no-build", action="store_true", help="prnn is built already")
    parser.add_argument("words", nargs="*", metavar="GROUP", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        chosen = choose(options.words, groups())
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        for group in chosen:
            print(f"{group.name:20} {group.seconds:5.0f} s")
            for command in group.commands:
                print("    " + " ".join(command).replace(PYTHON, "python3"))
        return 0
    outcomes = run_all(chosen, options.seconds, options.logs)
    print(f"\n{table(outcomes)}")
    return int(any(outcome.failed or outcome.note for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``prnn selftest``: the kernels of this machine's GPU against the CPU, as a report to send."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prnn.commands.failure import CommandError, reported

if TYPE_CHECKING:
    from prnn._selftest import Outcome


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "selftest",
        help="compare the kernels of this machine's GPU with the CPU's",
        description="Run every kernel that the plans for this machine's GPU take on small problems, compare what they "
        "compute with the CPU, and print a report. On a GPU that nobody has run prnn on (prnn info marks them) it "
        "says whether its kernels can be trusted; please send it to prnn's authors. Exit status 1: something differs.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, each problem apart")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Prints the report."""
    import torch

    if not torch.cuda.is_available():
        raise CommandError("selftest compares a GPU's kernels with the CPU's; torch finds no GPU that it can use")
    with reported():
        is_good = _report(torch.device("cuda", torch.cuda.current_device()), arguments.json)
    if not is_good:
        sys.exit(1)


def _report(device: Any, as_json: bool) -> bool:
    from prnn._selftest import selftest

    begin = time.monotonic()
    about = _about(device)
    outcomes = []
    for outcome in selftest(device):
        outcomes.append(outcome)
        if sys.stderr.isatty():
            print(f"\r{len(outcomes)} compared", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    seconds = time.monotonic() - begin
    is_good = all(outcome.is_good for outcome in outcomes)
    if as_json:
        found = about | {"seconds": seconds, "is_good": is_good, "problems": [_as_dict(o) for o in outcomes]}
        print(json.dumps(found, indent=2))
    else:
        print(_text(about, outcomes, seconds))
    return is_good


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    error = outcome.error if math.isfinite(outcome.error) else None  # which JSON has no number for
    return dataclasses.asdict(outcome) | {"error": error, "is_good": outcome.is_good}


def _about(device: Any) -> dict[str, Any]:
    import torch

    from prnn import _C, __version__
    from prnn._ops._handles import handle
    from prnn._ops._twin import driver

    layer = _C.Rnn(_C.LSTM, _C.FLOAT, 64, 1, 64, False)
    plan = layer.query(handle(device), 1)
    about = {"prnn": __version__, "built_for": _C.BUILT_FOR, "torch": torch.__version__}
    if device.type == "cpu":
        return about | {"device": plan["device"]}
    return about | {
        "driver": driver(),
        "device": torch.cuda.get_device_name(device),
        "planned_as": plan["device"],
        "was_run": plan["measured"],
        "row": _C.describe_gpu(handle(device)),
    }


def _text(about: dict[str, Any], outcomes: Sequence[Outcome], seconds: float) -> str:
    from prnn._selftest import TYPES

    lines = [f"prnn {about['prnn']}, built for {about['built_for']}, torch {about['torch']}"]
    if "row" in about:
        lines[0] += f", driver {about['driver']}"
        was_run = "" if about["was_run"] else ", whose plans nobody has run before"
        lines += [f"{about['device']}, planned as {about['planned_as']}{was_run}", f"row: {about['row']}"]
    else:
        lines.append(about["device"])
    rows: dict[tuple[str, str, str], dict[str, Outcome]] = {}
    for outcome in outcomes:
        row = rows.setdefault((outcome.options, outcome.kernels, outcome.direction), {})
        if outcome.type not in row or _badness(outcome) > _badness(row[outcome.type]):
            row[outcome.type] = outcome
    lines += ["", f"{'kernels':20}{'of':16}{'pass':10}" + "".join(f"{name:>11}" for name in TYPES)]
    for (options, kernels, direction), row in rows.items():
        cells = (f"{_cell(row[name]) if name in row else '-':>11}" for name in TYPES)
        lines.append(f"{kernels:20}{options:16}{direction:10}{''.join(cells)}".rstrip())
    wrong = [outcome for outcome in outcomes if not outcome.is_good]
    good = len(outcomes) - len(wrong)
    lines += ["", f"{good} of {len(outcomes)} agree with the CPU (largest errors above; {seconds:.0f} s)"]
    lines += [_sentence(outcome) for outcome in wrong]
    return "\n".join(lines)


def _badness(outcome: Outcome) -> float:
    return math.inf if outcome.failure else outcome.error / outcome.tolerance


def _cell(outcome: Outcome) -> str:
    error = "failed" if outcome.failure else f"{outcome.error:.0e}"
    return error if outcome.is_good else f"{error} !"


def _sentence(outcome: Outcome) -> str:
    options = f" with {outcome.options}" if outcome.options else ""
    what = f"! {outcome.kernels} {outcome.direction}, {outcome.type}, {outcome.problem}{options}: "
    if outcome.failure:
        return what + outcome.failure
    return what + f"{outcome.output} is off by {outcome.error:.1e}, more than {outcome.tolerance:.0e}"

"""How often the losses and searches are called, printed at the end of the process: `prnn run --compat --log`."""

import atexit
import collections
import functools
import importlib
import os
import sys
from collections.abc import Callable
from multiprocessing import util
from typing import Any

NAMES = (
    "ctc_loss",
    "forced_align",
    "joint_rnnt_loss",
    "joint_tdt_loss",
    "multi_blank_rnnt_loss",
    "rnnt_loss",
    "rnnt_loss_pruned",
    "rnnt_loss_simple",
    "rnnt_loss_smoothed",
    "tdt_loss",
    "transducer_search",
)
_counts: collections.Counter[str] = collections.Counter()


def start() -> None:
    """Counts from now on what modules that are imported later call; of no effect when called again."""
    prnn = importlib.import_module("prnn")
    others = [importlib.import_module(name) for name in ("prnn.losses", "prnn.losses.pruned")]
    if hasattr(prnn.tdt_loss, "_prnn_original"):
        return
    for name in NAMES:
        counted = _counting(name, getattr(prnn, name))
        for module in (prnn, *others):
            if hasattr(module, name):
                setattr(module, name, counted)
    atexit.register(_print)
    os.register_at_fork(after_in_child=_counts.clear)
    util.register_after_fork(_counts, functools.partial(_print_after_fork, os.getpid()))


def _print_after_fork(parent: int, counts: collections.Counter[str]) -> None:
    """In a process of multiprocessing, as those of a DataLoader: a forked one ends without atexit."""
    if os.getpid() != parent:
        util.Finalize(None, lambda: _print() if counts else None, exitpriority=0)


def _counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        _counts[name] += 1
        return function(*arguments, **options)

    call._prnn_original = function  # type: ignore[attr-defined]
    return call


def _print() -> None:
    said = ", ".join(f"{name} {count}" for name, count in sorted(_counts.items())) or "none"
    print(f"prnn: calls of losses and searches: {said}", file=sys.stderr)

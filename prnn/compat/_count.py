"""How often the losses and searches are called, printed at the end of the process: `prnn run --compat --log`."""

import atexit
import collections
import functools
import importlib
import sys
from collections.abc import Callable
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

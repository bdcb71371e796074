"""Hypothesis in a case: a batch of random configurations, of which a failing one is shrunk before it is reported."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.strategies import SearchStrategy

from fuzz.case import Case

EXAMPLES = 20
SHRINKING = 5.0  # seconds
CASE_SETTINGS = settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
    print_blob=False,
    report_multiple_bugs=False,
)


def explore(case: Case, configurations: SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """Checks random configurations. Uninitialised memory of torch's is NaN meanwhile."""

    failed: set[str] = set()
    until = math.inf  # of the shrinking: what has failed goes on doing so, nothing else is tried

    def run(configuration: Any) -> None:
        nonlocal until
        text = repr(configuration)
        if time.monotonic() > until and text not in failed:
            return
        case.note(text)
        case.counts["examples"] += 1
        torch.manual_seed(1)
        try:
            check(configuration)
        except Exception:
            failed.add(text)
            until = min(until, time.monotonic() + SHRINKING)
            raise

    torch.set_num_threads(1)
    # torch fills what it allocates with NaN then (torch.utils.deterministic.fill_uninitialized_memory).
    torch.use_deterministic_algorithms(True, warn_only=True)
    test = hypothesis.given(configurations)(run)
    hypothesis.seed(case.random.getrandbits(64))(CASE_SETTINGS(test))()

"""Hypothesis in a case: a batch of random configurations, of which a failing one is shrunk before it is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.strategies import SearchStrategy

from fuzz.case import Case

EXAMPLES = 20
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

    def run(configuration: Any) -> None:
        case.note(repr(configuration))
        case.counts["examples"] += 1
        torch.manual_seed(1)
        check(configuration)

    torch.set_num_threads(1)
    # torch fills what it allocates with NaN then (torch.utils.deterministic.fill_uninitialized_memory).
    torch.use_deterministic_algorithms(True, warn_only=True)
    test = hypothesis.given(configurations)(run)
    hypothesis.seed(case.random.getrandbits(64))(CASE_SETTINGS(test))()

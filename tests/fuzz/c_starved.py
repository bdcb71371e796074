"""The C API where memory runs out: each call again and again, with one allocation more before one fails, until it
succeeds. Until then it answers ALLOC_FAILED and leaves its outputs as they were."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import capi
import torch
from layer_norm_lstm_c_case import RUNS
from torch import Tensor

from fuzz.c_calls import Client
from fuzz.c_decode import Search
from fuzz.c_layer_norm import Layer
from fuzz.c_layers import CALLS, WRITTEN, Layers
from fuzz.c_losses import Losses
from fuzz.case import Case, Finding
from fuzz.memory import Memory, poison

MOST = 1000  # allocations of a call


def failing_new() -> Callable[[int, int], None] | None:
    """Returns the function of tests/c/failing_new.cc; None in a process without it."""
    return getattr(ctypes.CDLL(None), "fail_allocation", None)


def starve(client: Client, name: str, arguments: dict[str, Any], outputs: list[Tensor]) -> None:
    fail_after = failing_new()
    assert fail_after is not None
    alone = client.random.randrange(2)  # whether those after it fail, too
    for count in range(MOST):
        client.around = (lambda count=count: fail_after(count, alone), lambda: fail_after(-1, 0))
        status = client.call(name, arguments, outputs, must_fail=False, refusals=(capi.ALLOC_FAILED,))
        if status == capi.SUCCESS:
            break
    else:
        raise Finding(f"prnn{name} allocates more than {MOST} times")
    client.around = None
    client.case.counts["failed allocations"] += count


def starve_layers(client: Layers) -> None:
    problem = client.problems[0]
    for name in CALLS[1:] if "cells" in problem.given_back else CALLS:
        poison(problem.workspace)
        for output in WRITTEN[name]:
            if output != "dw":
                poison(problem.data[output])
        if name == "RNNForwardTraining":
            poison(problem.reserve)
        starve(client, name, problem.arguments(name), problem.outputs())
        client.require_written(problem, name)
    for name in ("GetRNNWorkspaceSize", "GetRNNTrainingReserveSize"):
        out = client.memory.output((1,), torch.int64, host=True)
        arguments = problem.arguments("RNNForwardTraining")
        arguments = {key: arguments[key] for key in ("handle", "rnnDesc", "seqLength", "xDesc")}
        starve(client, name, {**arguments, "sizeInBytes": out.data_ptr()}, [out])


def starve_losses(client: Losses) -> None:
    trial = client.random.choice((client.ctc, client.rnnt, client.duration))()
    outputs = [trial.costs, *trial.gradients.values()]
    for name, arguments in client.calls(trial).items():
        for tensor in outputs:
            poison(tensor)
        starve(client, name, arguments, outputs)


def starve_layer_norm(client: Layer) -> None:
    for tensor in client.outputs():
        poison(tensor)
    for name in ("Forward", "Backward"):
        workspace = client.data["workspace"]
        assert workspace is not None
        poison(workspace)
        starve(client, RUNS[name], client.arguments(name), client.outputs())


def starve_search(client: Search) -> None:
    arguments, outputs = client.chunk(client.frames, [client.count] * client.batch)
    poison(client.workspace)
    starve(client, "TransducerSearch", arguments, outputs)


def run(case: Case) -> None:
    if failing_new() is None:
        case.counts["without tests/c/failing_new.cc"] += 1
        return
    torch.manual_seed(case.random.getrandbits(32))
    torch.set_num_threads(case.random.choice((1, 2)))
    with Memory(case.random) as memory:
        what = case.random.randrange(6)
        if what < 2:
            starve_layers(Layers(case, memory))
        elif what < 4:
            starve_losses(Losses(case, memory))
        elif what < 5:
            starve_search(Search(case, memory))
        else:
            starve_layer_norm(Layer(case, memory))

"""Other packages' RNN-T losses in prnn.compat: random problems, against a recursion in float64."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from fuzz.case import Case
from fuzz.explore import explore
from fuzz.loss_problem import Problem, compare, cut, problems, rnnt_reference, spread
from prnn.compat import nemo, optimized_transducer, torchaudio, warp_rnnt, warprnnt_pytorch

PACKAGES = ("nemo", "optimized_transducer", "torchaudio", "warp_rnnt", "warprnnt_pytorch")


def loss_of(problem: Problem, package: str, options: dict[str, Any], x: Tensor) -> Tensor:
    """The package's loss of logits x (N, T, U + 1, V), called as its users do."""
    frames, symbols = problem.lengths()
    labels = problem.padded_targets((problem.blank + 1) % problem.classes).int()
    batch = labels, frames, symbols
    blank, reduction, fastemit = problem.blank, problem.reduction, options["fastemit"]
    if package == "nemo":
        own = None if reduction == "none" else reduction
        return nemo.rnnt_loss(x, *batch, blank, own, fastemit_lambda=fastemit)
    if package == "torchaudio":
        given = x if options["fused"] else x.log_softmax(-1)
        return torchaudio.rnnt_loss(given, *batch, blank, -1.0, reduction, options["fused"])
    if package == "warp_rnnt":
        rest = {"blank": blank, "gather": options["gather"], "fastemit_lambda": fastemit}
        return warp_rnnt.rnnt_loss(x.log_softmax(-1), *batch, reduction=reduction, **rest)
    if package == "warprnnt_pytorch":
        return warprnnt_pytorch.rnnt_loss(x, *batch, blank, reduction)
    cells = [
        x[n, :t, : u + 1].flatten(0, 1) for n, (t, u) in enumerate(zip(problem.frames, problem.symbols, strict=True))
    ]
    loss = optimized_transducer.TransducerLoss(blank, reduction)
    return loss(torch.cat(cells), *batch, from_log_softmax=False)


def check(configuration: tuple[Problem, str, dict[str, Any]]) -> None:
    problem, package, options = configuration
    if package != "warp_rnnt":  # NeMo multiplies its costs, too
        options = options | {"fastemit": 0.0}
    x = problem.random(problem.batch, problem.most_frames, problem.most_symbols + 1, problem.classes)
    found = loss_of(problem, package, options, x)
    if package in ("nemo", "warprnnt_pytorch"):
        found = found.reshape(problem.batch if problem.reduction == "none" else ())  # a sum has one element there
    costs, gradients = [], []
    for n, target in enumerate(problem.targets):
        own = cut(problem, x, n)
        cost, gradient = rnnt_reference(own, target, problem.blank, "regular", fastemit=options["fastemit"])
        costs.append(cost)
        gradients.append([spread(problem, gradient, x.shape, n)])
    compare(problem, found, [x], costs, gradients)


@st.composite
def configurations(draw: st.DrawFn) -> tuple[Problem, str, dict[str, Any]]:
    drawn = draw(problems(dtypes=(torch.float32,)))
    changes = {"room": (0, 0), "nan_padding": False, "lengths_as": "int32", "zero_infinity": False}
    package = draw(st.sampled_from(PACKAGES))
    reduction = "sum" if package == "optimized_transducer" else draw(st.sampled_from(("none", "sum")))
    options = {
        "fastemit": draw(st.sampled_from((0.0, 0.1))),
        "fused": draw(st.booleans()),
        "gather": draw(st.booleans()),
    }
    problem = dataclasses.replace(drawn, reduction=reduction, **changes)
    return problem, package, options


def run(case: Case) -> None:
    warnings.simplefilter("ignore")
    explore(case, configurations(), check)

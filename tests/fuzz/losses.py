"""Every loss against float64: a plain recursion over the lattice, every path enumerated where that is feasible, and
torch's own ctc_loss; costs and gradients of random problems."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from reference import durations, lattice
from torch import Tensor

import prnn
from fuzz.case import Case, Finding
from fuzz.explore import explore
from fuzz.loss_problem import (
    INF,
    Problem,
    arranged,
    compare,
    ctc_cost,
    cut,
    gradient_of,
    kept_cells,
    problems,
    random_ranges,
    rnnt_reference,
    spread,
    with_padding,
)
from fuzz.pruned import check_align, check_pruned, check_recursion, check_simple
from prnn.losses._checks import RNNT_TYPES

FEASIBLE = 3000  # paths of CTC


def check_ctc(problem: Problem, options: dict[str, Any]) -> None:
    x = problem.random(problem.most_frames, problem.batch, problem.classes)
    if problem.nan_padding:
        with torch.no_grad():
            for n, frames in enumerate(problem.frames):
                x[frames:, n] = math.nan
    frames, symbols = problem.lengths()
    blank = problem.blank - problem.classes if options["negative"] else problem.blank
    joined = [symbol for row in problem.targets for symbol in row]
    targets = torch.tensor(joined, dtype=torch.int64) if options["joined"] else problem.padded_targets(-5)
    found = prnn.ctc_loss(
        arranged(x, options["strides"]), targets, frames, symbols, blank, problem.reduction, problem.zero_infinity,
        from_logits=options["from_logits"],
    )  # fmt: skip
    costs, gradients = [], []
    for n, (length, target) in enumerate(zip(problem.frames, problem.targets, strict=True)):
        leaf = x.detach()[:length, n].double().requires_grad_()
        scores = leaf.log_softmax(-1) if options["from_logits"] else leaf
        cost = ctc_cost(scores, target, problem.blank)
        if length > 0 and problem.classes**length <= FEASIBLE:
            slow = lattice.ctc_cost(scores.detach(), list(target), problem.blank)
            assert torch.isclose(slow, cost.detach(), rtol=1e-9, atol=1e-9), "the recursion is not the enumeration"
        costs.append(cost.detach())
        full = torch.zeros(x.shape, dtype=torch.float64)
        full[:length, n] = gradient_of(cost, [leaf])[0]
        gradients.append([full])
    mean = problem.reduction == "mean"
    compare(problem, found, [x], costs, gradients, [max(1, len(t)) for t in problem.targets] if mean else None)
    if options["from_logits"] and not problem.nan_padding and problem.dtype == torch.float64:
        plain = torch.nn.functional.ctc_loss(
            x.log_softmax(-1), problem.padded_targets(), torch.tensor(problem.frames), torch.tensor(problem.symbols),
            problem.blank, problem.reduction, problem.zero_infinity,
        )  # fmt: skip
        if not torch.allclose(found, plain, rtol=1e-9, atol=1e-9):
            raise Finding(f"the loss is {found.tolist()}; torch's is {plain.tolist()}")


def check_rnnt(problem: Problem, options: dict[str, Any]) -> None:
    gathered, packed = options["gathered"], options["packed"]
    classes = 2 if gathered else problem.classes
    shape = (problem.batch, problem.most_frames, problem.most_symbols + 1, classes)
    x = with_padding(problem, problem.random(*shape))
    frames, symbols = problem.lengths()
    given: Tensor = arranged(x, options["strides"])
    targets: Tensor | None = problem.padded_targets(-7)
    if packed:
        cells = [
            x[n, :t, : u + 1].reshape(-1, classes)
            for n, (t, u) in enumerate(zip(problem.frames, problem.symbols, strict=True))
        ]
        given = torch.cat(cells)
        if options["joined"]:
            targets = torch.tensor([symbol for row in problem.targets for symbol in row], dtype=torch.int64)
    if gathered and options["joined"]:
        targets = None
    keywords = {name: options[name] for name in ("fastemit_lambda", "delay_penalty", "rnnt_type", "average_frames")}
    blank = problem.blank - problem.classes if options["negative"] else problem.blank
    found = prnn.rnnt_loss(
        given * 1 if options["inplace"] else given, targets, frames, symbols, blank if not gathered else 0,
        options["clamp"], problem.reduction, options["normalise"], gathered=gathered, inplace=options["inplace"],
        zero_infinity=problem.zero_infinity, **keywords,
    )  # fmt: skip
    costs, gradients = [], []
    for n, target in enumerate(problem.targets):
        cost, gradient = rnnt_reference(
            cut(problem, x, n), target, problem.blank, options["rnnt_type"], normalise=options["normalise"],
            penalty=options["delay_penalty"], fastemit=options["fastemit_lambda"], clamp=options["clamp"],
            gathered=gathered,
        )  # fmt: skip
        costs.append(cost)
        gradients.append([spread(problem, gradient, x.shape, n)])
    compare(problem, found, [x], costs, gradients, problem.frames if options["average_frames"] else None)


def check_duration(problem: Problem, options: dict[str, Any]) -> None:
    steps, sigma, omega = options["durations"], options["sigma"], options["omega"]
    shape = (problem.batch, problem.most_frames, problem.most_symbols + 1)
    tokens = with_padding(problem, problem.random(*shape, problem.classes))
    apart = with_padding(problem, problem.random(*shape, len(steps)))
    frames, symbols = problem.lengths()
    arguments = (problem.padded_targets(-3), frames, symbols, problem.blank)
    keywords = {
        "reduction": problem.reduction,
        "fastemit_lambda": options["fastemit_lambda"],
        "clamp": options["clamp"],
    }
    keywords |= {"sigma": sigma, "zero_infinity": problem.zero_infinity}
    if options["apart"]:
        found = prnn.tdt_loss(tokens, *arguments, steps, omega=omega, duration_logits=apart, **keywords)
    else:
        found = prnn.tdt_loss(torch.cat((tokens, apart), -1), *arguments, steps, omega=omega, **keywords)
    costs, gradients = [], []
    for n, target in enumerate(problem.targets):
        leaves = [cut(problem, value, n).double().requires_grad_() for value in (tokens, apart)]
        arcs = durations.tdt_arcs(*leaves, list(target), problem.blank, steps, sigma)
        cost, grads = arcs_reference(arcs, leaves, options["fastemit_lambda"])
        if omega:
            plain, gradient = rnnt_reference(
                leaves[0], target, problem.blank, "regular", fastemit=options["fastemit_lambda"]
            )
            cost = plain if omega == 1 else (1 - omega) * cost + omega * plain
            grads = [(1 - omega) * grads[0] + omega * gradient, (1 - omega) * grads[1]]
            if cost == INF:
                grads = [torch.zeros_like(grad) for grad in grads]
        costs.append(cost)
        clamp = options["clamp"]
        grads = [grad.clamp(-clamp, clamp) if clamp > 0 else grad for grad in grads]
        gradients.append([spread(problem, grad, x.shape, n) for grad, x in zip(grads, (tokens, apart), strict=True)])
    compare(problem, found, [tokens, apart], costs, gradients)


def arcs_reference(arcs: durations.Arcs, leaves: list[Tensor], fastemit: float) -> tuple[Tensor, list[Tensor]]:
    scores = [*arcs.blanks.values(), *arcs.labels.values()]
    free = [score.detach().requires_grad_() for score in scores]
    count = len(arcs.blanks)
    apart = durations.Arcs(
        dict(zip(arcs.blanks, free[:count], strict=True)), dict(zip(arcs.labels, free[count:], strict=True))
    )
    cost = durations.recursive_cost(apart)
    factors = [1.0] * count + [1 + fastemit] * len(arcs.labels)
    grads = [factor * grad for factor, grad in zip(factors, gradient_of(cost, free), strict=True)]
    found = torch.autograd.grad(scores, leaves, grads, allow_unused=True)
    return cost.detach(), [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]


def check_multi_blank(problem: Problem, options: dict[str, Any]) -> None:
    steps = options["durations"]
    blank = problem.blank + len(steps)  # the big blanks come just before it, the symbols move up
    classes = problem.classes + len(steps)

    def moved(symbol: int) -> int:
        return symbol if symbol < problem.blank else symbol + len(steps)

    targets = [[moved(symbol) for symbol in row] for row in problem.targets]
    padded = problem.padded_targets(-3)
    for row, symbols in zip(padded, targets, strict=True):
        row[: len(symbols)] = torch.tensor(symbols, dtype=torch.int64)
    x = with_padding(problem, problem.random(problem.batch, problem.most_frames, problem.most_symbols + 1, classes))
    found = prnn.multi_blank_rnnt_loss(
        x, padded, *problem.lengths(), blank, steps, problem.reduction, options["fastemit_lambda"], options["clamp"],
        options["sigma"], zero_infinity=problem.zero_infinity,
    )  # fmt: skip
    costs, gradients = [], []
    for n, target in enumerate(targets):
        leaf = cut(problem, x, n).double().requires_grad_()
        arcs = durations.multi_blank_arcs(leaf, target, blank, steps, options["sigma"])
        cost, (gradient,) = arcs_reference(arcs, [leaf], options["fastemit_lambda"])
        clamp = options["clamp"]
        costs.append(cost)
        gradients.append([spread(problem, gradient.clamp(-clamp, clamp) if clamp > 0 else gradient, x.shape, n)])
    compare(problem, found, [x], costs, gradients)


def check_joint(problem: Problem, options: dict[str, Any]) -> None:
    size, frames, symbols = options["size"], problem.most_frames, problem.most_symbols
    encoder, predictor = problem.random(problem.batch, frames, size), problem.random(problem.batch, symbols + 1, size)
    weight, bias = problem.random(problem.classes, size), problem.random(problem.classes)
    if problem.nan_padding:
        with torch.no_grad():
            for n in range(problem.batch):
                encoder[n, problem.frames[n] :] = math.nan
                predictor[n, problem.symbols[n] + 1 :] = math.nan
    leaves = [encoder, predictor, weight] + [bias] * options["bias"]
    ranges = None
    if options["width"] is not None:
        width = min(options["width"], symbols + 1)
        ranges = random_ranges(problem, width, options["rnnt_type"], frames, symbols)
    keywords = {
        name: options[name] for name in ("fastemit_lambda", "delay_penalty", "rnnt_type", "activation", "clamp")
    }
    found = prnn.joint_rnnt_loss(
        encoder, predictor, weight, bias if options["bias"] else None, problem.padded_targets(-9), *problem.lengths(),
        problem.blank, reduction=problem.reduction, ranges=ranges, block_elements=options["block_elements"],
        zero_infinity=problem.zero_infinity, **keywords,
    )  # fmt: skip
    costs, gradients = [], []
    for n, target in enumerate(problem.targets):
        t, u = problem.frames[n], problem.symbols[n]
        own = [encoder.detach()[n, :t], predictor.detach()[n, : u + 1], *(leaf.detach() for leaf in leaves[2:])]
        own = [leaf.double().requires_grad_() for leaf in own]
        meeting = own[0][:, None] + own[1][None]
        active = meeting.tanh() if options["activation"] == "tanh" else meeting.relu()
        logits = torch.nn.functional.linear(active, own[2], own[3] if options["bias"] else None)
        cost, gradient = rnnt_reference(
            logits, target, problem.blank, options["rnnt_type"], penalty=options["delay_penalty"],
            fastemit=options["fastemit_lambda"], clamp=options["clamp"],
            kept=None if ranges is None else kept_cells(ranges[n], t, u),
        )  # fmt: skip
        grads = list(torch.autograd.grad(logits, own, gradient))
        full = [torch.zeros(leaf.shape, dtype=torch.float64) for leaf in leaves[:2]]
        full[0][n, :t], full[1][n, : u + 1] = grads[0], grads[1]
        costs.append(cost)
        gradients.append([*full, *grads[2:]])
    compare(problem, found, leaves, costs, gradients)


BOOLEANS = st.booleans()
COMMON = {
    "fastemit_lambda": st.sampled_from((0.0, 0.0, 0.1, 1.0)),
    "clamp": st.sampled_from((-1.0, 0.0, 0.01, 0.3)),
}
LATTICE = {
    **COMMON,
    "rnnt_type": st.sampled_from(RNNT_TYPES),
    "delay_penalty": st.sampled_from((0.0, 0.0, 0.2, -0.5)),
}
SIGMA = st.sampled_from((0.0, 0.05, -0.3))
FLOATS = (torch.float64, torch.float32)
CHECKS: dict[str, tuple[Callable[[Problem, dict[str, Any]], None], st.SearchStrategy[Problem], dict[str, Any]]] = {
    "ctc": (
        check_ctc,
        problems(shortest=0),
        {"from_logits": BOOLEANS, "joined": BOOLEANS, "negative": BOOLEANS, "strides": st.integers(0, 2)},
    ),
    "rnnt": (
        check_rnnt,
        problems(),
        {
            **LATTICE,
            **{
                name: BOOLEANS
                for name in ("normalise", "gathered", "packed", "joined", "negative", "inplace", "average_frames")
            },
            "strides": st.integers(0, 2),
        },
    ),
    "tdt": (
        check_duration,
        problems(),
        {
            **COMMON,
            "durations": st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).filter(any),
            "sigma": SIGMA,
            "omega": st.sampled_from((0.0, 0.0, 0.2, 1.0)),
            "apart": BOOLEANS,
        },
    ),
    "multi-blank": (
        check_multi_blank,
        problems(),
        {**COMMON, "durations": st.lists(st.integers(2, 5), max_size=3, unique=True), "sigma": SIGMA},
    ),
    "joint": (
        check_joint,
        problems(dtypes=FLOATS),
        {
            **LATTICE,
            "activation": st.sampled_from(("tanh", "relu")),
            "bias": BOOLEANS,
            "size": st.integers(1, 5),
            "width": st.one_of(st.none(), st.integers(1, 4)),
            "block_elements": st.one_of(st.none(), st.integers(1, 200)),
        },
    ),
    "simple": (
        check_simple,
        problems(dtypes=FLOATS),
        {
            "rnnt_type": LATTICE["rnnt_type"],
            "delay_penalty": LATTICE["delay_penalty"],
            "lm_scale": st.sampled_from((None, 0.0, 0.1, 0.4)),
            "am_scale": st.sampled_from((0.0, 0.1, 0.4)),
            "boundary": BOOLEANS,
            "s_range": st.integers(1, 5),
        },
    ),
    "pruned": (
        check_pruned,
        problems(dtypes=FLOATS),
        {
            "rnnt_type": LATTICE["rnnt_type"],
            "delay_penalty": LATTICE["delay_penalty"],
            "width": st.one_of(st.none(), st.integers(1, 5)),
            "return_grad": BOOLEANS,
        },
    ),
    "recursion": (
        check_recursion,
        problems(dtypes=FLOATS),
        {"modified": BOOLEANS, "offsets": BOOLEANS, "forbidden": BOOLEANS},
    ),
    "align": (
        check_align,
        problems(longest=4, dtypes=FLOATS),
        {
            "rnnt_type": LATTICE["rnnt_type"],
            "delay_penalty": LATTICE["delay_penalty"],
            "ctc": BOOLEANS,
            "from_logits": BOOLEANS,
        },
    ),
}


def run(case: Case) -> None:
    warnings.simplefilter("ignore")
    name = case.random.choice(list(CHECKS))
    check, problem, options = CHECKS[name]
    case.counts[name] += 1
    explore(case, st.tuples(problem, st.fixed_dictionaries(options)), lambda drawn: check(*drawn))

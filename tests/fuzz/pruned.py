"""The pruned family, its recursion and forced alignment against float64."""

from __future__ import annotations

import math
from typing import Any

import torch
from reference import lattice
from torch import Tensor

import prnn
from fuzz.case import Finding
from fuzz.layers import off
from fuzz.loss_problem import (
    INF,
    TOLERANCE,
    Problem,
    compare,
    cut,
    gradient_of,
    kept_cells,
    lattice_cost,
    random_ranges,
    rnnt_reference,
    spread,
)
from prnn.losses import pruned


def boundary_of(problem: Problem) -> Tensor:
    rows = [[0, 0, u, t] for t, u in zip(problem.frames, problem.symbols, strict=True)]
    return torch.tensor(rows)


def check_simple(problem: Problem, options: dict[str, Any]) -> None:
    """rnnt_loss_simple and rnnt_loss_smoothed on logits that are sums, and what get_rnnt_prune_ranges makes of them."""
    frames, symbols = problem.most_frames, problem.most_symbols
    lm, am = (
        problem.random(problem.batch, symbols + 1, problem.classes),
        problem.random(problem.batch, frames, problem.classes),
    )
    boundary = boundary_of(problem) if options["boundary"] else None
    padded = problem.padded_targets((problem.blank + 1) % problem.classes)
    keywords = {name: options[name] for name in ("rnnt_type", "delay_penalty")}
    arguments = (lm, am, padded, problem.blank)
    smoothed = options["lm_scale"] is not None
    if smoothed:
        scales = (options["lm_scale"], options["am_scale"])
        loss, occupation = prnn.rnnt_loss_smoothed(
            *arguments, *scales, boundary, reduction=problem.reduction, return_grad=True, **keywords
        )
    else:
        loss, occupation = prnn.rnnt_loss_simple(
            *arguments, boundary, reduction=problem.reduction, return_grad=True, **keywords
        )
    costs, gradients = [], []
    full_lm, full_am = (value.detach().double().requires_grad_() for value in (lm, am))
    unigram = full_lm.softmax(2).mean((0, 1)).log()
    for n in range(problem.batch):
        t, u = (problem.frames[n], problem.symbols[n]) if boundary is not None else (frames, symbols)
        added = (full_lm[n, None] + full_am[n, :, None]).log_softmax(2)[:t, : u + 1]
        if smoothed:
            alone = full_lm[n].log_softmax(1)[None, : u + 1], (full_am[n] + unigram).log_softmax(1)[:t, None]
            added = (1 - sum(scales)) * added + scales[0] * alone[0] + scales[1] * alone[1]
        target = padded[n, :u].tolist()
        blank, label = added[..., problem.blank], added[:, torch.arange(u), target]
        time = torch.arange(t, dtype=torch.float64).unsqueeze(1)
        label = label + options["delay_penalty"] * ((t - 1) / 2 - time)
        cost = lattice_cost(blank, label, options["rnnt_type"])
        costs.append(cost.detach())
        gradients.append(gradient_of(cost, [full_lm, full_am]))
    if problem.scale > 10 or any(cost == INF for cost in costs):
        return  # the sum of exponentials is one matrix product, of which large logits are not asked; INF - INF
    compare_without_zeros(problem, loss, [lm, am], costs, gradients)
    require_ranges(problem, occupation, boundary_of(problem) if boundary is None else boundary, options)


def compare_without_zeros(problem: Problem, *arguments: Any) -> None:
    """As compare; these losses have no zero_infinity."""
    import dataclasses

    compare(dataclasses.replace(problem, zero_infinity=False), *arguments)


def require_ranges(
    problem: Problem, occupation: tuple[Tensor, Tensor], boundary: Tensor, options: dict[str, Any]
) -> None:
    """The bounds begin at 0, do not decrease, grow as they may, and reach the last symbol."""
    ranges = prnn.get_rnnt_prune_ranges(*occupation, boundary, options["s_range"])
    frames, positions = problem.most_frames, problem.most_symbols + 1
    kept = ranges.shape[2]
    good = ranges.shape[:2] == (problem.batch, frames) and kept >= min(options["s_range"], positions)
    good = good and torch.equal(ranges, ranges[:, :, :1] + torch.arange(kept))
    begins = ranges[:, :, 0]
    steps = begins.diff(dim=1)
    most = max(kept - 1, 0) if options["rnnt_type"] == "regular" else 1
    good = good and bool((begins[:, 0] == 0).all()) and bool((steps >= 0).all())
    if not good:
        raise Finding(f"get_rnnt_prune_ranges gave {ranges.tolist()}")
    for n, (_, _, symbols, length) in enumerate(boundary.tolist()):
        possible = options["rnnt_type"] == "regular" or symbols - kept + 1 <= length - 1
        if possible and (begins[n, length - 1] + kept <= symbols or (steps[n, : length - 1] > most).any()):
            raise Finding(f"get_rnnt_prune_ranges gave {ranges[n].tolist()} for {symbols} symbols in {length} frames")


def check_pruned(problem: Problem, options: dict[str, Any]) -> None:
    """pruned.rnnt_loss on all positions, rnnt_loss_pruned on ranges. Symbols may hold the blank."""
    frames, symbols = problem.most_frames, problem.most_symbols
    padded = problem.padded_targets((problem.blank + 1) % problem.classes)
    if problem.seed % 3 == 0 and symbols:
        padded[0, 0] = problem.blank
    width, ranges = symbols + 1, None
    if options["width"] is not None:
        width = min(options["width"], symbols + 1)
        ranges = random_ranges(problem, width, options["rnnt_type"], frames, symbols)
    logits = problem.random(problem.batch, frames, width, problem.classes)
    keywords = {name: options[name] for name in ("rnnt_type", "delay_penalty", "return_grad")}
    keywords |= {"reduction": problem.reduction, "boundary": boundary_of(problem)}
    if ranges is None:
        loss = pruned.rnnt_loss(logits, padded, problem.blank, **keywords)
    else:
        loss = prnn.rnnt_loss_pruned(logits, padded, ranges, problem.blank, **keywords)
    loss = loss[0] if options["return_grad"] else loss
    costs, gradients = [], []
    for n in range(problem.batch):
        t, u = problem.frames[n], problem.symbols[n]
        x = logits.detach()[n, :t].double()
        places = torch.arange(width).expand(t, -1) if ranges is None else ranges[n, :t]
        full = torch.zeros(t, symbols + 1, problem.classes, dtype=torch.float64)
        full = full.scatter(1, places.unsqueeze(2).expand(-1, -1, problem.classes), x)[:, : u + 1]
        kept = None if ranges is None else kept_cells(ranges[n], t, u)
        cost, gradient = rnnt_reference(
            full,
            padded[n, :u].tolist(),
            problem.blank,
            options["rnnt_type"],
            penalty=options["delay_penalty"],
            kept=kept,
        )
        whole = torch.zeros(t, symbols + 1, problem.classes, dtype=torch.float64)
        whole[:, : u + 1] = gradient
        costs.append(cost)
        gathered = whole.gather(1, places.unsqueeze(2).expand(-1, -1, problem.classes))
        gradients.append([spread(problem, gathered, logits.shape, n)])
    if any(cost == INF for cost in costs):
        return
    compare_without_zeros(problem, loss, [logits], costs, gradients)


def check_recursion(problem: Problem, options: dict[str, Any]) -> None:
    """mutual_information_recursion inside any boundary."""
    frames, symbols, modified = problem.most_frames, problem.most_symbols, options["modified"]
    px = problem.random(problem.batch, symbols, frames + (not modified))
    py = problem.random(problem.batch, symbols + 1, frames)
    if options["forbidden"]:
        with torch.no_grad():
            py[torch.rand(py.shape) < 0.3] = -INF
    boundary = boundary_of(problem)
    if options["offsets"]:
        boundary[:, :2] = torch.minimum(boundary[:, :2] + torch.randint(0, 3, (problem.batch, 2)), boundary[:, 2:])
    scores, occupation = prnn.mutual_information_recursion(px, py, boundary, return_grad=True)
    for n, (s0, t0, s1, t1) in enumerate(boundary.tolist()):
        x = px.detach()[n, s0:s1, t0 : t1 + (not modified)].double().requires_grad_()
        y = py.detach()[n, s0 : s1 + 1, t0:t1].double().requires_grad_()
        score = recursion(x, y, modified)
        wanted = gradient_of(score, [x, y])
        exact = score.detach()
        tolerance = TOLERANCE[problem.dtype]
        ours = scores.detach()[n].double()
        if not (ours == exact or off(ours, exact) <= tolerance):
            raise Finding(f"scores[{n}] is {ours} in place of {exact}")
        parts = (occupation[0][n, s0:s1, t0 : t1 + (not modified)], occupation[1][n, s0 : s1 + 1, t0:t1])
        outside = [
            grad[n].abs().sum().double() - part.abs().sum() for grad, part in zip(occupation, parts, strict=True)
        ]
        for part, gradient, rest in zip(parts, wanted, outside, strict=True):
            if not off(part, gradient) <= tolerance * 10 or not abs(rest) <= 1e-5:
                raise Finding(f"the occupation of sequence {n} is off by {off(part, gradient):g}, outside {rest:g}")


def recursion(px: Tensor, py: Tensor, modified: bool) -> Tensor:
    symbols, frames = px.shape[0], py.shape[1]
    p = {(0, 0): py.new_zeros(())}
    for s in range(symbols + 1):
        for t in range(frames + 1):
            before = t - 1 if modified else t
            ways = [p[s - 1, before] + px[s - 1, before]] if (s - 1, before) in p else []
            if (s, t - 1) in p:
                ways.append(p[s, t - 1] + py[s, t - 1])
            ways = [way for way in ways if way > -INF]
            if ways:
                p[s, t] = torch.logsumexp(torch.stack(ways), 0)
    return p.get((symbols, frames), py.new_tensor(-INF))


def check_align(problem: Problem, options: dict[str, Any]) -> None:
    """forced_align against the best of all paths."""
    frames, symbols, targets = problem.most_frames, problem.most_symbols, problem.padded_targets(10**6)
    shape = (problem.batch, frames, problem.classes)
    if not options["ctc"]:
        shape = (problem.batch, frames, symbols + 1, problem.classes)
    x = problem.random(*shape).detach()
    keywords = {} if options["ctc"] else {name: options[name] for name in ("rnnt_type", "delay_penalty")}
    found = prnn.forced_align(
        x, targets, *problem.lengths(), problem.blank, from_logits=options["from_logits"], **keywords
    )
    for n, target in enumerate(problem.targets):
        t, u = problem.frames[n], problem.symbols[n]
        if options["ctc"]:
            if problem.classes**t > 3000:
                continue
            scores = x[n, :t].double()
            scores = scores.log_softmax(1) if options["from_logits"] else scores
            paths = lattice.ctc_path_scores(scores, list(target), problem.blank)
        else:
            if t * (u + 1) > 16:
                continue
            scores = cut(problem, x, n).double()
            scores = scores.log_softmax(2) if options["from_logits"] else scores
            label = scores[:, torch.arange(u), list(target)]
            _, paths = lattice.rnnt_path_scores(
                scores[..., problem.blank], label, options["rnnt_type"], options["delay_penalty"]
            )
        best = max((float(path) for path in paths), default=-INF)
        ours = float(found.scores[n])
        if not (ours == best or math.isclose(ours, best, rel_tol=1e-4, abs_tol=1e-4)):
            raise Finding(f"scores[{n}] is {ours} in place of {best}")
        begins = found.begins[n].tolist()
        there = best > -INF
        if any(begin == -1 for begin in begins[: u * there]) or any(begin != -1 for begin in begins[u * there :]):
            raise Finding(f"begins[{n}] is {begins} for {u} symbols in {t} frames, score {best}")

"""Random problems of the losses, their costs and gradients in float64 by a plain recursion (and by every path where
these are few), and the comparison of a loss with them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from reference import lattice
from torch import Tensor

from fuzz.case import Finding
from fuzz.layers import off

INF = math.inf
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
SMALL = 12  # cells of an RNN-T lattice whose paths are enumerated, too


@dataclasses.dataclass(frozen=True)
class Problem:
    """Sizes and what all transducers take. frames, symbols: lengths by sequence."""

    dtype: torch.dtype
    classes: int
    blank: int
    frames: tuple[int, ...]
    symbols: tuple[int, ...]
    room: tuple[int, int]  # frames and symbols of padding beyond the longest
    targets: tuple[tuple[int, ...], ...]
    reduction: str
    scale: float
    nan_padding: bool
    lengths_as: str
    zero_infinity: bool
    seed: int

    @property
    def batch(self) -> int:
        return len(self.frames)

    @property
    def most_frames(self) -> int:
        return max(1, max(self.frames) + self.room[0])

    @property
    def most_symbols(self) -> int:
        return max(self.symbols) + self.room[1]

    def lengths(self) -> tuple[Any, Any]:
        if self.lengths_as == "list":
            return list(self.frames), list(self.symbols)
        dtype = {"int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8}[self.lengths_as]
        return torch.tensor(self.frames, dtype=dtype), torch.tensor(self.symbols, dtype=dtype)

    def padded_targets(self, padding: int = 0) -> Tensor:
        rows = [[*row, *[padding] * (self.most_symbols - len(row))] for row in self.targets]
        return torch.tensor(rows, dtype=torch.int64).reshape(self.batch, self.most_symbols)

    def random(self, *shape: int) -> Tensor:
        """A leaf of the problem's dtype."""
        generator = torch.Generator().manual_seed(self.seed + sum(shape))
        values = self.scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        return values.to(self.dtype).requires_grad_()


@st.composite
def problems(
    draw: st.DrawFn, shortest: int = 1, longest: int = 6, dtypes: Sequence[torch.dtype] = tuple(TOLERANCE)
) -> Problem:
    batch = draw(st.integers(1, 3))
    classes = draw(st.integers(2, 6))
    blank = draw(st.integers(0, classes - 1))
    usable = [symbol for symbol in range(classes) if symbol != blank]
    symbols = draw(st.lists(st.integers(0, 4), min_size=batch, max_size=batch))
    return Problem(
        dtype=draw(st.sampled_from(dtypes)),
        classes=classes,
        blank=blank,
        frames=tuple(draw(st.lists(st.integers(shortest, longest), min_size=batch, max_size=batch))),
        symbols=tuple(symbols),
        room=(draw(st.integers(0, 2)), draw(st.integers(0, 2))),
        targets=tuple(tuple(draw(st.sampled_from(usable)) for _ in range(length)) for length in symbols),
        reduction=draw(st.sampled_from(("none", "sum", "mean"))),
        scale=draw(st.sampled_from((1.0, 1.0, 0.0, 5.0, 50.0))),
        nan_padding=draw(st.booleans()),
        lengths_as=draw(st.sampled_from(("list", "int32", "int64", "uint8"))),
        zero_infinity=draw(st.booleans()),
        seed=draw(st.integers(0, 2**31)),
    )


# Costs of one sequence in float64


def lattice_cost(blank: Tensor, label: Tensor, rnnt_type: str, kept: Tensor | None = None) -> Tensor:
    """-log of the sum over paths: blank (T, U + 1), label (T, U). kept: the cells that paths may use."""
    frames, symbols = label.shape
    alpha: dict[tuple[int, int], Tensor] = {(0, 0): blank.new_zeros(())}

    def usable(t: int, u: int) -> bool:
        return t < frames and (t, u) in alpha and (kept is None or bool(kept[t, u]))

    for t in range(frames + 1):
        for u in range(symbols + 1):
            ways = [alpha[t - 1, u] + blank[t - 1, u]] if usable(t - 1, u) else []
            before = t if rnnt_type == "regular" else t - 1
            if usable(before, u - 1) and not (rnnt_type == "final_blank" and t == frames):
                score = label[before, u - 1]
                if rnnt_type != "constrained":
                    ways.append(alpha[before, u - 1] + score)
                elif kept is None or bool(kept[before, u]):
                    ways.append(alpha[before, u - 1] + score + blank[before, u])
            if ways:
                alpha[t, u] = torch.logsumexp(torch.stack(ways), 0)
    found = alpha.get((frames, symbols))
    return blank.new_tensor(INF) if found is None else -found


def ctc_cost(log_probs: Tensor, target: Sequence[int], blank: int) -> Tensor:
    states = [blank, *(s for symbol in target for s in (symbol, blank))]
    alpha: list[Tensor | None] = [log_probs.new_zeros(()), *[None] * (len(states) - 1)]  # before the first frame
    for t, frame in enumerate(log_probs):
        after: list[Tensor | None] = []
        for i, state in enumerate(states):
            ways = [alpha[i]] if t > 0 or i == 0 else []
            if i >= 1:
                ways.append(alpha[i - 1])
            if t > 0 and i >= 2 and state not in (blank, states[i - 2]):
                ways.append(alpha[i - 2])
            real = [way for way in ways if way is not None]
            after.append(torch.logsumexp(torch.stack(real), 0) + frame[state] if real else None)
        alpha = after
    ends = [way for way in alpha[-2:] if way is not None]
    return -torch.logsumexp(torch.stack(ends), 0) if ends else log_probs.new_tensor(INF)


def gradient_of(cost: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Zeros where there is no path."""
    if not cost.requires_grad or not math.isfinite(cost):
        return [torch.zeros_like(leaf) for leaf in leaves]
    grads = torch.autograd.grad(cost, leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, grads, strict=True)]


def rnnt_reference(
    logits: Tensor, target: Sequence[int], blank: int, rnnt_type: str, *, normalise: bool = True, penalty: float = 0.0,
    fastemit: float = 0.0, clamp: float = 0.0, kept: Tensor | None = None, gathered: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Cost of logits (T, U + 1, V) and its gradient with respect to them, with FastEmit and clamp."""
    x = logits.detach().double().requires_grad_()
    log_probs = x.log_softmax(-1) if normalise and not gathered else x
    frames, symbols = x.shape[0], x.shape[1] - 1
    if gathered:
        blanks, labels = log_probs[..., 0], log_probs[:, :-1, 1]
    else:
        blanks, labels = log_probs[..., blank], log_probs[:, torch.arange(symbols), list(target)]
    time = torch.arange(frames, dtype=torch.float64).unsqueeze(1)
    arcs = [blanks.detach().requires_grad_(), labels.detach().requires_grad_()]
    cost = lattice_cost(arcs[0], arcs[1] + penalty * ((frames - 1) / 2 - time), rnnt_type, kept)
    if frames * (symbols + 1) <= SMALL:
        _, scores = lattice.rnnt_path_scores(arcs[0].detach(), arcs[1].detach(), rnnt_type, penalty, kept)
        enumerated = -torch.logsumexp(torch.stack(scores), 0) if scores else torch.tensor(INF).double()
        assert torch.isclose(enumerated, cost.detach(), rtol=1e-9, atol=1e-9), "the recursion is not the enumeration"
    blank_grad, label_grad = gradient_of(cost, arcs)
    (gradient,) = torch.autograd.grad([blanks, labels], x, [blank_grad, (1 + fastemit) * label_grad])
    return cost.detach(), gradient.clamp(-clamp, clamp) if clamp > 0 else gradient


def reduced(problem: Problem, costs: Tensor) -> Tensor:
    if problem.reduction == "none":
        return costs
    return costs.sum() if problem.reduction == "sum" else costs.mean()


def compare(
    problem: Problem, found: Tensor, leaves: Sequence[Tensor], costs: list[Tensor], gradients: list[list[Tensor]],
    divisors: Sequence[float] | None = None,
) -> None:  # fmt: skip
    """A loss and its gradients against costs by sequence and gradients by sequence and leaf, each of a leaf's shape."""
    exact = torch.stack(costs)
    if problem.zero_infinity:
        exact = torch.where(exact == INF, 0.0, exact)
    weights = torch.linspace(0.5, 1.5, problem.batch, dtype=torch.float64)
    divided = exact / torch.tensor(divisors or [1.0] * problem.batch, dtype=torch.float64)
    wanted = reduced(problem, divided)
    real = torch.float64 if problem.dtype == torch.float64 else torch.float32
    if found.dtype != real:
        raise Finding(f"the loss is of {found.dtype} in place of {real}")
    same_infinity = torch.equal(found.detach().double().isinf(), wanted.isinf())
    finite = [torch.where(value.isinf(), 0.0, value.double()) for value in (found.detach(), wanted)]
    tolerance = TOLERANCE[real]
    if not same_infinity or not off(*finite) <= tolerance:
        raise Finding(f"the loss is {found.tolist()} in place of {wanted.tolist()}")
    if not found.requires_grad:
        return
    if problem.reduction == "none":
        total = (found * weights.to(found.dtype)).sum()
    else:
        total, weights = (
            found,
            torch.ones(problem.batch).double() / (problem.batch if problem.reduction == "mean" else 1),
        )
    weights = weights / torch.tensor(divisors or [1.0] * problem.batch, dtype=torch.float64)
    ours = torch.autograd.grad(total, list(leaves))
    for index, (mine, leaf) in enumerate(zip(ours, leaves, strict=True)):
        expected = sum(
            (weight * grads[index] for weight, grads in zip(weights, gradients, strict=True)), torch.zeros(()).double()
        )
        if mine.dtype != leaf.dtype:
            raise Finding(f"gradient {index} is of {mine.dtype} in place of {leaf.dtype}")
        if not off(mine, expected.expand(leaf.shape)) <= TOLERANCE[problem.dtype]:
            raise Finding(f"gradient {index} is off by {off(mine, expected.expand(leaf.shape)):g}")


def cut(problem: Problem, x: Tensor, n: int) -> Tensor:
    """The lattice of sequence n of x (N, T, U + 1, ...)."""
    return x.detach()[n, : problem.frames[n], : problem.symbols[n] + 1]


def spread(problem: Problem, gradient: Tensor, shape: torch.Size, n: int) -> Tensor:
    """A sequence's gradient in its place, zeros around it."""
    full = torch.zeros(shape, dtype=torch.float64)
    full[n, : gradient.shape[0], : gradient.shape[1]] = gradient
    return full


def with_padding(problem: Problem, x: Tensor) -> Tensor:
    """A leaf with NaN beyond each lattice, if the problem wants that."""
    if not problem.nan_padding:
        return x
    with torch.no_grad():
        for n in range(problem.batch):
            x[n, problem.frames[n] :] = math.nan
            x[n, :, problem.symbols[n] + 1 :] = math.nan
    return x


def arranged(x: Tensor, how: int) -> Tensor:
    """Returns the values with other strides."""
    if how == 0:
        return x
    order = list(range(x.dim()))
    order = order[::-1] if how == 1 else order[1:] + order[:1]
    return x.permute(order).contiguous().permute([order.index(i) for i in range(x.dim())])


def random_ranges(problem: Problem, width: int, rnnt_type: str, frames: int, symbols: int) -> Tensor:
    """(N, T, R) as get_rnnt_prune_ranges gives them, of any path."""
    generator = torch.Generator().manual_seed(problem.seed)
    grown = torch.randint(
        0, 2 if rnnt_type != "regular" else max(1, width), (problem.batch, frames), generator=generator
    )
    grown[:, 0] = 0
    begins = grown.cumsum(1).clamp(max=symbols + 1 - width)
    return begins.unsqueeze(2) + torch.arange(width)


def kept_cells(ranges: Tensor, frames: int, symbols: int) -> Tensor:
    kept = torch.zeros(frames, symbols + 1, dtype=torch.bool)
    for t in range(frames):
        kept[t, [u for u in ranges[t].tolist() if u <= symbols]] = True
    return kept

"""TDT and multi-blank losses twice over: every path enumerated, and a plain recursion. Differentiable by autograd."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Arcs:
    """Scores of a sequence's arcs by the frames they go on: blanks {d: (T, U + 1)} and labels {d: (T, U)}."""

    blanks: dict[int, Tensor]
    labels: dict[int, Tensor]

    @property
    def frames(self) -> int:
        return next(iter(self.blanks.values())).shape[0]

    @property
    def symbols(self) -> int:
        return next(iter(self.blanks.values())).shape[1] - 1


def label_scores(log_probs: Tensor, target: list[int]) -> Tensor:
    return log_probs[:, torch.arange(len(target)), target]


def tdt_arcs(tokens: Tensor, durations: Tensor, target: list[int], blank: int, frames: list[int], sigma: float) -> Arcs:
    """tokens (T, U + 1, V) and durations (T, U + 1, D): logits."""
    token = tokens.log_softmax(2) - sigma
    duration = durations.log_softmax(2)
    return Arcs(
        {d: token[..., blank] + duration[..., i] for i, d in enumerate(frames) if d > 0},
        {d: label_scores(token, target) + duration[:, :-1, i] for i, d in enumerate(frames)},
    )


def multi_blank_arcs(logits: Tensor, target: list[int], blank: int, big: list[int], sigma: float) -> Arcs:
    """logits (T, U + 1, V)."""
    log_probs = logits.log_softmax(2) - sigma
    return Arcs({d: log_probs[..., blank - i] for i, d in enumerate([1, *big])}, {0: label_scores(log_probs, target)})


def rnnt_arcs(logits: Tensor, target: list[int], blank: int) -> Arcs:
    return multi_blank_arcs(logits, target, blank, [], 0.0)


def path_scores(arcs: Arcs, t: int = 0, u: int = 0) -> Iterator[Tensor | float]:
    """The score of every path from (t, u) whose last arc is a blank to (T, U)."""
    for d, score in arcs.blanks.items():
        if (t + d, u) == (arcs.frames, arcs.symbols):
            yield score[t, u]
        elif t + d < arcs.frames:
            for rest in path_scores(arcs, t + d, u):
                yield score[t, u] + rest
    for d, score in arcs.labels.items():
        if u < arcs.symbols and t + d < arcs.frames:
            for rest in path_scores(arcs, t + d, u + 1):
                yield score[t, u] + rest


def enumerated_cost(arcs: Arcs) -> Tensor:
    scores = list(path_scores(arcs))
    return -torch.logsumexp(torch.stack(scores), 0) if scores else torch.tensor(float("inf"), dtype=torch.float64)


def recursive_cost(arcs: Arcs) -> Tensor:
    frames, symbols = arcs.frames, arcs.symbols
    alpha: dict[tuple[int, int], Tensor] = {(0, 0): torch.zeros((), dtype=torch.float64)}
    for t in range(frames):
        for u in range(symbols + 1):
            ways = into(arcs, alpha, t, u) if t + u > 0 else [alpha[0, 0]]
            if ways:
                alpha[t, u] = torch.logsumexp(torch.stack(ways), 0)
    ways = [
        alpha[frames - d, symbols] + b[frames - d, symbols]
        for d, b in arcs.blanks.items()
        if (frames - d, symbols) in alpha
    ]
    return -torch.logsumexp(torch.stack(ways), 0) if ways else torch.tensor(float("inf"), dtype=torch.float64)


def into(arcs: Arcs, alpha: dict[tuple[int, int], Tensor], t: int, u: int) -> list[Tensor]:
    blanks = [alpha[t - d, u] + score[t - d, u] for d, score in arcs.blanks.items() if (t - d, u) in alpha]
    labels = [alpha[t - d, u - 1] + score[t - d, u - 1] for d, score in arcs.labels.items() if (t - d, u - 1) in alpha]
    return blanks + labels

"""CTC and RNN-T by enumerating every path: exponential, and obviously right. Differentiable by autograd."""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

Arc = tuple[int, int, str]  # (t, u, "blank" or "label")


def ctc_collapse(path: tuple[int, ...], blank: int) -> list[int]:
    """Repeats merged, then blanks dropped."""
    return [symbol for symbol, _ in itertools.groupby(path) if symbol != blank]


def ctc_paths(frames: int, classes: int, target: list[int], blank: int) -> Iterator[tuple[int, ...]]:
    for path in itertools.product(range(classes), repeat=frames):
        if ctc_collapse(path, blank) == target:
            yield path


def ctc_path_scores(log_probs: Tensor, target: list[int], blank: int) -> list[Tensor]:
    """log_probs (T, V): the score of each path that gives the target."""
    frames, classes = log_probs.shape
    time = torch.arange(frames)
    return [log_probs[time, list(path)].sum() for path in ctc_paths(frames, classes, target, blank)]


def ctc_cost(log_probs: Tensor, target: list[int], blank: int) -> Tensor:
    scores = ctc_path_scores(log_probs, target, blank)
    return -torch.logsumexp(torch.stack(scores), 0) if scores else log_probs.new_tensor(float("inf"))


def rnnt_paths(frames: int, symbols: int, rnnt_type: str) -> Iterator[list[Arc]]:
    """Every path from (0, 0) to (frames, symbols) as its arcs; a constrained label is two arcs."""

    def onwards(t: int, u: int) -> Iterator[list[Arc]]:
        if (t, u) == (frames, symbols):
            yield []
        if t == frames:
            return
        for rest in onwards(t + 1, u):
            yield [(t, u, "blank"), *rest]
        if u == symbols:
            return
        if rnnt_type == "regular":
            for rest in onwards(t, u + 1):
                yield [(t, u, "label"), *rest]
        elif rnnt_type != "final_blank" or t + 1 < frames:
            for rest in onwards(t + 1, u + 1):
                second = [(t, u + 1, "blank")] if rnnt_type == "constrained" else []
                yield [(t, u, "label"), *second, *rest]

    yield from onwards(0, 0)


def rnnt_path_scores(
    blank: Tensor, label: Tensor, rnnt_type: str, delay_penalty: float = 0.0, kept: Tensor | None = None
) -> tuple[list[list[Arc]], list[Tensor]]:
    """blank (T, U + 1), label (T, U): the paths and their scores. kept (T, U + 1): the cells that paths may use."""
    frames, symbols = label.shape
    time = torch.arange(frames, dtype=label.dtype).unsqueeze(1)
    label = label + delay_penalty * ((frames - 1) / 2 - time)
    paths, scores = [], []
    for path in rnnt_paths(frames, symbols, rnnt_type):
        if kept is not None and not all(kept[t, u] for t, u, _ in path):
            continue
        paths.append(path)
        scores.append(sum((blank if kind == "blank" else label)[t, u] for t, u, kind in path))
    return paths, scores


def rnnt_cost(log_probs: Tensor, target: list[int], blank: int, rnnt_type: str = "regular", **options) -> Tensor:
    """log_probs (T, U + 1, V)."""
    label = log_probs[:, torch.arange(len(target)), target]
    _, scores = rnnt_path_scores(log_probs[..., blank], label, rnnt_type, **options)
    return -torch.logsumexp(torch.stack(scores), 0) if scores else log_probs.new_tensor(float("inf"))

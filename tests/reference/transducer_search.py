"""Greedy search of a transducer or a token-and-duration transducer, one utterance, frame by frame, as NeMo's and
Transformers' decoders define it: the most probable class, the most probable duration of all; a blank of duration 0 goes
on by 1, and so does the last symbol that a frame may have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Found(NamedTuple):
    """Symbols with the frame, duration, log-probability among all classes and among all but the blank, of each."""

    symbols: list[int]
    frames: list[int]
    durations: list[int]
    log_probs: list[float]
    confidences: list[float]
    score: float


def greedy(
    frames: Tensor,
    predict: Callable[[int, Any], tuple[Tensor, Any]],
    join: Callable[[Tensor, Tensor], Tensor],
    blank: int,
    durations: Sequence[int] = (),
    max_symbols: int = 8,
    gains: Callable[[list[int]], Tensor] | None = None,
) -> Found:
    """Searches encoder frames (T, ...).

    predict: a symbol and the state before it (None at the start) to an output and the state after it. join: a frame and
    an output to logits (V + D,). gains: what each class (V,) is given after the symbols so far.
    """
    found, score, t, in_frame = Found([], [], [], [], [], 0.0), 0.0, 0, 0
    out, state = predict(blank, None)
    while t < len(frames):
        logits = join(frames[t], out).double()
        classes, spans = logits[: len(logits) - len(durations)], logits[len(logits) - len(durations) :]
        usable, log_probs = math.isfinite(float(classes.max())), classes.log_softmax(0)
        given = log_probs if gains is None else log_probs + gains(found.symbols)
        symbol = int(given.argmax()) if usable else blank
        score += float(given[symbol]) if usable else -math.inf
        duration = int(symbol == blank)
        if durations and usable:
            usable = math.isfinite(float(spans.max()))
            duration = durations[int(spans.argmax())] if usable else 1
            score += float(spans.log_softmax(0).max()) if usable else -math.inf
        in_frame += symbol != blank
        if symbol == blank or in_frame == max_symbols:
            duration = max(duration, 1)
        if symbol != blank:
            others = classes.clone()
            others[blank] = -math.inf
            row = (symbol, t, duration, float(log_probs[symbol]), float(others.log_softmax(0)[symbol]))
            for column, value in zip(found, row, strict=False):
                column.append(value)  # type: ignore[union-attr]
            out, state = predict(symbol, state)
        t += duration
        in_frame = 0 if duration else in_frame
    return found._replace(score=score)

"""Beam searches: several hypotheses per utterance, frame by frame, all utterances of a batch at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from prnn.transducer.hypothesis import (
    Decoder,
    Hypotheses,
    extend,
    map_tensors,
    pick,
    replace_rows,
    reserve,
    select_rows,
)

_IMPOSSIBLE = float("-inf")


def modified_frame(decoder: Decoder, frame: Tensor, number: Tensor, hypotheses: Hypotheses, _: int) -> Hypotheses:
    """One frame of the search in which a frame emits at most one symbol (Kang et al. 2023, "Fast and parallel decoding
    for transducer", and k2's modified transducer).

    Every hypothesis goes on with blank or with one symbol; both end the frame. A hypothesis that blank keeps and an
    extension of another that spells the same are one, their probabilities added. The K most probable remain.

    Args:
        decoder: predictor, joiner, blank.
        frame: (N, J), an encoder frame's projection.
        number: (N,) int64, its number in each utterance, for timestamps.
        hypotheses: N x K.

    Returns:
        N x K hypotheses.
    """
    log_probs = decoder.joiner.log_probs(frame[:, None], hypotheses.projection)
    total = hypotheses.scores[:, :, None] + log_probs
    row, shorter, longer = _same(hypotheses, hypotheses, extra=1)
    last = hypotheses.tokens[row, longer, hypotheses.lengths[row, longer] - 1]
    extended, kept = _merge(total[row, shorter, last], total[row, longer, decoder.blank])
    total[row, shorter, last] = extended
    total[row, longer, decoder.blank] = kept
    return _take_best(decoder, total, number, hypotheses)


def standard_frame(
    decoder: Decoder, frame: Tensor, number: Tensor, hypotheses: Hypotheses, max_symbols: int
) -> Hypotheses:
    """One frame of time-synchronous search (Saon et al. 2020, "Alignment-length synchronous decoding for RNN
    transducer", section 2), with the pruning rule of Graves 2012.

    Level 0 holds the K hypotheses that reach the frame. At each level, every hypothesis leaves the frame by blank;
    those that leave and spell the same are one, their probabilities added. The K most probable extensions of a level by
    one symbol, of those more probable than the K-th most probable that has left, are the next level, up to level
    `max_symbols`. The K most probable that have left reach the next frame.

    Args and returns are those of `modified_frame`; `max_symbols` is the most symbols in one frame.
    """
    beam = hypotheses.scores.shape[1]
    level, left = hypotheses, None
    for depth in range(max_symbols + 1):
        log_probs = decoder.joiner.log_probs(frame[:, None], level.projection)
        leaving = level._replace(scores=level.scores + log_probs[:, :, decoder.blank])
        left = leaving if left is None else _join(left, leaving)
        if depth == max_symbols:
            break
        total = level.scores[:, :, None] + log_probs
        total[:, :, decoder.blank] = _IMPOSSIBLE
        bar = left.scores.topk(beam).values[:, -1]
        total.masked_fill_(total <= bar[:, None, None], _IMPOSSIBLE)
        if bool((total == _IMPOSSIBLE).all()):
            break
        level = _take_best(decoder, total, number, level)
    assert left is not None
    return pick(left, left.scores.topk(beam).indices)


def beam_frames(
    decoder: Decoder, encoder_projection: Tensor, lengths: Tensor, first_frames: Tensor, hypotheses: Hypotheses,
    step: Callable[[Decoder, Tensor, Tensor, Hypotheses, int], Hypotheses], max_symbols: int,
) -> Hypotheses:  # fmt: skip
    """Advance K hypotheses per utterance over encoder frames with `modified_frame` or `standard_frame` as the step.

    Args and returns are those of `greedy_frames`, with N x K hypotheses.
    """
    on_host = lengths.cpu()
    for t in range(int(on_host.max()) if len(on_host) else 0):
        hypotheses = reserve(hypotheses, max_symbols)
        running = (on_host > t).nonzero()[:, 0].to(lengths.device)
        if len(running) == len(on_host):
            hypotheses = step(decoder, encoder_projection[:, t], first_frames + t, hypotheses, max_symbols)
        else:
            some = select_rows(hypotheses, running)
            some = step(decoder, encoder_projection[running, t], first_frames[running] + t, some, max_symbols)
            hypotheses = replace_rows(hypotheses, running, some)
    return hypotheses


def _take_best(decoder: Decoder, total: Tensor, number: Tensor, hypotheses: Hypotheses) -> Hypotheses:
    """The K best of (N, K, V) scores of going on from `hypotheses` with a symbol or with blank."""
    vocab_size = total.shape[2]
    scores, choice = total.flatten(1).topk(total.shape[1])
    symbols = choice % vocab_size
    chosen = pick(hypotheses, choice // vocab_size)._replace(scores=scores)
    return extend(decoder, chosen, symbols, number, (symbols != decoder.blank) & (scores > _IMPOSSIBLE))


def _same(left: Hypotheses, right: Hypotheses, extra: int) -> tuple[Tensor, Tensor, Tensor]:
    """All (row, i, j) such that i of `left` spells what j of `right` does without its last `extra` symbols."""
    fits = left.lengths[:, :, None] + extra == right.lengths[:, None]
    fits &= (left.scores > _IMPOSSIBLE)[:, :, None] & (right.scores > _IMPOSSIBLE)[:, None]
    row, i, j = fits.nonzero(as_tuple=True)
    beyond = torch.arange(left.tokens.shape[2], device=row.device) >= left.lengths[row, i, None]
    same = (beyond | (left.tokens[row, i] == right.tokens[row, j])).all(1)
    return row[same], i[same], j[same]


def _merge(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of pairs that are one: the more probable (with its timestamps) gets the sum, the other none."""
    # torch.logaddexp rounds a tensor's last elements otherwise than the others; a sum must not depend on its place.
    high, low = torch.maximum(one, other), torch.minimum(one, other)
    both = high + torch.where(low == _IMPOSSIBLE, low, low - high).exp().log1p()
    first = one > other
    return both.masked_fill(~first, _IMPOSSIBLE), both.masked_fill(first, _IMPOSSIBLE)


def _join(left: Hypotheses, right: Hypotheses) -> Hypotheses:
    """Both sets as one, those that spell the same merged."""
    row, i, j = _same(left, right, extra=0)
    scores, more = left.scores.clone(), right.scores.clone()
    scores[row, i], more[row, j] = _merge(scores[row, i], more[row, j])
    return map_tensors(lambda x, y: torch.cat([x, y], dim=1), left._replace(scores=scores), right._replace(scores=more))

"""Beam searches: several hypotheses per utterance, frame by frame, all utterances of a batch at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from prnn.transducer.hypothesis import (
    Decoder,
    Hypotheses,
    among_symbols,
    distinct,
    extend,
    map_tensors,
    pick,
    replace_rows,
    reserve,
    same_pairs,
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
    row, shorter, longer = same_pairs(hypotheses, hypotheses, extra=1)
    last = hypotheses.tokens[row, longer, hypotheses.lengths[row, longer] - 1]
    extended, kept = _merge(total[row, shorter, last], total[row, longer, decoder.blank])
    total[row, shorter, last] = extended
    total[row, longer, decoder.blank] = kept
    return _take_best(decoder, total, log_probs, number, hypotheses)


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
        level = _take_best(decoder, total, log_probs, number, level)
    assert left is not None
    return pick(left, left.scores.topk(beam).indices)


def durations_frame(
    decoder: Decoder, frame: Tensor, number: Tensor, hypotheses: Hypotheses, max_symbols: int
) -> Hypotheses:
    """One frame of the search of a token-and-duration transducer: `standard_frame` with arcs that lead to later frames.

    The K hypotheses of an utterance are at this frame, or wait for a later one. Level 0 holds those that are here. At
    each level, a hypothesis goes on with blank or a symbol, and any duration; a blank goes on by one frame at least.
    The K most probable of a level's ways on that leave the frame wait for the frame where they land; those that spell
    the same and wait for the same frame are one, their probabilities added. Of the symbols of duration 0, the K most
    probable, of those more probable than the K-th most probable that waits, are the next level. A frame's
    `max_symbols`-th symbol leaves it also with duration 0, by one frame. The K most probable that wait reach the next
    frame.

    Args and returns are those of `modified_frame`; `max_symbols` is the most symbols in one frame.
    """
    beam = hypotheses.scores.shape[1]
    here = hypotheses.ahead == 0
    waiting = hypotheses._replace(
        scores=hypotheses.scores.masked_fill(here, _IMPOSSIBLE), ahead=(hypotheses.ahead - 1).clamp(min=0)
    )
    level = hypotheses._replace(scores=hypotheses.scores.masked_fill(~here, _IMPOSSIBLE))
    steps = torch.tensor(decoder.durations, device=number.device)
    is_symbol = torch.arange(decoder.joiner.output.out_features - len(steps), device=number.device) != decoder.blank
    for depth in range(1, max_symbols + 1):
        if bool((level.scores == _IMPOSSIBLE).all()):
            break
        symbols, durations = decoder.joiner.all_log_probs(frame[:, None], level.projection)
        total = level.scores[:, :, None, None] + symbols[..., None] + durations[:, :, None]
        stays = total.clone()
        if depth < max_symbols:
            total.masked_fill_((steps == 0) & is_symbol[:, None], _IMPOSSIBLE)
        leaving = _take_best_with_duration(decoder, total, symbols, steps.clamp(min=1) - 1, number, level)
        waiting = distinct(_cat(waiting, leaving))
        if depth == max_symbols:
            break
        bar = waiting.scores.topk(beam).values[:, -1]
        stays[:, :, decoder.blank] = _IMPOSSIBLE
        stays.masked_fill_((steps > 0) | (stays <= bar[:, None, None, None]), _IMPOSSIBLE)
        level = _take_best_with_duration(decoder, stays, symbols, torch.zeros_like(steps), number, level)
    return pick(waiting, waiting.scores.topk(beam).indices)


def beam_frames(
    decoder: Decoder, encoder_projection: Tensor, lengths: Tensor, first_frames: Tensor, hypotheses: Hypotheses,
    step: Callable[[Decoder, Tensor, Tensor, Hypotheses, int], Hypotheses], max_symbols: int,
) -> Hypotheses:  # fmt: skip
    """Advance K hypotheses per utterance over encoder frames with one of the functions above as the step.

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


def _take_best(
    decoder: Decoder, total: Tensor, log_probs: Tensor, number: Tensor, hypotheses: Hypotheses
) -> Hypotheses:
    """The K best of (N, K, V) scores of going on from `hypotheses` with a symbol or with blank, whose own
    log-probabilities, (N, K, V) too, may be biased."""
    now = torch.zeros_like(number[:1])
    return _take_best_with_duration(decoder, total[..., None], log_probs, now, number, hypotheses)


def _take_best_with_duration(
    decoder: Decoder, total: Tensor, log_probs: Tensor, ahead: Tensor, number: Tensor, hypotheses: Hypotheses
) -> Hypotheses:
    """Extends by (N, K, V, D) scores, the D-th duration passing over ahead[D] of the frames that come next."""
    _, beam, vocab_size, count = total.shape
    scores, choice = total.flatten(1).topk(beam)
    symbols = choice // count % vocab_size
    parents = choice // (count * vocab_size)
    chosen = pick(hypotheses, parents)._replace(scores=scores, ahead=ahead[choice % count])
    log_probs = log_probs.gather(1, parents[:, :, None].expand(-1, -1, vocab_size))
    if decoder.bias is not None:
        log_probs = log_probs - decoder.bias.gains(chosen.predictor[-1])
    own = among_symbols(log_probs, symbols, decoder.blank)
    return extend(decoder, chosen, symbols, own, number, (symbols != decoder.blank) & (scores > _IMPOSSIBLE))


def _merge(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of pairs that are one: the more probable (with its timestamps) gets the sum, the other none."""
    # torch.logaddexp rounds a tensor's last elements otherwise than the others; a sum must not depend on its place.
    high, low = torch.maximum(one, other), torch.minimum(one, other)
    both = high + torch.where(low == _IMPOSSIBLE, low, low - high).exp().log1p()
    first = one > other
    return both.masked_fill(~first, _IMPOSSIBLE), both.masked_fill(first, _IMPOSSIBLE)


def _join(left: Hypotheses, right: Hypotheses) -> Hypotheses:
    """Both sets as one, those that spell the same merged."""
    row, i, j = same_pairs(left, right)
    scores, more = left.scores.clone(), right.scores.clone()
    scores[row, i], more[row, j] = _merge(scores[row, i], more[row, j])
    return _cat(left._replace(scores=scores), right._replace(scores=more))


def _cat(left: Hypotheses, right: Hypotheses) -> Hypotheses:
    return map_tensors(lambda x, y: torch.cat([x, y], dim=1), left, right)

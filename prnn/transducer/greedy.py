"""Greedy search: the most probable symbol at every step, all utterances of a batch at once."""

from __future__ import annotations

import torch
from torch import Tensor

from prnn.transducer.hypothesis import Decoder, Hypotheses, among_symbols, extend, reserve

_ROWS = 16
_LEAST_WINDOW = 4


def greedy_frames(
    decoder: Decoder, encoder_projection: Tensor, lengths: Tensor, first_frames: Tensor, hypotheses: Hypotheses,
    max_symbols: int,
) -> Hypotheses:  # fmt: skip
    """Advance one hypothesis per utterance over encoder frames.

    Each utterance has its own place. Until the next symbol the predictor's output stays as it is, so several frames are
    scored at once, up to the first that is not blank. A frame's `max_symbols`-th symbol ends the frame; no blank is
    scored there.

    Args:
        decoder: predictor, joiner, blank.
        encoder_projection: (N, T, J), from `Joiner.project_encoder`.
        lengths: (N,) int64, real frames of each row.
        first_frames: (N,) int64, each utterance's number of the first frame here, for timestamps.
        hypotheses: N x 1, before these frames.
        max_symbols: most symbols in one frame.

    Returns:
        N x 1 hypotheses after these frames; score is the log-probability of the one path taken.
    """
    frame = torch.zeros_like(lengths)
    in_frame = torch.zeros_like(lengths)
    while True:
        rows = (frame < lengths).nonzero()[:, 0]
        if not len(rows):
            return hypotheses
        window = max(_LEAST_WINDOW, _ROWS // len(rows))
        index = frame[rows, None] + torch.arange(window, device=frame.device)
        real = index < lengths[rows, None]
        ahead = encoder_projection[rows[:, None], index.clamp(max=encoder_projection.shape[1] - 1)]
        log_probs = decoder.joiner.log_probs(ahead, hypotheses.projection[rows])
        best, symbols = log_probs.max(dim=2)

        is_symbol = real & (symbols != decoder.blank)
        found = is_symbol.any(1)
        blanks = (real & ~is_symbol).cumprod(1).sum(1)
        # One addition after the other, in the order of the frames: the same sum for any window.
        scores = torch.cat([hypotheses.scores[rows], best.masked_fill(~real, 0.0)], dim=1).cumsum(1)
        score = scores.gather(1, (blanks + found)[:, None])
        place = blanks.clamp(max=window - 1)
        symbol = symbols.gather(1, place[:, None])
        own = among_symbols(log_probs[torch.arange(len(rows), device=frame.device), place], symbol[:, 0], decoder.blank)

        here = in_frame[rows] * (blanks == 0) + found
        full = here == max_symbols
        frame = frame.index_add(0, rows, blanks)
        hypotheses = reserve(hypotheses._replace(scores=hypotheses.scores.index_copy(0, rows, score)), 1)
        every = torch.zeros_like(hypotheses.lengths)
        hypotheses = extend(
            decoder,
            hypotheses,
            every.index_copy(0, rows, symbol),
            every.double().index_copy(0, rows, own[:, None]),
            first_frames + frame,
            every.index_copy(0, rows, found[:, None].long()) > 0,
        )
        frame = frame.index_add(0, rows, full.long())
        in_frame = in_frame.index_copy(0, rows, here.masked_fill(full, 0))


def greedy_durations(
    decoder: Decoder, encoder_projection: Tensor, lengths: Tensor, first_frames: Tensor, hypotheses: Hypotheses,
    max_symbols: int,
) -> Hypotheses:  # fmt: skip
    """Advance one hypothesis per utterance of a token-and-duration transducer over encoder frames.

    At every frame that is visited, the most probable symbol or blank is taken, and the most probable duration; the next
    frame visited is so many further on. A blank goes on by a frame at least, and so does a frame's `max_symbols`-th
    symbol. NeMo's, Transformers' and sherpa-onnx' decoders do the same.

    Args and returns are those of `greedy_frames`, the score with the durations.
    """
    table = torch.tensor(decoder.durations, device=lengths.device)
    frame, in_frame = hypotheses.ahead[:, 0], torch.zeros_like(lengths)
    every = torch.zeros_like(hypotheses.lengths)
    while True:
        rows = (frame < lengths).nonzero()[:, 0]
        if not len(rows):
            return hypotheses._replace(ahead=(frame - lengths).clamp(min=0)[:, None])
        symbol_scores, duration_scores = decoder.joiner.all_log_probs(
            encoder_projection[rows, frame[rows]], hypotheses.projection[rows, 0]
        )
        best, symbols = symbol_scores.max(dim=1)
        is_symbol = symbols != decoder.blank
        best_duration, place = duration_scores.max(dim=1)

        here = in_frame[rows] + is_symbol
        leaves = ~is_symbol | (here == max_symbols)
        step = table[place].clamp(min=leaves.long())
        scores = hypotheses.scores.index_put((rows,), hypotheses.scores[rows] + (best + best_duration)[:, None])
        hypotheses = extend(
            decoder,
            reserve(hypotheses._replace(scores=scores), 1),
            every.index_copy(0, rows, symbols[:, None]),
            every.double().index_copy(0, rows, among_symbols(symbol_scores, symbols, decoder.blank)[:, None]),
            first_frames + frame,
            every.index_copy(0, rows, is_symbol[:, None].long()) > 0,
        )
        frame = frame.index_add(0, rows, step)
        in_frame = in_frame.index_copy(0, rows, here.masked_fill(step > 0, 0))

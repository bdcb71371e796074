"""Greedy search: the most probable symbol at every step, all utterances of a batch at once.

libprnn searches with the predictors and joiners that it knows (resident.py). Any others are called step by step
(steps.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from prnn._ops.transducer_search import Found
from prnn.transducer.hypothesis import Decoder
from prnn.transducer.resident import GreedyState, resident
from prnn.transducer.steps import search_by_steps


def greedy_search(
    decoder: Decoder,
    encoder_out: Tensor,
    lengths: Tensor,
    max_symbols: int,
    state: GreedyState | None = None,
    returns_state: bool = False,
) -> tuple[Found, GreedyState | None]:
    """Search whole utterances, or the next frames of streams.

    Args:
        decoder: predictor, joiner, blank, durations.
        encoder_out: (N, T, D), N at least 1.
        lengths: (N,) int64, on its device.
        max_symbols: most symbols in one frame.
        state: before these frames; it stays as it is. None: the utterances begin.
        returns_state: whether the state after these frames is wanted.
    """
    known = resident(decoder, trusts_versions=state is not None)
    encoder_out = _with_a_frame(encoder_out)
    if known is not None:
        own = None
        if state is not None:
            own = known.library_state(state.predictor, state.ahead, state.score)
        elif returns_state:
            own = known.new_state(len(lengths))
        found = known.search(encoder_out, lengths, max_symbols, own)
        if found is not None:
            return found, None if own is None else known.state_after(own)
    if state is None:
        state = _begin(decoder, len(lengths), encoder_out.device)
    return search_by_steps(decoder, decoder.joiner.project_encoder(encoder_out), lengths, max_symbols, state)


def greedy_begin(decoder: Decoder, batch: int) -> GreedyState:
    """The state of `batch` streams of a model before their first frame."""
    weight = decoder.joiner.encoder_proj.weight
    nothing = torch.zeros(batch, dtype=torch.int64, device=weight.device)
    _, state = greedy_search(decoder, weight.new_zeros(batch, 1, weight.shape[1]), nothing, 1, returns_state=True)
    assert state is not None
    return state


def _with_a_frame(encoder_out: Tensor) -> Tensor:
    """The library takes no batch without frames."""
    return encoder_out if encoder_out.shape[1] else encoder_out.new_zeros(len(encoder_out), 1, encoder_out.shape[2])


def _begin(decoder: Decoder, batch: int, device: torch.device) -> GreedyState:
    start = torch.full((batch,), decoder.blank, dtype=torch.int64, device=device)
    out, predictor = decoder.predictor.step(start, decoder.predictor.initial_state(batch))
    nothing = torch.zeros_like(start)
    return GreedyState(predictor, decoder.joiner.project_predictor(out), nothing, nothing.double())

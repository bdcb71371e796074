"""Streaming: the state of a batch of streams, explicit, in and out of every step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from prnn._search import MAX_SYMBOLS as MAX_SYMBOLS
from prnn.transducer.beam import beam_frames, durations_frame, modified_frame, standard_frame
from prnn.transducer.biasing import SymbolBias
from prnn.transducer.checks import require_at_least, require_choice
from prnn.transducer.greedy import greedy_begin, greedy_search
from prnn.transducer.hypothesis import (
    Decoder,
    Hypotheses,
    Hypothesis,
    append,
    begin,
    best_lists,
    map_tensors,
    most_probable,
    pick,
    settled,
    stable_lengths,
    transcripts,
    without_first,
)
from prnn.transducer.resident import GreedyState
from prnn.transducer.resident_beam import beam_by_library, whole_by_library, with_projections
from prnn.transducer.stacking import EncoderState

SEARCHES = ("greedy", "modified", "standard")


class SearchOptions(NamedTuple):
    """Which search, and its limits.

    Attributes:
        method: "greedy", "modified" (beam, at most one symbol a frame) or "standard" (beam).
        beam: hypotheses kept per utterance; 1 if greedy.
        max_symbols: most symbols in one frame; 1 if modified.
    """

    method: str
    beam: int
    max_symbols: int

    @classmethod
    def checked(cls, method: str, beam: int, max_symbols: int) -> SearchOptions:
        """The options, or ValueError or TypeError naming the one that is not accepted."""
        require_choice("search", method, SEARCHES)
        require_at_least("beam", beam, 1)
        require_at_least("max_symbols", max_symbols, 1)
        return cls(method, 1 if method == "greedy" else beam, 1 if method == "modified" else max_symbols)


def advance(
    decoder: Decoder, options: SearchOptions, encoder_out: Tensor, lengths: Tensor, frames: Tensor,
    hypotheses: Hypotheses, is_stream: bool = True,
) -> Hypotheses:  # fmt: skip
    """Search on over encoder frames (N, T, D): (N,) `lengths` of them are real, the first is number (N,) `frames`.
    is_stream: weights may be those of an earlier call, where none tells of a change."""
    if options.method == "greedy":
        state = GreedyState(
            *map_tensors(
                lambda x: x[:, 0], (hypotheses.predictor, hypotheses.projection, hypotheses.ahead, hypotheses.scores)
            )
        )
        found, after = greedy_search(decoder, encoder_out, lengths, options.max_symbols, state, True)
        assert after is not None
        hypotheses = append(hypotheses, found, frames)
        predictor, projection, ahead, scores = map_tensors(lambda x: x[:, None], after)
        return hypotheses._replace(predictor=predictor, projection=projection, ahead=ahead, scores=scores)
    if not encoder_out.shape[1]:
        return hypotheses
    by_library = beam_by_library(
        decoder,
        options.method == "modified",
        options.max_symbols,
        encoder_out,
        lengths,
        frames,
        hypotheses,
        trusts_versions=is_stream,
    )
    if by_library is not None:
        return by_library
    hypotheses = with_projections(decoder, hypotheses)
    arguments = decoder, decoder.joiner.project_encoder(encoder_out), lengths, frames, hypotheses
    step = modified_frame if options.method == "modified" else standard_frame
    return beam_frames(*arguments, durations_frame if decoder.durations else step, options.max_symbols)


def search(decoder: Decoder, options: SearchOptions, encoder_out: Tensor, lengths: Tensor) -> Hypotheses:
    """Search whole utterances with a beam. The hypotheses are to be listed, not gone on from."""
    if encoder_out.shape[1]:
        sizes = options.method == "modified", options.beam, options.max_symbols
        found = whole_by_library(decoder, *sizes, encoder_out, lengths)
        if found is not None:
            return settled(decoder, found)
    hypotheses = begin(decoder, encoder_out.shape[0], options.beam)
    first = torch.zeros_like(lengths)
    return settled(decoder, advance(decoder, options, encoder_out, lengths, first, hypotheses, is_stream=False))


@dataclasses.dataclass(frozen=True)
class StreamState:
    """All that N streams carry from chunk to chunk. No step changes a state: it returns a new one, so that a state may
    be kept and gone on from twice.

    Attributes:
        options: the search.
        encoder: the encoder's state, waiting frames among it.
        hypotheses: the search's N x K hypotheses, the predictor's states among them.
        frames: (N,) int64, encoder frames searched so far.
        returned: (N,) int64, symbols returned so far.
        finished: whether the streams have ended.
        bias: what the search prefers.
    """

    options: SearchOptions
    encoder: EncoderState
    hypotheses: Hypotheses
    frames: Tensor
    returned: Tensor
    finished: bool = False
    bias: SymbolBias | None = None

    def to(self, device: torch.device | str) -> StreamState:
        """The state on another device."""
        return self._map(lambda x: x.to(device))

    def select(self, streams: Tensor) -> StreamState:
        """The state of some of the streams: (M,) int64, on the state's device."""
        return self._map(lambda x: x.index_select(0, streams))

    def best(self) -> list[Hypothesis]:
        """The best hypothesis of each stream so far; what `stream_step` has not returned of it may still change."""
        return [nbest[0] for nbest in self.nbest(1)]

    def nbest(self, count: int, length_norm: bool = False) -> list[list[Hypothesis]]:
        """The `count` best hypotheses of each stream, at most the beam, ordered as by `beam_search`."""
        require_at_least("count", count, 1)
        return best_lists(self.hypotheses, count, length_norm)

    def take_certain(self) -> tuple[list[Hypothesis], StreamState]:
        """Takes out what can no longer change, so that the state of a long stream stays small.

        Returns:
            For each stream the symbols that all its hypotheses share, their frames too (the score is 0), and the state
            without them, whose hypotheses go on after them and keep their scores.
        """
        certain = torch.minimum(stable_lengths(self.hypotheses, True), self.hypotheses.lengths[:, 0])
        columns = (self.hypotheses.tokens, self.hypotheses.timestamps, self.hypotheses.log_probs)
        rows = zip(certain.tolist(), *(column[:, 0].tolist() for column in columns), strict=True)
        taken = [
            Hypothesis(tokens[:count], 0.0, stamps[:count], log_probs[:count])
            for count, tokens, stamps, log_probs in rows
        ]
        returned = (self.returned - certain).clamp(min=0)
        hypotheses = without_first(self.hypotheses, certain)
        return taken, dataclasses.replace(self, hypotheses=hypotheses, returned=returned)

    def take_best(self) -> tuple[list[Hypothesis], StreamState]:
        """Ends an utterance in every stream, at a pause for instance.

        Returns:
            For each stream its best hypothesis, and the state from which the next utterance goes on: the encoder after
            all frames so far, the predictor after that hypothesis, whose symbols are gone and whose score is 0. The
            other hypotheses are dropped.
        """
        best = pick(self.hypotheses, most_probable(self.hypotheses).expand_as(self.hypotheses.scores))
        start = torch.zeros_like(best.scores) if self.bias is None else self.bias.carried(best.predictor[-1])
        others = torch.arange(best.scores.shape[1], device=start.device) > 0
        hypotheses = without_first(best, best.lengths[:, 0])._replace(scores=start.masked_fill(others, -torch.inf))
        nothing = torch.zeros_like(self.returned)
        return self.best(), dataclasses.replace(self, hypotheses=hypotheses, returned=nothing)

    def _map(self, function: Callable[[Tensor], Tensor]) -> StreamState:
        tensors = (self.encoder, self.hypotheses, self.frames, self.returned)
        return StreamState(self.options, *map_tensors(function, tensors), self.finished, self.bias)


def stream_begin(decoder: Decoder, options: SearchOptions, encoder: EncoderState, batch: int) -> StreamState:
    """The state of `batch` streams before the first chunk, given the encoder's."""
    hypotheses = begin(decoder, batch, options.beam)
    if options.method == "greedy":
        state = map_tensors(lambda x: x[:, None], greedy_begin(decoder, batch))
        hypotheses = hypotheses._replace(predictor=state.predictor, projection=state.projection)
    nothing = torch.zeros_like(hypotheses.lengths[:, 0])
    return StreamState(options, encoder, hypotheses, nothing, nothing, bias=decoder.bias)


def stream_advance(
    decoder: Decoder, state: StreamState, encoder: EncoderState, encoder_out: Tensor, lengths: Tensor, finish: bool
) -> tuple[list[list[int]], StreamState]:
    """Search on over new encoder frames, and take out the symbols that have become certain: all that the hypotheses of
    a stream share, or, at the finish, all of the best one's."""
    hypotheses = advance(decoder, state.options, encoder_out, lengths, state.frames, state.hypotheses)
    if finish:
        hypotheses = transcripts(settled(decoder, hypotheses))
    certain = hypotheses.lengths[:, 0] if finish else stable_lengths(hypotheses)
    bounds = zip(hypotheses.tokens[:, 0].tolist(), state.returned.tolist(), certain.tolist(), strict=True)
    tokens = [row[start:end] for row, start, end in bounds]
    return tokens, StreamState(state.options, encoder, hypotheses, state.frames + lengths, certain, finish, state.bias)

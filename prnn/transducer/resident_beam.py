"""Beam search by libprnn (include/prnn_decode.h), for predictors and joiners that it knows."""

from __future__ import annotations

import torch
from torch import Tensor

from prnn._errors import NotSupportedError
from prnn._ops.transducer_search import BeamFound, beam_search
from prnn.transducer.hypothesis import Decoder, Hypotheses, map_tensors, pick, reserve
from prnn.transducer.resident import projected_predictor, resident

_NODE = 5  # of the members of prnnTransducerBeamState_t
_HASH_FACTOR = 0x9E3779B97F4A7C15 - 2**64  # as int64


def whole_by_library(
    decoder: Decoder, modified: bool, beam: int, max_symbols: int, encoder_out: Tensor, lengths: Tensor
) -> Hypotheses | None:
    """The library's beam search of whole utterances, or None where it has none. Its arguments are those of
    `beam_by_library`; the hypotheses, N x `beam`, have no predictor's states but the bias's node."""
    known = resident(decoder, trusts_versions=False)
    if known is None:
        return None
    state = None
    if decoder.bias is not None:
        ahead = torch.full((len(lengths), beam), -1, device=lengths.device)  # nothing else is read
        start = decoder.predictor.initial_state(len(lengths))
        start = map_tensors(lambda x: x[:, None].expand(-1, beam, *x.shape[1:]), start)
        state = (*known.library_state(start, ahead, ahead.double()), ahead.clone())
    arguments = known.frames(encoder_out), lengths.int(), beam, max_symbols, modified
    try:
        found = beam_search(known.prepared, *arguments, known.bias_tables(), state)
    except NotSupportedError:
        return None
    most = int(found.counts.max())
    symbols, frames, confidences = (column[:, :, :most] for column in (found.symbols, found.frames, found.confidences))
    node = None if state is None else state[_NODE]
    nodes = () if node is None else (node.long(),)
    counts = found.counts.long()
    nothing = torch.zeros_like(counts)
    return Hypotheses(symbols, frames, confidences, counts, found.scores, nothing, nodes, found.scores[..., None])


def beam_by_library(
    decoder: Decoder,
    modified: bool,
    max_symbols: int,
    encoder_out: Tensor,
    lengths: Tensor,
    first_frames: Tensor,
    hypotheses: Hypotheses,
    trusts_versions: bool,
) -> Hypotheses | None:
    """The library's beam search on over encoder frames (N, T, D), or None where it has none.

    Args:
        decoder: predictor, joiner, blank, durations.
        modified: whether a frame emits at most one symbol.
        max_symbols: most symbols in one frame; 1 if modified.
        encoder_out: (N, T, D), T at least 1.
        lengths: (N,) int64, the real frames of each.
        first_frames: (N,) int64, the number of each utterance's first frame here.
        hypotheses: N x K.
        trusts_versions: as `resident` has it.

    Returns:
        N x K hypotheses, whose projections are to be made by `with_projections` where they are needed.
    """
    known = resident(decoder, trusts_versions)
    if known is None:
        return None
    state = known.library_state(hypotheses.predictor, hypotheses.ahead, hypotheses.scores)
    state = (*state, _hashes(hypotheses))
    beam = hypotheses.scores.shape[1]
    try:
        found = beam_search(
            known.prepared,
            known.frames(encoder_out),
            lengths.int(),
            beam,
            max_symbols,
            modified,
            known.bias_tables(),
            state,
        )
    except NotSupportedError:
        return None
    predictor, ahead = known.predictor_states(state[:-1])
    extended = _extended(hypotheses, found, first_frames)
    return extended._replace(
        scores=found.scores, ahead=ahead, predictor=predictor, projection=hypotheses.projection[..., :0]
    )


def with_projections(decoder: Decoder, hypotheses: Hypotheses) -> Hypotheses:
    """Adds to hypotheses the projections that `beam_by_library` leaves out."""
    if hypotheses.projection.shape[-1]:
        return hypotheses
    shape = hypotheses.scores.shape
    projection = projected_predictor(decoder, map_tensors(lambda x: x.flatten(0, 1), hypotheses.predictor))
    return hypotheses._replace(projection=projection.reshape(*shape, -1))


def _hashes(hypotheses: Hypotheses) -> Tensor:
    """(N, K) int64: the hash of each hypothesis' symbols that prnn_decode.h defines; int64 wraps around as its type."""
    tokens, lengths = hypotheses.tokens, hypotheses.lengths
    most = int(lengths.max())
    place = torch.arange(most, device=tokens.device)
    powers = torch.full((most + 1,), _HASH_FACTOR, dtype=torch.int64, device=tokens.device)
    powers[0] = 1
    powers = powers.cumprod(0)
    behind = lengths[:, :, None] - 1 - place
    terms = (tokens[:, :, :most] + 1) * powers[behind.clamp(min=0)]
    return terms.masked_fill(behind < 0, 0).sum(2)


def _extended(hypotheses: Hypotheses, found: BeamFound, first_frames: Tensor) -> Hypotheses:
    """The hypotheses that those found come from, with the symbols that they have gained."""
    counts = found.counts.long()[:, :, None]
    most = int(counts.max())
    before = hypotheses._replace(predictor=(), projection=hypotheses.scores)
    before = reserve(pick(before, found.origins.long()), most + 1)
    place = torch.arange(most, device=counts.device)
    # The last column takes what is no symbol.
    slot = torch.where(place < counts, before.lengths[:, :, None] + place, before.tokens.shape[2] - 1)

    def extended(column: Tensor, values: Tensor) -> Tensor:
        return column.scatter(2, slot, values[:, :, :most].to(column.dtype))

    stamps = found.frames[:, :, :most] + first_frames[:, None, None]
    return before._replace(
        tokens=extended(before.tokens, found.symbols),
        timestamps=extended(before.timestamps, stamps),
        log_probs=extended(before.log_probs, found.confidences),
        lengths=before.lengths + counts[:, :, 0],
    )

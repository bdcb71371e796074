"""Hypotheses: what a search returns, and the batch of them that it works on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from prnn._ops.transducer_search import Found
from prnn.transducer.biasing import BiasedJoiner, BiasedPredictor, SymbolBias
from prnn.transducer.joiner import Joiner
from prnn.transducer.predictor import Predictor

_GROWTH = 32
_IMPOSSIBLE = float("-inf")
_Tree = TypeVar("_Tree")


@dataclasses.dataclass(slots=True)  # a frozen one would take a pool of 10,000 streams 20 ms more a chunk
class Hypothesis:
    """A transcript of one utterance.

    Attributes:
        tokens: symbols, without blanks.
        score: natural log-probability, as the search that found it defines.
        timestamps: the encoder frame at which each symbol was emitted, non-decreasing. Encoder frame j begins at input
            frame j * frame_stride.
        log_probs: natural log-probability of each symbol in its frame, after the symbols before it, among all symbols
            but the blank, phrases aside: how sure the model is of the symbol, and not of the frame.
    """

    tokens: list[int]
    score: float
    timestamps: list[int]
    log_probs: list[float] = dataclasses.field(default_factory=list)


class Hypotheses(NamedTuple):
    """K hypotheses for each of N utterances, the batch first in every tensor.

    Attributes:
        tokens: (N, K, L) int64, the first `lengths` of each row; the rest never matters.
        timestamps: (N, K, L) int64, alike.
        log_probs: (N, K, L) float64, alike.
        lengths: (N, K) int64.
        scores: (N, K) float64, descending; -inf where there is no hypothesis.
        ahead: (N, K) int64, how many of the frames that come next the last duration of a token-and-duration transducer
            passes over; else 0.
        predictor: the predictor's states after the tokens, each (N, K, ...).
        projection: (N, K, J), the predictor's projected output after the tokens.
    """

    tokens: Tensor
    timestamps: Tensor
    log_probs: Tensor
    lengths: Tensor
    scores: Tensor
    ahead: Tensor
    predictor: tuple[Tensor, ...]
    projection: Tensor


class Decoder(NamedTuple):
    """The parts of a model that a search uses. durations: of a token-and-duration transducer, else empty. bias: that
    of a `BiasedPredictor` and a `BiasedJoiner`."""

    predictor: Predictor
    joiner: Joiner | BiasedJoiner
    blank: int
    durations: tuple[int, ...] = ()
    bias: SymbolBias | None = None

    @classmethod
    def of(
        cls, predictor: Predictor, joiner: Joiner, blank: int, durations: tuple[int, ...], bias: SymbolBias | None
    ) -> Decoder:
        """Makes a decoder of a model's own predictor and joiner."""
        if bias is None:
            return cls(predictor, joiner, blank, durations)
        return cls(BiasedPredictor(predictor, bias), BiasedJoiner(joiner, bias), blank, durations, bias)

    def parts(self) -> tuple[Any, Any]:
        """The model's own predictor and joiner, as `of` was given them."""
        if self.bias is None:
            return self.predictor, self.joiner
        return self.predictor.predictor, self.joiner.joiner  # type: ignore[attr-defined]


def map_tensors(function: Callable[..., Tensor], tree: _Tree, *others: _Tree) -> _Tree:
    """`function` of every tensor of nested tuples; given several, of the tensors at the same place in each."""

    def mapped(node: Any, *nodes: Any) -> Any:
        if isinstance(node, Tensor):
            return function(node, *nodes)
        branches = [mapped(*several) for several in zip(node, *nodes, strict=True)]
        return type(node)(*branches) if hasattr(node, "_fields") else tuple(branches)

    result: _Tree = mapped(tree, *others)
    return result


def select_rows(tree: _Tree, rows: Tensor) -> _Tree:
    """The given rows of the batch, (M,) int64."""
    return map_tensors(lambda x: x.index_select(0, rows), tree)


def replace_rows(tree: _Tree, rows: Tensor, by: _Tree) -> _Tree:
    """A copy in which `by` stands at the given rows of the batch."""
    return map_tensors(lambda x, y: x.index_copy(0, rows, y), tree, by)


def pick(hypotheses: Hypotheses, index: Tensor) -> Hypotheses:
    """Returns each utterance's hypotheses at (N, K') int64."""
    rows = torch.arange(index.shape[0], device=index.device)[:, None]
    return map_tensors(lambda x: x[rows, index], hypotheses)


def begin(decoder: Decoder, batch: int, beam: int) -> Hypotheses:
    """For each of `batch` utterances the empty hypothesis, and room for `beam` of them."""
    state = decoder.predictor.initial_state(batch)
    device = decoder.joiner.output.weight.device
    start = torch.full((batch,), decoder.blank, dtype=torch.int64, device=device)
    out, state = decoder.predictor.step(start, state)
    counts = torch.zeros(batch, beam, dtype=torch.int64, device=device)
    scores = torch.full((batch, beam), _IMPOSSIBLE, dtype=torch.float64, device=device)
    scores[:, 0] = 0.0
    empty = counts[:, :, None].expand(-1, -1, _GROWTH)

    def repeat(x: Tensor) -> Tensor:
        return x[:, None].expand(-1, beam, *x.shape[1:]).contiguous()

    projection = repeat(decoder.joiner.project_predictor(out))
    return Hypotheses(empty, empty, empty.double(), counts, scores, counts, map_tensors(repeat, state), projection)


def reserve(hypotheses: Hypotheses, symbols: int) -> Hypotheses:
    """Returns the hypotheses with room for `symbols` more in each."""
    batch, beam, room = hypotheses.tokens.shape
    missing = int(hypotheses.lengths.max()) + symbols - room if batch * beam else 0
    if missing <= 0:
        return hypotheses
    grow = (0, missing + max(_GROWTH, room // 2))
    return hypotheses._replace(
        tokens=functional.pad(hypotheses.tokens, grow),
        timestamps=functional.pad(hypotheses.timestamps, grow),
        log_probs=functional.pad(hypotheses.log_probs, grow),
    )


def among_symbols(log_probs: Tensor, symbols: Tensor, blank: int) -> Tensor:
    """Log-probabilities of symbols (...) where it is not the blank that comes next, from those of all, (..., V)."""
    others = log_probs.clone()
    others[..., blank] = _IMPOSSIBLE
    return log_probs.gather(-1, symbols[..., None])[..., 0] - others.logsumexp(-1)


def extend(
    decoder: Decoder, hypotheses: Hypotheses, symbols: Tensor, log_probs: Tensor, frames: Tensor, where: Tensor
) -> Hypotheses:
    """Append a symbol to the hypotheses at which `where` is true, and run the predictor for them alone.

    Args:
        decoder: predictor and joiner.
        hypotheses: N x K, with room for a symbol.
        symbols: (N, K) int64.
        log_probs: (N, K) float64, of the symbols, from `among_symbols`.
        frames: (N,) int64, the encoder frame of each utterance.
        where: (N, K) bool.
    """
    slot = hypotheses.lengths[:, :, None]
    stamps = frames[:, None, None].expand_as(slot)
    hypotheses = hypotheses._replace(
        tokens=hypotheses.tokens.scatter(2, slot, symbols[:, :, None]),
        timestamps=hypotheses.timestamps.scatter(2, slot, stamps),
        log_probs=hypotheses.log_probs.scatter(2, slot, log_probs[:, :, None]),
        lengths=hypotheses.lengths + where,
    )
    rows = where.flatten().nonzero()[:, 0]
    if not len(rows):
        return hypotheses
    state = map_tensors(lambda x: x.flatten(0, 1), hypotheses.predictor)
    out, after = decoder.predictor.step(symbols.flatten()[rows], select_rows(state, rows))
    shape = where.shape
    # Under autocast the projection's type may not be the one that the state began with.
    projected = decoder.joiner.project_predictor(out).to(hypotheses.projection.dtype)
    projection = hypotheses.projection.flatten(0, 1).index_copy(0, rows, projected)
    return hypotheses._replace(
        predictor=map_tensors(lambda x: x.reshape(*shape, *x.shape[1:]), replace_rows(state, rows, after)),
        projection=projection.reshape(*shape, -1),
    )


def append(hypotheses: Hypotheses, found: Found, first_frames: Tensor) -> Hypotheses:
    """N x 1 hypotheses with the symbols that greedy search has found in frames of which the first is number (N,)
    `first_frames`; the predictor's states and the scores stay as they were."""
    counts = found.counts.long()[:, None]
    most = int(counts.max())
    hypotheses = reserve(hypotheses, most + 1)
    place = torch.arange(most, device=counts.device)
    # The last column takes what is no symbol.
    slot = torch.where(place < counts, hypotheses.lengths + place, hypotheses.tokens.shape[2] - 1)[:, None]

    def extended(column: Tensor, values: Tensor) -> Tensor:
        return column.scatter(2, slot, values[:, None, :most].to(column.dtype))

    return hypotheses._replace(
        tokens=extended(hypotheses.tokens, found.symbols),
        timestamps=extended(hypotheses.timestamps, found.frames + first_frames[:, None]),
        log_probs=extended(hypotheses.log_probs, found.confidences),
        lengths=hypotheses.lengths + counts,
    )


def found_hypotheses(found: Any) -> list[Hypothesis]:
    """Returns the hypotheses of a greedy search: symbols, counts, frames, confidences and scores of a `Found`, or the
    like."""
    # Two copies to the host, each of one array: float64 has all integers of the others.
    counts, scores = torch.stack([found.counts.double(), found.scores.double()]).cpu()
    most = int(counts.max())
    columns = (column[:, :most].double() for column in (found.symbols, found.frames, found.confidences))
    # One list for all rows: lists that are dropped at once would keep the garbage collector busy.
    of_all = torch.stack(list(columns)).cpu()[:, torch.arange(most, device="cpu") < counts[:, None]]
    symbols, frames = of_all[:2].long().tolist()
    confidences = of_all[2].tolist()
    hypotheses, begin = [], 0
    for count, score in zip(counts.long().tolist(), scores.tolist(), strict=True):
        end = begin + count
        hypotheses.append(Hypothesis(symbols[begin:end], score, frames[begin:end], confidences[begin:end]))
        begin = end
    return hypotheses


def same_pairs(left: Hypotheses, right: Hypotheses, extra: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """All (row, i, j) such that i of `left` spells what j of `right` does without its last `extra` symbols, and waits
    for the same frame."""
    fits = left.lengths[:, :, None] + extra == right.lengths[:, None]
    fits &= left.ahead[:, :, None] == right.ahead[:, None]
    fits &= (left.scores > _IMPOSSIBLE)[:, :, None] & (right.scores > _IMPOSSIBLE)[:, None]
    row, i, j = fits.nonzero(as_tuple=True)
    beyond = torch.arange(left.tokens.shape[2], device=row.device) >= left.lengths[row, i, None]
    same = (beyond | (left.tokens[row, i] == right.tokens[row, j])).all(1)
    return row[same], i[same], j[same]


def distinct(hypotheses: Hypotheses) -> Hypotheses:
    """Merges hypotheses that spell the same and wait for the same frame: the most probable of them (with its
    timestamps) gets the sum of their probabilities, the others none. The order stays."""
    scores = hypotheses.scores
    same = torch.zeros(*scores.shape, scores.shape[1], dtype=torch.bool, device=scores.device)
    same[same_pairs(hypotheses, hypotheses)] = True
    high, leader = scores[:, None].masked_fill(~same, _IMPOSSIBLE).max(2)
    terms = (scores[:, None] - high[:, :, None]).exp().masked_fill(~same, 0.0)
    leads = leader == torch.arange(scores.shape[1], device=scores.device)
    leads &= scores > _IMPOSSIBLE
    return hypotheses._replace(scores=(high + terms.sum(2).log()).masked_fill(~leads, _IMPOSSIBLE))


def settled(decoder: Decoder, hypotheses: Hypotheses) -> Hypotheses:
    """Hypotheses of utterances that have ended: without the gains of phrases that were begun and not completed."""
    if decoder.bias is None:
        return hypotheses
    return hypotheses._replace(scores=decoder.bias.settled(hypotheses.scores, hypotheses.predictor[-1]))


def transcripts(hypotheses: Hypotheses) -> Hypotheses:
    """Merges hypotheses that spell the same, whatever frame they wait for; the most probable first."""
    merged = distinct(hypotheses._replace(ahead=torch.zeros_like(hypotheses.ahead)))
    return pick(merged, merged.scores.sort(dim=1, descending=True, stable=True).indices)


def stable_lengths(hypotheses: Hypotheses, with_timestamps: bool = False) -> Tensor:
    """(N,) int64: how many first symbols all hypotheses of an utterance share, or symbols at the same frames. They can
    no longer change."""
    tokens, lengths, stamps = hypotheses.tokens, hypotheses.lengths, hypotheses.timestamps
    position = torch.arange(tokens.shape[2], device=tokens.device)
    agree = (tokens == tokens[:, :1]) & (position < torch.minimum(lengths, lengths[:, :1])[:, :, None])
    if with_timestamps:
        agree &= stamps == stamps[:, :1]
    shared = agree.cumprod(2).sum(2)
    return shared.masked_fill(hypotheses.scores == _IMPOSSIBLE, tokens.shape[2]).amin(1)


def most_probable(hypotheses: Hypotheses) -> Tensor:
    """(N, 1) int64: of each utterance, the hypothesis that `best_lists` puts first, where several spell the same the
    most probable of them."""
    return distinct(hypotheses._replace(ahead=torch.zeros_like(hypotheses.ahead))).scores.argmax(1, keepdim=True)


def without_first(hypotheses: Hypotheses, counts: Tensor) -> Hypotheses:
    """Returns the hypotheses without the first (N,) `counts` symbols of each utterance, which all of its hypotheses
    share."""
    lengths = (hypotheses.lengths - counts[:, None]).clamp(min=0)  # those of score -inf may be shorter
    room = int(lengths.max()) if lengths.numel() else 0
    place = torch.arange(room, device=counts.device) + counts[:, None, None]
    place = place.clamp(max=max(hypotheses.tokens.shape[2] - 1, 0)).expand(-1, lengths.shape[1], -1)
    return hypotheses._replace(
        tokens=hypotheses.tokens.gather(2, place),
        timestamps=hypotheses.timestamps.gather(2, place),
        log_probs=hypotheses.log_probs.gather(2, place),
        lengths=lengths,
    )


def _listed(hypotheses: Hypotheses) -> Hypotheses:
    """On the host, without what no list has: a GPU would be waited for at each of many small steps."""
    lengths = hypotheses.lengths.cpu()
    most = int(lengths.max()) if lengths.numel() else 0
    cut = hypotheses._replace(
        tokens=hypotheses.tokens[..., :most],
        timestamps=hypotheses.timestamps[..., :most],
        log_probs=hypotheses.log_probs[..., :most],
        lengths=lengths,
        predictor=(),
        projection=lengths[..., None],
    )
    return map_tensors(Tensor.cpu, cut)


def best_lists(hypotheses: Hypotheses, nbest: int, length_norm: bool) -> list[list[Hypothesis]]:
    """For each utterance its `nbest` best transcripts, best first, by score, or by score / (symbols + 1). There is
    always a first one; its score is -inf if the model's probabilities are zero or not numbers."""
    hypotheses = transcripts(_listed(hypotheses))
    rank = hypotheses.scores / (hypotheses.lengths + 1) if length_norm else hypotheses.scores
    order = rank.sort(dim=1, descending=True, stable=True).indices[:, :nbest]
    rows = torch.arange(order.shape[0], device=order.device)[:, None]
    columns = (hypotheses.tokens, hypotheses.timestamps, hypotheses.log_probs, hypotheses.lengths, hypotheses.scores)
    lists = zip(*(column[rows, order].tolist() for column in columns), strict=True)
    return [
        [
            Hypothesis(tokens[:length], score, stamps[:length], log_probs[:length])
            for place, (tokens, stamps, log_probs, length, score) in enumerate(zip(*utterance, strict=True))
            if place == 0 or score > _IMPOSSIBLE
        ]
        for utterance in lists
    ]

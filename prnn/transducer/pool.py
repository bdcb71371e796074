"""Greedy search of streams that come and go: the slots of one batch, whose states stay in their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from prnn._search import MAX_SYMBOLS
from prnn.transducer.biasing import SymbolBias, check_bias
from prnn.transducer.checks import check_features, require_at_least, require_searchable
from prnn.transducer.greedy import greedy_begin, greedy_search
from prnn.transducer.hypothesis import Decoder, Hypothesis, found_hypotheses, map_tensors, select_rows
from prnn.transducer.inference import in_eval_mode
from prnn.transducer.resident import Resident, resident
from prnn.transducer.resident_layers import resident_layers
from prnn.transducer.stacking import EncoderState, StackingEncoder

if TYPE_CHECKING:
    from prnn.transducer.model import Transducer

_LONG = 16  # encoder frames


class StreamPool:
    """Greedy search of up to `slots` streams, which finds what `Transducer.stream_step` finds.

    A step takes the next frames of any of the streams as one batch and writes their states in place, which costs less
    time than a `StreamState`, of which each step makes another one. One thread at a time may use a pool.

    Args:
        model: of which the pool keeps what libprnn has prepared: another pool is to be made when weights have changed.
        slots: most streams at a time.
        max_symbols: most symbols in one encoder frame.
        bias: phrases to prefer, or a language model.
        like: a pool of the same model, whose prepared weights this one shares, too; they are not looked at again.

    Raises:
        ValueError, TypeError: naming the argument and its value.
    """

    def __init__(
        self,
        model: Transducer,
        slots: int,
        max_symbols: int = MAX_SYMBOLS,
        bias: SymbolBias | None = None,
        like: StreamPool | None = None,
    ) -> None:
        require_at_least("slots", slots, 1)
        require_at_least("max_symbols", max_symbols, 1)
        check_bias(bias, model.joiner.vocab_size, model.blank)
        weight = model.joiner.output.weight
        require_searchable("the model", weight, weight.device)
        self.slots = slots
        self._model = in_eval_mode(model)
        self._device = weight.device
        self._max_symbols = max_symbols
        if like is not None and like._joiner is not model.joiner:
            raise ValueError("like is a pool of another model")
        self._joiner: nn.Module = model.joiner
        parts = self._model.predictor, self._model.joiner
        self._decoder = Decoder.of(*parts, model.blank, model.durations, bias)
        with torch.no_grad():
            if like is None:
                self._resident = resident(self._decoder, trusts_versions=False)
                self._layers = resident_layers(self._model.encoder)
            else:
                shared = like._resident
                self._resident = None if shared is None else Resident(self._decoder, shared.prepared)
                self._layers = like._layers
            self._new_encoder: Any = self._model.encoder.initial_state(1)
            self._encoder: Any = map_tensors(torch.clone, self._model.encoder.initial_state(slots))
            if self._resident is None:
                self._new_search = greedy_begin(self._decoder, 1)
                self._search: Any = map_tensors(lambda x: x.expand(slots, *x.shape[1:]).clone(), self._new_search)
            else:
                self._search = self._resident.new_state(slots)
        self._frames = [0] * slots  # encoder frames searched of each stream
        self._waiting = [0] * slots  # frames that wait in a StackingEncoder's state
        self._free = list(range(slots - 1, -1, -1))
        self._open: set[int] = set()

    def open(self) -> int:
        """The slot of a new stream. Raises ValueError if all slots are taken."""
        if not self._free:
            raise ValueError(f"all slots are taken, {self.slots}; close a stream, or make a larger pool")
        slot = self._free.pop()
        self._open.add(slot)
        self._frames[slot] = self._waiting[slot] = 0
        map_tensors(lambda x, new: x[slot].copy_(new[0]), self._encoder, self._new_encoder)
        if self._resident is None:
            map_tensors(lambda x, new: x[slot].copy_(new[0]), self._search, self._new_search)
        else:
            self._ahead[slot] = -1
            self._scores[slot] = 0.0
        return slot

    def close(self, slot: int) -> None:
        """Gives a stream's slot to others."""
        self._require_open([slot])
        self._open.remove(slot)
        self._free.append(slot)

    def frames(self, slot: int) -> int:
        """How many encoder frames of a stream have been searched."""
        return self._frames[slot]

    def step(self, slots: Sequence[int], chunk: Tensor, chunk_lengths: Tensor | None = None) -> list[Hypothesis]:
        """Recognises the next frames of some streams.

        Args:
            slots: N different streams.
            chunk: (N, C, F), float, C from 0 up.
            chunk_lengths: (N,), integer, 0 to C, the real frames of each stream; None means all C.

        Returns:
            Of each stream the symbols that its frames have added; their timestamps count from the stream's first frame,
            and the score is that of all symbols since the stream, or the utterance, began.

        Raises:
            ValueError, TypeError: naming the argument and its value.
        """
        feature_dim = self._model.encoder.feature_dim
        lengths = check_features("chunk", chunk, feature_dim, "chunk_lengths", chunk_lengths, 0).cpu()
        require_searchable("chunk", chunk, self._device)
        self._require_open(slots)
        if len(slots) != len(chunk):
            raise ValueError(f"slots has {len(slots)} streams; chunk has {len(chunk)} rows")
        with torch.no_grad():
            return self._advance(slots, chunk, lengths)

    def finish(self, slots: Sequence[int]) -> list[Hypothesis]:
        """Recognises what still waits for frames, now that no more come: what `step` returns. The score has what the
        bias gives at an utterance's end. The streams are then to be closed."""
        self._require_open(slots)
        with torch.no_grad():
            found = self._advance(slots, None, None)
            bias = self._decoder.bias
            if bias is None:
                return found
            nodes = self._nodes.long()[torch.tensor(list(slots), device=self._device)]
            scores = torch.tensor([h.score for h in found], dtype=torch.float64, device=self._device)
            settled = bias.settled(scores, nodes).tolist()
        return [Hypothesis(h.tokens, score, h.timestamps, h.log_probs) for h, score in zip(found, settled, strict=True)]

    def begin_utterance(self, slot: int) -> float:
        """Begins another utterance in a stream, at a pause for instance: encoder and predictor go on, the score begins
        anew. Returns it: 0, or minus the share of a phrase that was begun."""
        self._require_open([slot])
        bias = self._decoder.bias
        score = 0.0 if bias is None else float(bias.carried(self._nodes[slot].long()))
        self._scores[slot] = score
        return score

    @property
    def _ahead(self) -> Tensor:
        return self._search[1]

    @property
    def _scores(self) -> Tensor:
        return self._search.score if self._resident is None else self._search[-1]

    @property
    def _nodes(self) -> Tensor:
        return self._search.predictor[-1] if self._resident is None else self._search[-2]

    def _require_open(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if slot not in self._open:
                raise ValueError(f"slots has {slot}; it must be that of an open stream")
        if len(set(slots)) != len(slots):
            raise ValueError(f"slots is {list(slots)}; it must name different streams")

    def _rows(self, slots: Sequence[int]) -> Tensor | None:
        """None: all of them, in their order."""
        if len(slots) == self.slots and list(slots) == list(range(self.slots)):
            return None
        return torch.tensor(list(slots), device=self._device)

    def _advance(self, slots: Sequence[int], chunk: Tensor | None, lengths: Tensor | None) -> list[Hypothesis]:
        """Encodes and searches a chunk, whose (N,) int64 lengths are on the CPU, or, without one, what still waits for
        frames."""
        rows = self._rows(slots)
        encoder: Any = self._model.encoder
        ready: list[int] | None = None  # the encoder frames of each stream, where the host knows
        alike = None
        if chunk is not None and lengths is not None and isinstance(encoder, StackingEncoder):
            given = lengths.tolist()
            totals = [self._waiting[slot] + length for slot, length in zip(slots, given, strict=True)]
            after_chunk = {total: encoder.ready_of(total) for total in set(totals)}
            ready = [after_chunk[total][0] for total in totals]
            if len(after_chunk) == 1 and all(length == chunk.shape[1] for length in given):
                alike = totals[0] - chunk.shape[1]
            for slot, total in zip(slots, totals, strict=True):
                self._waiting[slot] = after_chunk[total][1]
        else:
            for slot in slots:
                self._waiting[slot] = 0
        # Each stream is one thread's in the library's layers; in prnn.nn's, threads share a stream that is long.
        is_long = chunk is not None and chunk.shape[1] > _LONG * encoder.frame_stride
        by_modules = self._layers is None or (is_long and len(slots) < torch.get_num_threads())
        if by_modules and alike is None:
            state = _selected(self._encoder, rows)
            out, counts, after = (
                encoder.finish(state) if chunk is None else encoder.step(chunk, lengths.to(self._device), state)  # type: ignore[union-attr]
            )
            _write(self._encoder, rows, after)
            return self._find(slots, rows, out, counts, ready)
        waiting, hidden = self._encoder[:2], self._encoder.hidden
        frames, held = _selected(waiting, rows)
        if alike is not None:
            assert chunk is not None
            x, count, frames, left = encoder.stacked_alike(chunk, frames, alike)
            counts, held = torch.full_like(held, count), torch.full_like(held, left)
        else:
            state = EncoderState(frames, held, ())
            x, counts, frames, held = (
                encoder.stacked_rest(state) if chunk is None else encoder.stacked(chunk, lengths, state)
            )
        if self._layers is not None and not by_modules:
            out = self._layers.run(x, counts, rows, hidden)
        elif x.shape[1]:
            out, after = encoder.layers(x, _selected(hidden, rows), None)
            _write(hidden, rows, after)
        else:
            out = x.new_zeros(len(slots), 0, encoder.output_dim)
        _write(waiting, rows, (frames, held))
        return self._find(slots, rows, out, counts, ready)

    def _find(
        self, slots: Sequence[int], rows: Tensor | None, out: Tensor, counts: Tensor, ready: list[int] | None
    ) -> list[Hypothesis]:
        """Searches the encoder's frames, (N,) `counts` of them real."""
        if not out.shape[1]:
            scores = self._scores.tolist()
            return [Hypothesis([], scores[slot], [], []) for slot in slots]
        if self._resident is None:
            state = _selected(self._search, rows)
            found, state = greedy_search(self._decoder, out, counts, self._max_symbols, state, returns_state=True)
            _write(self._search, rows, state)
        else:
            places = None if rows is None else rows.int()
            by_library = self._resident.search(out, counts, self._max_symbols, (places, *self._search[1:]))
            assert by_library is not None  # a model that has a search has one for all sizes
            found = by_library
        hypotheses = found_hypotheses(found)
        ready = counts.tolist() if ready is None else ready
        for slot, hypothesis, count in zip(slots, hypotheses, ready, strict=True):
            first = self._frames[slot]
            if hypothesis.timestamps:
                hypothesis.timestamps[:] = [first + frame for frame in hypothesis.timestamps]
            self._frames[slot] = first + count
        return hypotheses


def _selected(tree: Any, rows: Tensor | None) -> Any:
    return tree if rows is None else select_rows(tree, rows)


def _write(tree: Any, rows: Tensor | None, by: Any) -> None:
    """Writes `by` to these rows of the batch, in place. None: to all."""
    if rows is None:
        map_tensors(lambda x, new: x.copy_(new), tree, by)
    else:
        map_tensors(lambda x, new: x.index_copy_(0, rows, new.to(x.dtype)), tree, by)

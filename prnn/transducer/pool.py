"""Greedy search of streams that come and go: the slots of one batch, whose states stay in their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from prnn._fields import shown
from prnn._ops.transducer_search import Found
from prnn._search import MAX_SYMBOLS
from prnn.transducer.biasing import SymbolBias, check_bias
from prnn.transducer.capture import CapturedSteps
from prnn.transducer.checks import check_features, check_samples, require_at_least, require_searchable
from prnn.transducer.encoder import Encoder
from prnn.transducer.greedy import greedy_begin, greedy_search
from prnn.transducer.hypothesis import Decoder, map_tensors, select_rows
from prnn.transducer.inference import in_eval_mode
from prnn.transducer.resident import Resident, is_plain, resident
from prnn.transducer.resident_layers import resident_layers
from prnn.transducer.samples import FrameFeatures, Phase, SampleSlots
from prnn.transducer.stacking import EncoderState, StackingEncoder
from prnn.transducer.step_result import Array, Columns, StepResult, device_copy

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
        fbank: a `prnn.asr.fbank.Fbank` on the model's device: steps take samples in place of frames.

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
        fbank: FrameFeatures | None = None,
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
            # The last row is a spare one.
            self._encoder_rows: Any = map_tensors(torch.clone, self._model.encoder.initial_state(slots + 1))
            self._encoder: Any = map_tensors(lambda x: x[:slots], self._encoder_rows)
            if self._resident is None:
                self._new_search = greedy_begin(self._decoder, 1)
                self._search: Any = map_tensors(lambda x: x.expand(slots, *x.shape[1:]).clone(), self._new_search)
            else:
                self._search = self._resident.new_state(slots)
        self._frames = np.zeros(slots, np.int64)  # encoder frames searched of each stream
        self._waiting = np.zeros(slots, np.int64)  # frames that wait in a StackingEncoder's state
        self._free = list(range(slots - 1, -1, -1))
        self._is_open = np.zeros(slots, bool)
        self._order = np.arange(slots)
        self._owner = np.zeros(slots, np.int64)  # of a slot the row that names it, while slots are checked
        self._samples = None if fbank is None else SampleSlots(fbank, slots, self._device)
        self._captured: CapturedSteps | None = None
        if self._resident is not None and weight.is_cuda and _is_capturable(self._model.encoder):
            self._captured = CapturedSteps(self._step_alike, (self._model, fbank), slots, self._device)

    def open(self) -> int:
        """The slot of a new stream. Raises ValueError if all slots are taken."""
        if not self._free:
            raise ValueError(f"all slots are taken, {self.slots}; close a stream, or make a larger pool")
        slot = self._free.pop()
        self._is_open[slot] = True
        self._frames[slot] = self._waiting[slot] = 0
        map_tensors(lambda x, new: x[slot].copy_(new[0]), self._encoder, self._new_encoder)
        if self._samples is not None:
            self._samples.open(slot)
        if self._resident is None:
            map_tensors(lambda x, new: x[slot].copy_(new[0]), self._search, self._new_search)
        else:
            self._ahead[slot] = -1
            self._scores[slot] = 0.0
            if self._decoder.bias is not None:
                self._nodes[slot] = 0  # which a stream without frames ends at
        return slot

    def close(self, slot: int) -> None:
        """Gives a stream's slot to others."""
        self._places([slot])
        self._is_open[slot] = False
        self._free.append(slot)

    def frames(self, slot: int) -> int:
        """How many encoder frames of a stream have been searched."""
        return int(self._frames[slot])

    def step(
        self, slots: Sequence[int] | Array | Tensor, chunk: Tensor, chunk_lengths: Tensor | None = None
    ) -> StepResult:
        """Recognises the next frames of some streams.

        Args:
            slots: (N,), different streams.
            chunk: (N, C, F), float, C from 0 up; of a pool with an fbank (N, C), samples from -1 to 1 of the features'
                sample rate, which are not looked at.
            chunk_lengths: (N,), integer, 0 to C, the real frames or samples of each stream; None means all C.

        Returns:
            Of each stream the symbols that its frames have added; their timestamps count from the stream's first frame,
            and the score is that of all symbols since the stream, or the utterance, began.

        Raises:
            ValueError, TypeError: naming the argument and its value.
        """
        if self._samples is None:
            feature_dim = self._model.encoder.feature_dim
            lengths = check_features("chunk", chunk, feature_dim, "chunk_lengths", chunk_lengths, 0).cpu()
        else:
            lengths = check_samples("chunk", chunk, "chunk_lengths", chunk_lengths).cpu()
        require_searchable("chunk", chunk, self._device)
        places = self._places(slots)
        if len(places) != len(chunk):
            raise ValueError(f"slots has {len(places)} streams; chunk has {len(chunk)} rows")
        with torch.no_grad():
            if self._samples is None:
                return self._advance(places, chunk, lengths)
            return self._hear(self._samples, places, chunk, lengths.numpy())

    def finish(self, slots: Sequence[int] | Array | Tensor) -> StepResult:
        """Recognises what still waits for frames, now that no more come: what `step` returns. The score has what the
        bias gives at an utterance's end. The streams are then to be closed."""
        places = self._places(slots)
        if not len(places):
            return StepResult.nothing(np.zeros(0))
        with torch.no_grad():
            parts = [] if self._samples is None else self._last_frames(self._samples, places)
            found = self._advance(places, None, None)
            if parts:
                found = StepResult.joined(len(places), [*parts, (self._order[: len(places)], found)])
            bias = self._decoder.bias
            if bias is None:
                return found
            rows = device_copy(places, self._device)
            settled = bias.settled(self._scores[rows], self._nodes[rows].long())
            return replace(found, scores=settled.cpu().numpy())

    def begin_utterance(self, slot: int) -> float:
        """Begins another utterance in a stream, at a pause for instance: encoder and predictor go on, the score begins
        anew. Returns it: 0, or minus the share of a phrase that was begun."""
        self._places([slot])
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

    def _places(self, slots: Sequence[int] | Array | Tensor) -> Array:
        """The slots as an array of int64; ValueError or TypeError unless they are those of different open streams."""
        places: Array = np.asarray(slots.cpu() if isinstance(slots, Tensor) else slots)
        if places.ndim != 1 or (len(places) and places.dtype.kind not in "iu"):
            raise TypeError(f"slots is {shown(slots)}; it must be a sequence of ints")
        places = places.astype(np.int64)
        is_known = (places >= 0) & (places < self.slots)
        is_known[is_known] = self._is_open[places[is_known]]
        if not is_known.all():
            raise ValueError(f"slots has {places[~is_known][0]}; it must be that of an open stream")
        if len(places) > 1:
            numbers = self._order[: len(places)]
            self._owner[places] = numbers
            if (self._owner[places] != numbers).any():
                raise ValueError(f"slots is {shown(places.tolist())}; it must name different streams")
        return places

    def _hear(self, samples: SampleSlots, places: Array, chunk: Tensor, lengths: Array) -> StepResult:
        """Takes samples (N, C): the streams that are alike are a batch."""
        found = []
        for rows, given, phase in samples.groups(places, lengths, self._waiting[places]):
            frames = samples.advance(places[rows], given, phase)
            part = chunk if len(rows) == len(chunk) else chunk[device_copy(rows, self._device)]
            counts = torch.full((len(rows),), frames, dtype=torch.int64, device="cpu")
            found.append((rows, self._advance(places[rows], part[:, :given], counts, phase)))
        return found[0][1] if len(found) == 1 else StepResult.joined(len(places), found)

    def _last_frames(self, samples: SampleSlots, places: Array) -> list[tuple[Array, StepResult]]:
        """Takes the frames of the last samples, and returns which of the streams they are and what was found."""
        found = []
        for rows, _, phase in samples.groups(places, np.zeros_like(places), self._waiting[places]):
            frames = samples.rest(device_copy(places[rows], self._device), phase)
            counts = torch.full((len(rows),), frames.shape[1], dtype=torch.int64, device="cpu")
            found.append((rows, self._advance(places[rows], frames, counts)))
        return found

    def _advance(
        self, places: Array, chunk: Tensor | None, lengths: Tensor | None, phase: Phase | None = None
    ) -> StepResult:
        """Encodes and searches a chunk, whose (N,) int64 frames are on the CPU, or, without one, what still waits for
        frames.

        phase: of the streams; the chunk then is one of samples (N, C), which give equally many frames.
        """
        alike, ready = self._planned(places, chunk, lengths, phase)
        are_all = len(places) == self.slots and bool((places == self._order).all())
        columns = None
        if self._captured is not None and chunk is not None and alike is not None:
            columns = self._captured(chunk, (alike, phase), None if are_all else places, ready)
        if columns is None:
            rows = None if are_all else device_copy(places, self._device)
            out, counts = self._encoded(rows, chunk, lengths, alike, phase)
            if not out.shape[1]:
                return StepResult.nothing(self._scores.cpu().numpy()[places])
            slots = None if rows is None else rows.int()
            columns = Columns.of(self._searched(rows, slots, out, counts)).on_host()
            ready = counts.cpu().numpy() if ready is None else ready
        first = self._frames[places]
        self._frames[places] += ready
        return StepResult.of(columns, first)

    def _step_alike(self, chunk: Tensor, kind: Any, table: Tensor | None) -> Columns:
        """Encodes and searches a chunk whose frames are all real, without a wait for a GPU.

        kind: how many frames wait, and the phase, as `_advance` has them. table: that of `padded_table`; None: all
            slots in their order.
        """
        if table is None:
            return Columns.of(self._searched(None, None, *self._encoded(None, chunk, None, *kind)))
        rows, slots, counts = table[0].long(), table[1], table[2]
        return Columns.of(self._searched(rows, slots, self._encoded(rows, chunk, None, *kind)[0], counts))

    def _planned(
        self, places: Array, chunk: Tensor | None, lengths: Tensor | None, phase: Phase | None
    ) -> tuple[int | None, Any]:
        """How many frames of each stream wait, if equally many do and all of the chunk are real; and how many encoder
        frames each stream gets, (N,), if the host knows."""
        encoder: Any = self._model.encoder
        if chunk is None or lengths is None or not isinstance(encoder, StackingEncoder):
            self._waiting[places] = 0
            return None, None
        given, before = lengths.numpy(), self._waiting[places]
        totals = before + given
        if (totals == totals[0]).all():
            ready, self._waiting[places] = encoder.ready_of(int(totals[0]))
            is_full = phase is not None or bool((given == chunk.shape[1]).all())
            return int(before[0]) if is_full else None, np.full(len(places), ready)
        different, which = np.unique(totals, return_inverse=True)
        ready, self._waiting[places] = np.array([encoder.ready_of(int(total)) for total in different])[which].T
        return None, ready

    def _encoded(
        self,
        rows: Tensor | None,
        chunk: Tensor | None,
        lengths: Tensor | None,
        alike: int | None,
        phase: Phase | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Encoder frames (N, M, D) and their numbers (N,), on the device; the encoder's states go on.

        rows: (N,) int64; None: all slots in their order. alike: as `_planned` returns it. phase: as `_advance` has it.
        """
        if phase is not None:
            assert self._samples is not None
            assert chunk is not None
            chunk = self._samples.taken(rows, chunk, phase)
        encoder: Any = self._model.encoder
        states = self._encoder if rows is None else self._encoder_rows
        # Each stream is one thread's in the library's layers; in prnn.nn's, threads share a stream that is long.
        is_long = chunk is not None and chunk.shape[1] > _LONG * encoder.frame_stride
        by_modules = self._layers is None or (is_long and len(chunk) < torch.get_num_threads())  # type: ignore[arg-type]
        if by_modules and alike is None:
            state = _selected(states, rows)
            out, counts, after = (
                encoder.finish(state) if chunk is None else encoder.step(chunk, lengths.to(self._device), state)  # type: ignore[union-attr]
            )
            _write(states, rows, after)
            return out, counts
        waiting, hidden = states[:2], states.hidden
        kept: Any = None  # what waits then, unless nothing does and nothing did
        if alike is not None:
            assert chunk is not None
            x, count, frames, left = encoder.stacked_alike(chunk, _selected(waiting[0], rows), alike)
            counts = torch.full((len(x),), count, dtype=torch.int64, device=x.device)
            if alike or left:
                kept = frames, torch.full_like(counts, left)
        else:
            frames, held = _selected(waiting, rows)
            state = EncoderState(frames, held, ())
            x, counts, *kept = encoder.stacked_rest(state) if chunk is None else encoder.stacked(chunk, lengths, state)
        if self._layers is not None and not by_modules:
            out = self._layers.run(x, counts if alike is None else None, rows, hidden)
        elif x.shape[1]:
            out, new_hidden = encoder.layers(x, _selected(hidden, rows), None)
            _write(hidden, rows, new_hidden)
        else:
            out = x.new_zeros(len(x), 0, encoder.output_dim)
        if kept is not None:
            _write(waiting, rows, tuple(kept))
        return out, counts

    def _searched(self, rows: Tensor | None, slots: Tensor | None, out: Tensor, counts: Tensor) -> Found:
        """Searches the encoder's frames, (N,) `counts` of them real; the search's states go on.

        rows, slots: (N,) int64 and int32, the same; None: all slots in their order.
        """
        if self._resident is None:
            state = _selected(self._search, rows)
            found, state = greedy_search(self._decoder, out, counts, self._max_symbols, state, returns_state=True)
            _write(self._search, rows, state)
            return found
        by_library = self._resident.search(out, counts, self._max_symbols, (slots, *self._search[1:]))
        assert by_library is not None  # a model that has a search has one for all sizes
        return by_library


def _is_capturable(encoder: object) -> bool:
    """Whether an encoder's layers launch the same kernels for all chunks of a shape, and nothing else is called."""
    return type(encoder) is Encoder and all(is_plain(module, type(module)) for module in encoder.modules())


def _selected(tree: Any, rows: Tensor | None) -> Any:
    return tree if rows is None else select_rows(tree, rows)


def _write(tree: Any, rows: Tensor | None, by: Any) -> None:
    """Writes `by` to these rows of the batch, in place. None: to all."""
    if rows is None:
        map_tensors(lambda x, new: x.copy_(new), tree, by)
    else:
        map_tensors(lambda x, new: x.index_copy_(0, rows, new.to(x.dtype)), tree, by)

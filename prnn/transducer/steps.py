"""Greedy search with any predictor and joiner, in steps of fixed shapes, none of which waits for a GPU."""

from __future__ import annotations

import contextlib
import itertools

import torch
from torch import Tensor

from prnn._ops.transducer_search import Found
from prnn.transducer.capture import captured
from prnn.transducer.hypothesis import Decoder, among_symbols, map_tensors
from prnn.transducer.resident import GreedyState, projected_predictor

_IMPOSSIBLE = float("-inf")
_ROWS = 16  # of a window's frames, what row_stable_linear pads to
_STEPS = 8  # from one look at a GPU to the next


def search_by_steps(
    decoder: Decoder,
    encoder: Tensor,
    lengths: Tensor,
    max_symbols: int,
    state: GreedyState,
    captures: bool = True,
) -> tuple[Found, GreedyState]:
    """Search over projected encoder frames (N, T, J); the rest as `greedy_search` has it.

    captures: on a GPU the modules are called for the first steps alone; a CUDA graph of as many steps is replayed for
    the others, if a graph can hold the modules: none of their calls waits for the GPU or looks at its numbers.
    """
    steps = Steps(decoder, encoder, lengths, max_symbols, state)
    graph: torch.cuda.CUDAGraph | None = None
    for number in itertools.count():
        if bool(steps.finished()):
            break
        if not encoder.is_cuda:
            found = steps.step()
            if bool(found.any()):
                steps.run_predictor(found)
            continue
        if captures and number == 1:
            with contextlib.suppress(RuntimeError):  # of modules that a graph cannot hold
                graph = steps.captured()
        if graph is None:
            steps.run()
        else:
            graph.replay()
    return steps.result()


class Steps:
    """A search in steps of fixed shapes, which read and write the same tensors each time.

    A step takes each utterance to its next symbol, or over the frames of a window if they are blank. Until the next
    symbol the predictor's output stays as it is, so that several frames are scored at once; where durations say which
    frame is next, it is scored alone. A frame's `max_symbols`-th symbol ends the frame.

    Args:
        decoder: predictor, joiner, blank, durations.
        encoder: (N, T, J), from `Joiner.project_encoder`.
        lengths: (N,) int64.
        max_symbols: most symbols in one frame.
        state: before these frames; copied.
    """

    def __init__(
        self, decoder: Decoder, encoder: Tensor, lengths: Tensor, max_symbols: int, state: GreedyState
    ) -> None:
        batch, count, _ = encoder.shape
        device = encoder.device
        self.decoder, self.encoder, self.lengths, self.max_symbols = decoder, encoder, lengths, max_symbols
        self.rows = torch.arange(batch, device=device)
        window = 1 if decoder.durations else max(2, _ROWS // batch)
        self.window = torch.arange(window, device=device)
        self.table = torch.tensor(decoder.durations, dtype=torch.int64, device=device)
        if not state.projection.shape[1]:
            state = state._replace(projection=projected_predictor(decoder, state.predictor))
        self.state = map_tensors(torch.clone, state)
        self.frame = self.state.ahead
        self.in_frame = torch.zeros_like(lengths)
        self.counts = torch.zeros_like(lengths)
        self.scores = self.state.score
        # The last column takes what is written of utterances that have found nothing.
        room = (batch, count * max_symbols + 1)
        self.symbols, self.frames, self.durations = (
            torch.zeros(room, dtype=torch.int64, device=device) for _ in range(3)
        )
        self.log_probs, self.confidences = (torch.zeros(room, dtype=torch.float64, device=device) for _ in range(2))

    def step(self) -> Tensor:
        """Takes every utterance on. Returns (N,) bool: those that have found a symbol, for which the predictor is still
        to be run."""
        decoder, blank = self.decoder, self.decoder.blank
        index = self.frame[:, None] + self.window
        real = index < self.lengths[:, None]
        ahead = self.encoder[self.rows[:, None], index.clamp(max=self.encoder.shape[1] - 1)]
        log_probs, duration_scores = decoder.joiner.all_log_probs(ahead, self.state.projection[:, None])
        best, symbols = log_probs.max(dim=2)
        usable = best.isfinite()
        is_symbol = real & usable & (symbols != blank)
        found = is_symbol.any(1)
        blanks = (real & ~is_symbol).cumprod(1).sum(1)
        # One addition after the other, in the order of the frames: the same sum for any window.
        best = best.masked_fill(~usable, _IMPOSSIBLE).masked_fill(~real, 0.0)
        scores = torch.cat([self.scores[:, None], best], dim=1).cumsum(1).gather(1, (blanks + found)[:, None])[:, 0]
        place = blanks.clamp(max=len(self.window) - 1)
        symbol = symbols.gather(1, place[:, None])[:, 0]

        here = self.in_frame * (blanks == 0) + found
        full = found & (here >= self.max_symbols)
        steps = full.long()
        if decoder.durations:
            # A window of one frame, `blanks` 1 where that was a blank.
            best_duration, which = duration_scores[:, 0].max(dim=1)
            is_number = best_duration.isfinite()
            gained = best_duration.masked_fill(~is_number, _IMPOSSIBLE)
            scores = scores + gained.masked_fill(~(real & usable)[:, 0], 0.0)
            steps = self.table[which].masked_fill(~(is_number & usable[:, 0]), 1)
            steps = torch.where(real[:, 0], steps.clamp(min=((blanks > 0) | full).long()), 0)
            blanks = torch.zeros_like(blanks)
        self.scores.copy_(scores)
        self._append(found, symbol, log_probs[self.rows, place], self.frame + blanks, steps)
        self.frame.add_(blanks + steps)
        self.in_frame.copy_(here.masked_fill(steps > 0, 0))
        self.symbol = symbol
        return found

    def _append(self, found: Tensor, symbol: Tensor, log_probs: Tensor, frame: Tensor, steps: Tensor) -> None:
        if self.decoder.bias is not None:
            log_probs = log_probs - self.decoder.bias.gains(self.state.predictor[-1])
        slot = torch.where(found, self.counts, self.symbols.shape[1] - 1)[:, None]
        own = log_probs.gather(1, symbol[:, None])
        for column, value in (
            (self.symbols, symbol[:, None]),
            (self.frames, frame[:, None]),
            (self.durations, steps[:, None]),
            (self.log_probs, own),
            (self.confidences, among_symbols(log_probs, symbol, self.decoder.blank)[:, None]),
        ):
            column.scatter_(1, slot, value)
        self.counts.add_(found)

    def run_predictor(self, found: Tensor) -> None:
        """Advances the predictor of the utterances in `found`, which `step` returned."""
        out, after = self.decoder.predictor.step(self.symbol, self.state.predictor)
        projection = self.decoder.joiner.project_predictor(out)

        def take(old: Tensor, new: Tensor) -> Tensor:
            where = found.reshape(-1, *[1] * (old.dim() - 1))
            # Under autocast the new one's type may not be the one that the state began with.
            return old.copy_(torch.where(where, new.to(old.dtype), old))

        map_tensors(take, (self.state.predictor, self.state.projection), (after, projection))

    def run(self) -> None:
        """As many steps as a GPU takes from one look of the host at it to the next."""
        for _ in range(_STEPS):
            self.run_predictor(self.step())

    def captured(self) -> torch.cuda.CUDAGraph:
        """A CUDA graph of `run`, which takes no step itself. `run` has been called before in this thread, so that what
        modules make in their first call is there; in the same context of autocast, whose copies of weights the graph
        reads. The graph lives no longer than that context and the modules' weights."""
        return captured(self.run, self.encoder.device)[0]

    def finished(self) -> Tensor:
        """() bool: whether all utterances have ended."""
        return (self.frame >= self.lengths).all()

    def result(self) -> tuple[Found, GreedyState]:
        columns = (self.symbols, self.frames, self.durations, self.log_probs, self.confidences)
        symbols, frames, durations, log_probs, confidences = (column[:, :-1] for column in columns)
        spans = durations if self.decoder.durations else None
        found = Found(symbols, self.counts, frames, spans, log_probs, confidences, self.scores)
        ahead = (self.frame - self.lengths).clamp(min=0)
        return found, self.state._replace(ahead=ahead)

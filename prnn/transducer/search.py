"""prnn.transducer_search: greedy search over the frames of any encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from prnn.transducer.biasing import SymbolBias, check_bias
from prnn.transducer.checks import (
    check_lengths,
    kind,
    require_at_least,
    require_searchable,
)
from prnn.transducer.config import require_durations
from prnn.transducer.greedy import greedy_search
from prnn.transducer.hypothesis import Decoder, Hypothesis, found_hypotheses, map_tensors
from prnn.transducer.inference import in_eval_mode
from prnn.transducer.joiner import Joiner
from prnn.transducer.predictor import Predictor
from prnn.transducer.resident import GreedyState
from prnn.transducer.streaming import MAX_SYMBOLS

_OF_PREDICTOR = ("initial_state", "step")
_OF_JOINER = ("project_encoder", "project_predictor", "all_log_probs")


@dataclasses.dataclass(frozen=True)
class TransducerSearchState:
    """The state that N streams carry from one `transducer_search` to the next. No search changes it.

    Attributes:
        search: the predictor's state, how many of the next frames the last duration passes over, and the score.
        frames: (N,) int64, frames searched so far.
        bias: what the search prefers.
    """

    search: GreedyState
    frames: Tensor
    bias: SymbolBias | None = None

    def to(self, device: torch.device | str) -> TransducerSearchState:
        """The state on another device."""
        return self._map(lambda x: x.to(device))

    def select(self, streams: Tensor) -> TransducerSearchState:
        """The state of some of the streams: (M,) int64, on the state's device."""
        return self._map(lambda x: x.index_select(0, streams))

    def _map(self, function: Callable[[Tensor], Tensor]) -> TransducerSearchState:
        return TransducerSearchState(*map_tensors(function, (self.search, self.frames)), self.bias)


@dataclasses.dataclass(frozen=True)
class TransducerSearchResult:
    """The results of `transducer_search`, on the device of the frames; the first `counts` elements of each row count.

    Attributes:
        symbols: (N, T * max_symbols), integer.
        counts: (N,), integer, symbols of each row.
        frames: as symbols, the encoder frame of each, counted from the stream's first.
        durations: as symbols, by how many frames each went on; None without durations.
        log_probs: as symbols, float, natural log-probability of each in its frame among all symbols and the blank,
            without the bias.
        confidences: the same among all symbols but the blank.
        scores: (N,) float64, log-probability of the path taken since the stream began, blanks and durations included,
            and what the bias gave.
        state: after these frames.
    """

    symbols: Tensor
    counts: Tensor
    frames: Tensor
    durations: Tensor | None
    log_probs: Tensor
    confidences: Tensor
    scores: Tensor
    state: TransducerSearchState

    def hypotheses(self) -> list[Hypothesis]:
        """The rows as hypotheses, whose log_probs are the confidences. Waits for the GPU."""
        return found_hypotheses(self)


def transducer_search(
    encoder_out: Tensor,
    lengths: Tensor | None = None,
    *,
    predictor: Predictor,
    joiner: Joiner,
    blank: int = 0,
    durations: tuple[int, ...] = (),
    max_symbols: int = MAX_SYMBOLS,
    bias: SymbolBias | None = None,
    state: TransducerSearchState | None = None,
) -> TransducerSearchResult:
    """Greedy search of a transducer, or of a token-and-duration transducer, over the frames of any encoder.

    At every frame the most probable symbol or blank is taken, with durations the most probable of these, too; a blank
    goes on by one frame at least. include/prnn_decode.h has the definition. libprnn searches with a
    `RecurrentPredictor` of one or two layers, or a `StatelessPredictor`, and a `Joiner`, where it has a search for
    their device and types: on a CPU in float32, or float64 for such weights. Others are called step by step. No
    gradients.

    Args:
        encoder_out: (N, T, D), float, N at least 1.
        lengths: (N,), integer, 0 to T; None means all T.
        predictor: as `prnn.transducer.Predictor` describes.
        joiner: a `Joiner`, or what has its project_encoder, project_predictor and all_log_probs.
        blank: index of the blank.
        durations: frames that each duration of the joiner stands for; empty for an RNN-T.
        max_symbols: most symbols in one encoder frame.
        bias: phrases to prefer, or a language model; a `Joiner` only. What it gives at the end is not in the scores.
            With a state, that state's.
        state: of an earlier call's result, for streams; None: the utterances begin.

    Raises:
        ValueError, TypeError: naming the argument and its value.
        NotSupportedError: tensors on the meta device.
    """
    if not isinstance(encoder_out, Tensor) or not encoder_out.is_floating_point():
        raise TypeError(f"encoder_out is {kind(encoder_out)}; it must be a tensor of floats")
    if encoder_out.dim() != 3 or not len(encoder_out):
        raise ValueError(f"encoder_out has shape {tuple(encoder_out.shape)}; it must be (N, T, D), N at least 1")
    batch, count, size = encoder_out.shape
    device = encoder_out.device
    if isinstance(joiner, nn.Module):
        require_searchable("encoder_out", encoder_out, next(joiner.parameters()).device)
    require_at_least("blank", blank, 0)
    for name, part, methods in (("predictor", predictor, _OF_PREDICTOR), ("joiner", joiner, _OF_JOINER)):
        if missing := [method for method in methods if not hasattr(part, method)]:
            raise TypeError(f"{name} is {kind(part)}, which has no {missing[0]}; it must have {', '.join(methods)}")
    if isinstance(joiner, Joiner):
        wanted = joiner.encoder_proj.in_features
        if size != wanted:
            raise ValueError(f"encoder_out has {size} features; the joiner's encoder_dim is {wanted}")
        if joiner.durations != len(durations):
            raise ValueError(f"durations has {len(durations)} numbers; the joiner's durations is {joiner.durations}")
        check_bias(bias, joiner.vocab_size, blank)
        if blank >= joiner.vocab_size:
            raise ValueError(f"blank is {blank}; it must be below the joiner's vocab_size, {joiner.vocab_size}")
    elif bias is not None:
        raise TypeError(f"bias is given, but joiner is {kind(joiner)}; it must then be a Joiner")
    require_at_least("max_symbols", max_symbols, 1)
    if durations != ():
        require_durations(durations)
    if lengths is None:
        lengths = torch.full((batch,), count, dtype=torch.int64, device=device)
    else:
        lengths = _checked_lengths(lengths, batch, count).to(device)
    if state is not None:
        if not isinstance(state, TransducerSearchState):
            raise TypeError(f"state is {kind(state)}; it must be that of an earlier result")
        if len(state.frames) != batch or state.frames.device != device:
            theirs = f"{len(state.frames)} streams on {state.frames.device}"
            raise ValueError(f"state is of {theirs}; encoder_out has {batch} on {device}")
        if state.bias is not bias:
            raise ValueError("bias is another one than that of the state; streams keep theirs")
    with torch.no_grad():
        decoder = Decoder.of(_in_eval_mode(predictor), _in_eval_mode(joiner), blank, tuple(durations), bias)
        begun = None if state is None else state.search
        found, after = greedy_search(decoder, encoder_out, lengths, max_symbols, begun, returns_state=True)
        assert after is not None
        before = torch.zeros_like(lengths) if state is None else state.frames
        frames = found.frames if state is None else found.frames + before[:, None]
        found = found._replace(frames=frames)
        return TransducerSearchResult(*found, TransducerSearchState(after, before + lengths, bias))


def _checked_lengths(lengths: Tensor, batch: int, most: int) -> Tensor:
    """Lengths on a GPU are not looked at, but bounded."""
    if (
        isinstance(lengths, Tensor)
        and lengths.is_cuda
        and lengths.shape == (batch,)
        and not lengths.is_floating_point()
    ):
        return lengths.long().clamp(0, most)
    return check_lengths("lengths", lengths, batch, 0, most)


def _in_eval_mode(part: Any) -> Any:
    return in_eval_mode(part) if isinstance(part, nn.Module) else part

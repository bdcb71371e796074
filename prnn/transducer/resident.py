"""Greedy search by libprnn (include/prnn_decode.h), for predictors and joiners that it knows."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

import prnn.nn
from prnn._errors import NotSupportedError
from prnn._ops.transducer_search import (
    MOST_CONTEXT,
    MOST_LAYERS,
    Found,
    ModelWeights,
    Prepared,
    compute_type,
    prepare,
    search,
)
from prnn.transducer.hypothesis import Decoder
from prnn.transducer.joiner import Joiner
from prnn.transducer.predictor import RecurrentPredictor, State, StatelessPredictor

LAYERS = {prnn.nn.LSTM: "lstm", prnn.nn.GRU: "gru", nn.LSTM: "lstm", nn.GRU: "gru"}


LibraryState = tuple[Tensor | None, ...]  # the members of prnnTransducerState_t in their order


class GreedyState(NamedTuple):
    """The state that N streams carry from frame to frame.

    Attributes:
        predictor: the predictor's states after the symbols so far, each (N, ...).
        projection: (N, J), its projected output; (N, 0) after the library's search, which makes it anew.
        ahead: (N,) int64, how many of the frames that come next the last duration passes over.
        score: (N,) float64, log-probability of the path taken so far.
    """

    predictor: State
    projection: Tensor
    ahead: Tensor
    score: Tensor


class _Kept(NamedTuple):
    """A prepared model, None where the library has no search for it, and of which weights it is."""

    signature: tuple[object, ...]
    prepared: Prepared | None


_kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # by the output layer's weight


class Resident:
    """The library's search with a decoder.

    Args:
        decoder: of a predictor and a joiner that `resident` has found to be known.
        prepared: its weights.
    """

    def __init__(self, decoder: Decoder, prepared: Prepared) -> None:
        self.decoder = decoder
        self.prepared = prepared

    def search(
        self, encoder_out: Tensor, lengths: Tensor, max_symbols: int, state: LibraryState | None
    ) -> Found | None:
        """Searches whole utterances, or with a `state` of `library_state` the next frames of streams, which writes it.
        None where the library has no search for these sizes."""
        try:
            return search(
                self.prepared, self.frames(encoder_out), lengths.int(), max_symbols, self.bias_tables(), state
            )
        except NotSupportedError:
            return None

    def frames(self, encoder_out: Tensor) -> Tensor:
        """Encoder frames as the library takes them."""
        projected = self.decoder.joiner.project_encoder(encoder_out) if encoder_out.is_cuda else encoder_out
        return projected.to(self.prepared.dtype)

    def bias_tables(self) -> tuple[Tensor, Tensor] | None:
        """The decoder's bias as the library takes it."""
        buffer, dtype = self.prepared.buffer, compute_type(self.prepared.dtype)
        return None if self.decoder.bias is None else self.decoder.bias.library_tables(buffer.device, dtype)

    def new_state(self, batch: int) -> LibraryState:
        """The library's state of streams that have not begun."""
        start = self.decoder.predictor.initial_state(batch)
        score = start[0].new_zeros(batch, dtype=torch.float64)
        return self.library_state(start, start[0].new_full((batch,), -1, dtype=torch.int32), score, copy=False)

    def library_state(self, predictor: State, ahead: Tensor, score: Tensor, copy: bool = True) -> LibraryState:
        """The library's state, a copy, of what `GreedyState` has, or with a dimension more for a beam. ValueError if it
        is the state of another kind of predictor.

        copy: False of tensors that nobody else has.
        """
        self._require_state(predictor, ahead.shape)
        dtype, contiguous = self.prepared.dtype, torch.contiguous_format
        own = predictor if self.decoder.bias is None else predictor[:-1]
        node = None if self.decoder.bias is None else predictor[-1].to(torch.int32, copy=copy)
        h = c = context = None
        if own[0].is_floating_point():
            h = own[0].to(dtype, copy=copy, memory_format=contiguous)
            if len(own) > 1:
                c = own[1].to(compute_type(dtype), copy=copy, memory_format=contiguous)
        else:
            context = own[0].to(torch.int32, copy=copy, memory_format=contiguous)
        return None, ahead.to(torch.int32, copy=copy), h, c, context, node, score.to(score.dtype, copy=copy)

    def _require_state(self, predictor: State, batch: torch.Size) -> None:
        base = self.decoder.parts()[0]
        if isinstance(base, RecurrentPredictor):
            wanted = [(*batch, base.rnn.num_layers, base.rnn.hidden_size)] * (2 if base.cell == "lstm" else 1)
        else:
            wanted = [(*batch, base.context)]
        wanted += [tuple(batch)] * (self.decoder.bias is not None)
        shapes = [tuple(part.shape) for part in predictor]
        if shapes != wanted or predictor[0].is_floating_point() != isinstance(base, RecurrentPredictor):
            raise ValueError(f"state has a predictor's state of shapes {shapes}; this predictor's has {wanted}")

    def predictor_states(self, state: LibraryState) -> tuple[State, Tensor]:
        """The predictor's states and the frames to be passed over, int64, that the library has written."""
        like = self.decoder.predictor.initial_state(1)
        _, ahead, *arrays, _ = state
        arrays = [array for array in arrays if array is not None]
        assert ahead is not None
        predictor = tuple(array.to(own.dtype) for array, own in zip(arrays, like, strict=True))  # type: ignore[union-attr]
        return predictor, ahead.long()

    def state_after(self, state: LibraryState) -> GreedyState:
        """The search's state after the library has written its own, without the projection."""
        predictor, ahead = self.predictor_states(state)
        score = state[-1]
        assert score is not None
        return GreedyState(predictor, predictor[0].new_empty(len(score), 0), ahead, score)


def projected_predictor(decoder: Decoder, predictor: State) -> Tensor:
    """The projected output (N, J) of a predictor that the library knows, after the symbols of states (N, ...)."""
    base = decoder.parts()[0]
    out = predictor[0][:, -1] if isinstance(base, RecurrentPredictor) else base.sum_embeddings(predictor[0])
    if decoder.bias is not None:
        out = torch.cat([out.double(), predictor[-1][:, None].double()], dim=1)
    return decoder.joiner.project_predictor(out)


def resident(decoder: Decoder, trusts_versions: bool) -> Resident | None:
    """The library's search with a decoder, or None if it has none for its modules and types.

    trusts_versions: weights that were prepared before are taken where no parameter is another tensor or has another
    version than then; else they are prepared anew, for what is written through `.data` changes no version.
    """
    weights = _weights(decoder)
    if weights is None or weights.output[0].device.type not in ("cpu", "cuda"):
        return None
    dtype = _dtype(weights.output[0])
    tensors = weights.tensors()
    output, stream = weights.output[0], _stream(weights.output[0])
    try:
        signature = (dtype, stream, *((t.data_ptr(), t._version) for t in tensors), *weights[6:], weights.predictor)
    except RuntimeError:  # inference tensors have no version
        signature, trusts_versions = (), False
    kept: _Kept | None = _kept.get(output)
    if kept is None or not trusts_versions or kept.signature != signature:
        prepared = None
        with contextlib.suppress(NotSupportedError):
            prepared = prepare(weights, dtype)
        kept = _Kept(signature, prepared)
        if not (output.is_cuda and torch.cuda.is_current_stream_capturing()):  # memory of the graph's own
            _kept[output] = kept
    return None if kept.prepared is None else Resident(decoder, kept.prepared)


def _stream(weight: Tensor) -> object:
    """The GPU's stream that is current: what is prepared in it is ready in it alone."""
    return torch.cuda.current_stream(weight.device) if weight.is_cuda else None


def _dtype(weight: Tensor) -> torch.dtype:
    if weight.device.type == "cpu":
        return torch.float64 if weight.dtype == torch.float64 else torch.float32
    if torch.is_autocast_enabled() and weight.dtype == torch.float32:
        return torch.get_autocast_dtype("cuda")
    return weight.dtype


def is_plain(module: nn.Module, *types: type[nn.Module]) -> bool:
    """Whether it is of just that type, and nothing is called before or after it."""
    return type(module) in types and not module._forward_hooks and not module._forward_pre_hooks


def _weights(decoder: Decoder) -> ModelWeights | None:
    predictor, joiner = decoder.parts()
    if type(joiner) is not Joiner or not all(is_plain(layer, nn.Linear) for layer in joiner.children()):
        return None
    if type(predictor) is RecurrentPredictor:
        kind, embedding, layers = LAYERS.get(type(predictor.rnn)), predictor.embedding, _layers(predictor)
        if kind is None or layers is None or not _is_embedding(embedding):
            return None
        tables: tuple[Tensor, ...] = (embedding.weight,)
    elif type(predictor) is StatelessPredictor:
        if predictor.context > MOST_CONTEXT or not all(_is_embedding(e) for e in predictor.embeddings):
            return None
        kind, layers = "stateless", ()
        tables = tuple(embedding.get_parameter("weight") for embedding in predictor.embeddings)
    else:
        return None
    encoder = joiner.encoder_proj
    weights = ModelWeights(
        kind,
        tables,
        layers,
        (None, None) if encoder.weight.is_cuda else (encoder.weight, encoder.bias),
        (joiner.predictor_proj.weight, joiner.predictor_proj.bias),
        (joiner.output.weight, joiner.output.bias),
        joiner.activation == "relu",
        decoder.blank,
        tuple(decoder.durations),
    )
    first, tensors = joiner.output.weight, weights.tensors()
    alike = all(t.device == first.device and t.dtype == first.dtype and t.layout == torch.strided for t in tensors)
    plain = all(type(t) in (Tensor, nn.Parameter) for t in tensors)
    return weights if alike and plain else None


def _is_embedding(module: nn.Module) -> bool:
    return is_plain(module, nn.Embedding) and module.max_norm is None


def _layers(predictor: RecurrentPredictor) -> tuple[tuple[Tensor, Tensor, Tensor | None, Tensor | None], ...] | None:
    """The weights of the predictor's layers, or None if they are other layers than the library's."""
    rnn = predictor.rnn
    masks = getattr(rnn, "zoneout", 0.0) > 0 or getattr(rnn, "heads", 1) > 1
    if not is_plain(rnn, *LAYERS) or masks or rnn.bidirectional or rnn.proj_size or rnn.num_layers > MOST_LAYERS:
        return None
    if predictor.cell != LAYERS[type(rnn)]:
        return None
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return tuple(
        tuple(getattr(rnn, f"{name}_l{layer}", None) for name in names)  # type: ignore[misc]
        for layer in range(rnn.num_layers)
    )

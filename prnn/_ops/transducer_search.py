"""include/prnn_decode.h on tensors: a model's weights are prepared once, and searched with as often as wanted."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from prnn import _C
from prnn._errors import NotSupportedError
from prnn._ops._handles import DTYPES, device_of, handle, require_proven

__all__ = ["BeamFound", "Found", "ModelWeights", "Prepared", "beam_search", "compute_type", "prepare", "search"]

PREDICTORS = {"stateless": _C.PREDICTOR_STATELESS, "lstm": _C.PREDICTOR_LSTM, "gru": _C.PREDICTOR_GRU}
MOST_LAYERS, MOST_CONTEXT = 2, 8


class ModelWeights(NamedTuple):
    """A model as prnnTransducerModel_t and prnnTransducerWeights_t describe it; biases may be None.

    Attributes:
        predictor: "stateless", "lstm" or "gru".
        embeddings: one of (V, I), or of a stateless predictor (V, H) for each of the last symbols, the oldest first.
        layers: of each layer its weights of the input and of h, and their biases.
        encoder: weight (J, E) and bias (J,) of the encoder's projection; weight None: frames are projected.
        projection: weight (J, H) and bias of the predictor's projection.
        output: weight (V + D, J) and bias.
        relu: whether the joiner's activation is relu, else tanh.
        blank: index of the blank.
        durations: of a token-and-duration transducer, else empty.
    """

    predictor: str
    embeddings: tuple[Tensor, ...]
    layers: tuple[tuple[Tensor, Tensor, Tensor | None, Tensor | None], ...]
    encoder: tuple[Tensor | None, Tensor | None]
    projection: tuple[Tensor, Tensor | None]
    output: tuple[Tensor, Tensor | None]
    relu: bool
    blank: int
    durations: tuple[int, ...]

    def tensors(self) -> list[Tensor]:
        groups = (self.embeddings, *self.layers, self.encoder, self.projection, self.output)
        return [tensor for group in groups for tensor in group if tensor is not None]

    def require_shapes(self) -> None:
        """ValueError unless the shapes are those of one model: the library reads arrays as long as it takes them to
        be."""
        (joiner, hidden), outputs = self.projection[0].shape, len(self.output[0])
        embedded = hidden if self.predictor == "stateless" else self.embeddings[0].shape[-1]
        gates = {"stateless": 0, "lstm": 4, "gru": 3}[self.predictor] * hidden
        table_shape = (outputs - len(self.durations), embedded)
        shapes: list[tuple[str, Tensor, tuple[int, ...]]] = [
            ("the predictor's embedding", table, table_shape) for table in self.embeddings
        ]
        for number, (of_input, of_h, *biases) in enumerate(self.layers):
            size = hidden if number else embedded
            where = f"of the predictor's layer {number}"
            shapes += [(f"weight_ih {where}", of_input, (gates, size)), (f"weight_hh {where}", of_h, (gates, hidden))]
            shapes += [(f"a bias {where}", bias, (gates,)) for bias in biases if bias is not None]
        for name, bias, size in (
            ("encoder_proj", self.encoder[1], joiner),
            ("predictor_proj", self.projection[1], joiner),
            ("output", self.output[1], outputs),
        ):
            if bias is not None:
                shapes.append((f"the bias of the joiner's {name}", bias, (size,)))
        if self.encoder[0] is not None:
            shapes.append(("the joiner's encoder_proj", self.encoder[0], (joiner, self.encoder[0].shape[-1])))
        shapes.append(("the joiner's output", self.output[0], (outputs, joiner)))
        for name, tensor, wanted in shapes:
            if tensor.shape != wanted:
                fitting = f"beside a joiner of {outputs} outputs and a predictor_proj of {joiner} x {hidden}"
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}; {fitting} it must be {wanted}")


class Prepared(NamedTuple):
    """Weights as the library reads them, on the device of `buffer`."""

    model: _C.TransducerModel
    buffer: Tensor
    dtype: torch.dtype
    has_durations: bool


class Found(NamedTuple):
    """The arrays of prnnTransducerOutputs_t, L = T * max_symbols; elements beyond a row's count are 0."""

    symbols: Tensor  # (N, L) int32
    counts: Tensor  # (N,) int32
    frames: Tensor  # (N, L) int32
    durations: Tensor | None  # (N, L) int32
    log_probs: Tensor  # (N, L) float32 or float64
    confidences: Tensor  # (N, L)
    scores: Tensor  # (N,) float64


class BeamFound(NamedTuple):
    """The members of prnnTransducerBeamOutputs_t, L = T * max_symbols; a row is undefined beyond its count."""

    symbols: Tensor  # (N, K, L) int32
    counts: Tensor  # (N, K) int32
    origins: Tensor  # (N, K) int32
    frames: Tensor  # (N, K, L) int32
    confidences: Tensor  # (N, K, L) float32 or float64
    scores: Tensor  # (N, K) float64


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums, log-probabilities and c in a search with weights of this dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def prepare(weights: ModelWeights, dtype: torch.dtype) -> Prepared:
    """Weights, converted to a type, as the library reads them.

    Raises:
        NotSupportedError: the library has no search for them; the message names the limit. Or the GPU is one that
            nobody has run, and the search's result differs from the CPU's.
        ValueError: shapes do not fit together.
    """
    weights.require_shapes()
    tables = [table.detach() for table in weights.embeddings]
    embedding = tables[0] if len(tables) == 1 else torch.stack(tables)
    converted: dict[int, Tensor] = {}

    def of(tensor: Tensor | None) -> int:
        if tensor is None:
            return 0
        kept = converted.setdefault(id(tensor), tensor.detach().to(dtype).contiguous())
        return kept.data_ptr()

    joiner_size, hidden = weights.projection[0].shape
    frame_size = joiner_size if weights.encoder[0] is None else weights.encoder[0].shape[1]
    model = _C.TransducerModel(
        DTYPES[dtype],
        PREDICTORS[weights.predictor],
        len(weights.layers),
        len(weights.embeddings),
        False,
        embedding.shape[-1],
        hidden,
        frame_size,
        joiner_size,
        weights.relu,
        weights.output[0].shape[0] - len(weights.durations),
        weights.blank,
        list(weights.durations),
    )
    try:
        require_proven("greedy search", embedding.device, dtype)
    except NotSupportedError as error:  # which callers take for a model that the library has no search for
        warnings.warn(f"prnn: a search calls its modules step by step: {error}", stacklevel=2)
        raise
    with device_of(embedding):
        library = handle(embedding.device)
        size = _C.transducer_prepared_size(library, model)
        buffer = torch.empty(size, dtype=torch.uint8, device=embedding.device)
        others = (*weights.encoder, embedding, *weights.projection, *weights.output)
        layers = [[of(tensor) for tensor in layer] for layer in weights.layers]
        _C.transducer_prepare(library, model, [of(tensor) for tensor in others], layers, buffer.data_ptr(), size)
    return Prepared(model, buffer, dtype, bool(weights.durations))


def search(
    prepared: Prepared,
    frames: Tensor,
    lengths: Tensor,
    max_symbols: int,
    bias: tuple[Tensor, Tensor] | None = None,
    state: Sequence[Tensor | None] | None = None,
) -> Found:
    """prnnTransducerSearch.

    Args:
        frames: (N, T, E), N and T at least 1, of the prepared type.
        lengths: (N,) int32, on the frames' device.
        bias: the nodes after symbols (S, V) int32, and what symbols are given there (S, V).
        state: the members of prnnTransducerState_t in their order, which are written, too; None: whole utterances.
    """
    batch, count, _ = frames.shape
    sizes, real = (batch, count, max_symbols), compute_type(prepared.dtype)
    room = (batch, count * max_symbols)
    frames = frames.contiguous()
    symbols, stamps, *others = frames.new_zeros((2 + prepared.has_durations, *room), dtype=torch.int32).unbind()
    durations = others[0] if others else None
    log_probs, confidences = frames.new_zeros((2, *room), dtype=real).unbind()
    counts, scores = frames.new_empty(batch, dtype=torch.int32), frames.new_empty(batch, dtype=torch.float64)
    outputs = (symbols, counts, stamps, durations, log_probs, confidences, scores)
    _run(_C.transducer_search, _C.transducer_workspace_size, prepared, sizes, frames, lengths, bias, state, outputs)
    return Found(symbols, counts, stamps, durations, log_probs, confidences, scores)


def beam_search(
    prepared: Prepared,
    frames: Tensor,
    lengths: Tensor,
    beam: int,
    max_symbols: int,
    modified: bool,
    bias: tuple[Tensor, Tensor] | None,
    state: Sequence[Tensor | None] | None,
) -> BeamFound:
    """prnnTransducerBeamSearch.

    Args:
        frames: (N, T, E), N and T at least 1, of the prepared type.
        lengths: (N,) int32.
        beam: hypotheses of an utterance K.
        modified: whether a frame emits at most one symbol and `max_symbols` is 1.
        bias: as `search` takes it.
        state: the members of prnnTransducerBeamState_t in their order, which are written, too; None: the utterances are
            whole.

    Raises:
        NotSupportedError: the library has no beam search on the device.
    """
    batch, count, _ = frames.shape
    sizes = (batch, count, max_symbols, beam, _C.BEAM_MODIFIED if modified else _C.BEAM_STANDARD)
    room = (batch, beam, count * max_symbols)
    frames = frames.contiguous()
    symbols, stamps = (frames.new_empty(room, dtype=torch.int32) for _ in range(2))
    counts, origins = (frames.new_empty(room[:2], dtype=torch.int32) for _ in range(2))
    confidences = frames.new_empty(room, dtype=compute_type(prepared.dtype))
    scores = frames.new_empty(room[:2], dtype=torch.float64)
    found = BeamFound(symbols, counts, origins, stamps, confidences, scores)
    search, workspace_size = _C.transducer_beam_search, _C.transducer_beam_workspace_size
    _run(search, workspace_size, prepared, sizes, frames, lengths, bias, state, found)
    return found


def _run(
    search: Callable[..., None],
    workspace_size: Callable[..., int],
    prepared: Prepared,
    sizes: tuple[int, ...],
    frames: Tensor,
    lengths: Tensor,
    bias: tuple[Tensor, Tensor] | None,
    state: Sequence[Tensor | None] | None,
    outputs: Sequence[Tensor | None],
) -> None:
    """Calls a search of the library with a workspace. outputs: in the order of the members of its struct."""
    with device_of(frames):
        library = handle(frames.device)
        size = workspace_size(library, prepared.model, sizes)
        workspace = torch.empty(size, dtype=torch.uint8, device=frames.device)
        search(
            library,
            prepared.model,
            prepared.buffer.data_ptr(),
            sizes,
            frames.data_ptr(),
            lengths.data_ptr(),
            None if bias is None else (bias[0].shape[0], bias[0].data_ptr(), bias[1].data_ptr()),
            None if state is None else [_address(tensor) for tensor in state],
            [_address(tensor) for tensor in outputs],
            workspace.data_ptr(),
            size,
        )

"""Greedy search with a transducer or a token-and-duration transducer, given the frames of any encoder."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from prnn import _C
from prnn._modes import GATES
from prnn.jax import _library
from prnn.jax.losses import ACTIVATIONS, _blank, _integers

Array = jax.Array
_PREDICTORS = {"stateless": _C.PREDICTOR_STATELESS, "lstm": _C.PREDICTOR_LSTM, "gru": _C.PREDICTOR_GRU}
_MOST_LAYERS = 2


class Found(NamedTuple):
    """The result of greedy_search(), L = T * max_symbols; what lies beyond a row's count is 0.

    Attributes:
        symbols: (N, L) int32.
        counts: (N,) int32, symbols of each utterance.
        frames: (N, L) int32, the frame of each symbol.
        durations: (N, L) int32, by how many frames it went on; None without durations.
        log_probs: (N, L), of each symbol among all V.
        confidences: (N, L), the same among all symbols but the blank.
        scores: (N,), the sum of the log-probabilities of all that was taken, blanks and durations, too.
    """

    symbols: Array
    counts: Array
    frames: Array
    durations: Array | None
    log_probs: Array
    confidences: Array
    scores: Array


def greedy_search(
    params: Mapping[str, Any],
    frames: Array,
    lengths: Array,
    *,
    predictor: str,
    blank: int,
    activation: str = "tanh",
    durations: Sequence[int] = (),
    max_symbols: int = 10,
) -> Found:
    """The most probable symbol or blank at every step, and, with durations, the most probable of them.

    logits = output act(encoder frames[t] + projection predictor(symbols so far)), as include/prnn_decode.h has it,
    whose definition of the search this is. Everything is computed in one call.

    Args:
        params: embedding (V, I), or of a stateless predictor (context, V, H), the oldest symbol's first; projection
            {"weight": (J, H), "bias": (J,)}; output {"weight": (V + D, J), "bias": (V + D,)}; of an LSTM or GRU layers,
            1 or 2 of init_params()'s dictionaries; and, unless E is J and frames are projected, encoder
            {"weight": (J, E), "bias": (J,)}. Biases may be left out.
        frames: (N, T, E), of the params' type: float32 or float64, on a GPU float32 or half types; half types on a CPU
            become float32.
        lengths: integers (N,), 0 to T.
        predictor: "stateless", "lstm" or "gru".
        blank: index of the blank; negative counts from V.
        activation: the joiner's, "tanh" or "relu".
        durations: of a token-and-duration transducer, what the last D logits stand for.
        max_symbols: most symbols in one frame, at least 1.

    Raises:
        TypeError, ValueError: an argument of a wrong type or shape.
        prnn.NotSupportedError: what no kernel serves; the message names the limit.
    """
    if predictor not in _PREDICTORS:
        raise ValueError(f"predictor is {predictor!r}; it must be 'stateless', 'lstm' or 'gru'")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; it must be 'tanh' or 'relu'")
    if getattr(frames, "ndim", None) != 3 or min(frames.shape) < 1:
        raise ValueError(f"frames has shape {getattr(frames, 'shape', None)}; it must be (N, T, E), each at least 1")
    if max_symbols < 1:
        raise ValueError(f"max_symbols is {max_symbols}; it must be at least 1")
    batch, steps, size = frames.shape
    lengths = _integers(lengths, "lengths", (batch,))
    layers = list(params.get("layers", ()))
    if (predictor == "stateless") != (not layers) or len(layers) > _MOST_LAYERS:
        raise ValueError(f"params has {len(layers)} layers; a {predictor} predictor has {_layers_of(predictor)}")
    embedding, projection, output = params["embedding"], params["projection"], params["output"]
    encoder = params.get("encoder", {})
    joiner_size, hidden = projection["weight"].shape
    classes = output["weight"].shape[0] - len(durations)
    dtype = frames.dtype
    rows = GATES.get(predictor.upper(), 0) * hidden
    context = embedding.shape[0] if predictor == "stateless" else 0
    shapes: list[tuple[Any, str, tuple[int, ...]]] = [
        (embedding, "embedding", (context, classes, hidden) if context else (classes, embedding.shape[-1])),
        (projection.get("bias"), "projection bias", (joiner_size,)),
        (output["weight"], "output weight", (classes + len(durations), joiner_size)),
        (output.get("bias"), "output bias", (classes + len(durations),)),
        (encoder.get("weight"), "encoder weight", (joiner_size, size)),
        (encoder.get("bias"), "encoder bias", (joiner_size,)),
    ]
    for place, layer in enumerate(layers):
        inputs = hidden if place else embedding.shape[-1]
        of_layer = {"weight_ih": (rows, inputs), "weight_hh": (rows, hidden), "bias_ih": (rows,), "bias_hh": (rows,)}
        shapes += [(layer.get(name), f"layers[{place}][{name!r}]", shape) for name, shape in of_layer.items()]
    for value, name, shape in shapes:
        _library.require(value, f"params: {name}", shape, dtype)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    of_layers = [layer.get(name) for layer in [*layers, {}, {}][:_MOST_LAYERS] for name in names]
    arrays = [frames, encoder.get("weight"), encoder.get("bias"), embedding, projection["weight"]]
    arrays += [projection.get("bias"), output["weight"], output.get("bias"), *of_layers]
    if _library.platform() == "cpu" and dtype.name in ("float16", "bfloat16"):
        arrays = [None if value is None else value.astype("float32") for value in arrays]
        dtype = jnp.dtype("float32")
    model = _C.TransducerModel(
        _library.DTYPES[dtype.name],
        _PREDICTORS[predictor],
        len(layers),
        context,
        False,
        embedding.shape[-1],
        hidden,
        size,
        joiner_size,
        activation == "relu",
        classes,
        _blank(blank, classes),
        list(durations),
    )
    handle, room = _library.handle(_library.platform()), (batch, steps * max_symbols)
    real = jnp.dtype("float64" if dtype == jnp.float64 else "float32")
    numbers = [(room, "int32"), (room, "int32"), (room if durations else (0,), "int32"), (room, real), (room, real)]
    sizes = [
        _C.transducer_prepared_size(handle, model),
        _C.transducer_workspace_size(handle, model, (batch, steps, max_symbols)),
    ]
    results = [*numbers, ((batch,), "int32"), ((batch,), "float64"), *(((size,), "uint8") for size in sizes)]
    given = [_library.nothing(dtype) if value is None else value for value in arrays]
    found = _library.call(
        "prnnJaxTransducerSearch",
        [given[0], lengths, *given[1:]],
        [jax.ShapeDtypeStruct(shape, kind) for shape, kind in results],
        {
            "predictor": _PREDICTORS[predictor],
            "activation": ACTIVATIONS.index(activation),
            "layers": len(layers),
            "context": context,
            "blank": _blank(blank, classes),
            "max_symbols": max_symbols,
            "durations": tuple(int(duration) for duration in durations),
        },
    )
    symbols, stamps, taken, log_probs, confidences, counts, scores, *_ = found
    inside = jnp.arange(room[1]) < counts[:, None]

    def own(values: Array) -> Array:
        return jnp.where(inside, values, 0)

    return Found(
        own(symbols),
        counts,
        own(stamps),
        own(taken) if durations else None,
        own(log_probs),
        own(confidences),
        scores,
    )


def _layers_of(predictor: str) -> str:
    return "none" if predictor == "stateless" else f"1 or {_MOST_LAYERS}"

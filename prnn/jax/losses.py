"""CTC, RNN-T and TDT losses, also with their joiner, as functions that give each sequence's cost."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from prnn import _C
from prnn.jax import _library

Array = jax.Array
RNNT_TYPES = ("regular", "modified", "constrained", "final_blank")
ACTIVATIONS = ("tanh", "relu")
_HALF = ("float16", "bfloat16")


def ctc_loss(
    logits: Array,
    targets: Array,
    logit_lengths: Array,
    target_lengths: Array,
    blank: int = 0,
    *,
    zero_infinity: bool = False,
    from_logits: bool = True,
) -> Array:
    """CTC loss (Graves et al. 2006) of each sequence: -log of the probability of its targets, summed over all paths.

    Args:
        logits: (N, T, V), float32 or float64, or half types, for which costs are float32. The log-softmax over V is
            part of the loss.
        targets: integers (N, U), 0 to V - 1 but not the blank, padded with anything.
        logit_lengths: integers (N,), frames of each sequence, 0 to T.
        target_lengths: integers (N,), symbols of each sequence, 0 to U.
        blank: index of the blank; negative counts from V.
        zero_infinity: a sequence without a path costs 0 instead of infinity.
        from_logits: False: logits are log-probabilities, taken as they are.

    Returns:
        (N,) float32, or float64 for float64.

    Raises:
        TypeError, ValueError: an argument of a wrong type or shape. A length or symbol out of range ends the program
            with an error on a CPU; on a GPU that sequence costs NaN and has zero gradients.
    """
    logits = _activations(logits, "logits", 3)
    batch, _, classes = logits.shape
    targets = _integers(targets, "targets", (batch, None))
    lengths = _lengths(logit_lengths, target_lengths, batch)
    chosen = {
        "input": _C.LOSS_LOGITS if from_logits else _C.LOSS_LOG_PROBS,
        "blank": _blank(blank, classes),
        "zero_infinity": bool(zero_infinity),
    }
    sizes = _sizes(
        _C.ctc_loss_sizes,
        _C.CTC_LOSS_FIELDS,
        logits,
        chosen,
        target_layout=_C.TARGETS_PADDED,
        max_frames=logits.shape[1],
        max_targets=targets.shape[1],
        target_elements=targets.size,
        classes=classes,
        time_stride=classes,
        batch_stride=logits.shape[1] * classes,
    )
    return _loss("Ctc", (logits,), (targets, *lengths), chosen, sizes)


def rnnt_loss(
    logits: Array,
    targets: Array,
    logit_lengths: Array,
    target_lengths: Array,
    blank: int = -1,
    *,
    clamp: float = -1.0,
    from_logits: bool = True,
    fastemit_lambda: float = 0.0,
    delay_penalty: float = 0.0,
    rnnt_type: str = "regular",
    zero_infinity: bool = False,
) -> Array:
    """RNN-T loss (Graves 2012) of each sequence.

    Args:
        logits: (N, T, U + 1, V), types and log-softmax as ctc_loss()'s.
        targets: integers (N, U), 0 to V - 1 but not the blank, padded with anything.
        logit_lengths, target_lengths: integers (N,), 1 to T and 0 to U.
        blank: index of the blank; negative counts from V. The default is the last.
        clamp: > 0: each element of a gradient is limited to [-clamp, clamp], before it is multiplied with the cost's.
        from_logits: False: logits are log-probabilities, taken as they are.
        fastemit_lambda: FastEmit (Yu et al. 2021): gradients of symbols' arcs are multiplied by 1 + fastemit_lambda.
        delay_penalty: of symbols by their frame (Kang et al. 2023), in the costs, too.
        rnnt_type: "regular", "modified", "constrained" or "final_blank", as for prnn.rnnt_loss.
        zero_infinity: a sequence without a path costs 0 instead of infinity.

    Returns, Raises: as ctc_loss().
    """
    logits = _activations(logits, "logits", 4)
    batch, _, width, classes = logits.shape
    integers = _batch(targets, logit_lengths, target_lengths, batch, width)
    chosen = _rnnt_options(blank, classes, clamp, fastemit_lambda, delay_penalty, rnnt_type, zero_infinity)
    chosen["input"] = _C.LOSS_LOGITS if from_logits else _C.LOSS_LOG_PROBS
    sizes = _sizes(
        _C.rnnt_loss_sizes,
        _C.RNNT_LOSS_FIELDS,
        logits,
        chosen,
        layout=_C.RNNT_PADDED,
        target_layout=_C.TARGETS_PADDED,
        max_frames=logits.shape[1],
        max_targets=width - 1,
        classes=classes,
    )
    return _loss("Rnnt", (logits,), integers, chosen, sizes)


def tdt_loss(
    logits: Array,
    targets: Array,
    logit_lengths: Array,
    target_lengths: Array,
    blank: int,
    durations: Sequence[int],
    *,
    fastemit_lambda: float = 0.0,
    clamp: float = -1.0,
    sigma: float = 0.0,
    omega: float = 0.0,
    zero_infinity: bool = False,
) -> Array:
    """Token-and-duration transducer loss (Xu et al. 2023) of each sequence.

    Args:
        logits: (N, T, U + 1, V + D), the token logits of a cell followed by its duration logits, each with a softmax of
            its own; types as ctc_loss()'s.
        targets, logit_lengths, target_lengths: as rnnt_loss()'s.
        blank: index of the blank; negative counts from V.
        durations: what the D duration logits stand for: 1 to 16 different integers, none negative, one positive.
        fastemit_lambda, clamp, zero_infinity: as rnnt_loss()'s.
        sigma: what the score of every arc is lowered by.
        omega: 0 to 1, the share of the RNN-T loss of the token logits in the cost.

    Returns, Raises: as ctc_loss().
    """
    logits = _activations(logits, "logits", 4)
    batch, _, width, columns = logits.shape
    integers = _batch(targets, logit_lengths, target_lengths, batch, width)
    chosen = _tdt_options(blank, columns, durations, clamp, fastemit_lambda, sigma, omega, zero_infinity)
    sizes = _sizes(
        _C.duration_rnnt_loss_sizes,
        _C.DURATION_RNNT_LOSS_FIELDS,
        logits,
        chosen,
        type=_C.DURATION_TDT,
        input=_C.LOSS_LOGITS,
        max_frames=logits.shape[1],
        max_targets=width - 1,
        classes=columns - len(durations),
        token_stride=columns,
        duration_stride=columns,
    )
    return _loss("Tdt", (logits,), integers, chosen, sizes)


def joint_rnnt_loss(
    encoder_out: Array,
    predictor_out: Array,
    weight: Array,
    bias: Array | None,
    targets: Array,
    logit_lengths: Array,
    target_lengths: Array,
    blank: int = -1,
    *,
    activation: str = "tanh",
    clamp: float = -1.0,
    fastemit_lambda: float = 0.0,
    delay_penalty: float = 0.0,
    rnnt_type: str = "regular",
    zero_infinity: bool = False,
    precision: Any = None,
) -> Array:
    """rnnt_loss() of the logits weight act(encoder_out[n, t] + predictor_out[n, u]) + bias, which are never held
    together: on a GPU a chunk of lattice cells at a time, on a CPU those of a sequence.

    Args:
        encoder_out: (N, T, J).  predictor_out: (N, U + 1, J).  weight: (V, J).  bias: (V,) or None. Of one type.
        activation: "tanh" or "relu".
        precision: of float32's products on a GPU, as lstm()'s.
        The others: as rnnt_loss()'s.

    Returns, Raises: as ctc_loss().
    """
    arrays = _joiner(encoder_out, predictor_out, weight, bias, activation)
    integers = _batch(targets, logit_lengths, target_lengths, encoder_out.shape[0], predictor_out.shape[1])
    options: dict[str, Any] = {"clamp": clamp, "fastemit_lambda": fastemit_lambda, "delay_penalty": delay_penalty}
    options |= {"rnnt_type": rnnt_type, "zero_infinity": zero_infinity}
    blank = _blank(blank, weight.shape[0])
    if _library.platform() == "cpu":
        loss = functools.partial(rnnt_loss, blank=blank, **options)
        return _by_sequence(loss, arrays, integers, activation)
    chosen = _rnnt_options(blank, weight.shape[0], **options)
    return _joint("JointRnnt", arrays, integers, chosen, activation, precision, weight.shape[0])


def joint_tdt_loss(
    encoder_out: Array,
    predictor_out: Array,
    weight: Array,
    bias: Array | None,
    targets: Array,
    logit_lengths: Array,
    target_lengths: Array,
    blank: int,
    durations: Sequence[int],
    *,
    activation: str = "tanh",
    fastemit_lambda: float = 0.0,
    clamp: float = -1.0,
    sigma: float = 0.0,
    omega: float = 0.0,
    zero_infinity: bool = False,
    precision: Any = None,
) -> Array:
    """tdt_loss() of the logits weight act(encoder_out[n, t] + predictor_out[n, u]) + bias, as joint_rnnt_loss().

    Args:
        encoder_out: (N, T, J).  predictor_out: (N, U + 1, J).  weight: (V + D, J), the rows of the durations last.
            bias: (V + D,) or None.
        activation, precision: as joint_rnnt_loss()'s.
        The others: as tdt_loss()'s.

    Returns, Raises: as ctc_loss().
    """
    arrays = _joiner(encoder_out, predictor_out, weight, bias, activation)
    integers = _batch(targets, logit_lengths, target_lengths, encoder_out.shape[0], predictor_out.shape[1])
    options: dict[str, Any] = {"clamp": clamp, "fastemit_lambda": fastemit_lambda, "sigma": sigma, "omega": omega}
    options |= {"zero_infinity": zero_infinity}
    chosen = _tdt_options(blank, weight.shape[0], durations, **options)
    if _library.platform() == "cpu":
        loss = functools.partial(tdt_loss, blank=chosen["blank"], durations=durations, **options)
        return _by_sequence(loss, arrays, integers, activation)
    return _joint("JointTdt", arrays, integers, chosen, activation, precision, weight.shape[0] - len(durations))


@dataclasses.dataclass(frozen=True)
class _Call:
    """A loss: the name in its handlers', its attributes, and bytes of workspace and of the reserve space between
    forward and backward."""

    name: str
    attributes: tuple[tuple[str, Any], ...]
    workspace: int
    reserve: int

    @property
    def has_joiner(self) -> bool:
        return self.name.startswith("Joint")


def _loss(
    name: str, arrays: Sequence[Any], integers: Sequence[Any], chosen: Mapping[str, Any], sizes: tuple[int, int]
) -> Array:
    given = _library.as_varying([*arrays, *integers])
    call = _Call(name, tuple(chosen.items()), *sizes)
    costs: Array = _costs(call, tuple(given[: len(arrays)]), tuple(given[len(arrays) :]))
    return costs


def _real(array: Any) -> Any:
    return jnp.dtype("float64" if array.dtype == jnp.float64 else "float32")


def _forward(call: _Call, arrays: Any, integers: Any, reserve: int) -> list[Any]:
    """Costs, and a reserve space of so many bytes."""
    results = [
        jax.ShapeDtypeStruct((arrays[0].shape[0],), _real(arrays[0])),
        jax.ShapeDtypeStruct((reserve,), jnp.uint8),
        jax.ShapeDtypeStruct((call.workspace,), jnp.uint8),
    ]
    name = f"prnnJax{call.name}Forward"
    return _library.call(name, [*_given(arrays), *integers], results, dict(call.attributes))[:2]


def _given(arrays: Any) -> list[Any]:
    return [_library.nothing(_real(arrays[0])) if array is None else array for array in arrays]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _costs(call: _Call, arrays: Any, integers: Any) -> Any:
    return _forward(call, arrays, integers, 0)[0]


def _costs_forward(call: _Call, arrays: Any, integers: Any) -> Any:
    costs, reserve = _forward(call, arrays, integers, call.reserve)
    return costs, (arrays, integers, reserve)


def _costs_backward(call: _Call, residuals: Any, dcosts: Any) -> Any:
    arrays, integers, reserve = residuals
    results = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in _given(arrays)]
    workspace = [jax.ShapeDtypeStruct((call.workspace,), jnp.uint8)] if call.has_joiner else []
    given = [*_given(arrays), *integers, reserve, dcosts]
    found = _library.call(f"prnnJax{call.name}Backward", given, [*results, *workspace], dict(call.attributes))
    gradients = tuple(None if array is None else found[place] for place, array in enumerate(arrays))
    return gradients, None


_costs.defvjp(_costs_forward, _costs_backward)


def _sizes(
    query: Callable[..., tuple[int, int]], fields: Any, logits: Array, chosen: Mapping[str, Any], **others: int
) -> tuple[int, int]:
    """Returns the sizes of workspace and reserve space, for the options struct with these fields."""
    handle = _library.handle(_library.platform())
    return query(handle, _options(fields, logits, {**chosen, **others}))


def _options(fields: Any, array: Array, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """An options struct as the extension takes it."""
    values = {**values, "dtype": _library.DTYPES[array.dtype.name], "batch": array.shape[0]}
    return tuple(list(value) if isinstance(value := values.get(name, 0), tuple) else value for name, _ in fields)


def _joint(
    name: str, arrays: Any, integers: Any, chosen: dict[str, Any], activation: str, precision: Any, classes: int
) -> Array:
    """A joint loss on a GPU."""
    encoder_out, predictor_out, weight, bias = arrays
    is_tf32 = encoder_out.dtype == jnp.float32 and _library.allows_tf32(precision)
    chosen |= {"activation": ACTIVATIONS.index(activation), "allow_tf32": is_tf32}
    sized = chosen | {
        "max_frames": encoder_out.shape[1],
        "max_targets": predictor_out.shape[1] - 1,
        "joiner_size": encoder_out.shape[2],
        "classes": classes,
    }
    kind = {"JointRnnt": "joint_rnnt", "JointTdt": "joint_tdt"}[name]
    options = _options(getattr(_C, f"{kind.upper()}_LOSS_FIELDS"), encoder_out, sized)
    handle = _library.handle("gpu")
    workspace, reserve = (
        getattr(_C, f"{kind}_loss_{space}_size")(handle, options) for space in ("workspace", "reserve")
    )
    bias = None if bias is None else bias.astype(_real(encoder_out))
    return _loss(name, (encoder_out, predictor_out, weight, bias), integers, chosen, (workspace, reserve))


def _by_sequence(loss: Callable[..., Array], arrays: Any, integers: Any, activation: str) -> Array:
    """A joint loss on a CPU: the logits of a sequence at a time, made again in the backward pass."""
    encoder_out, predictor_out, weight, bias = (
        array if array is None or array.dtype.name not in _HALF else array.astype("float32") for array in arrays
    )
    targets, frames, lengths = integers
    act = {"tanh": jnp.tanh, "relu": jax.nn.relu}[activation]

    @jax.checkpoint
    def cost(weight: Array, bias: Array | None, given: Any) -> Array:
        encoder, predictor, *rest = given
        # The values of padding, perhaps NaN, must not reach a product with a gradient of zero.
        encoder = jnp.where((jnp.arange(encoder.shape[0]) < rest[1])[:, None], encoder, 0)
        predictor = jnp.where((jnp.arange(predictor.shape[0]) <= rest[2])[:, None], predictor, 0)
        logits = act(encoder[:, None] + predictor[None]) @ weight.T
        logits = logits if bias is None else logits + bias
        return loss(logits[None], *(value[None] for value in rest))[0]

    each = (encoder_out, predictor_out, targets, frames, lengths)
    costs: Array = jax.lax.map(lambda given: cost(weight, bias, given), each)
    return costs


def _activations(value: Any, name: str, rank: int) -> Array:
    """Checked; half types on a CPU as float32."""
    if getattr(value, "ndim", None) != rank or min(value.shape) < 1:
        axes = {3: "(N, T, V)", 4: "(N, T, U + 1, V)"}[rank]
        raise ValueError(f"{name} has shape {getattr(value, 'shape', None)}; it must be {axes}, each at least 1")
    if value.dtype.name not in _library.DTYPES:
        raise TypeError(f"{name} has dtype {value.dtype.name}; losses take {', '.join(_library.DTYPES)}")
    is_half = value.dtype.name in _HALF and _library.platform() == "cpu"
    return value.astype("float32") if is_half else value


def _joiner(encoder_out: Any, predictor_out: Any, weight: Any, bias: Any, activation: str) -> tuple[Any, ...]:
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; it must be 'tanh' or 'relu'")
    ranks = {"encoder_out": (encoder_out, 3), "predictor_out": (predictor_out, 3), "weight": (weight, 2)}
    for name, (value, rank) in ranks.items():
        if getattr(value, "ndim", None) != rank or min(value.shape) < 1:
            axes = {"encoder_out": "(N, T, J)", "predictor_out": "(N, U + 1, J)", "weight": "(V, J)"}[name]
            raise ValueError(f"{name} has shape {getattr(value, 'shape', None)}; it must be {axes}, each at least 1")
    (batch, _, size), dtype = encoder_out.shape, encoder_out.dtype
    if dtype.name not in _library.DTYPES:
        raise TypeError(f"encoder_out has dtype {dtype.name}; losses take {', '.join(_library.DTYPES)}")
    _library.require(predictor_out, "predictor_out", (batch, predictor_out.shape[1], size), dtype)
    _library.require(weight, "weight", (weight.shape[0], size), dtype)
    _library.require(bias, "bias", (weight.shape[0],), dtype)
    return encoder_out, predictor_out, weight, bias


def _integers(value: Any, name: str, shape: tuple[int | None, ...]) -> Array:
    value = jnp.asarray(value)
    fits = value.ndim == len(shape) and all(size in (None, own) for size, own in zip(shape, value.shape, strict=True))
    if not fits:
        wanted = ", ".join("U" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {value.shape}; it must be ({wanted}{',' * (len(shape) == 1)})")
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(f"{name} has dtype {value.dtype.name}; it must be of integers")
    return value.astype("int32")


def _lengths(logit_lengths: Any, target_lengths: Any, batch: int) -> tuple[Array, Array]:
    return (
        _integers(logit_lengths, "logit_lengths", (batch,)),
        _integers(target_lengths, "target_lengths", (batch,)),
    )


def _batch(targets: Any, logit_lengths: Any, target_lengths: Any, batch: int, width: int) -> tuple[Array, ...]:
    symbols = _integers(targets, "targets", (batch, width - 1))
    return symbols, *_lengths(logit_lengths, target_lengths, batch)


def _blank(blank: int, classes: int) -> int:
    if not -classes <= blank < classes:
        raise ValueError(f"blank is {blank}; it must be {-classes} to {classes - 1}")
    return blank % classes


def _rnnt_options(
    blank: int,
    classes: int,
    clamp: float,
    fastemit_lambda: float,
    delay_penalty: float,
    rnnt_type: str,
    zero_infinity: bool,
) -> dict[str, Any]:
    if rnnt_type not in RNNT_TYPES:
        raise ValueError(f"rnnt_type is {rnnt_type!r}; it must be one of {', '.join(RNNT_TYPES)}")
    return {
        "blank": _blank(blank, classes),
        "clamp": float(clamp),
        "fastemit_lambda": float(fastemit_lambda),
        "delay_penalty": float(delay_penalty),
        "rnnt_type": RNNT_TYPES.index(rnnt_type),
        "zero_infinity": bool(zero_infinity),
    }


def _tdt_options(
    blank: int,
    columns: int,
    durations: Sequence[int],
    clamp: float,
    fastemit_lambda: float,
    sigma: float,
    omega: float,
    zero_infinity: bool,
) -> dict[str, Any]:
    if columns <= len(durations):
        raise ValueError(f"there are {columns} logits, and {len(durations)} durations leave none for tokens")
    return {
        "blank": _blank(blank, columns - len(durations)),
        "durations": tuple(int(duration) for duration in durations),
        "clamp": float(clamp),
        "fastemit_lambda": float(fastemit_lambda),
        "sigma": float(sigma),
        "omega": float(omega),
        "zero_infinity": bool(zero_infinity),
    }

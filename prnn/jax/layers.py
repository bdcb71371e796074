"""lstm, gru and rnn: recurrent layers as functions of their parameters."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from prnn._modes import GATES
from prnn.jax import _library
from prnn.jax._stack import Arrays, Outputs, Stack, run

Array = jax.Array
# Weights of one layer and direction: weight_ih (G H, I), weight_hh (G H, P), and, where it has them, bias_ih and
# bias_hh (G H,) and weight_hr (P, H).
LayerParams = Mapping[str, Any]


def init_params(
    key: Array,
    cell: str,
    input_size: int,
    hidden_size: int,
    *,
    num_layers: int = 1,
    bidirectional: bool = False,
    bias: bool = True,
    proj_size: int = 0,
    heads: int = 1,
    dtype: Any = jnp.float32,
) -> list[dict[str, Array]]:
    """Parameters of a stack of layers, uniform in +-sqrt(heads / hidden_size), as torch.nn's.

    Args:
        key: jax.random's.
        cell: "lstm", "gru" or "rnn".
        proj_size: of an LSTM, P < H: h is projected to P units (Sak et al. 2014); 0: not.
        heads: blocks of the recurrent weights, a divisor of hidden_size.

    Returns:
        A dictionary for each layer and direction, forward first: weight_ih (G H, I), weight_hh (G H, P), or (heads,
        G H / heads, H / heads) with heads; with a bias bias_ih and bias_hh (G H,); with a projection weight_hr (P, H).
        G is 4 (gates i, f, g, o), 3 (r, z, n) or 1; layers above the first have D P for I.
    """
    if cell not in ("lstm", "gru", "rnn"):
        raise ValueError(f"cell is {cell!r}; it must be 'lstm', 'gru' or 'rnn'")
    for name, value in {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if heads < 1 or hidden_size % heads:
        raise ValueError(f"heads is {heads}; it must divide hidden_size, {hidden_size}")
    if proj_size and (cell != "lstm" or heads > 1 or not 0 < proj_size < hidden_size):
        raise ValueError(
            f"proj_size is {proj_size}; it must be 0, or, of an LSTM without heads, less than hidden_size {hidden_size}"
        )
    rows, state, directions = (
        GATES.get(cell.upper(), 1) * hidden_size,
        proj_size or hidden_size,
        2 if bidirectional else 1,
    )
    bound = math.sqrt(heads / hidden_size)
    layout: list[tuple[tuple[str, tuple[int, ...]], ...]] = []  # names and shapes of each layer and direction
    for layer in range(num_layers):
        inputs = input_size if layer == 0 else directions * state
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, inputs), "weight_hh": (rows, state)}
        if heads > 1:
            shapes["weight_hh"] = (heads, rows // heads, hidden_size // heads)
        if bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if proj_size:
            shapes["weight_hr"] = (proj_size, hidden_size)
        layout += directions * [tuple(shapes.items())]
    return _draw(key, tuple(layout), jnp.dtype(dtype), bound)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _draw(key: Array, layout: Any, dtype: Any, bound: float) -> list[dict[str, Array]]:
    """One program for all parameters, which compiles faster than one for each."""
    count = sum(math.prod(shape) for one in layout for _, shape in one)
    numbers = jax.random.uniform(key, (count,), dtype, -bound, bound)
    params, begin = [], 0
    for one in layout:
        drawn = {}
        for name, shape in one:
            end = begin + math.prod(shape)
            drawn[name] = numbers[begin:end].reshape(shape)
            begin = end
        params.append(drawn)
    return params


def lstm(
    params: Sequence[LayerParams],
    x: Array,
    state: tuple[Array, Array] | None = None,
    *,
    bidirectional: bool = False,
    lengths: Array | None = None,
    reset: Array | None = None,
    reset_state: tuple[Array, Array] | None = None,
    recurrent_mask: Array | None = None,
    zoneout_mask: Array | None = None,
    zoneout: float = 0.0,
    dropout: float = 0.0,
    key: Array | None = None,
    precision: Any = None,
) -> tuple[Array, tuple[Array, Array]]:
    """LSTM layers, with gates i, f, g, o: c' = f * c + i * g, h' = o * tanh(c').

    Sizes: T timesteps, N sequences, I input size, H hidden size, P state size (the projection's, else H), L layers, D
    directions. All arrays have one dtype: float32, bfloat16, float16, or on a CPU float64.

    Args:
        params: init_params()'s, a dictionary for each layer and direction.
        x: (T, N, I), T and N at least 1.
        state: (h, c), (L D, N, P) and (L D, N, H): the initial states; None: zeros.
        bidirectional: whether each layer has two directions, which params then has, the forward one first.
        lengths: integers (N,), 0 to T: how many timesteps of each sequence count. y beyond is 0, and x there is not
            read into a result or gradient, NaN included. None: all.
        reset: bool (T, N): where a sequence starts anew. The state before that timestep is reset_state, also in the
            first one, whatever state; in the reverse direction, where no state goes from that timestep to the one
            before, it is that of the latter.
        reset_state: as state, the states of sequences that start anew; None: zeros.
        recurrent_mask: (L D, N, H): what h is multiplied with where weight_hh reads it, in all timesteps (Gal and
            Ghahramani 2016): 0 where it is dropped, else 1 / (1 - probability). Not with a projection.
        zoneout_mask: bool (T, N, L D, H): where h stays what it was (Krueger et al. 2017); c has no zoneout.
        zoneout: 0 to 1, in place of a mask: h' = zoneout * h + (1 - zoneout) * h', as evaluation has it.
        dropout: less than 1: with what probability each output of a layer but the last is 0 in the next one's input;
            the others are divided by 1 - dropout. The layers are then separate calls. 0 in evaluation.
        key: jax.random's, of which dropout draws; needed with dropout alone.
        precision: of float32's products on a GPU, as jax.lax has it: None is jax_default_matmul_precision, and where
            that is unset, too, or "default", "fastest", "tensorfloat32" or "bfloat16", factors may be rounded to tf32;
            all others are float32's accuracy.

    Returns:
        y: (T, N, D P), the last layer's h, both directions' side by side.
        (h, c): each sequence's own last states, in the shapes of state.

    Raises:
        TypeError, ValueError: an argument of a wrong type, shape or dtype; the message has its value.
        prnn.NotSupportedError: what no kernel serves on jax's default device.
    """
    masks = (recurrent_mask, zoneout_mask, zoneout)
    resets, drops = (reset, reset_state), (dropout, key)
    out = _layers("LSTM", params, x, state, bidirectional, lengths, resets, masks, drops, precision)
    return out.y, (out.hy, out.cy)


def gru(
    params: Sequence[LayerParams],
    x: Array,
    state: Array | None = None,
    *,
    bidirectional: bool = False,
    lengths: Array | None = None,
    reset: Array | None = None,
    reset_state: Array | None = None,
    recurrent_mask: Array | None = None,
    zoneout_mask: Array | None = None,
    zoneout: float = 0.0,
    dropout: float = 0.0,
    key: Array | None = None,
    precision: Any = None,
) -> tuple[Array, Array]:
    """GRU layers, with gates r, z, n: n = tanh(W x + b + r * (R h + b')), h' = (1 - z) * n + z * h.

    Arguments, errors and y as lstm()'s; state, reset_state and the last states are h alone, (L D, N, H)."""
    masks = (recurrent_mask, zoneout_mask, zoneout)
    resets, drops = (reset, reset_state), (dropout, key)
    out = _layers("GRU", params, x, state, bidirectional, lengths, resets, masks, drops, precision)
    return out.y, out.hy


def rnn(
    params: Sequence[LayerParams],
    x: Array,
    state: Array | None = None,
    *,
    nonlinearity: str = "tanh",
    bidirectional: bool = False,
    lengths: Array | None = None,
    reset: Array | None = None,
    reset_state: Array | None = None,
    recurrent_mask: Array | None = None,
    dropout: float = 0.0,
    key: Array | None = None,
    precision: Any = None,
) -> tuple[Array, Array]:
    """Elman RNN layers, h' = f(W x + b + R h + b'), f "tanh" or "relu".

    Arguments, errors and y as lstm()'s; state, reset_state and the last states are h alone, (L D, N, H)."""
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"nonlinearity is {nonlinearity!r}; it must be 'tanh' or 'relu'")
    masks = (recurrent_mask, None, 0.0)
    resets, drops, mode = (reset, reset_state), (dropout, key), f"RNN_{nonlinearity.upper()}"
    out = _layers(mode, params, x, state, bidirectional, lengths, resets, masks, drops, precision)
    return out.y, out.hy


def _layers(
    mode: str,
    params: Sequence[LayerParams],
    x: Array,
    state: Any,
    bidirectional: bool,
    lengths: Array | None,
    resets: tuple[Array | None, Any],
    masks: tuple[Array | None, Array | None, float],
    drops: tuple[float, Array | None],
    precision: Any,
) -> Outputs:
    (reset, reset_state), (recurrent_mask, zoneout_mask, zoneout), (dropout, key) = resets, masks, drops
    if getattr(x, "ndim", None) != 3 or min(x.shape[:2]) < 1:
        raise ValueError(f"x has shape {getattr(x, 'shape', None)}; it must be (T, N, I), T and N at least 1")
    if x.dtype.name not in _library.DTYPES:
        raise TypeError(f"x has dtype {x.dtype.name}; layers take {', '.join(_library.DTYPES)}")
    stack = _stack_of(mode, params, x, bidirectional, zoneout, precision)
    steps, batch, _ = x.shape
    count, hidden = stack.layers * stack.directions, stack.hidden_size
    flat = stack.proj_size or hidden
    hx, cx = _states(state, mode, "state", (count, batch, flat), (count, batch, hidden), x)
    reset_hx, reset_cx = _states(reset_state, mode, "reset_state", (count, batch, flat), (count, batch, hidden), x)
    if reset is None and reset_hx is not None:
        raise ValueError("reset_state is given, but reset, which says where it is wanted, is None")
    _library.require(reset, "reset", (steps, batch), jnp.dtype(bool))
    _library.require(recurrent_mask, "recurrent_mask", (count, batch, hidden), x.dtype)
    _library.require(zoneout_mask, "zoneout_mask", (steps, batch, count, hidden), jnp.dtype(bool))
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is {dropout}; it must be at least 0 and less than 1")
    if dropout > 0 and key is None:
        raise ValueError(
            f"dropout is {dropout} and key is None; dropout needs a key of jax.random, evaluation no dropout"
        )
    heads = stack.heads
    hx, cx, reset_hx, reset_cx, recurrent_mask = (
        None if value is None else _split_heads(value, heads) for value in (hx, cx, reset_hx, reset_cx, recurrent_mask)
    )
    arrays = Arrays(None, x, hx, cx, reset, reset_hx, reset_cx, recurrent_mask, zoneout_mask)
    if lengths is not None:
        lengths = jnp.asarray(lengths)
        if lengths.shape != (batch,) or not jnp.issubdtype(lengths.dtype, jnp.integer):
            raise ValueError(
                f"lengths is {lengths.dtype.name} {lengths.shape}; it must be integers of shape ({batch},)"
            )
    if lengths is None and (dropout == 0 or stack.layers == 1):
        outputs = run(stack, arrays._replace(weights=_packed(params, x)))
    else:
        outputs = _one_by_one(stack, params, arrays, lengths, dropout, key)
    cy = None if outputs.cy is None else _join_heads(outputs.cy, heads)
    return outputs._replace(hy=_join_heads(outputs.hy, heads), cy=cy)


def _stack_of(
    mode: str, params: Sequence[LayerParams], x: Array, bidirectional: bool, zoneout: float, precision: Any
) -> Stack:
    """After a check of all parameters."""
    directions = 2 if bidirectional else 1
    if isinstance(params, Mapping) or len(params) == 0 or len(params) % directions:
        raise ValueError(
            f"params has {len(params)} entries; it must be a list with one for each layer"
            f"{' and direction' if bidirectional else ''}, as init_params() returns it"
        )
    first = params[0]
    for name in ("weight_ih", "weight_hh"):
        if name not in first:
            raise ValueError(f"params[0] has no {name}; it has {', '.join(map(str, first)) or 'nothing'}")
    gates = GATES[mode]
    rows, weight_hh = first["weight_ih"].shape[0], first["weight_hh"]
    heads = weight_hh.shape[0] if weight_hh.ndim == 3 else 1
    hidden = rows // gates
    if rows % gates or hidden == 0 or hidden % heads:
        raise ValueError(
            f"params[0]: weight_ih has {rows} rows; there must be {gates} for each hidden unit"
            + (f", and units for {heads} heads" if heads > 1 else "")
        )
    proj_size = first["weight_hr"].shape[0] if "weight_hr" in first else 0
    if proj_size and mode != "LSTM":
        raise ValueError(f"params[0] has weight_hr, a projection, which only an LSTM may have; these are {mode}'s")
    if not 0.0 <= zoneout <= 1.0:
        raise ValueError(f"zoneout is {zoneout}; it must lie between 0 and 1")
    state = proj_size or hidden
    for place, given in enumerate(params):
        inputs = x.shape[2] if place < directions else directions * state
        shapes = {
            "weight_ih": (rows, inputs),
            "weight_hh": (rows, state) if heads == 1 else (heads, rows // heads, hidden // heads),
            "bias_ih": (rows,),
            "bias_hh": (rows,),
            "weight_hr": (proj_size, hidden),
        }
        wanted = ["weight_ih", "weight_hh"] + ["weight_hr"] * (proj_size > 0)
        missing = [name for name in wanted if name not in given]
        unknown = [name for name in given if name not in shapes]
        if missing or unknown:
            raise ValueError(
                f"params[{place}] has {', '.join(map(str, given))}; it must have {', '.join(wanted)}, and may have "
                "bias_ih and bias_hh"
            )
        for name, value in given.items():
            _library.require(value, f"params[{place}][{name!r}]", shapes[name], x.dtype)
    return Stack(
        mode=mode,
        input_size=x.shape[2],
        hidden_size=hidden,
        layers=len(params) // directions,
        directions=directions,
        proj_size=proj_size,
        heads=heads,
        zoneout=float(zoneout),
        has_cells=False,
        allow_tf32=x.dtype == jnp.float32 and _library.platform() == "gpu" and _library.allows_tf32(precision),
    )


def _states(
    state: Any, mode: str, name: str, shape: tuple[int, ...], cell_shape: tuple[int, ...], x: Array
) -> tuple[Any, Any]:
    if state is None:
        return None, None
    if mode != "LSTM":
        _library.require(state, name, shape, x.dtype)
        return state, None
    if not isinstance(state, tuple | list) or len(state) != 2:
        raise ValueError(f"{name} is a {type(state).__name__}; an LSTM's is a pair (h, c)")
    _library.require(state[0], f"{name}[0]", shape, x.dtype)
    _library.require(state[1], f"{name}[1]", cell_shape, x.dtype)
    return state[0], state[1]


def _packed(params: Sequence[LayerParams], x: Array) -> Array:
    """All matrices, then all biases, as persistent_rnn.h has them."""
    matrices = [one[name].ravel() for one in params for name in ("weight_ih", "weight_hh", "weight_hr") if name in one]
    rows = params[0]["weight_ih"].shape[0]
    zeros = jnp.zeros(rows, x.dtype)
    biases = [one.get(name, zeros) for one in params for name in ("bias_ih", "bias_hh")]
    return jnp.concatenate(matrices + biases)


def _split_heads(state: Array, heads: int) -> Array:
    """(L D, N, H) as the library has it, (L D heads, N, H / heads)."""
    if heads == 1:
        return state
    count, batch, hidden = state.shape
    split = state.reshape(count, batch, heads, hidden // heads).swapaxes(1, 2)
    return split.reshape(count * heads, batch, hidden // heads)


def _join_heads(state: Array, heads: int) -> Array:
    """The way back."""
    if heads == 1:
        return state
    count, batch, units = state.shape
    joined = state.reshape(count // heads, heads, batch, units).swapaxes(1, 2)
    return joined.reshape(count // heads, batch, heads * units)


def _one_by_one(
    stack: Stack, params: Sequence[LayerParams], arrays: Arrays, lengths: Array | None, dropout: float, key: Any
) -> Outputs:
    """The layers as separate calls, with dropout between them."""
    y, last_h, last_c = arrays.x, [], []
    for layer in range(stack.layers):
        if layer > 0 and dropout > 0:
            kept = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - dropout, y.shape)
            y = jnp.where(kept, y / (1 - dropout), 0)
        part = dataclasses.replace(stack, input_size=y.shape[2], layers=1)
        first, count = layer * stack.directions, stack.directions
        given, own = _of_places(arrays, first, count, stack.heads)._replace(x=y), params[first : first + count]
        if lengths is None:
            out = run(part, given._replace(weights=_packed(own, y)))
        else:
            out = _with_lengths(part, own, given, lengths)
        y = out.y
        last_h.append(out.hy)
        last_c.append(out.cy)
    cy = None if last_c[0] is None else jnp.concatenate(last_c)
    return Outputs(y, jnp.concatenate(last_h), cy, None)


def _with_lengths(stack: Stack, params: Sequence[LayerParams], arrays: Arrays, lengths: Array) -> Outputs:
    """A layer over sequences of different lengths, which a compiled program does not know: a direction at a time over
    all timesteps. The last states are taken from its outputs."""
    time = jnp.arange(arrays.x.shape[0])[:, None]
    inside, is_last = (time < lengths)[..., None], (time == lengths - 1)[..., None]
    backwards = jnp.where(time < lengths, lengths - 1 - time, time)
    x = jnp.where(inside, arrays.x, 0)
    part = dataclasses.replace(stack, directions=1, has_cells=stack.mode == "LSTM")
    outputs, last_h, last_c = [], [], []
    for direction in range(stack.directions):
        given = _of_places(arrays, direction, 1, stack.heads)._replace(x=x, weights=_packed([params[direction]], x))
        if direction == 1:
            given = _reversed(given, backwards)
        out = run(part, given)
        last_h.append(_last(out.y, is_last, given.hx, lengths, stack.heads))
        if out.cells is not None:
            last_c.append(_last(out.cells, is_last, given.cx, lengths, stack.heads))
        h = jnp.where(inside, out.y, 0)
        outputs.append(_reorder(h, backwards) if direction == 1 else h)
    cy = jnp.concatenate(last_c) if last_c else None
    return Outputs(jnp.concatenate(outputs, axis=-1), jnp.concatenate(last_h), cy, None)


def _of_places(arrays: Arrays, first: int, count: int, heads: int) -> Arrays:
    """The arrays of so many layers and directions."""
    states = slice(first * heads, (first + count) * heads)
    names = ("hx", "cx", "reset_hx", "reset_cx", "recurrent_mask")
    of_states = {name: value[states] for name in names if (value := getattr(arrays, name)) is not None}
    zoneout_mask = None if arrays.zoneout_mask is None else arrays.zoneout_mask[:, :, first : first + count]
    return arrays._replace(**of_states, zoneout_mask=zoneout_mask)


def _last(values: Array, is_last: Array, initial: Array | None, lengths: Array, heads: int) -> Array:
    """Returns the values (T, N, H) of each sequence's last timestep, or of one without timesteps its initial state, in
    the shape of the latter, (heads, N, H / heads)."""
    found = _split_heads(jnp.where(is_last, values, 0).sum(0)[None], heads)
    return found if initial is None else jnp.where((lengths > 0)[None, :, None], found, initial)


def _reversed(arrays: Arrays, backwards: Array) -> Arrays:
    """Arrays reordered from each sequence's end to its begin, for the reverse direction in a forward call."""
    reset, zoneout_mask = arrays.reset, arrays.zoneout_mask
    if reset is not None:  # which stands at the timestep that no state goes from, and is wanted at the one after
        reset = jnp.take_along_axis(reset, backwards, 0)
        reset = jnp.concatenate([jnp.zeros_like(reset[:1]), reset[:-1]])
    if zoneout_mask is not None:
        zoneout_mask = jnp.take_along_axis(zoneout_mask, backwards[..., None, None], 0)
    return arrays._replace(x=_reorder(arrays.x, backwards), reset=reset, zoneout_mask=zoneout_mask)


@jax.custom_vjp
def _reorder(values: Array, order: Array) -> Array:
    """values (T, N, ...) in another order of timesteps, which reorders it back, too."""
    return jnp.take_along_axis(values, order[..., None], 0)


_reorder.defvjp(
    lambda values, order: (_reorder(values, order), order), lambda order, gradient: (_reorder(gradient, order), None)
)

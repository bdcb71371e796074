"""Recurrent layers as flax.nnx modules: flax's cells and conventions, with prnn's kernels in the place of the scan."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import recurrent

from prnn.jax import layers

Array = jax.Array

_Params = dict[str, Array]


class RNN(nnx.RNN):
    """flax.nnx.RNN of an LSTMCell, OptimizedLSTMCell, GRUCell or SimpleCell: the same constructor, parameters and
    results, so that a checkpoint of one loads into the other.

    It differs in two things: outputs beyond seq_lengths are 0, and `reset` says where sequences start anew.

    Raises:
        TypeError: another cell; a cell with other functions than sigmoid and tanh (of SimpleCell: tanh or relu).
    """

    def __init__(self, cell: nnx.RNNCellBase, **options: Any) -> None:
        _params_of(cell, None)  # checks it
        super().__init__(cell, **options)

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: Any = None,
        seq_lengths: Array | None = None,
        reset: Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: Any = None,
    ) -> Any:
        """Runs the cell over all timesteps.

        Args:
            inputs: (*batch, T, I), or (T, *batch, I) with time_major.
            initial_carry: h (*batch, H), of an LSTM (c, h); None: what the cell's initialize_carry gives.
            seq_lengths: integers (*batch,), timesteps of each sequence that count.
            reset: bool, the shape of inputs without the features: where a sequence starts anew, with zeros. Not with
                reverse.
            return_carry, time_major, reverse, keep_order, rngs: as flax.nnx.RNN's.

        Returns:
            Outputs (*batch, T, H), or (T, *batch, H), in the reverse order with `reverse` unless keep_order; with
            return_carry (carry, outputs).
        """
        return_carry = self.return_carry if return_carry is None else return_carry
        time_major = self.time_major if time_major is None else time_major
        reverse = self.reverse if reverse is None else reverse
        keep_order = self.keep_order if keep_order is None else keep_order
        if reset is not None and reverse:
            raise ValueError("reset is given with reverse; reset is served in the forward direction alone")
        x = inputs if time_major else jnp.moveaxis(inputs, -2, 0)
        steps, *batch, features = x.shape
        if reset is not None:
            reset = (reset if time_major else jnp.moveaxis(reset, -1, 0)).reshape(steps, -1)
        if initial_carry is None:
            initial_carry = self.cell.initialize_carry((*batch, features), self.rngs if rngs is None else rngs)
        cell: Any = self.cell
        dtype = cell.dtype or jnp.result_type(x, *jax.tree.leaves(nnx.state(self.cell, nnx.Param)))
        x = x.reshape(steps, -1, features).astype(dtype)
        lengths = None if seq_lengths is None else seq_lengths.reshape(-1)
        if reverse:
            x = _flip(x, lengths)
        run, params = _params_of(self.cell, dtype)
        state = jax.tree.map(lambda value: value.reshape(1, -1, value.shape[-1]).astype(dtype), initial_carry)
        is_lstm = run is layers.lstm
        state = (state[1], state[0]) if is_lstm else state  # flax has (c, h)
        y, state = run([params], x, state, lengths=lengths, reset=reset)
        if reverse and keep_order:
            y = _flip(y, lengths)
        y = y.reshape(steps, *batch, -1)
        y = y if time_major else jnp.moveaxis(y, 0, -2)
        if not return_carry:
            return y
        state = (state[1], state[0]) if is_lstm else state
        return jax.tree.map(lambda value: value[0].reshape(*batch, -1), state), y


class LSTM(RNN):
    """RNN of an OptimizedLSTMCell: flax.nnx's conventions, inputs (*batch, T, I), carry (c, h).

    Args:
        in_features, hidden_features, rngs: the cell's.
        cell_options: the cell's other ones: dtype, param_dtype, kernel_init, ...
        options: RNN's.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        rngs: nnx.Rngs,
        cell_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        cell = nnx.OptimizedLSTMCell(in_features, hidden_features, rngs=rngs, **(cell_options or {}))
        super().__init__(cell, **options)


class GRU(RNN):
    """RNN of a GRUCell; arguments as LSTM's, carry h."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        rngs: nnx.Rngs,
        cell_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        cell = nnx.GRUCell(in_features, hidden_features, rngs=rngs, **(cell_options or {}))
        super().__init__(cell, **options)


def _flip(x: Array, lengths: Array | None) -> Array:
    return recurrent.flip_sequences(x, lengths, num_batch_dims=1, time_major=True)


def _params_of(cell: Any, dtype: Any) -> tuple[Any, _Params]:
    """The function that runs the cell, and its parameters in a type; None: as they are."""

    def weights(name: str, *parts: Any) -> _Params:
        found = {f"weight_{name}": jnp.concatenate([part.kernel[...].T for part in parts])}
        if parts[0].bias is not None:
            found[f"bias_{name}"] = jnp.concatenate([part.bias[...] for part in parts])
        return {key: value if dtype is None else value.astype(dtype) for key, value in found.items()}

    kind, activation = type(cell), getattr(cell, "activation_fn", None)
    is_gated = kind in (nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.GRUCell)
    if is_gated and (cell.gate_fn is not nnx.sigmoid or activation is not nnx.tanh):
        raise TypeError(f"gate_fn and activation_fn of a {kind.__name__} must be nnx.sigmoid and nnx.tanh")
    if kind is nnx.LSTMCell:
        of_inputs = weights("ih", cell.ii, cell.if_, cell.ig, cell.io)
        return layers.lstm, of_inputs | weights("hh", cell.hi, cell.hf, cell.hg, cell.ho)
    if kind is nnx.SimpleCell:
        if activation not in (nnx.tanh, nnx.relu) or cell.residual:
            raise TypeError("a SimpleCell must have the activation_fn nnx.tanh or nnx.relu, and no residual")
        nonlinearity = "tanh" if activation is nnx.tanh else "relu"

        def run(*given: Any, **options: Any) -> Any:
            return layers.rnn(*given, nonlinearity=nonlinearity, **options)

        return run, weights("ih", cell.dense_i) | weights("hh", cell.dense_h)
    if not is_gated:
        raise TypeError(f"cell is a {kind.__name__}; it must be an LSTMCell, OptimizedLSTMCell, GRUCell or SimpleCell")
    function = layers.gru if kind is nnx.GRUCell else layers.lstm
    return function, weights("ih", cell.dense_i) | weights("hh", cell.dense_h)

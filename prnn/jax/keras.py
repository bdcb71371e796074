"""Keras's LSTM and GRU with prnn's kernels in the place of the loop, on Keras's JAX backend, which this module chooses
where neither KERAS_BACKEND nor an import of keras has chosen one before."""

import os
from typing import Any

import jax
import jax.numpy as jnp

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras

from prnn.jax import layers

if keras.backend.backend() != "jax":
    raise ImportError(
        f"prnn.jax.keras needs Keras's JAX backend, and it has {keras.backend.backend()}: set KERAS_BACKEND=jax before "
        "keras is imported"
    )


@keras.saving.register_keras_serializable("prnn")
class LSTM(keras.layers.LSTM):
    """keras.layers.LSTM: the same arguments, weights and results.

    Keras's own loop runs where a call has a mask, or dropout of the recurrence in training, and where the activations
    are not tanh and sigmoid.
    """

    def inner_loop(self, sequences: Any, initial_state: Any, mask: Any, training: bool = False) -> Any:
        """Keras calls this with (N, T, I) and the states (h, c)."""
        if not _is_served(self, mask, training):
            return super().inner_loop(sequences, initial_state, mask, training)
        x = _time_major(self, sequences, training)
        h, c = (_state(state, x) for state in initial_state)
        y, state = layers.lstm([_weights(self, [0, 1, 2, 3], x)], x, (h, c))
        return _results(y, state)


@keras.saving.register_keras_serializable("prnn")
class GRU(keras.layers.GRU):
    """keras.layers.GRU, as LSTM; also without reset_after Keras's own loop runs."""

    def inner_loop(self, sequences: Any, initial_state: Any, mask: Any, training: bool = False) -> Any:
        """Keras calls this with (N, T, I) and the state h."""
        if not self.reset_after or not _is_served(self, mask, training):
            return super().inner_loop(sequences, initial_state, mask, training)
        x = _time_major(self, sequences, training)
        state = initial_state[0] if isinstance(initial_state, list | tuple) else initial_state
        y, h = layers.gru([_weights(self, [1, 0, 2], x)], x, _state(state, x))  # Keras has z, r, n
        return _results(y, (h,))


def _is_served(layer: Any, mask: Any, training: bool) -> bool:
    functions = (layer.cell.activation, layer.cell.recurrent_activation)
    mask = jax.tree.leaves(mask)
    return not mask and not (training and layer.recurrent_dropout) and functions == (keras.ops.tanh, keras.ops.sigmoid)


def _time_major(layer: Any, sequences: Any, training: bool) -> Any:
    """The layer's inputs (T, N, I), in the order in which they are read, after dropout."""
    if training and layer.dropout:
        sequences = sequences * layer.cell.get_dropout_mask(sequences[:, 0, :])[:, None]
    x = jnp.swapaxes(jnp.asarray(sequences, layer.compute_dtype), 0, 1)
    return x[::-1] if layer.go_backwards else x


def _weights(layer: Any, gates: list[int], x: Any) -> dict[str, Any]:
    """The cell's, with its gates in prnn's order."""

    def rows(values: Any) -> Any:
        values = jnp.asarray(values, x.dtype)
        return jnp.concatenate([jnp.split(values, len(gates), -1)[gate] for gate in gates], -1)

    cell = layer.cell
    params = {"weight_ih": rows(cell.kernel[...]).T, "weight_hh": rows(cell.recurrent_kernel[...]).T}
    if cell.bias is None:
        return params
    bias = rows(cell.bias[...])
    return params | ({"bias_ih": bias} if bias.ndim == 1 else {"bias_ih": bias[0], "bias_hh": bias[1]})


def _state(state: Any, x: Any) -> Any:
    return jnp.asarray(state, x.dtype)[None]


def _results(y: Any, state: Any) -> Any:
    """Keras's: the last output, all outputs (N, T, H), and the states."""
    return y[-1], jnp.swapaxes(y, 0, 1), [part[0] for part in state]

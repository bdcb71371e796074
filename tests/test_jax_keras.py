"""prnn.jax.keras beside Keras's own layers on its JAX backend."""

import os
from typing import Any

import numpy as np
import pytest
from jax_case import assert_close, jax, jnp

os.environ["KERAS_BACKEND"] = "jax"
keras: Any = pytest.importorskip("keras")

from prnn.jax import keras as prnn_keras  # noqa: E402  # behind what skips it


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("LSTM", {"return_sequences": True}),
        ("LSTM", {"go_backwards": True, "use_bias": False}),
        ("GRU", {"return_sequences": True, "go_backwards": True}),
        ("GRU", {"reset_after": False}),  # Keras's own loop
    ],
)
def test_beside_keras(name: str, options: dict[str, Any]) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 4)).astype("float32")
    ours, theirs = (getattr(where, name)(8, return_state=True, **options) for where in (prnn_keras, keras.layers))
    ours.build(x.shape)
    theirs.build(x.shape)
    ours.set_weights(theirs.get_weights())

    def run(layer: Any) -> Any:
        values = [variable.value for variable in layer.trainable_variables]
        others = [variable.value for variable in layer.non_trainable_variables]

        def loss(values: Any, x: Any) -> Any:
            outputs, _ = layer.stateless_call(values, others, x)
            return sum((output**2).sum() for output in outputs), outputs

        (_, outputs), gradients = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(values, jnp.asarray(x))
        return outputs, gradients

    jax.tree.map(lambda a, b: assert_close(a, b, 1e-5), run(ours), run(theirs))


def test_a_model_learns_with_masks_and_dropout() -> None:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((64, 6, 4)).astype("float32")
    y = (x[:, 0, 0] > 0).astype(int)
    layer = prnn_keras.LSTM(8, dropout=0.1)
    model = keras.Sequential([keras.Input((6, 4)), layer, keras.layers.Dense(2)])
    model.compile(keras.optimizers.Adam(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(x, y, epochs=6, batch_size=16, verbose=0).history["loss"]
    assert history[-1] < 0.8 * history[0]
    mask = np.arange(6) < 4
    masked = layer(x[:2], mask=np.broadcast_to(mask, (2, 6)))
    assert_close(masked, layer(x[:2, :4]), 1e-5)


def test_a_saved_model_with_two_directions(tmp_path: Any) -> None:
    """Keras makes the layers anew, from their configuration."""
    x = np.random.default_rng(0).standard_normal((3, 5, 4)).astype("float32")
    ours, theirs = (
        keras.Sequential([keras.Input((5, 4)), keras.layers.Bidirectional(where.LSTM(8))])
        for where in (prnn_keras, keras.layers)
    )
    ours.set_weights(theirs.get_weights())
    ours.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[0].backward_layer) is prnn_keras.LSTM
    for model in (ours, loaded):
        assert_close(model(x), theirs(x), 1e-5)

"""recipes/recurrent_ppo: prnn's GRU and that of lax.scan train alike."""

import numpy as np
from jax_case import assert_close, jax, jnp, on_cpu

from recipes.recurrent_ppo import __main__ as recipe

__all__ = ["on_cpu"]

CONFIG = recipe.Config(environments=16, steps=20, hidden=16, epochs=2)


def test_both_grus_give_the_same_states_and_gradients() -> None:
    draw = np.random.default_rng(0)
    layers = recipe.init_agent(jax.random.key(0), CONFIG)["gru"]
    x = jnp.asarray(draw.standard_normal((20, 16, recipe.INPUTS)), "float32")
    h = jnp.asarray(draw.standard_normal((16, 16)), "float32")
    reset = jnp.asarray(draw.random((20, 16)) < 0.1)

    def run(name: str) -> object:
        outputs, backward = jax.vjp(lambda layers: recipe.GRUS[name](layers, x, h, reset), layers)
        return outputs, backward(jnp.cos(outputs))

    jax.tree.map(lambda a, b: assert_close(a, b, 1e-5), *(jax.jit(run, static_argnums=0)(name) for name in recipe.GRUS))


def test_an_agent_is_trained() -> None:
    with jax.enable_x64(False):
        shares, milliseconds = recipe.train(CONFIG, "prnn", 2, seed=0)
    assert all(0 <= share <= 1 for share in shares)
    assert milliseconds > 0

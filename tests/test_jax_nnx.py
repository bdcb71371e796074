"""prnn.jax.nnx beside flax's own modules: results, gradients and parameters."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jax_case import assert_close, jax, jnp, on_cpu

nnx: Any = pytest.importorskip("flax.nnx")

from prnn.jax import nnx as prnn_nnx  # noqa: E402  # behind what skips it

__all__ = ["on_cpu"]

CELLS: dict[str, Callable[..., Any]] = {
    "lstm": nnx.LSTMCell,
    "optimized": nnx.OptimizedLSTMCell,
    "gru": nnx.GRUCell,
    "simple": nnx.SimpleCell,
}


@pytest.mark.parametrize(
    ("cell", "options", "has_lengths"),
    [
        ("lstm", {}, True),
        ("optimized", {"reverse": True, "keep_order": True}, True),
        ("gru", {"reverse": True, "time_major": True}, False),
        ("simple", {"time_major": True}, False),
    ],
)
def test_beside_flax(cell: str, options: dict[str, Any], has_lengths: bool) -> None:
    f64 = jnp.float64
    ours, theirs = (
        make(CELLS[cell](4, 8, rngs=nnx.Rngs(0), dtype=f64, param_dtype=f64), return_carry=True, **options)
        for make in (prnn_nnx.RNN, nnx.RNN)
    )
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.standard_normal((5, 3, 4) if options.get("time_major") else (3, 5, 4)))
    lengths = jnp.asarray([5, 2, 3]) if has_lengths else None
    time = jnp.arange(5) < (5 if lengths is None else lengths[:, None])
    inside = jnp.broadcast_to(time, (3, 5))
    inside = (inside.T if options.get("time_major") else inside)[..., None]

    @nnx.jit
    def run(module: Any) -> Any:
        def loss(module: Any) -> Any:
            carry, y = module(x, seq_lengths=lengths)
            y = jnp.where(inside, y, 0)
            return (y**2).sum() + sum(jnp.sin(part).sum() for part in jax.tree.leaves(carry)), (carry, y)

        (_, outputs), gradients = nnx.value_and_grad(loss, has_aux=True)(module)
        return outputs, nnx.to_pure_dict(gradients)

    jax.tree.map(lambda a, b: assert_close(a, b, 1e-12), run(ours), run(theirs))


def test_modules_have_flaxs_parameters() -> None:
    ours = prnn_nnx.LSTM(4, 8, rngs=nnx.Rngs(0), cell_options={"param_dtype": jnp.float64})
    theirs = nnx.RNN(nnx.OptimizedLSTMCell(4, 8, rngs=nnx.Rngs(1), param_dtype=jnp.float64))
    nnx.update(ours, nnx.state(theirs))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 5, 4)))  # two batch axes
    assert_close(ours(x), theirs(x), 1e-12)
    assert ours(x).shape == (2, 3, 5, 8)


def test_resets() -> None:
    module = prnn_nnx.GRU(4, 8, rngs=nnx.Rngs(0), cell_options={"dtype": jnp.bfloat16})
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 6, 4)), "float32")
    reset = jnp.zeros((2, 6), bool).at[:, 3].set(True)
    y = module(x, reset=reset)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y[:, 3:], module(x[:, 3:]))
    with pytest.raises(ValueError, match="reset is given with reverse"):
        module(x, reset=reset, reverse=True)


def test_dropout_between_layers() -> None:
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(prnn_nnx.GRU(4, 8, rngs=rngs), nnx.Dropout(0.5, rngs=rngs), prnn_nnx.GRU(8, 8, rngs=rngs))
    x = jnp.ones((2, 5, 4), "float32")
    first, second = model(x), model(x)  # the module's state has the next key
    assert not np.array_equal(first, second)
    model.eval()
    np.testing.assert_array_equal(model(x), model.layers[2](model.layers[0](x)))


def test_cells_that_are_not_served() -> None:
    with pytest.raises(TypeError, match="gate_fn and activation_fn of a GRUCell must be"):
        prnn_nnx.GRU(4, 8, rngs=nnx.Rngs(0), cell_options={"gate_fn": nnx.relu})
    with pytest.raises(TypeError, match="cell is a int; it must be an LSTMCell"):
        prnn_nnx.RNN(3)

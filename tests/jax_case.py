"""Helpers of the tests of prnn.jax. Imported before jax, which then has two CPU devices in each process."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from reference import rnn as reference

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

jax: Any = pytest.importorskip("jax")
jnp = jax.numpy

MODES = {"lstm": reference.LSTM, "gru": reference.GRU, "rnn_tanh": reference.RNN_TANH, "rnn_relu": reference.RNN_RELU}
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    """Arrays and programs of the CPU, and float64."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        yield


def assert_close(given: Any, wanted: Any, tolerance: float, name: str = "") -> None:
    """Within the tolerance, relative to the largest of the wanted elements. None: nothing is there."""
    if wanted is None or np.size(wanted) == 0:
        return
    given, wanted = np.asarray(given).astype(np.float64), np.asarray(wanted, np.float64)
    assert given.shape == wanted.shape, name
    error = np.abs(given - wanted).max() / max(np.abs(wanted).max(), 1e-30)
    assert error <= tolerance, f"{name}: {error:.2e}"


def packed(params: list[dict[str, Any]]) -> torch.Tensor:
    """The weights as persistent_rnn.h has them, in float64."""
    matrices = [one[name] for one in params for name in ("weight_ih", "weight_hh", "weight_hr") if name in one]
    biases = [one.get(name, np.zeros(len(one["weight_ih"]))) for one in params for name in ("bias_ih", "bias_hh")]
    return torch.cat([torch.tensor(np.asarray(part, np.float64)).flatten() for part in (*matrices, *biases)])


def as_torch(array: Any) -> torch.Tensor:
    array = np.asarray(array)
    return torch.tensor(array if array.dtype == bool else array.astype(np.float64))


def draw_params(
    draw: np.random.Generator,
    mode: str,
    *,
    layers: int = 1,
    directions: int = 1,
    proj_size: int = 0,
    heads: int = 1,
    dtype: str,
) -> list[dict[str, Any]]:
    """Parameters of layers of 8 units that read 4 numbers. (jax's own generator takes seconds to compile.)"""
    rows, state, params = reference.GATES[MODES[mode]] * 8, proj_size or 8, []
    for place in range(layers * directions):
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, 4 if place < directions else directions * state),
            "weight_hh": (rows, state) if heads == 1 else (heads, rows // heads, 8 // heads),
            "bias_ih": (rows,),
            "bias_hh": (rows,),
        }
        if proj_size:
            shapes["weight_hr"] = (proj_size, 8)
        params.append({name: jnp.asarray(draw.uniform(-0.5, 0.5, shape), dtype) for name, shape in shapes.items()})
    return params

"""prnn.jax on a GPU: values and gradients beside those of the CPU in float64."""

import functools
from typing import Any

import numpy as np
import pytest
from jax_case import assert_close, draw_params, jax, jnp

import prnn.jax as pj


def _gpus() -> list[Any]:
    try:
        return list(jax.devices("cuda"))
    except RuntimeError:
        return []


pytestmark = pytest.mark.skipif(not _gpus(), reason="jax has no GPU")

OPTIONS = ("reset", "lengths", "recurrent_mask", "zoneout_mask")  # that are arrays
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 8e-2}


def in_float64(params: Any) -> Any:
    return jax.tree.map(lambda value: np.asarray(value, np.float64), params)


def _run(mode: str, arrays: dict[str, Any], dtype: str, device: Any, **options: Any) -> Any:
    """Outputs and gradients with respect to parameters, inputs and initial states, computed on a device."""
    with jax.enable_x64(True), jax.default_device(device):
        kinds = {"float64": dtype}
        given = jax.tree.map(lambda value: jnp.asarray(value, kinds.get(str(value.dtype), value.dtype)), arrays)
        options = options | {name: given.pop(name) for name in OPTIONS if name in given}
        function = functools.partial(getattr(pj, mode), precision="highest", **options)

        @jax.jit
        def run(given: Any) -> Any:
            def loss(params: Any, x: Any, state: Any) -> Any:
                outputs = function(params, x, state)
                return sum((leaf.astype("float32") ** 2).sum() for leaf in jax.tree.leaves(outputs)), outputs

            differentiate = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
            (_, outputs), gradients = differentiate(given["params"], given["x"], given["state"])
            return outputs, gradients

        return jax.tree.map(np.asarray, run(given))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("mode", "options"), [("lstm", {}), ("gru", {}), ("gru", {"bidirectional": True}), ("rnn", {})]
)
@pytest.mark.parametrize("kind", ["plain", "reset", "lengths"])
def test_values_and_gradients(mode: str, options: dict[str, Any], kind: str, dtype: str) -> None:
    draw, steps, batch = np.random.default_rng(0), 20, 6
    directions = 2 if options else 1
    params = in_float64(
        draw_params(draw, "rnn_tanh" if mode == "rnn" else mode, directions=directions, dtype="float32")
    )
    state = draw.standard_normal((directions, batch, 8))
    arrays = {
        "params": params,
        "x": draw.standard_normal((steps, batch, 4)),
        "state": (state, draw.standard_normal(state.shape)) if mode == "lstm" else state,
    }
    if kind == "reset":
        arrays["reset"] = draw.random((steps, batch)) < 0.1
    if kind == "lengths":
        arrays["lengths"] = np.asarray([20, 3, 11, 19, 1, 0])
    found = _run(mode, arrays, dtype, _gpus()[0], **options)
    wanted = _run(mode, arrays, "float64", jax.devices("cpu")[0], **options)
    jax.tree.map(lambda a, b: assert_close(a, b, TOLERANCE[dtype]), found, wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("mode", "layout", "options"),
    [
        ("lstm", {"num_layers": 3}, {}),
        ("lstm", {"num_layers": 2, "proj_size": 16}, {}),
        ("gru", {"num_layers": 2, "bidirectional": True}, {"dropout": 0.25, "key": np.asarray([0, 7], np.uint32)}),
        ("gru", {"heads": 2}, {"recurrent_mask": (1, 5, 32), "zoneout_mask": (12, 5, 1, 32)}),
        ("lstm", {"heads": 2, "bidirectional": True}, {"recurrent_mask": (2, 5, 32)}),
    ],
    ids=str,
)
def test_stacks_heads_and_masks(mode: str, layout: dict[str, Any], options: dict[str, Any], dtype: str) -> None:
    draw, options = np.random.default_rng(0), dict(options)
    with jax.default_device(jax.devices("cpu")[0]):
        params = in_float64(pj.init_params(jax.random.key(0), mode, 16, 32, **layout))
    count, size = len(params), layout.get("proj_size", 32)
    state = draw.standard_normal((count, 5, size))
    arrays: dict[str, Any] = {
        "params": params,
        "x": draw.standard_normal((12, 5, 16)),
        "state": (state, draw.standard_normal((count, 5, 32))) if mode == "lstm" else state,
    }
    for name in OPTIONS:
        if name in options:
            kept = draw.random(options.pop(name)) < 0.75
            arrays[name] = kept if name == "zoneout_mask" else kept / 0.75
    options["bidirectional"] = layout.get("bidirectional", False)
    found = _run(mode, arrays, dtype, _gpus()[0], **options)
    wanted = _run(mode, arrays, "float64", jax.devices("cpu")[0], **options)
    jax.tree.map(lambda a, b: assert_close(a, b, TOLERANCE[dtype]), found, wanted)


def test_large_layers() -> None:
    """A GRU of 512 units in bfloat16 beside float32 on the CPU, and a scan over segments beside one call."""
    draw = np.random.default_rng(0)
    params = [
        {
            "weight_ih": draw.uniform(-0.04, 0.04, (1536, 64)),
            "weight_hh": draw.uniform(-0.04, 0.04, (1536, 512)),
            "bias_ih": draw.uniform(-0.04, 0.04, 1536),
            "bias_hh": draw.uniform(-0.04, 0.04, 1536),
        }
    ]
    arrays = {"params": params, "x": draw.standard_normal((64, 16, 64)), "state": np.zeros((1, 16, 512))}
    found = _run("gru", arrays, "bfloat16", _gpus()[0])
    wanted = _run("gru", arrays, "float32", jax.devices("cpu")[0])
    jax.tree.map(lambda a, b: assert_close(a, b, TOLERANCE["bfloat16"]), found, wanted)
    with jax.default_device(_gpus()[0]):
        params, x = jax.tree.map(lambda value: jnp.asarray(value, "bfloat16"), (params, arrays["x"]))

        def segment(h: Any, x: Any) -> Any:
            y, h = pj.gru(params, x, h)
            return h, y

        start = jnp.zeros((1, 16, 512), "bfloat16")
        _, y = jax.jit(lambda x: jax.lax.scan(segment, start, x.reshape(4, 16, 16, 64)))(x)
        assert_close(y.reshape(64, 16, 512), found[0][0], TOLERANCE["bfloat16"])


def _losses(arrays: list[Any], dtype: str, device: Any) -> Any:
    """Costs, and gradients of their sum, of all losses."""
    targets, frames, lengths = np.asarray([[1, 3], [2, 9]]), np.asarray([4, 3]), np.asarray([2, 1])
    durations = (0, 1, 2)
    with jax.enable_x64(True), jax.default_device(device):
        logits, encoder, predictor, weight, bias = (jnp.asarray(array, dtype) for array in arrays)

        def costs(logits: Any, encoder: Any, predictor: Any, weight: Any, bias: Any) -> Any:
            rest, joiner = (targets, frames, lengths), (encoder, predictor, weight, bias)
            return (
                pj.ctc_loss(logits[:, :, 0], *rest),
                pj.rnnt_loss(logits, *rest),
                pj.tdt_loss(logits, *rest, -1, durations, sigma=0.05, omega=0.1),
                pj.joint_rnnt_loss(*joiner, *rest, precision="highest"),
                pj.joint_tdt_loss(*joiner, *rest, -1, durations, precision="highest"),
            )

        @jax.jit
        def run(*arrays: Any) -> Any:
            outputs, backward = jax.vjp(costs, *arrays)
            return outputs, backward(jax.tree.map(jnp.ones_like, outputs))

        return jax.tree.map(np.asarray, run(logits, encoder, predictor, weight, bias))


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_losses(dtype: str) -> None:
    draw = np.random.default_rng(0)
    shapes = ((2, 4, 3, 13), (2, 4, 32), (2, 3, 32), (13, 32), (13,))
    arrays = [draw.standard_normal(shape) for shape in shapes]
    found = _losses(arrays, dtype, _gpus()[0])
    wanted = _losses(arrays, "float64", jax.devices("cpu")[0])
    jax.tree.map(lambda a, b: assert_close(a, b, TOLERANCE[dtype]), found, wanted)


@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
def test_greedy_search(durations: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)

    def random(*shape: int) -> Any:
        return 1.5 * draw.standard_normal(shape)

    params = {
        "embedding": random(6, 4),
        "layers": in_float64(draw_params(draw, "lstm", dtype="float32")),
        "projection": {"weight": random(8, 8), "bias": random(8)},
        "output": {"weight": random(6 + len(durations), 8)},
    }
    frames = random(2, 9, 8)

    def search(device: Any) -> Any:
        with jax.default_device(device):
            given = jax.tree.map(lambda value: jnp.asarray(value, "float32"), (params, frames))
            options = {"predictor": "lstm", "blank": 0, "durations": durations}
            return jax.jit(lambda params, frames: pj.greedy_search(params, frames, np.asarray([9, 5]), **options))(
                *given
            )

    found, wanted = search(_gpus()[0]), search(jax.devices("cpu")[0])
    np.testing.assert_array_equal(found.symbols, wanted.symbols)
    np.testing.assert_array_equal(found.frames, wanted.frames)
    assert_close(found.scores, wanted.scores, 1e-4)

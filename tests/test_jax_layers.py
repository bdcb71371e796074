"""prnn.jax.lstm, gru and rnn on the CPU: values and gradients against the reference in float64, what jax does with
functions, and errors."""

import functools
import pathlib
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from jax_case import MODES, TOLERANCE, as_torch, assert_close, draw_params, jax, jnp, on_cpu, packed
from reference import rnn as reference

import prnn.jax as pj
from prnn import _C
from prnn.jax import _library

__all__ = ["on_cpu"]

Params = list[dict[str, Any]]


class Case:
    """A stack of layers with random data, and its gradients' loss."""

    def __init__(
        self,
        mode: str,
        dtype: str = "float64",
        *,
        layers: int = 2,
        bidirectional: bool = True,
        proj_size: int = 0,
        steps: int = 5,
        batch: int = 3,
        **options: Any,
    ) -> None:
        self.mode, self.dtype, self.options = mode, dtype, options | {"bidirectional": bidirectional}
        self.stack = reference.Stack(MODES[mode], 4, 8, layers, 2 if bidirectional else 1, projection=proj_size)
        self.draw = np.random.default_rng(0)
        self.params = draw_params(
            self.draw, mode, layers=layers, directions=self.stack.directions, proj_size=proj_size, dtype=dtype
        )
        self.steps, self.batch = steps, batch
        states = layers * self.stack.directions
        self.state_shapes = (states, batch, self.stack.state), (states, batch, 8)
        self.x = self.random(steps, batch, 4)
        self.state, self.reset_state = self.random_state(), self.random_state()
        self.gradients = (self.random(steps, batch, self.stack.directions * self.stack.state), self.random_state())

    def random(self, *shape: int) -> Any:
        return jnp.asarray(self.draw.standard_normal(shape), self.dtype)

    def random_state(self) -> Any:
        return tuple(map(lambda shape: self.random(*shape), self.state_shapes))

    def of_mode(self, state: Any) -> Any:
        return state if self.mode == "lstm" else state[0]

    def function(self) -> Callable[..., Any]:
        if self.mode in ("lstm", "gru"):
            return getattr(pj, self.mode)
        return lambda *given, **options: pj.rnn(*given, nonlinearity=self.mode[4:], **options)

    def run(self, reset: Any = None, lengths: Any = None, **options: Any) -> tuple[Any, ...]:
        """Outputs, and gradients with respect to params, x, state and reset_state, in one compiled program."""
        function, dy = self.function(), (self.gradients[0], self.of_mode(self.gradients[1]))

        @jax.jit
        def run(params: Params, x: Any, state: Any, reset_state: Any) -> tuple[Any, ...]:
            def call(params: Params, x: Any, state: Any, reset_state: Any) -> Any:
                resets = {} if reset is None else {"reset": reset, "reset_state": reset_state}
                return function(params, x, state, lengths=lengths, **resets, **self.options, **options)

            outputs, backward = jax.vjp(call, params, x, state, reset_state)
            return outputs, backward(dy)

        return run(self.params, self.x, self.of_mode(self.state), self.of_mode(self.reset_state))

    def check(
        self, reset: Any = None, lengths: Any = None, masks: reference.Masks | None = None, **options: Any
    ) -> None:
        (y, state), (dparams, dx, dstate, dreset) = self.run(reset, lengths, **options)
        lengths = np.full(self.batch, self.steps) if lengths is None else np.asarray(lengths)
        order = np.argsort(-lengths, kind="stable")
        sizes = [int((lengths > t).sum()) for t in range(self.steps)]
        sizes = sizes[: int(lengths.max())]
        rows = [(t, n) for t, size in enumerate(sizes) for n in order[:size]]
        at = tuple(map(list, zip(*rows, strict=True)))

        def sequences(array: Any) -> torch.Tensor:
            return as_torch(array)[at]

        def states(pair: Any) -> list[torch.Tensor]:
            return [as_torch(array)[:, order] for array in pair]

        wanted = reference.train_step(
            self.stack,
            sequences(self.x),
            sizes,
            packed(self.params),
            *states(self.state),
            sequences(self.gradients[0]),
            *states(self.gradients[1]),
            None,
            None if reset is None else sequences(reset),
            None,
            *(states(self.reset_state) if reset is not None else (None, None)),
            masks,
        )
        tolerance = TOLERANCE[self.dtype]
        whole_y, whole_dx = np.zeros(y.shape), np.zeros(dx.shape)
        whole_y[at], whole_dx[at] = wanted.y, wanted.dx
        assert_close(y, whole_y, tolerance, "y")
        assert_close(dx, whole_dx, tolerance, "dx")
        assert_close(packed(dparams), wanted.dw, tolerance, "dparams")
        is_lstm = self.mode == "lstm"
        for name, given, of_state in (
            ("state", state, (wanted.hy, wanted.cy)),
            ("dstate", dstate, (wanted.dhx, wanted.dcx)),
            ("dreset_state", dreset, (wanted.dreset_hx, wanted.dreset_cx)),
        ):
            for one, of_one in zip(given if is_lstm else (given,), of_state, strict=False):
                if reset is not None or name != "dreset_state":
                    assert_close(one[:, order], of_one, tolerance, name)


@pytest.mark.parametrize(
    ("mode", "dtype", "options"),
    [
        ("lstm", "float64", {"proj_size": 5}),
        ("lstm", "float32", {}),
        ("lstm", "float16", {"bidirectional": False, "layers": 1}),
        ("gru", "float64", {}),
        ("gru", "bfloat16", {"bidirectional": False, "layers": 1}),
        ("rnn_tanh", "float32", {"bidirectional": False}),
        ("rnn_relu", "float64", {"layers": 1}),
    ],
)
def test_values_and_gradients(mode: str, dtype: str, options: dict[str, Any]) -> None:
    Case(mode, dtype, **options).check()


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_resets(mode: str) -> None:
    case = Case(mode)
    case.check(reset=jnp.asarray(case.draw.random((5, 3)) < 0.3))


@pytest.mark.parametrize(("mode", "options"), [("lstm", {"proj_size": 5}), ("gru", {})])
def test_lengths_with_resets(mode: str, options: dict[str, Any]) -> None:
    case = Case(mode, **options)
    lengths = jnp.asarray([3, 5, 1])
    reset = jnp.asarray([[0, 1, 0], [0, 0, 1], [1, 0, 1], [1, 0, 0], [1, 1, 1]], bool)
    case.x = case.x.at[3:, 0].set(jnp.nan).at[1:, 2].set(jnp.inf)
    case.check(reset, lengths)


def test_a_sequence_without_timesteps() -> None:
    case = Case("lstm", layers=1)
    (y, state), (_, _, dstate, _) = case.run(lengths=jnp.asarray([5, 0, 2]))
    assert not np.asarray(y)[:, 1].any()
    for one, initial in zip(state, case.state, strict=True):
        assert_close(one[:, 1], initial[:, 1], 0)
    for one, given in zip(dstate, case.gradients[1], strict=True):
        assert_close(one[:, 1], given[:, 1], 0)


@pytest.mark.parametrize("has_lengths", [False, True])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_masks(mode: str, has_lengths: bool) -> None:
    case = Case(mode)
    recurrent = jnp.asarray((case.draw.random((4, 3, 8)) < 0.6) / 0.6)
    zoneout = jnp.asarray(case.draw.random((5, 3, 4, 8)) < 0.2)
    lengths = np.asarray([5, 3, 2]) if has_lengths else None
    rows = [(t, n) for t in range(5) for n in range(3) if lengths is None or t < lengths[n]]
    at = tuple(map(list, zip(*rows, strict=True)))
    masks = reference.Masks(as_torch(recurrent), as_torch(zoneout)[at])
    case.check(None, lengths, masks, recurrent_mask=recurrent, zoneout_mask=zoneout)


def test_zoneout_of_evaluation() -> None:
    Case("gru").check(masks=reference.Masks(expectation=0.25), zoneout=0.25)


def test_dropout_between_layers() -> None:
    """Layers that give what they get: how much of it is dropped, its gradient, and of which key, also under vmap."""
    shape, dropout = (20, 30, 8), 0.25
    identity = {"weight_ih": jnp.eye(8), "weight_hh": jnp.zeros((8, 8))}
    x = 1 + jnp.asarray(np.random.default_rng(0).random(shape))
    keys = jax.vmap(jax.random.key)(jnp.asarray([1, 1, 2]))

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def run(x: Any, key: Any) -> Any:
        options = {"nonlinearity": "relu", "dropout": dropout, "key": key}
        outputs, backward = jax.vjp(lambda x: pj.rnn(3 * [identity], x, **options), x)
        return *outputs, backward((jnp.ones(shape), jnp.zeros((3, 30, 8))))[0]

    y, h, dx = map(np.asarray, run(x, keys))
    factor = y / np.asarray(x)
    kept = factor > 0
    assert abs(kept.mean() - (1 - dropout) ** 2) < 0.02
    assert_close(factor[kept], np.full(kept.sum(), (1 - dropout) ** -2), 1e-12)
    assert_close(h[:, -1], y[:, -1], 0)
    assert_close(dx, factor, 1e-12)
    assert_close(y[0], y[1], 0)
    assert 0.4 < (kept[0] == kept[2]).mean() < 0.6
    assert (np.asarray(h[:, 1] > 0) == kept[:, -1]).mean() < 0.95  # not the mask of the layer above again


@pytest.mark.parametrize(("mode", "lengths"), [("lstm", None), ("gru", [5, 3, 2])])
def test_layers_with_dropout_are_those_without(mode: str, lengths: Any) -> None:
    """With a probability so small that nothing is dropped."""
    case = Case(mode, layers=2)
    recurrent = jnp.asarray((case.draw.random((4, 3, 8)) < 0.6) / 0.6)
    options = {"dropout": 1e-16, "key": jax.random.key(0), "recurrent_mask": recurrent}
    lengths = None if lengths is None else np.asarray(lengths)
    case.check(jnp.asarray(case.draw.random((5, 3)) < 0.3), lengths, reference.Masks(as_torch(recurrent)), **options)


def test_heads_are_layers_side_by_side() -> None:
    case = Case("lstm", layers=1)
    whole = draw_params(case.draw, "lstm", directions=2, heads=2, dtype="float64")
    run = jax.jit(
        lambda params, state: pj.lstm(params, case.x, state, bidirectional=True, lengths=np.asarray([5, 4, 2]))
    )
    y, (h, c) = run(whole, case.state)
    y = y.reshape(5, 3, 2, 2, 4)  # direction, head
    for head in range(2):
        part = [
            {
                name: np.reshape(value, (2, 16, -1))[head].reshape(16, *value.shape[2 if name == "weight_hh" else 1 :])
                for name, value in one.items()
            }
            for one in whole
        ]
        units = slice(4 * head, 4 * head + 4)
        state = tuple(one[:, :, units] for one in case.state)
        of_head = run(part, state)
        assert_close(y[:, :, :, head].reshape(5, 3, 8), of_head[0], 1e-12)
        assert_close(h[:, :, units], of_head[1][0], 1e-12)
        assert_close(c[:, :, units], of_head[1][1], 1e-12)


def test_vmap_over_seeds() -> None:
    case = Case("gru", layers=1, bidirectional=False)
    stacked = jax.tree.map(lambda value: jnp.stack([value, 2 * value]), case.params)

    def loss(params: Params, x: Any) -> Any:
        return (pj.gru(params, x)[0] ** 2).sum()

    losses, grads = jax.jit(jax.vmap(jax.value_and_grad(loss), in_axes=(0, None)))(stacked, case.x)
    for seed in range(2):
        value, grad = jax.jit(jax.value_and_grad(loss))(
            jax.tree.map(lambda leaf, seed=seed: leaf[seed], stacked), case.x
        )
        assert_close(losses[seed], value, 1e-14)
        jax.tree.map(lambda one, two, seed=seed: assert_close(one[seed], two, 1e-14), grads, grad)


def test_gradient_of_a_scan_over_segments() -> None:
    case = Case("lstm", layers=1, bidirectional=False, steps=6)

    def whole(params: Params, x: Any, state: Any) -> Any:
        return pj.lstm(params, x, state)

    @jax.checkpoint
    def segment(params: Params, state: Any, x: Any) -> Any:
        y, state = pj.lstm(params, x, state)
        return state, y

    def by_segments(params: Params, x: Any, state: Any) -> Any:
        state, y = jax.lax.scan(lambda state, x: segment(params, state, x), state, x.reshape(3, 2, 3, 4))
        return y.reshape(6, 3, 8), state

    def gradients(function: Callable[..., Any]) -> Any:
        outputs, backward = jax.vjp(function, case.params, case.x, case.state)
        return outputs, backward(case.gradients)

    one, two = jax.jit(lambda: gradients(whole))(), jax.jit(lambda: gradients(by_segments))()
    jax.tree.map(lambda a, b: assert_close(a, b, 1e-12), one, two)


def test_a_backward_function_runs_twice() -> None:
    case = Case("gru", layers=1)
    outputs, backward = jax.vjp(lambda params: pj.gru(params, case.x, bidirectional=True)[0], case.params)
    first, second = backward(outputs), backward(outputs)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), first, second)


def test_donated_buffers() -> None:
    case = Case("gru", "float32", layers=1, bidirectional=False)

    def update(params: Params, x: Any) -> Params:
        grads = jax.grad(lambda params: pj.gru(params, x)[0].sum())(params)
        return jax.tree.map(lambda value, grad: value - grad, params, grads)

    wanted = jax.jit(update)(case.params, case.x)
    donated = jax.tree.map(jnp.copy, case.params)
    found = jax.jit(update, donate_argnums=0)(donated, case.x)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(donated))
    jax.tree.map(lambda a, b: assert_close(a, b, 1e-6), found, wanted)


def test_two_devices() -> None:
    case = Case("lstm", layers=1, bidirectional=False, batch=4)
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices("cpu")[:2], axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec

    def loss(params: Params, x: Any) -> Any:
        return (pj.lstm(params, x)[0] ** 2).sum()

    def sharded(params: Params, x: Any) -> Any:
        specs = {"in_specs": (spec(), spec(None, "data")), "out_specs": spec()}
        return jax.shard_map(lambda *given: jax.lax.psum(loss(*given), "data"), mesh=mesh, **specs)(params, x)

    found, wanted = (jax.jit(jax.value_and_grad(function))(case.params, case.x) for function in (sharded, loss))
    jax.tree.map(lambda a, b: assert_close(a, b, 1e-12), found, wanted)

    def of_shard(params: Params, x: Any) -> Any:  # gradients in each shard
        return jax.lax.psum(jax.grad(loss)(jax.lax.pcast(params, "data", to="varying"), x), "data")

    specs = {"in_specs": (spec(), spec(None, "data")), "out_specs": spec()}
    grads = jax.jit(jax.shard_map(of_shard, mesh=mesh, **specs))(case.params, case.x)
    jax.tree.map(lambda a, b: assert_close(a, b, 1e-12), grads, wanted[1])


def test_only_wanted_gradients_are_computed() -> None:
    case = Case("gru", layers=1, bidirectional=False)

    def loss(x: Any, params: Params) -> Any:
        return pj.gru(params, x)[0].sum()

    weights = sum(value.size for value in case.params[0].values())
    for arguments, has_weights in ((0, False), ((0, 1), True)):
        text = str(jax.make_jaxpr(jax.grad(loss, arguments))(case.x, case.params))
        zeros = re.search(rf":f64\[{weights}\] = broadcast_in_dim", text)  # which gradients are added to
        assert (zeros is not None) == has_weights


def test_init_params() -> None:
    params = pj.init_params(jax.random.key(0), "lstm", 4, 6, num_layers=2, bidirectional=True, proj_size=5)
    shapes = [{name: value.shape for name, value in one.items()} for one in params]
    first = {"weight_ih": (24, 4), "weight_hh": (24, 5), "bias_ih": (24,), "bias_hh": (24,), "weight_hr": (5, 6)}
    assert shapes == 2 * [first] + 2 * [first | {"weight_ih": (24, 10)}]
    values = np.concatenate([np.ravel(value) for one in params for value in one.values()])
    assert np.abs(values).max() <= 6**-0.5
    assert abs(values.std() - (6 * 3) ** -0.5) < 0.02
    assert "bias_ih" not in pj.init_params(jax.random.key(0), "gru", 4, 6, bias=False, heads=2)[0]
    with pytest.raises(ValueError, match="heads is 4; it must divide hidden_size, 6"):
        pj.init_params(jax.random.key(0), "gru", 4, 6, heads=4)


GRU = {"weight_ih": np.zeros((24, 4)), "weight_hh": np.zeros((24, 8))}


@pytest.mark.parametrize(
    ("params", "x", "options", "error", "message"),
    [
        ([GRU], (5, 4), {}, ValueError, r"x has shape \(5, 4\); it must be \(T, N, I\)"),
        ([GRU], (5, 0, 4), {}, ValueError, r"x has shape \(5, 0, 4\)"),
        ([GRU], "int32", {}, TypeError, "x has dtype int32; layers take float32"),
        ([], (5, 3, 4), {}, ValueError, "params has 0 entries; it must be a list with one for each layer"),
        ([GRU], (5, 3, 4), {"bidirectional": True}, ValueError, "1 entries; .* layer and direction"),
        (
            [{"weight_ih": GRU["weight_ih"]}],
            (5, 3, 4),
            {},
            ValueError,
            r"params\[0\] has no weight_hh; it has weight_ih",
        ),
        (
            [GRU | {"bias": np.zeros(24)}],
            (5, 3, 4),
            {},
            ValueError,
            r"params\[0\] has weight_ih, weight_hh, bias; it must",
        ),
        ([GRU], (5, 3, 6), {}, ValueError, r"params\[0\]\['weight_ih'\] has shape \(24, 4\); it must be \(24, 6\)"),
        (
            [GRU, GRU],
            (5, 3, 4),
            {},
            ValueError,
            r"params\[1\]\['weight_ih'\] has shape \(24, 4\); it must be \(24, 8\)",
        ),
        ([GRU], "float32", {}, TypeError, r"params\[0\]\['weight_ih'\] has dtype float64; it must be float32"),
        (
            [GRU],
            (5, 3, 4),
            {"state": np.zeros((1, 2, 8))},
            ValueError,
            r"state has shape \(1, 2, 8\); it must be \(1, 3, 8\)",
        ),
        ([GRU], (5, 3, 4), {"reset": np.zeros((5, 3))}, TypeError, "reset has dtype float64; it must be bool"),
        ([GRU], (5, 3, 4), {"reset_state": np.zeros((1, 3, 8))}, ValueError, "reset_state is given, but reset"),
        ([GRU], (5, 3, 4), {"lengths": np.zeros(3)}, ValueError, r"lengths is float64 \(3,\); it must be integers"),
        ([GRU], (5, 3, 4), {"zoneout": 1.5}, ValueError, "zoneout is 1.5; it must lie between 0 and 1"),
        ([GRU], (5, 3, 4), {"dropout": 1}, ValueError, "dropout is 1; it must be at least 0 and less than 1"),
        ([GRU], (5, 3, 4), {"dropout": 0.5}, ValueError, "dropout is 0.5 and key is None"),
    ],
)
def test_errors(params: Any, x: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    x = jnp.zeros((5, 3, 4), x) if isinstance(x, str) else jnp.zeros(x)
    with pytest.raises(error, match=message):
        pj.gru(params, x, **options)


def test_the_librarys_refusals() -> None:
    params = draw_params(np.random.default_rng(0), "lstm", proj_size=3, dtype="float32")
    with pytest.raises(pj.NotSupportedError, match="projection"):
        pj.lstm(params, jnp.zeros((5, 3, 4), "float32"), recurrent_mask=jnp.ones((1, 3, 8), "float32"))


def test_forward_mode_is_refused() -> None:
    case = Case("gru", layers=1, bidirectional=False)
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(lambda x: pj.gru(case.params, x)[0], (case.x,), (case.x,))


def test_a_build_without_jaxlib_says_so(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ImportError, match="built without its part for JAX: install jaxlib"):
        _library._register(tmp_path / "libprnn_jax.so")


def test_handlers_newer_than_jaxlib_are_refused(tmp_path: pathlib.Path) -> None:
    header = tmp_path / "xla/ffi/api/c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 1\n")
    _library._check_version(1, tmp_path)
    with pytest.raises(ImportError, match=r"newer jaxlib \(XLA FFI 0.3\) than the installed one \(0.1\)"):
        _library._check_version(3, tmp_path)


def test_gpus_that_no_plan_has_run_on() -> None:
    rnn = _C.Rnn(_C.LSTM, _C.FLOAT, 64, 1, 64, False)
    with pytest.warns(UserWarning, match=r"not been run on a GPU like this \(A10\).*prnn selftest"):
        _library._warn_of_unproven(rnn.query_gpu("A10", 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _library._warn_of_unproven(rnn.query_gpu("H200", 1))


def test_imports() -> None:
    program = """
import sys, prnn.jax
assert "torch" not in sys.modules
import prnn
assert prnn.__version__ and not hasattr(prnn, "lstm") and "torch" not in sys.modules
print(prnn.nn.LSTM(3, 4), prnn.CTCLoss())
from prnn.explain import Explanation
from prnn import Transducer
assert callable(prnn.convert) and callable(prnn.explain)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "prnn.nn.LSTM(3, 4) CTCLoss(blank=0, reduction='mean')\n", done.stderr
    program = """
import prnn.jax
from prnn.explain import Explanation
from prnn.convert import convert_back
assert callable(prnn.convert) and callable(prnn.explain)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    subprocess.run([sys.executable, "-c", "import sys, prnn; assert 'jax' not in sys.modules"], check=True)

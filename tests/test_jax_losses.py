"""The losses of prnn.jax and its greedy search on the CPU: against enumerated paths and a written-out search, under
jax's transformations, and errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from jax_case import TOLERANCE, as_torch, assert_close, draw_params, jax, jnp, on_cpu
from reference import durations as duration_reference
from reference import lattice, transducer_search

import prnn.jax as pj

__all__ = ["on_cpu"]

FRAMES, LENGTHS = np.asarray([3, 2, 3]), np.asarray([2, 1, 0])  # of 3 sequences, at most 4 frames and 2 symbols
TARGETS = np.asarray([[1, 3], [2, 9], [7, -1]])  # padded with anything
DURATIONS = (0, 1, 2)


def check(
    loss: Callable[..., Any],
    written: Callable[[list[torch.Tensor], int], torch.Tensor],
    arrays: list[Any],
    tolerance: float = 1e-10,
) -> None:
    """Costs and gradients of a weighted sum of them. written: the cost of a sequence, of the arrays in float64."""
    weights = np.asarray([1.0, -0.5, 2.0])

    @jax.jit
    def run(arrays: list[Any]) -> Any:
        costs, backward = jax.vjp(lambda arrays: loss(*arrays, TARGETS, FRAMES, LENGTHS), arrays)
        return costs, backward(jnp.asarray(weights, costs.dtype))[0]

    costs, gradients = run(arrays)
    leaves = [as_torch(array).requires_grad_() for array in arrays]
    wanted = torch.stack([written(leaves, n) for n in range(3)])
    wanted_gradients = torch.autograd.grad((wanted * torch.tensor(weights)).sum(), leaves)
    assert_close(costs, wanted.detach(), tolerance, "costs")
    for place, (one, two) in enumerate(zip(gradients, wanted_gradients, strict=True)):
        assert_close(one, two, 10 * tolerance, f"gradient {place}")


def targets_of(n: int) -> list[int]:
    return [int(symbol) for symbol in TARGETS[n, : LENGTHS[n]]]


def ctc_cost(arrays: list[torch.Tensor], n: int) -> torch.Tensor:
    return lattice.ctc_cost(arrays[0][n, : FRAMES[n]].log_softmax(-1), targets_of(n), 0)


def rnnt_cost(arrays: list[torch.Tensor], n: int) -> torch.Tensor:
    logits = arrays[0][n, : FRAMES[n], : LENGTHS[n] + 1]
    return lattice.rnnt_cost(logits.log_softmax(-1), targets_of(n), 4)


def tdt_cost(arrays: list[torch.Tensor], n: int) -> torch.Tensor:
    logits = arrays[0][n, : FRAMES[n], : LENGTHS[n] + 1]
    tokens, durations = logits[..., :5], logits[..., 5:]
    arcs = duration_reference.tdt_arcs(tokens, durations, targets_of(n), 4, list(DURATIONS), 0.05)
    rnnt = lattice.rnnt_cost(tokens.log_softmax(-1), targets_of(n), 4)
    return 0.9 * duration_reference.recursive_cost(arcs) + 0.1 * rnnt


def joined(arrays: list[torch.Tensor]) -> list[torch.Tensor]:
    encoder, predictor, weight, bias = arrays
    return [torch.tanh(encoder[:, :, None] + predictor[:, None]) @ weight.T + bias]


def tdt(*arguments: Any) -> Any:
    return pj.tdt_loss(*arguments, -1, DURATIONS, sigma=0.05, omega=0.1)


def joint_tdt(*arguments: Any) -> Any:
    return pj.joint_tdt_loss(*arguments, -1, DURATIONS, sigma=0.05, omega=0.1)


@pytest.mark.parametrize(
    ("loss", "written", "shape"),
    [(pj.ctc_loss, ctc_cost, (3, 4, 4)), (pj.rnnt_loss, rnnt_cost, (3, 4, 3, 5)), (tdt, tdt_cost, (3, 4, 3, 8))],
)
def test_losses(loss: Any, written: Any, shape: tuple[int, ...]) -> None:
    logits = np.random.default_rng(0).standard_normal(shape)
    check(loss, written, [jnp.asarray(logits)])
    check(loss, written, [jnp.asarray(logits, "bfloat16")], 3e-3)


@pytest.mark.parametrize(("loss", "written", "rows"), [(pj.joint_rnnt_loss, rnnt_cost, 5), (joint_tdt, tdt_cost, 8)])
def test_joint_losses(loss: Any, written: Any, rows: int) -> None:
    draw = np.random.default_rng(0)
    arrays = [jnp.asarray(draw.standard_normal(shape)) for shape in ((3, 4, 6), (3, 3, 6), (rows, 6), (rows,))]
    check(loss, lambda arrays, n: written(joined(arrays), n), arrays)


def test_padding_of_joint_losses_may_hold_anything() -> None:
    draw = np.random.default_rng(0)
    encoder, predictor, weight, bias = (
        jnp.asarray(draw.standard_normal(shape)) for shape in ((3, 4, 6), (3, 3, 6), (5, 6), (5,))
    )
    encoder, predictor = encoder.at[:, 3].set(jnp.nan), predictor.at[2, 1:].set(jnp.inf)

    def loss(*arrays: Any) -> Any:
        return pj.joint_rnnt_loss(*arrays, TARGETS, FRAMES, LENGTHS).sum()

    gradients = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(encoder, predictor, weight, bias)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_losses_under_vmap_and_scan() -> None:
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 4, 4)))

    def loss(logits: Any) -> Any:
        return pj.ctc_loss(logits, TARGETS % 4, FRAMES, LENGTHS, zero_infinity=True).sum()

    def total(logits: Any) -> Any:
        return jax.lax.scan(lambda sum, one: (sum + loss(one), None), 0.0, logits)[0]

    one_by_one = jnp.stack([jax.jit(jax.grad(loss))(one) for one in logits])
    assert_close(jax.jit(jax.vmap(jax.grad(loss)))(logits), one_by_one, 1e-14)
    assert_close(jax.jit(jax.grad(total))(logits), one_by_one, 1e-14)


def search(predictor: str, durations: tuple[int, ...], dtype: str) -> tuple[dict[str, Any], Any]:
    draw = np.random.default_rng(1)

    def random(*shape: int) -> Any:
        return jnp.asarray(1.5 * draw.standard_normal(shape), dtype)

    params: dict[str, Any] = {
        "embedding": random(2, 6, 8) if predictor == "stateless" else random(6, 4),
        "projection": {"weight": random(7, 8), "bias": random(7)},
        "output": {"weight": random(6 + len(durations), 7), "bias": random(6 + len(durations))},
        "encoder": {"weight": random(7, 5)},
    }
    if predictor != "stateless":
        params["layers"] = draw_params(draw, predictor, layers=2, dtype=dtype)
    return params, random(2, 9, 5)


@pytest.mark.parametrize(
    ("predictor", "durations", "dtype"),
    [("lstm", (), "float64"), ("gru", (0, 1, 3), "float64"), ("stateless", (0, 1, 2), "float32")],
)
def test_greedy_search(predictor: str, durations: tuple[int, ...], dtype: str) -> None:
    params, frames = search(predictor, durations, dtype)
    options: dict[str, Any] = {"predictor": predictor, "blank": 0, "durations": durations, "max_symbols": 3}
    lengths = np.asarray([9, 5])
    run = jax.jit(lambda params, frames: pj.greedy_search(params, frames, lengths, **options))
    found = run(params, frames)
    step = jax.jit(getattr(pj, predictor, None) or (lambda layers, x, state: (x, state)))

    def predict(symbol: int, state: Any) -> Any:
        if predictor == "stateless":
            context = [*(state or [0, 0]), symbol][-2:]
            return sum(params["embedding"][place, one] for place, one in enumerate(context)), context
        if state is None:
            zeros = jnp.zeros((2, 1, 8), dtype)
            state = (zeros, zeros) if predictor == "lstm" else zeros
        y, state = step(params["layers"], params["embedding"][symbol][None, None], state)
        return y[0, 0], state

    def join(frame: torch.Tensor, out: Any) -> torch.Tensor:
        weights = [as_torch(params[name]["weight"]) for name in ("encoder", "projection", "output")]
        hidden = weights[0] @ frame + weights[1] @ as_torch(out) + as_torch(params["projection"]["bias"])
        return weights[2] @ hidden.tanh() + as_torch(params["output"]["bias"])

    for n in range(2):
        wanted = transducer_search.greedy(
            as_torch(frames)[n, : lengths[n]], predict, join, 0, durations, options["max_symbols"]
        )
        count = int(found.counts[n])
        assert np.asarray(found.symbols)[n, :count].tolist() == wanted.symbols
        assert np.asarray(found.frames)[n, :count].tolist() == wanted.frames
        assert not np.asarray(found.symbols)[n, count:].any()
        tolerance = TOLERANCE[dtype]
        assert_close(found.log_probs[n, :count], wanted.log_probs, tolerance)
        assert_close(found.confidences[n, :count], wanted.confidences, tolerance)
        assert_close(found.scores[n], wanted.score, tolerance)
        assert found.durations is None or np.asarray(found.durations)[n, :count].tolist() == wanted.durations
    assert int(found.counts.max()) > 2
    with jax.enable_x64(False):
        narrow = run(*jax.tree.map(lambda value: value.astype("float32"), (params, frames)))
    np.testing.assert_array_equal(narrow.symbols, found.symbols)


LOGITS = np.zeros((3, 4, 3, 5))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pj.ctc_loss(LOGITS, TARGETS, FRAMES, LENGTHS), ValueError, r"it must be \(N, T, V\), each at least 1"),
        (lambda: pj.rnnt_loss(LOGITS.astype(int), TARGETS, FRAMES, LENGTHS), TypeError, "logits has dtype int64"),
        (lambda: pj.rnnt_loss(LOGITS, TARGETS[:, :1], FRAMES, LENGTHS), ValueError, r"\(3, 1\); it must be \(3, 2\)"),
        (lambda: pj.rnnt_loss(LOGITS, TARGETS, FRAMES / 1, LENGTHS), TypeError, "logit_lengths has dtype float64"),
        (lambda: pj.rnnt_loss(LOGITS, TARGETS, FRAMES, LENGTHS, 5), ValueError, "blank is 5; it must be -5 to 4"),
        (lambda: pj.rnnt_loss(LOGITS, TARGETS, FRAMES, LENGTHS, rnnt_type="free"), ValueError, "rnnt_type is 'free'"),
        (lambda: pj.tdt_loss(LOGITS, TARGETS, FRAMES, LENGTHS, -1, range(5)), ValueError, "leave none for tokens"),
        (lambda: pj.tdt_loss(LOGITS, TARGETS, FRAMES, LENGTHS, -1, (0, 0)), ValueError, "durations"),
        (
            lambda: pj.greedy_search(*search("gru", (), "float64"), FRAMES, predictor="lstm", blank=0),
            ValueError,
            "shape",
        ),
        (lambda: pj.greedy_search({}, LOGITS, FRAMES, predictor="rnn", blank=0), ValueError, "predictor is 'rnn'"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_symbol_out_of_range_ends_the_program() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="targets of sequence 1 hold 9 at position 0"):
        pj.rnnt_loss(LOGITS, np.asarray([[1, 3], [9, 2], [1, 1]]), FRAMES, LENGTHS).block_until_ready()

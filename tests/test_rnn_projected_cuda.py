"""LSTMs with a projection whose two recurrent matrices the kernels keep apart, against the float64 reference."""

import ctypes

import capi
import pytest
import torch
from reference import rnn as reference
from rnn_case import OUTPUTS
from test_rnn_cuda import (
    TYPES,
    CudaCase,
    assert_results,
    check_calls_stay_within_workspace_and_reserve_space,
    why_not,
)
from test_rnn_proj_cuda import check_graph_of_a_training_step, check_tf32_where_it_is_allowed
from test_rnn_query import Info

import prnn

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

# H and P: 24 or 32 units a block in 16 bits, 16 to 32 in float; odd numbers, more row tiles than blocks, the largest.
SIZES = {
    torch.float32: [(1700, 300), (2048, 640), (1801, 33), (3000, 130), (4000, 68)],
    torch.float16: [(2560, 640), (2501, 37), (2600, 1000), (4096, 512), (4224, 130)],
}
SIZES[torch.bfloat16] = SIZES[torch.float16]
by_size = pytest.mark.parametrize(
    ("dtype", "hidden", "projection"),
    [(dtype, *size) for dtype in TYPES.values() for size in SIZES[dtype]],
    ids=str,
)


def case_of(
    hidden: int, projection: int, batch_sizes: list[int], dtype: torch.dtype, layers: int = 1, directions: int = 1
) -> CudaCase:
    stack = reference.Stack(reference.LSTM, 8, hidden, layers, directions, projection=projection)
    case = CudaCase(stack, batch_sizes, dtype)
    info = Info()
    capi.check(
        "QueryRNN",
        handle=case.handle.pointer,
        rnnDesc=case.rnn.pointer,
        xDesc=case.x_descs[0].pointer,
        info=ctypes.byref(info),
    )
    assert (info.forwardEngine, info.backwardEngine) == (b"projected", b"projected"), info.reason
    return case


@by_size
@pytest.mark.parametrize("batch_sizes", [[8] * 4, [1] * 5, [11, 9, 3, 2, 1]], ids=str)
def test_training_step(dtype: torch.dtype, hidden: int, projection: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(1)
    case = case_of(hidden, projection, batch_sizes, dtype)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("batch_sizes", [[3] * 4, [20, 9, 9, 1], [40, 33, 2]], ids=str)
@pytest.mark.parametrize(("layers", "directions"), [(2, 1), (1, 2), (2, 2)])
def test_stacks_and_directions(layers: int, directions: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    hidden = 1800 if dtype == torch.float32 else 2500
    case = case_of(hidden, 100, batch_sizes, dtype, layers, directions)
    case.train()
    assert_results(case)


@pytest.mark.parametrize(("hidden", "projection"), [(3072, 1024), (4096, 1024), (2560, 1000)])
def test_the_largest_layers(hidden: int, projection: int) -> None:
    """More weights in shared memory than the kernels' registers hold."""
    torch.manual_seed(3)
    case = case_of(hidden, projection, [5, 5, 2], torch.float16)
    case.train()
    assert_results(case)


def test_biases_over_many_timesteps() -> None:
    torch.manual_seed(4)
    case = case_of(1700, 40, [2] * 70, torch.float32)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_no_states_are_zero_states(dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    case = case_of(2560, 64, [9, 9, 4], dtype)
    for name in ("hx", "cx", "dhy", "dcy"):
        case.data[name].zero_()
    case.check("RNNForwardTraining", hx=None, cx=None, hy=None, cy=None)
    case.check("RNNBackwardData", hx=None, cx=None, dhy=None, dcy=None, dhx=None, dcx=None)
    case.check("RNNBackwardWeights", hx=None)
    assert_results(case, ("y", "dx", "dw"))


@pytest.mark.parametrize("batch_sizes", [[8] * 30 + [1] * 3, [26, 20, 20, 7]], ids=str)
def test_the_same_bits_every_time_and_in_inference(batch_sizes: list[int]) -> None:
    torch.manual_seed(6)
    case = case_of(2560, 640, batch_sizes, torch.float16)
    case.train()
    first = case.results()
    case.data["dw"].zero_()
    case.train()
    assert all(torch.equal(case.data[name], first[name]) for name in OUTPUTS)
    for name in ("y", "hy", "cy"):
        case.data[name].fill_(case.UNTOUCHED)
    case.check("RNNForwardInference")
    assert all(torch.equal(case.data[name], first[name]) for name in ("y", "hy", "cy"))


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("batch_sizes", [[3] * 3, [40, 33, 2]], ids=str)
def test_calls_stay_within_workspace_and_reserve_space(batch_sizes: list[int], dtype: torch.dtype) -> None:
    case = case_of(2500, 100, batch_sizes, dtype, 2, 2)
    check_calls_stay_within_workspace_and_reserve_space(case)


def test_accuracy_over_many_timesteps() -> None:
    """As accurate as with merged matrices (test_rnn_proj_cuda.py)."""
    torch.manual_seed(7)
    for dtype, hidden, most in ((torch.float32, 2048, 1e-6), (torch.float16, 2560, 4e-4), (torch.bfloat16, 2560, 3e-3)):
        case = case_of(hidden, 512, [4] * 64, dtype)
        case.check("RNNForwardTraining")
        expected = case.expected()["y"]
        error = ((case.data["y"].double() - expected).norm() / expected.norm()).item()
        assert error < most, f"{dtype}: {error:.2e}"


def test_tf32_where_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(8)
    module = prnn.nn.LSTM(64, 2048, proj_size=640, device="cuda", backend="persistent")
    check_tf32_where_it_is_allowed(module, torch.randn(8, 6, 64, device="cuda"), monkeypatch)


def test_gradients_in_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    torch.manual_seed(9)
    for hidden in (1700, 2500, 3300):
        gradients = []
        module = prnn.nn.LSTM(16, hidden, proj_size=100, device="cuda", backend="persistent")
        x = torch.randn(5, 3, 16, device="cuda")
        for dtype, device in ((torch.float64, "cpu"), (torch.float32, "cuda")):
            module.to(device, dtype)
            leaf = x.to(device, dtype, copy=True).requires_grad_()
            output, (hy, cy) = module(leaf)
            found = torch.autograd.grad((output**2).sum() + hy.sum() + (cy**2).sum(), [leaf, *module.parameters()])
            gradients.append([gradient.cpu().double() for gradient in found])
        for expected, mine in zip(*gradients, strict=True):
            assert (mine - expected).norm() < 3e-3 * expected.norm()


def test_graph_of_a_training_step() -> None:
    torch.manual_seed(10)
    module = prnn.nn.LSTM(64, 2560, 2, proj_size=64, device="cuda", dtype=torch.float16, backend="persistent")
    check_graph_of_a_training_step(
        module, torch.randn(12, 8, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["x", "w", "hx", "dy"])
def test_nan_comes_out_and_nothing_hangs(name: str, value: float) -> None:
    torch.manual_seed(11)
    for hidden, batch, dtype in ((2560, 1, torch.float16), (2500, 12, torch.bfloat16), (1800, 3, torch.float32)):
        case = case_of(hidden, 64, [batch] * 4, dtype)
        case.data[name].view(-1)[5] = value
        case.train()
        torch.cuda.synchronize()
        assert not all(torch.isfinite(case.data[name]).all() for name in OUTPUTS)

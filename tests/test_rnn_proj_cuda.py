"""LSTMs with a projection on the resident kernels, against the float64 reference, on the GPU."""

import itertools
import warnings

import pytest
import torch
from reference import rnn as reference
from rnn_case import OUTPUTS
from test_nn_cuda import graph_of, results_of
from test_rnn_cuda import (
    TYPES,
    CudaCase,
    SplitKCase,
    WgmmaCase,
    assert_results,
    check_calls_stay_within_workspace_and_reserve_space,
    why_not,
)

import prnn
from prnn._ops.rnn import Config

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

by_type = pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)


def stack_of(
    hidden: int, projection: int, layers: int = 1, directions: int = 1, input: int = 24, skip: bool = False
) -> reference.Stack:
    return reference.Stack(reference.LSTM, hidden if skip else input, hidden, layers, directions, skip, projection)


@by_type
@pytest.mark.parametrize("batch_sizes", [[8] * 5, [9, 9, 7, 5, 5, 1], [6], [33] * 3], ids=str)
@pytest.mark.parametrize(("layers", "directions", "skip"), [(1, 1, False), (3, 1, False), (2, 2, False), (1, 2, True)])
@pytest.mark.parametrize(("hidden", "projection"), [(40, 4), (40, 17), (40, 39), (64, 32)])
def test_training_step(
    hidden: int, projection: int, layers: int, directions: int, skip: bool, batch_sizes: list[int], dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    case = CudaCase(stack_of(hidden, projection, layers, directions, skip=skip), batch_sizes, dtype)
    case.train()
    assert_results(case)


def test_a_projection_to_one_number() -> None:
    torch.manual_seed(2)
    case = CudaCase(stack_of(72, 1, 2, 2), [40, 40, 30, 7, 7], torch.float32)
    case.train()
    assert_results(case, slack=2)


@by_type
@pytest.mark.parametrize("batch_sizes", [[1] * 4, [4] * 4, [16] * 4, [64] * 4, [130, 70, 9, 9, 2]], ids=str)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(("hidden", "projection"), [(100, 50), (256, 128), (512, 100), (1000, 321), (1024, 512)])
def test_engines(hidden: int, projection: int, directions: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    """The sizes at which the engines take turns."""
    torch.manual_seed(3)
    case = CudaCase(stack_of(hidden, projection, 1, directions), batch_sizes, dtype)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("batch_sizes", [[4] * 3, [16, 16, 9], [40, 33, 2]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "bfloat16"])
@pytest.mark.parametrize(("hidden", "projection"), [(2048, 640), (2432, 1000)])
def test_large_layers(hidden: int, projection: int, dtype: torch.dtype, batch_sizes: list[int]) -> None:
    torch.manual_seed(4)
    case = CudaCase(stack_of(hidden, projection), batch_sizes, dtype)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("kind", [WgmmaCase, SplitKCase])
@pytest.mark.parametrize(
    ("hidden", "directions", "replicas", "batch_sizes"),
    [(264, 2, 1, [40, 33, 33, 2]), (512, 1, 2, [5] * 6), (1000, 1, 1, [23, 12, 11, 8, 8])],
    ids=str,
)
def test_wide_kernels_by_plan(
    kind: type[WgmmaCase], hidden: int, directions: int, replicas: int, batch_sizes: list[int]
) -> None:
    torch.manual_seed(5)
    if kind is SplitKCase and directions == 2:
        directions = 1
    case = kind(stack_of(hidden, hidden // 2, 1, directions), batch_sizes, torch.float16, replicas)
    case.train()
    assert_results(case)


@by_type
@pytest.mark.parametrize("hidden", [40, 512, 1024])
@pytest.mark.parametrize("skip", [False, True])
def test_no_states_are_zero_states(skip: bool, hidden: int, dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    case = CudaCase(stack_of(hidden, hidden // 2, 1, 2, skip=skip), [9, 9, 4], dtype)
    for name in ("hx", "cx", "dhy", "dcy"):
        case.data[name].zero_()
    case.check("RNNForwardTraining", hx=None, cx=None, hy=None, cy=None)
    case.check("RNNBackwardData", hx=None, cx=None, dhy=None, dcy=None, dhx=None, dcx=None)
    case.check("RNNBackwardWeights", hx=None)
    assert_results(case, ("y", "dx", "dw"))


@pytest.mark.parametrize(("hidden", "batch"), [(40, 3), (512, 8), (1024, 16), (1024, 64)])
def test_inference_is_the_forward_pass_of_training(hidden: int, batch: int) -> None:
    torch.manual_seed(7)
    case = CudaCase(stack_of(hidden, hidden // 2, 3), [batch] * 12, torch.float16)
    case.check("RNNForwardTraining")
    first = case.results()
    for name in ("y", "hy", "cy"):
        case.data[name].fill_(case.UNTOUCHED)
    case.check("RNNForwardInference")
    for name in ("y", "hy", "cy"):
        assert torch.equal(case.data[name], first[name]), name


@pytest.mark.parametrize(("hidden", "batch"), [(100, 3), (1024, 4), (1024, 64)])
def test_the_same_bits_every_time(hidden: int, batch: int) -> None:
    torch.manual_seed(8)
    case = CudaCase(stack_of(hidden, hidden // 2, 2), [batch] * 30 + [1] * 3, torch.float16)
    size = case.size("GetRNNTrainingReserveSize")  # which serves the data gradient a second time
    case.reserve = torch.empty(size, dtype=torch.uint8, device="cuda")
    case.train()
    first = case.results()
    for again in ((), ("RNNBackwardData",)):
        case.data["dw"].zero_()
        case.train()
        for name in again:
            case.check(name)
        for name in OUTPUTS:
            assert torch.equal(case.data[name], first[name]), name


@by_type
@pytest.mark.parametrize(
    ("hidden", "layers", "directions", "batch_sizes"),
    [(100, 1, 2, [5, 4, 4, 1]), (300, 3, 1, [20] * 4), (1024, 2, 1, [64] * 3), (1000, 1, 2, [40, 33, 2])],
    ids=str,
)
def test_calls_stay_within_workspace_and_reserve_space(
    hidden: int, layers: int, directions: int, batch_sizes: list[int], dtype: torch.dtype
) -> None:
    case = CudaCase(stack_of(hidden, hidden // 3, layers, directions), batch_sizes, dtype)
    check_calls_stay_within_workspace_and_reserve_space(case)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float32, 1e-6), (torch.float16, 4e-4), (torch.bfloat16, 3e-3)], ids=TYPES
)
def test_merging_the_matrices_costs_no_accuracy(dtype: torch.dtype, most: float) -> None:
    """128 timesteps of 1024 -> 512. Simulated with two rounded products a timestep: 2.95e-4 in half, 2.35e-3 in
    bfloat16."""
    torch.manual_seed(9)
    case = CudaCase(stack_of(1024, 512, input=512), [4] * 128, dtype)
    case.check("RNNForwardTraining")
    expected = case.expected()["y"]
    error = ((case.data["y"].double() - expected).norm() / expected.norm()).item()
    assert error < most, f"{error:.2e}"


def both_devices(**options: object) -> tuple[torch.nn.Module, torch.nn.Module]:
    cpu = prnn.nn.LSTM(24, 40, 2, proj_size=16, **options)
    gpu = prnn.nn.LSTM(24, 40, 2, proj_size=16, **options, device="cuda", backend="persistent")
    gpu.load_state_dict(cpu.state_dict())
    return cpu, gpu


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("lengths", [None, [9, 3, 12, 1]])
def test_modules(lengths: list[int] | None, bidirectional: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(10)
    modules = both_devices(bidirectional=bidirectional)
    x, h, c = torch.randn(12, 4, 24), torch.randn(2 << bidirectional, 4, 16), torch.randn(2 << bidirectional, 4, 40)
    results = []
    for module in modules:
        device = next(module.parameters()).device
        arguments = [tensor.to(device, copy=True).requires_grad_() for tensor in (x, h, c)]
        output, (hy, cy) = module(arguments[0], tuple(arguments[1:]), lengths=lengths)
        ((output * output).sum() + hy.sum() + (cy * cy).sum()).backward()
        leaves = (*arguments, *module.parameters())
        results.append([output, hy, cy, *(leaf.grad for leaf in leaves)])
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine.cpu(), expected.cpu(), atol=2e-4, rtol=1e-4)


def test_dropout_has_the_masks_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(11)
    modules = both_devices(dropout=0.5)
    x, seed = torch.randn(7, 5, 24), torch.tensor([123, 0])
    config = Config(prnn._C.LSTM, 40, 16, 2, False, 0.5, prnn._ops.rnn.BACKENDS["best"], False, False)
    results = []
    for module in modules:
        device = next(module.parameters()).device
        weights = module._packed_weights()
        call = torch.ops.prnn.rnn(
            x.to(device), None, None, weights, None, None, None, [], seed.to(device), None, *config, True
        )
        results.append([call[0], *torch.autograd.grad(call[0].sum(), list(module.parameters()))])
    for mine, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(mine.cpu(), expected.cpu(), atol=1e-4, rtol=1e-4)


def check_tf32_where_it_is_allowed(module: torch.nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = module.double().cpu()(x.double().cpu())[0]
    module.float().cuda()
    for allowed in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        error = ((module(x)[0].double().cpu() - expected).norm() / expected.norm()).item()
        assert (1e-5 < error < 2e-3) if allowed else (error < 1e-5)


def test_tf32_where_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(12)
    module = prnn.nn.LSTM(512, 512, proj_size=256, device="cuda", backend="persistent")
    check_tf32_where_it_is_allowed(module, torch.randn(8, 40, 512, device="cuda"), monkeypatch)


def check_graph_of_a_training_step(module: torch.nn.Module, x: torch.Tensor) -> None:
    graph, captured = graph_of(lambda: results_of(module, x))
    for _ in range(2):
        with torch.no_grad():
            x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(captured, results_of(module, x), strict=True))


def test_graph_of_a_training_step() -> None:
    torch.manual_seed(13)
    module = prnn.nn.LSTM(64, 256, 3, proj_size=64, device="cuda", dtype=torch.float16)
    check_graph_of_a_training_step(
        module, torch.randn(20, 8, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    )


def test_best_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prnn._ops._layer, "_told", set())
    module = prnn.nn.LSTM(24, 48, proj_size=24, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(torch.randn(3, 2, 24, device="cuda"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["x", "w", "hx"])
def test_nan_comes_out_and_nothing_hangs(name: str, value: float) -> None:
    torch.manual_seed(14)
    for (hidden, batch), dtype in itertools.product([(40, 1), (512, 3), (1024, 64)], [torch.float16, torch.float32]):
        case = CudaCase(stack_of(hidden, hidden // 2), [batch] * 5, dtype)
        case.data[name].view(-1)[5] = value
        case.train()
        torch.cuda.synchronize()

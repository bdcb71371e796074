"""prnn.nn.LayerNormLSTM, and prnn.nn.LSTM with masks, where torch's switch lets recurrent layers round to tf32: each
engine against torch operations in float64, with exact factors of the recurrent products and with rounded ones."""

import copy
import dataclasses

import pytest
import torch
from layer_norm_lstm_case import Case, call_layer, results
from test_layer_norm_lstm_cuda import KINDS, OPTIONS, engine_of
from test_rnn_cuda import why_not

import prnn
from prnn._ops.layer_norm_lstm_input import input_products

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

# Relative to the largest element of each result; the factors have errors of up to 2^-11.
TOLERANCE = 6e-3
# The output's error in norm: rounded factors do more to it, float32's sums less.
BORDER = 5e-6

Results = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def tf32(true_float32: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)


def error_in_norm(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def is_exact(case: Case) -> bool:
    """Whether float32's kernel is the faster one: of up to 4 sequences on each of an H200's 15 clusters."""
    return case.hidden <= 128 and case.batch <= 4 * 15


def check(case: Case) -> tuple[Results, Results]:
    """tf32's accuracy, and not float32's, where that costs more. The results, and those in float64."""
    ours, exact = results(case, torch.float32, "cuda", False), results(case, torch.float32, "cuda", True)
    assert ours.keys() == exact.keys()
    for name, expected in exact.items():
        error = ((ours[name] - expected).abs().max() / expected.abs().max().clamp_min(1e-3)).item()
        assert error <= TOLERANCE, f"{name} is off by {error:.2e} in {case}"
    if "H200" in torch.cuda.get_device_name():
        assert (error_in_norm(ours["y"], exact["y"]) <= BORDER) == is_exact(case)
    return ours, exact


def check_resident(case: Case) -> None:
    """Over two timesteps, factors rounded once each, to the nearest, explain the results; later, float32's sums have
    had some states rounded in another direction."""
    check(case)
    if is_exact(case):
        return
    case = dataclasses.replace(case, steps=2)
    ours, exact = check(case)
    rounded = results(case, torch.float32, "cuda", True, rounds_to_tf32=True)
    for name in ("y", "cy", "d x", "d c0"):
        if name in exact:
            assert error_in_norm(ours[name], rounded[name]) <= 0.5 * error_in_norm(ours[name], exact[name]), name


CLUSTER_SIZES = [
    (64, 1),
    (64, 70),
    (128, 9),
    (128, 61),
    (130, 3),
    (200, 40),
    (256, 1),
    (256, 130),
    (300, 20),
    (512, 1),
    (512, 9),
    (512, 57),
    (512, 64),
    (300, 100),
    (512, 112),
    (512, 113),
]
GRID_SIZES = [(513, 1), (770, 3), (1024, 12), (640, 16)]


@pytest.mark.parametrize("normalize", KINDS)
@pytest.mark.parametrize(("hidden", "batch"), [*CLUSTER_SIZES, *GRID_SIZES])
def test_resident_engines(hidden: int, batch: int, normalize: str) -> None:
    case = Case(6, batch, hidden, normalize)
    assert engine_of(case, torch.float32) == ("cluster" if hidden <= 512 else "grid")
    check_resident(case)


@pytest.mark.parametrize(("hidden", "batch"), [(640, 32), (1024, 32)])
def test_many_sequences_are_resident_without_normalisation(hidden: int, batch: int) -> None:
    case = Case(6, batch, hidden, "none")
    assert engine_of(case, torch.float32) == "grid"
    check_resident(case)


@pytest.mark.parametrize("normalize", KINDS)
@pytest.mark.parametrize(("hidden", "batch"), [(2100, 3), (1024, 64), (770, 33)])
def test_steps(hidden: int, batch: int, normalize: str) -> None:
    case = Case(6, batch, hidden, normalize)
    assert engine_of(case, torch.float32) == "steps"
    check(case)


@pytest.mark.parametrize("normalize", KINDS)
@pytest.mark.parametrize("hidden", [72, 132, 500, 530])
@OPTIONS
def test_options(options: dict[str, object], hidden: int, normalize: str) -> None:
    check_resident(Case(**{"steps": 7, "batch": 3, "hidden": hidden, "normalize": normalize, **options}))


@pytest.mark.parametrize("normalize", ["gates", "products"])
@pytest.mark.parametrize(("hidden", "batch"), [(300, 59), (512, 100)])
@OPTIONS
def test_options_of_two_column_tiles(options: dict[str, object], hidden: int, batch: int, normalize: str) -> None:
    check_resident(Case(**{"steps": 7, "batch": batch, "hidden": hidden, "normalize": normalize, **options}))


@pytest.mark.parametrize(("hidden", "batch"), [(160, 17), (512, 17), (1024, 17), (512, 110)])
def test_results_are_reproducible(hidden: int, batch: int) -> None:
    case = Case(20, batch, hidden, masks=True)
    first, second = (results(case, torch.float32, "cuda", False) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("hidden", [200, 600])
def test_a_nan_goes_through(hidden: int) -> None:
    """Also where words of states are their own flags."""
    case = Case(4, 3, hidden, "none")
    arrays = case.arrays(torch.float32, "cuda")
    arrays[0][1, 2] = torch.nan
    y = call_layer(*arrays, *case.numbers())[0]
    assert torch.isnan(y[1:, 2]).all()
    assert torch.isfinite(y[:, :2]).all()


def layers(hidden: int) -> list[torch.nn.Module]:
    masks = {"zoneout": 0.2, "recurrent_dropout": 0.1}
    return [prnn.nn.LayerNormLSTM(40, hidden, device="cuda"), prnn.nn.LSTM(40, hidden, device="cuda", **masks).eval()]


def gradients(module: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    output = module(x)[0]
    return [output.detach(), *torch.autograd.grad(output.square().sum(), [x, *module.parameters()])]


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("hidden", [256, 1024])
def test_layers_follow_torchs_switch(hidden: int, is_compiled: bool) -> None:
    """At each call, forward and backward."""
    for module in layers(hidden):
        x = torch.randn(8, 12, 40, device="cuda")
        exact = gradients(copy.deepcopy(module).double().cpu(), x.double().cpu())
        run = torch.compile(module, fullgraph=True, backend="aot_eager") if is_compiled else module
        for allowed in (True, False, True):
            torch.backends.cudnn.allow_tf32 = allowed
            found = gradients(run if is_compiled else module, x)
            for name, ours, expected in zip(["y", "x"], found, exact, strict=False):
                error = error_in_norm(ours.double().cpu(), expected)
                assert (BORDER < error < 2e-3) if allowed else (error < BORDER), f"{name} of {module}, {allowed=}"


@pytest.mark.parametrize("of_matmul", [False, True])
def test_products_of_the_input_follow_the_same_switch(of_matmul: bool, precision_of_products: None) -> None:
    """Not that of torch's matrix products."""
    torch.backends.cuda.matmul.allow_tf32 = of_matmul
    leaves = [torch.randn(8, 12, 300, device="cuda"), torch.randn(4 * 160, 300, device="cuda")]
    found = []
    for dtype, allowed in ((torch.float64, True), (torch.float32, True), (torch.float32, False)):
        torch.backends.cudnn.allow_tf32 = allowed
        input, weight = (leaf.to(dtype).requires_grad_() for leaf in leaves)
        x = input_products(input, weight)
        found.append([x, *torch.autograd.grad(x.square().sum(), [input, weight])])
    exact, rounded, float32 = ([result.double() for result in results] for results in found)
    for name, *of in zip(("x", "d input", "d weight"), exact, rounded, float32, strict=True):
        assert 5e-5 < error_in_norm(of[1], of[0]) < 2e-3, name
        assert error_in_norm(of[2], of[0]) < BORDER, name


def test_a_graph_keeps_the_switch_it_was_captured_with() -> None:
    for module in layers(256):
        x = torch.randn(8, 12, 40, device="cuda")
        with torch.no_grad():
            expected = module(x)[0]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output, _ = module(x)
            torch.backends.cudnn.allow_tf32 = False
            float32 = module(x)[0]
            graph.replay()
            torch.cuda.synchronize()
        assert torch.equal(output, expected)
        assert not torch.equal(output, float32)
        torch.backends.cudnn.allow_tf32 = True


def test_other_types_do_not_depend_on_the_switch() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        found = []
        for allowed in (True, False):
            torch.backends.cudnn.allow_tf32 = allowed
            found.append(results(Case(5, 3, 200), dtype, "cuda", False))
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_autocast_keeps_its_type() -> None:
    for module in layers(128):
        x = torch.randn(5, 3, 40, device="cuda")
        found = []
        for allowed in (True, False):
            torch.backends.cudnn.allow_tf32 = allowed
            with torch.autocast("cuda", dtype=torch.bfloat16):
                found.append(module(x)[0])
        assert found[0].dtype == torch.bfloat16
        assert torch.equal(*found)

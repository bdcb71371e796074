"""prnn.nn's modules on a GPU: against themselves in float64 on the CPU; autocast, torch.compile and lengths there."""

import copy
from typing import Any

import pytest
import torch
from nn_pairs import CELLS, Result, flat, make, make_pair, make_states, train_step

import prnn


def why_not() -> str:
    if not torch.cuda.is_available():
        return "no CUDA device"
    try:
        prnn._C.Handle.cuda()
    except (prnn.NotSupportedError, RuntimeError) as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of the norm
CUDA_CELLS = [cell for cell in CELLS if cell != "RNN_RELU"]  # at relu's kink rounding decides about a gradient


def on_gpu(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    return copy.deepcopy(module).to("cuda", dtype)


def moved(value: Any, dtype: torch.dtype) -> Any:
    """Tensors on the GPU, as leaves of their own."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cuda", dtype).requires_grad_()
    return None if value is None else tuple(moved(item, dtype) for item in value)


def assert_near(found: Result, expected: Result, dtype: torch.dtype) -> None:
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        error = ((found[name].double().cpu() - wanted).norm() / wanted.norm().clamp_min(1e-6)).item()
        assert error < TOLERANCE[dtype], f"{name}: relative error {error:.2e}"


@pytest.mark.parametrize("cell", CUDA_CELLS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True, "bias": False}])
@pytest.mark.parametrize("lengths", [None, [9, 3, 12, 1]])
def test_equals_float64_on_the_cpu(
    cell: str, dtype: torch.dtype, options: dict[str, Any], lengths: list[int] | None
) -> None:
    _, ours = make_pair(cell, 24, 40, **options)
    ours.to(dtype).double()  # the weights of both are then the same numbers
    x = torch.randn((4, 12, 24) if ours.batch_first else (12, 4, 24)).to(dtype).double().requires_grad_()
    states = make_states(ours, 4)
    for state in flat(states):
        state.data = state.data.to(dtype).double()
    expected = train_step(ours, dict(ours.named_parameters()), x, states, lengths=lengths)
    gpu = on_gpu(ours, dtype)
    found = train_step(gpu, dict(gpu.named_parameters()), moved(x, dtype), moved(states, dtype), lengths=lengths)
    assert_near(found, expected, dtype)


@pytest.mark.parametrize("cell", CUDA_CELLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(cell: str, dtype: torch.dtype) -> None:
    module = make(prnn.nn, cell, 24, 40, device="cuda")
    x = torch.randn(12, 4, 24, device="cuda")
    with torch.autocast("cuda", dtype=dtype):
        found = flat(module(x))
    assert all(tensor.dtype == dtype for tensor in found)
    for tensor, wanted in zip(found, flat(module(x)), strict=True):
        assert ((tensor.float() - wanted).norm() / wanted.norm()).item() < TOLERANCE[dtype]
    found[0].float().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in module.parameters())


def test_compile() -> None:
    module = prnn.nn.LSTM(24, 40, num_layers=2, device="cuda")
    torch.compiler.reset()
    run, parameters = torch.compile(module, fullgraph=True, backend="aot_eager"), dict(module.named_parameters())
    for steps in (12, 5, 30):
        x = torch.randn(steps, 4, 24, device="cuda", requires_grad=True)
        found, expected = train_step(run, parameters, x), train_step(module, parameters, x)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_dropout_follows_torchs_seed() -> None:
    module = prnn.nn.GRU(24, 40, num_layers=2, dropout=0.5, device="cuda")
    x = torch.randn(12, 4, 24, device="cuda")
    torch.manual_seed(1)
    first, other = module(x)[0], module(x)[0]
    torch.manual_seed(1)
    assert torch.equal(module(x)[0], first)
    assert not torch.equal(other, first)


def test_side_stream() -> None:
    module = prnn.nn.LSTM(24, 40, device="cuda")
    x = torch.randn(12, 4, 24, device="cuda")
    expected = module(x)[0]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = module(x)[0]
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(found, expected)


def test_mixed_devices_are_refused() -> None:
    module = prnn.nn.LSTM(24, 40, device="cuda")
    with pytest.raises(ValueError, match="input is on cpu, but the weights are on cuda:0"):
        module(torch.zeros(12, 4, 24))
    x = torch.zeros(12, 4, 24, device="cuda")
    with pytest.raises(ValueError, match=r"cx is on cpu, but input is on cuda:0"):
        module(x, (torch.zeros(1, 4, 40, device="cuda"), torch.zeros(1, 4, 40)))

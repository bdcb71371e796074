"""The resident kernels beside cuDNN in the same precision: how far from float64 each is.

A tenth more than cuDNN's error is allowed, and more only where factor() says so: there cuDNN is ahead. What was
measured, and why, is in docs/resident_kernels_measured.md, "Accuracy"."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from test_rnn_cuda import TOLERANCE, TYPES
from test_rnn_cudnn import why_no_cudnn

import prnn

pytestmark = [
    pytest.mark.skipif(bool(why_no_cudnn()), reason=f"needs a GPU and cuDNN: {why_no_cudnn()}"),
    pytest.mark.filterwarnings("ignore:RNN module weights are not part"),  # torch does not flatten bfloat16
]

STEPS_AND_BATCHES = {100: (1, 7, 33, 64), 1500: (7, 64)}
LONG_HIDDEN = (100, 1024)


class Errors(NamedTuple):
    """Errors of one output or gradient, relative to its norm."""

    name: str
    elements: int
    ours: float
    cudnn: float

    def allowed(self, factor: float) -> float:
        """`factor` times cuDNN's error, and five standard deviations of the ratio of two norms of rounding errors.

        The norm of n independent errors varies by 1 / sqrt(2 n) of itself: by chance alone one of two equally good
        results is further off than the other, by much if n is 4. Five, because thousands of norms are compared."""
        return self.cudnn * (factor + 5 / math.sqrt(self.elements))


def factor(cell: str, hidden: int, dtype: torch.dtype, name: str) -> float:
    if dtype == torch.float32 and hidden >= 512:  # cuBLAS's products: cuDNN has some added up in parts
        if cell == "LSTM" or name.startswith("dbias"):
            return 1.25
        return 1.8 if name in ("y", "hy", "dx") else 1.5
    if cell == "RNN" and dtype == torch.float16 and hidden <= 100 and name in ("dhx", "dweight_hh_l0"):
        return 1.25  # cuDNN has kernels of its own for few units
    return 1.1


@pytest.fixture(autouse=True)
def true_float32() -> Iterator[None]:
    # Not monkeypatch: these are no attributes of a module, and it cannot put them back.
    switches = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = False
    yield
    for switch, value in zip(switches, before, strict=True):
        switch.allow_tf32 = value


@pytest.fixture(autouse=True)
def memory_for_others() -> Iterator[None]:
    """The float64 layers take up to 12 GB, which several processes cannot keep on one GPU."""
    yield
    torch.cuda.empty_cache()


def train(module: torch.nn.Module, numbers: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Outputs and gradients of a step, in float64."""
    dtype = module.weight_hh_l0.dtype
    given = {name: tensor.to(dtype, copy=True) for name, tensor in numbers.items()}  # with gradients of their own
    states = [name for name in ("hx", "cx") if name in given]
    leaves = {name: given[name].requires_grad_() for name in ("x", *states)}
    y, last = module(leaves["x"], leaves["hx"] if len(states) == 1 else (leaves["hx"], leaves["cx"]))
    outputs = {"y": y} | dict(zip(("hy", "cy"), [last] if len(states) == 1 else last, strict=False))
    torch.autograd.backward(list(outputs.values()), [given[f"d{name}"] for name in outputs])
    gradients = {f"d{name}": leaf.grad for name, leaf in (leaves | dict(module.named_parameters())).items()}
    return {name: tensor.detach().double() for name, tensor in (outputs | gradients).items()}


def compare(cell: str, hidden: int, steps: int, batch: int, dtype: torch.dtype) -> list[Errors]:
    exact = getattr(torch.nn, cell)(hidden, hidden, device="cuda", dtype=torch.float64)
    weights = {name: tensor.to(dtype) for name, tensor in exact.state_dict().items()}
    shapes = {name: (steps, batch, hidden) for name in ("x", "dy")}
    shapes |= {name: (1, batch, hidden) for name in (("hx", "cx", "dhy", "dcy") if cell == "LSTM" else ("hx", "dhy"))}
    numbers = {name: torch.randn(shape, device="cuda").to(dtype) for name, shape in shapes.items()}
    found = []
    for module in (
        exact,
        getattr(prnn.nn, cell)(hidden, hidden, device="cuda", dtype=dtype, backend="persistent"),
        getattr(torch.nn, cell)(hidden, hidden, device="cuda", dtype=dtype),
    ):
        module.load_state_dict(weights)
        found.append(train(module, numbers))

    def error(result: torch.Tensor, wanted: torch.Tensor) -> float:
        return ((result - wanted).norm() / wanted.norm()).item()

    wanted, ours, cudnn = found
    return [
        Errors(name, tensor.numel(), error(ours[name], tensor), error(cudnn[name], tensor))
        for name, tensor in wanted.items()
    ]


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("hidden", [4, 100, 512, 1000, 1024])
@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
def test_errors_beside_cudnn(cell: str, hidden: int, dtype: torch.dtype) -> None:
    wrong = []
    for steps, batches in STEPS_AND_BATCHES.items():
        for batch in batches if steps == 100 or hidden in LONG_HIDDEN else ():
            for errors in compare(cell, hidden, steps, batch, dtype):
                allowed = errors.allowed(factor(cell, hidden, dtype, errors.name))
                if not errors.ours < min(allowed, TOLERANCE[dtype]):
                    text = f"{errors.ours:.2e}, cuDNN {errors.cudnn:.2e}, allowed {allowed:.2e}"
                    wrong.append(f"T={steps} N={batch} {errors.name} ({errors.elements} elements): {text}")
    assert not wrong, "\n".join(wrong)

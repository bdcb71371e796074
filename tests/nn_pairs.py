"""A prnn module beside torch's with the same weights, and a training step of either: what tests of prnn.nn share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

import prnn

CELLS = ("RNN", "RNN_RELU", "GRU", "LSTM")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}

Result = dict[str, Tensor]


def make(namespace: Any, cell: str, *args: Any, **options: Any) -> torch.nn.Module:
    """The module of torch.nn or prnn.nn for a cell, "RNN_RELU" being an RNN with nonlinearity="relu"."""
    if cell == "RNN_RELU":
        options["nonlinearity"] = "relu"
    return getattr(namespace, cell.removesuffix("_RELU"))(*args, **options)


def make_pair(cell: str, *args: Any, **options: Any) -> tuple[torch.nn.Module, torch.nn.Module]:
    """(torch's, prnn's), float64 unless said, the same weights."""
    options.setdefault("dtype", torch.float64)
    theirs, ours = make(torch.nn, cell, *args, **options), make(prnn.nn, cell, *args, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def make_states(module: torch.nn.Module, batch: int | None, requires_grad: bool = True) -> Any:
    """Random hx for the module, or (hx, cx)."""
    dtype = next(module.parameters()).dtype
    count = module.num_layers * (2 if module.bidirectional else 1)
    size = module.proj_size or module.hidden_size
    shapes = [(count, size), (count, module.hidden_size)]
    if batch is not None:
        shapes = [(count, batch, width) for _, width in shapes]
    states = [torch.randn(shape, dtype=dtype, requires_grad=requires_grad) for shape in shapes]
    return tuple(states) if module.mode == "LSTM" else states[0]


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, PackedSequence):
        return [value.data]
    return [value] if isinstance(value, Tensor) else [tensor for item in value for tensor in flat(item)]


def train_step(
    module: Callable[..., Any], parameters: dict[str, Tensor], input: Any, states: Any = None, **options: Any
) -> Result:
    """Outputs, and the gradients of inputs and parameters of a fixed random function of all outputs."""
    leaves = {"input": input.data if isinstance(input, PackedSequence) else input, **parameters}
    leaves |= {f"states{index}": state for index, state in enumerate(flat(states) if states is not None else [])}
    leaves = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    outputs = flat(module(input, states, **options))
    generator = torch.Generator().manual_seed(1)
    # Quarters, which every type holds exactly.
    weights = [torch.randint(-8, 9, tensor.shape, generator=generator).to(tensor) / 4 for tensor in outputs]
    loss = sum((weight * tensor).sum() for weight, tensor in zip(weights, outputs, strict=True))
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    result = {f"output{index}": tensor.detach() for index, tensor in enumerate(outputs)}
    return result | {f"grad of {name}": grad for name, grad in zip(leaves, grads, strict=True)}


def assert_same(ours: Result, theirs: Result) -> None:
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        tolerance = TOLERANCE[expected.dtype]
        torch.testing.assert_close(
            ours[name], expected, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def compare(theirs: torch.nn.Module, ours: torch.nn.Module, input: Any, states: Any = None) -> None:
    """One training step of both modules gives the same outputs and gradients."""
    expected = train_step(theirs, dict(theirs.named_parameters()), input, states)
    assert_same(train_step(ours, dict(ours.named_parameters()), input, states), expected)

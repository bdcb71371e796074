"""prnn.distributed between two processes on the CPU."""

import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prnn
from prnn.distributed import GradientMean


def run_processes(part: Callable[..., Any], tmp_path: pathlib.Path) -> list[Any]:
    """What part(rank, folder) returns in each of two processes."""
    torch.multiprocessing.spawn(in_group, (part, str(tmp_path)), nprocs=2)
    return [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]


def in_group(rank: int, part: Callable[..., Any], folder: str) -> None:
    torch.distributed.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.save(part(rank, folder), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def model_of(seed: int) -> nn.ModuleDict:
    torch.manual_seed(seed)
    model = nn.ModuleDict({"rnn": prnn.nn.LSTM(3, 5, 2), "out": nn.Linear(5, 2), "unused": nn.Linear(2, 2)})
    model["rnn"].bias_ih_l0.requires_grad_(False)
    return model.double()


def backward(model: nn.ModuleDict, x: torch.Tensor) -> None:
    model["out"](model["rnn"](x)[0]).square().mean().backward()


def train_part(rank: int, folder: str) -> dict[str, Any]:
    x = torch.load(f"{folder}/x.pt")[:, rank * 4 : rank * 4 + 4]
    states = {}
    for dtype in (None, torch.float32):
        model = model_of(rank)
        average = GradientMean(model, dtype)
        for backwards in (1, 2):  # the second time on top of the first
            for _ in range(backwards):
                backward(model, x)
            average()
        states[str(dtype)] = {name: (value.detach(), value.grad) for name, value in model.named_parameters()}
    return states


def test_gradients_are_those_of_the_joined_batch(tmp_path: pathlib.Path) -> None:
    x = torch.randn(6, 8, 3, dtype=torch.float64)
    torch.save(x, tmp_path / "x.pt")
    first, second = run_processes(train_part, tmp_path)
    expected = model_of(0)
    for _ in range(3):
        backward(expected, x)
    for case, tolerance in (("None", 1e-12), ("torch.float32", 1e-6)):
        for name, parameter in expected.named_parameters():
            for weight, grad in (first[case][name], second[case][name]):
                assert torch.equal(weight, parameter)
                if parameter.grad is not None:
                    torch.testing.assert_close(grad, parameter.grad, rtol=tolerance, atol=tolerance / 1000)
                elif parameter.requires_grad:
                    assert torch.equal(grad, torch.zeros_like(parameter))
                else:
                    assert grad is None


def use_parameters(rank: int, _: str) -> list[Any]:
    """Gradients of a and b after calls of different parameters: 1 for each use in process 0, 10 in process 1."""
    model = nn.ParameterDict({name: nn.Parameter(torch.zeros(2)) for name in "ab"})
    average = GradientMean(model)
    found = []
    for uses in (
        ("ab", "ab"),
        (["ab", "a"], ["ab", "a"]),  # backward twice, the second time of a alone
        (["a", "ab"], ["b"]),  # and not as often in both
        ("a", "b"),
        ("", "ab"),
        ("", ""),
    ):
        model.zero_grad()
        for names in uses[rank]:
            for name in names:
                (model[name].sum() * 10**rank).backward()
        average()
        found.append([model[name].grad[0].item() for name in "ab"])
    model["b"].requires_grad_(False)  # frozen later
    model.zero_grad()
    model["a"].sum().backward()
    average()
    return [*found, [model["a"].grad[0].item(), model["b"].grad]]


def test_several_backwards_and_different_parameters(tmp_path: pathlib.Path) -> None:
    first, second = run_processes(use_parameters, tmp_path)
    assert first == second == [[5.5, 5.5], [11, 5.5], [1, 5.5], [0.5, 5], [5, 5], [0, 0], [1, None]]


def make_different_models(rank: int, _: str) -> list[str]:
    messages = []
    for models in (
        (nn.Linear(3, 4), nn.Linear(3, 5)),
        (nn.Linear(3, 4), nn.Linear(3, 4, bias=False)),
        (nn.Linear(3, 4, bias=False), nn.Linear(3, 4)),
        (nn.Linear(3, 4), nn.Linear(3, 4).double()),
        (nn.Linear(3, 4), nn.Linear(3, 4)),
    ):
        try:
            GradientMean(models[rank])
        except ValueError as error:
            messages.append(str(error))
    return messages


def test_different_models_are_refused_in_every_process(tmp_path: pathlib.Path) -> None:
    first, second = run_processes(make_different_models, tmp_path)
    weight, bias = ("weight of shape (4, 3) and torch.float32 with a gradient", "bias of shape (4,) and torch.float32")
    pairs = [
        (weight, weight.replace("(4, 3)", "(5, 3)")),
        (f"{bias} with a gradient", "nothing"),
        ("nothing", f"{bias} with a gradient"),
        (weight, weight.replace("float32", "float64")),
    ]
    texts = [f"the processes have different models: process 0 has {a}, process 1 {b}" for a, b in pairs]
    assert first == second == texts


def test_parameters_of_two_kinds_are_refused() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).double()])
    with pytest.raises(ValueError, match=r"torch\.float32 on cpu, torch\.float64 on cpu; they must be of one kind"):
        GradientMean(model)
    with pytest.raises(ValueError, match="the parameters are none"):
        GradientMean(nn.ReLU())

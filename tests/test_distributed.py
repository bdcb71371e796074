"""prnn.distributed between two processes on the CPU."""

import pathlib

import pytest
import torch
from torch import nn

import prnn
from prnn.distributed import GradientMean

CASES = {
    "together": (None, ""),
    "early": (None, "rnn"),
    "early, but incomplete": (None, "unused"),
    "float32": (torch.float32, "rnn"),
}


def model_of(seed: int) -> nn.ModuleDict:
    torch.manual_seed(seed)
    model = nn.ModuleDict({"rnn": prnn.nn.LSTM(3, 5, 2), "out": nn.Linear(5, 2), "unused": nn.Linear(2, 2)})
    model["rnn"].bias_ih_l0.requires_grad_(False)
    return model.double()


def backward(model: nn.ModuleDict, x: torch.Tensor) -> None:
    model["out"](model["rnn"](x)[0]).square().mean().backward()


def train_part(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=2)
    x = torch.load(f"{folder}/x.pt")[:, rank * 4 : rank * 4 + 4]
    states = {}
    for case, (dtype, early) in CASES.items():
        model = model_of(rank)
        average = GradientMean(model, dtype, model[early] if early else None)
        for backwards in (1, 2):  # the second time on top of the first
            for _ in range(backwards):
                backward(model, x)
            average()
        states[case] = {name: (parameter.detach(), parameter.grad) for name, parameter in model.named_parameters()}
    torch.save(states, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_gradients_are_those_of_the_joined_batch(tmp_path: pathlib.Path) -> None:
    x = torch.randn(6, 8, 3, dtype=torch.float64)
    torch.save(x, tmp_path / "x.pt")
    torch.multiprocessing.spawn(train_part, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    expected = model_of(0)
    for _ in range(3):
        backward(expected, x)
    for case in CASES:
        tolerance = 1e-6 if case == "float32" else 1e-12
        for name, parameter in expected.named_parameters():
            for weight, grad in (first[case][name], second[case][name]):
                assert torch.equal(weight, parameter)
                if parameter.grad is not None:
                    torch.testing.assert_close(grad, parameter.grad, rtol=tolerance, atol=tolerance / 1000)
                elif parameter.requires_grad:
                    assert torch.equal(grad, torch.zeros_like(parameter))
                else:
                    assert grad is None


def test_parameters_of_two_kinds_are_refused() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).double()])
    with pytest.raises(ValueError, match=r"torch\.float32 on cpu, torch\.float64 on cpu; they must be of one kind"):
        GradientMean(model)
    with pytest.raises(ValueError, match="the parameters are none"):
        GradientMean(nn.ReLU())

"""Sums over all timesteps of a batch on the CPU: how far the gradients of weights and biases are from float64's."""

import copy

import pytest
import torch

import prnn


def without_recurrence(module: torch.nn.Module) -> torch.nn.Module:
    """Layer normalization timestep after timestep amplifies roundings, which would hide those of the sums."""
    with torch.no_grad():
        module.weight_hh_l0.zero_()
    return module


LAYERS = {
    "RNN": lambda: prnn.nn.RNN(10, 8),
    "LSTM": lambda: prnn.nn.LSTM(10, 8),
    "LSTM with a projection": lambda: prnn.nn.LSTM(10, 8, proj_size=5),
    "GRU": lambda: prnn.nn.GRU(10, 8),
    "LayerNormLSTM": lambda: without_recurrence(prnn.nn.LayerNormLSTM(10, 16)),
}


def gradients(module: torch.nn.Module, x: torch.Tensor, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    parameters = dict(module.named_parameters())
    found = torch.autograd.grad(module(x)[0], list(parameters.values()), dy)
    return {name: gradient.double() for name, gradient in zip(parameters, found, strict=True)}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("steps", "batch"), [(100, 256), (1000, 256), (4000, 64)])
def test_gradients_of_weights(layer: str, steps: int, batch: int) -> None:
    torch.manual_seed(steps)
    module = LAYERS[layer]()
    x = torch.randn(steps, batch, module.input_size)
    dy = torch.randn_like(module(x)[0])
    expected = gradients(copy.deepcopy(module).double(), x.double(), dy.double())
    for name, gradient in gradients(module, x, dy).items():
        assert torch.dist(gradient, expected[name]) < 1e-6 * expected[name].norm(), name

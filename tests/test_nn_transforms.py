"""The modules of prnn.nn on the meta device, and under transforms of their backward pass."""

from typing import Any

import pytest
import torch
from nn_pairs import CELLS, flat, make, make_pair
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

import prnn

META_OPTIONS: list[dict[str, Any]] = [
    {},
    {"dropout": 0.3},
    {"zoneout": 0.1},
    {"recurrent_dropout": 0.1},
    {"heads": 2},
    {"bidirectional": True, "batch_first": True},
]


@pytest.mark.parametrize("options", META_OPTIONS, ids=lambda options: ", ".join(options))
@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
def test_a_training_step_on_the_meta_device(cell: str, options: dict[str, Any]) -> None:
    module = make(prnn.nn, cell, 5, 6, num_layers=2, device="meta", **options)
    x = torch.randn(4, 3, 5, device="meta", requires_grad=True)
    packed = PackedSequence(torch.randn(7, 5, device="meta"), torch.tensor([3, 2, 2]))
    calls = [(x, {}), (x[:, 0], {}), (packed, {}), (x, {"lengths": [4, 2, 1, 3] if module.batch_first else [4, 2, 1]})]
    for given, keywords in calls:
        module.zero_grad()
        outputs = flat(module(given, **keywords))
        assert all(output.is_meta for output in outputs)
        outputs[0].sum().backward()
        assert all(parameter.grad.is_meta for parameter in module.parameters())
    with pytest.raises(ValueError, match=r"input has dtype torch\.float64, but the weights have torch\.float32"):
        module(x.double())


def gradients(output: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    return torch.stack([torch.autograd.grad(output, x, weight, retain_graph=True)[0] for weight in weights])


@pytest.mark.parametrize("cell", CELLS)
def test_jacrev(cell: str) -> None:
    theirs, ours = make_pair(cell, 3, 4)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    found, expected = (torch.func.jacrev(lambda x, module=module: module(x)[0])(x) for module in (ours, theirs))
    torch.testing.assert_close(found, expected)


def test_jacrev_of_the_parameters() -> None:
    theirs, ours = make_pair("GRU", 3, 4)
    x = torch.randn(5, 2, 3, dtype=torch.float64)

    def jacobian(module: torch.nn.Module) -> dict[str, Tensor]:
        parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
        return torch.func.jacrev(lambda weights: torch.func.functional_call(module, weights, (x,))[1])(parameters)

    found, expected = jacobian(ours), jacobian(theirs)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # a call for each of the gradients
def test_batched_gradients() -> None:
    x = torch.randn(5, 2, 3, requires_grad=True)
    layer_norm = prnn.nn.LayerNormLSTM(3, 4)(x)[0]
    weights = torch.randn(3, *layer_norm.shape)
    (found,) = torch.autograd.grad(layer_norm, x, weights, is_grads_batched=True, retain_graph=True)
    torch.testing.assert_close(found, gradients(layer_norm, x, weights))
    output = prnn.nn.GRU(3, 4)(x)[0]
    with pytest.raises(RuntimeError, match=r"prnn::rnn_backward"):
        torch.autograd.grad(output, x, weights, is_grads_batched=True)

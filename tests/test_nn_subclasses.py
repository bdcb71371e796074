"""Subclasses of prnn.nn's layers with a forward of their own, as programs write them of torch.nn's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from nn_pairs import assert_same, compare, flat, make_states, train_step
from torch import Tensor
from torch.nn.functional import dropout

import prnn
from prnn import _torch_on_cpu

CELLS = ("RNN", "GRU", "LSTM")


def make_pair(
    derive: Callable[[Any], Any], cell: str, *args: Any, **options: Any
) -> tuple[torch.nn.Module, torch.nn.Module]:
    """derive's subclasses of torch's and prnn's layer, with the same weights."""
    options.setdefault("dtype", torch.float64)
    theirs, ours = (derive(getattr(namespace, cell))(*args, **options) for namespace in (torch.nn, prnn.nn))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def with_drop_connect(layer: Any) -> Any:
    class DropConnect(layer):
        def forward(self, input: Any, hx: Any = None) -> Any:
            whole = self._flat_weights
            generator = torch.random.get_rng_state()
            self._flat_weights = [
                dropout(weight, 0.5) if name.startswith("weight_hh") else weight
                for name, weight in zip(self._flat_weights_names, whole, strict=True)
            ]
            torch.random.set_rng_state(generator)  # the same masks in each call
            self.flatten_parameters()
            results = super().forward(input, hx)
            self._flat_weights = whole
            return results

    return DropConnect


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}])
def test_weights_in_flat_weights_are_those_of_the_call(cell: str, options: dict[str, Any]) -> None:
    theirs, ours = make_pair(with_drop_connect, cell, 3, 4, **options)
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    compare(theirs, ours, x, make_states(theirs, 2))
    plain = getattr(prnn.nn, cell)(3, 4, dtype=torch.float64, **options)
    plain.load_state_dict(theirs.state_dict())
    assert not torch.allclose(plain(x)[0], ours(x)[0])


@pytest.mark.parametrize("cell", CELLS)
def test_flat_weights_in_place_and_attributes_that_change(cell: str) -> None:
    theirs, ours = make_pair(lambda layer: layer, cell, 3, 4, num_layers=2)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    for module in (theirs, ours):
        module._flat_weights[1] = module._flat_weights[1].detach() * 2
    torch.testing.assert_close(flat(ours(x)), flat(theirs(x)))
    other = torch.randn_like(theirs.weight_ih_l1)
    for module in (theirs, ours):  # with which torch fills the list anew
        module.weight_ih_l1 = torch.nn.Parameter(other.clone())
    compare(theirs, ours, x)
    weights = {name: weight.detach() * 3 for name, weight in theirs.named_parameters()}
    expected, found = (torch.func.functional_call(module, weights, (x,)) for module in (theirs, ours))
    torch.testing.assert_close(flat(found), flat(expected))


def test_a_weight_without_attribute() -> None:
    theirs, ours = make_pair(lambda layer: layer, "GRU", 3, 4)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    for module in (theirs, ours):
        del module.weight_hh_l0
    torch.testing.assert_close(flat(ours(x)), flat(theirs(x)))
    ours._flat_weights[1] = None
    with pytest.raises(AttributeError, match="weight_hh_l0"):
        ours(x)


def test_flat_weights_of_calls_that_torchs_operator_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch_on_cpu, "_is_faster", lambda *_: True)
    theirs, ours = make_pair(with_drop_connect, "LSTM", 3, 4, dtype=torch.bfloat16)
    x = torch.randn(5, 2, 3, dtype=torch.bfloat16)
    torch.testing.assert_close(flat(ours(x)), flat(theirs(x)), rtol=0.02, atol=0.02)


def with_copied_forward(layer: Any) -> Any:
    """Gives the layer a copy of torch's own forward of padded input, with the methods that it has for it."""

    class Copied(layer):
        def forward(self, input: Tensor, hx: Any) -> Any:
            order = torch.tensor([1, 0, 2])
            hx = self.permute_hidden(hx, order)
            self.check_forward_args(input, hx, None)
            options = (self.bias, self.num_layers, self.dropout, self.training, self.bidirectional, self.batch_first)
            operator = {"RNN_TANH": "rnn_tanh", "GRU": "gru", "LSTM": "lstm"}[self.mode]
            output, *state = getattr(torch, operator)(input, hx, self._flat_weights, *options)
            hx = tuple(state) if self.mode == "LSTM" else state[0]
            return output, self.permute_hidden(hx, order)

    return Copied


@pytest.mark.parametrize(("cell", "options"), [("RNN", {}), ("GRU", {}), ("LSTM", {}), ("LSTM", {"proj_size": 2})])
def test_methods_of_torchs_forward(cell: str, options: dict[str, Any]) -> None:
    theirs, ours = make_pair(with_copied_forward, cell, 3, 4, num_layers=2, **options)
    x = torch.randn(5, 3, 3, dtype=torch.float64, requires_grad=True)
    states = make_states(theirs, 3)
    expected = train_step(theirs, dict(theirs.named_parameters()), x, states)
    assert_same(train_step(ours, dict(ours.named_parameters()), x, states), expected)
    with pytest.raises(RuntimeError, match="Expected hidden"):
        ours.check_forward_args(x, make_states(theirs, 4), None)

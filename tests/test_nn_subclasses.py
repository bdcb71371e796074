"""Subclasses of prnn.nn's layers with a forward of their own, as programs write them of torch.nn's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from nn_pairs import assert_same, make_states, train_step
from torch import Tensor

import prnn


def make_pair(
    derive: Callable[[Any], Any], cell: str, *args: Any, **options: Any
) -> tuple[torch.nn.Module, torch.nn.Module]:
    """derive's subclasses of torch's and prnn's layer, with the same weights."""
    options.setdefault("dtype", torch.float64)
    theirs, ours = (derive(getattr(namespace, cell))(*args, **options) for namespace in (torch.nn, prnn.nn))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def with_copied_forward(layer: Any) -> Any:
    """What torch's own forward does of padded input, with the methods that it has for it."""

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

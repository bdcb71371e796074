"""state_dicts go from torch.nn's modules to prnn.nn's and back."""

import io
from typing import Any

import pytest
import torch
from nn_pairs import CELLS, make

import prnn

OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": False},
    {"num_layers": 3, "bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "bias": False, "dtype": torch.float64},
]
LAYERS = [(cell, options) for cell in CELLS for options in OPTIONS]
LAYERS += [
    ("LSTM", {"proj_size": 2, "num_layers": 2, "bidirectional": bidirectional}) for bidirectional in (False, True)
]


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert list(first) == list(second)
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype
        assert torch.equal(tensor, second[name]), name


@pytest.mark.parametrize(("cell", "options"), LAYERS)
@pytest.mark.parametrize("assign", [False, True])
def test_both_ways(cell: str, options: dict[str, Any], assign: bool) -> None:
    theirs, ours = make(torch.nn, cell, 3, 5, **options), make(prnn.nn, cell, 3, 5, **options)
    ours.load_state_dict(theirs.state_dict(), assign=assign)
    assert_equal(ours.state_dict(), theirs.state_dict())
    other = make(torch.nn, cell, 3, 5, **options)
    stored = io.BytesIO()
    torch.save(ours.state_dict(), stored)
    stored.seek(0)
    other.load_state_dict(torch.load(stored, weights_only=True))
    assert_equal(other.state_dict(), theirs.state_dict())


def test_what_does_not_fit_is_refused_as_by_torch() -> None:
    state = torch.nn.LSTM(3, 5).state_dict()
    with pytest.raises(RuntimeError, match="size mismatch for weight_ih_l0"):
        prnn.nn.LSTM(4, 5).load_state_dict(state)
    with pytest.raises(RuntimeError, match="Missing key"):
        prnn.nn.LSTM(3, 5, num_layers=2).load_state_dict(state)


def test_optimizer_state_goes_along() -> None:
    theirs, ours = torch.nn.GRU(3, 5), prnn.nn.GRU(3, 5)
    optimizer = torch.optim.Adam(theirs.parameters())
    theirs(torch.randn(4, 2, 3))[0].sum().backward()
    optimizer.step()
    mine = torch.optim.Adam(ours.parameters())
    mine.load_state_dict(optimizer.state_dict())
    assert torch.equal(mine.state[ours.weight_hh_l0]["exp_avg"], optimizer.state[theirs.weight_hh_l0]["exp_avg"])


@pytest.mark.parametrize(("cell", "options"), LAYERS)
def test_parameters_lie_as_the_library_packs_them(cell: str, options: dict[str, Any]) -> None:
    """The offsets in the packed weights, asked of the library, are those of the parameters in their buffer."""
    from prnn._ops._layer import MODES

    module = make(prnn.nn, cell, 3, 5, **options)
    rnn = prnn._C.Rnn(
        MODES[module.mode], 0, 5, module.num_layers, 3, module.bidirectional, False, module.proj_size, 0.0
    )
    kinds = ("weight_ih", "weight_hh", "weight_hr", "bias_ih", "bias_hh")
    for layer in range(module.num_layers):
        for direction, suffix in enumerate(("", "_reverse")[: 2 if module.bidirectional else 1]):
            for kind, offset in zip(kinds, rnn.layer_offsets(layer, direction), strict=True):
                parameter = getattr(module, f"{kind}_l{layer}{suffix}", None)
                if parameter is not None:
                    assert parameter.data_ptr() == module.weight_ih_l0.data_ptr() + offset * parameter.itemsize
    weights = module._packed_weights()
    ends = [weight.data_ptr() + weight.nbytes for weight in weights]
    assert [weight.data_ptr() for weight in weights[1:]] == ends[:-1]
    assert ends[-1] - weights[0].data_ptr() == rnn.params_size() * weights[0].itemsize

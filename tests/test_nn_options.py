"""Options of prnn.nn that torch.nn's layers do not have, the cells, and 16-bit layers on the CPU."""

import copy
from typing import Any

import pytest
import torch
from nn_pairs import CELLS, flat, make, make_pair, make_states, train_step

import prnn

# The forget gate's bias


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 2}])
def test_forget_bias_of_every_layer(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    plain = prnn.nn.LSTM(3, 4, **options)
    torch.manual_seed(1)
    module = prnn.nn.LSTM(3, 4, forget_bias=1.5, **options)
    for reset in (False, True):
        if reset:
            module.reset_parameters()
        for name, bias_ih in module.named_parameters():
            if name.startswith("bias_ih"):
                bias = bias_ih + getattr(module, name.replace("ih", "hh"))
                assert (bias[4:8] == 1.5).all()
                assert (torch.cat([bias[:4], bias[8:]]) != 1.5).all()
            if not reset and name.startswith("weight"):
                assert torch.equal(bias_ih, getattr(plain, name))
    assert "forget_bias=1.5" in repr(module)
    assert "forget_bias" not in repr(plain)


def test_forget_bias_survives_copying_and_leaves_with_convert_back() -> None:
    module = prnn.nn.LSTM(3, 4, forget_bias=0)
    again = copy.deepcopy(module)
    again.reset_parameters()
    assert ((again.bias_ih_l0 + again.bias_hh_l0)[4:8] == 0).all()
    assert vars(prnn.convert_back(module)).keys() == vars(torch.nn.LSTM(3, 4)).keys()


# Cells


@pytest.mark.parametrize("cell", ["LSTMCell", "GRUCell", "RNNCell"])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_are_torchs(cell: str, bias: bool) -> None:
    torch.manual_seed(1)
    theirs = getattr(torch.nn, cell)(3, 4, bias, dtype=torch.float64)
    torch.manual_seed(1)
    ours = getattr(prnn.nn, cell)(3, 4, bias, dtype=torch.float64)
    assert isinstance(ours, getattr(torch.nn, cell))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x, h = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    state = (h, h + 1) if cell == "LSTMCell" else h
    torch.testing.assert_close(flat(ours(x, state)), flat(theirs(x, state)), rtol=0, atol=0)


def test_a_cell_is_a_step_of_the_layer() -> None:
    layer, cell = prnn.nn.LSTM(3, 4, dtype=torch.float64), prnn.nn.LSTMCell(3, 4, dtype=torch.float64)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    output, state = layer(x)
    h = c = torch.zeros(2, 4, dtype=torch.float64)
    for t in range(5):
        h, c = cell(x[t], (h, c))
        torch.testing.assert_close(h, output[t], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close((h, c), (state[0][0], state[1][0]), rtol=1e-12, atol=1e-12)


def test_forget_bias_of_a_cell() -> None:
    cell = prnn.nn.LSTMCell(3, 4, forget_bias=1.0)
    cell.reset_parameters()
    assert ((cell.bias_ih + cell.bias_hh)[4:8] == 1).all()
    assert "forget_bias=1.0" in repr(cell)


# 16 bits on the CPU


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_on_the_cpu_are_float32_rounded_once(cell: str, dtype: torch.dtype) -> None:
    half = make(prnn.nn, cell, 5, 8, num_layers=2, bidirectional=True, dtype=dtype)
    single = copy.deepcopy(half).float()
    x, states = torch.randn(6, 3, 5, dtype=dtype, requires_grad=True), make_states(half, 3)
    wide = [state.detach().float().requires_grad_() for state in flat(states)]
    result = train_step(half, dict(half.named_parameters()), x, states, lengths=[6, 2, 4])
    expected = train_step(
        single,
        dict(single.named_parameters()),
        x.detach().float().requires_grad_(),
        tuple(wide) if cell == "LSTM" else wide[0],
        lengths=[6, 2, 4],
    )
    for name, value in expected.items():
        assert result[name].dtype == dtype
        assert torch.equal(result[name], value.to(dtype)), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_on_the_cpu_look_like_torchs(dtype: torch.dtype) -> None:
    theirs, ours = make_pair("LSTM", 3, 4, num_layers=2, dtype=dtype)
    x = torch.randn(5, 2, 3, dtype=dtype)
    for mine, reference in zip(flat(ours(x)), flat(theirs(x)), strict=True):
        assert (mine.shape, mine.dtype, mine.stride()) == (reference.shape, reference.dtype, reference.stride())
        torch.testing.assert_close(mine, reference, rtol=2e-2, atol=2e-2)
    with torch.no_grad():
        assert not ours(x)[0].requires_grad
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    torch.testing.assert_close(flat(compiled(x)), flat(ours(x)), rtol=0, atol=0)

"""Wrong arguments of prnn.nn: an exception that names the argument and its value."""

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from nn_pairs import CELLS, flat, make, make_states
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import prnn

X = torch.zeros(5, 2, 3)
H = torch.zeros(1, 2, 4)


CONSTRUCTOR: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (ValueError, "backend is 'gpu'; it must be one of 'persistent', 'cudnn', 'best'", {"backend": "gpu"}),
    (ValueError, "dropout is 1.0; it must be at least 0 and less than 1", {"dropout": 1.0, "num_layers": 2}),
    (ValueError, "dropout is -0.1", {"dropout": -0.1}),
    (TypeError, "dropout is True; it must be a number", {"dropout": True}),
    (TypeError, "dropout is '0.1'", {"dropout": "0.1"}),
    (ValueError, "input_size is -3; it must be at least 1", {"input_size": -3}),
    (ValueError, "hidden_size is 0; it must be at least 1", {"hidden_size": 0}),
    (ValueError, "num_layers is 0", {"num_layers": 0}),
    (TypeError, "hidden_size is 4.0; it must be an int", {"hidden_size": 4.0}),
    (TypeError, "hidden_size is 4.0", {"hidden_size": 4.0, "heads": 2}),
    (TypeError, "num_layers is 2.0", {"num_layers": 2.0}),
    (TypeError, "bias is 1; it must be True or False", {"bias": 1}),
    (TypeError, "batch_first is 'yes'", {"batch_first": "yes"}),
    (TypeError, "bidirectional is 'no'", {"bidirectional": "no"}),
    (TypeError, r"dtype is torch\.int32; it must be one of torch\.float32", {"dtype": torch.int32}),
    (TypeError, "nonsense", {"nonsense": 1}),
]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("error", "message", "options"), CONSTRUCTOR)
def test_constructor(cell: str, error: type[Exception], message: str, options: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        make(prnn.nn, cell, **{"input_size": 3, "hidden_size": 4, **options})


def test_constructor_of_one_cell() -> None:
    with pytest.raises(ValueError, match="nonlinearity is 'sigmoid'; it must be 'tanh' or 'relu'"):
        prnn.nn.RNN(3, 4, nonlinearity="sigmoid")
    for error, size, said in (
        (ValueError, 4, "proj_size is 4; it must be less than hidden_size, 4, or 0 for none"),
        (ValueError, -1, "proj_size is -1"),
        (TypeError, 2.0, r"proj_size is 2\.0; it must be an int"),
    ):
        with pytest.raises(error, match=said):
            prnn.nn.LSTM(3, 4, proj_size=size)
    with pytest.raises(TypeError, match="proj_size"):
        prnn.nn.GRU(3, 4, proj_size=2)


FORWARD: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
    (TypeError, "input is a list; it must be a tensor", ([1.0],), {}),
    (TypeError, "input is a NoneType", (None,), {}),
    (ValueError, r"input has 1 dimensions \(shape \(3,\)\); it must have 3, or 2 if unbatched", (X[0, 0],), {}),
    (ValueError, "input has 4 dimensions", (X[None],), {}),
    (ValueError, r"input has 4 features \(shape \(5, 2, 4\)\); input_size is 3", (torch.zeros(5, 2, 4),), {}),
    (ValueError, "input has 0 features", (torch.zeros(5, 2, 0),), {}),
    (ValueError, "input has dtype torch.float64, but the weights have torch.float32", (X.double(),), {}),
    (
        ValueError,
        r"input has dtype torch.int64, but the weights have torch.float32; convert it with .to\(torch.float32\)$",
        (X.long(),),
        {},
    ),
    (ValueError, "input is on meta, but the weights are on cpu", (X.to("meta"),), {}),
    (ValueError, "input has 0 timesteps; it must have at least 1", (torch.zeros(0, 2, 3),), {}),
    (ValueError, r"hx has shape \(1, 4\); it must be \(1, 2, 4\)", (X, H[:, 0]), {}),
    (ValueError, r"hx has shape \(2, 2, 4\); it must be \(1, 2, 4\)", (X, torch.zeros(2, 2, 4)), {}),
    (ValueError, r"hx has shape \(1, 3, 4\)", (X, torch.zeros(1, 3, 4)), {}),
    (ValueError, r"hx has shape \(1, 2, 5\)", (X, torch.zeros(1, 2, 5)), {}),
    (ValueError, r"hx has shape \(1, 2, 4\); it must be \(1, 4\)", (X[:, 0], H), {}),
    (ValueError, "hx has dtype torch.float64, but input has torch.float32", (X, H.double()), {}),
    (TypeError, "hx is a tuple; it must be a tensor", (X, (H, H)), {}),
    (TypeError, "lengths is \\[1.5, 2\\]; it must hold integers", (X,), {"lengths": [1.5, 2]}),
    (TypeError, "lengths is \\[True, True\\]; it must hold integers", (X,), {"lengths": [True, True]}),
    (TypeError, "lengths is 5; it must hold integers", (X,), {"lengths": 5}),
    (
        TypeError,
        r"lengths is \{1, 2\}, which has no order; it must be a sequence of integers",
        (X,),
        {"lengths": {2, 1}},
    ),
    (TypeError, r"lengths is \{2: 1, 1: 1\}, which has no order", (X,), {"lengths": {2: 1, 1: 1}}),
    (TypeError, r"lengths is array\(\[1., 2.\]\); it must hold integers", (X,), {"lengths": np.array([1.0, 2.0])}),
    (ValueError, r"lengths\[1\] is 1180591620717411303424; it must lie", (X,), {"lengths": [1, 2**70]}),
    (ValueError, "lengths is on meta, but input is on cpu", (X,), {"lengths": torch.tensor([1, 2], device="meta")}),
    (TypeError, "lengths has dtype torch.complex64", (X,), {"lengths": torch.ones(2, dtype=torch.complex64)}),
    (TypeError, "lengths has dtype torch.float32", (X,), {"lengths": torch.ones(2)}),
    (TypeError, "lengths has dtype torch.bool", (X,), {"lengths": torch.ones(2, dtype=torch.bool)}),
    (ValueError, r"lengths has shape \(3,\); it must be \(2,\)", (X,), {"lengths": [1, 2, 3]}),
    (ValueError, r"lengths has shape \(\)", (X,), {"lengths": torch.tensor(2)}),
    (ValueError, r"lengths\[1\] is 0; it must lie between 1 and the 5 timesteps", (X,), {"lengths": [3, 0]}),
    (ValueError, r"lengths\[0\] is -2", (X,), {"lengths": [-2, 3]}),
    (ValueError, r"lengths\[1\] is 6", (X,), {"lengths": [5, 6]}),
    (ValueError, "input has 2 dimensions: one sequence", (X[:, 0],), {"lengths": [3]}),
]


@pytest.mark.parametrize("cell", ["RNN", "GRU"])
@pytest.mark.parametrize(("error", "message", "arguments", "options"), FORWARD)
def test_forward(
    cell: str, error: type[Exception], message: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    module = make(prnn.nn, cell, 3, 4)
    with pytest.raises(error, match=message):
        module(*arguments, **options)


LSTM_STATES: list[tuple[type[Exception], str, Any]] = [
    (TypeError, r"hx is a Tensor; it must be the pair \(h, c\)", H),
    (TypeError, "hx is a tuple of 3; it must be the pair", (H, H, H)),
    (TypeError, r"hx\[1\] is a int; it must be a tensor", (H[..., :2], 3)),
    (ValueError, r"hx\[0\] is on meta, but input is on cpu", (H[..., :2].to("meta"), H)),
    (ValueError, r"hx\[1\] is on meta, but input is on cpu", (H[..., :2], H.to("meta"))),
    (ValueError, r"hx\[1\] has dtype torch.float64, but input has torch.float32", (H[..., :2], H.double())),
    (ValueError, r"hx\[0\] has shape \(1, 2, 4\); it must be \(1, 2, 2\)", (H, H)),
    (ValueError, r"hx\[1\] has shape \(1, 2, 2\); it must be \(1, 2, 4\)", (H[..., :2], H[..., :2])),
]


@pytest.mark.parametrize(("error", "message", "states"), LSTM_STATES)
def test_states_of_an_lstm(error: type[Exception], message: str, states: Any) -> None:
    with pytest.raises(error, match=message):
        prnn.nn.LSTM(3, 4, proj_size=2)(X, states)


def test_batch_first_shapes_are_the_callers() -> None:
    module = prnn.nn.GRU(3, 4, batch_first=True)
    with pytest.raises(ValueError, match=r"hx has shape \(1, 5, 4\); it must be \(1, 2, 4\)"):
        module(X.transpose(0, 1), torch.zeros(1, 5, 4))


def test_packed_input() -> None:
    module = prnn.nn.GRU(3, 4)
    packed = pack_padded_sequence(X, torch.tensor([5, 2]))
    with pytest.raises(ValueError, match="lengths is given, but input is a PackedSequence"):
        module(packed, lengths=[5, 2])
    with pytest.raises(ValueError, match=r"hx has shape \(1, 3, 4\); it must be \(1, 2, 4\)"):
        module(packed, torch.zeros(1, 3, 4))
    with pytest.raises(ValueError, match="input has 4 features"):
        module(pack_padded_sequence(torch.zeros(5, 2, 4), torch.tensor([5, 2])))
    with pytest.raises(ValueError, match="batch_sizes add up to 6, but the packed input has 7 rows"):
        module(packed._replace(batch_sizes=torch.tensor([2, 1, 1, 1, 1])))
    with pytest.raises(ValueError, match="batch_sizes must be at least 1 and must not grow"):
        module(packed._replace(batch_sizes=torch.tensor([1, 2, 2, 1, 1])))


@pytest.mark.parametrize("order", [None, torch.tensor([0])])
@pytest.mark.parametrize(
    "module", [prnn.nn.GRU(3, 4), prnn.nn.LSTM(3, 4, zoneout=0.1), prnn.nn.LayerNormLSTM(3, 4)], ids=repr
)
def test_packed_input_without_timesteps(module: torch.nn.Module, order: torch.Tensor | None) -> None:
    with pytest.raises(ValueError, match="input has 0 timesteps; it must have at least 1"):
        module(PackedSequence(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), order, order))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_bias_of_another_type_than_a_half_layer_on_the_cpu(dtype: torch.dtype) -> None:
    module = prnn.nn.LSTM(3, 4, dtype=dtype)
    module.bias_hh_l0 = torch.nn.Parameter(module.bias_hh_l0.double())
    with pytest.raises(ValueError, match=rf"a weight has dtype torch.float64 on cpu, but input has {dtype} on cpu"):
        module(X.to(dtype))


@pytest.mark.parametrize("cell", CELLS)
def test_reset(cell: str) -> None:
    module = make(prnn.nn, cell, 3, 4)
    for reset, error, message in [
        ([True], TypeError, "reset is a list; it must be a tensor"),
        (torch.zeros(5, 2), TypeError, r"reset has dtype torch.float32; it must have torch.bool"),
        (torch.zeros(2, 5) > 0, ValueError, r"reset has shape \(2, 5\); it must be \(5, 2\), input's without features"),
        (torch.zeros(5, 2, device="meta") > 0, ValueError, "reset is on meta, but input is on cpu"),
    ]:
        with pytest.raises(error, match=message):
            module(X, reset=reset)
    packed = pack_padded_sequence(X, torch.tensor([5, 2]))
    with pytest.raises(ValueError, match=r"reset has shape \(5, 2\); it must be \(7,\)"):
        module(packed, reset=torch.zeros(5, 2) > 0)


def test_reset_hx() -> None:
    reset, state = torch.zeros(5, 2) > 0, torch.zeros(1, 2, 4)
    for module, given in ((prnn.nn.GRU(3, 4), state), (prnn.nn.LSTM(3, 4), (state, state))):
        with pytest.raises(ValueError, match="reset_hx is given, but reset, which says where it is wanted, is None"):
            module(X, reset_hx=given)
    with pytest.raises(ValueError, match=r"reset_hx\[1\] has shape \(1, 2, 5\); it must be \(1, 2, 4\)"):
        module(X, reset=reset, reset_hx=(state, torch.zeros(1, 2, 5)))
    with pytest.raises(TypeError, match=r"reset_hx is a Tensor; it must be the pair \(h, c\) of initial states"):
        module(X, reset=reset, reset_hx=state)
    with pytest.raises(ValueError, match=r"reset_hx has dtype torch.float64, but input has torch.float32"):
        prnn.nn.GRU(3, 4)(X, reset=reset, reset_hx=state.double())


def test_return_cells() -> None:
    with pytest.raises(TypeError, match="return_cells is 1; it must be True or False"):
        prnn.nn.LSTM(3, 4)(X, return_cells=1)
    with pytest.raises(TypeError, match="return_cells"):
        prnn.nn.GRU(3, 4)(X, return_cells=True)


@pytest.mark.parametrize(("value", "bias"), [("1", True), (float("nan"), True), (True, True), (1.0, False)])
@pytest.mark.parametrize("layer", [prnn.nn.LSTM, prnn.nn.LSTMCell])
def test_forget_bias(layer: Any, value: Any, bias: bool) -> None:
    message = "it must be a finite number" if bias else "forget_bias is 1.0, but bias is False"
    with pytest.raises(ValueError, match=message):
        layer(3, 4, bias=bias, forget_bias=value)


@pytest.mark.parametrize("value", ["1", float("nan"), float("inf"), True, torch.ones(8), None], ids=str)
def test_forget_bias_of_a_layer_norm_lstm(value: Any) -> None:
    with pytest.raises(ValueError, match=r"forget_bias is (.|\n)*; it must be a finite number"):
        prnn.nn.LayerNormLSTM(3, 8, forget_bias=value)


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), Fraction(1, 2)], ids=repr)
def test_numbers_of_other_types(number: Any) -> None:
    module = prnn.nn.LSTM(3, 4, zoneout=number, recurrent_dropout=number, forget_bias=number)
    assert module.bias_ih_l0[4:8].eq(0.5).all()
    assert module(X)[0].isfinite().all()
    assert prnn.nn.LSTM(3, 4, forget_bias=2**70).bias_ih_l0[4] == 2.0**70
    assert prnn.nn.LayerNormLSTM(3, 4, zoneout=number, forget_bias=number)(X)[0].isfinite().all()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_layouts() -> None:
    gru = prnn.nn.GRU(3, 4)
    for given, name in ((X.to_sparse(), "sparse_coo"), (X.to_mkldnn(), "_mkldnn")):
        with pytest.raises(TypeError, match=rf"input has the layout torch\.{name}; it must be torch\.strided"):
            gru(given)
    with pytest.raises(TypeError, match=r"input has the layout torch\.sparse_coo"):
        gru(PackedSequence(X[0].to_sparse(), torch.tensor([1, 1])))
    with pytest.raises(TypeError, match=r"hx has the layout torch\.sparse_coo; it must be torch\.strided"):
        gru(X, H.to_sparse())
    with pytest.raises(TypeError, match=r"input is a nested tensor; it must be padded, with lengths=, or a Packed"):
        gru(torch.nested.nested_tensor([X[0], X[1]]))


def test_one_weight_on_the_meta_device() -> None:
    module = prnn.nn.LSTM(3, 4)
    module.weight_hh_l0 = torch.nn.Parameter(module.weight_hh_l0.to("meta"))
    with pytest.raises(ValueError, match="weights is on meta, but input is on cpu"):
        module(X)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.float64])
def test_types_that_autocast_does_not_cast_are_refused_under_it_too(dtype: torch.dtype) -> None:
    with torch.autocast("cpu"), pytest.raises(ValueError, match=f"input has dtype {dtype}, but the weights have"):
        prnn.nn.GRU(3, 4)(X.to(dtype))


def test_complex_weights() -> None:
    module = prnn.nn.GRU(3, 4).to(torch.complex64)
    with pytest.raises(TypeError, match=r"input has dtype torch\.complex64; recurrent layers take float32"):
        module(X.to(torch.complex64))


def test_weights_of_different_dtypes() -> None:
    module = prnn.nn.GRU(3, 4)
    module.bias_hh_l0 = torch.nn.Parameter(module.bias_hh_l0.double())
    with pytest.raises(ValueError, match=r"a weight has dtype torch\.float64 on cpu, but input has torch.float32"):
        module(X)


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("weight_hh_l0", (20, 6), {}),
        ("weight_hh_l0", (5, 20), {}),  # transposed, as many elements
        ("weight_ih_l1", (10, 20), {"num_layers": 2, "bidirectional": True}),
        ("weight_hr_l0", (5, 3), {"proj_size": 3}),
        ("weight_hh_l0", (20, 1), {"heads": 5}),
    ],
)
def test_weight_of_a_wrong_shape(name: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    module = prnn.nn.LSTM(3, 5, **options)
    expected = tuple(getattr(module, name).shape)
    setattr(module, name, torch.nn.Parameter(torch.zeros(shape)))
    message = rf"^{name} has shape {re.escape(str(shape))}; it must be {re.escape(str(expected))}$"
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            module(torch.zeros(2, 1, 3))
        module.flatten_parameters()


def test_bias_of_a_wrong_shape() -> None:
    module = prnn.nn.GRU(3, 5)
    module.bias_hh_l0.data = torch.zeros(14)
    with pytest.raises(ValueError, match="weights hold 149 elements; the layer has 150"):
        module(torch.zeros(2, 1, 3))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity(cell: str, value: float) -> None:
    """Values that are not finite go through as in torch, and the other sequences keep clear of it."""
    theirs, ours = make(torch.nn, cell, 3, 4), make(prnn.nn, cell, 3, 4)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(5, 2, 3)
    x[2, 0, 1] = value
    with torch.no_grad():
        found, expected = flat(ours(x)), flat(theirs(x))
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5, equal_nan=True)
    assert found[0][:, 1].isfinite().all()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_infinite_states(cell: str, value: float, dtype: torch.dtype) -> None:
    """Gates saturate: 0 times an infinite state is NaN."""
    theirs, ours = (make(nn, cell, 3, 11, dtype=dtype) for nn in (torch.nn, prnn.nn))
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(5, 2, 3, dtype=dtype)
    for name in range(2 if cell == "LSTM" else 1):
        states = make_states(theirs, 2)
        tensors = states if isinstance(states, tuple) else (states,)
        with torch.no_grad():
            tensors[name][0, 0, 2] = value
            found, expected = flat(ours(x, states)), flat(theirs(x, states))
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5, equal_nan=True)
        assert found[0][:, 1].isfinite().all()


def test_wrong_calls_leave_the_module_usable() -> None:
    module = prnn.nn.LSTM(3, 4)
    expected = module(X)[0]
    for wrong in (X.double(), X[..., :2], torch.zeros(0, 2, 3)):
        with pytest.raises(ValueError, match="input"):
            module(wrong)
    assert torch.equal(module(X)[0], expected)


def test_numbers_of_numpy_in_a_constructor() -> None:
    assert prnn.nn.GRU(3, 4, num_layers=2, dropout=np.float32(0.5)).dropout == 0.5
    module = prnn.nn.LSTM(3, 4, num_layers=np.int64(2), proj_size=np.int64(2))
    assert module(X)[0].shape == (*X.shape[:2], 2)

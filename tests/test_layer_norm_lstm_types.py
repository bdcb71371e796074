"""LayerNormLSTM, and an LSTM with zoneout and recurrent dropout, on the CPU: 16 bits, autocast, and batches of no
sequences."""

import copy
from typing import Any

import capi
import pytest
import torch
from layer_norm_lstm_case import Case, call_layer, check_operator
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import prnn

MASKS = {"zoneout": 0.2, "recurrent_dropout": 0.1}


def make_layer(kind: str, **options: Any) -> torch.nn.Module:
    """Two layers 3 -> 4 of two directions, with masks and dropout."""
    options = {"bidirectional": True, "dropout": 0.3, **MASKS, **options}
    if kind == "none":
        options["recurrent_dropout"] = 0.5  # of which the masks are 2, in any type
        return prnn.nn.LSTM(3, 4, 2, **options)
    module = prnn.nn.LayerNormLSTM(3, 4, 2, normalize=kind, forget_bias=0.5, **options)
    for name, parameter in module.named_parameters():
        if name.startswith("norm"):
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    return module


KINDS = pytest.mark.parametrize("kind", ["gates", "products", "none"])
HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def results_and_gradients(module: torch.nn.Module, dtype: torch.dtype, form: str) -> list[torch.Tensor]:
    """output, h and c, and the gradients of input, both states and the parameters, from gradients of `dtype`'s values.

    form: "padded", "lengths", "packed" or "alone", of one sequence."""
    torch.manual_seed(3)
    width = next(module.parameters()).dtype
    shapes = ((6, 3), (4, 4), (4, 4)) if form == "alone" else ((6, 3, 3), (4, 3, 4), (4, 3, 4))
    input, *hx = (torch.randn(shape).to(dtype).to(width).requires_grad_() for shape in shapes)
    argument: Any = input
    if form == "packed":
        argument = pack_padded_sequence(input, [4, 1, 6], enforce_sorted=False)
    output, (h, c) = module(argument, tuple(hx), **({"lengths": [4, 1, 6]} if form == "lengths" else {}))
    output = output.data if isinstance(output, PackedSequence) else output
    found = [output, h, c]
    seeds = [torch.randn(result.shape).to(dtype).to(width) for result in found]
    leaves = [input, *hx, *module.parameters()]
    return found + list(torch.autograd.grad(found, leaves, seeds))


@KINDS
@HALF
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("form", ["padded", "lengths", "packed", "alone"])
def test_sixteen_bits_are_float32_rounded(kind: str, dtype: torch.dtype, training: bool, form: str) -> None:
    """The masks are equal too: they are drawn in float32. prnn's own kernels, which an LSTM without normalisation has,
    keep 16 bits of float's 24 where they multiply pairs: such a result may end in the number beside."""
    module = make_layer(kind, dtype=dtype).train(training)
    found = results_and_gradients(module, dtype, form)
    expected = results_and_gradients(copy.deepcopy(module).float(), dtype, form)
    rounded = kind != "none" or dtype != torch.bfloat16 or not capi.MULTIPLIES_PAIRS
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        if rounded:
            assert torch.equal(ours, theirs.to(dtype))
        else:
            torch.testing.assert_close(ours.float(), theirs, rtol=torch.finfo(dtype).eps / 2, atol=1e-4)


@KINDS
@HALF
def test_sixteen_bits_compile_copy_and_batch_first(kind: str, dtype: torch.dtype) -> None:
    torch.compiler.reset()
    module = make_layer(kind, dtype=dtype, batch_first=True)
    single = copy.deepcopy(module).float()
    loaded = make_layer(kind, dtype=dtype, batch_first=True)
    loaded.load_state_dict(module.state_dict())
    input = torch.randn(2, 5, 3, dtype=dtype)
    torch.manual_seed(1)
    expected = single(input.float())[0].to(dtype)
    for run in (torch.compile(module, fullgraph=True, backend="aot_eager"), copy.deepcopy(module), loaded):
        torch.manual_seed(1)
        assert torch.equal(run(input)[0], expected)

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(module, parameters, (input,))[0].sum()

    torch.manual_seed(1)
    gradients = torch.func.grad(loss)({name: parameter.detach() for name, parameter in module.named_parameters()})
    torch.manual_seed(1)
    module(input)[0].sum().backward()
    assert all(torch.equal(gradients[name], parameter.grad) for name, parameter in module.named_parameters())


@KINDS
@HALF
@pytest.mark.parametrize("of_weights", [torch.float32, "half"])
@pytest.mark.parametrize("of_input", [torch.float32, "half"])
def test_autocast_computes_in_float32(kind: str, dtype: torch.dtype, of_weights: Any, of_input: Any) -> None:
    module = make_layer(kind, dtype=dtype if of_weights == "half" else of_weights)
    input = torch.randn(5, 2, 3).to(dtype if of_input == "half" else of_input)
    hx = tuple(torch.randn(4, 2, 4) for _ in range(2))
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype=dtype):
        output, (h, c) = module(input, hx)
    torch.manual_seed(1)
    expected, states = copy.deepcopy(module).float()(input.float(), hx)
    for ours, theirs in zip((output, h, c), (expected, *states), strict=True):
        assert torch.equal(ours, theirs.to(ours.dtype))
    if kind == "none":
        with torch.autocast("cpu", dtype=dtype):
            plain, (h0, c0) = prnn.nn.LSTM(3, 4, 2, bidirectional=True, dtype=module.weight_ih_l0.dtype)(input, hx)
        assert (output.dtype, h.dtype, c.dtype) == (plain.dtype, h0.dtype, c0.dtype)
    else:
        assert (output.dtype, h.dtype, c.dtype) == (dtype,) * 3
    output.sum().backward()
    assert module.weight_hh_l0.grad.dtype == module.weight_hh_l0.dtype


@KINDS
@pytest.mark.parametrize("form", ["lengths", "packed", "alone"])
def test_autocast_of_other_forms(kind: str, form: str) -> None:
    module = make_layer(kind)
    with torch.autocast("cpu"):
        output, h, c, *gradients = results_and_gradients(module, torch.float32, form)
    if kind == "none":
        with torch.autocast("cpu"):
            plain = results_and_gradients(prnn.nn.LSTM(3, 4, 2, bidirectional=True), torch.float32, form)
        assert [output.dtype, h.dtype, c.dtype] == [result.dtype for result in plain[:3]]
    else:
        assert (output.dtype, h.dtype, c.dtype) == (torch.bfloat16,) * 3
    assert {gradient.dtype for gradient in gradients} == {torch.float32}


@KINDS
def test_autocast_leaves_float64(kind: str) -> None:
    module, input = make_layer(kind, dtype=torch.float64), torch.randn(5, 2, 3, dtype=torch.float64)
    torch.manual_seed(1)
    expected = module(input)[0]
    torch.manual_seed(1)
    with torch.autocast("cpu"):
        assert torch.equal(module(input)[0], expected)


@KINDS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_no_sequences(kind: str, dtype: torch.dtype, training: bool, batch_first: bool) -> None:
    """As torch.nn.LSTM: results of no elements, and gradients of zeros."""
    module = make_layer(kind, dtype=dtype, batch_first=batch_first).train(training)
    theirs = torch.nn.LSTM(3, 4, 2, bidirectional=True, batch_first=batch_first, dtype=dtype)
    for options in ({}, {"lengths": []}, {"lengths": torch.zeros(0, dtype=torch.int64)}):
        input = torch.zeros((0, 5, 3) if batch_first else (5, 0, 3), dtype=dtype, requires_grad=True)
        hx = tuple(torch.zeros(4, 0, 4, dtype=dtype, requires_grad=True) for _ in range(2))
        for states in (hx, None):
            module.zero_grad()
            (output, (h, c)), (like, (h0, c0)) = module(input, states, **options), theirs(input, states)
            for ours, expected in ((output, like), (h, h0), (c, c0)):
                assert (ours.shape, ours.dtype) == (expected.shape, dtype)
            (output.sum() + h.sum() + c.sum()).backward()
            assert input.grad.shape == input.shape
            for name, parameter in module.named_parameters():
                assert torch.equal(parameter.grad, torch.zeros_like(parameter)), name
        assert hx[0].grad.shape == hx[1].grad.shape == (4, 0, 4)


@KINDS
def test_no_sequences_compile(kind: str) -> None:
    torch.compiler.reset()
    module = make_layer(kind)
    input = torch.zeros(5, 0, 3, requires_grad=True)
    output, _ = torch.compile(module, fullgraph=True, backend="aot_eager")(input)
    assert output.shape == (5, 0, 8)
    output.sum().backward()
    assert torch.equal(module.weight_hh_l1.grad, torch.zeros(16, 4))


@KINDS
def test_operator_of_no_sequences(kind: str) -> None:
    case = Case(3, 0, 4, kind, masks=True)
    arrays = [None if a is None else a.requires_grad_(i < 8) for i, a in enumerate(case.arrays(torch.float64))]
    check_operator(*arrays, *case.numbers())


@pytest.mark.parametrize("index", range(1, 10))
def test_operator_refuses_arrays_that_do_not_fit(index: int) -> None:
    """It would read beyond their ends."""
    case = Case(3, 2, 4, masks=True)
    arrays = case.arrays(torch.float32)
    array = arrays[index]
    if index < 8:  # masks may have any type
        arrays[index] = array.half()
        with pytest.raises(ValueError, match=r"has dtype torch.float16"):
            call_layer(*arrays, *case.numbers())
    arrays[index] = array[:1]
    with pytest.raises(ValueError, match=r"has shape \(1.*\); it must be \("):
        call_layer(*arrays, *case.numbers())


def test_parameters_of_two_types_are_refused() -> None:
    module = make_layer("gates", dtype=torch.bfloat16)
    module.norm_cell_bias_l1_reverse = torch.nn.Parameter(module.norm_cell_bias_l1_reverse.detach().float())
    with pytest.raises(ValueError, match=r"norm_cell_bias_l1_reverse has dtype torch.float32, but weight_ih_l0 has"):
        module(torch.zeros(2, 1, 3, dtype=torch.bfloat16))

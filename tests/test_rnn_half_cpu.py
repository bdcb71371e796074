"""16-bit layers on a CPU handle: what float gives for the same numbers, rounded once. Values and gradients of float
against float64 are in test_rnn_c_api.py, test_rnn_extras.py and test_rnn_masks.py."""

import ctypes
import itertools
from typing import Any

import capi
import pytest
import torch
from reference import rnn as reference
from rnn_case import OUTPUTS, RnnCase, dropout_descriptor
from test_rnn_extras import GIVEN_BACK, ExtrasCase, extras_of
from test_rnn_masks import MasksCase, ResetMasksCase, masks_of

MODES = {"relu": reference.RNN_RELU, "tanh": reference.RNN_TANH, "lstm": reference.LSTM, "gru": reference.GRU}
HALF = {"half": torch.float16, "bfloat16": torch.bfloat16}
BATCHES = {"even": [3, 3, 3, 3, 3], "ragged": [5, 4, 4, 2, 1, 1], "one": [1], "wide": [60, 51]}
GIVEN = ("x", "w", "hx", "cx", "dy", "dhy", "dcy", "reset", "reset_hx", "reset_cx", "dcells", "recurrent", "zoneout")

of_both_types = pytest.mark.parametrize("dtype", HALF.values(), ids=HALF)


def give(float_case: RnnCase, case: RnnCase) -> None:
    """The 16-bit case's numbers to the other one."""
    for name in GIVEN:
        if name in case.data:
            float_case.data[name].copy_(case.data[name])
        elif hasattr(case, name):
            getattr(float_case, name).copy_(getattr(case, name))


def assert_rounded(case: RnnCase, float_case: RnnCase, names: tuple[str, ...] = OUTPUTS) -> None:
    """Products of pairs have 16 bits of float's 24, and a difference that small may end in the number beside."""
    for name in names:
        result, wanted = (one.data[name] if name in one.data else getattr(one, name) for one in (case, float_case))
        assert torch.isfinite(wanted).all()
        if case.dtype == torch.bfloat16 and capi.MULTIPLIES_PAIRS:
            difference = (result.float() - wanted).abs() - torch.finfo(torch.bfloat16).eps / 2 * wanted.abs()
            assert difference.max() <= 1e-4 * max(1.0, wanted.abs().max().item()), (name, difference.max())
        else:
            assert torch.equal(result, wanted.to(case.dtype)), name


def make_pair(kind: type[RnnCase], *arguments: Any, dtype: torch.dtype, **options: Any) -> tuple[Any, Any]:
    case, float_case = kind(*arguments, dtype, **options), kind(*arguments, torch.float32, **options)
    give(float_case, case)
    return case, float_case


@of_both_types
@pytest.mark.parametrize("batch_sizes", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_training_step_and_inference(mode: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    for layers, directions, skip, projection in itertools.product((1, 3), (1, 2), (False, True), (0, 3)):
        if mode != reference.LSTM and projection:
            continue
        stack = reference.Stack(mode, 7 if skip else 5, 7, layers, directions, skip, projection)
        case, float_case = make_pair(RnnCase, stack, batch_sizes, dtype=dtype)
        for one in (case, float_case):
            one.train()
        assert_rounded(case, float_case)
        for one in (case, float_case):
            one.check("RNNForwardInference")
        assert_rounded(case, float_case, ("y", "hy", "cy"))


@of_both_types
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(("hidden", "input_"), [(1, 1), (1, 33), (16, 1), (31, 64), (64, 16), (100, 37), (129, 3)])
def test_sizes_around_vector_widths(mode: int, hidden: int, input_: int, dtype: torch.dtype) -> None:
    for batch_sizes in ([17, 16, 3], [4, 4, 1, 1], [9] * 3, [1], [8], [20]):
        case, float_case = make_pair(RnnCase, reference.Stack(mode, input_, hidden), batch_sizes, dtype=dtype)
        for one in (case, float_case):
            one.train()
        assert_rounded(case, float_case)


@of_both_types
def test_products_of_many_parts(dtype: torch.dtype) -> None:
    """More rows and columns than a part of a weight gradient has, more rows than its products are deep, and one or two
    rows, whose products take two tiles at a time."""
    for stack, batch_sizes in (
        (reference.Stack(reference.GRU, 4500, 20), [3, 2]),
        (reference.Stack(reference.LSTM, 300, 200), [9, 9, 8]),
        (reference.Stack(reference.RNN_TANH, 20, 40), [60] * 6),
        (reference.Stack(reference.GRU, 601, 528), [2, 1]),
    ):
        case, float_case = make_pair(RnnCase, stack, batch_sizes, dtype=dtype)
        for one in (case, float_case):
            one.train()
        assert_rounded(case, float_case)


@of_both_types
@pytest.mark.parametrize(("inputs", "steps"), [(40, 3), (600, 18)])
def test_inference_of_rows_in_parts(inputs: int, steps: int, dtype: torch.dtype) -> None:
    """Whose input matrix is packed once, and whose last part has two rows."""
    stack = reference.Stack(reference.LSTM, inputs, 200)
    case, float_case = make_pair(RnnCase, stack, [*[60] * steps, 2], dtype=dtype)
    for one in (case, float_case):
        one.check("RNNForwardInference")
    assert_rounded(case, float_case, ("y", "hy", "cy"))


@of_both_types
@pytest.mark.parametrize("batch_sizes", [BATCHES["ragged"], BATCHES["wide"]], ids=["ragged", "wide"])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_resets_and_cells(mode: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    names = extras_of(mode)
    for given in (names, tuple(name for name in names if not name.endswith("x"))):
        case, float_case = make_pair(ExtrasCase, reference.Stack(mode, 6, 19, 2, 2), batch_sizes, dtype=dtype)
        for one in (case, float_case):
            one.set_extras(given)
            one.train()
        assert_rounded(case, float_case, (*OUTPUTS, *(name for name in GIVEN_BACK if name in given)))


@of_both_types
@pytest.mark.parametrize("mode", [mode for mode in MODES.values() if mode != reference.LSTM])
@pytest.mark.parametrize("make", [MasksCase, ResetMasksCase])
def test_masks(make: type[MasksCase], mode: int, dtype: torch.dtype) -> None:
    for names in masks_of(mode):
        case, float_case = make_pair(make, reference.Stack(mode, 6, 19, 2), BATCHES["ragged"], dtype=dtype)
        for one in (case, float_case):
            one.set_masks(names)
            one.train()
        assert_rounded(case, float_case)


@of_both_types
def test_dropout_between_layers(dtype: torch.dtype) -> None:
    stack, pair = reference.Stack(reference.GRU, 6, 40, 3), []
    for one in (dtype, torch.float32):
        dropout = dropout_descriptor(capi.cpu_handle(), 0.4, ctypes.create_string_buffer(1024), seed=3)
        pair.append(RnnCase(stack, [4, 4, 2], one, dropout))
    give(pair[1], pair[0])
    for one in pair:
        one.train()
    assert_rounded(*pair)


@of_both_types
def test_gradients_are_added_or_set(dtype: torch.dtype) -> None:
    few, many = (reference.Stack(reference.LSTM, 40, 20), [2]), (reference.Stack(reference.GRU, 7, 9), [9] * 3)
    for stack, batch_sizes in (few, many):
        case, float_case = make_pair(RnnCase, stack, batch_sizes, dtype=dtype)
        before = torch.randn(case.data["dw"].shape).to(dtype)
        for mode in (0, 1):
            for one in (case, float_case):
                capi.check("SetRNNWgradMode", rnnDesc=one.rnn.pointer, wgradMode=mode)
                one.data["dw"].copy_(before)
                one.train()
            if mode == 1:
                assert_rounded(case, float_case, ("dw",))
                continue
            # One rounding of a sum whose order may be another one.
            added = float_case.data["dw"]
            torch.testing.assert_close(case.data["dw"].float(), added, rtol=torch.finfo(dtype).eps, atol=1e-5)


def without_weights(case: RnnCase) -> None:
    """Only the input that skips the input matrix, and the input's bias, is left of a unit's sum."""
    case.data["w"].zero_()
    for name in ("hx", "cx"):
        case.data[name].zero_()


@of_both_types
def test_every_number_is_read_and_rounded_as_torch_does(dtype: torch.dtype) -> None:
    everything = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    hidden = 66
    case = RnnCase(reference.Stack(reference.RNN_RELU, hidden, hidden, skip_input=True), [1024], dtype)
    x = case.data["x"]
    for offset in (0.0, 1.0, 0.0012, 2.0**-16):
        without_weights(case)
        x.flatten()[: everything.numel()] = everything
        bias = torch.tensor(offset, dtype=dtype)
        case.data["w"][-2 * hidden : -hidden] = bias
        case.check("RNNForwardInference")
        sums = x.float() + bias.float()
        torch.testing.assert_close(case.data["y"], sums.relu().to(dtype), rtol=0, atol=0, equal_nan=True)


@of_both_types
@pytest.mark.parametrize("rows", [1, 40], ids=["as they lie", "packed"])
def test_every_number_of_a_matrix(rows: int, dtype: torch.dtype) -> None:
    everything = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    everything = torch.where(torch.isfinite(everything), everything, torch.zeros_like(everything))
    hidden, inputs = 32, 2**11
    case = RnnCase(reference.Stack(reference.RNN_RELU, inputs, hidden), [rows], dtype)
    case.data["w"].zero_()
    case.data["hx"].zero_()
    matrix = everything.view(hidden, inputs)
    case.data["w"][: matrix.numel()] = everything
    x = case.data["x"]
    for begin in range(0, inputs, rows):  # a column of the matrix a row
        columns = range(begin, min(begin + rows, inputs))
        for sign in (1, -1):
            x.zero_()
            x[range(len(columns)), columns] = sign
            case.check("RNNForwardInference")
            wanted = (sign * matrix[:, columns].T).relu()
            # Products of pairs take subnormal numbers for zeros.
            tolerance = torch.finfo(dtype).smallest_normal if capi.MULTIPLIES_PAIRS and dtype == torch.bfloat16 else 0
            torch.testing.assert_close(case.data["y"][: len(columns)], wanted, rtol=0, atol=tolerance)


@of_both_types
def test_infinite_states(dtype: torch.dtype) -> None:
    """Rounding leaves no remainder of them, and no NaN comes of it."""
    case, float_case = make_pair(RnnCase, reference.Stack(reference.RNN_RELU, 4, 40), [4] * 7, dtype=dtype)
    for one in (case, float_case):
        one.data["w"].fill_(0.0625)
        one.data["x"][1, 2] = torch.inf
        one.check("RNNForwardInference")
    assert torch.isinf(float_case.data["y"][1::4]).all()
    assert torch.equal(torch.isinf(case.data["y"]), torch.isinf(float_case.data["y"]))

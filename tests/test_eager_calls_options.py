"""Eager calls with resets, masks, heads, dropout or under autocast, and those of LayerNormLSTM: the same bits as by the
operator, and few functions of Python."""

import copy
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eager_case
import pytest
import torch
from eager_case import assert_equal, data_of, forget, small
from module_changes import change_data, change_mode, change_order, change_parameter, parametrize
from nn_pairs import CELLS, flat
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

import prnn

served = eager_case.served

OTHERS: dict[str, dict[str, Any]] = {
    "dropout": {"num_layers": 2, "dropout": 0.5},
    "heads": {"heads": 2, "bidirectional": True},
    "recurrent dropout": {"num_layers": 2, "recurrent_dropout": 0.3, "batch_first": True},
    "zoneout": {"num_layers": 2, "zoneout": 0.3, "recurrent_dropout": 0.2, "dropout": 0.1},
    "plain": {},
}


def options_of_a_call(x: Tensor, states: Any, layout: str, has_reset: bool) -> dict[str, Any]:
    given: dict[str, Any] = {"lengths": torch.tensor([2, 4, 1])} if layout == "lengths" else {}
    if has_reset:
        shape = (7,) if layout == "packed" else x.shape[:-1]
        given |= {"reset": torch.arange(12)[: torch.Size(shape).numel()].view(shape) % 3 == 0, "reset_hx": states}
    return given


def results_and_loss(
    module: Any, x: Tensor, states: Any, layout: str, given: dict[str, Any], dtype: torch.dtype | None
) -> tuple[list[Tensor], Any]:
    """Runs a call in a layout, under autocast to `dtype` if there is one, with one seed of dropout."""
    torch.manual_seed(5)
    input = pack_padded_sequence(x, [4, 2, 1], module.batch_first) if layout == "packed" else x
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        results = flat(module(input, states, **given))
    return results, sum((i + 1) * value.double().square().sum() for i, value in enumerate(results))


@pytest.mark.parametrize("layout", ["padded", "lengths", "packed", "one sequence"])
@pytest.mark.parametrize("has_reset", [False, True], ids=["", "reset"])
@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
def test_calls_with_options_have_the_same_bits(
    cell: str, options: dict[str, Any], has_reset: bool, layout: str, served: list[bool]
) -> None:
    if cell == "RNN":
        options = {name: value for name, value in options.items() if name != "zoneout"}
    module = small(cell, **options).train()
    x, states = data_of(module, batch=None if layout == "one sequence" else 3)
    given = options_of_a_call(x, states, layout, has_reset)
    if cell == "LSTM":
        given["return_cells"] = True
    leaves = [x, *flat(states), *module.parameters()]

    def step(dtype: torch.dtype | None = None) -> list[Tensor]:
        results, loss = results_and_loss(module, x, states, layout, given, dtype)
        first, second = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2))
        assert_equal(list(first), list(second))
        return [value.detach() for value in results] + list(first)

    for dtype in (None, torch.bfloat16):
        forget(module)
        assert_equal(*(step(dtype) for _ in range(2)))
    with torch.no_grad():
        forget(module)
        expected, found = [], []
        for results in (expected, found):
            torch.manual_seed(5)
            results.extend(flat(module(x, states)))
        assert_equal(found, expected)
    assert served == [True] * 3


def prnn_frames(call: Callable[[], object]) -> int:
    """Calls of functions of prnn's."""
    count, folder = 0, str(Path(prnn.__file__).parent)

    def on_event(frame: Any, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(folder)

    sys.setprofile(on_event)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def few_calls(cell: str) -> list[tuple[dict[str, Any], dict[str, Any], int]]:
    """Options of a module and of its call, and the most calls of functions that a forward call with gradients makes."""
    reset, lengths = torch.zeros(9, 3, dtype=torch.bool), torch.tensor([9, 2, 5])
    found: list[tuple[dict[str, Any], dict[str, Any], int]] = [
        ({}, {}, 10),
        ({}, {"lengths": lengths}, 11),
        ({}, {"reset": reset}, 13),
        ({}, {"reset": reset, "lengths": lengths}, 18),
        ({"heads": 2}, {}, 13),
        ({"heads": 2}, {"lengths": lengths}, 14),
        ({"dropout": 0.1}, {}, 12),
        ({"recurrent_dropout": 0.1}, {}, 14),
        ({"heads": 2, "recurrent_dropout": 0.1}, {}, 16),
    ]
    return found + ([({}, {"return_cells": True}, 11)] if cell == "LSTM" else [])


@pytest.mark.parametrize("cell", CELLS)
def test_few_calls_of_functions(cell: str) -> None:
    """The host's time is in them."""
    x = torch.randn(9, 3, 6)
    for options, given, most in few_calls(cell):
        module = small(cell, num_layers=2, **options).train()
        for _ in range(2):
            module(x, **given)
        assert prnn_frames(lambda: module(x, **given)) <= most, (options, given)  # noqa: B023


@pytest.mark.parametrize("cell", CELLS)
def test_few_calls_of_functions_under_autocast(cell: str) -> None:
    module, x = small(cell, num_layers=2), torch.randn(9, 3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        for given in ({}, {"lengths": torch.tensor([9, 2, 5])}):
            for _ in range(2):
                module(x, **given)
            assert prnn_frames(lambda: module(x, **given)) <= 14  # noqa: B023


def test_dropout_draws_its_masks() -> None:
    module = small(num_layers=2, dropout=0.5).train()
    x, states = data_of(module)
    assert not torch.equal(module(x, states)[0], module(x, states)[0])


def layer_norm(**options: Any) -> Any:
    torch.manual_seed(1)
    return prnn.nn.LayerNormLSTM(6, 8, **options)


LAYER_NORM: dict[str, dict[str, Any]] = {
    "gates": {},
    "products": {"normalize": "products", "num_layers": 2, "bidirectional": True, "batch_first": True},
    "masks": {"num_layers": 2, "dropout": 0.3, "zoneout": 0.3, "recurrent_dropout": 0.2},
    "double": {"dtype": torch.float64},
    "half": {"dtype": torch.float16, "zoneout": 0.3, "recurrent_dropout": 0.2},
}


@pytest.mark.parametrize("layout", ["padded", "lengths", "packed", "one sequence"])
@pytest.mark.parametrize("has_reset", [False, True], ids=["", "reset"])
@pytest.mark.parametrize("options", LAYER_NORM.values(), ids=LAYER_NORM)
def test_layer_norm_lstms_have_the_same_bits(
    options: dict[str, Any], has_reset: bool, layout: str, served: list[bool]
) -> None:
    module = layer_norm(**options)
    x, states = data_of(module, batch=None if layout == "one sequence" else 3)
    given = options_of_a_call(x, states, layout, has_reset)
    leaves = [x, *states, *module.parameters()]

    def step(dtype: torch.dtype | None = None) -> list[Tensor]:
        results, loss = results_and_loss(module, x, states, layout, given, dtype)
        return [value.detach() for value in results] + list(torch.autograd.grad(loss, leaves))

    for dtype in (None, torch.bfloat16):
        forget(module)
        assert_equal(*(step(dtype) for _ in range(2)))
    assert served == [True] * 2


def change_bias_unseen(module: Any) -> None:
    module._parameters["norm_gates_bias_l0"] = torch.nn.Parameter(module.norm_gates_bias_l0.detach() + 2)


@pytest.mark.parametrize(
    "change", [change_mode, change_parameter, change_bias_unseen, change_data, change_order, parametrize]
)
def test_a_changed_layer_norm_lstm_is_looked_at_again(change: Callable[[Any], None], served: list[bool]) -> None:
    module = layer_norm(zoneout=0.2).eval()
    x, states = data_of(module)
    before = module(x, states)[0]
    change(module)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(module(x, states)[0])
        forget(module)
    assert torch.equal(*found)
    assert torch.allclose(before, found[0]) == (change is parametrize)


def test_copies_and_pickles_of_a_layer_norm_lstm_have_no_calls() -> None:
    module = layer_norm()
    x, states = data_of(module)
    expected = module(x, states)[0]
    assert module._calls is not None
    for made in (copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert "_calls" not in vars(made)
        assert torch.equal(made(x, states)[0], expected)
    module.half()
    assert module(x.half())[0].dtype == torch.float16


@pytest.mark.parametrize("normalize", ["gates", "products"])
def test_few_calls_of_functions_of_a_layer_norm_lstm(normalize: str) -> None:
    x, lengths = torch.randn(4, 3, 6), torch.tensor([4, 2, 1])
    for options, given, most in (
        ({}, {}, 39),
        ({"num_layers": 2}, {}, 66),
        ({"zoneout": 0.1, "recurrent_dropout": 0.1}, {"lengths": lengths}, 43),
    ):
        module = layer_norm(normalize=normalize, **options)
        for _ in range(2):
            module(x, **given)
        assert prnn_frames(lambda: module(x, **given)) <= most, (options, given)  # noqa: B023

"""Eager calls of packed sequences, and of padded ones with lengths: the same bits as by the operator."""

from typing import Any

import eager_case
import pytest
import torch
from eager_case import OPTIONS, assert_equal, data_of, forget, run_in_thread, small
from nn_pairs import CELLS, flat
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

served = eager_case.served


@pytest.mark.parametrize("has_states", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_packed_the_same_bits(cell: str, options: dict[str, Any], has_states: bool, served: list[bool]) -> None:
    for lengths in ([4, 3, 1], [2, 4, 3], [1, 1, 1]):
        check_packed(small(cell, **options), lengths, has_states)
        assert served == [True, True], lengths
        served.clear()


def check_packed(module: Any, lengths: list[int], has_states: bool) -> None:
    x, states = data_of(module, has_states=has_states)

    def step(**options: Any) -> list[Tensor]:
        packed = pack_padded_sequence(x, torch.tensor(lengths), module.batch_first, enforce_sorted=False)
        results = module(packed, states)
        assert type(results[0]) is PackedSequence
        for ours, given in zip(results[0][1:], packed[1:], strict=True):
            assert ours is given or torch.equal(ours, given)
        leaves = [x, *flat(() if states is None else states), *module.parameters()]
        loss = sum((i + 1) * value.double().square().sum() for i, value in enumerate(flat(results)))
        gradients = torch.autograd.grad(loss, leaves, retain_graph=True)
        if options:  # over the retained graph, which the short way does not serve
            gradients = torch.autograd.grad(loss, leaves)
        return [value.detach() for value in flat(results)] + list(gradients)

    forget(module)
    expected = step()
    for again in ({}, {"twice": True}):
        for found, wanted in zip(step(**again), expected, strict=True):
            assert torch.equal(found, wanted), lengths


def test_packed_arguments_that_are_wrong(served: list[bool]) -> None:
    module = small()
    forget(module)
    good = pack_padded_sequence(torch.randn(4, 3, 6), torch.tensor([4, 3, 1]))
    module(good)
    states = torch.zeros(1, 3, 8), torch.zeros(1, 3, 8)
    assert torch.equal(module(good, states)[0].data, module(good)[0].data)
    assert served == [True, True]
    sizes = good.batch_sizes
    for packed, given, message in (
        (PackedSequence(torch.randn(8, 5), sizes), None, "input has 5 features"),
        (PackedSequence(torch.randn(7, 6), sizes), None, "batch_sizes add up to 8"),
        (PackedSequence(torch.randn(8, 6), sizes.flip(0)), None, "must not grow"),
        (PackedSequence(torch.randn(8, 6).double(), sizes), None, "float64"),
        (good, (states[0][:, :2], states[1]), r"hx\[0\] has shape"),
        (PackedSequence(torch.randn(0, 6), sizes[:0]), None, "input has 0 timesteps"),
        (PackedSequence(good.data, sizes, torch.tensor([1, 0])), states, r"hx\[0\] has shape"),
    ):
        with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
            module(packed, given)


@pytest.mark.parametrize("has_states", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("cell", CELLS)
def test_lengths_the_same_bits(cell: str, options: dict[str, Any], has_states: bool, served: list[bool]) -> None:
    for lengths in ([2, 4, 3], [3, 3, 1], [2, 2, 2], [4, 4, 4]):
        check_lengths(small(cell, **options), lengths, has_states)
        assert served == [True] * 6, lengths
        served.clear()


def check_lengths(module: Any, lengths: list[int], has_states: bool) -> None:
    x, states = data_of(module, has_states=has_states)
    by_time = x.transpose(0, 1) if module.batch_first else x
    with torch.no_grad():
        for n, length in enumerate(lengths):
            by_time[length:, n] = float("nan")

    def step(**given: Any) -> list[Tensor]:
        leaves = [
            leaf for leaf in (x, *flat(() if states is None else states), *module.parameters()) if leaf.requires_grad
        ]
        results = flat(module(x, states, lengths=given["lengths"]))
        loss = sum((i + 1) * value.double().square().sum() for i, value in enumerate(results))
        first, second = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2))
        assert_equal(list(first), list(second))
        return [value.detach() for value in results] + list(first)

    forget(module)
    expected = step(lengths=lengths)
    for form in (lengths, tuple(lengths), torch.tensor(lengths), torch.tensor(lengths, dtype=torch.int32)):
        assert_equal(step(lengths=form), expected)
    found: list[Tensor] = []
    run_in_thread(lambda: found.extend(step(lengths=lengths)))
    assert_equal(found, expected)
    with torch.no_grad():
        results = flat(module(x, states, lengths=lengths))
    assert_equal(results, expected[: len(results)])


def test_wrong_lengths(served: list[bool]) -> None:
    module = small()
    x = torch.randn(4, 3, 6)
    module(x, lengths=[4, 2, 1])
    for lengths, error, message in (
        ([4, 0, 1], ValueError, r"lengths\[1\] is 0; it must lie between 1 and the 4 timesteps"),
        ([4, 2, 5], ValueError, r"lengths\[2\] is 5"),
        ([4, 2, 2**70], ValueError, r"lengths\[2\] is 1180591620717411303424"),
        ([4, 2], ValueError, r"lengths has shape \(2,\)"),
        ([4, 2, True], TypeError, "it must hold integers"),
        ([4, 2, 1.0], TypeError, "it must hold integers"),
        (torch.tensor([4.0, 2.0, 1.0]), TypeError, "it must hold integers"),
        (torch.tensor([4, 2, 1], device="meta"), ValueError, "lengths is on meta"),
    ):
        with pytest.raises(error, match=message):
            module(x, lengths=lengths)
    with pytest.raises(ValueError, match="input has 2 dimensions: one sequence"):
        module(x[:, 0], lengths=[4])
    assert not any(served[1:])


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"heads": 2}], ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_resets_of_padded_sequences_as_of_each_alone(cell: str, options: dict[str, Any]) -> None:
    """With states at resets, whose gradients come back in the caller's order."""
    module = small(cell, dtype=torch.float64, **options)
    x, hx = data_of(module)
    _, reset_hx = data_of(module)
    reset, lengths = torch.tensor([[0, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 1]]) == 1, [2, 4, 1]
    leaves = [x, *flat(hx), *flat(reset_hx), *module.parameters()]

    def of(states: Any, n: int) -> Any:
        return tuple(state[:, n] for state in states) if isinstance(states, tuple) else states[:, n]

    def loss(results: Any) -> Tensor:
        return sum((i + 1) * value.square().sum() for i, value in enumerate(flat(results)))

    together = loss(module(x, hx, lengths=lengths, reset=reset, reset_hx=reset_hx))
    alone = sum(
        loss(module(x[:length, n], of(hx, n), reset=reset[:length, n], reset_hx=of(reset_hx, n)))
        for n, length in enumerate(lengths)
    )
    found, expected = (torch.autograd.grad(value, leaves) for value in (together, alone))
    torch.testing.assert_close(found, expected)

"""Sequences of different lengths: PackedSequence as torch.nn takes it, and the keyword lengths."""

from typing import Any

import numpy as np
import pytest
import torch
from nn_pairs import CELLS, assert_same, compare, flat, make_pair, make_states, train_step
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import prnn

LENGTHS = [2, 5, 1, 5, 3]


def packed_input(lengths: list[int], enforce_sorted: bool, features: int = 3) -> PackedSequence:
    padded = torch.randn(max(lengths), len(lengths), features, dtype=torch.float64, requires_grad=True)
    packed = pack_padded_sequence(padded, torch.tensor(lengths), enforce_sorted=enforce_sorted)
    return packed._replace(data=packed.data.detach().requires_grad_())


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "batch_first": True}]
)
@pytest.mark.parametrize(
    ("lengths", "enforce_sorted"), [(LENGTHS, False), ([4, 4, 2, 1], True), ([3, 3], True), ([3], False)]
)
def test_packed_equals_torch(cell: str, options: dict[str, Any], lengths: list[int], enforce_sorted: bool) -> None:
    theirs, ours = make_pair(cell, 3, 6, **options)
    packed = packed_input(lengths, enforce_sorted)
    compare(theirs, ours, packed)
    compare(theirs, ours, packed, make_states(theirs, len(lengths)))


def test_packed_with_projection() -> None:
    theirs, ours = make_pair("LSTM", 3, 6, num_layers=2, bidirectional=True, proj_size=4)
    compare(theirs, ours, packed_input(LENGTHS, False), make_states(theirs, len(LENGTHS)))


def test_packed_sequence_comes_back_as_it_went_in() -> None:
    module = prnn.nn.GRU(3, 4, dtype=torch.float64)
    packed = packed_input(LENGTHS, enforce_sorted=False)
    output, _ = module(packed)
    assert isinstance(output, PackedSequence)
    for name in ("batch_sizes", "sorted_indices", "unsorted_indices"):
        assert torch.equal(getattr(output, name), getattr(packed, name))
    _, lengths = pad_packed_sequence(output)
    assert lengths.tolist() == LENGTHS


def torch_with_lengths(module: torch.nn.Module, lengths: list[int]) -> Any:
    """torch's module on padded input, through PackedSequence."""

    def run(input: torch.Tensor, states: Any) -> Any:
        packed = pack_padded_sequence(input, torch.tensor(lengths), module.batch_first, enforce_sorted=False)
        output, last = module(packed, states)
        steps = input.size(1 if module.batch_first else 0)
        return pad_packed_sequence(output, module.batch_first, total_length=steps)[0], last

    return run


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "batch_first": True}]
)
@pytest.mark.parametrize("lengths", [LENGTHS, [7] * 5, [7, 6, 5, 2, 1], [1] * 5])
def test_lengths_equal_packing(cell: str, options: dict[str, Any], lengths: list[int]) -> None:
    theirs, ours = make_pair(cell, 3, 6, **options)
    batch, steps = len(lengths), 7
    x = torch.randn((batch, steps, 3) if theirs.batch_first else (steps, batch, 3), dtype=torch.float64)
    x.requires_grad_()
    for states in (None, make_states(theirs, batch)):
        expected = train_step(torch_with_lengths(theirs, lengths), dict(theirs.named_parameters()), x, states)
        parameters = dict(ours.named_parameters())
        for given in (torch.tensor(lengths), lengths, torch.tensor(lengths, dtype=torch.int32)):
            assert_same(train_step(ours, parameters, x, states, lengths=given), expected)


def test_padding_never_matters() -> None:
    module = prnn.nn.LSTM(3, 4, num_layers=2, bidirectional=True, dtype=torch.float64)
    lengths = torch.tensor(LENGTHS)
    parameters = dict(module.named_parameters())
    x = torch.randn(7, 5, 3, dtype=torch.float64)
    dirty = x.masked_fill((torch.arange(7)[:, None] >= lengths)[..., None], float("nan"))
    clean_result = train_step(module, parameters, x.requires_grad_(), lengths=lengths)
    dirty_result = train_step(module, parameters, dirty.requires_grad_(), lengths=lengths)
    for name, tensor in clean_result.items():
        assert torch.equal(tensor, dirty_result[name]), name
    beyond = torch.arange(7)[:, None] >= lengths
    assert not clean_result["output0"][beyond].any()
    assert not clean_result["grad of input"][beyond].any()


def test_batch_order_does_not_matter() -> None:
    module = prnn.nn.GRU(3, 4, bidirectional=True, dtype=torch.float64)
    x, order = torch.randn(7, 5, 3, dtype=torch.float64), torch.tensor([3, 0, 4, 2, 1])
    lengths = torch.tensor(LENGTHS)
    output, last = module(x, lengths=lengths)
    moved_output, moved_last = module(x[:, order], lengths=lengths[order])
    torch.testing.assert_close(moved_output, output[:, order], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(moved_last, last[:, order], rtol=1e-12, atol=1e-12)


def test_a_batch_equals_its_sequences_alone() -> None:
    module = prnn.nn.LSTM(3, 4, num_layers=2, bidirectional=True, dtype=torch.float64)
    sequences = [torch.randn(length, 3, dtype=torch.float64) for length in LENGTHS]
    output, (h, c) = module(pack_sequence(sequences, enforce_sorted=False))
    padded, _ = pad_packed_sequence(output)
    for index, sequence in enumerate(sequences):
        expected = flat(module(sequence))
        found = [padded[: len(sequence), index], h[:, index], c[:, index]]
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_dropout_with_lengths() -> None:
    module = prnn.nn.LSTM(3, 8, num_layers=2, dropout=0.5, dtype=torch.float64)
    x = torch.randn(7, 5, 3, dtype=torch.float64, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return module(x, lengths=LENGTHS)[0]

    assert torch.autograd.gradcheck(function, (x,))
    assert not torch.equal(module(x, lengths=LENGTHS)[0], module(x, lengths=LENGTHS)[0])


@pytest.mark.parametrize("kind", [np.array, np.int32, torch.tensor, torch.IntTensor, torch.ByteTensor, tuple])
def test_lengths_of_every_kind_of_integers(kind: Any) -> None:
    module, x = prnn.nn.GRU(3, 4), torch.randn(5, 3, 3)
    lengths = [kind(length) for length in (2, 5, 1)] if kind is np.int32 else kind([2, 5, 1])
    torch.testing.assert_close(module(x, lengths=lengths), module(x, lengths=[2, 5, 1]), rtol=0, atol=0)

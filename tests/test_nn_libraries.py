"""Libraries that know torch.nn's recurrent layers by what they are called with, and not by a swap: TorchRL's mask, and
torch's counter of floating point operations."""

from typing import Any

import pytest
import torch
from nn_pairs import flat, make
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import prnn

KINDS = {"RNN": prnn.nn.RNN, "GRU": prnn.nn.GRU, "LSTM": prnn.nn.LSTM}


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("cell", KINDS)
def test_a_mask_says_the_lengths(cell: str, batch_first: bool) -> None:
    """As torchrl.modules.LSTMModule and GRUModule call layers that are not of torch.nn's classes."""
    module = KINDS[cell](3, 4, batch_first=batch_first)
    x, lengths = torch.randn(3, 5, 3), torch.tensor([5, 2, 3])
    mask = torch.arange(5).unsqueeze(0) < lengths.unsqueeze(1)
    if not batch_first:
        x, mask = x.transpose(0, 1), mask.T
    for one, other in zip(flat(module(x, None, mask=mask)), flat(module(x, None, lengths=lengths)), strict=True):
        assert torch.equal(one, other)
    compiled: Any = torch.compile(module, backend="eager", fullgraph=True)
    for one, other in zip(flat(compiled(x, mask=mask)), flat(module(x, mask=mask)), strict=True):
        assert torch.equal(one, other)


X, MASK = torch.zeros(5, 2, 3), torch.ones(5, 2, dtype=torch.bool)
PACKED = torch.nn.utils.rnn.pack_padded_sequence(X, torch.tensor([5, 2]))


@pytest.mark.parametrize(
    ("input", "options", "error", "message"),
    [
        (X, {"mask": MASK.int()}, TypeError, "mask has dtype torch.int32; it must have torch.bool"),
        (X, {"mask": [True] * 5}, TypeError, "mask is a list; it must be a tensor"),
        (X, {"mask": MASK.T}, ValueError, r"mask has shape \(2, 5\), and input \(5, 2, 3\)"),
        (X[:, 0], {"mask": MASK[:, 0]}, ValueError, "input must have 3 dimensions"),
        (X, {"mask": MASK, "lengths": [5, 5]}, ValueError, "mask and lengths are given"),
        (X, {"mask": MASK.index_fill(0, torch.tensor([2]), False)}, ValueError, "mask is True after it was False"),
        (X, {"mask": ~MASK}, ValueError, r"lengths\[0\] is 0; it must lie between 1 and the 5 timesteps"),
        (PACKED, {"mask": MASK}, TypeError, "input is a PackedSequence; it must be a tensor"),
    ],
)
def test_wrong_masks(input: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    for module in (prnn.nn.LSTM(3, 4), prnn.nn.GRU(3, 4)):
        with pytest.raises(error, match=message):
            module(input, **options)


def count(module: Any, x: Tensor, **options: Any) -> tuple[int, int]:
    """Operations of a forward pass alone, and of a training step."""
    with FlopCounterMode(display=False) as inference, torch.no_grad():
        module(x, **options)
    with FlopCounterMode(display=False) as training:
        module(x, **options)[0].sum().backward()
    return inference.get_total_flops(), training.get_total_flops()


@pytest.mark.parametrize(
    ("cell", "options", "weights", "first"),
    [
        ("RNN", {}, 6 * (3 + 6), 6 * 3),
        ("LSTM", {"num_layers": 2, "bidirectional": True}, 2 * 24 * (3 + 6 + 12 + 6), 2 * 24 * 3),
        ("LSTM", {"proj_size": 2, "num_layers": 2}, 24 * (3 + 2 + 2 + 2) + 2 * 2 * 6, 24 * 3),
        ("GRU", {"heads": 2}, 18 * (3 + 3), 18 * 3),
    ],
)
def test_floating_point_operations(cell: str, options: dict[str, Any], weights: int, first: int) -> None:
    module, rows = make(prnn.nn, cell, 3, 6, **options), 5 * 2
    assert weights == sum(weight.numel() for weight in module.parameters() if weight.dim() > 1)
    forward = 2 * rows * weights
    x = torch.randn(5, 2, 3)
    assert count(module, x) == (forward, 3 * forward - 2 * rows * first)
    assert count(module, x.requires_grad_(), lengths=[5, 3]) == (forward, 3 * forward)


def test_floating_point_operations_with_layer_normalisation() -> None:
    forward = 2 * 10 * 24 * (3 + 6)
    found = count(prnn.nn.LayerNormLSTM(3, 6), torch.randn(5, 2, 3))
    assert found == (forward, 3 * forward - 2 * 10 * 24 * 3)


def test_recurrent_layers_are_of_torchs_base() -> None:
    """Initialisers may ask for these in the place of torch.nn.LSTM: its reset_parameters() and parameter names."""
    for kind in KINDS.values():
        assert issubclass(kind, torch.nn.RNNBase)

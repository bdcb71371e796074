"""prnn.nn.GRU and RNN with masks on the GPU. The kernels themselves: test_rnn_masks_cuda.py."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from masked_layer_case import check_each_replay_draws_masks, check_formulas_on_gpu
from test_nn_state_masks import EVERY, GRU, RNN
from test_rnn_cuda import why_not
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import prnn

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

MASKS = {"zoneout": 0.2, "recurrent_dropout": 0.1}
TOLERANCES = {torch.float32: 3e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


@pytest.fixture(autouse=True)
def true_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("hidden", [64, 600])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_equals_its_formulas(dtype: torch.dtype, hidden: int, training: bool) -> None:
    module = GRU(40, hidden, 2, bidirectional=True, device="cuda", dtype=dtype, **MASKS).train(training)
    shapes = check_formulas_on_gpu(module, TOLERANCES[dtype])
    assert shapes == ([(6, 3, 4 * hidden), (4, 3, hidden)] if training else [])


@EVERY
@pytest.mark.parametrize("hidden", [64, 600])
def test_each_replay_of_a_graph_draws_masks(make: Callable[..., Any], masks: dict[str, Any], hidden: int) -> None:
    module = make(8, hidden, 2, device="cuda", dtype=torch.float16, **masks)
    check_each_replay_draws_masks(module, torch.float16)


@EVERY
def test_lengths_in_training(make: Callable[..., Any], masks: dict[str, Any]) -> None:
    """As on the CPU with the same masks."""
    module = make(8, 64, 2, bidirectional=True, device="cuda", **masks)
    x = torch.randn(5, 3, 8, device="cuda")
    lengths, found = [2, 5, 4], []
    for arguments in ({"lengths": lengths}, {"lengths": torch.tensor(lengths)}):
        torch.manual_seed(4)
        output, h = module(x, **arguments)
        found.append((output, h))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    module.eval()
    output, h = module(pack_padded_sequence(x, lengths, enforce_sorted=False))
    torch.testing.assert_close((pad_packed_sequence(output)[0], h), module(x, lengths=lengths))


@EVERY
def test_autocast(make: Callable[..., Any], masks: dict[str, Any]) -> None:
    module = make(8, 64, device="cuda", **masks)
    x = torch.randn(5, 3, 8, device="cuda", requires_grad=True)
    found = []
    for enabled in (True, False):
        torch.manual_seed(4)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled):
            found.append(module(x)[0])
    assert found[0].dtype == torch.bfloat16
    torch.testing.assert_close(found[0].float(), found[1], atol=0.05, rtol=0)
    found[0].sum().backward()
    assert module.weight_hh_l0.grad.dtype == torch.float32


def test_what_is_not_served() -> None:
    x = torch.randn(5, 3, 8, device="cuda")
    for options, message in (
        ({"backend": "cudnn"}, "cuDNN has no masks of the recurrence"),
        ({"dtype": torch.float64}, "the data type is double; .*cuDNN has no masks of the recurrence"),
    ):
        module = GRU(8, 64, device="cuda", recurrent_dropout=0.2, **options)
        with pytest.raises(prnn.NotSupportedError, match=message):
            module(x.to(module.weight_hh_l0.dtype))
    with pytest.raises(prnn.NotSupportedError, match="hidden size 9000 is more than stays resident"):
        RNN(8, 9000, device="cuda", recurrent_dropout=0.2)(x)

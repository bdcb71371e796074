"""prnn.nn.LSTM with zoneout and recurrent dropout on the GPU. The kernels themselves: test_layer_norm_lstm_cuda.py."""

import pytest
import torch
from masked_layer_case import (
    check_autocast_on_gpu,
    check_each_replay_draws_masks,
    check_graph_reads_lengths_anew,
    check_packed_sequences_on_gpu,
)
from test_nn_masks import LSTM, run_written_out
from test_rnn_cuda import why_not

import prnn

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

MASKS = {"zoneout": 0.2, "recurrent_dropout": 0.1}
TOLERANCES = {torch.float64: 1e-11, torch.float32: 3e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


@pytest.mark.parametrize("hidden", [64, 600])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_equals_its_formulas(dtype: torch.dtype, hidden: int) -> None:
    """Beside torch operations in float64 with the same masks."""
    module = LSTM(40, hidden, 2, bidirectional=True, device="cuda", dtype=dtype, **MASKS)
    twin = LSTM(40, hidden, 2, bidirectional=True, device="cuda", dtype=torch.float64)
    twin.load_state_dict(module.state_dict())
    twin.zoneout = twin.recurrent_dropout = 0.0
    input = torch.randn(6, 3, 40, device="cuda", dtype=dtype, requires_grad=True)
    drawn: list[torch.Tensor] = []
    bernoulli = torch.Tensor.bernoulli_

    def draw(tensor: torch.Tensor, probability: float) -> torch.Tensor:
        drawn.append(bernoulli(tensor, probability).clone())
        return tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "bernoulli_", draw)
        output, (h, c) = module(input)
    (output.sum() + h.sum() + c.sum()).backward()
    assert [mask.shape for mask in drawn] == [(6, 3, hidden), (3, hidden)] * 4

    masks = iter(drawn)
    twin.zoneout, twin.recurrent_dropout = MASKS["zoneout"], MASKS["recurrent_dropout"]
    exact = input.detach().double().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "bernoulli_", lambda tensor, _: next(masks).to(tensor))
        expected, (h2, c2) = run_written_out(twin, exact)
    (expected.sum() + h2.sum() + c2.sum()).backward()
    pairs = [(output, expected), (h, h2), (c, c2), (input.grad, exact.grad)]
    pairs += [(p.grad, q.grad) for p, q in zip(module.parameters(), twin.parameters(), strict=True)]
    for ours, theirs in pairs:
        assert (ours.double() - theirs).abs().max() <= TOLERANCES[dtype] * theirs.abs().max()


@pytest.mark.parametrize("hidden", [64, 600])
def test_each_replay_of_a_graph_draws_masks(hidden: int) -> None:
    module = LSTM(8, hidden, 2, device="cuda", dtype=torch.float16, **MASKS)
    check_each_replay_draws_masks(module, torch.float16)


def test_a_graph_reads_lengths_anew() -> None:
    check_graph_reads_lengths_anew(LSTM(8, 64, 2, device="cuda", zoneout=0.2).eval())


def test_packed_sequences() -> None:
    check_packed_sequences_on_gpu(LSTM(8, 600, 2, bidirectional=True, device="cuda", zoneout=0.2).eval())


def test_autocast() -> None:
    check_autocast_on_gpu(LSTM(8, 64, device="cuda", zoneout=0.2).eval())


def test_backends() -> None:
    x = torch.randn(5, 3, 8, device="cuda")
    for hidden in (64, 600):
        module = LSTM(8, hidden, device="cuda", backend="persistent", zoneout=0.2).eval()
        twin = LSTM(8, hidden, device="cuda", zoneout=0.2).eval()
        twin.load_state_dict(module.state_dict())
        assert torch.equal(module(x)[0], twin(x)[0])
    module = LSTM(8, 1100, device="cuda", backend="persistent", zoneout=0.2)
    with pytest.raises(prnn.NotSupportedError, match=r"backend is 'persistent', but zoneout is 0\.2: .* 1100 units"):
        module(x)
    module = LSTM(8, 64, device="cuda", backend="cudnn", recurrent_dropout=0.2)
    with pytest.raises(prnn.NotSupportedError, match=r"backend is 'cudnn', but recurrent_dropout is 0\.2"):
        module(x)
    module.eval()(x)

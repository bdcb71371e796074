"""prnn.nn.LSTM with zoneout and recurrent dropout on the GPU. The kernels themselves: test_layer_norm_lstm_cuda.py."""

from collections.abc import Callable

import pytest
import torch
from masked_layer_case import (
    check_autocast_on_gpu,
    check_each_replay_draws_masks,
    check_formulas_on_gpu,
    check_graph_keeps_lengths_of_the_host,
    check_graph_reads_lengths_anew,
    check_packed_sequences_on_gpu,
)
from test_rnn_cuda import why_not

import prnn
from prnn import _options

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

LSTM = prnn.nn.LSTM
MASKS = {"zoneout": 0.2, "recurrent_dropout": 0.1}
TOLERANCES = {torch.float64: 1e-11, torch.float32: 3e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


@pytest.mark.parametrize("hidden", [64, 600])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_equals_its_formulas(dtype: torch.dtype, hidden: int) -> None:
    module = LSTM(40, hidden, 2, bidirectional=True, device="cuda", dtype=dtype, **MASKS)
    assert check_formulas_on_gpu(module, TOLERANCES[dtype]) == [(6, 3, 4 * hidden), (4, 3, hidden)]


@pytest.mark.parametrize(("dtype", "hidden", "batch"), [(torch.bfloat16, 1024, 80), (torch.float32, 200, 3)], ids=str)
def test_batches_of_other_kernels(dtype: torch.dtype, hidden: int, batch: int) -> None:
    """The other kernels are LayerNormLSTM's, with the same masks."""
    module = LSTM(40, hidden, 2, bidirectional=True, device="cuda", dtype=dtype, **MASKS)
    x, found = torch.randn(6, batch, 40, device="cuda", dtype=dtype, requires_grad=True), []
    (engine,) = prnn.explain(module, batch).layers
    assert engine.forward == ("steps" if batch == 80 else "cluster")
    for chosen in (None, True):
        with pytest.MonkeyPatch.context() as patch:
            if chosen is not None:
                patch.setattr(_options, "are_in_kernels", lambda *_: True)
            torch.manual_seed(3)
            output, _ = module(x)
            found.append((output, *torch.autograd.grad(output.float().sin().sum(), [x, *module.parameters()])))
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() <= TOLERANCES[dtype] * theirs.abs().max()


@pytest.mark.parametrize("hidden", [64, 600])
def test_each_replay_of_a_graph_draws_masks(hidden: int) -> None:
    module = LSTM(8, hidden, 2, device="cuda", dtype=torch.float16, **MASKS)
    check_each_replay_draws_masks(module, torch.float16)


def test_a_graph_reads_lengths_anew() -> None:
    check_graph_reads_lengths_anew(LSTM(8, 64, 2, device="cuda", zoneout=0.2).eval())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_graph_keeps_lengths_of_the_host(dtype: torch.dtype) -> None:
    """On the kernels of LayerNormLSTM, and on the plain ones."""
    module = LSTM(8, 64, 2, device="cuda", dtype=dtype, zoneout=0.2).eval()
    check_graph_keeps_lengths_of_the_host(module, (5, 1, 3))


def test_packed_sequences() -> None:
    check_packed_sequences_on_gpu(LSTM(8, 600, 2, bidirectional=True, device="cuda", zoneout=0.2).eval())


def test_autocast() -> None:
    check_autocast_on_gpu(LSTM(8, 64, device="cuda", zoneout=0.2).eval())


@pytest.mark.parametrize("training", [True, False])
def test_compiles(training: bool) -> None:
    """On the kernels of LayerNormLSTM, with the masks that the module draws."""
    torch.compiler.reset()
    module = LSTM(8, 64, 2, device="cuda", **MASKS).train(training)
    x, results = torch.randn(5, 3, 8, device="cuda", requires_grad=True), []
    for call in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(1)
        results.append(call(x)[0])
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(result.sum(), x)[0] for result in results))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [prnn.nn.LSTM, prnn.nn.GRU, prnn.nn.RNN, prnn.nn.LayerNormLSTM])
def test_no_sequences(make: Callable[..., torch.nn.Module], training: bool) -> None:
    masks = {name: value for name, value in MASKS.items() if make is not prnn.nn.RNN or name != "zoneout"}
    module = make(6, 16, 2, device="cuda", **masks).train(training)
    x, reset = (
        torch.randn(5, 0, 6, device="cuda", requires_grad=True),
        torch.zeros(5, 0, dtype=torch.bool, device="cuda"),
    )
    for options in ({}, {"reset": reset}):
        output, state = module(x, **options)
        assert output.shape == (5, 0, 16)
        assert all(s.shape == (2, 0, 16) for s in (state if isinstance(state, tuple) else [state]))
        (output.sum() + 0 * x.sum()).backward()
        assert all(not parameter.grad.any() for parameter in module.parameters())


def test_backends() -> None:
    x = torch.randn(5, 3, 8, device="cuda")
    for hidden in (64, 600):
        module = LSTM(8, hidden, device="cuda", backend="persistent", zoneout=0.2).eval()
        twin = LSTM(8, hidden, device="cuda", zoneout=0.2).eval()
        twin.load_state_dict(module.state_dict())
        assert torch.equal(module(x)[0], twin(x)[0])
    module = LSTM(8, 2500, device="cuda", backend="persistent", zoneout=0.2)
    with pytest.raises(
        prnn.NotSupportedError, match=r"do not stay on the chip, which has room for hidden sizes up to \d"
    ):
        module(x)
    module = LSTM(8, 64, device="cuda", backend="cudnn", recurrent_dropout=0.2)
    with pytest.raises(prnn.NotSupportedError, match=r"backend is 'cudnn', but recurrent_dropout is 0\.2"):
        module(x)
    module.eval()(x)

"""prnn.nn.LSTM with zoneout and recurrent dropout on the GPU. The kernels themselves: test_rnn_masks_cuda.py."""

from collections.abc import Callable

import pytest
import torch
from masked_layer_case import (
    check_autocast_on_gpu,
    check_each_replay_draws_masks,
    check_formulas_on_gpu,
    check_graph_keeps_lengths_of_the_host,
    check_packed_sequences_on_gpu,
)
from test_rnn_cuda import why_not

import prnn

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

LSTM = prnn.nn.LSTM
MASKS = {"zoneout": 0.2, "recurrent_dropout": 0.1}
TOLERANCES = {torch.float32: 3e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


@pytest.mark.parametrize("hidden", [64, 600])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_equals_its_formulas(dtype: torch.dtype, hidden: int) -> None:
    module = LSTM(40, hidden, 2, bidirectional=True, device="cuda", dtype=dtype, **MASKS)
    assert check_formulas_on_gpu(module, TOLERANCES[dtype]) == [(6, 3, 4 * hidden), (4, 3, hidden)]


@pytest.mark.parametrize("hidden", [64, 600])
def test_each_replay_of_a_graph_draws_masks(hidden: int) -> None:
    module = LSTM(8, hidden, 2, device="cuda", dtype=torch.float16, **MASKS)
    check_each_replay_draws_masks(module, torch.float16)


def test_a_graph_keeps_lengths_of_the_host() -> None:
    check_graph_keeps_lengths_of_the_host(LSTM(8, 64, 2, device="cuda", zoneout=0.2).eval(), (5, 1, 3))


def test_packed_sequences() -> None:
    check_packed_sequences_on_gpu(LSTM(8, 600, 2, bidirectional=True, device="cuda", zoneout=0.2).eval())


def test_autocast() -> None:
    check_autocast_on_gpu(LSTM(8, 64, device="cuda", zoneout=0.2).eval())


@pytest.mark.parametrize("training", [True, False])
def test_compiles(training: bool) -> None:
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


@pytest.mark.filterwarnings("ignore:prnn. not the persistent kernels")  # of double
def test_what_is_not_served() -> None:
    x = torch.randn(5, 3, 8, device="cuda")
    no_cudnn = "cuDNN has no masks of the recurrence"
    for options, message in (
        ({"backend": "cudnn"}, no_cudnn),
        ({"dtype": torch.float64}, f"the data type is double; .*{no_cudnn}"),
        ({"dtype": torch.float64, "backend": "persistent"}, "the data type is double"),
        ({"hidden_size": 2500}, f"hidden size 2500 is more than stays resident.*{no_cudnn}"),
        ({"hidden_size": 2500, "backend": "persistent"}, "hidden size 2500 is more than stays resident"),
    ):
        module = LSTM(**{"input_size": 8, "hidden_size": 64, "recurrent_dropout": 0.2, "device": "cuda"} | options)
        input = x.to(module.weight_hh_l0.dtype)
        with pytest.raises(prnn.NotSupportedError, match=message):
            module(input)
        with pytest.raises(prnn.NotSupportedError, match=message):
            module(input, reset=torch.zeros(5, 3, dtype=torch.bool, device="cuda"), return_cells=True)
        if module.hidden_size == 64 and module.backend != "persistent":
            module.eval()(input)  # without masks

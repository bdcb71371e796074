"""Zoneout and recurrent dropout together with reset= and heads= on the GPU. On the CPU: test_nn_masks_reset.py."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from masked_layer_case import check_each_replay_draws_masks, check_formulas_on_gpu, flatten
from test_nn_masks_reset import BOTH, CELLS
from test_rnn_cuda import why_not

import prnn

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

TOLERANCES = {torch.float32: 3e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


@pytest.fixture(autouse=True)
def true_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def flags() -> torch.Tensor:
    return torch.rand(6, 3, device="cuda") < 0.3


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("hidden", [64, 600])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@CELLS
def test_reset(make: Callable[..., Any], dtype: torch.dtype, hidden: int, training: bool) -> None:
    module = make(40, hidden, 2, bidirectional=True, device="cuda", dtype=dtype, **BOTH).train(training)
    check_formulas_on_gpu(module, TOLERANCES[dtype], reset=flags())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("heads", "hidden"), [(2, 128), (3, 1200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@CELLS
def test_heads(make: Callable[..., Any], dtype: torch.dtype, heads: int, hidden: int, training: bool) -> None:
    module = make(40, hidden, bidirectional=True, heads=heads, device="cuda", dtype=dtype, **BOTH).train(training)
    check_formulas_on_gpu(module, TOLERANCES[dtype], reset=flags())


@pytest.mark.parametrize("heads", [1, 2])
@CELLS
def test_a_graph_reads_flags_and_draws_masks_anew(make: Callable[..., Any], heads: int) -> None:
    module = make(8, 64, 2, heads=heads, device="cuda", dtype=torch.float16, **BOTH)
    check_each_replay_draws_masks(module, torch.float16)
    module.eval()
    x, reset = torch.randn(6, 3, 8, device="cuda", dtype=torch.float16), flags()
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        module(x, reset=reset)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            output, _ = module(x, reset=reset)
        stream.synchronize()
        reset.logical_not_()
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(output, module(x, reset=reset)[0])


@CELLS
def test_lengths_and_layouts(make: Callable[..., Any]) -> None:
    module = make(8, 64, batch_first=True, device="cuda", **BOTH).eval()
    x, reset, lengths = torch.randn(3, 6, 8, device="cuda"), flags().T, [2, 6, 4]
    output, *_ = flatten(module(x, reset=reset, lengths=lengths))
    for n, length in enumerate(lengths):
        alone, _ = module(x[n, :length], reset=reset[n, :length])
        torch.testing.assert_close(output[n, :length], alone)
        assert (output[n, length:] == 0).all()


@CELLS
def test_what_is_not_served(make: Callable[..., Any]) -> None:
    x, reset = torch.randn(6, 3, 8, device="cuda"), flags()
    with pytest.raises(prnn.NotSupportedError, match=r"the data type is double; .*cuDNN has no masks of the"):
        make(8, 64, device="cuda", dtype=torch.float64, **BOTH)(x.double(), reset=reset)
    with pytest.raises(prnn.NotSupportedError, match="cuDNN has no masks of the recurrence"):
        make(8, 64, device="cuda", backend="cudnn", **BOTH)(x, reset=reset)

"""Calls of prnn_call.h on the GPU: the bits of cuDNN v5's functions, also from a captured graph."""

import ctypes

import capi
import pytest
import torch
from layer_norm_lstm_c_case import GRADIENTS, INPUTS, NONE, CCase
from layer_norm_lstm_case import call_layer
from reference import rnn as reference
from test_prepared_calls import RUNS, Prepared
from test_rnn_cuda import CudaCase, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

LSTM, GRU, TANH = reference.LSTM, reference.GRU, reference.RNN_TANH
HALF, BFLOAT16, FLOAT = torch.float16, torch.bfloat16, torch.float32


def reset_outputs(case: CudaCase) -> None:
    for name in ("y", "hy", "cy", "dx", "dhx", "dcx"):
        case.data[name].fill_(case.UNTOUCHED)
    case.data["dw"].zero_()


@pytest.mark.parametrize(
    ("stack", "batch_sizes", "dtype"),
    [
        (reference.Stack(LSTM, 80, 512, 1, 2), [16] * 12, BFLOAT16),
        (reference.Stack(LSTM, 80, 512, 5, 1), [8, 8, 7, 5, 2], BFLOAT16),
        (reference.Stack(LSTM, 80, 1024, 3, 1), [4] * 128, HALF),
        (reference.Stack(GRU, 80, 1024, 3, 1), [32] * 40, HALF),
        (reference.Stack(LSTM, 80, 640, 2, 1, projection=128), [8] * 20, BFLOAT16),
        (reference.Stack(GRU, 80, 300, 2, 2), [4] * 9, FLOAT),
        (reference.Stack(TANH, 80, 1500, 1, 1), [3] * 9, FLOAT),
    ],
    ids=str,
)
def test_the_bits_of_the_other_functions(stack: reference.Stack, batch_sizes: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    case = CudaCase(stack, batch_sizes, dtype)
    case.train()
    expected = case.results()
    prepared = Prepared(case)
    assert prepared.info.reserveSize == case.reserve.numel()
    for size in (prepared.info.reserveSize, prepared.info.retainedReserveSize):
        reset_outputs(case)
        for name in RUNS:
            assert prepared.run(name, reserveSize=size) == capi.SUCCESS, prepared.message()
        assert all(torch.equal(case.data[name], value) for name, value in expected.items())


@pytest.mark.parametrize(("hidden", "batch", "engine"), [(64, 3, b"cluster"), (640, 3, b"grid"), (3000, 2, b"steps")])
@pytest.mark.parametrize("normalize", [0, 1, NONE])
def test_lstms_on_the_input_of_their_gates(normalize: int, hidden: int, batch: int, engine: bytes) -> None:
    """With lengths that the host does not look at, and what the resident kernels alone refuse."""
    case = CCase(BFLOAT16, 9, batch, hidden, normalize=normalize, direction=2, zoneout=True, device="cuda")
    assert (case.info.forwardEngine, case.info.backwardEngine) == (engine, engine)
    case.data["lengths"] = torch.arange(9, 9 - batch, -1, dtype=torch.int32, device="cuda")
    arrays = [None if (a := case.data.get(name)) is None else a.clone() for name in INPUTS]
    for array in arrays[:8]:
        if array is not None:
            array.requires_grad_()
    y, cy = call_layer(*arrays, normalize, True, 1e-5, 0.0)
    torch.autograd.backward([y, cy], [case.data["dy"], case.data["dcy"]])
    torch.cuda.synchronize()
    case.check("Forward")
    case.check("Backward")
    for name, expected in {"y": y, "hy": y[0], "cy": cy}.items():
        assert torch.equal(case.data[name], expected), name
    for name, array in zip(GRADIENTS, arrays, strict=False):
        assert array is None or torch.equal(case.data[name], array.grad), name
    capi.check("SetRNNBackend", rnnDesc=case.rnn.pointer, backend=0)
    status = case.call("Prepare", call=ctypes.byref(ctypes.c_void_p()))
    assert status == (capi.NOT_SUPPORTED if engine == b"steps" else capi.SUCCESS)
    assert status == capi.SUCCESS or "the weights of the layer do not stay on the chip" in case.message()


def test_a_captured_step() -> None:
    torch.manual_seed(0)
    case = CudaCase(reference.Stack(LSTM, 80, 512, 3, 1), [8] * 20, BFLOAT16)
    prepared = Prepared(case)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    capi.check("SetStream", handle=case.handle.pointer, stream=stream.cuda_stream)
    with torch.cuda.graph(graph, stream=stream):
        for name in RUNS:
            assert prepared.run(name) == capi.SUCCESS, prepared.message()
    capi.check("SetStream", handle=case.handle.pointer, stream=None)
    case.train()
    expected = case.results()
    reset_outputs(case)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(case.data[name], value) for name, value in expected.items())


def test_data_that_is_not_aligned() -> None:
    """The plan of such data runs in the place of the prepared one."""
    torch.manual_seed(0)
    case = CudaCase(reference.Stack(LSTM, 80, 512, 3, 1), [8] * 20, BFLOAT16)
    case.train()
    expected = case.results()
    prepared = Prepared(case)
    y = torch.empty(case.data["y"].numel() + 1, dtype=BFLOAT16, device="cuda")[1:]
    reset_outputs(case)
    assert prepared.run("RunRNNForward", y=y.data_ptr()) == capi.SUCCESS, prepared.message()
    torch.testing.assert_close(y.view_as(expected["y"]), expected["y"], rtol=0.05, atol=0.02)

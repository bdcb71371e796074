"""prnnSetRNNExtras on the GPU, every engine that has it: against the float64 reference."""

import ctypes
import itertools
from typing import Any

import capi
import pytest
import torch
from reference import rnn as reference
from test_rnn_cuda import MODES, TOLERANCE, CudaCase, why_not
from test_rnn_extras import ExtrasCase
from test_rnn_query import Info

import prnn

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

ALL = ("reset", "cells", "dcells")
LSTM, GRU, TANH, RELU = reference.LSTM, reference.GRU, reference.RNN_TANH, reference.RNN_RELU
HALF, BFLOAT16, FLOAT = torch.float16, torch.bfloat16, torch.float32


class GpuCase(ExtrasCase, CudaCase):
    """ExtrasCase in GPU memory."""

    def engines(self) -> tuple[str, str]:
        info = Info()
        capi.check(
            "QueryRNNSequence",
            handle=self.handle.pointer,
            gpu=None,
            rnnDesc=self.rnn.pointer,
            seqLength=len(self.batch_sizes),
            xDesc=self.x_desc,
            info=ctypes.addressof(info),
        )
        return info.forwardEngine.decode(), info.backwardEngine.decode()

    def compare(self, names: tuple[str, ...]) -> None:
        for name, (result, expected) in self.run(names).items():
            found, wanted = result.double(), expected.double()
            error = ((found - wanted).norm() / wanted.norm().clamp_min(1e-6)).item()
            assert error < TOLERANCE[self.dtype], f"{name}: relative error {error:.2e}"


def extras_of(mode: int) -> tuple[str, ...]:
    return ALL if mode == LSTM else ALL[:1]


@pytest.mark.parametrize(
    ("batch_sizes", "dtype"),
    [
        *itertools.product([[3] * 5, [5, 4, 4, 2, 1, 1], [1] * 4, [9, 7], [33] * 3], [HALF, BFLOAT16]),
        *itertools.product([[3] * 5, [4, 4, 3, 1], [1] * 4, [9, 7, 7, 2]], [FLOAT]),
    ],
    ids=str,
)
@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_training_step(mode: int, layers: int, directions: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    GpuCase(reference.Stack(mode, 24, 40, layers, directions), batch_sizes, dtype).compare(extras_of(mode))


@pytest.mark.parametrize(
    ("engine", "mode", "hidden", "directions", "batch_sizes", "dtype"),
    [
        ("cluster", LSTM, 100, 1, [56] * 6, HALF),
        ("cluster", GRU, 256, 2, [40, 33, 33, 2], BFLOAT16),
        ("cluster", LSTM, 512, 2, [20] * 6, HALF),
        ("cluster", LSTM, 512, 1, [56] * 4, BFLOAT16),
        ("cluster", TANH, 500, 1, [8] * 5, HALF),
        ("simt", LSTM, 256, 1, [4] * 6, FLOAT),
        ("simt", GRU, 256, 2, [2] * 6, FLOAT),
        ("simt", GRU, 1000, 1, [1] * 6, FLOAT),
        ("simt", LSTM, 1000, 1, [1] * 6, FLOAT),
        ("simt", GRU, 1100, 1, [1] * 6, FLOAT),
        ("simt", TANH, 1500, 1, [4, 4, 3, 2], FLOAT),
        ("simt", TANH, 1000, 1, [4, 4, 3, 2], FLOAT),
        ("simt", RELU, 400, 2, [3, 2, 2], FLOAT),
        ("mma", LSTM, 1024, 1, [16] * 5, HALF),
        ("mma", LSTM, 512, 2, [64, 64, 9, 9], BFLOAT16),
        ("mma", LSTM, 2000, 1, [5, 5, 3], HALF),
        ("mma", GRU, 1024, 1, [72, 60, 9, 9], BFLOAT16),
        ("mma", GRU, 600, 2, [8] * 5, HALF),
        ("mma", GRU, 2100, 1, [3] * 4, HALF),
        ("mma", TANH, 1024, 2, [40] * 4, HALF),
        ("mma", RELU, 4000, 1, [2] * 4, BFLOAT16),
        ("mma", LSTM, 1000, 1, [12] * 5, FLOAT),
        ("mma", LSTM, 256, 2, [30, 30, 17, 2], FLOAT),
        ("mma", GRU, 512, 2, [33, 20, 20, 1], FLOAT),
        ("mma", TANH, 700, 2, [9, 9, 8], FLOAT),
        ("mma", LSTM, 512, 1, [600, 600, 520], HALF),
        ("mma", GRU, 256, 1, [700] * 3, FLOAT),
    ],
)
def test_engines(
    engine: str, mode: int, hidden: int, directions: int, batch_sizes: list[int], dtype: torch.dtype
) -> None:
    torch.manual_seed(2)
    case = GpuCase(reference.Stack(mode, 24, hidden, 1, directions), batch_sizes, dtype)
    case.compare(extras_of(mode))
    if "H200" in torch.cuda.get_device_name():
        assert case.engines() == (engine, engine)


@pytest.mark.parametrize("names", [("reset",), ("cells",), ("dcells",), ("reset", "dcells"), ()])
@pytest.mark.parametrize("dtype", [HALF, FLOAT], ids=["half", "float"])
def test_any_subset(names: tuple[str, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    GpuCase(reference.Stack(LSTM, 16, 64, 2), [4] * 6, dtype).compare(names)


@pytest.mark.parametrize(("hidden", "batch"), [(600, 4), (1024, 40), (2300, 4)])
def test_every_kernel_fills_cells(hidden: int, batch: int) -> None:
    torch.manual_seed(3)
    GpuCase(reference.Stack(LSTM, 16, hidden, 2), [batch] * 6, HALF).compare(("cells",))


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("batch_sizes", [[8] * 40, [8] * 20 + [3] * 20], ids=["uniform", "ragged"])
@pytest.mark.parametrize("extras", [(), ("reset",)], ids=["plain", "reset"])
def test_no_call_writes_beyond_the_workspace_of_a_training_step(
    mode: int, batch_sizes: list[int], extras: tuple[str, ...]
) -> None:
    case = GpuCase(reference.Stack(mode, 8, 64), batch_sizes, HALF)
    case.set_extras(extras)
    workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
    capi.check(
        "GetRNNTempSpaceSizes",
        handle=case.handle.pointer,
        rnnDesc=case.rnn.pointer,
        fwdMode=1,
        seqLength=len(batch_sizes),
        xDesc=case.x_desc,
        workSpaceSize=ctypes.byref(workspace),
        reserveSpaceSize=ctypes.byref(reserve),
    )
    case.workspace = torch.full((workspace.value + 2**20,), 0x5A, dtype=torch.uint8, device="cuda")
    for name in ("RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights"):
        case.check(name, workSpaceSizeInBytes=workspace.value)
        assert (case.workspace[workspace.value :] == 0x5A).all(), name


def test_inference() -> None:
    torch.manual_seed(4)
    for mode in MODES.values():
        case = GpuCase(reference.Stack(mode, 16, 64, 2, 2), [6, 6, 5, 2], HALF)
        expected = case.run(("reset",))["y"][0]
        case.data["y"] = torch.full_like(expected, case.UNTOUCHED)
        case.set_extras(("reset",))
        case.check("RNNForwardInference")
        assert torch.equal(case.data["y"], expected)


@pytest.mark.parametrize(
    ("options", "batch", "reason"),
    [
        ({"hidden": 64, "projection": 8}, 2, "layers with a projection have no resets and no c of every timestep"),
        ({"hidden": 2300}, 2, "are of kernels that have no room for 2 sequences of hidden size 2300"),
    ],
)
def test_what_no_kernel_serves(options: dict[str, int], batch: int, reason: str) -> None:
    case = GpuCase(reference.Stack(LSTM, 16, **options), [batch] * 2, HALF)
    extras = capi.Extras(reset=case.reset.data_ptr())
    capi.check("SetRNNExtras", rnnDesc=case.rnn.pointer, extras=ctypes.addressof(extras))
    assert case.call("RNNForwardTraining") == capi.NOT_SUPPORTED
    assert reason in capi.message(case.handle.pointer)


@pytest.mark.parametrize("dtype", [FLOAT, HALF])
def test_modules_and_a_graph(dtype: torch.dtype) -> None:
    """The flags lie on the GPU, and nobody waits for them: another replay reads others."""
    torch.manual_seed(5)
    module = prnn.nn.LSTM(32, 64, 2, device="cuda", dtype=dtype)
    x, reset = torch.randn(20, 4, 32, device="cuda", dtype=dtype), torch.zeros(20, 4, device="cuda", dtype=torch.bool)

    def step() -> list[Any]:
        output, _, cells = module(x, reset=reset, return_cells=True)
        return [output, cells, *torch.autograd.grad((output + cells).sum(), list(module.parameters()))]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for seed in range(3):
        torch.manual_seed(seed)
        reset.copy_(torch.rand(20, 4) < 0.2)
        graph.replay()
        replayed = [tensor.clone() for tensor in captured]
        for mine, wanted in zip(replayed, step(), strict=True):
            assert torch.equal(mine, wanted)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [({}, torch.float64), ({}, FLOAT), ({"bidirectional": True}, HALF), ({"proj_size": 16, "num_layers": 2}, HALF)],
)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.filterwarnings("ignore:prnn. not the persistent kernels")  # of double, once a process
def test_other_layers_sequences_are_cut(options: dict[str, int], dtype: torch.dtype, given: bool) -> None:
    torch.manual_seed(6)
    module = prnn.nn.LSTM(24, 48, dtype=dtype, **options)
    x, reset = torch.randn(20, 6, 24, dtype=dtype), torch.rand(20, 6) < 0.2
    size = options.get("proj_size", 48)
    count = module.num_layers * (2 if module.bidirectional else 1)
    states = [torch.randn(count, 6, width, dtype=dtype) for width in (size, 48)]

    def results(module: torch.nn.Module, device: str) -> list[torch.Tensor]:
        leaves = [tensor.to(device).requires_grad_() for tensor in (x.clone(), *states)]
        reset_hx = tuple(leaves[1:]) if given else None
        output, last = module(leaves[0], tuple(leaves[1:]), reset=reset.to(device), reset_hx=reset_hx)
        grads = torch.autograd.grad(output.square().sum(), [*leaves, *module.parameters()])
        return [tensor.double().cpu() for tensor in (output, *last, *grads)]

    expected = results(module, "cpu")
    tolerance = {torch.float64: 1e-10, FLOAT: 5e-3, HALF: 2e-2}[dtype]  # float32 is tf32 on the GPU
    for mine, wanted in zip(results(module.cuda(), "cuda"), expected, strict=True):
        assert (mine - wanted).norm() <= tolerance * wanted.norm().clamp_min(1e-6)


def test_the_gradient_of_c_where_no_kernel_takes_it() -> None:
    """Cells come from any kernel, and a gradient of the output alone goes through any."""
    module = prnn.nn.LSTM(24, 2300, device="cuda", dtype=HALF)
    output, _, cells = module(torch.randn(5, 4, 24, device="cuda", dtype=HALF), return_cells=True)
    output.sum().backward(retain_graph=True)
    with pytest.raises(prnn.NotSupportedError, match="no room for 4 sequences of hidden size 2300"):
        cells.sum().backward()

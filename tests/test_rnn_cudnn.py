"""The cuDNN backend: the same packed weights and the same results as the resident kernels, and what only it serves."""

import ctypes
import itertools
from typing import Any

import capi
import pytest
import torch
from reference import rnn as reference
from rnn_case import OUTPUTS
from test_rnn_cuda import MODES, TOLERANCE, TYPES, CudaCase, assert_results, why_not
from test_rnn_query import Info

import prnn

PERSISTENT, CUDNN, BEST = range(3)
ALLOW_CONVERSION = 2


def why_no_cudnn() -> str:
    if reason := why_not():
        return reason
    try:
        prnn._C.Rnn(prnn._C.LSTM, prnn._C.HALF, 8, 1, 8, False, projection=4).reserve_size(prnn._C.Handle.cuda(), [1])
    except prnn.NotSupportedError as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(why_no_cudnn()), reason=f"needs a GPU and cuDNN: {why_no_cudnn()}")


class CudnnCase(CudaCase):
    """CudaCase with a backend and a math type."""

    def __init__(self, *arguments: Any, backend: int = CUDNN, math: int = 0, **changes: Any) -> None:
        self.backend, self.math = backend, math
        super().__init__(*arguments, **changes)

    def set_rnn(self, **changes: Any) -> None:
        super().set_rnn(**changes)
        capi.check("SetRNNBackend", rnnDesc=self.rnn.pointer, backend=self.backend)
        capi.check("SetRNNMatrixMathType", rnnDesc=self.rnn.pointer, mType=self.math)

    def query(self) -> Info:
        info = Info()
        capi.check(
            "QueryRNN",
            handle=self.handle.pointer,
            rnnDesc=self.rnn.pointer,
            xDesc=self.x_descs[0].pointer,
            info=ctypes.byref(info),
        )
        return info


# cuDNN keeps the cell state of a 16-bit LSTM in 16 bits.
SLACK = 2


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("batch_sizes", [[3] * 5, [5, 4, 4, 2, 1, 1], [1]], ids=str)
@pytest.mark.parametrize(("layers", "directions", "skip"), [(1, 1, False), (3, 1, False), (2, 2, False), (1, 2, True)])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_training_step(
    mode: int, layers: int, directions: int, skip: bool, batch_sizes: list[int], dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    stack = reference.Stack(mode, 40 if skip else 24, 40, layers, directions, skip)
    case = CudnnCase(stack, batch_sizes, dtype)
    case.train()
    assert_results(case, slack=SLACK)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("batch_sizes", [[3] * 5, [5, 4, 4, 2, 1, 1]], ids=str)
@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (3, 2)])
def test_projection(layers: int, directions: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    stack = reference.Stack(reference.LSTM, 24, 40, layers, directions, projection=16)
    case = CudnnCase(stack, batch_sizes, dtype, backend=BEST)
    info = case.query()
    assert (info.supported, info.backend) == (0, CUDNN)
    assert info.reason == b"projSize is 16; the resident kernels have no projection"
    case.train()
    assert_results(case, slack=SLACK)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_inference_without_states(mode: int) -> None:
    torch.manual_seed(3)
    case = CudnnCase(reference.Stack(mode, 16, 64, 2, 2), [6, 6, 5, 2], torch.float16)
    case.check("RNNForwardInference")
    assert_results(case, ("y", "hy", "cy"), slack=SLACK)
    case.data["hx"].zero_()
    case.data["cx"].zero_()
    case.check("RNNForwardInference", hx=None, cx=None, hy=None, cy=None)
    assert_results(case, ("y",), slack=SLACK)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_nothing_that_is_not_wanted(mode: int) -> None:
    """Without dx and the states' gradients, and into dw that holds something already."""
    torch.manual_seed(4)
    case = CudnnCase(reference.Stack(mode, 24, 40, 2), [4, 3], torch.float32)
    case.data["dw"].fill_(2)
    case.check("RNNForwardTraining")
    case.check("RNNBackwardData", dx=None, dhx=None, dcx=None)
    case.check("RNNBackwardWeights")
    expected = case.expected()["dw"] + 2
    assert ((case.data["dw"].double() - expected).norm() / expected.norm()).item() < TOLERANCE[torch.float32]
    for name in ("dx", "dhx", "dcx"):
        assert torch.all(case.data[name] == case.UNTOUCHED), name


@pytest.mark.parametrize(("mode", "hidden"), [(reference.LSTM, 2600), (reference.RNN_TANH, 5000)])
def test_best_goes_on_beyond_the_resident_limit(mode: int, hidden: int) -> None:
    torch.manual_seed(5)
    stack = reference.Stack(mode, 16, hidden)
    with pytest.raises(AssertionError, match=f"9: hidden size {hidden} is more than stays resident"):
        CudnnCase(stack, [4] * 3, torch.float16, backend=PERSISTENT)
    case = CudnnCase(stack, [4] * 3, torch.float16, backend=BEST)
    assert case.query().backend == CUDNN
    case.train()
    assert_results(case, slack=SLACK)


def test_best_takes_the_faster_for_the_largest_layers() -> None:
    """Of 16-bit layers that only the large-layer kernels hold, larger batches go to cuDNN."""
    torch.manual_seed(6)
    stack = reference.Stack(reference.LSTM, 16, 2300)
    small, large = (CudnnCase(stack, [batch] * 2, torch.float16, backend=BEST) for batch in (16, 17))
    assert (small.query().backend, large.query().supported, large.query().backend) == (PERSISTENT, 1, CUDNN)
    assert large.query().reason == b"cuDNN is faster for a layer of this size and batch"
    large.train()
    assert_results(large, slack=SLACK)
    assert CudnnCase(stack, [17], torch.float16, backend=PERSISTENT).query().backend == PERSISTENT


def test_query_says_which_backend() -> None:
    stack = reference.Stack(reference.GRU, 24, 40)
    best = CudnnCase(stack, [4], torch.float16, backend=BEST).query()
    assert (best.supported, best.backend, best.reason) == (1, PERSISTENT, b"")
    asked = CudnnCase(stack, [4], torch.float16).query()
    assert (asked.supported, asked.backend, asked.reason) == (0, CUDNN, b"PRNN_CUDNN_BACKEND was asked for")


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_graph_replay(mode: int) -> None:
    torch.manual_seed(6)
    case = CudnnCase(reference.Stack(mode, 48, 256, 2, 2), [9, 9, 7, 3], torch.float16)
    case.train()
    case.data["dw"].zero_()
    case.train()
    first = case.results()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    capi.check("SetStream", handle=case.handle.pointer, stream=stream.cuda_stream)
    with torch.cuda.graph(graph, stream=stream):
        for name in ("RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights"):
            case.check(name)
    for name in OUTPUTS:
        case.data[name].zero_()
    graph.replay()
    torch.cuda.synchronize()
    for name, tensor in case.results().items():
        if mode == reference.LSTM or name not in ("cy", "dcx"):
            assert torch.equal(tensor, first[name]), name


@pytest.mark.parametrize("backend", [PERSISTENT, CUDNN])
@pytest.mark.parametrize("mode", [mode for name, mode in MODES.items() if name != "relu"])
@pytest.mark.parametrize("skip", [False, True])
def test_float_is_rounded_to_tf32_only_where_that_is_allowed(skip: bool, mode: int, backend: int) -> None:
    """With SKIP_INPUT the recurrent product is the only one that y depends on."""
    for math, batch in itertools.product((0, 1, ALLOW_CONVERSION, 3), (3, 40)):
        torch.manual_seed(7)
        stack = reference.Stack(mode, 512, 512, skip_input=skip)
        case = CudnnCase(stack, [batch] * 8, torch.float32, backend=backend, math=math)
        case.train()
        expected = case.expected()
        for name in ("y", "dx", "dw"):
            error = ((case.data[name].double() - expected[name]).norm() / expected[name].norm()).item()
            assert (1e-5 < error < 2e-3) if math == ALLOW_CONVERSION else (error < 1e-5), f"{name}: {error:.2e}"


def test_modules_beyond_the_resident_kernels() -> None:
    torch.manual_seed(8)
    cpu = prnn.nn.LSTM(24, 40, num_layers=2, bidirectional=True, proj_size=16)
    gpu = prnn.nn.LSTM(24, 40, num_layers=2, bidirectional=True, proj_size=16, device="cuda")
    gpu.load_state_dict(cpu.state_dict())
    x = torch.randn(12, 4, 24)
    with pytest.warns(UserWarning, match="not the persistent kernels: projSize is 16"):
        gpu(x.cuda())
    for lengths in (None, [9, 3, 12, 1]):
        found, expected = gpu(x.cuda(), lengths=lengths)[0], cpu(x, lengths=lengths)[0]
        assert torch.allclose(found.cpu(), expected, atol=1e-5)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x.cuda(), [12, 7, 7, 1])
    found = gpu(packed)[0]
    found.data.sum().backward()
    cpu(torch.nn.utils.rnn.pack_padded_sequence(x, [12, 7, 7, 1]))[0].data.sum().backward()
    for (name, mine), theirs in zip(gpu.named_parameters(), cpu.parameters(), strict=True):
        assert torch.allclose(mine.grad.cpu(), theirs.grad, atol=1e-4), name


def test_compiled_module_on_cudnn() -> None:
    module = prnn.nn.GRU(24, 40, num_layers=2, backend="cudnn", device="cuda")
    torch.compiler.reset()
    run = torch.compile(module, fullgraph=True, backend="aot_eager")
    for steps, batch in ((12, 4), (5, 4), (30, 65), (7, 64), (1, 1)):
        x = torch.randn(steps, batch, 24, device="cuda", requires_grad=True)
        assert torch.equal(run(x)[0], module(x)[0])
        run(x)[0].sum().backward()


def test_reserve_space_is_as_large_as_the_operator_thinks() -> None:
    """Its size is an expression of T and N there, so that one compiled graph serves them all."""
    for mode, dtype in itertools.product(("RNN_TANH", "LSTM", "GRU"), (torch.float32, torch.float16)):
        config = prnn._ops.rnn.Config(prnn._ops.rnn.MODES[mode], 40, 0, 2, True, 0.0, prnn._ops.rnn.BACKENDS["cudnn"])
        layer = prnn._ops._layer.layer(config, dtype, 24, torch.device("cuda:0"))
        handle = prnn._ops._handles.handle(torch.device("cuda:0"))
        for steps, batch in ((1, 1), (2, 3), (63, 5), (64, 64), (65, 65), (100, 130), (1000, 7), (3, 500)):
            assert layer.rnn.reserve_size(handle, [batch] * steps) <= layer.reserve_size(steps * batch, batch)


def test_dropout_has_the_masks_of_the_other_backends() -> None:
    torch.manual_seed(9)
    module = prnn.nn.GRU(24, 40, num_layers=3, dropout=0.5, device="cuda")
    other = prnn.nn.GRU(24, 40, num_layers=3, dropout=0.5, device="cuda", backend="cudnn")
    other.load_state_dict(module.state_dict())
    x, results = torch.randn(12, 4, 24, device="cuda"), []
    for layers in (module, other):
        torch.manual_seed(10)
        output = layers(x)[0]
        output.sum().backward()
        results.append([output, *(parameter.grad for parameter in layers.parameters())])
    for mine, theirs in zip(*results, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4)

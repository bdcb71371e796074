"""The cuDNN backend: the same packed weights and the same results as the resident kernels, and what only it serves."""

import ctypes
import itertools
import threading
from math import sqrt
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
ALL_TYPES = TYPES | {"double": torch.float64}
TOLERANCE[torch.float64] = 1e-12


def why_no_cudnn() -> str:
    if reason := why_not():
        return reason
    try:
        prnn._C.Rnn(prnn._C.LSTM, prnn._C.HALF, 8, 1, 8, False, projection=4).reserve_size(prnn._C.Handle.cuda(), [1])
    except prnn.NotSupportedError as error:
        return str(error)
    return ""


pytestmark = [
    pytest.mark.skipif(bool(why_no_cudnn()), reason=f"needs a GPU and cuDNN: {why_no_cudnn()}"),
    pytest.mark.filterwarnings("ignore:prnn. not the persistent kernels"),
]


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


@pytest.mark.parametrize("dtype", ALL_TYPES.values(), ids=ALL_TYPES)
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


@pytest.mark.parametrize("dtype", ALL_TYPES.values(), ids=ALL_TYPES)
@pytest.mark.parametrize("batch_sizes", [[3] * 5, [5, 4, 4, 2, 1, 1]], ids=str)
@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (3, 2)])
def test_projection(layers: int, directions: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    stack = reference.Stack(reference.LSTM, 24, 40, layers, directions, projection=16)
    case = CudnnCase(stack, batch_sizes, dtype)
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
    """With 16-bit layers that only the large-layer kernels hold, larger batches go to cuDNN."""
    torch.manual_seed(6)
    stack = reference.Stack(reference.LSTM, 16, 2300)
    small, large = (CudnnCase(stack, [batch] * 2, torch.float16, backend=BEST) for batch in (8, 32))
    assert (small.query().backend, large.query().supported, large.query().backend) == (PERSISTENT, 1, CUDNN)
    assert large.query().reason.startswith(b"cuDNN is faster at N = 32: in training ")
    large.train()
    assert_results(large, slack=SLACK)
    assert CudnnCase(stack, [32], torch.float16, backend=PERSISTENT).query().backend == PERSISTENT


def test_query_says_which_backend() -> None:
    stack = reference.Stack(reference.GRU, 256, 512)
    best = CudnnCase(stack, [4] * 20, torch.float16, backend=BEST).query()
    assert (best.supported, best.backend, best.reason) == (1, PERSISTENT, b"")
    asked = CudnnCase(stack, [4] * 20, torch.float16).query()
    assert (asked.supported, asked.backend, asked.reason) == (0, CUDNN, b"PRNN_CUDNN_BACKEND was asked for")


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_graph_replay(mode: int) -> None:
    torch.manual_seed(6)
    case = CudnnCase(reference.Stack(mode, 48, 256, 2, 2), [9, 9, 7, 3], torch.float16)
    case.train()
    case.data["dw"].zero_()
    case.train()
    first = case.results()
    graph = case.capture()
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
            # tf32 is a permission: a few sequences may run on exact kernels, where these are faster.
            least, most = (1e-5 if batch == 40 else 0, 2e-3) if math == ALLOW_CONVERSION else (0, 1e-5)
            assert least < error < most, f"{name}: {error:.2e}"


def test_modules_beyond_the_resident_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prnn._ops._layer, "_told", set())  # a reason is announced once a process
    torch.manual_seed(8)
    options = {"num_layers": 2, "bidirectional": True, "proj_size": 16, "dtype": torch.float64}
    cpu = prnn.nn.LSTM(24, 40, **options)
    gpu = prnn.nn.LSTM(24, 40, **options, device="cuda")
    gpu.load_state_dict(cpu.state_dict())
    x = torch.randn(12, 4, 24, dtype=torch.float64)
    with pytest.warns(UserWarning, match="not the persistent kernels: the data type is double"):
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
    modes, config_of = prnn._ops.rnn.MODES, prnn._ops.rnn.Config
    for mode, dtype, dropout in itertools.product(("RNN_TANH", "LSTM", "GRU"), ALL_TYPES.values(), (0.0, 0.25)):
        projection = 16 if mode == "LSTM" else 0
        config = config_of(modes[mode], 40, projection, 2, True, dropout, prnn._ops.rnn.BACKENDS["cudnn"])
        layer = prnn._ops._layer.layer(config, dtype, 24, torch.device("cuda:0"))
        handle = prnn._ops._handles.handle(torch.device("cuda:0"))
        for steps, batch in ((1, 1), (2, 3), (63, 5), (64, 64), (65, 65), (100, 130), (1000, 7), (3, 500)):
            needed = layer.rnn.reserve_size(handle, [batch] * steps)
            assert needed <= layer.reserve_bound(steps * batch, steps, batch)


def test_double_is_cudnns() -> None:
    stack = reference.Stack(reference.LSTM, 24, 40)
    info = CudnnCase(stack, [4], torch.float64, backend=BEST).query()
    reason = b"the data type is double; the resident kernels take float, half and bfloat16"
    assert (info.supported, info.backend, info.reason) == (0, CUDNN, reason)
    with pytest.raises(AssertionError, match=f"9: {reason.decode()}"):
        CudnnCase(stack, [4], torch.float64, backend=PERSISTENT)


@pytest.mark.parametrize("lengths", [None, [2, 4, 1]])
@pytest.mark.parametrize(
    ("cell", "options"), [("LSTM", {}), ("LSTM", {"proj_size": 2}), ("GRU", {"bias": False}), ("RNN", {})], ids=str
)
def test_gradcheck(cell: str, options: dict[str, Any], lengths: list[int] | None) -> None:
    module = getattr(prnn.nn, cell)(2, 3, 2, bidirectional=True, device="cuda", dtype=torch.float64, **options)
    names, parameters = zip(*module.named_parameters(), strict=True)
    x = torch.randn(4, 3, 2, device="cuda", dtype=torch.float64, requires_grad=True)
    h = torch.randn(4, 3, options.get("proj_size", 3), device="cuda", dtype=torch.float64, requires_grad=True)
    c = torch.randn(4, 3, 3, device="cuda", dtype=torch.float64, requires_grad=True)

    def run(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights = dict(zip(names, parameters, strict=True))
        states = (h, c) if cell == "LSTM" else h
        output, last = torch.func.functional_call(module, weights, (x, states), {"lengths": lengths})
        return (output, *last) if cell == "LSTM" else (output, last + 0 * c.sum())

    assert torch.autograd.gradcheck(run, (x, h, c, *parameters))


@pytest.mark.parametrize("backend", ["persistent", "cudnn"])
@pytest.mark.parametrize("hidden", [40, 128, 512])  # the algorithms that cuDNN has
@pytest.mark.parametrize("lengths", [None, [9, 3, 12, 1, 5, 5, 5, 5]])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_backward_twice(cell: str, lengths: list[int] | None, hidden: int, backend: str) -> None:
    """With retain_graph, the second time as the first."""
    layers = 1 if hidden == 512 else 3
    options = {"num_layers": layers, "dropout": 0.5 if layers > 1 else 0.0, "device": "cuda", "dtype": torch.float16}
    module = getattr(prnn.nn, cell)(64, hidden, backend=backend, **options)
    x = torch.randn(12, 8, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    output = module(x, lengths=lengths)[0]
    first, second, third = (
        torch.autograd.grad(output, [x, *module.parameters()], torch.ones_like(output), retain_graph=True)
        for _ in range(3)
    )
    for a, b, c in zip(first, second, third, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@pytest.mark.parametrize("backend", ["persistent", "cudnn"])
def test_compiled_backward_twice(backend: str) -> None:
    module = prnn.nn.LSTM(24, 40, num_layers=2, proj_size=16, device="cuda", backend=backend)
    torch.compiler.reset()
    run = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 3, 24, device="cuda", requires_grad=True)
    output = run(x)[0]
    first, second = (torch.autograd.grad(output.sum(), [x], retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("backend", ["persistent", "cudnn"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_float32_follows_the_switch_of_torchs_own_layers(
    cell: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = getattr(prnn.nn, cell)(512, 512, device="cuda", backend=backend)
    x = torch.randn(8, 40, 512, device="cuda")
    expected = module.double().cpu()(x.double().cpu())[0]
    module.float().cuda()
    for allowed in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        error = ((module(x)[0].double().cpu() - expected).norm() / expected.norm()).item()
        assert (1e-5 < error < 2e-3) if allowed else (error < 1e-5)


def test_weights_that_are_not_aligned_are_copied() -> None:
    module = prnn.nn.LSTM(24, 40, device="cuda", backend="cudnn")
    x = torch.randn(5, 3, 24, device="cuda")
    expected = module(x)[0]
    flat = torch.empty(sum(p.numel() for p in module.parameters()) + 1, device="cuda")[1:]
    parameters = [module.get_parameter(name) for name in module._packed_names]
    for parameter, place in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        place.copy_(parameter.detach().view(-1))
        parameter.data = place.view(parameter.shape)
    output = module(x)[0]
    assert torch.equal(output, expected)
    output.sum().backward()
    assert all(parameter.grad is not None for parameter in parameters)


def test_threads_with_sequences_of_their_own() -> None:
    module = prnn.nn.LSTM(24, 40, num_layers=2, proj_size=16, device="cuda", backend="cudnn")
    x = torch.randn(30, 4, 24, device="cuda")
    batches = [[30 - n - i for n in range(4)] for i in range(20)]
    expected = [module(x, lengths=lengths)[0] for lengths in batches]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(order: list[int]) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in order:
                if not torch.equal(module(x, lengths=batches[i])[0], expected[i]):
                    wrong.append(i)

    orders = [list(range(20)), list(range(19, -1, -1)), [0, 5] * 10]
    threads = [threading.Thread(target=work, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_same_bits_every_time() -> None:
    torch.manual_seed(11)
    case = CudnnCase(reference.Stack(reference.LSTM, 48, 256, 3, projection=64), [16] * 40, torch.float16)
    case.train()
    first = case.results()
    for _ in range(3):
        case.data["dw"].zero_()
        case.train()
        for name, tensor in case.results().items():
            assert torch.equal(tensor, first[name]), name


class MaskCase(CudnnCase):
    """Three relu layers that hand on what they are given, a one, so that y is what dropout leaves of it."""

    HIDDEN, LAYERS, STEPS, BATCH = 256, 3, 20, 6
    SEED = 1234

    def __init__(self, probability: float, dtype: torch.dtype) -> None:
        self.dropout_handle = capi.Object("Create", "Destroy")
        self.dropout_states = torch.empty(16, dtype=torch.uint8, device="cuda")
        descriptor = capi.descriptor("Dropout")
        capi.check(
            "SetDropoutDescriptor",
            dropoutDesc=descriptor.pointer,
            handle=self.dropout_handle.pointer,
            dropout=probability,
            states=self.dropout_states.data_ptr(),
            stateSizeInBytes=16,
            seed=self.SEED,
        )
        stack = reference.Stack(reference.RNN_RELU, self.HIDDEN, self.HIDDEN, self.LAYERS)
        super().__init__(stack, [self.BATCH] * self.STEPS, dtype, dropout=descriptor)

    def make_data(self) -> None:
        super().make_data()
        self.data["w"].zero_()
        size = self.HIDDEN**2
        for layer in range(self.LAYERS):
            self.data["w"][2 * layer * size : (2 * layer + 1) * size] = torch.eye(self.HIDDEN).view(-1)
        for name in ("x", "dy"):
            self.data[name].fill_(1)
        for name in ("dhy", "hx"):
            self.data[name].zero_()

    def mask(self) -> torch.Tensor:
        self.train()
        return self.data["y"].clone()


@pytest.mark.parametrize("dtype", ALL_TYPES.values(), ids=ALL_TYPES)
@pytest.mark.parametrize("probability", [0.5, 0.1])
def test_dropout_between_layers(probability: float, dtype: torch.dtype) -> None:
    case = MaskCase(probability, dtype)
    mask = case.mask()
    kept = (mask != 0).double()
    share, count = (1 - probability) ** (case.LAYERS - 1), kept.numel()
    assert abs(kept.mean().item() - share) < 5 * sqrt(share * (1 - share) / count)
    for dim in (0, 1):  # over rows, over units: no stripes
        means = kept.mean(dim)
        sigma = sqrt(share * (1 - share) * means.numel() / count)
        assert means.std().item() == pytest.approx(sigma, rel=0.5)
    scale = (1 - probability) ** (1 - case.LAYERS)
    assert torch.allclose(mask[mask != 0].double(), torch.tensor(scale, dtype=torch.float64, device="cuda"), rtol=2e-2)
    assert torch.equal(case.data["dx"], mask), "the backward pass has another mask"
    assert not torch.equal(case.mask(), mask), "a later call draws another mask"
    assert torch.equal(MaskCase(probability, dtype).mask(), mask), "the mask follows from the seed"
    case.check("RNNForwardInference")
    assert torch.all(case.data["y"] == 1)


def test_dropout_in_a_graph() -> None:
    """Each replay draws; the states' {seed, calls} put back draw the same again."""
    case = MaskCase(0.5, torch.float32)
    before = case.dropout_states.clone()
    first, second = case.mask(), case.mask()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    capi.check("SetStream", handle=case.handle.pointer, stream=stream.cuda_stream)
    with torch.cuda.graph(graph, stream=stream):
        for name in ("RNNForwardTraining", "RNNBackwardData"):
            case.check(name)
    case.dropout_states.copy_(before)
    for expected in (first, second):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(case.data["y"], expected)
        assert torch.equal(case.data["dx"], expected)


def test_dropout_of_a_module_follows_torchs_seed() -> None:
    module = prnn.nn.LSTM(24, 40, num_layers=3, dropout=0.5, proj_size=16, device="cuda", backend="cudnn")
    x = torch.randn(12, 4, 24, device="cuda")
    torch.manual_seed(10)
    first, other = module(x)[0], module(x)[0]
    torch.manual_seed(10)
    assert torch.equal(module(x)[0], first)
    assert not torch.equal(other, first)
    evaluation = module.eval()(x)[0]
    assert torch.equal(evaluation, module(x)[0])

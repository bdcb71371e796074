"""prnnSetRNNExtras on the GPU, every engine that has it: against the float64 reference."""

import itertools
from typing import Any

import capi
import pytest
import torch
from reference import rnn as reference
from test_rnn_cuda import MODES, TOLERANCE, CudaCase, why_not
from test_rnn_extras import SUBSETS, ExtrasCase, extras_of

import prnn

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

LSTM, GRU, TANH, RELU = reference.LSTM, reference.GRU, reference.RNN_TANH, reference.RNN_RELU
HALF, BFLOAT16, FLOAT = torch.float16, torch.bfloat16, torch.float32


class GpuCase(ExtrasCase, CudaCase):
    """ExtrasCase in GPU memory."""

    def engines(self) -> tuple[str, str]:
        info = self.plan()
        return info.forwardEngine.decode(), info.backwardEngine.decode()

    def compare(self, names: tuple[str, ...], slack: float = 1) -> None:
        for name, (result, expected) in self.run(names).items():
            found, wanted = result.double(), expected.double()
            error = ((found - wanted).norm() / wanted.norm().clamp_min(1e-6)).item()
            assert error < TOLERANCE[self.dtype] * slack, f"{names}, {name}: relative error {error:.2e}"


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
    case = GpuCase(reference.Stack(mode, 24, 40, layers, directions), batch_sizes, dtype)
    case.compare(extras_of(mode))
    if mode == LSTM:
        case = GpuCase(reference.Stack(mode, 24, 40, layers, directions, projection=17), batch_sizes, dtype)
        case.compare(extras_of(mode))


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
        ("cluster", LSTM, 512, 2, [60, 60, 9, 9], BFLOAT16),
        ("cluster", GRU, 128, 1, [600, 600, 520], HALF),
        ("mma", LSTM, 600, 2, [64, 64, 9, 9], BFLOAT16),
        ("mma", LSTM, 2000, 1, [5, 5, 3], HALF),
        ("mma", GRU, 992, 1, [72, 60, 9, 9], BFLOAT16),
        ("mma", GRU, 600, 2, [8] * 5, HALF),
        ("mma", GRU, 2100, 1, [3] * 4, HALF),
        ("mma", TANH, 1024, 2, [40] * 4, HALF),
        ("mma", RELU, 4000, 1, [2] * 4, BFLOAT16),
        ("mma", LSTM, 1000, 1, [12] * 5, FLOAT),
        ("mma", LSTM, 256, 2, [30, 30, 17, 2], FLOAT),
        ("mma", GRU, 512, 2, [33, 20, 20, 1], FLOAT),
        ("mma", TANH, 700, 2, [9, 9, 8], FLOAT),
        ("mma", LSTM, 704, 1, [600, 600, 520], HALF),
        ("mma", GRU, 256, 1, [700] * 3, FLOAT),
        ("mma-large", LSTM, 2300, 1, [3, 3, 2, 2], HALF),
        ("mma-large", LSTM, 1500, 1, [9, 9, 8, 1], FLOAT),
        ("mma-large", GRU, 2500, 1, [3] * 4, BFLOAT16),
        ("mma-large", GRU, 1700, 2, [2, 2, 1], FLOAT),
        ("mma-large", TANH, 4500, 1, [3, 1], HALF),
        ("mma-large", RELU, 3000, 1, [2] * 3, FLOAT),
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


@pytest.mark.parametrize(
    ("mode", "hidden", "directions", "batch_sizes"),
    [
        (LSTM, 256, 2, [30, 30, 17, 2]),
        (LSTM, 100, 1, [8] * 6),
        (GRU, 128, 1, [600, 600, 520]),
        (GRU, 250, 1, [200] * 3),
        (LSTM, 128, 1, [1100] * 3),
    ],
)
def test_clusters_in_tf32(mode: int, hidden: int, directions: int, batch_sizes: list[int]) -> None:
    class Tf32(GpuCase):
        def set_rnn(self, **changes: Any) -> None:
            super().set_rnn(**changes)
            capi.check("SetRNNMatrixMathType", rnnDesc=self.rnn.pointer, mType=2)

    torch.manual_seed(6)
    case = Tf32(reference.Stack(mode, 24, hidden, 1, directions), batch_sizes, FLOAT)
    for name, (result, expected) in case.run(extras_of(mode)).items():
        error = ((result.double() - expected).norm() / expected.norm().clamp_min(1e-6)).item()
        assert error < TOLERANCE[HALF], f"{name}: relative error {error:.2e}"  # which has as many digits
    if "H200" in torch.cuda.get_device_name():
        assert case.engines() == ("cluster", "cluster")


@pytest.mark.parametrize("names", SUBSETS)
@pytest.mark.parametrize("dtype", [HALF, FLOAT], ids=["half", "float"])
@pytest.mark.parametrize("options", [{}, {"projection": 24}, {"skip_input": True, "projection": 8}], ids=str)
def test_any_subset(names: tuple[str, ...], dtype: torch.dtype, options: dict[str, Any]) -> None:
    torch.manual_seed(3)
    GpuCase(reference.Stack(LSTM, 64, 64, 2, 2, **options), [4, 4, 4, 3, 1, 1], dtype).compare(names)


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
    status, workspace, _ = case.temp_space_sizes()
    assert status == 0
    case.workspace = torch.full((workspace + 2**20,), 0x5A, dtype=torch.uint8, device="cuda")
    for name in ("RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights"):
        case.check(name, workSpaceSizeInBytes=workspace)
        assert (case.workspace[workspace:] == 0x5A).all(), name


def test_inference() -> None:
    torch.manual_seed(4)
    for mode in MODES.values():
        case = GpuCase(reference.Stack(mode, 16, 64, 2, 2), [6, 6, 5, 2], HALF)
        expected = case.run(("reset",))["y"][0]
        case.data["y"] = torch.full_like(expected, case.UNTOUCHED)
        case.set_extras(("reset",))
        case.check("RNNForwardInference")
        assert torch.equal(case.data["y"], expected)


@pytest.mark.parametrize("dtype", [FLOAT, HALF])
@pytest.mark.parametrize("proj_size", [0, 24])
@pytest.mark.parametrize("given", [False, True])
def test_modules_and_a_graph(dtype: torch.dtype, proj_size: int, given: bool) -> None:
    """The flags and states lie on the GPU, and nobody waits for them: another replay reads others."""
    torch.manual_seed(5)
    module = prnn.nn.LSTM(32, 64, 2, proj_size=proj_size, device="cuda", dtype=dtype)
    x, reset = torch.randn(20, 4, 32, device="cuda", dtype=dtype), torch.zeros(20, 4, device="cuda", dtype=torch.bool)
    states = [torch.randn(2, 4, size, device="cuda", dtype=dtype, requires_grad=True) for size in (proj_size or 64, 64)]
    leaves = [*module.parameters(), *(states if given else ())]

    def step() -> list[Any]:
        reset_hx = tuple(states) if given else None
        output, _, cells = module(x, reset=reset, reset_hx=reset_hx, return_cells=True)
        return [output, cells, *torch.autograd.grad(output.sum() + cells.sum(), leaves)]

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
    ("cell", "options", "dtype"),
    [
        ("LSTM", {}, torch.float64),
        ("LSTM", {}, FLOAT),
        ("LSTM", {"bidirectional": True}, HALF),
        ("LSTM", {"proj_size": 16, "num_layers": 2}, HALF),
        ("LSTM", {"heads": 2}, HALF),
        ("GRU", {"num_layers": 2}, FLOAT),
        ("GRU", {"heads": 3, "bidirectional": True}, HALF),
        ("RNN", {"num_layers": 2}, HALF),
    ],
    ids=str,
)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.filterwarnings("ignore:prnn. not the persistent kernels")  # of double, whose sequences are cut
def test_every_layer_has_the_results_of_the_cpu(
    cell: str, options: dict[str, int], dtype: torch.dtype, given: bool
) -> None:
    torch.manual_seed(6)
    module = getattr(prnn.nn, cell)(24, 48, dtype=dtype, **options)
    x, reset = torch.randn(20, 6, 24, dtype=dtype), torch.rand(20, 6) < 0.2
    size = options.get("proj_size", 48)
    count = module.num_layers * (2 if module.bidirectional else 1)
    widths = (size, 48) if cell == "LSTM" else (48,)
    states = [torch.randn(count, 6, width, dtype=dtype) for width in widths * 2]

    def results(module: torch.nn.Module, device: str) -> list[torch.Tensor]:
        leaves = [tensor.to(device).requires_grad_() for tensor in (x.clone(), *states)]
        pairs = (tuple(leaves[1:3]), tuple(leaves[3:])) if cell == "LSTM" else leaves[1:]
        output, last = module(leaves[0], pairs[0], reset=reset.to(device), reset_hx=pairs[1] if given else None)
        grads = torch.autograd.grad(output.square().sum(), [*leaves, *module.parameters()], allow_unused=True)
        return [tensor.double().cpu() for tensor in (output, *last, *grads) if tensor is not None]

    expected = results(module, "cpu")
    tolerance = {torch.float64: 1e-10, FLOAT: 5e-3, HALF: 2e-2}[dtype]  # float32 is tf32 on the GPU
    for mine, wanted in zip(results(module.cuda(), "cuda"), expected, strict=True):
        assert (mine - wanted).norm() <= tolerance * wanted.norm().clamp_min(1e-6)

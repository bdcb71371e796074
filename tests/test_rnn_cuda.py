"""The recurrent layers on a CUDA handle: values and gradients against the float64 reference, on the GPU."""

import ctypes
import itertools

import capi
import pytest
import torch
from reference import rnn as reference
from rnn_case import OUTPUTS, RnnCase
from test_rnn_query import Info

MODES = {"relu": reference.RNN_RELU, "tanh": reference.RNN_TANH, "lstm": reference.LSTM, "gru": reference.GRU}
TYPES = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}  # of the norm


def why_not() -> str:
    if not torch.cuda.is_available():
        return "no CUDA device"
    made = ctypes.c_void_p()
    status = capi.call("Create", handle=ctypes.byref(made))
    if status != capi.SUCCESS:
        return f"prnnCreate: {capi.message()}"
    capi.check("Destroy", handle=made)
    return ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")


class CudaCase(RnnCase):
    """RnnCase with everything in GPU memory, on the resident kernels; the reserve space is the least that will do."""

    def __init__(self, stack: reference.Stack, batch_sizes: list[int], dtype: torch.dtype, **changes: object) -> None:
        super().__init__(stack, batch_sizes, dtype, handle=capi.Object("Create", "Destroy"), **changes)

    def set_rnn(self, **changes: object) -> None:
        super().set_rnn(**changes)
        capi.check("SetRNNBackend", rnnDesc=self.rnn.pointer, backend=0)

    def reserve_size(self) -> int:
        return self.least_reserve_size()

    def make_data(self) -> None:
        super().make_data()
        if self.stack.mode == reference.RNN_RELU:
            # Units clearly on or off: at the kink, rounding decides about a gradient, and no two precisions agree.
            cells, hidden = self.stack.layers * self.stack.directions, self.stack.hidden
            signs = torch.randint(0, 2, (cells, 1, hidden)).expand(-1, 2, -1).reshape(-1) * 2 - 1
            self.data["w"] /= 16
            self.data["w"][-signs.numel() :] = 2 * signs
        self.data = {name: tensor.cuda() for name, tensor in self.data.items()}
        self.workspace, self.reserve = self.workspace.cuda(), self.reserve.cuda()

    def plan(self) -> Info:
        """Returns the plan of the case's problem, on the GPU that is there."""
        info = Info()
        capi.check(
            "QueryRNNSequence",
            handle=self.handle.pointer,
            gpu=None,
            rnnDesc=self.rnn.pointer,
            seqLength=len(self.batch_sizes),
            xDesc=self.x_desc,
            info=ctypes.byref(info),
        )
        return info

    def capture(self) -> torch.cuda.CUDAGraph:
        """A training step, on a stream of its own."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        torch.cuda.synchronize()
        capi.check("SetStream", handle=self.handle.pointer, stream=stream.cuda_stream)
        with torch.cuda.graph(graph, stream=stream):
            for name in ("RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights"):
                self.check(name)
        return graph


class WgmmaCase(CudaCase):
    """CudaCase for the wgmma kernels, forward and backward, whatever the size."""

    ENGINE = 2  # prnnRNNEngine_t

    def __init__(self, stack: reference.Stack, batch_sizes: list[int], dtype: torch.dtype, replicas: int) -> None:
        self.replicas = replicas
        super().__init__(stack, batch_sizes, dtype)

    def set_rnn(self, **changes: object) -> None:
        super().set_rnn(**changes)
        plan = ctypes.byref(capi.Plan(self.ENGINE, 0, 0, self.replicas, 100))
        capi.check("SetRNNPlan", rnnDesc=self.rnn.pointer, forward=plan, backward=plan)


class SplitKCase(WgmmaCase):
    """CudaCase for the wgmma kernels that split K."""

    ENGINE = 3


def assert_results(case: RnnCase, names: tuple[str, ...] = OUTPUTS, slack: float = 1) -> None:
    expected = case.expected()
    for name in names:
        if case.stack.mode != reference.LSTM and name in ("cy", "dcx"):
            assert torch.all(case.data[name] == case.UNTOUCHED), f"{name} was written"
            continue
        found, wanted = case.data[name].double(), expected[name].double()
        error = ((found - wanted).norm() / wanted.norm().clamp_min(1e-6)).item()
        assert error < TOLERANCE[case.dtype] * slack, f"{name}: relative error {error:.2e}"


def test_gradients_that_overwrite_are_of_the_cpu() -> None:
    case = CudaCase(reference.Stack(reference.GRU, 8, 16), [2, 2], torch.float32)
    case.check("RNNForwardTraining")
    case.check("RNNBackwardData")
    capi.check("SetRNNWgradMode", rnnDesc=case.rnn.pointer, wgradMode=1)
    assert case.call("RNNBackwardWeights") == capi.NOT_SUPPORTED
    assert "PRNN_WGRAD_MODE_SET" in capi.message(case.handle.pointer)
    assert torch.all(case.data["dw"] == 0)
    capi.check("SetRNNWgradMode", rnnDesc=case.rnn.pointer, wgradMode=0)
    case.check("RNNBackwardWeights")


# One layer each, whose gates are of more than 1 MiB. Kernels: cluster, mma, simt, multicast, wgmma, projected.
LONE = {
    "cluster": (reference.Stack(reference.LSTM, 40, 256), [16] * 96, "bfloat16"),
    "two directions": (reference.Stack(reference.LSTM, 40, 192, directions=2), [16] * 20 + [9] * 40 + [3], "half"),
    "mma": (reference.Stack(reference.LSTM, 40, 256), [16] * 20 + [5] * 40, "float"),
    "padded": (reference.Stack(reference.GRU, 40, 520), [16] * 40 + [7], "half"),
    "simt": (reference.Stack(reference.GRU, 40, 512), [1] * 160, "float"),
    "multicast": (reference.Stack(reference.GRU, 64, 512), [256] * 5, "bfloat16"),
    "projected": (reference.Stack(reference.LSTM, 64, 512, projection=128), [8] * 90, "half"),
    "merged": (reference.Stack(reference.LSTM, 64, 256, projection=128), [16] * 40 + [4] * 10, "bfloat16"),
    "large": (reference.Stack(reference.LSTM, 64, 1024), [24] * 9 + [20] * 3, "half"),
}


@pytest.mark.parametrize("name", LONE)
def test_gradients_of_one_layer_replace_its_gates(name: str) -> None:
    stack, batch_sizes, dtype = LONE[name]
    case = CudaCase(stack, batch_sizes, TYPES[dtype])
    kept = case.size("GetRNNTrainingReserveSize")
    assert case.reserve.numel() < 0.75 * kept
    case.train()
    assert_results(case, slack=2)
    replaced = case.results()
    case.reserve = torch.full((kept,), 0x5A, dtype=torch.uint8).cuda()
    case.check("RNNForwardTraining")
    for _ in range(2):
        case.data["dw"].zero_()
        case.check("RNNBackwardData")
        case.check("RNNBackwardWeights")
        for output, value in case.results().items():
            assert torch.equal(value, replaced[output]), output


def check_inference_and_no_states(case: CudaCase) -> None:
    case.check("RNNForwardInference")
    assert_results(case, ("y", "hy", "cy"))
    case.data["hx"].zero_()
    case.data["cx"].zero_()
    case.check("RNNForwardInference", hx=None, cx=None, hy=None, cy=None)
    assert_results(case, ("y",))


def check_gradients_without_states(case: CudaCase) -> None:
    for name in ("hx", "cx", "dhy", "dcy"):
        case.data[name].zero_()
    case.check("RNNForwardTraining", hx=None, cx=None, hy=None, cy=None)
    case.check("RNNBackwardData", hx=None, cx=None, dhy=None, dcy=None, dhx=None, dcx=None)
    case.check("RNNBackwardWeights", hx=None)
    assert_results(case, ("y", "dx", "dw"), slack=4)


def check_unaligned_output(case: CudaCase) -> None:
    y = case.data["y"]
    room = torch.full((y.numel() + 1,), case.UNTOUCHED, dtype=y.dtype, device=y.device)
    case.data["y"] = room[1:].view_as(y)
    case.train()
    assert_results(case, slack=2)


def check_calls_stay_within_workspace_and_reserve_space(case: CudaCase) -> None:
    beyond = []
    for name in ("workspace", "reserve"):
        size = getattr(case, name).numel()
        memory = torch.full((size + 65536,), 0x5A, dtype=torch.uint8, device="cuda")
        setattr(case, name, memory[:size])
        beyond.append(memory[size:])
    case.train()
    case.check("RNNForwardInference")
    assert all((memory == 0x5A).all() for memory in beyond)


def check_training_steps_in_a_row(case: CudaCase) -> None:
    """Nothing of a call is left for the next one, which does not wait for it."""
    gradients = [torch.randn_like(case.data["dy"]) for _ in range(3)]

    def step(dy: torch.Tensor) -> dict[str, torch.Tensor]:
        case.data["dy"] = dy
        case.data["dw"].zero_()
        for name in ("RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights"):
            case.check(name)
        return case.results()

    in_a_row = [step(dy) for dy in gradients]
    for dy, found in zip(gradients, in_a_row, strict=True):
        torch.cuda.synchronize()
        wanted = step(dy)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def check_several_backward_calls(case: CudaCase) -> None:
    """With the reserve space of prnnGetRNNTrainingReserveSize."""
    case.train()
    once = case.results()
    case.reserve = torch.full((case.size("GetRNNTrainingReserveSize"),), 0x5A, dtype=torch.uint8, device="cuda")
    case.check("RNNForwardTraining")
    for _ in range(2):
        case.data["dw"].zero_()
        case.check("RNNBackwardData")
        case.check("RNNBackwardWeights")
        assert all(torch.equal(once[name], case.data[name]) for name in OUTPUTS)


def check_same_bits_in_a_graph(case: CudaCase) -> None:
    case.train()
    first = case.results()
    graph = case.capture()
    for _ in range(3):
        case.data["dw"].zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(tensor, first[name]) for name, tensor in case.results().items())


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("batch_sizes", [[3] * 5, [5, 4, 4, 2, 1, 1], [1], [9, 7], [33] * 3], ids=str)
@pytest.mark.parametrize(("layers", "directions", "skip"), [(1, 1, False), (3, 1, False), (2, 2, False), (1, 2, True)])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_training_step(
    mode: int, layers: int, directions: int, skip: bool, batch_sizes: list[int], dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    case = CudaCase(reference.Stack(mode, 40 if skip else 24, 40, layers, directions, skip), batch_sizes, dtype)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float", "half"])
@pytest.mark.parametrize("hidden", [64, 100])  # one layer after the other, or several at once; with padding
@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (2, 1), (5, 1), (3, 2)])
@pytest.mark.parametrize("mode", [MODES["tanh"], MODES["lstm"], MODES["gru"]], ids=["tanh", "lstm", "gru"])
def test_a_larger_reserve_space_serves_several_backward_calls(
    mode: int, layers: int, directions: int, hidden: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(9)
    case = CudaCase(reference.Stack(mode, 24, hidden, layers, directions), [6] * 5, dtype)
    larger = case.size("GetRNNTrainingReserveSize")
    together = dtype == torch.float16 and hidden == 64 and directions == 1
    if mode == MODES["tanh"] or layers == 1 or together:  # no gates are kept, or none are those of a layer above
        assert larger == case.reserve.numel()
    else:
        assert larger > case.reserve.numel()
    check_several_backward_calls(case)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("batch", [1, 3, 8, 64, 130])
@pytest.mark.parametrize("hidden", [4, 37, 100, 256, 512, 1000, 1024])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_sizes(mode: int, hidden: int, batch: int, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    case = CudaCase(reference.Stack(mode, min(32, hidden), hidden), [batch] * 4, dtype)  # few units do not saturate
    case.train()
    assert_results(case)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "bfloat16"])
@pytest.mark.parametrize(
    ("hidden", "directions", "batch_sizes"),
    [
        (264, 1, [130, 70, 64, 3, 1]),  # several replicas, some of which run out of sequences
        (512, 2, [40, 33, 33, 2]),
        (1000, 1, [60, 33, 8, 8, 1]),
        (1280, 2, [16] * 3),  # weights beyond the registers
        (1536, 1, [150] * 3),  # two passes
        (2048, 1, [64, 64, 40]),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", [reference.LSTM, reference.GRU], ids=["lstm", "gru"])
def test_wide_kernels(mode: int, hidden: int, directions: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(8)
    case = CudaCase(reference.Stack(mode, 32, hidden, 1, directions), batch_sizes, dtype)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "bfloat16"])
@pytest.mark.parametrize(
    ("hidden", "directions", "replicas", "batch_sizes"),
    [
        (264, 1, 3, [130, 70, 64, 3, 1]),  # warpgroups that run out of sequences at different times
        (264, 2, 1, [40, 33, 33, 2]),
        (512, 1, 1, [1] * 4),  # a warpgroup without sequences
        (512, 2, 2, [5] * 6),
        (1000, 1, 1, [23, 12, 11, 8, 8]),
        (1280, 1, 1, [64, 64, 40]),  # weights beyond the registers
        (1536, 1, 1, [9] * 5),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", [reference.LSTM, reference.GRU], ids=["lstm", "gru"])
def test_wide_kernels_by_plan(
    mode: int, hidden: int, directions: int, replicas: int, batch_sizes: list[int], dtype: torch.dtype
) -> None:
    torch.manual_seed(10)
    case = WgmmaCase(reference.Stack(mode, 32, hidden, 1, directions), batch_sizes, dtype, replicas)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["half", "bfloat16"])
@pytest.mark.parametrize(
    ("hidden", "directions", "replicas", "batch_sizes"),
    [
        (264, 1, 3, [130, 70, 64, 3, 1]),  # several replicas, some of which run out of sequences
        (264, 2, 1, [40, 33, 33, 2]),
        (512, 1, 2, [5] * 6),
        (512, 1, 1, [150] * 3),  # three passes
        (1000, 1, 2, [60, 33, 8, 8, 1]),
        (1280, 1, 1, [16] * 3),  # weights beyond the registers
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", [reference.LSTM, reference.GRU], ids=["lstm", "gru"])
def test_team_kernels(
    mode: int, hidden: int, directions: int, replicas: int, batch_sizes: list[int], dtype: torch.dtype
) -> None:
    torch.manual_seed(9)
    case = SplitKCase(reference.Stack(mode, 32, hidden, 1, directions), batch_sizes, dtype, replicas)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_one_unit(mode: int) -> None:
    """In float32: one unit's gradient may be a difference of nearly equal numbers, which 16 bits cannot tell apart."""
    torch.manual_seed(2)
    case = CudaCase(reference.Stack(mode, 1, 1), [3] * 4, torch.float32)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_inference_without_states(mode: int) -> None:
    torch.manual_seed(3)
    case = CudaCase(reference.Stack(mode, 16, 64, 2, 2), [6, 6, 5, 2], torch.float16)
    check_inference_and_no_states(case)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_long_sequence(mode: int) -> None:
    torch.manual_seed(4)
    case = CudaCase(reference.Stack(mode, 8, 64), [2] * 1500, torch.float32)
    case.train()
    assert_results(case, slack=4)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_float_biases_are_summed_piece_by_piece(mode: int) -> None:
    torch.manual_seed(4)
    case = CudaCase(reference.Stack(mode, 8, 72, 1, 2), [20] * 33 + [9] * 32 + [4] * 5, torch.float32)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("batch", [6, 24, 64])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_same_bits_every_time(mode: int, batch: int) -> None:
    torch.manual_seed(5)
    case = CudaCase(reference.Stack(mode, 48, 512), [batch] * 40, torch.float16)
    case.train()
    first = case.results()
    for _ in range(3):
        case.data["dw"].zero_()
        case.train()
        for name, tensor in case.results().items():
            assert torch.equal(tensor, first[name]), name


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_graph_replay(mode: int) -> None:
    torch.manual_seed(6)
    case = CudaCase(reference.Stack(mode, 48, 256, 2), [9, 9, 7, 3], torch.float16)
    case.train()
    first = case.results()
    graph = case.capture()
    for tensor in (case.data[name] for name in OUTPUTS):
        tensor.zero_()
    graph.replay()
    torch.cuda.synchronize()
    for name, tensor in case.results().items():
        if mode == reference.LSTM or name not in ("cy", "dcx"):
            assert torch.equal(tensor, first[name]), name


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_comes_out_and_nothing_hangs(mode: int, value: float) -> None:
    torch.manual_seed(7)
    for name, dtype, batch in itertools.product(("x", "w", "hx"), TYPES.values(), (4, 256)):
        case = CudaCase(reference.Stack(mode, 32, 64), [batch] * 5, dtype)
        case.data[name].view(-1)[5] = value
        case.train()
        torch.cuda.synchronize()
        if mode == reference.RNN_RELU or value != value:
            assert not torch.isfinite(case.data["y"].double()).all()


@pytest.mark.parametrize(("mode", "hidden"), [(reference.GRU, 1536), (reference.RNN_TANH, 2560)])
def test_a_batch_whose_tiles_do_not_fit_together_goes_in_passes(mode: int, hidden: int) -> None:
    torch.manual_seed(8)
    case = CudaCase(reference.Stack(mode, 8, hidden), [20] * 3, torch.float32)
    case.train()
    assert_results(case)


# Layers that only the large-layer kernels take: in 16 bits, in float.
LARGEST = {reference.LSTM: (2432, 1664), reference.GRU: (2816, 1920), reference.RNN_TANH: (4864, 3328)}


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(
    ("smaller_by", "directions", "batch_sizes"),
    [
        (0, 1, [4] * 3),
        (0, 1, [8, 5, 5, 1]),
        (75, 2, [20, 11, 3]),  # rows that are not aligned, several passes, both directions one after the other
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", LARGEST, ids=["lstm", "gru", "tanh"])
def test_largest_layers(
    mode: int, smaller_by: int, directions: int, batch_sizes: list[int], dtype: torch.dtype
) -> None:
    torch.manual_seed(9)
    hidden = LARGEST[mode][dtype == torch.float32] - smaller_by
    case = CudaCase(reference.Stack(mode, 32, hidden, 1, directions), batch_sizes, dtype)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("mode", LARGEST, ids=["lstm", "gru", "tanh"])
def test_largest_float_layers_over_many_steps(mode: int) -> None:
    torch.manual_seed(9)
    case = CudaCase(reference.Stack(mode, 8, LARGEST[mode][1]), [2] * 33 + [1] * 3, torch.float32)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["half", "float"])
@pytest.mark.parametrize(
    ("hidden", "layers", "directions", "batch_sizes"),
    [
        (100, 1, 2, [5, 4, 4, 1]),
        (512, 1, 1, [1] * 4),
        (300, 3, 1, [20] * 4),
        (640, 1, 1, [33, 33, 2]),
        (1024, 1, 1, [64] * 3),
        (1024, 2, 1, [200, 130]),
        (2432, 1, 1, [20] * 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_calls_stay_within_workspace_and_reserve_space(
    mode: int, hidden: int, layers: int, directions: int, batch_sizes: list[int], dtype: torch.dtype
) -> None:
    """Their sizes follow from the plan, to the byte."""
    if dtype == torch.float32 and hidden > 1100:
        hidden = 1664
    case = CudaCase(reference.Stack(mode, 16, hidden, layers, directions), batch_sizes, dtype)
    check_calls_stay_within_workspace_and_reserve_space(case)

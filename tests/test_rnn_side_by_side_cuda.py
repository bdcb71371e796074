"""Stacks whose neighbouring layers run side by side on the GPU, each on half of it: against the float64 reference, and
against one layer after the other."""

import ctypes

import capi
import pytest
import torch
from reference import rnn as reference
from rnn_case import OUTPUTS, dropout_descriptor
from test_rnn_cuda import (
    TOLERANCE,
    CudaCase,
    assert_results,
    check_gradients_without_states,
    check_inference_and_no_states,
    check_same_bits_in_a_graph,
    check_several_backward_calls,
    check_unaligned_output,
    why_not,
)

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

MODES = {"lstm": reference.LSTM, "gru": reference.GRU}
TYPES = {"half": torch.float16, "bfloat16": torch.bfloat16}
# Layers, sequences of each timestep: the fewest and odd numbers; one replica or two of a layer that runs alone, on mma,
# wgmma or split-K kernels; columns of a kernel that no sequence has.
SIZES = [
    (2, [32] * 32),
    (3, [17] * 33),
    (5, [32] * 40),
    (6, [24] * 35),
    (4, [64] * 33),
    (3, [40] * 47),
    (8, [16] * 32),
    (4, [9] * 37),
]
# Sequences of different lengths: those that end in the first half, with its last timestep, in the second half and with
# its first timestep; a second half of one sequence, whole replicas without any there.
LENGTHS = [
    (2, [32] * 10 + [30] * 6 + [20] * 10 + [5] * 6),
    (3, [17] * 3 + [16] * 14 + [9] * 10 + [1] * 6),
    (5, [32] * 20 + [31] + [12] * 14),
    (4, [64] * 16 + [1] * 17),
    (3, [16] * 12 + [8] * 21),
    (3, [40] * 17 + [33] * 16),
]


def name_of(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} x {value[0]}" + (f"..{value[-1]}" if value[-1] != value[0] else "")
    return str(value)


class SideBySide(CudaCase):
    """CudaCase that has seen to it that the plan is as its name says."""

    def __init__(self, *arguments: object, **changes: object) -> None:
        super().__init__(*arguments, **changes)
        info = self.plan()
        assert (info.layersTogetherBackward, info.backwardEngine) == (2, b"wgmma-split-k"), info.layersReason
        if self.batch_sizes[0] > 8:
            assert (info.layersTogether, info.forwardEngine) == (2, b"wgmma-split-k"), info.layersReason
        else:
            assert info.forwardEngine == b"wavefront-mma"


class LayerAfterLayer(CudaCase):
    """A plan of the caller's is one of single layers."""

    def set_rnn(self, **changes: object) -> None:
        super().set_rnn(**changes)
        forward = ctypes.byref(capi.Plan(3, 0, 0, 1, 1000))  # wgmma, split K
        capi.check("SetRNNPlan", rnnDesc=self.rnn.pointer, forward=forward, backward=None)


def assert_close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], case: CudaCase, slack: float) -> None:
    for name in OUTPUTS:
        if case.stack.mode == reference.LSTM or name not in ("cy", "dcx"):
            expected = wanted[name].double()
            error = ((found[name].double() - expected).norm() / expected.norm()).item()
            assert error < slack * TOLERANCE[case.dtype], f"{name}: {error:.2e}"


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("layers", "batch_sizes"), SIZES + LENGTHS, ids=name_of)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_training_step(mode: int, layers: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    case = SideBySide(reference.Stack(mode, 48, 1024, layers), batch_sizes, dtype)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize("batch_sizes", [[8] * 33, [2] * 32, [8] * 17 + [3] * 16], ids=name_of)
@pytest.mark.parametrize("layers", [2, 5])
def test_backward_alone(layers: int, batch_sizes: list[int]) -> None:
    """Few sequences of a GRU, which run forward as a wavefront."""
    torch.manual_seed(10)
    case = SideBySide(reference.Stack(reference.GRU, 48, 1024, layers), batch_sizes, torch.float16)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("hidden", [544, 640, 736, 896, 992])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_hidden_sizes(mode: int, hidden: int, dtype: torch.dtype) -> None:
    """Units and shares of K that do not fill a block."""
    torch.manual_seed(11)
    case = SideBySide(reference.Stack(mode, 48, hidden, 3), [30] * 18 + [11] * 15, dtype)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(
    ("layers", "batch_sizes"), [(5, [32] * 36), (3, [18] * 33), (4, [32] * 18 + [7] * 15)], ids=name_of
)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_same_as_one_layer_after_the_other(mode: int, layers: int, batch_sizes: list[int], dropout: float) -> None:
    """Masks and results."""
    results = []
    handle = capi.Object("Create", "Destroy")
    for kind in (SideBySide, LayerAfterLayer):
        torch.manual_seed(2)
        states = torch.zeros(2, dtype=torch.int64, device="cuda")
        drops = dropout_descriptor(handle, dropout, states, 77) if dropout > 0 else None
        case = kind(reference.Stack(mode, 48, 1024, layers), batch_sizes, torch.float16, dropout=drops)
        case.train()
        results.append(case.results())
        torch.cuda.synchronize()
        assert states.tolist() == ([77, 1] if dropout > 0 else [0, 0])
    assert_close(*results, case, slack=2)


@pytest.mark.parametrize("batch_sizes", [[20] * 32, [20] * 33, [16] * 34, [20] * 15 + [19, 6] + [5] * 16], ids=name_of)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_inference_and_no_states(mode: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(3)
    case = SideBySide(reference.Stack(mode, 16, 1024, 4), batch_sizes, torch.float16)
    check_inference_and_no_states(case)


@pytest.mark.parametrize("batch_sizes", [[32] * 35, [32] * 17 + [3] * 17], ids=name_of)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_gradients_without_states(mode: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(4)
    case = SideBySide(reference.Stack(mode, 16, 1024, 3), batch_sizes, torch.float16)
    check_gradients_without_states(case)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_an_unaligned_output(mode: int) -> None:
    torch.manual_seed(5)
    case = SideBySide(reference.Stack(mode, 16, 1024, 3), [32] * 33, torch.float16)
    check_unaligned_output(case)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_larger_reserve_space_serves_several_backward_calls(mode: int) -> None:
    torch.manual_seed(6)
    case = SideBySide(reference.Stack(mode, 48, 1024, 3), [32] * 34, torch.float16)
    assert case.size("GetRNNTrainingReserveSize") > case.reserve.numel()
    check_several_backward_calls(case)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_same_bits_every_time_and_in_a_graph(mode: int) -> None:
    torch.manual_seed(7)
    case = SideBySide(reference.Stack(mode, 48, 1024, 5), [32] * 41, torch.float16)
    check_same_bits_in_a_graph(case)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("name", ["x", "w", "hx", "dy"])
def test_nan_comes_out_and_nothing_hangs(mode: int, name: str) -> None:
    torch.manual_seed(8)
    case = SideBySide(reference.Stack(mode, 32, 1024, 3), [32] * 33, torch.float16)
    case.data[name].view(-1)[5] = float("nan")
    case.train()
    torch.cuda.synchronize()
    assert not torch.isfinite(case.data["dw"].double()).all()


def test_gates_that_are_shut_or_open_for_good() -> None:
    torch.manual_seed(9)
    case = SideBySide(reference.Stack(reference.LSTM, 32, 1024, 3), [32] * 34, torch.float16)
    case.data["x"].clamp_(-1, 1).mul_(6e4)
    case.check("RNNForwardTraining")
    assert torch.isfinite(case.data["y"].double()).all()
    assert case.data["y"].abs().max() <= 1

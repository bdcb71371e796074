"""Stacks whose layers run together on the GPU: against the float64 reference, and against one layer after the other."""

import ctypes

import capi
import pytest
import torch
from reference import rnn as reference
from rnn_case import dropout_descriptor
from test_rnn_cuda import (
    MODES,
    TOLERANCE,
    CudaCase,
    assert_results,
    check_gradients_without_states,
    check_inference_and_no_states,
    check_same_bits_in_a_graph,
    check_unaligned_output,
    why_not,
)

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

TYPES = {"half": torch.float16, "bfloat16": torch.bfloat16}
# Layers, hidden size, batch, timesteps: one launch or several, one layer left over, one tile of 8 sequences or several,
# several replicas, rows of K and of units that do not fill a block.
SIZES = [
    (2, 32, 1, 1),
    (3, 96, 5, 7),
    (2, 224, 16, 3),
    (5, 256, 4, 6),
    (9, 256, 9, 4),
    (2, 512, 3, 5),
    (3, 480, 8, 4),
    (5, 512, 1, 1),
    (5, 512, 4, 12),
    (6, 512, 13, 3),
    (2, 1024, 8, 3),
    (5, 1024, 8, 3),
    (3, 768, 2, 4),
    # Up to 4 sequences, whose timesteps share a tile two by two: odd and even numbers of timesteps.
    (2, 96, 1, 2),
    (3, 224, 2, 9),
    (5, 512, 3, 8),
    (2, 1024, 3, 8),
    (5, 1024, 4, 7),
    # The wgmma kernels: one replica or two, one tile of rows or two, some of the last of either unused.
    (3, 480, 18, 6),
    (5, 512, 32, 7),
    (3, 288, 40, 3),
    (5, 512, 64, 3),
    (2, 1024, 17, 6),
    (3, 800, 31, 5),
]

# Sequences of different lengths: several that end together, replicas and tiles that run out, up to a last timestep of
# one sequence or of several.
LENGTHS = [
    (3, 96, [5, 4, 4, 2, 1, 1]),
    (5, 256, [4, 4, 4, 3, 1]),
    (9, 256, [9, 9, 8, 1]),
    (2, 224, [16, 13, 9, 5]),
    (2, 512, [3, 2, 1, 1, 1]),
    (5, 512, [12, 7, 7, 2]),
    (6, 512, [15, 13, 9, 9, 8, 1]),
    (3, 768, [2, 1]),
    (2, 1024, [8, 8, 3, 1]),
    (5, 1024, [8, 5, 5]),
    (4, 96, [4, 4, 3, 3, 1, 1, 1]),
    (2, 1024, [4, 4, 4, 3, 1]),
    (5, 1024, [3, 2, 2, 1]),
    # The wgmma kernels.
    (3, 480, [18, 17, 3]),
    (5, 512, [32, 30, 16, 16, 1]),
    (3, 288, [40, 25, 20, 2]),
    (5, 512, [64, 40, 33, 2]),
    (2, 1024, [17, 9, 9, 2, 1]),
    (3, 800, [31, 16, 1]),
]


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("layers", "hidden", "batch", "steps"), SIZES)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_training_step(mode: int, layers: int, hidden: int, batch: int, steps: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    case = CudaCase(reference.Stack(mode, 48, hidden, layers), [batch] * steps, dtype)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("layers", "hidden", "batch_sizes"), LENGTHS, ids=str)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_lengths(mode: int, layers: int, hidden: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(9)
    case = CudaCase(reference.Stack(mode, 48, hidden, layers), batch_sizes, dtype)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_lengths_in_inference(mode: int) -> None:
    torch.manual_seed(10)
    case = CudaCase(reference.Stack(mode, 16, 128, 4), [12, 12, 7, 1], torch.float16)
    case.check("RNNForwardInference")
    assert_results(case, ("y", "hy", "cy"))


class LayerAfterLayer(CudaCase):
    """Without wavefronts: a plan of the caller's is one of single layers."""

    def set_rnn(self, **changes: object) -> None:
        super().set_rnn(**changes)
        forward = ctypes.byref(capi.Plan(1, 16, 1, 1, 300))  # mma
        capi.check("SetRNNPlan", rnnDesc=self.rnn.pointer, forward=forward, backward=None)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"),
    [
        (3, 96, [5, 5, 3, 1]),
        (5, 256, [4] * 4),
        (6, 512, [15, 13, 9]),
        (5, 1024, [8, 8, 3]),
        (2, 224, [16] * 3),
        (3, 96, [2] * 4),
        (2, 1024, [4] * 5),
        (5, 512, [4, 3, 3, 1, 1, 1]),
        # The wgmma kernels.
        (3, 480, [18, 17, 3]),
        (5, 512, [64] * 3),
        (3, 800, [31, 16]),
        (2, 1024, [32] * 3),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_dropout(mode: int, layers: int, hidden: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    check_dropout(reference.Stack(mode, 48, hidden, layers), batch_sizes, dtype)


def check_dropout(stack: reference.Stack, batch_sizes: list[int], dtype: torch.dtype) -> None:
    """The masks and results of one layer after the other."""
    results = []
    handle = capi.Object("Create", "Destroy")
    for kind in (CudaCase, LayerAfterLayer):
        torch.manual_seed(11)
        states = torch.zeros(2, dtype=torch.int64, device="cuda")
        dropout = dropout_descriptor(handle, 0.3, states, 77)
        case = kind(stack, batch_sizes, dtype, dropout=dropout)
        case.train()
        results.append(case.results())
        torch.cuda.synchronize()
        assert states.tolist() == [77, 1]
    for name, found in results[0].items():
        if stack.mode == reference.LSTM or name not in ("cy", "dcx"):
            wanted = results[1][name].double()
            error = ((found.double() - wanted).norm() / wanted.norm()).item()
            assert error < 2 * TOLERANCE[dtype], f"{name}: {error:.2e}"


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_skip_input(mode: int) -> None:
    torch.manual_seed(2)
    case = CudaCase(reference.Stack(mode, 64, 64, 3, 1, True), [6] * 5, torch.float16)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_inference_and_no_states(mode: int) -> None:
    torch.manual_seed(3)
    case = CudaCase(reference.Stack(mode, 16, 128, 4), [12] * 10, torch.float16)
    check_inference_and_no_states(case)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_gradients_without_states(mode: int) -> None:
    torch.manual_seed(4)
    case = CudaCase(reference.Stack(mode, 16, 128, 4), [12] * 6, torch.float16)
    check_gradients_without_states(case)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_an_unaligned_output(mode: int) -> None:
    torch.manual_seed(5)
    case = CudaCase(reference.Stack(mode, 16, 64, 3), [4] * 5, torch.float16)
    check_unaligned_output(case)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_the_same_as_one_layer_after_the_other(mode: int, dtype: torch.dtype) -> None:
    """Inputs and hidden states are of one size, so that every layer alone is a stack of one."""
    torch.manual_seed(6)
    layers, hidden, batch, steps = 3, 256, 11, 20
    together = CudaCase(reference.Stack(mode, hidden, hidden, layers), [batch] * steps, dtype)
    together.check("RNNForwardTraining")
    matrices = together.data["w"].numel() // layers - 2 * gates(mode) * hidden
    x = together.data["x"]
    for layer in range(layers):
        alone = CudaCase(reference.Stack(mode, hidden, hidden), [batch] * steps, dtype)
        alone.data["x"] = x
        alone.data["w"] = torch.cat(
            [
                together.data["w"][layer * matrices :][:matrices],
                together.data["w"][layers * matrices + layer * 2 * gates(mode) * hidden :][: 2 * gates(mode) * hidden],
            ]
        )
        for name in ("hx", "cx"):
            alone.data[name] = together.data[name][layer].clone()
        alone.check("RNNForwardTraining")
        assert close(together.data["hy"][layer], alone.data["hy"][0], dtype)
        if mode == reference.LSTM:
            assert close(together.data["cy"][layer], alone.data["cy"][0], dtype)
        x = alone.data["y"]
    assert close(together.data["y"], x, dtype)


def gates(mode: int) -> int:
    return 4 if mode == reference.LSTM else 3 if mode == reference.GRU else 1


def close(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> bool:
    return bool((found.double() - wanted.double()).norm() < TOLERANCE[dtype] * wanted.double().norm())


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_same_bits_every_time_and_in_a_graph(mode: int) -> None:
    torch.manual_seed(7)
    case = CudaCase(reference.Stack(mode, 48, 512, 5), [12] * 40, torch.float16)
    check_same_bits_in_a_graph(case)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("name", ["x", "w", "hx"])
def test_nan_comes_out_and_nothing_hangs(mode: int, name: str) -> None:
    torch.manual_seed(8)
    case = CudaCase(reference.Stack(mode, 32, 64, 4), [9] * 5, torch.float16)
    case.data[name].view(-1)[5] = float("nan")
    case.train()
    torch.cuda.synchronize()
    assert not torch.isfinite(case.data["y"].double()).all()

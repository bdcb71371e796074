"""Stacks of LSTM layers with a projection, run as a wavefront by chunks on the GPU: against the float64 reference."""

import capi
import pytest
import torch
from reference import rnn as reference
from rnn_case import OUTPUTS, dropout_descriptor
from test_rnn_chunked_cuda import (
    LENGTHS,
    TYPES,
    assert_runs_so,
    check_absent_states_are_zeros,
    check_inference_that_runs_otherwise,
    check_some_of_the_gradients,
    long_enough,
)
from test_rnn_cuda import (
    TOLERANCE,
    CudaCase,
    assert_results,
    check_calls_stay_within_workspace_and_reserve_space,
    check_gradients_without_states,
    check_inference_and_no_states,
    check_same_bits_in_a_graph,
    check_several_backward_calls,
    check_training_steps_in_a_row,
    check_unaligned_output,
    why_not,
)
from test_rnn_wavefront_cuda import LayerAfterLayer, check_dropout

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

# Layers, hidden size, projection, batch, timesteps: one launch or several, of as many layers or not, whole chunks and
# parts of one, rows of h that are aligned to 16 bytes and that are not; of launches of three layers, some that do not
# run so without a projection.
SIZES = [
    (3, 576, 200, 6, 66),
    (3, 704, 512, 1, 64),
    (3, 768, 333, 2, 83),
    (3, 1024, 512, 4, 65),
    (3, 1024, 512, 8, 64),
    (6, 896, 200, 7, 70),
    (6, 1024, 512, 2, 64),
    (4, 576, 200, 3, 66),
    (7, 832, 512, 3, 64),
    (7, 1024, 512, 4, 66),
    (7, 1024, 200, 8, 65),
    (12, 1024, 512, 1, 77),
    (5, 640, 512, 8, 64),
    (5, 832, 333, 8, 67),
    (5, 960, 17, 4, 81),
    (5, 1024, 512, 3, 70),
    (5, 1024, 200, 8, 69),
    (10, 1024, 512, 5, 64),
    (6, 768, 512, 5, 72),
    (7, 576, 200, 1, 70),
    (9, 640, 320, 8, 75),
]


def steps_of(hidden: int, batch_sizes: list[int]) -> list[int]:
    return long_enough(batch_sizes, 96 if hidden > 704 else 64)


def case_of(
    layers: int,
    hidden: int,
    projection: int,
    batch_sizes: list[int],
    dtype: torch.dtype = torch.float16,
    kind: type[CudaCase] = CudaCase,
    **changes: object,
) -> CudaCase:
    stack = reference.Stack(reference.LSTM, 48, hidden, layers, projection=projection)
    return kind(stack, steps_of(hidden, batch_sizes), dtype, **changes)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("layers", "hidden", "projection", "batch", "steps"), SIZES)
def test_training_step(layers: int, hidden: int, projection: int, batch: int, steps: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    case = case_of(layers, hidden, projection, [batch] * steps, dtype)
    assert_runs_so(case)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize(("projection", "dtype"), [(512, torch.float16), (200, torch.bfloat16)], ids=str)
@pytest.mark.parametrize(("layers", "hidden", "batch_sizes"), LENGTHS, ids=str)
def test_lengths(layers: int, hidden: int, batch_sizes: list[int], projection: int, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    case = case_of(layers, hidden, projection, batch_sizes, dtype)
    assert_runs_so(case)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize(("layers", "hidden", "batch_sizes"), LENGTHS[:4], ids=str)
def test_lengths_in_inference(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(3)
    case = case_of(layers, hidden, 200, batch_sizes)
    case.check("RNNForwardInference")
    assert_results(case, ("y", "hy", "cy"))


@pytest.mark.parametrize("batch", [1, 4, 8])
@pytest.mark.parametrize(("layers", "hidden"), [(3, 704), (5, 1024), (6, 1024), (4, 576)])
def test_inference_and_no_states(layers: int, hidden: int, batch: int) -> None:
    torch.manual_seed(4)
    check_inference_and_no_states(case_of(layers, hidden, 512, [batch] * 70))


@pytest.mark.parametrize("given", [("hx",), ("cx",), ("hy",), ("cy",), ("hx", "hy")], ids=str)
def test_some_of_the_states(given: tuple[str, ...]) -> None:
    """In inference and in training, of several launches."""
    torch.manual_seed(5)
    case = case_of(7, 1024, 512, [4] * 64)
    for name in {"hx", "cx"} - set(given):
        case.data[name].zero_()
    absent = {name: None for name in ("hx", "cx", "hy", "cy") if name not in given}
    wanted = ("y", *(name for name in given if name in ("hy", "cy")))
    for name in ("RNNForwardInference", "RNNForwardTraining"):
        case.check(name, **absent)
        assert_results(case, wanted)
        for of_state in ("hy", "cy"):
            assert of_state in given or torch.all(case.data[of_state] == case.UNTOUCHED)


@pytest.mark.parametrize(("layers", "hidden", "batch"), [(3, 832, 1), (5, 1024, 8), (7, 1024, 4), (4, 576, 5)])
def test_inference_is_the_forward_pass_of_training(layers: int, hidden: int, batch: int) -> None:
    torch.manual_seed(6)
    case = case_of(layers, hidden, 512, [batch] * 70)
    if torch.cuda.get_device_capability() == (9, 0):
        plan = case.plan()
        assert plan.layersTogether == plan.layersTogetherInference >= 3
    case.check("RNNForwardTraining")
    first = case.results()
    for name in ("y", "hy", "cy"):
        case.data[name].fill_(case.UNTOUCHED)
    case.check("RNNForwardInference")
    for name in ("y", "hy", "cy"):
        assert torch.equal(case.data[name], first[name]), name


def test_inference_that_runs_otherwise() -> None:
    torch.manual_seed(21)
    stack = reference.Stack(reference.LSTM, 48, 1024, 3, projection=512)
    check_inference_that_runs_otherwise(CudaCase(stack, [1] * 70, torch.float16), together=1)


@pytest.mark.parametrize("batch", [4, 7])
@pytest.mark.parametrize(("layers", "hidden", "projection"), [(4, 640, 200), (5, 1024, 512), (7, 1024, 512)])
def test_gradients_without_states(layers: int, hidden: int, projection: int, batch: int) -> None:
    torch.manual_seed(7)
    check_gradients_without_states(case_of(layers, hidden, projection, [batch] * 64))


@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"),
    [(5, 1024, [8] * 70), (7, 1024, [4] * 70), (5, 640, LENGTHS[1][2]), (3, 768, LENGTHS[0][2])],
    ids=str,
)
def test_some_of_the_gradients(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(8)
    check_some_of_the_gradients(case_of(layers, hidden, 512, batch_sizes))


@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"),
    [(7, 1024, [4] * 70), (3, 704, [8] * 64), (4, 576, [3] * 64), LENGTHS[1], LENGTHS[8]],
    ids=str,
)
def test_absent_states_are_zeros(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(20)
    check_absent_states_are_zeros(case_of(layers, hidden, 200, batch_sizes))


@pytest.mark.parametrize("hidden", [640, 896])
@pytest.mark.parametrize("states", [False, True])
def test_the_first_layer_without_matrices(states: bool, hidden: int) -> None:
    """Whose input the kernels read themselves if no states join it."""
    torch.manual_seed(9)
    stack = reference.Stack(reference.LSTM, hidden, hidden, 4, 1, True, 200)
    case = CudaCase(stack, steps_of(hidden, [4] * 66), torch.float16)
    if states:
        case.train()
        assert_results(case, slack=2)
    else:
        check_gradients_without_states(case)


# Layers, hidden size, projection and batch: as SIZES, and projections that two blocks halve or not.
DROPOUT_SIZES = [
    (3, 576, 128, 1),
    (3, 576, 320, 8),
    (3, 704, 512, 5),
    (4, 640, 192, 3),
    (3, 768, 384, 4),
    (7, 832, 448, 8),
    (3, 896, 192, 5),
    (5, 1024, 512, 1),
    (5, 1024, 512, 3),
    (6, 1024, 128, 4),
    (7, 1024, 768, 8),
    (12, 1024, 512, 4),
]


class Dropped:
    """A training step of a stack with dropout between layers, always with the same masks."""

    def __init__(
        self, layers: int, hidden: int, projection: int, batch_sizes: list[int], kind: type[CudaCase] = CudaCase
    ) -> None:
        torch.manual_seed(11)
        self.states = torch.zeros(2, dtype=torch.int64, device="cuda")
        self.handle = capi.Object("Create", "Destroy")
        dropout = dropout_descriptor(self.handle, 0.3, self.states, 77)
        self.first = self.states.clone()
        self.case = case_of(layers, hidden, projection, batch_sizes, kind=kind, dropout=dropout)

    def train(self) -> dict[str, torch.Tensor]:
        self.states.copy_(self.first)
        self.case.data["dw"].zero_()
        self.case.train()
        return self.case.results()


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("layers", "hidden", "projection", "batch"), DROPOUT_SIZES)
def test_dropout(layers: int, hidden: int, projection: int, batch: int, dtype: torch.dtype) -> None:
    stack = reference.Stack(reference.LSTM, 48, hidden, layers, projection=projection)
    batch_sizes = steps_of(hidden, [batch] * 65)
    assert_runs_so(Dropped(layers, hidden, projection, batch_sizes).case)
    check_dropout(stack, batch_sizes, dtype)


@pytest.mark.parametrize(("layers", "hidden", "batch_sizes"), LENGTHS, ids=str)
def test_dropout_and_lengths(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    stack = reference.Stack(reference.LSTM, 48, hidden, layers, projection=384)
    batch_sizes = steps_of(hidden, batch_sizes)
    assert_runs_so(Dropped(layers, hidden, 384, batch_sizes).case)
    check_dropout(stack, batch_sizes, torch.float16)


@pytest.mark.parametrize(("hidden", "projection"), [(1024, 200), (1024, 64), (1024, 896)])
def test_dropout_one_after_the_other(hidden: int, projection: int) -> None:
    batch_sizes = steps_of(hidden, [4] * 64)
    case = Dropped(5, hidden, projection, batch_sizes).case
    if torch.cuda.get_device_capability() == (9, 0):
        assert case.plan().layersTogether == case.plan().layersTogetherBackward == 1
    check_dropout(reference.Stack(reference.LSTM, 48, hidden, 5, projection=projection), batch_sizes, torch.float16)


@pytest.mark.parametrize("batch_sizes", [[4] * 96, [7] * 97, [8] * 60 + [5] * 60], ids=str)
def test_dropout_leaves_the_same_bits_whatever_memory_holds(batch_sizes: list[int]) -> None:
    dropped = Dropped(7, 1024, 512, batch_sizes)
    first = dropped.train()
    for byte in (0xFF, 0):
        dropped.case.workspace.fill_(byte)
        dropped.case.reserve.fill_(byte)
        for name, found in dropped.train().items():
            assert torch.equal(found, first[name]), name


@pytest.mark.parametrize("batch_sizes", [[4] * 96, [8] * 60 + [5] * 60], ids=str)
def test_replays_of_a_graph_go_on_with_new_masks(batch_sizes: list[int]) -> None:
    dropped = Dropped(7, 1024, 512, batch_sizes)
    calls = [dropped.train()]
    dropped.case.data["dw"].zero_()
    dropped.case.train()
    calls.append(dropped.case.results())
    graph = dropped.case.capture()
    dropped.states.copy_(dropped.first)
    for call in calls:
        dropped.case.data["dw"].zero_()
        graph.replay()
        for name, found in dropped.case.results().items():
            assert torch.equal(found, call[name]), name
    assert not torch.equal(calls[0]["y"], calls[1]["y"])


@pytest.mark.parametrize("name", ["x", "w", "dy", "hx", "dhy", "dx"])
def test_dropout_and_unaligned_arrays(name: str) -> None:
    dropped = Dropped(3, 1024, 192, [4] * 96)
    first = dropped.train()
    given = dropped.case.data[name]
    room = torch.empty(given.numel() + 1, dtype=given.dtype, device="cuda")
    dropped.case.data[name] = room[1:].view_as(given).copy_(given)
    for of, found in dropped.train().items():
        error = ((found.double() - first[of].double()).norm() / first[of].double().norm()).item()
        assert error < 2 * TOLERANCE[torch.float16], f"{of}: {error:.2e}"


@pytest.mark.parametrize(
    ("layers", "hidden", "projection", "batch_sizes"),
    [(3, 1024, 512, [4] * 96), (12, 1024, 512, [8] * 97), (3, 576, 320, [3] * 40 + [2] * 30)],
    ids=str,
)
def test_dropout_stays_within_workspace_and_reserve_space(
    layers: int, hidden: int, projection: int, batch_sizes: list[int]
) -> None:
    check_calls_stay_within_workspace_and_reserve_space(Dropped(layers, hidden, projection, batch_sizes).case)


@pytest.mark.parametrize("batch_sizes", [[4] * 65, LENGTHS[1][2]], ids=str)
def test_inference_with_dropout_set(batch_sizes: list[int]) -> None:
    torch.manual_seed(10)
    handle = capi.Object("Create", "Destroy")
    states = torch.zeros(2, dtype=torch.int64, device="cuda")
    case = case_of(5, 1024, 512, batch_sizes, dropout=dropout_descriptor(handle, 0.3, states, 77))
    if torch.cuda.get_device_capability() == (9, 0):
        plan = case.plan()
        assert (plan.layersTogether, plan.layersTogetherBackward, plan.layersTogetherInference) == (5, 5, 5)
    case.check("RNNForwardInference")
    assert_results(case, ("y", "hy", "cy"))


@pytest.mark.parametrize(("hidden", "batch"), [(576, 4), (1024, 4), (1024, 8)])
def test_an_unaligned_output(hidden: int, batch: int) -> None:
    torch.manual_seed(11)
    check_unaligned_output(case_of(5, hidden, 200, [batch] * 64))


@pytest.mark.parametrize("name", ["x", "w", "dy", "hx", "cx", "hy", "cy", "dhy", "dcy", "dx", "dhx", "dcx"])
def test_unaligned_arrays(name: str) -> None:
    torch.manual_seed(12)
    case = case_of(3, 1024, 200, [4] * 64)
    given = case.data[name]
    room = torch.empty(given.numel() + 1, dtype=given.dtype, device="cuda")
    case.data[name] = room[1:].view_as(given).copy_(given)
    case.train()
    assert_results(case, slack=2)
    case.check("RNNForwardInference")
    assert_results(case, ("y", "hy", "cy"))


@pytest.mark.parametrize("batch_sizes", [[8] * 80, [4] * 90, LENGTHS[1][2]], ids=str)
def test_the_same_bits_every_time_and_in_a_graph(batch_sizes: list[int]) -> None:
    torch.manual_seed(13)
    check_same_bits_in_a_graph(case_of(7, 1024, 512, batch_sizes))


@pytest.mark.parametrize(("layers", "hidden", "batch"), [(7, 1024, 4), (5, 1024, 8), (5, 640, 6)])
def test_what_workspace_and_reserve_space_hold_beforehand_does_not_matter(layers: int, hidden: int, batch: int) -> None:
    torch.manual_seed(14)
    case = case_of(layers, hidden, 200, [batch] * 70)
    case.train()
    first = case.results()
    for byte in (0xFF, 0):
        case.data["dw"].zero_()
        case.workspace.fill_(byte)
        case.reserve.fill_(byte)
        case.train()
        for name in OUTPUTS:
            assert torch.equal(case.data[name], first[name]), name
        case.workspace.fill_(byte)
        case.check("RNNForwardInference")
        for name in ("y", "hy", "cy"):
            assert torch.equal(case.data[name], first[name]), name


@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"),
    [
        (3, 1024, [4] * 64),
        (12, 1024, [4] * 64),
        (10, 1024, [8] * 65),
        (3, 704, [1] * 70),
        (9, 576, [8] * 64),
        LENGTHS[1],
    ],
    ids=str,
)
def test_calls_stay_within_workspace_and_reserve_space(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    check_calls_stay_within_workspace_and_reserve_space(case_of(layers, hidden, 333, batch_sizes))


@pytest.mark.parametrize(("layers", "hidden", "batch"), [(5, 1024, 4), (9, 640, 8), (7, 1024, 8), (3, 832, 2)])
def test_a_larger_reserve_space_serves_several_backward_calls(layers: int, hidden: int, batch: int) -> None:
    torch.manual_seed(15)
    check_several_backward_calls(case_of(layers, hidden, 512, [batch] * 64))


@pytest.mark.parametrize("name", ["x", "w", "hx", "dy", "dhy", "dcy"])
@pytest.mark.parametrize("hidden", [576, 1024])
def test_nan_comes_out_and_nothing_hangs(hidden: int, name: str) -> None:
    torch.manual_seed(16)
    case = case_of(4, hidden, 200, [4] * 70)
    case.data[name].view(-1)[5] = float("nan")
    case.train()
    torch.cuda.synchronize()
    assert torch.isfinite(case.data["y"].double()).all() == name.startswith("d")
    assert not torch.isfinite(case.data["dw"].double()).all()


def test_training_steps_in_a_row() -> None:
    torch.manual_seed(17)
    check_training_steps_in_a_row(case_of(7, 1024, 512, [4] * 80))


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_merged_input_matrices_cost_no_accuracy(dtype: torch.dtype) -> None:
    """Where layers run one after the other, h is rounded in the place of these matrices. Simulated in double with the
    roundings of either way, y's error over 128 timesteps of five layers is 1.02 times as large."""
    errors = []
    for kind in (CudaCase, LayerAfterLayer):
        torch.manual_seed(18)
        case = case_of(5, 1024, 512, [4] * 128, dtype, kind)
        case.check("RNNForwardTraining")
        expected = case.expected()["y"]
        errors.append(((case.data["y"].double() - expected).norm() / expected.norm()).item())
    assert errors[0] < 1.1 * errors[1], errors


@pytest.mark.parametrize(("layers", "batch"), [(12, 4), (10, 8)])
def test_layers_after_each_other(layers: int, batch: int) -> None:
    """Results agree within what rounding allows; the reserve space is as large, and the workspace has the matrices of
    all layers of a launch in place of one."""
    results, plans = [], []
    for kind in (CudaCase, LayerAfterLayer):
        torch.manual_seed(19)
        case = case_of(layers, 1024, 512, [batch] * 256, kind=kind)
        plans.append(case.plan())
        case.train()
        results.append(case.results())
    for name, found in results[0].items():
        wanted = results[1][name].double()
        error = ((found.double() - wanted).norm() / wanted.norm()).item()
        assert error < 2 * TOLERANCE[torch.float16], f"{name}: {error:.2e}"
    together, alone = plans
    assert together.reserveSize == alone.reserveSize
    matrices = 2 * (max(together.layersTogether, together.layersTogetherBackward) - 1)
    states = batch * 256 * 1024 * 2
    assert together.workspaceSize <= alone.workspaceSize + matrices * 4 * 1024 * 1024 * 2 + 5 * states + (2 << 20)

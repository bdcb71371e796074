"""Stacks that run as a wavefront by chunks on the GPU: against the float64 reference."""

import pytest
import torch
from reference import rnn as reference
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

import prnn

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

TYPES = {"half": torch.float16, "bfloat16": torch.bfloat16}
# Layers, hidden size, batch, timesteps: one launch or several, of 3 to 8 layers, as many each or not, whole chunks,
# parts of one and single timesteps, units and k-tiles that do not fill the last block or every warp.
SIZES = [
    # Launches of three layers
    (3, 768, 1, 65),
    (3, 768, 8, 77),
    (3, 832, 1, 83),
    (3, 832, 6, 64),
    (3, 896, 2, 66),
    (3, 960, 4, 79),
    (3, 1024, 5, 69),
    (3, 1024, 7, 80),
    (6, 896, 3, 262),
    (6, 1024, 4, 256),
    # Four layers
    (4, 576, 4, 66),
    (4, 640, 1, 70),
    (4, 704, 8, 65),
    (4, 1024, 8, 64),
    (7, 832, 5, 64),
    (7, 1024, 2, 83),
    (8, 768, 3, 64),
    # Five layers
    (5, 576, 8, 81),
    (5, 640, 6, 75),
    (5, 704, 3, 64),
    (5, 896, 8, 83),
    (5, 960, 4, 81),
    (5, 1024, 1, 71),
    (5, 1024, 2, 70),
    (5, 1024, 3, 65),
    (5, 1024, 4, 77),
    (5, 1024, 5, 67),
    (5, 1024, 6, 71),
    (5, 1024, 7, 64),
    (5, 1024, 8, 69),
    (10, 576, 2, 70),
    (9, 1024, 4, 66),
    (10, 960, 7, 64),
    # More layers
    (6, 768, 6, 67),
    (6, 832, 4, 64),
    (12, 640, 4, 64),
    (7, 704, 5, 72),
    (8, 576, 7, 72),
    (8, 640, 2, 64),
]
# Sequences of different lengths, down to one: several that end together, within a chunk and at its end. Backward, they
# begin with their last timestep: in a chunk's first and last step, one after the first, within it, several together,
# and one of a single timestep. From the end on, chunks are of 16 timesteps with up to 4 sequences, then 12, 10, 9 and
# 8.
LENGTHS = [
    (5, 1024, [4] * 32 + [3] * 17 + [1] * 20),
    (5, 1024, [8] * 16 + [7] * 8 + [4] * 24 + [2] * 3 + [1] * 30),
    (7, 1024, [8] + [1] * 70),
    (4, 576, [6] * 63 + [5]),
    (5, 640, [2] * 40 + [1] * 41),
    (4, 960, [7] * 9 + [5] * 50 + [4] * 11),
    (5, 1024, [2] * 25 + [1] * 48),
    (7, 704, [3] * 35 + [2] * 16 + [1] * 17),
    (3, 832, [4] * 24 + [3] * 23 + [2] + [1] * 16),
    (7, 1024, [4] + [3] * 132 + [2]),
    (6, 1024, [4] + [1] * 270),
    (8, 576, [5] * 40 + [4] * 13 + [2] * 11),
    (6, 768, [6] * 36 + [5] * 12 + [3] * 8 + [1] * 9),
    (5, 896, [7] * 30 + [6] * 17 + [1] * 18),
    (3, 768, [5] * 29 + [4] * 20 + [2] * 15 + [1]),
    (3, 1024, [8] * 35 + [6] * 14 + [4] + [3] * 6 + [2] + [1] * 8),
    (10, 960, [8] + [7] * 65 + [1] * 63),
]


def long_enough(batch_sizes: list[int], least: int = 128) -> list[int]:
    """All but six large layers run so from 128 timesteps on, or fewer: of 64 and more, more of the first batch."""
    return batch_sizes if len(batch_sizes) >= least else batch_sizes[:1] * (least - 64) + batch_sizes


def case_of(
    layers: int, hidden: int, batch_sizes: list[int], dtype: torch.dtype = torch.float16, **changes: object
) -> CudaCase:
    stack = reference.Stack(reference.LSTM, 48, hidden, layers)
    return CudaCase(stack, long_enough(batch_sizes), dtype, **changes)


def assert_runs_so(case: CudaCase) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        return  # other GPUs have other plans
    plan = case.plan()
    assert (plan.forwardEngine, plan.backwardEngine) == (b"wavefront-chunked", b"wavefront-chunked")
    assert min(plan.layersTogether, plan.layersTogetherBackward) >= 3


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("layers", "hidden", "batch", "steps"), SIZES)
def test_training_step(layers: int, hidden: int, batch: int, steps: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    case = case_of(layers, hidden, [batch] * steps, dtype)
    assert_runs_so(case)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"),
    [
        (5, 768, [8] * 48),
        (5, 832, [2] * 48),
        (5, 1024, [1] * 64),
        (3, 768, [4] * 96),
        (8, 768, [8] * 64),
        (6, 832, [7] * 30 + [3] * 34),
        (5, 896, [8] * 64),
        (5, 1024, [8] + [2] * 63),
        (5, 1024, [3] * 96),
        (4, 1024, [7] * 90 + [5] * 6),
        (5, 640, [8] * 96),
    ],
    ids=str,
)
def test_few_timesteps(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(22)
    case = CudaCase(reference.Stack(reference.LSTM, 48, hidden, layers), batch_sizes, torch.float16)
    assert_runs_so(case)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("layers", "hidden", "batch_sizes"), LENGTHS, ids=str)
def test_lengths(layers: int, hidden: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    case = case_of(layers, hidden, batch_sizes, dtype)
    assert_runs_so(case)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize(("layers", "hidden", "batch_sizes"), LENGTHS[:5], ids=str)
def test_lengths_in_inference(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(3)
    case = case_of(layers, hidden, batch_sizes)
    case.check("RNNForwardInference")
    assert_results(case, ("y", "hy", "cy"))


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"),
    [
        (3, 768, [6] * 65),
        (4, 576, [5] * 64),
        (8, 640, [1] * 83),
        (5, 1024, [8] * 67),
        (5, 1024, [4] * 70),
        (6, 1024, [3] * 256),
        (12, 832, [7] * 64),
        *LENGTHS,
    ],
    ids=str,
)
def test_dropout(layers: int, hidden: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    check_dropout(reference.Stack(reference.LSTM, 48, hidden, layers), long_enough(batch_sizes), dtype)


@pytest.mark.parametrize(
    ("layers", "hidden", "batch"), [(5, 1024, 1), (7, 1024, 2), (7, 1024, 4), (5, 1024, 8), (7, 1024, 8), (3, 768, 1)]
)
def test_inference_and_no_states(layers: int, hidden: int, batch: int) -> None:
    torch.manual_seed(4)
    check_inference_and_no_states(case_of(layers, hidden, [batch] * 70))


def check_inference_that_runs_otherwise(case: CudaCase, together: int) -> None:
    """Between the calls of training steps, whose bits are the same before and after it."""
    assert_runs_so(case)
    if torch.cuda.get_device_capability() == (9, 0):
        assert case.plan().layersTogetherInference == together
    case.train()
    first = case.results()
    for name in ("y", "hy", "cy"):
        case.data[name].fill_(case.UNTOUCHED)
    case.check("RNNForwardInference")
    assert_results(case, ("y", "hy", "cy"))
    case.data["dw"].zero_()
    case.train()
    found = case.results()
    assert all(torch.equal(found[name], first[name]) for name in first)


@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes", "together"), [(5, 1024, [1] * 70, 2), (7, 640, [2] * 97, 3)]
)
def test_inference_that_runs_otherwise(layers: int, hidden: int, batch_sizes: list[int], together: int) -> None:
    torch.manual_seed(20)
    case = CudaCase(reference.Stack(reference.LSTM, 48, hidden, layers), batch_sizes, torch.float16)
    check_inference_that_runs_otherwise(case, together)


@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"),
    [
        (4, 640, [4] * 64),
        (3, 768, [7] * 64),
        (7, 1024, [4] * 64),
        (7, 1024, [7] * 64),
        *LENGTHS[:2],
        *LENGTHS[-2:],
    ],
    ids=str,
)
def test_gradients_without_states(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(5)
    check_gradients_without_states(case_of(layers, hidden, batch_sizes))


def check_absent_states_are_zeros(case: CudaCase) -> None:
    """One of them at a time; the others are given."""
    calls = {
        "RNNForwardTraining": ("hx", "cx"),
        "RNNBackwardData": ("hx", "cx", "dhy", "dcy"),
        "RNNBackwardWeights": ("hx",),
    }
    for name in ("hx", "cx", "dhy", "dcy"):
        given, case.data[name] = case.data[name], torch.zeros_like(case.data[name])
        case.data["dw"].zero_()
        case.train()
        zeros = case.results()
        case.data["dw"].zero_()
        for call, names in calls.items():
            case.check(call, **({name: None} if name in names else {}))
        assert all(torch.equal(case.data[other], zeros[other]) for other in zeros)
        case.data[name] = given


@pytest.mark.parametrize(("layers", "hidden", "batch_sizes"), [*LENGTHS[:2], LENGTHS[3], *LENGTHS[-2:]], ids=str)
def test_absent_states_are_zeros(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(17)
    check_absent_states_are_zeros(case_of(layers, hidden, batch_sizes))


def check_some_of_the_gradients(case: CudaCase) -> None:
    """Each is left out in turn; what is left is as with all of them."""
    case.train()
    whole = case.results()
    for name in ("dx", "dhx", "dcx"):
        case.data["dw"].zero_()
        case.check("RNNForwardTraining")
        case.check("RNNBackwardData", **{name: None})
        case.check("RNNBackwardWeights")
        assert all(torch.equal(case.data[other], whole[other]) for other in whole)
    for name in ("dhy", "dcy"):
        given, case.data[name] = case.data[name], torch.zeros_like(case.data[name])
        case.data["dw"].zero_()
        case.train()
        zeros = case.results()
        case.data["dw"].zero_()
        case.check("RNNForwardTraining")
        case.check("RNNBackwardData", **{name: None})
        case.check("RNNBackwardWeights")
        assert all(torch.equal(case.data[other], zeros[other]) for other in zeros)
        case.data[name] = given


@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"),
    [(5, 1024, [8] * 70), (4, 704, [4] * 70), (5, 1024, LENGTHS[1][2]), (7, 768, LENGTHS[0][2])],
    ids=str,
)
def test_some_of_the_gradients(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(14)
    check_some_of_the_gradients(case_of(layers, hidden, batch_sizes))


@pytest.mark.parametrize("hidden", [640, 896])
def test_the_first_layer_without_matrices(hidden: int) -> None:
    torch.manual_seed(6)
    case = CudaCase(reference.Stack(reference.LSTM, hidden, hidden, 4, 1, True), long_enough([4] * 66), torch.float16)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize("hidden", [576, 1024])
def test_an_unaligned_output(hidden: int) -> None:
    torch.manual_seed(7)
    check_unaligned_output(case_of(4, hidden, [4] * 64))


@pytest.mark.parametrize(("layers", "hidden"), [(3, 1024), (4, 640)])
@pytest.mark.parametrize("name", ["x", "dy", "hx", "cx", "dhy", "dcy", "dx", "dhx", "dcx"])
def test_unaligned_arrays(name: str, layers: int, hidden: int) -> None:
    torch.manual_seed(15)
    case = case_of(layers, hidden, [5] * 64)
    given = case.data[name]
    room = torch.empty(given.numel() + 1, dtype=given.dtype, device="cuda")
    case.data[name] = room[1:].view_as(given).copy_(given)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize("batch_sizes", [[4] * 64, [6] * 64, LENGTHS[0][2]], ids=str)
def test_unaligned_weights(batch_sizes: list[int]) -> None:
    torch.manual_seed(8)
    case = case_of(3, 1024, batch_sizes)
    weights = case.data["w"]
    room = torch.empty(weights.numel() + 1, dtype=weights.dtype, device="cuda")
    room[1:] = weights
    case.data["w"] = room[1:]
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"),
    [
        (7, 1024, [8] * 80),
        (6, 1024, [4] * 270),
        (8, 576, [6] * 70),
        (10, 1024, LENGTHS[1][2]),
        (7, 768, LENGTHS[0][2]),
        LENGTHS[-2],
    ],
    ids=str,
)
def test_the_same_bits_every_time_and_in_a_graph(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(9)
    check_same_bits_in_a_graph(case_of(layers, hidden, batch_sizes))


@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"),
    [(8, 576, [8] * 64), (7, 1024, [1] * 64), (6, 1024, [3] * 257), LENGTHS[12]],
    ids=str,
)
def test_calls_stay_within_workspace_and_reserve_space(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    check_calls_stay_within_workspace_and_reserve_space(case_of(layers, hidden, batch_sizes))


def test_calls_in_a_row() -> None:
    """Nothing of a call is left for the next one, which does not wait for it."""
    torch.manual_seed(10)
    case = case_of(5, 1024, [8] * 100)
    inputs = [torch.randn_like(case.data["x"]) for _ in range(4)]
    outputs = []
    for x in inputs:
        case.data["x"] = x
        case.data["y"] = torch.full_like(case.data["y"], case.UNTOUCHED)
        case.check("RNNForwardTraining")
        outputs.append(case.data["y"])
    for x, output in zip(inputs, outputs, strict=True):
        case.data["x"] = x
        case.data["y"] = torch.empty_like(output)
        torch.cuda.synchronize()
        case.check("RNNForwardTraining")
        assert torch.equal(case.data["y"], output)


@pytest.mark.parametrize(("layers", "hidden", "batch_sizes"), [(7, 1024, [8] * 80), (10, 640, LENGTHS[1][2])], ids=str)
def test_training_steps_in_a_row(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(16)
    check_training_steps_in_a_row(case_of(layers, hidden, batch_sizes))


@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"),
    [
        (5, 1024, [4] * 64),
        (12, 640, [8] * 64),
        (7, 1024, [8] * 64),
        (3, 832, [2] * 64),
        (6, 1024, [3] * 256),
        *LENGTHS[:2],
        LENGTHS[12],
    ],
    ids=str,
)
def test_a_larger_reserve_space_serves_several_backward_calls(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(11)
    check_several_backward_calls(case_of(layers, hidden, batch_sizes))


@pytest.mark.parametrize("name", ["x", "w", "hx", "dy", "dcy"])
@pytest.mark.parametrize("hidden", [576, 1024])
def test_nan_comes_out_and_nothing_hangs(hidden: int, name: str) -> None:
    torch.manual_seed(12)
    case = case_of(4, hidden, [5] * 70)
    case.data[name].view(-1)[5] = float("nan")
    case.train()
    torch.cuda.synchronize()
    assert torch.isfinite(case.data["y"].double()).all() == name.startswith("d")
    assert not torch.isfinite(case.data["dw"].double()).all()


@pytest.mark.parametrize(("hidden", "batch_sizes"), [(1024, LENGTHS[0][2]), (704, LENGTHS[1][2])], ids=str)
def test_nan_stays_in_its_sequence(hidden: int, batch_sizes: list[int]) -> None:
    """With different lengths, backward: the gradients of the others are as without."""
    torch.manual_seed(18)
    case = case_of(5, hidden, batch_sizes)
    assert_runs_so(case)
    case.train()
    wanted = case.results()
    batch = case.batch_sizes[0]
    of_row = torch.cat([torch.arange(size) for size in case.batch_sizes]).cuda()
    for sequence in (0, batch - 1):
        given = case.data["dhy"].clone()
        case.data["dhy"][:, sequence] = float("nan")
        case.check("RNNForwardTraining")
        case.check("RNNBackwardData")
        others = torch.arange(batch).cuda() != sequence
        assert not torch.isfinite(case.data["dx"][of_row == sequence].double()).any()
        assert torch.equal(case.data["dx"][of_row != sequence], wanted["dx"][of_row != sequence])
        for name in ("dhx", "dcx"):
            assert torch.equal(case.data[name][:, others], wanted[name][:, others])
        case.data["dhy"] = given


@pytest.mark.parametrize("batch", [4, 8])
def test_padding_never_matters(batch: int) -> None:
    """Padded sequences in a module: the same bits whatever it is, and gradients of zero."""
    torch.manual_seed(19)
    lengths = torch.linspace(150, 1, batch).long()
    module = prnn.nn.LSTM(1024, 1024, 5, device="cuda", dtype=torch.float16)
    clean = torch.randn(150, batch, 1024, device="cuda", dtype=torch.float16)
    dy = torch.randn_like(clean)
    is_padding = torch.arange(150)[:, None].ge(lengths).cuda()
    results = []
    for padding in (0.0, float("nan")):
        x = clean.clone()
        x[is_padding] = padding
        x.requires_grad_()
        module.zero_grad()
        y, _ = module(x, lengths=lengths)
        y.backward(torch.where(is_padding[:, :, None], torch.full_like(dy, padding), dy))
        assert x.grad is not None
        assert not y[is_padding].any()
        assert not x.grad[is_padding].any()
        results.append([y, x.grad, *(parameter.grad for parameter in module.parameters())])
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))


@pytest.mark.parametrize("batch", [4, 8])
def test_it_takes_no_more_memory_than_layers_alone(batch: int) -> None:
    """Workspace and reserve space together no more than where two layers run backward together, whose gradients are not
    in each other's gates: states are exchanged in the place of what that keeps."""
    stack, batch_sizes = reference.Stack(reference.LSTM, 1024, 1024, 5), [batch] * 256
    together, alone = (kind(stack, batch_sizes, torch.float16).plan() for kind in (CudaCase, LayerAfterLayer))
    states = batch * 256 * 1024 * 2
    assert together.reserveSize == alone.reserveSize
    assert together.workspaceSize <= alone.workspaceSize + 4 * states + (1 << 18)


def test_layers_after_each_other() -> None:
    """Results agree within what rounding allows, whatever the engine of single layers."""
    results = []
    for kind in (CudaCase, LayerAfterLayer):
        torch.manual_seed(13)
        case = kind(reference.Stack(reference.LSTM, 1024, 1024, 5), [8] * 128, torch.float16)
        case.train()
        results.append(case.results())
    for name, found in results[0].items():
        wanted = results[1][name].double()
        error = ((found.double() - wanted).norm() / wanted.norm()).item()
        assert error < 2 * TOLERANCE[torch.float16], f"{name}: {error:.2e}"

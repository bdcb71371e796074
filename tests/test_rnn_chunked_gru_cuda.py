"""Stacks of GRU layers that run as a wavefront by chunks on the GPU: against the float64 reference."""

import pytest
import torch
from reference import rnn as reference
from test_rnn_chunked_cuda import LENGTHS, TYPES, assert_runs_so
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

# Layers, hidden size, batch, timesteps: blocks of 32, 40 and 48 units forward, one launch or several in either pass,
# whole chunks, parts of one and single timesteps, units and k-tiles that do not fill the last block or every warp.
SIZES = [
    (3, 768, 1, 65),
    (3, 832, 6, 64),
    (3, 1024, 5, 69),
    (4, 640, 1, 70),
    (4, 1024, 8, 64),
    (5, 576, 8, 81),
    (5, 704, 3, 64),
    (5, 896, 8, 83),
    (5, 960, 4, 81),
    (5, 1024, 1, 71),
    (5, 1024, 4, 77),
    (5, 1024, 8, 69),
    (6, 768, 6, 67),
    (6, 960, 2, 66),
    (6, 1024, 7, 64),
    (7, 832, 5, 64),
    (8, 576, 7, 72),
    (8, 704, 3, 64),
    (8, 768, 4, 80),
    (8, 1024, 2, 83),
    (12, 640, 4, 64),
]
LAST_LENGTHS = [4] + [3] * 132 + [2]


def long_enough(batch_sizes: list[int]) -> list[int]:
    """With 64 timesteps and more, more of the first batch: as many as all stacks run so from."""
    return batch_sizes[:1] * 64 + batch_sizes


def case_of(
    layers: int, hidden: int, batch_sizes: list[int], dtype: torch.dtype = torch.float16, **changes: object
) -> CudaCase:
    return CudaCase(reference.Stack(reference.GRU, 48, hidden, layers), long_enough(batch_sizes), dtype, **changes)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("layers", "hidden", "batch", "steps"), SIZES)
def test_training_step(layers: int, hidden: int, batch: int, steps: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    case = case_of(layers, hidden, [batch] * steps, dtype)
    assert_runs_so(case)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("layers", "hidden", "batch_sizes"), [*LENGTHS, (8, 768, LAST_LENGTHS)], ids=str)
def test_lengths(layers: int, hidden: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    case = case_of(layers, hidden, batch_sizes, dtype)
    assert_runs_so(case)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"),
    [(3, 768, [6] * 65), (5, 1024, [8] * 67), (6, 1024, [3] * 64), (8, 640, [1] * 83), *LENGTHS[:8]],
    ids=str,
)
def test_dropout(layers: int, hidden: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    check_dropout(reference.Stack(reference.GRU, 48, hidden, layers), long_enough(batch_sizes), dtype)


@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"),
    [(5, 1024, [1] * 70), (5, 1024, [8] * 70), (6, 960, [4] * 70), (8, 768, [7] * 64), *LENGTHS[:3]],
    ids=str,
)
def test_inference_and_no_states(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(4)
    check_inference_and_no_states(case_of(layers, hidden, batch_sizes))


@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"), [(4, 640, [4] * 64), (8, 1024, [7] * 64), *LENGTHS[:2]], ids=str
)
def test_gradients_without_states(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(5)
    check_gradients_without_states(case_of(layers, hidden, batch_sizes))


def test_the_first_layer_without_matrices() -> None:
    torch.manual_seed(6)
    case = CudaCase(reference.Stack(reference.GRU, 896, 896, 4, 1, True), long_enough([4] * 66), torch.float16)
    assert_runs_so(case)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize("hidden", [576, 1024])
def test_an_unaligned_output(hidden: int) -> None:
    torch.manual_seed(7)
    check_unaligned_output(case_of(4, hidden, [4] * 64))


@pytest.mark.parametrize("name", ["dy", "hx", "dhx", "dx", "w"])
@pytest.mark.parametrize(("hidden", "batch_sizes"), [(1024, [5] * 64), (640, LENGTHS[0][2])], ids=str)
def test_unaligned_arrays(name: str, hidden: int, batch_sizes: list[int]) -> None:
    """With unaligned dy and w, layers run backward one after the other, into rows of gradients as wide as by chunks."""
    torch.manual_seed(15)
    case = case_of(3, hidden, batch_sizes)
    given = case.data[name]
    room = torch.empty(given.numel() + 1, dtype=given.dtype, device="cuda")
    case.data[name] = room[1:].view_as(given).copy_(given)
    case.train()
    assert_results(case, slack=2)


@pytest.mark.parametrize(("layers", "hidden", "batch_sizes"), [(6, 1024, [8] * 80), (8, 768, LAST_LENGTHS)], ids=str)
def test_the_same_bits_every_time_and_in_a_graph(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(9)
    check_same_bits_in_a_graph(case_of(layers, hidden, batch_sizes))


@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"),
    [(8, 576, [8] * 64), (7, 1024, [1] * 64), (6, 1024, [3] * 65), LENGTHS[12]],
    ids=str,
)
def test_calls_stay_within_workspace_and_reserve_space(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    check_calls_stay_within_workspace_and_reserve_space(case_of(layers, hidden, batch_sizes))


@pytest.mark.parametrize(("layers", "hidden", "batch_sizes"), [(7, 1024, [8] * 80), (9, 640, LENGTHS[1][2])], ids=str)
def test_training_steps_in_a_row(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(16)
    check_training_steps_in_a_row(case_of(layers, hidden, batch_sizes))


@pytest.mark.parametrize(
    ("layers", "hidden", "batch_sizes"), [(5, 1024, [4] * 64), (6, 1024, [3] * 64), *LENGTHS[:2]], ids=str
)
def test_a_larger_reserve_space_serves_several_backward_calls(layers: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(11)
    check_several_backward_calls(case_of(layers, hidden, batch_sizes))


@pytest.mark.parametrize("name", ["x", "w", "dy"])
def test_nan_comes_out_and_nothing_hangs(name: str) -> None:
    torch.manual_seed(12)
    case = case_of(4, 1024, [5] * 70)
    case.data[name].view(-1)[5] = float("nan")
    case.train()
    torch.cuda.synchronize()
    assert torch.isfinite(case.data["y"].double()).all() == name.startswith("d")
    assert not torch.isfinite(case.data["dw"].double()).all()


def test_layers_after_each_other() -> None:
    """Results agree within what rounding allows, whatever the engine of single layers."""
    results = []
    for kind in (CudaCase, LayerAfterLayer):
        torch.manual_seed(13)
        case = kind(reference.Stack(reference.GRU, 1024, 1024, 5), [8] * 128, torch.float16)
        case.train()
        results.append(case.results())
    for name, found in results[0].items():
        wanted = results[1][name].double()
        error = ((found.double() - wanted).norm() / wanted.norm()).item()
        assert error < 2 * TOLERANCE[torch.float16], f"{name}: {error:.2e}"

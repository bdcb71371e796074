"""Inference over a few timesteps, a launch for each, against the float64 reference, on the GPU."""

import capi
import pytest
import torch
from reference import rnn as reference
from test_rnn_cuda import MODES, TYPES, CudaCase, assert_results, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

STATES = ("y", "hy", "cy")
LAYERS = {name: (mode, 0) for name, mode in MODES.items()}  # and with a projection
LAYERS |= {f"lstm -> {size}": (reference.LSTM, size) for size in (32, 17)}
by_type = pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
by_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


@by_type
@pytest.mark.parametrize("batch_sizes", [[1], [1] * 3, [3] * 2, [8] * 4, [9], [14] * 2, [17] * 2, [32] * 3], ids=str)
@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("hidden", [37, 64, 520])  # rows that are no whole words, and that are
@pytest.mark.parametrize(("mode", "projection"), LAYERS.values(), ids=LAYERS)
def test_against_the_reference(
    mode: int, hidden: int, layers: int, directions: int, projection: int, batch_sizes: list[int], dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    stack = reference.Stack(mode, 24, hidden, layers, directions, projection=projection)
    case = CudaCase(stack, batch_sizes, dtype)
    case.check("RNNForwardInference")
    assert_results(case, STATES)
    case.data["hx"].zero_()
    case.data["cx"].zero_()
    case.check("RNNForwardInference", hx=None, cx=None, hy=None, cy=None)
    assert_results(case, ("y",))


@by_type
@by_mode
def test_data_between_16_byte_addresses(mode: int, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    case = CudaCase(reference.Stack(mode, 64, 64, 2), [5] * 3, dtype)
    for name in ("x", "w", "hx", "y"):
        room = torch.empty(case.data[name].numel() + 1, dtype=dtype, device="cuda")[1:]
        case.data[name] = room.view(case.data[name].shape).copy_(case.data[name])
    case.check("RNNForwardInference")
    assert_results(case, STATES)


@by_mode
def test_in_a_graph_and_the_same_every_time(mode: int) -> None:
    torch.manual_seed(3)
    case = CudaCase(reference.Stack(mode, 24, 100, 2), [2] * 3, torch.float16)
    case.check("RNNForwardInference")
    expected = [case.data[name].clone() for name in STATES]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        capi.check("SetStream", handle=case.handle.pointer, stream=stream.cuda_stream)
        case.check("RNNForwardInference")
    for _ in range(2):
        for name in STATES:
            case.data[name].fill_(case.UNTOUCHED)
        graph.replay()
        found = [case.data[name] for name in STATES]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@by_type
@by_mode
def test_a_nan_stays_with_its_sequence(mode: int, dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    case = CudaCase(reference.Stack(mode, 24, 64, 2), [9] * 2, dtype)
    case.data["x"][9 + 4] = float("nan")
    case.check("RNNForwardInference")
    is_nan = case.data["y"].isnan().view(2, 9, -1)
    assert is_nan[1, 4].all()
    is_nan[1, 4] = False
    assert not is_nan.any()

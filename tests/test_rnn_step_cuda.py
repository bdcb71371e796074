"""Inference over a few timesteps, a launch for each, against the float64 reference, on the GPU."""

import capi
import pytest
import torch
from reference import rnn as reference
from test_rnn_cuda import TYPES, CudaCase, assert_results, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

STATES = ("y", "hy", "cy")
LAYERS = {"lstm": (reference.LSTM, 0), "gru": (reference.GRU, 0)}  # and with a projection
LAYERS |= {f"lstm -> {size}": (reference.LSTM, size) for size in (128, 72, 17)}
by_type = pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
by_mode = pytest.mark.parametrize("mode", [reference.LSTM, reference.GRU], ids=["lstm", "gru"])


@by_type
@pytest.mark.parametrize("batch_sizes", [[1], [1] * 2, [3] * 2, [8] * 2, [9], [14] * 2, [16], [32] * 2], ids=str)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("hidden", [257, 264, 520])  # rows that are no whole 16 bytes, and that are
@pytest.mark.parametrize(("mode", "projection"), LAYERS.values(), ids=LAYERS)
def test_against_the_reference(
    mode: int, hidden: int, layers: int, projection: int, batch_sizes: list[int], dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    steps = 3 if projection else len(batch_sizes)
    case = CudaCase(reference.Stack(mode, 24, hidden, layers, projection=projection), batch_sizes[:1] * steps, dtype)
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
    case = CudaCase(reference.Stack(mode, 64, 256, 2), [5] * 2, dtype)
    for name in ("x", "w", "hx", "y"):
        room = torch.empty(case.data[name].numel() + 1, dtype=dtype, device="cuda")[1:]
        case.data[name] = room.view(case.data[name].shape).copy_(case.data[name])
    case.check("RNNForwardInference")
    assert_results(case, STATES)


@by_mode
def test_in_a_graph_and_the_same_every_time(mode: int) -> None:
    torch.manual_seed(3)
    case = CudaCase(reference.Stack(mode, 24, 300, 2), [2] * 2, torch.float16)
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
    case = CudaCase(reference.Stack(mode, 24, 256, 2), [8] * 2, dtype)
    case.data["x"][8 + 4] = float("nan")
    case.check("RNNForwardInference")
    is_nan = case.data["y"].isnan().view(2, 8, -1)
    assert is_nan[1, 4].all()
    is_nan[1, 4] = False
    assert not is_nan.any()

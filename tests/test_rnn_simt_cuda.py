"""The simt kernels: float32 layers of one sequence a replica, or a few, against the float64 reference, on the GPU."""

import pytest
import torch
from reference import rnn as reference
from rnn_case import OUTPUTS
from test_rnn_cuda import MODES, CudaCase, assert_results, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

by_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def make_case(mode: int, hidden: int, batch_sizes: list[int], directions: int = 1) -> CudaCase:
    stack = reference.Stack(mode, min(24, hidden), hidden, 1, directions)
    return CudaCase(stack, batch_sizes, torch.float32)


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
@pytest.mark.parametrize("hidden", [7, 100, 256, 257, 500, 512, 700, 1024])
@by_mode
def test_sizes(mode: int, hidden: int, batch: int) -> None:
    torch.manual_seed(1)
    case = make_case(mode, hidden, [batch] * 4)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("hidden", [1025, 1792, 2041, 2048])
@pytest.mark.parametrize("mode", [reference.RNN_RELU, reference.RNN_TANH], ids=["relu", "tanh"])
def test_large_layers_without_gates(mode: int, hidden: int, batch: int) -> None:
    torch.manual_seed(2)
    case = make_case(mode, hidden, [batch] * 4)
    case.train()
    assert_results(case)


@pytest.mark.parametrize(
    ("cell", "hidden"), [("lstm", 1057), ("lstm", 1344), ("gru", 1057), ("gru", 1792), ("tanh", 2049), ("tanh", 2688)]
)
def test_weights_in_shared_memory(cell: str, hidden: int) -> None:
    """One sequence, from the smallest to the largest layer."""
    torch.manual_seed(6)
    case = make_case(MODES[cell], hidden, [1] * 4)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("batch_sizes", [[3] * 4, [4, 4, 3, 1]], ids=str)
@pytest.mark.parametrize("hidden", [700, 1024])
def test_a_replica_each_of_blocks_of_32_units(hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(7)
    case = make_case(reference.RNN_TANH, hidden, batch_sizes)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("batch_sizes", [[3, 1], [2, 2, 1, 1, 1], [4, 4, 3, 2, 1]], ids=str)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("hidden", [72, 300])
@by_mode
def test_batches_that_vary(mode: int, hidden: int, directions: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(3)
    case = make_case(mode, hidden, batch_sizes, directions)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("batch_sizes", [[4, 4, 3, 1, 1], [2, 1, 1]], ids=str)
@pytest.mark.parametrize("directions", [1, 2])
def test_batches_of_a_large_layer_that_vary(directions: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(4)
    case = make_case(reference.RNN_TANH, 1536, batch_sizes, directions)
    case.train()
    assert_results(case)


@pytest.mark.parametrize(
    ("hidden", "batch", "steps"), [(256, 1, 1), (512, 1, 2), (1024, 1, 1), (128, 3, 100), (512, 1, 1500)]
)
@by_mode
def test_lengths(mode: int, hidden: int, batch: int, steps: int) -> None:
    torch.manual_seed(5)
    case = make_case(mode, hidden, [batch] * steps)
    case.train()
    assert_results(case, slack=4 if steps == 1500 else 1)


@pytest.mark.parametrize("hidden", [100, 512, 600])
@by_mode
def test_no_states_are_zero_states(mode: int, hidden: int) -> None:
    torch.manual_seed(6)
    case = make_case(mode, hidden, [1, 1, 1])
    for name in ("hx", "cx", "dhy", "dcy"):
        case.data[name].zero_()
    case.check("RNNForwardTraining", hx=None, cx=None, hy=None, cy=None)
    case.check("RNNBackwardData", hx=None, cx=None, dhy=None, dcy=None, dhx=None, dcx=None)
    case.check("RNNBackwardWeights", hx=None)
    assert_results(case, ("y", "dx", "dw"))


@pytest.mark.parametrize(("hidden", "batch"), [(100, 1), (256, 3), (512, 1), (1024, 1)])
@by_mode
def test_the_same_bits_every_time(mode: int, hidden: int, batch: int) -> None:
    torch.manual_seed(7)
    case = make_case(mode, hidden, [batch] * 50)
    case.train()
    first = case.results()
    for _ in range(2):
        case.data["dw"].zero_()
        case.train()
        for name in OUTPUTS:
            assert torch.equal(case.data[name], first[name]), name


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["x", "w", "hx"])
@by_mode
def test_nan_comes_out_and_nothing_hangs(mode: int, name: str, value: float) -> None:
    torch.manual_seed(8)
    for hidden, batch in ((200, 1), (600, 1), (600, 4)):
        case = make_case(mode, hidden, [batch] * 5)
        case.data[name].view(-1)[5] = value
        case.train()
        torch.cuda.synchronize()
        if mode == reference.RNN_RELU or value != value:
            assert not torch.isfinite(case.data["y"].double()).all()


def test_graph_replay() -> None:
    torch.manual_seed(9)
    for hidden, batch in ((512, 1), (1024, 1)):
        case = make_case(reference.RNN_TANH, hidden, [batch] * 6)
        case.train()
        first = case.results()
        graph = case.capture()
        case.data["y"].zero_()
        case.data["dx"].zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(case.data["y"], first["y"])
        assert torch.equal(case.data["dx"], first["dx"])

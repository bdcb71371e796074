"""The cluster kernels: layers that one thread-block cluster holds, in 16 bits and tf32, against the float64 reference,
on the GPU."""

import capi
import pytest
import torch
from reference import rnn as reference
from rnn_case import OUTPUTS
from test_rnn_cuda import MODES, TOLERANCE, CudaCase, assert_results, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

TYPES = {"half": torch.float16, "bfloat16": torch.bfloat16}
TF32_SLACK = TOLERANCE[torch.float16] / TOLERANCE[torch.float32]  # float16 has as many digits
by_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
by_type = pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)


class Tf32Case(CudaCase):
    """CudaCase in float32 that may be rounded to tf32."""

    def __init__(self, stack: reference.Stack, batch_sizes: list[int], *more: object) -> None:
        super().__init__(stack, batch_sizes, torch.float32, *more)

    def set_rnn(self, **changes: object) -> None:
        super().set_rnn(**changes)
        capi.check("SetRNNMatrixMathType", rnnDesc=self.rnn.pointer, mType=2)

    def assert_tf32(self) -> None:
        """As good as float16, and rounded."""
        expected = self.expected()
        assert_results(self, slack=TF32_SLACK)
        error = ((self.data["y"].double() - expected["y"]).norm() / expected["y"].norm()).item()
        assert error > 1e-5, f"{error:.2e} is not tf32's"


by_gated_mode = pytest.mark.parametrize("mode", [reference.LSTM, reference.GRU], ids=["lstm", "gru"])


@pytest.mark.parametrize("batch", [5, 8, 33, 120, 121, 600])
@pytest.mark.parametrize("hidden", [7, 64, 100, 128, 129, 200, 256])
@by_gated_mode
def test_tf32_sizes(mode: int, hidden: int, batch: int) -> None:
    torch.manual_seed(8)
    case = Tf32Case(reference.Stack(mode, min(32, hidden), hidden), [batch] * 4)
    case.train()
    case.assert_tf32()


@pytest.mark.parametrize(
    ("hidden", "batch_sizes"),
    [(96, [7, 5]), (200, [120, 61, 60, 9, 8, 5]), (256, [17] * 3 + [6] * 9), (128, [300, 300, 130, 129, 8, 7])],
    ids=str,
)
@pytest.mark.parametrize("directions", [1, 2])
@by_gated_mode
def test_tf32_batches_that_vary(mode: int, directions: int, hidden: int, batch_sizes: list[int]) -> None:
    torch.manual_seed(9)
    case = Tf32Case(reference.Stack(mode, 24, hidden, 2, directions), batch_sizes)
    case.train()
    case.assert_tf32()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["x", "w", "hx"])
@by_gated_mode
def test_tf32_nan_comes_out_and_nothing_hangs(mode: int, name: str, value: float) -> None:
    torch.manual_seed(7)
    case = Tf32Case(reference.Stack(mode, 32, 200), [6] * 5)
    case.data[name].view(-1)[5] = value
    case.train()
    torch.cuda.synchronize()
    if value != value:
        assert not torch.isfinite(case.data["y"].double()).all()


@by_type
@pytest.mark.parametrize("batch", [1, 8, 33, 56])
@pytest.mark.parametrize("hidden", [7, 100, 129, 256, 384, 511, 512])
@by_mode
def test_sizes(mode: int, hidden: int, batch: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    case = CudaCase(reference.Stack(mode, min(32, hidden), hidden), [batch] * 4, dtype)
    case.train()
    assert_results(case)


@by_type
@pytest.mark.parametrize(("hidden", "batch"), [(1, 3), (1, 57), (3, 9)])
@by_mode
def test_few_units(mode: int, hidden: int, batch: int, dtype: torch.dtype) -> None:
    """Outputs alone: one unit's gradient may be a difference of nearly equal numbers."""
    torch.manual_seed(2)
    case = CudaCase(reference.Stack(mode, 4, hidden), [batch] * 5, dtype)
    case.train()
    assert_results(case, ("y", "hy", "cy"))


@by_type
@pytest.mark.parametrize(
    ("hidden", "batch_sizes"),
    [(96, [3, 1]), (200, [120, 61, 60, 9, 8, 1]), (256, [17] * 3 + [2] * 9), (500, [56, 30, 9, 9, 1]), (512, [5])],
    ids=str,
)
@pytest.mark.parametrize("directions", [1, 2])
@by_mode
def test_batches_that_vary(mode: int, directions: int, hidden: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    case = CudaCase(reference.Stack(mode, 24, hidden, 1, directions), batch_sizes, dtype)
    case.train()
    assert_results(case)


@pytest.mark.parametrize(("hidden", "batch", "steps"), [(512, 3, 1), (512, 3, 2), (128, 9, 100), (256, 2, 1500)])
@by_mode
def test_lengths(mode: int, hidden: int, batch: int, steps: int) -> None:
    torch.manual_seed(4)
    case = CudaCase(reference.Stack(mode, 8, hidden), [batch] * steps, torch.float16)
    case.train()
    assert_results(case, slack=4 if steps == 1500 else 1)


@pytest.mark.parametrize("hidden", [100, 256, 512])
@by_mode
def test_no_states_are_zero_states(mode: int, hidden: int) -> None:
    torch.manual_seed(5)
    case = CudaCase(reference.Stack(mode, 24, hidden), [4, 4, 3], torch.float16)
    case.data["hx"].zero_()
    case.data["cx"].zero_()
    case.data["dhy"].zero_()
    case.data["dcy"].zero_()
    names = dict(hx=None, cx=None, hy=None, cy=None)
    case.check("RNNForwardTraining", **names)
    case.check("RNNBackwardData", hx=None, cx=None, dhy=None, dcy=None, dhx=None, dcx=None)
    case.check("RNNBackwardWeights", hx=None)
    assert_results(case, ("y", "dx", "dw"))


@pytest.mark.parametrize(("hidden", "batch"), [(100, 5), (256, 30), (512, 3)])
@by_mode
def test_the_same_bits_every_time_and_on_two_streams_at_once(mode: int, hidden: int, batch: int) -> None:
    calls = ("RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights")
    torch.manual_seed(6)
    cases = [CudaCase(reference.Stack(mode, 16, hidden), [batch] * 50, torch.float16) for _ in range(2)]
    first = []
    for case in cases:
        case.train()
        first.append(case.results())
    for case in cases:
        case.data["dw"].zero_()
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        capi.check("SetStream", handle=case.handle.pointer, stream=stream.cuda_stream)
    for name in calls:
        for case in cases:
            case.check(name)
    torch.cuda.synchronize()
    for case, wanted in zip(cases, first, strict=True):
        for name in OUTPUTS:
            assert torch.equal(case.data[name], wanted[name]), name


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["x", "w", "hx"])
@by_mode
def test_nan_comes_out_and_nothing_hangs(mode: int, name: str, value: float) -> None:
    torch.manual_seed(7)
    for hidden, dtype in ((200, torch.float16), (512, torch.bfloat16)):
        case = CudaCase(reference.Stack(mode, 32, hidden), [4] * 5, dtype)
        case.data[name].view(-1)[5] = value
        case.train()
        torch.cuda.synchronize()
        if mode == reference.RNN_RELU or value != value:
            assert not torch.isfinite(case.data["y"].double()).all()

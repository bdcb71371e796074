"""prnnSetRNNMasks on the GPU, every engine that has it: against the float64 reference."""

import ctypes
import itertools

import capi
import pytest
import torch
from reference import rnn as reference
from test_rnn_cuda import MODES, TOLERANCE, CudaCase, why_not
from test_rnn_extras_cuda import GpuCase
from test_rnn_masks import MasksCase, ResetMasksCase, masks_of

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

LSTM, GRU, TANH, RELU = reference.LSTM, reference.GRU, reference.RNN_TANH, reference.RNN_RELU
HALF, BFLOAT16, FLOAT = torch.float16, torch.bfloat16, torch.float32


class GpuMasksCase(MasksCase, CudaCase):
    """MasksCase in GPU memory."""

    engines = GpuCase.engines
    compare = GpuCase.compare


class GpuResetMasksCase(ResetMasksCase, CudaCase):
    """ResetMasksCase in GPU memory."""

    engines = GpuCase.engines
    compare = GpuCase.compare


def check_engine(
    kind: type[GpuMasksCase | GpuResetMasksCase],
    engine: str,
    stack: reference.Stack,
    batch_sizes: list[int],
    dtype: torch.dtype,
) -> None:
    """Each of the masks, by the engine that an H200 plans for them."""
    for names in masks_of(stack.mode):
        case = kind(stack, batch_sizes, dtype)
        case.compare(names)
        if "H200" in torch.cuda.get_device_name() and (stack.mode == LSTM or "zoneout" not in names):
            assert case.engines() == (engine, engine)


@pytest.mark.parametrize(
    ("batch_sizes", "dtype"),
    [
        *itertools.product([[3] * 5, [5, 4, 4, 2, 1, 1], [1] * 4, [9, 7], [33] * 3], [HALF, BFLOAT16]),
        *itertools.product([[3] * 5, [4, 4, 3, 1], [1] * 4, [9, 7, 7, 2]], [FLOAT]),
    ],
    ids=str,
)
@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_training_step(mode: int, layers: int, directions: int, batch_sizes: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    for names in masks_of(mode):
        GpuMasksCase(reference.Stack(mode, 24, 40, layers, directions), batch_sizes, dtype).compare(names)


@pytest.mark.parametrize(
    ("engine", "mode", "hidden", "directions", "batch_sizes", "dtype"),
    [
        ("cluster", GRU, 128, 1, [56] * 6, HALF),
        ("cluster", GRU, 256, 2, [40, 33, 33, 2], BFLOAT16),
        ("cluster", GRU, 512, 1, [64, 64, 9, 9], HALF),
        ("cluster", LSTM, 128, 1, [56] * 6, HALF),
        ("cluster", LSTM, 256, 2, [40, 33, 33, 2], BFLOAT16),
        ("cluster", LSTM, 512, 1, [56, 56, 9, 9], HALF),
        ("cluster", TANH, 500, 1, [8] * 5, HALF),
        ("simt", LSTM, 256, 2, [2] * 6, FLOAT),
        ("simt", LSTM, 1000, 1, [1] * 6, FLOAT),
        ("simt", LSTM, 1100, 1, [1] * 6, FLOAT),
        ("simt", GRU, 256, 2, [2] * 6, FLOAT),
        ("simt", GRU, 1000, 1, [1] * 6, FLOAT),
        ("simt", GRU, 1100, 1, [1] * 6, FLOAT),
        ("simt", TANH, 1500, 1, [4, 4, 3, 2], FLOAT),
        ("simt", RELU, 400, 2, [3, 2, 2], FLOAT),
        ("mma", GRU, 1024, 1, [72, 60, 9, 9], BFLOAT16),
        ("mma", GRU, 600, 2, [8] * 5, HALF),
        ("mma", GRU, 2100, 1, [3] * 4, HALF),
        ("mma", LSTM, 1024, 1, [72, 60, 9, 9], BFLOAT16),
        ("mma", LSTM, 1024, 1, [8, 8, 5], HALF),
        ("mma", LSTM, 600, 2, [8] * 5, HALF),
        ("mma", LSTM, 2000, 1, [5, 5, 3], HALF),
        ("mma", LSTM, 512, 2, [33, 20, 20, 1], FLOAT),
        ("mma", LSTM, 1000, 1, [70, 20], FLOAT),
        ("mma", LSTM, 128, 1, [64] * 5, FLOAT),
        ("mma", TANH, 1024, 2, [40] * 4, HALF),
        ("mma", RELU, 4000, 1, [2] * 4, BFLOAT16),
        ("mma", GRU, 512, 2, [33, 20, 20, 1], FLOAT),
        ("mma", GRU, 128, 1, [64] * 5, FLOAT),
        ("mma", TANH, 700, 2, [9, 9, 8], FLOAT),
        ("mma", GRU, 256, 1, [700] * 3, FLOAT),
        ("mma-large", GRU, 2500, 1, [3] * 4, BFLOAT16),
        ("mma-large", LSTM, 2300, 1, [3] * 4, BFLOAT16),
        ("mma-large", LSTM, 1500, 1, [2, 2, 1], FLOAT),
        ("mma-large", GRU, 1700, 2, [2, 2, 1], FLOAT),
        ("mma-large", TANH, 4500, 1, [3, 1], HALF),
        ("mma-large", RELU, 3000, 1, [2] * 3, FLOAT),
    ],
)
def test_engines(
    engine: str, mode: int, hidden: int, directions: int, batch_sizes: list[int], dtype: torch.dtype
) -> None:
    torch.manual_seed(2)
    check_engine(GpuMasksCase, engine, reference.Stack(mode, 24, hidden, 1, directions), batch_sizes, dtype)


@pytest.mark.parametrize(
    ("engine", "mode", "hidden", "directions", "batch_sizes", "dtype"),
    [
        ("cluster", LSTM, 256, 2, [40, 33, 33, 2], BFLOAT16),
        ("cluster", GRU, 256, 2, [40, 33, 33, 2], BFLOAT16),
        ("cluster", TANH, 500, 1, [8] * 5, HALF),
        ("simt", LSTM, 256, 2, [2] * 6, FLOAT),
        ("simt", LSTM, 1000, 1, [1] * 6, FLOAT),
        ("simt", GRU, 256, 2, [2] * 6, FLOAT),
        ("simt", RELU, 400, 2, [3, 2, 2], FLOAT),
        ("mma", LSTM, 1024, 1, [72, 60, 9, 9], BFLOAT16),
        ("mma", LSTM, 1024, 1, [8, 8, 5], HALF),
        ("mma", LSTM, 520, 2, [9, 9, 8], FLOAT),
        ("mma", GRU, 1024, 1, [72, 60, 9, 9], BFLOAT16),
        ("mma", TANH, 700, 2, [9, 9, 8], FLOAT),
        ("mma-large", LSTM, 1500, 1, [2, 2, 1], FLOAT),
        ("mma-large", LSTM, 2300, 1, [3] * 4, BFLOAT16),
        ("mma-large", GRU, 1700, 2, [2, 2, 1], FLOAT),
        ("mma-large", TANH, 4500, 1, [3, 1], HALF),
    ],
)
def test_with_resets(
    engine: str, mode: int, hidden: int, directions: int, batch_sizes: list[int], dtype: torch.dtype
) -> None:
    torch.manual_seed(4)
    check_engine(GpuResetMasksCase, engine, reference.Stack(mode, 24, hidden, 1, directions), batch_sizes, dtype)


@pytest.mark.parametrize(
    ("mode", "hidden", "directions", "batch_sizes"),
    [
        (GRU, 100, 1, [8] * 6),
        (GRU, 256, 2, [30, 30, 17, 2]),
        (GRU, 600, 1, [20] * 3),
        (LSTM, 100, 1, [8] * 6),
        (LSTM, 256, 2, [30, 30, 17, 2]),
        (LSTM, 600, 1, [20] * 3),
        (LSTM, 1600, 1, [2] * 3),
        (TANH, 250, 1, [8] * 4),
    ],
)
def test_tf32(mode: int, hidden: int, directions: int, batch_sizes: list[int]) -> None:
    class Tf32(GpuMasksCase):
        def set_rnn(self, **changes: object) -> None:
            super().set_rnn(**changes)
            capi.check("SetRNNMatrixMathType", rnnDesc=self.rnn.pointer, mType=2)

    torch.manual_seed(6)
    for names in masks_of(mode):
        case = Tf32(reference.Stack(mode, 24, hidden, 1, directions), batch_sizes, FLOAT)
        for name, (result, expected) in case.run(names).items():
            error = ((result.double() - expected).norm() / expected.norm().clamp_min(1e-6)).item()
            assert error < TOLERANCE[HALF], f"{names}, {name}: relative error {error:.2e}"  # which has as many digits


@pytest.mark.parametrize(("hidden", "batch"), [(512, 16), (1024, 8), (1024, 40), (2300, 4)])
def test_zoneout_alone_is_of_every_kernel(hidden: int, batch: int) -> None:
    torch.manual_seed(3)
    case = GpuMasksCase(reference.Stack(GRU, 16, hidden, 2), [batch] * 6, HALF)
    plain = case.engines()
    case.compare(("zoneout",))
    assert plain == case.engines() or plain[0].startswith("wavefront")


@pytest.mark.parametrize("hidden", [64, 600, 2300])
def test_an_input_product_that_overflows_is_no_zoneout(hidden: int) -> None:
    """An LSTM's kernels know that h is to stay by the input product of o, which is -infinity."""
    case = GpuMasksCase(reference.Stack(LSTM, 1, hidden), [2] * 4, HALF)
    case.data["x"].fill_(-1000)
    case.data["w"][3 * hidden : 4 * hidden] = 1000  # W of o
    case.zoneout.zero_()
    case.zoneout[-2:] = 1
    case.set_masks(("zoneout",))
    case.check("RNNForwardTraining")
    torch.testing.assert_close(case.data["y"], torch.zeros_like(case.data["y"]), rtol=0, atol=0)
    case.zoneout[:2] = 1  # the initial states stay
    case.check("RNNForwardTraining")
    torch.testing.assert_close(case.data["y"][:2], case.data["hx"][0], rtol=0, atol=0)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_cudnn_has_none(mode: int) -> None:
    case = GpuMasksCase(reference.Stack(mode, 8, 64), [4] * 3, HALF)
    masks = capi.Masks(recurrent=case.recurrent.data_ptr())
    capi.check("SetRNNMasks", rnnDesc=case.rnn.pointer, masks=ctypes.addressof(masks))
    capi.check("SetRNNBackend", rnnDesc=case.rnn.pointer, backend=1)
    assert case.call("RNNForwardTraining") == capi.NOT_SUPPORTED
    assert capi.message(case.handle.pointer) == "cuDNN has no masks of the recurrence (prnnSetRNNMasks)"

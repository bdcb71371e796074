"""Plans of other GPUs' rows, run on the GPU that is here: PRNN_GPU_ROW makes a handle plan for the row that it names.

Run with a library built with cuda_arch=80, the kernels are those of compute capability 8.0, translated by the driver:
that tests their code, too, which has no clusters.
"""

import pathlib
import re

import pytest
import torch
from reference import rnn as reference
from test_rnn_cuda import CudaCase, assert_results, why_not
from test_rnn_query import GPUS, Layer

import prnn

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")

MODES = {"lstm": reference.LSTM, "gru": reference.GRU, "tanh": reference.RNN_TANH}
TYPES = {"half": torch.float16, "float": torch.float32}
ROWS = [gpu for gpu in GPUS if "not compiled" not in Layer(hidden=64).query_gpu(gpu).reason.decode()]


@pytest.fixture
def row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PRNN_GPU_ROW", request.param)
    return request.param


@pytest.mark.parametrize("row", ROWS, indirect=True)
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_training_step(mode: int, dtype: torch.dtype, row: str) -> None:
    torch.manual_seed(1)
    for stack, batch_sizes in (
        (reference.Stack(mode, 24, 100, 2, 2), [5, 4, 4, 1]),
        (reference.Stack(mode, 16, 256), [40] * 4),
        (reference.Stack(mode, 16, 200), [1] * 4),
    ):
        case = CudaCase(stack, batch_sizes, dtype)
        case.train()
        assert_results(case)


def largest_layer(mode: int, dtype: torch.dtype, row: str) -> CudaCase:
    query = prnn._C.Rnn(mode, prnn._ops._handles.DTYPES[dtype], 64, 1, 16, False).query(prnn._C.Handle.cuda(), 4)
    assert query["device"] == row
    hidden = query["largest_hidden_size"]
    return CudaCase(reference.Stack(mode, hidden, hidden, skip_input=True), [4] * 3, dtype)


@pytest.mark.parametrize("row", ROWS, indirect=True)
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_largest_layer(mode: int, dtype: torch.dtype, row: str) -> None:
    """After another one that leaves NaN in shared memory, for a kernel that would read there what it has not written.
    Without input products, which would come between."""
    torch.manual_seed(2)
    nan = largest_layer(reference.RNN_TANH, torch.float16, row)
    nan.data["w"].fill_(torch.nan)
    nan.check("RNNForwardInference")
    case = largest_layer(mode, dtype, row)
    case.train()
    assert_results(case)


@pytest.mark.parametrize("row", ["GTX 1080"], indirect=True)
def test_a_row_without_kernels(row: str) -> None:
    rnn, handle = prnn._C.Rnn(prnn._C.LSTM, prnn._C.HALF, 64, 1, 16, False), prnn._C.Handle.cuda()
    rnn.set_backend(prnn._C.PERSISTENT_BACKEND)
    with pytest.raises(prnn.NotSupportedError, match=re.escape("compute capability 6.1 (GTX 1080) is not compiled")):
        rnn.reserve_size(handle, [4])


@pytest.mark.parametrize("row", ["Voodoo 2"], indirect=True)
def test_a_row_that_is_not_there(row: str) -> None:
    with pytest.raises(ValueError, match=f'PRNN_GPU_ROW is "Voodoo 2"; the GPU table has {", ".join(GPUS)}'):
        prnn._C.Handle.cuda()


def test_the_device_as_a_row() -> None:
    """Its own line is that of the table, letter for letter where the table has it under this name."""
    properties = torch.cuda.get_device_properties(0)
    line = prnn._C.describe_gpu(prnn._C.Handle.cuda())
    arch, sms = 10 * properties.major + properties.minor, properties.multi_processor_count
    found = re.fullmatch(
        r'\{"(.*)", (\d+), (\d+), 256 \* kKiB, (\d+) \* kKiB, \d+ \* kMiB, \{.*\}, \d+, (?:true|false), true\},', line
    )
    assert found, line
    assert found.groups()[:3] == (properties.name.removeprefix("NVIDIA "), str(arch), str(sms))
    if found[1] in GPUS:
        table = (pathlib.Path(__file__).parent.parent / "src/core/gpu_table.cc").read_text()
        assert line in table

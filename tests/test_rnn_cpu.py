"""The CPU kernels: the same bits whatever threads, batch or chunks a call has, and agreement between instruction sets.

Values and gradients against the reference are in test_rnn_c_api.py; test_every_instruction_set runs a part of it again.
"""

import functools
import mmap
import os
import pathlib
import re
import tempfile

import capi
import forked
import pytest
import torch
from reference import rnn as reference
from rnn_case import OUTPUTS, RnnCase

MODES = {"relu": reference.RNN_RELU, "tanh": reference.RNN_TANH, "lstm": reference.LSTM, "gru": reference.GRU}
TESTS = pathlib.Path(__file__).parent
PATHS = {"PYTHONPATH": str(TESTS)}

LEVELS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")

# Large enough for several threads: work between two barriers is what decides.
LARGE = reference.Stack(reference.LSTM, 70, 100, 2, 2, projection=37)
# A layer of fewer panels than threads, which then share the sequences.
NARROW = reference.Stack(reference.LSTM, 9, 20, 2, 2, projection=7)

THREADS = """
import sys, torch
torch.set_num_threads(int(sys.argv[1]))
import test_rnn_cpu
torch.save(test_rnn_cpu.large_results(), sys.argv[2])
"""


def large_results() -> dict[str, torch.Tensor]:
    results = {}
    for mode in MODES.values():
        torch.manual_seed(mode)
        stack = LARGE if mode == reference.LSTM else reference.Stack(mode, 70, 100, 2, 2)
        few, many = [13, 13, 7, 2], [140, 140]  # gradients of weights have partial sums of 256 rows at most
        runs = [(torch.float32, few), (torch.float32, many), (torch.float16, few), (torch.bfloat16, few)]
        for dtype, batches in runs:
            case = RnnCase(stack, batches, dtype)
            case.train()
            results |= {f"{mode} {dtype} {sum(batches)} {name}": value for name, value in case.results().items()}
            case.reserve = case.reserve[: case.least_reserve_size()]
            case.data["dw"].zero_()
            case.train()
            results |= {f"{mode} {dtype} {sum(batches)} least {name}": value for name, value in case.results().items()}
        narrow = NARROW if mode == reference.LSTM else reference.Stack(mode, 9, 20, 2, 2)
        for batches in [130] * 4, [150, 90, 90, 61], [133]:
            case = RnnCase(narrow, batches, torch.float32)
            case.train()
            results |= {f"{mode} narrow {sum(batches)} {name}": value for name, value in case.results().items()}
            case.check("RNNForwardInference")
            results |= {f"{mode} narrow {sum(batches)} inference {name}": case.results()[name] for name in ("y", "hy")}
    return results


@functools.cache
def results_of_process(threads: int, isa: str) -> dict[str, torch.Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "results.pt")
        done = forked.run("-c", THREADS, str(threads), str(path), env=os.environ | PATHS | {"PRNN_CPU_ISA": isa})
        assert done.returncode == 0, done.stderr
        return torch.load(path)


def levels_of_this_machine() -> list[str]:
    levels = {
        "CPU portable": "portable",
        "CPU AVX2": "avx2",
        "CPU AVX-512": "avx512",
        "CPU AVX-512 BF16": "avx512_bf16",
        "CPU AMX": "amx",
    }
    assert tuple(levels.values()) == LEVELS
    return list(LEVELS[: LEVELS.index(levels[capi.CPU]) + 1])


@pytest.mark.xdist_group("rnn_cpu_processes")
def test_threads_do_not_change_a_bit() -> None:
    best = levels_of_this_machine()[-1]
    expected = results_of_process(1, best)
    for threads in (2, 3, 4):
        got = results_of_process(threads, best)
        assert [name for name in expected if not torch.equal(got[name], expected[name])] == []


@pytest.mark.xdist_group("rnn_cpu_processes")
def test_instruction_sets_agree() -> None:
    portable, *others = levels_of_this_machine()
    expected = results_of_process(1, portable)
    for isa in others:
        got = results_of_process(1, isa)
        for name, value in expected.items():
            scale = max(1.0, value.abs().max().item())
            tolerance = max(1e-5, torch.finfo(value.dtype).eps) * scale
            torch.testing.assert_close(got[name], value, rtol=0, atol=tolerance, msg=f"{isa}: {name}")


@pytest.mark.parametrize("isa", LEVELS)
def test_every_instruction_set(isa: str) -> None:
    """Against the reference, at sizes around the vector widths, over several layers, and with a projection."""
    *levels, best = levels_of_this_machine()
    if isa not in levels:
        at_best = "the tests of the C API run at this level themselves"
        pytest.skip(at_best if isa == best else f"this machine has no {isa}; an asked-for level falls to its best")
    selection = (
        "test_sizes_around_vector_widths or test_few_rows or (test_training_step and ragged and float)"
        " or test_every_number or test_products_of_many_parts"
    )
    files = [str(TESTS / name) for name in ("test_rnn_c_api.py", "test_rnn_half_cpu.py")]
    options = ["-q", "-p", "no:cacheprovider", "-k", selection]
    result = forked.run("-m", "pytest", *options, *files, env=os.environ | PATHS | {"PRNN_CPU_ISA": isa})
    assert result.returncode == 0, result.stdout[-2000:]


def test_unknown_instruction_set_is_refused() -> None:
    code = "import prnn, torch; prnn.nn.GRU(3, 4)(torch.zeros(2, 1, 3))"
    result = forked.run("-c", code, env=os.environ | {"PRNN_CPU_ISA": "sse9"})
    assert 'PRNN_CPU_ISA is "sse9"; it must be portable, avx2, avx512, avx512_bf16 or amx' in result.stderr


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float", "double"])
@pytest.mark.parametrize(
    ("input", "hidden", "batch"),
    [(21, 33, 5), (150, 112, 3), (150, 80, 1), (70, 96, 20), (301, 272, 1), (1024, 261, 2)],
)
def test_chunks_equal_the_whole(mode: int, dtype: torch.dtype, input: int, hidden: int, batch: int) -> None:
    """Bit for bit, whether a chunk is long enough for its weights to be packed or not."""
    stack = reference.Stack(mode, input, hidden)
    steps = 12
    whole = RnnCase(stack, [batch] * steps, dtype)
    whole.check("RNNForwardInference")
    begin = 0
    state = {name: whole.data[name] for name in ("hx", "cx")}
    for length in (1, 2, 5, 3, 1):  # packed from the sixth timestep on, with many sequences from the third
        chunk = RnnCase(stack, [batch] * length, dtype)
        chunk.data |= state
        chunk.data["w"] = whole.data["w"]
        chunk.data["x"] = whole.data["x"][begin * batch : (begin + length) * batch].clone()
        chunk.check("RNNForwardInference")
        assert torch.equal(chunk.data["y"], whole.data["y"][begin * batch : (begin + length) * batch])
        state = {"hx": chunk.data["hy"], "cx": chunk.data["cy"]}
        begin += length
    assert torch.equal(state["hx"], whole.data["hy"])


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_sequence_does_not_depend_on_its_batch(mode: int) -> None:
    stack = reference.Stack(mode, 21, 33, 2, 2)
    batch = RnnCase(stack, [60] * 4, torch.float32)
    batch.check("RNNForwardInference")
    for n in (0, 5, 47, 48, 59):
        alone = RnnCase(stack, [1] * 4, torch.float32)
        alone.data["w"] = batch.data["w"]
        for name in ("hx", "cx"):
            alone.data[name] = batch.data[name][:, n : n + 1].clone()
        alone.data["x"] = batch.data["x"][n::60].clone()
        alone.check("RNNForwardInference")
        assert torch.equal(alone.data["y"], batch.data["y"][n::60])
        assert torch.equal(alone.data["hy"], batch.data["hy"][:, n : n + 1])


def skip_if_bits_depend_on_the_batch() -> None:
    if "amx" in levels_of_this_machine():
        pytest.skip("AMX multiplies few sequences by other kernels than many")


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(("input", "hidden"), [(21, 33), (300, 112), (64, 160), (1100, 80)])
@pytest.mark.parametrize("steps", [1, 3, 7], ids="{} steps".format)
def test_a_sequence_in_bfloat16_does_not_depend_on_its_batch(mode: int, input: int, hidden: int, steps: int) -> None:
    """Nor do the gradients of its data; also where one batch's states are bfloat16 numbers and the others' are not."""
    skip_if_bits_depend_on_the_batch()
    stack = reference.Stack(mode, input, hidden)
    whole = RnnCase(stack, [60] * steps, torch.bfloat16)
    whole.train()
    for batch in (1, 2, 3, 7, 8, 9, 16, 17, 33, 49):
        part = RnnCase(stack, [batch] * steps, torch.bfloat16)
        part.data["w"] = whole.data["w"]
        for name in ("hx", "cx", "dhy", "dcy"):
            part.data[name] = whole.data[name][:, :batch].clone()
        rows = [t * 60 + n for t in range(steps) for n in range(batch)]
        for name in ("x", "dy"):
            part.data[name] = whole.data[name][rows].clone()
        part.train()
        for name in ("y", "dx"):
            assert torch.equal(part.data[name], whole.data[name][rows]), (name, batch)
        for name in ("hy", "cy", "dhx", "dcx") if mode == reference.LSTM else ("hy", "dhx"):
            assert torch.equal(part.data[name], whole.data[name][:, :batch]), (name, batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float", "bfloat16"])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_training_and_inference_give_the_same_bits(mode: int, dtype: torch.dtype) -> None:
    """In chunks of rows, of an LSTM the last one of few rows; a part of the sequences has them all at once."""
    if dtype == torch.bfloat16:
        skip_if_bits_depend_on_the_batch()
    stack = reference.Stack(mode, 300, 65, 1, 2)
    case, few = RnnCase(stack, [40] * 66, dtype), RnnCase(stack, [8] * 66, dtype)
    case.train()
    trained = case.results()
    case.check("RNNForwardInference")
    for name in ("y", "hy"):
        assert torch.equal(case.data[name], trained[name])
    few.data["w"] = case.data["w"]
    for name in ("hx", "cx", "dhy", "dcy"):
        few.data[name] = case.data[name][:, :8].clone()
    for name in ("x", "dy"):
        few.data[name] = case.data[name].view(66, 40, -1)[:, :8].reshape(66 * 8, -1).clone()
    few.train()
    for name in ("y", "dx"):
        assert torch.equal(few.data[name], trained[name].view(66, 40, -1)[:, :8].reshape(66 * 8, -1))


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("batch", [1, 2, 3, 6, 7, 48, 49, 130])
def test_batch_sizes_around_tiles(mode: int, batch: int) -> None:
    case = RnnCase(reference.Stack(mode, 9, 40), [batch] * 3)
    case.train()
    for name, expected in case.expected().items():
        if mode == reference.LSTM or name not in ("cy", "dcx"):
            torch.testing.assert_close(case.data[name], expected, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("rows", [1, 7, 9], ids="{} rows".format)
def test_weight_gradients_overwrite_what_was_there(mode: int, rows: int) -> None:
    projection = 33 if mode == reference.LSTM else 0
    case = RnnCase(reference.Stack(mode, 37, 65, 2, 2, projection=projection), [1] * rows, torch.float32)
    case.train()
    added = case.data["dw"].clone()
    capi.check("SetRNNWgradMode", rnnDesc=case.rnn.pointer, wgradMode=1)
    case.data["dw"].fill_(float("nan"))
    case.train()
    assert torch.equal(case.data["dw"], added)
    capi.check("SetRNNWgradMode", rnnDesc=case.rnn.pointer, wgradMode=0)
    case.train()
    torch.testing.assert_close(case.data["dw"], 2 * added)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_backward_passes_can_be_repeated(mode: int) -> None:
    """The forward pass' part of the reserve space stays as it is."""
    case = RnnCase(reference.Stack(mode, 5, 6, 2, 2), [3, 3, 1])
    case.train()
    first = case.results()
    case.data["dw"].zero_()
    case.check("RNNBackwardData")
    case.check("RNNBackwardWeights")
    for name in OUTPUTS:
        assert torch.equal(case.data[name], first[name]), name


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float", "double"])
def test_values_that_are_not_finite(dtype: torch.dtype, mode: int, value: float) -> None:
    """Where the reference has a NaN, so has the result; the other sequences are as without."""
    case = RnnCase(reference.Stack(mode, 5, 20), [4] * 3, dtype)
    case.data["w"] = case.data["w"].abs()  # no infinity minus infinity: that is NaN only in some order of the sums
    case.data["x"][1, 2] = value
    case.check("RNNForwardInference")
    expected = case.expected()["y"]
    rows = [1, 5, 9]
    assert torch.equal(case.data["y"][rows].isnan(), expected[rows].isnan())
    others = [row for row in range(12) if row not in rows]
    assert case.data["y"][others].isfinite().all()
    torch.testing.assert_close(case.data["y"][others].double(), expected[others], rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float", "double"])
def test_accuracy_of_the_activations(dtype: torch.dtype) -> None:
    """tanh through an RNN, in units in the last place; the logistic function through a GRU."""
    values = torch.cat([torch.linspace(-30, 30, 20001), torch.logspace(-30, 1, 2000), -torch.logspace(-30, 1, 2000)])
    values = values.to(dtype)
    case = RnnCase(reference.Stack(reference.RNN_TANH, 1, 1, skip_input=True), [len(values)], dtype)
    case.data["w"].zero_()
    case.data["x"] = values[:, None].clone()
    case.check("RNNForwardInference")
    exact = torch.tanh(values.double() if dtype == torch.float32 else values)
    error = (case.data["y"][:, 0].double() - exact).abs() / exact.abs().clamp_min(torch.finfo(dtype).tiny)
    assert error.max() < 2.5 * torch.finfo(dtype).eps
    gru = RnnCase(reference.Stack(reference.GRU, 1, 1, skip_input=True), [len(values)], dtype)
    gru.data["w"].zero_()  # r = z = sigma(x), n = tanh(x), h = (1 - z) n + z hx
    gru.data["x"] = values[:, None].clone()
    gru.data["hx"] = torch.zeros_like(gru.data["hx"])
    gru.check("RNNForwardInference")
    wide = values.double()
    expected = (1 - torch.sigmoid(wide)) * torch.tanh(wide)
    assert (gru.data["y"][:, 0].double() - expected).abs().max() < 4 * torch.finfo(dtype).eps


def map_like(tensor: torch.Tensor) -> torch.Tensor:
    """As many zeros in pages that nobody had before: NumPy advises large ones, too, and they stay in malloc's heap."""
    return torch.frombuffer(mmap.mmap(-1, tensor.nbytes), dtype=tensor.dtype)


def has_large_pages(tensor: torch.Tensor) -> bool:
    """Whether the mapping that holds the tensor's middle has been advised to take large pages."""
    address = tensor.data_ptr() + tensor.numel() // 2
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", pathlib.Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    for mapping in mappings[1:]:
        begin, end = (int(text, 16) for text in mapping.split(None, 1)[0].split("-"))
        if begin <= address < end:
            return re.search(r"^VmFlags:.* hg\b", mapping, re.MULTILINE) is not None
    raise AssertionError(f"no mapping holds {address:x}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_large_pages(dtype: torch.dtype) -> None:
    """Spaces of 32 MB or more have them, and no others; the workspace is another one in each call."""
    switch = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not switch.exists() or "[never]" in switch.read_text():
        pytest.skip("this system has no transparent large pages")
    stack = reference.Stack(reference.RNN_TANH, 4, 256)
    for rows, expected in ((4_000, False), (36_000, True)):
        case = RnnCase(stack, [36] * (rows // 36), dtype)
        case.reserve = map_like(case.reserve)
        calls = ("RNNForwardInference", "RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights")
        for call in calls:
            case.workspace = map_like(case.workspace)
            case.check(call)
            assert has_large_pages(case.workspace) == expected, call
        assert has_large_pages(case.reserve) == expected

"""The multicast wgmma kernels, their own source, run on the CPU under random schedules: kernels_on_cpu/."""

import pathlib

import pytest
from kernels_on_cpu import build
from kernels_on_cpu.build import Builder, Edit

pytestmark = build.marks("kernels_on_cpu")
# Tolerances for storing the results; for tf32, for sums, whose last digits change how some states are rounded.
TOLERANCE = {"half": 4e-4, "bfloat16": 3e-3, "tf32": 5e-5}
GRU = "kWgmmaMulticast half gru 32, 1"
KERNELS = {GRU, "kWgmmaMulticast bfloat16 gru 64, 2", "kWgmmaMulticast bfloat16 lstm 32, 2"}
KERNELS |= {f"kWgmmaMulticast tf32 {shape}" for shape in ("gru 32, 1", "gru 32, 2", "lstm 32, 1", "lstm 32, 2")}
BACKWARD = "rnn/cuda/wgmma/multicast_backward.cuh"
TF32_LSTM = "kWgmmaMulticast tf32 lstm 32, 1"
ORDERED = {GRU, TF32_LSTM, "kWgmmaMulticast half lstm 32, 2", "kWgmmaMulticast tf32 gru 32, 2"}
MULTICAST, IO = "rnn/cuda/wgmma/multicast.cuh", "rnn/cuda/wgmma/multicast_io.cuh"
FORWARD, FORWARD_IO = "rnn/cuda/wgmma/multicast_forward.cuh", "rnn/cuda/wgmma/multicast_forward_io.cuh"


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory)


@pytest.fixture(scope="module")
def program(builder: Builder) -> pathlib.Path:
    return builder.run_layer("multicast", KERNELS)


@pytest.mark.parametrize(
    ("kind", "cell", "hidden", "batches", "more"),
    build.first_of_each(
        lambda kind, cell, *_: (kind, cell),
        [
            ("half", "gru", 512, "5,5,5,5", {}),  # sums change places often
            ("half", "gru", 512, "30,9,9", {"resets": 1, "reverse": 1}),
            ("half", "gru", 640, "3,3,3", {}),  # the last set of blocks is alone
            ("bfloat16", "gru", 1024, "66,2", {}),  # more states than the ring has room for
            ("bfloat16", "lstm", 512, "60,33,9", {"resets": 1}),
            ("bfloat16", "lstm", 768, "34,2", {}),  # weights beyond the registers
            ("tf32", "lstm", 512, "60,33,9", {"resets": 1}),
            ("tf32", "gru", 512, "61,33,9", {"resets": 1, "reverse": 1}),
            ("tf32", "gru", 512, "45,45,45", {"replicas": 2}),
            ("tf32", "lstm", 512, "13", {"resets": 1}),  # of one timestep
        ],
    ),
)
def test_a_layer(program: pathlib.Path, kind: str, cell: str, hidden: int, batches: str, more: dict[str, int]) -> None:
    tolerance = TOLERANCE[kind]
    build.run(program, tolerance, cell, type=kind, hidden=hidden, engine="multicast", batches=batches, **more)


@pytest.mark.parametrize(
    ("edits", "batches"),
    [
        # Blocks a step apart overwrite each other's sums.
        (
            (
                Edit("rnn/plan/wgmma.h", "return gates == kMulticastParts || groups > 1 ? 1 : 2;", "return 1;"),
                Edit(BACKWARD, "if constexpr (kGates == kMulticastParts || kPlaces > 1) return true;", "return true;"),
            ),
            "5,5,5,5,5,5",
        ),
    ],
    ids=["one place for sums, and nobody waits for the set"],
)
def test_a_planted_defect_is_found(builder: Builder, edits: tuple[Edit, ...], batches: str) -> None:
    broken = builder.run_layer("broken", {GRU}, edits)
    options = {"type": "half", "hidden": 512, "engine": "multicast", "batches": batches}
    with pytest.raises(AssertionError):
        build.run(broken, TOLERANCE["half"], "gru", **options)


@pytest.fixture(scope="module")
def ordered(builder: Builder) -> pathlib.Path:
    return builder.run_layer("ordered", ORDERED, order=True)


@pytest.mark.parametrize(
    ("kind", "cell", "batches", "resets"),
    [
        ("half", "gru", "5,5,5,5", 0),
        ("half", "lstm", "40,33,9", 1),
        ("tf32", "gru", "40,33", 0),
        ("tf32", "lstm", "13,9,9", 1),
    ],
)
def test_accesses_are_ordered(ordered: pathlib.Path, kind: str, cell: str, batches: str, resets: int) -> None:
    options = {"type": kind, "cell": cell, "batches": batches, "resets": resets}
    assert build.find_unordered(ordered, hidden=512, engine="multicast", **options) == []


# Code of accesses.
COPY_INPUTS, LOAD_INPUT = "Io::copy_vec(to, xw", "const float input = load_shared_element<T>"
STORE_SAVED, BULK_COPY = "store_shared_four<T>(io.inputs(group)", "copy_to_cluster(ring.chunks"
MULTIPLY = "multiply_chunk<T>(sums, "
PUBLISH = "if (column < present) *reinterpret_cast<uint4*>(to"
# Code that the defects leave out or move.
WAIT_FOR_COPIES = '    asm volatile("cp.async.wait_all;" ::: "memory");\n'
EMPTY = "(ring.use == 0 || has_arrived(ring.empty + ring.slot * 8, (ring.use - 1) >> own_uses & 1))"
COPIES = """        copy_inputs(next, group);
        starting.store(inputs(group) + kInputRestarts, kInputColumn);
"""


@pytest.mark.parametrize(
    ("edits", "pairs"),
    [
        (
            (
                Edit(IO, WAIT_FOR_COPIES, ""),
                Edit(FORWARD, "      warpgroup.sync();                        // all inputs", "      //"),
                Edit(IO, "    __syncwarp();\n    if (lane() == 0) add", "    if (lane() == 0) add"),
            ),
            {
                (f"write {COPY_INPUTS}", f"read {LOAD_INPUT}"),
                (f"read {LOAD_INPUT}", f"write {STORE_SAVED}"),
                (f"write {PUBLISH}", f"read {BULK_COPY}"),
            },
        ),
        (
            (
                Edit(FORWARD_IO, f"{COPIES}        Io::give_back();", f"        Io::give_back();\n{COPIES}"),
                Edit(MULTICAST, EMPTY, "true"),
            ),
            {
                (f"write {COPY_INPUTS}", f"read {LOAD_INPUT}"),
                (f"read {MULTIPLY}", f"write {BULK_COPY}"),
            },
        ),
    ],
    ids=[
        "copies not waited for, inputs still to be read, states of other lanes not there",
        "copies after the columns are given back, slots of the ring not empty",
    ],
)
def test_a_missing_order_is_found(builder: Builder, edits: tuple[Edit, ...], pairs: set[tuple[str, str]]) -> None:
    """`pairs`: of a part of the code that makes each access, the earlier one first."""
    broken = builder.run_layer("unordered", {TF32_LSTM}, edits, order=True)
    options = {"type": "tf32", "cell": "lstm", "hidden": 512, "engine": "multicast", "batches": "5,5,5", "backward": 0}
    found = build.find_unordered(broken, **options)
    for before, later in pairs:
        assert build.is_found(before, later, found), (before, later, found)

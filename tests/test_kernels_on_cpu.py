"""The multicast wgmma kernels, their own source, run on the CPU under random schedules: kernels_on_cpu/."""

import pathlib

import pytest
from kernels_on_cpu import build
from kernels_on_cpu.build import Builder, Edit

pytestmark = build.marks("kernels_on_cpu")
# Of storing the results; of tf32, of sums, whose last digits change how some states are rounded.
TOLERANCE = {"half": 4e-4, "bfloat16": 3e-3, "tf32": 5e-5}
GRU = "kWgmmaMulticast half gru 32, 1"
KERNELS = {GRU, "kWgmmaMulticast bfloat16 gru 64, 2", "kWgmmaMulticast bfloat16 lstm 32, 2"}
KERNELS |= {f"kWgmmaMulticast tf32 {shape}" for shape in ("gru 32, 1", "gru 32, 2", "lstm 32, 1", "lstm 32, 2")}
BACKWARD = "rnn/cuda/wgmma/multicast_backward.cuh"


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp("kernels_on_cpu"))


@pytest.fixture(scope="module")
def program(builder: Builder) -> pathlib.Path:
    return builder.run_layer("multicast", KERNELS)


@pytest.mark.parametrize(
    ("kind", "cell", "hidden", "batches", "more"),
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

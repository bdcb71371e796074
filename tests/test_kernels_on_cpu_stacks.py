"""The wavefront kernels that exchange every timestep, their own source, run on the CPU under random schedules:
kernels_on_cpu/."""

import pathlib
from typing import Any

import pytest
from kernels_on_cpu import build
from kernels_on_cpu.build import Builder, Edit

pytestmark = build.marks("kernels_on_cpu_stacks")
TOLERANCE = {"half": 4e-4, "bfloat16": 3e-3}  # of storing the results
LSTM = {"kWavefrontMma bfloat16 lstm 1, 1, 1", "kWavefrontMma bfloat16 lstm 2, 4, 1"}
KERNELS = LSTM | {
    "kWavefrontMma bfloat16 lstm 2, 1, 1",
    "kWavefrontMma half gru 2, 1, 1",
    "kWavefrontMma half gru 2, 3, 1",
    "kWavefrontMma bfloat16 rnn 4, 1, 1",
    "kWavefrontWgmma half lstm 2",
}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory)


@pytest.fixture(scope="module")
def program(builder: Builder) -> pathlib.Path:
    return builder.run_stack("stacks", KERNELS)


@pytest.mark.parametrize(
    ("kind", "cell", "hidden", "batches", "more"),
    build.first_of_each(
        lambda kind, cell, *_: (kind, cell),
        [
            ("bfloat16", "lstm", 64, "8,8,8,8", {}),
            ("bfloat16", "lstm", 64, "20,20,20", {"blocks": 8}),  # more than a tile of sequences
            ("bfloat16", "lstm", 64, "8,5,2", {"dropout": 1}),
            ("half", "gru", 64, "9,9,9", {"layers": 3}),
            ("half", "gru", 96, "17,9,4", {"dropout": 1}),
            ("bfloat16", "tanh", 64, "20,9,9", {"layers": 3, "dropout": 1}),
            ("half", "lstm", 512, "17,3", {"backward": 0}),  # wgmma
        ],
    ),
)
def test_a_stack(program: pathlib.Path, kind: str, cell: str, hidden: int, batches: str, more: dict[str, int]) -> None:
    options = {"layers": 2, "seed": build.seed_of(batches)} | more
    build.run(program, TOLERANCE[kind], cell, type=kind, hidden=hidden, batches=batches, **options)


def test_a_planted_defect_is_found(builder: Builder) -> None:
    edit = Edit("rnn/cuda/wavefront/forward.cuh", "buffer ^= 1;", "")
    broken = builder.run_stack("broken", LSTM, (edit,))

    def run_often() -> None:
        for seed in range(1, 6):
            options: dict[str, Any] = {"hidden": 64, "batches": "8,8,8,8", "layers": 2}
            build.run(broken, TOLERANCE["bfloat16"], "lstm", type="bfloat16", seed=seed, **options)

    with pytest.raises(AssertionError):
        run_often()

"""The wavefront kernels by chunks, their own source, run on the CPU under random schedules: kernels_on_cpu/."""

import pathlib
from typing import Any

import pytest
from kernels_on_cpu import build
from kernels_on_cpu.build import Builder, Edit
from kernels_on_cpu.chunks import BACKWARD, BOTH_CHUNKED, FORTY_UNITS, GRU_CHUNKED

pytestmark = build.marks("kernels_on_cpu_chunks")
TOLERANCE = 4e-4  # of storing the results
KERNELS = {
    "kWavefrontChunked half lstm 3",
    "kWavefrontChunked half lstm 5",
    "kWavefrontChunked half gru 5",
    "kWavefrontChunked half gru 6",
}
BACKWARD_MEMORY = "rnn/cuda/wavefront/chunked_backward_memory.cuh"


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory)


@pytest.fixture(scope="module")
def program(builder: Builder) -> pathlib.Path:
    return builder.run_stack("chunks", KERNELS | BOTH_CHUNKED | GRU_CHUNKED)


@pytest.mark.parametrize(
    ("cell", "batches", "chunk", "more"),
    build.first_of_each(
        lambda cell, *_: cell,
        [
            ("lstm", "4,4,4,4,4", 2, {}),
            ("lstm", "8,7,7,5", 3, {"dropout": 1}),
            ("lstm", "7,7,7,7", 3, {"blocks": 60}),  # 40 units a block
            ("lstm", "8,7,7,5", 3, {"blocks": 60, "dropout": 1}),
            ("lstm", "3,3,2", 2, {"initial": 1}),
            ("gru", "4,4,4,3,3", 2, {}),
            ("gru", "7,7,7,7", 3, {"dropout": 1, "blocks": 60}),  # 40 units a block
            ("gru", "8,8,7,5", 2, {"blocks": 48}),  # 48
        ],
    ),
)
def test_chunks_forward(program: pathlib.Path, cell: str, batches: str, chunk: int, more: dict[str, int]) -> None:
    options = {"layers": 3, "backward": 0, "hidden": 768, "chunk": chunk, "seed": 1} | more
    build.run(program, TOLERANCE, cell, type="half", batches=batches, **options)


@pytest.mark.parametrize(
    ("hidden", "batches", "chunk", "more"),
    build.first_of_each(
        lambda hidden, batches, chunk, more: "dropout" in more,
        [
            (64, "2", 2, {"layers": 5}),
            (192, "4", 2, {}),
            (128, "8,8", 2, {"layers": 3, "dropout": 1}),
            (128, "1,1,1,1", 2, {}),
            (64, "7,7,7,7", 3, {"layers": 3, "dropout": 1}),  # a last chunk of one timestep
            (64, "8,8,8,8,8,8,8,8,8", 8, {}),  # all rows of a chunk
            (64, "3,3,3,3,3,3,3,3,3", 2, {"layers": 3}),  # the ring's first timestep again
            (128, "6,6,6,6,6,6,6,6,6,6", 2, {"dropout": 1}),
            (832, "5,5", 2, {}),  # K of all warps
            # Sequences begin in a chunk's first and last step and within it, several together.
            (64, "4,3,3,1,1", 2, {}),
            (64, "8,7,7,5,5,5,2,1", 2, {"layers": 3, "dropout": 1}),
            (64, "8,8,8,6,6,5,3,2,1", 8, {"dropout": 1}),
            (64, "8,7,7,5,5,5,2,1", 2, FORTY_UNITS | {"layers": 3, "dropout": 1}),
            (64, "5,1,1,1,1,1,1", 3, {"layers": 3}),  # of one timestep
            (128, "3,2,2,2,1,1,1,1,1,1,1,1", 2, {}),  # the ring's timesteps again
        ],
    ),
)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_chunks_backward(
    program: pathlib.Path, cell: str, hidden: int, batches: str, chunk: int, more: dict[str, int]
) -> None:
    options = {"layers": 2, "hidden": hidden, "chunk": chunk, "seed": build.seed_of(hidden, batches)} | more
    build.run(program, TOLERANCE, cell, type="half", batches=batches, **options)


@pytest.mark.parametrize(
    ("hidden", "batches", "chunk", "more"),
    build.first_of_each(
        lambda hidden, batches, chunk, more: "blocks" in more,
        [
            (128, "3,3,3,3,3", 2, {"layers": 3}),
            (192, "6,6,6,6,6,6", 5, {"projection": 192}),  # an odd number of stages of K
            (192, "8,8,8,8,8,8,8,8,8", 8, {}),  # all rows of a chunk; clusters with fewer columns
            (128, "1,1,1,1", 2, {}),
            (128, "7,7,7,7", 3, FORTY_UNITS | {"layers": 3}),  # a last chunk of one timestep
            (192, "4,3,3,2,2,1", 2, {"initial": 1}),
            (192, "7,6,6,5,2,1", 2, {"projection": 192, "layers": 3}),
            (256, "4,4,2,2,1,1,1", 3, FORTY_UNITS),
        ],
    ),
)
def test_dropout_behind_projections(
    program: pathlib.Path, hidden: int, batches: str, chunk: int, more: dict[str, int]
) -> None:
    options = {"layers": 2, "hidden": hidden, "chunk": chunk, "projection": 128, "dropout": 1} | more
    build.run(program, TOLERANCE, "lstm", type="half", batches=batches, seed=build.seed_of(hidden, batches), **options)


@pytest.mark.parametrize(
    ("edit", "kernels", "options"),
    [
        (
            Edit(BACKWARD_MEMORY, "kReadAfter = kByUnits ? 3 : 2;", "kReadAfter = 1;"),
            BOTH_CHUNKED,
            {},
        ),
        (
            Edit(BACKWARD, "if (!LENGTHS || to[i] >= 0) ", ""),
            BOTH_CHUNKED,
            {"batches": "8,8,7,3"},
        ),
        (  # the candidate's gradient of R h in the place of that of W x
            Edit(BACKWARD, "Exchange::kByUnits && k_first >= 2 * hidden", "false"),
            GRU_CHUNKED,
            {"cell": "gru"},
        ),
    ],
)
def test_a_planted_defect_is_found(builder: Builder, edit: Edit, kernels: set[str], options: dict[str, Any]) -> None:
    broken = builder.run_stack("broken", kernels, (edit,))

    def run_often() -> None:
        chosen = {"cell": "lstm", "hidden": 64, "batches": "8,8,8,8", "layers": 2, "chunk": 2} | options
        for seed in range(1, 6):
            build.run(broken, 3e-3, type="half", seed=seed, **chosen)

    with pytest.raises(AssertionError):
        run_often()

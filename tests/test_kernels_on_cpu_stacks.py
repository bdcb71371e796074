"""The wavefront kernels, their own source, run on the CPU under random schedules: kernels_on_cpu/."""

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
    "kWavefrontChunked half lstm 3",
    "kWavefrontChunked half lstm 5",
}
CHUNKED = {"layers": 3, "backward": 0}
BOTH_CHUNKED = {"kWavefrontChunked half lstm 4", "kWavefrontChunked half lstm 5, 2"}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp("kernels_on_cpu"))


@pytest.fixture(scope="module")
def program(builder: Builder) -> pathlib.Path:
    return builder.run_stack("stacks", KERNELS | BOTH_CHUNKED)


@pytest.mark.parametrize(
    ("kind", "cell", "hidden", "batches", "more"),
    [
        ("bfloat16", "lstm", 64, "8,8,8,8", {}),
        ("bfloat16", "lstm", 64, "20,20,20", {"blocks": 8}),  # more than a tile of sequences
        ("bfloat16", "lstm", 64, "8,5,2", {"dropout": 1}),
        ("half", "gru", 64, "9,9,9", {"layers": 3}),
        ("half", "gru", 96, "17,9,4", {"dropout": 1}),
        ("bfloat16", "tanh", 64, "20,9,9", {"layers": 3, "dropout": 1}),
        ("half", "lstm", 512, "17,3", {"backward": 0}),  # wgmma
        ("half", "lstm", 768, "4,4,4,4,4", CHUNKED | {"chunk": 2}),
        ("half", "lstm", 768, "8,7,7,5", CHUNKED | {"chunk": 3, "dropout": 1}),
        ("half", "lstm", 768, "7,7,7,7", CHUNKED | {"chunk": 3, "blocks": 60}),  # 40 units a block
        ("half", "lstm", 768, "3,3,2", CHUNKED | {"chunk": 2, "initial": 1}),
    ],
)
def test_a_stack(program: pathlib.Path, kind: str, cell: str, hidden: int, batches: str, more: dict[str, int]) -> None:
    for seed in (1, 2) if hidden < 512 else (1,):
        options = {"layers": 2, "seed": seed} | more
        build.run(program, TOLERANCE[kind], cell, type=kind, hidden=hidden, batches=batches, **options)


@pytest.mark.parametrize(
    ("hidden", "batches", "chunk", "more"),
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
        (64, "5,1,1,1,1,1,1", 3, {"layers": 3}),  # of one timestep
        (128, "3,2,2,2,1,1,1,1,1,1,1,1", 2, {}),  # the ring's timesteps again
    ],
)
def test_chunks_backward(program: pathlib.Path, hidden: int, batches: str, chunk: int, more: dict[str, int]) -> None:
    options = {"layers": 2, "hidden": hidden, "chunk": chunk} | more
    for seed in (1, 2) if hidden < 512 else (1,):
        build.run(program, TOLERANCE["half"], "lstm", type="half", batches=batches, seed=seed, **options)


@pytest.mark.parametrize(
    ("edit", "kernels", "options"),
    [
        (Edit("rnn/cuda/wavefront/forward.cuh", "buffer ^= 1;", ""), LSTM, {"type": "bfloat16"}),
        (
            Edit("rnn/cuda/wavefront/chunked_backward.cuh", "at - 2 * exchange_step;", "at - exchange_step;"),
            BOTH_CHUNKED,
            {"type": "half", "chunk": 2},
        ),
        (
            Edit("rnn/cuda/wavefront/chunked_backward.cuh", "if (!LENGTHS || to[i] >= 0) ", ""),
            BOTH_CHUNKED,
            {"type": "half", "chunk": 2, "batches": "8,8,7,3"},
        ),
    ],
)
def test_a_planted_defect_is_found(builder: Builder, edit: Edit, kernels: set[str], options: dict[str, Any]) -> None:
    broken = builder.run_stack("broken", kernels, (edit,))

    def run_often() -> None:
        for seed in range(1, 6):
            build.run(broken, 3e-3, "lstm", seed=seed, **({"hidden": 64, "batches": "8,8,8,8", "layers": 2} | options))

    with pytest.raises(AssertionError):
        run_often()

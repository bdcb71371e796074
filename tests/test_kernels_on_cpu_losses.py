"""The recursions of CTC and RNN-T, and RNN-T and TDT with their joiner: the kernels' own source, run on the CPU under
random schedules: kernels_on_cpu/."""

import pathlib

import pytest
from kernels_on_cpu import build
from kernels_on_cpu.build import Builder, Edit

pytestmark = build.marks("kernels_on_cpu_losses")
TOLERANCE = {"float": 2e-6, "double": 1e-12}
NAMES = {"costs", "blanks", "labels", "best", "path"}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory, "-fsanitize=undefined", "-fno-sanitize-recover=undefined")


@pytest.fixture(scope="module")
def rnnt(builder: Builder) -> pathlib.Path:
    return builder.run_loss("rnnt", "rnnt")


@pytest.fixture(scope="module")
def ctc(builder: Builder) -> pathlib.Path:
    return builder.run_loss("ctc", "ctc")


@pytest.fixture(scope="module")
def joint_tdt(builder: Builder) -> pathlib.Path:
    return builder.run_loss("joint_tdt", "joint_tdt")


@pytest.fixture(scope="module")
def joint_tiles(builder: Builder) -> pathlib.Path:
    return builder.run_loss("joint_tiles", "joint_tiles")


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize(
    ("lattice", "frames", "targets"),
    [("regular", 40, 70), ("regular", 3, 130), ("regular", 50, 3), ("modified", 90, 70), ("modified", 6, 6)],
)
def test_an_rnnt_lattice(rnnt: pathlib.Path, kind: str, lattice: str, frames: int, targets: int) -> None:
    sizes = {"batch": 3, "frames": frames, "targets": targets}
    for seed in (1, 2, 3):
        build.compare(rnnt, TOLERANCE[kind], NAMES, type=kind, lattice=lattice, seed=seed, **sizes)


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize(("frames", "targets"), [(150, 70), (300, 33), (9, 4)])
def test_the_states_of_ctc(ctc: pathlib.Path, kind: str, frames: int, targets: int) -> None:
    for seed in (1, 2, 3):
        build.compare(ctc, TOLERANCE[kind], NAMES, type=kind, frames=frames, targets=targets, batch=3, seed=seed)


@pytest.mark.parametrize(("kind", "omega", "clamp"), [("double", 0, 0), ("double", 0.2, 0.05), ("float", 0.2, 0)])
def test_tdt_with_its_joiner(joint_tdt: pathlib.Path, kind: str, omega: float, clamp: float) -> None:
    sizes = {"batch": 3, "frames": 12, "targets": 5, "classes": 37}
    names = {"costs", "gradients", "bias", "frames"}
    build.compare(joint_tdt, TOLERANCE[kind], names, type=kind, omega=omega, clamp=clamp, seed=1, **sizes)


TILES = {"bfloat16": 3e-3, "float": 1e-6}


@pytest.mark.parametrize(
    ("kind", "tokens", "durations", "clamp"),
    [
        ("bfloat16", 253, 4, 0.05),  # duration logits in two blocks of columns
        ("float", 37, 16, 0),
        ("bfloat16", 40, 0, 0),  # RNN-T
    ],
)
def test_logits_from_tiles(joint_tiles: pathlib.Path, kind: str, tokens: int, durations: int, clamp: float) -> None:
    names, sizes = {"scores", "normalisers", "gradients"}, {"tokens": tokens, "durations": durations}
    build.compare(joint_tiles, TILES[kind], names, type=kind, clamp=clamp, seed=1, **sizes)


def test_a_planted_defect_is_found(builder: Builder) -> None:
    barrier = "    if (warps > 1) __syncthreads();\n  }\n"
    edit = Edit("rnnt/cuda/lattice.cu", barrier + "  if (u == track.targets)", "  }\n  if (u == track.targets)")
    broken = builder.run_loss("rnnt", "broken", (edit,))

    def run_often() -> None:
        for seed in range(1, 6):
            sizes = {"batch": 3, "frames": 40, "targets": 70}
            build.compare(broken, TOLERANCE["double"], NAMES, type="double", lattice="regular", seed=seed, **sizes)

    with pytest.raises(AssertionError):
        run_often()

"""LSTMs with layer normalisation, on clusters and by timesteps: the kernels' own source, run on the CPU:
kernels_on_cpu/."""

import pathlib

import pytest
from kernels_on_cpu import build
from kernels_on_cpu.build import Builder, Edit

pytestmark = build.marks("kernels_on_cpu_layer_norm")
TOLERANCE = {"float": 5e-6, "tf32": 2e-3, "half": 2e-3}
NAMES = {"y", "cy", "dx", "dh0", "dc0"}
PARAMETERS = {"gate_gain", "gate_bias", "cell_gain", "cell_bias"}


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory)


@pytest.fixture(scope="module")
def program(builder: Builder) -> pathlib.Path:
    return builder.run_layer_norm("layer_norm")


def run(program: pathlib.Path, kind: str, normalized: str, **options: object) -> None:
    names = NAMES | (PARAMETERS if normalized != "none" else set())
    build.compare(program, TOLERANCE[kind], names, type=kind, engine=normalized, **options)


@pytest.mark.parametrize(
    ("kind", "normalized", "hidden", "batches", "more"),
    build.first_of_each(
        lambda kind, normalized, hidden, batches, more: (kind, "column_tiles" in more),
        [
            ("float", "gates", 64, "3,3,2,2", {}),
            ("float", "products", 100, "7,3,2", {"replicas": 2, "reverse": 1, "masks": 1}),
            ("float", "none", 128, "5,5", {"replicas": 3}),
            ("half", "gates", 128, "8,8,3", {"masks": 1}),
            ("half", "products", 96, "3,2,2", {"reverse": 1}),
            ("tf32", "gates", 100, "7,3,2", {"masks": 1}),
            ("float", "gates", 256, "16,16,9", {"column_tiles": 2}),
            ("float", "products", 250, "19,11,2", {"column_tiles": 2, "replicas": 2, "masks": 1}),
            ("tf32", "gates", 230, "13,12,3", {"column_tiles": 2, "reverse": 1, "masks": 1}),
            ("tf32", "products", 256, "14,9", {"column_tiles": 2, "replicas": 4}),
            ("half", "gates", 256, "16,9,2", {"column_tiles": 2, "masks": 1}),
            ("half", "products", 200, "9,3", {"column_tiles": 2, "reverse": 1}),
        ],
    ),
)
def test_a_layer(
    program: pathlib.Path, kind: str, normalized: str, hidden: int, batches: str, more: dict[str, int]
) -> None:
    seed = 1 if "column_tiles" in more else build.seed_of(kind, batches)
    run(program, kind, normalized, hidden=hidden, batches=batches, seed=seed, **more)


# Units at once, whether held, H.
STEPS = build.first_of_each(
    lambda pack, held, hidden: (pack, held), [(4, 1, 128), (4, 1, 140), (4, 0, 300), (1, 1, 37), (1, 0, 101)]
)


@pytest.mark.parametrize("kind", ["float", "half"])
@pytest.mark.parametrize(("pack", "held", "hidden"), STEPS)
@pytest.mark.parametrize(
    ("normalized", "more"),
    build.first_of_each(
        lambda normalized, more: "steps",
        [("gates", {"masks": 1, "reverse": 1}), ("gates", {}), ("products", {"masks": 1}), ("none", {"reverse": 1})],
    ),
    ids=str,
)
def test_steps(
    program: pathlib.Path, kind: str, pack: int, held: int, hidden: int, normalized: str, more: dict[str, int]
) -> None:
    options = {"column_tiles": 0, "pack": pack, "held": held, "hidden": hidden, "batches": "3,3,2"}
    run(program, kind, normalized, **options, **more)


def test_a_planted_defect_is_found(builder: Builder) -> None:
    barrier, after = "    __syncthreads();\n", "    if (!finishes) return;"
    edit = Edit("rnn/cuda/layer_norm/cluster_forward.cuh", barrier + after, after)
    broken = builder.run_layer_norm("broken", (edit,))

    def run_often() -> None:
        for seed in range(1, 6):
            run(broken, "float", "gates", hidden=64, batches="3,3,2,2", seed=seed)

    with pytest.raises(AssertionError):
        run_often()


@pytest.fixture(scope="module")
def ordered(builder: Builder) -> pathlib.Path:
    return builder.run_layer_norm("ordered", order=True)


@pytest.mark.parametrize("kind", ["float", "tf32", "half"])
@pytest.mark.parametrize(
    ("hidden", "batches", "column_tiles"),
    build.first_of_each(
        lambda hidden, batches, column_tiles: column_tiles,
        [
            (128, "8,8,8,3,3", 1),
            (100, "2,2,2,2", 1),
            (256, "16,16,16,16,5", 2),
            (240, "11,11,11,9", 2),
            (256, "3,3,3", 2),
        ],
    ),
)
def test_accesses_are_ordered(ordered: pathlib.Path, kind: str, hidden: int, batches: str, column_tiles: int) -> None:
    options = {"type": kind, "hidden": hidden, "batches": batches, "column_tiles": column_tiles}
    for normalized in ("gates", "products"):
        assert build.find_unordered(ordered, engine=normalized, **options) == []


def test_two_column_tiles_need_the_exchanges_of_normalisation(ordered: pathlib.Path) -> None:
    """The plan does not take them without."""
    options = {"type": "float", "hidden": 256, "batches": "9,9,9,9", "column_tiles": 2}
    found = build.find_unordered(ordered, engine="none", **options)
    assert build.is_found("read load_shared(sums_in", "write send_sums(", found), found


@pytest.mark.parametrize("kind", ["float", "half"])
@pytest.mark.parametrize(("pack", "held", "hidden"), STEPS)
def test_accesses_of_steps_are_ordered(ordered: pathlib.Path, kind: str, pack: int, held: int, hidden: int) -> None:
    options = {"type": kind, "column_tiles": 0, "pack": pack, "held": held, "hidden": hidden, "batches": "2,2,1"}
    for normalized in ("gates", "products"):
        assert build.find_unordered(ordered, engine=normalized, **options) == []


def test_a_sum_without_its_barrier_is_found(builder: Builder) -> None:
    barrier, before = "  __syncthreads();\n", "warps[1][warp] = second;\n"
    edit = Edit("rnn/cuda/layer_norm/steps_common.cuh", before + barrier, before)
    broken = builder.run_layer_norm("unordered", (edit,), order=True)
    options = {"type": "float", "column_tiles": 0, "pack": 4, "hidden": 300, "batches": "2,2"}
    pairs = build.find_unordered(broken, engine="gates", **options)
    assert build.is_found("write warps[0][warp] = first", "read warps[0][lane]", pairs)

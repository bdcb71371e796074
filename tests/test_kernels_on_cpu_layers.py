"""Kernels of small batches, their own source, run on the CPU under random schedules: kernels_on_cpu/."""

import pathlib

import pytest
from kernels_on_cpu import build
from kernels_on_cpu.build import Builder, Edit

pytestmark = build.marks("kernels_on_cpu_layers")
# Tolerances for sums in another order; for storing the results, and the factors of products.
TOLERANCE = {"float": 5e-6, "tf32": 2e-5, "half": 4e-4, "bfloat16": 3e-3}
# Engine, type, cell, the shapes of the kernels, and layers: hidden size, batches and more options.
CASES = {
    "mma, tiles": (
        "mma",
        "float",
        "lstm",
        "kMma",
        ["1", "1, 1"],
        [(64, "20,20,7,3", {"replicas": 2}), (50, "1,1", {})],
    ),
    "mma, cluster": (
        "mma",
        "half",
        "gru",
        "kMma",
        ["3", "3, 3"],
        [(96, "20,9,3", {"reverse": 1}), (96, "8,8", {})],
    ),
    "mma, extras": (
        "mma",
        "bfloat16",
        "lstm",
        "kMmaExtras",
        ["2", "2, 2"],
        [
            (64, "9,9,3", {"resets": 1, "masks": 1}),
            (64, "7,5,5", {"resets": 1, "reverse": 1}),
            (64, "7,7,5", {"masks": 1, "reverse": 1}),
        ],
    ),
    "mma, masks and resets": (
        "mma",
        "bfloat16",
        "gru",
        "kMmaExtras",
        ["2", "2, 1"],
        [(64, "9,9,3", {"resets": 1, "masks": 1}), (64, "7,5,5", {"resets": 1, "masks": 1, "reverse": 1})],
    ),
    "mma, no gates": (
        "mma",
        "float",
        "relu",
        "kMmaExtras",
        ["4", "4, 1"],
        [(64, "9,9,3", {"resets": 1, "masks": 1})],
    ),
    "mma, large": ("mma-large", "half", "lstm", "kMmaLarge", [""], [(76, "7,5,5", {})]),
    "mma, large, extras": (
        "mma-large",
        "half",
        "lstm",
        "kMmaLargeExtras",
        [""],
        [(76, "7,5,5", {"masks": 1, "resets": 1}), (76, "3,3,3", {"masks": 1, "reverse": 1})],
    ),
    "cluster": (
        "cluster",
        "bfloat16",
        "lstm",
        "kCluster",
        ["4, 8"],
        [
            (128, "7,7,5,5,5", {}),
            (100, "7,5,5,5", {"resets": 1, "replicas": 2, "reverse": 1}),
            (100, "7,7,5,5,3", {"resets": 1, "masks": 1}),
            (128, "7,5,5", {"masks": 1, "reverse": 1}),
        ],
    ),
    "cluster, tf32": (
        "cluster",
        "tf32",
        "gru",
        "kCluster",
        ["8, 8"],
        [(128, "7,5,5,5", {"masks": 1}), (128, "7,5,5,5", {"resets": 1, "masks": 1})],
    ),
    "cluster, sLSTM": (
        "cluster",
        "bfloat16",
        "slstm",
        "kCluster",
        ["4, 8"],
        [
            (128, "7,7,5,5,5", {}),
            (100, "7,5,5,5", {"resets": 1, "replicas": 2, "reverse": 1}),
        ],
    ),
    "mma, sLSTM": (
        "mma",
        "float",
        "slstm_exp",
        "kMma",
        ["1", "1, 1"],
        [(64, "20,20,7,3", {"replicas": 2}), (50, "1,1", {})],
    ),
    "mma, 16 bits, sLSTM": (
        "mma",
        "bfloat16",
        "slstm",
        "kMma",
        ["1", "2, 1"],
        [(64, "20,20,7,3", {}), (50, "7,7,5", {"reverse": 1})],
    ),
    "mma, extras, sLSTM": (
        "mma",
        "float",
        "slstm",
        "kMmaExtras",
        ["1", "1, 1"],
        [(64, "9,9,3", {"resets": 1}), (64, "7,5,5", {"resets": 1, "reverse": 1})],
    ),
    "mma, large, sLSTM": (
        "mma-large",
        "half",
        "slstm",
        "kMmaLargeExtras",
        [""],
        [(76, "7,5,5", {}), (76, "7,5,5,5", {"resets": 1})],
    ),
    "simt, sLSTM": (
        "simt",
        "float",
        "slstm_exp",
        "kSimt",
        ["8, 4, 1, 1"],
        [(512, "1,1,1", {}), (512, "1,1,1,1,1,1,1,1", {"resets": 1})],
    ),
    "simt": (
        "simt",
        "float",
        "lstm",
        "kSimt",
        ["8, 4, 1, 1"],
        [
            (512, "1,1,1", {}),
            (512, "1,1,1,1,1,1,1,1", {"resets": 1, "masks": 1}),
            (512, "1,1,1", {"masks": 1, "reverse": 1}),
        ],
    ),
    "simt, cluster": (
        "simt",
        "float",
        "gru",
        "kSimt",
        ["16, 4, 1, 16"],
        [(256, "1,1,1,1", {}), (256, "1,1,1,1,1,1,1,1", {"resets": 1, "masks": 1})],
    ),
    "wgmma": ("wgmma", "bfloat16", "lstm", "kWgmma", ["8"], [(128, "7,5,5", {"reverse": 1})]),
    "wgmma, split K": ("split-k", "half", "gru", "kWgmmaSplitK", ["16"], [(256, "9,5,5", {})]),
}


def kernels_of(name: str) -> set[str]:
    _, kind, cell, table, shapes, _ = CASES[name]
    instance = {"relu": "rnn", "slstm_exp": "slstm"}.get(cell, cell)
    return {f"{table} {kind} {instance} {shape}".strip() for shape in shapes}


def run(program: pathlib.Path, name: str, hidden: int, batches: str, more: dict[str, int]) -> None:
    engine, kind, cell, _, shapes, _ = CASES[name]
    if engine == "mma":
        forward, (backward, cluster) = shapes[0], shapes[1].split(", ")
        more = {"forward_units": int(forward), "backward_units": int(backward), "backward_cluster": int(cluster)} | more
    build.run(program, TOLERANCE[kind], cell, type=kind, hidden=hidden, engine=engine, batches=batches, **more)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory)


@pytest.fixture(scope="module")
def program(builder: Builder) -> pathlib.Path:
    return builder.run_layer("layers", set().union(*map(kernels_of, CASES)))


@pytest.mark.parametrize(
    ("name", "layer"),
    build.first_of_each(
        lambda name, _: name, [(name, layer) for name in CASES for layer in range(len(CASES[name][-1]))]
    ),
)
def test_a_layer(program: pathlib.Path, name: str, layer: int) -> None:
    hidden, batches, more = CASES[name][-1][layer]
    run(program, name, hidden, batches, {"seed": build.seed_of(name, layer)} | more)


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        pytest.param(
            "mma, tiles",
            Edit("rnn/cuda/mma/backward.cuh", "const int buffer = round & 1;", "const int buffer = 0;"),
            id="sums overwritten",
        ),
        pytest.param(
            "cluster",
            Edit("rnn/cuda/cluster/forward.cuh", "    __syncthreads();\n    if (!finishes)", "    if (!finishes)"),
            id="no barrier",
        ),
    ],
)
def test_a_planted_defect_is_found(builder: Builder, name: str, edit: Edit) -> None:
    broken = builder.run_layer("broken", kernels_of(name), (edit,))

    def run_often() -> None:
        for seed in range(1, 6):
            run(broken, name, *CASES[name][-1][0][:2], {"seed": seed})

    with pytest.raises(AssertionError):
        run_often()

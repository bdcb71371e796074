"""The cluster kernels of the LSTM with layer normalisation in float32 and tf32, their own source, run on the CPU under
random schedules: kernels_on_cpu/."""

import math
import pathlib
import subprocess

import numpy as np
import pytest
import torch
from kernels_on_cpu import build
from kernels_on_cpu.build import Builder, Edit
from layer_norm_lstm_case import Case, results

pytestmark = [
    pytest.mark.skipif(build.find_headers() is None, reason="CUDA's headers are not here"),
    pytest.mark.xdist_group("kernels_on_cpu_layer_norm"),
]
TOLERANCE = 1e-6  # of sums in another order
# Of the errors beside exact factors, what is left in tf32 beside a reference that rounds the same factors: sums in
# another order have some of them rounded in another direction.
SHARE = 0.3
FOLDER = "layer_norm_lstm/cuda"
FIRST = Case(2, 3, 72, masks=True)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory.mktemp("kernels_on_cpu"))


@pytest.fixture(scope="module")
def program(builder: Builder) -> pathlib.Path:
    return builder.run_layer_norm()


def run(program: pathlib.Path, case: Case, kind: str) -> dict[str, torch.Tensor]:
    """What results() has of them, besides the gradient of the recurrent matrix, which cuBLAS makes."""
    t, n, h = case.steps, case.batch, case.hidden
    generator = torch.Generator().manual_seed(5)
    gradients = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((t, n, h), (n, h))]
    files = [program.parent / name for name in ("input", "output")]
    with files[0].open("wb") as file:
        for array in [*case.arrays(torch.float32), *(gradient.float() for gradient in gradients)]:
            file.write(np.int64(0 if array is None else array.numel()).tobytes())
            file.write(b"" if array is None else array.numpy().tobytes())
    normalize, reverse, _, zoneout = case.numbers()
    words = [program, kind, normalize, int(reverse), zoneout, t, n, h, *files]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    shapes = {"y": (t, n, h), "cy": (n, h), "d x": (t, n, 4 * h), "d h0": (n, h), "d c0": (n, h)}
    shapes |= {"d gate_gain": (4 * h,), "d gate_bias": (4 * h,), "d cell_gain": (h,), "d cell_bias": (h,)}
    parts = torch.from_numpy(np.fromfile(files[1], np.float32)).double().split([math.prod(s) for s in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def errors(found: dict[str, torch.Tensor], case: Case, rounds_to_tf32: bool) -> dict[str, float]:
    """In norm."""
    expected = results(case, torch.float32, "cpu", True, rounds_to_tf32=rounds_to_tf32)
    names = found.keys() & expected.keys()
    return {name: ((found[name] - expected[name]).norm() / expected[name].norm()).item() for name in names}


@pytest.mark.parametrize("kind", ["float", "tf32"])
@pytest.mark.parametrize(
    "case",
    [
        FIRST,
        Case(2, 2, 128, "none", masks=True),
        Case(1, 9, 130, "products", zoneout=0.25),
        Case(3, 5, 200, "products", reverse=True, has_lengths=True),
        Case(2, 9, 300),  # clusters of 16, weights in shared memory, too
        Case(2, 3, 512, "products"),
    ],
    ids=str,
)
def test_a_layer(program: pathlib.Path, case: Case, kind: str) -> None:
    found = run(program, case, kind)
    exact = errors(found, case, False)
    assert len(exact) == (5 if case.normalize == "none" else 9)
    if kind == "float":
        assert max(exact.values()) < TOLERANCE, exact
    else:
        rounded = errors(found, case, True)
        assert all(rounded[name] < SHARE * exact[name] for name in exact), (rounded, exact)


@pytest.mark.parametrize(
    "edit",
    [
        Edit(f"{FOLDER}/cluster_forward.cuh", "factor_of<T>(Element<T>::pack(h, 0))", "Element<T>::pack(h, 0)"),
        Edit(f"{FOLDER}/cluster_backward.cuh", "to, factor_of<T>(da[g])", "to, da[g]"),
    ],
    ids=["states not rounded", "gradients not rounded"],
)
def test_a_planted_defect_is_found(builder: Builder, edit: Edit) -> None:
    found = run(builder.run_layer_norm((edit,)), FIRST, "tf32")
    rounded, exact = errors(found, FIRST, True), errors(found, FIRST, False)
    assert any(rounded[name] > SHARE * exact[name] for name in exact)

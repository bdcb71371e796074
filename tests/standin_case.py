"""Shared parts of the tests of the library that stands in for cuDNN: a fake cuDNN, the stand-in on host memory,
cases."""

import os
import pathlib
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import torch
from cudnn_client import BATCH_MAJOR, LSTM, PACKED, SEQUENCE_MAJOR
from reference import rnn as reference

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src/cudnn_standin"
FAKE_EXPORTS = "libcudnn.so.9 { global: cudnn*; fakeCalls; local: *; };\n"


def compile_library(target: pathlib.Path, soname: str, exports: pathlib.Path, *arguments: object) -> pathlib.Path:
    target.parent.mkdir(exist_ok=True)
    options = ["-std=c++17", "-O0", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
    link = [f"-Wl,-soname,{soname}", f"-Wl,--version-script={exports}", "-ldl"]
    done = subprocess.run(
        ["g++", *options, *map(str, arguments), "-o", target, *link], capture_output=True, text=True, env=plain()
    )
    assert done.returncode == 0, done.stderr
    return target


def plain(**environment: str) -> dict[str, str]:
    """The environment without what is for the Python that runs the tests."""
    return {**os.environ, "LD_PRELOAD": "", "PRNN_CUDNN": "", "PRNN_CUDNN_LOG": "", **environment}


def build_fake(folder: pathlib.Path, *options: str) -> pathlib.Path:
    """A libcudnn.so.9 without kernels, in a folder of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "fake.map").write_text(FAKE_EXPORTS)
    source = ROOT / "tests/c/standin_fake_cudnn.cc"
    return compile_library(folder / "libcudnn.so.9", "libcudnn.so.9", folder / "fake.map", *options, source)


def build_standin(folder: pathlib.Path) -> pathlib.Path:
    """The stand-in with host memory for its device, beside the library that it loads."""
    sources = [*sorted(SOURCES.glob("*.cc")), ROOT / "tests/c/standin_host_device.cc"]
    includes = [f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}"]
    name = "libprnn_cudnn.so"
    built = compile_library(folder / name, name, SOURCES / "libprnn_cudnn.map", *includes, *sources)
    (library,) = (ROOT / "prnn/lib").glob("libprnn.so.*")
    (folder / library.name).symlink_to(library)
    return built


def run_client(
    folder: pathlib.Path, functions: pathlib.Path, fake: pathlib.Path, cases: list[dict[str, Any]], **environment: str
) -> tuple[list[dict[str, Any]], str]:
    """The results of the cases, and what the process wrote to stderr."""
    job, results = folder / "job", folder / "results"
    job.write_bytes(pickle.dumps(cases))
    command = [sys.executable, ROOT / "tests/cudnn_client.py", functions, fake, job, results]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=plain(**environment))
    assert done.returncode == 0, done.stderr
    return pickle.loads(results.read_bytes()), done.stderr


def make_case(seed: int, **changes: Any) -> dict[str, Any]:
    """An LSTM over three padded sequences, or what `changes` make of it, with its data."""
    case: dict[str, Any] = {
        "mode": LSTM,
        "input": 5,
        "hidden": 8,
        "layers": 1,
        "directions": 1,
        "layout": SEQUENCE_MAJOR,
        "steps": 4,
        "lengths": [4, 4, 4],
        **changes,
    }
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    batch, steps = len(case["lengths"]), case["steps"]
    rows = {SEQUENCE_MAJOR: (steps, batch), PACKED: (sum(case["lengths"]),), BATCH_MAJOR: (batch, steps)}
    rows = rows[case["layout"]]
    stack = stack_of(case)
    states = (case["layers"] * case["directions"], batch)
    case |= {name: normal(*states, stack.state if "h" in name else stack.hidden) for name in ("hx", "cx", "dhy", "dcy")}
    case |= {"x": normal(*rows, case["input"]), "dy": normal(*rows, case["directions"] * stack.state)}
    w = torch.from_numpy(normal(reference.params_size(stack)) / np.float32(case["hidden"] ** 0.5))
    bias = case.get("bias", 2)
    case["weights"] = {}
    for pseudo, place in enumerate(place for layer in reference.split_weights(stack, w) for place in layer):
        if bias not in (1, 2):
            place.input_bias.zero_()
        if bias not in (2, 3):
            place.recurrent_bias.zero_()
        case["weights"] |= blocks(pseudo, place, stack.gates)
    case["w"] = w.numpy()
    return case


def stack_of(case: dict[str, Any]) -> reference.Stack:
    return reference.Stack(
        *(case["mode"], case["input"], case["hidden"], case["layers"], case["directions"]),
        *(case.get("skip_input", False), case.get("projection", 0)),
    )


def blocks(pseudo: int, place: reference.LayerWeights, gates: int) -> dict[tuple[int, int, str], np.ndarray]:
    """Matrices and biases of a pseudo-layer by cuDNN's linLayerID."""
    found = {}
    parts = ((place.input, place.input_bias, 0), (place.recurrent, place.recurrent_bias, gates))
    for matrices, biases, first in parts:
        for gate in range(gates):
            if matrices is not None:
                found[pseudo, first + gate, "matrix"] = matrices[gate].numpy()
            found[pseudo, first + gate, "bias"] = biases[gate].numpy()
    if place.projection is not None:
        found[pseudo, 8, "matrix"] = place.projection.numpy()
    return found


def expected(case: dict[str, Any]) -> dict[str, Any]:
    """Returns the reference's results of a case, in the case's own layout; None where there is padding."""
    stack, lengths = stack_of(case), case["lengths"]
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    batch_sizes = [sum(length > t for length in lengths) for t in range(max(lengths))]
    rows = [(t, n) for t in range(max(lengths)) for n in order if t < lengths[n]]
    wanted = case.get("wanted", ("hx", "cx", "hy", "cy", "dhy", "dcy", "dhx", "dcx"))

    def packed(name: str) -> torch.Tensor:
        data = case[name]
        if case["layout"] == PACKED:
            return torch.from_numpy(data)
        take = [data[t, n] if case["layout"] == SEQUENCE_MAJOR else data[n, t] for t, n in rows]
        return torch.from_numpy(np.stack(take))

    def states(name: str) -> torch.Tensor:
        found = torch.from_numpy(case[name])[:, order]
        return found if name in wanted else torch.zeros_like(found)

    results = reference.train_step(
        stack,
        packed("x"),
        batch_sizes,
        torch.from_numpy(case["w"]),
        *(states("hx"), states("cx"), packed("dy"), states("dhy"), states("dcy")),
    )

    def unpacked(values: torch.Tensor, padding: float) -> np.ndarray:
        values = values.float().numpy()
        if case["layout"] == PACKED:
            return values
        lead = (case["steps"], len(lengths)) if case["layout"] == SEQUENCE_MAJOR else (len(lengths), case["steps"])
        out = np.full((*lead, values.shape[1]), padding, np.float32)
        for row, (t, n) in zip(values, rows, strict=True):
            out[(t, n) if case["layout"] == SEQUENCE_MAJOR else (n, t)] = row
        return out

    unsorted = [order.index(n) for n in range(len(lengths))]
    dw = {}
    for pseudo, place in enumerate(p for layer in reference.split_weights(stack, results.dw) for p in layer):
        dw |= blocks(pseudo, place, stack.gates)
    return {
        "y": unpacked(results.y, case.get("padding", 0.0)),
        "dx": unpacked(results.dx, case.get("x_padding", 0.0)),
        "dw": {key: value.astype(np.float32).ravel() for key, value in dw.items()},
        **{name: getattr(results, name).float().numpy()[:, unsorted] for name in ("hy", "cy", "dhx", "dcx")},
    }

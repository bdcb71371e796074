"""A run, the queries of the C API, prnn.explain and the library in the place of cuDNN name one backend for a layer."""

import itertools
import pathlib
import subprocess
from typing import Any

import pytest
import torch

import prnn
from prnn import _C

ROOT = pathlib.Path(__file__).resolve().parent.parent

MODES = {"LSTM": _C.LSTM, "GRU": _C.GRU, "RNN": _C.RNN_TANH}
TYPES = [(torch.bfloat16, False), (torch.float16, False), (torch.float32, False), (torch.float32, True)]
HIDDEN, BATCHES = (64, 256, 512, 640, 1024, 1280, 2048), (1, 2, 4, 8, 16, 24, 32, 64, 96, 128, 256)
# Layers and directions; of an LSTM of the last kind, with a projection.
STACKS = [(2, 1, False), (3, 1, False), (5, 1, False), (2, 2, False), (3, 1, True)]
STEPS = (16, 64, 256, 4096)
SOURCES = [
    *("src/core/gpu_table.cc", "src/core/status.cc", "src/core/enums.cc", "src/rnn/problem.cc"),
    *("src/rnn/cudnn/select.cc", "src/rnn/cuda/backend.cc"),
    *("tests/c/backend_answers.cc", "tests/c/standin_host_device.cc"),
    *(f"src/cudnn_standin/{name}.cc" for name in ("configuration", "decision", "prnn_library")),
]


def layers() -> list[dict[str, Any]]:
    made = []
    for i, (mode, (dtype, tf32), hidden, batch) in enumerate(itertools.product(MODES, TYPES, HIDDEN, BATCHES)):
        depth, directions, projects = STACKS[i % len(STACKS)]
        projection = hidden // 4 if projects and mode == "LSTM" else 0
        sizes = dict(hidden=hidden, layers=depth, directions=directions, projection=projection, batch=batch)
        made.append(dict(mode=mode, dtype=dtype, tf32=tf32, **sizes))
    return made


def compiled(source: str) -> pathlib.Path:
    """The object that the build has made of a source, or the source, where it was built for the CPU alone."""
    built = (ROOT / "build/release" / source).with_suffix(".os")
    return built if built.exists() else ROOT / source


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The program, which has the product's choice of backends and the stand-in's decision, beside libprnn."""
    folder = tmp_path_factory.mktemp("one_answer")
    (library,) = (ROOT / "prnn/lib").glob("libprnn.so.*")
    (folder / library.name).symlink_to(library)
    plan = [f"src/rnn/plan/{path.name}" for path in sorted((ROOT / "src/rnn/plan").glob("*.cc"))]
    files = map(compiled, [*SOURCES, *plan, "src/rnn/plan/measured_ratios.cc"])
    options = ["g++", "-std=c++17", "-O1", "-ffp-contract=off", f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}"]
    command = [*options, *files, "-o", folder / "answers", "-ldl"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "answers"


def explained(layer: dict[str, Any], steps: int, dropout: float, shorter: int) -> str:
    """The engine of a training step on an H200 that prnn.explain says; `shorter` sequences are shorter by a step."""
    kind = getattr(torch.nn, layer["mode"])
    sizes = (layer["hidden"], layer["hidden"], layer["layers"])
    more = {"proj_size": layer["projection"]} if layer["projection"] else {}
    two = layer["directions"] == 2
    module = kind(*sizes, dropout=dropout, bidirectional=two, device="meta", dtype=layer["dtype"], **more)
    lengths = [steps] * (layer["batch"] - shorter) + [steps - 1] * shorter
    (found,) = prnn.explain(module, lengths, gpu="H200").layers
    return found.forward


def test_one_backend_for_924_layers(program: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks, numbers = layers(), {torch.float32: _C.FLOAT, torch.float16: _C.HALF, torch.bfloat16: _C.BFLOAT16}
    assert len(stacks) == 924
    cases = list(itertools.product(stacks, STEPS, (0.0, 0.25), (0,)))
    cases += [(layer, 16, 0.0, 1) for layer in stacks if layer["batch"] > 1]
    lines = [
        f"{MODES[s['mode']]} {numbers[s['dtype']]} {int(s['tf32'])} {s['hidden']} {s['layers']} {s['directions']} "
        f"{s['projection']} {s['batch']} {steps} {dropout} {s['batch'] - shorter}"
        for s, steps, dropout, shorter in cases
    ]
    environment = {"HOST_DEVICE_GPU": "H200", "PATH": "/usr/bin"}
    done = subprocess.run(
        [program], input="\n".join(lines), capture_output=True, text=True, env=environment, check=True
    )
    answers = done.stdout.splitlines()
    assert len(answers) == len(cases)
    training = []
    for line, answer in zip(lines, answers, strict=True):
        said = [part.split()[1:] for part in answer.split(", ")]
        assert said[0] == said[1] == said[2], f"{line}: {answer}"
        training.append(int(said[0][0]))
    assert {_C.PERSISTENT_BACKEND, _C.CUDNN_BACKEND} == set(training)
    of_case = {}
    for (layer, steps, dropout, shorter), backend in zip(cases, training, strict=True):
        if not shorter:
            of_case[id(layer), steps, dropout] = backend
    # From 64 timesteps on the number of timesteps does not matter.
    assert all(of_case[id(s), 64, d] == of_case[id(s), 4096, d] for s in stacks for d in (0.0, 0.25))
    for (layer, steps, dropout, shorter), backend in list(zip(cases, training, strict=True))[::23]:
        monkeypatch.setattr(torch.backends.cudnn.rnn, "fp32_precision", "tf32" if layer["tf32"] else "ieee")
        engine = explained(layer, steps, dropout, shorter)
        assert (engine == "cudnn") == (backend == _C.CUDNN_BACKEND), f"{layer}, T = {steps}, dropout {dropout}"


@pytest.mark.parametrize(("steps", "same"), [(1, 1), (31, 31), (32, 32), (50, 48), (100, 96), (300, 256), (9999, 256)])
def test_canonical_length(steps: int, same: int) -> None:
    """Layers whose plans change with the number of timesteps have the plans of the least number that is alike."""
    for hidden, batch, depth in ((640, 4, 3), (1024, 8, 6), (1024, 32, 2)):
        rnn = _C.Rnn(_C.LSTM, _C.BFLOAT16, hidden, depth, hidden, False)
        assert rnn.query_gpu("H200", [batch] * steps) == rnn.query_gpu("H200", [batch] * same)

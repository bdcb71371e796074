"""The choice of PRNN_BEST_BACKEND between cuDNN and the resident kernels, by measurements. No GPU is needed for the
rows of the GPU table."""

import ctypes
import itertools
import pathlib
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import capi
import pytest
import torch
from test_rnn_query import BACKEND_PERSISTENT, Info, Layer

import prnn
from prnn import _C
from prnn._ops import _layer
from prnn.bench import rnn_ratios, rnn_regret

CUDNN = 1
ROOT = pathlib.Path(__file__).parent.parent
RESULTS = ROOT / "bench/results"
FILES = sorted(RESULTS.glob("rnn_backends_*.csv"))
GPU, POINTS = rnn_ratios.read([str(RESULTS / "rnn_backends_h200.csv")])
MODES = {"lstm": _C.LSTM, "gru": _C.GRU, "rnn": _C.RNN_TANH}
TYPES = {"bfloat16": _C.BFLOAT16, "float16": _C.HALF, "tf32": _C.FLOAT, "float32": _C.FLOAT}
MANY = rnn_ratios.MANY_STEPS
Backends = tuple[int, int]  # of inference and of training


class Kind(NamedTuple):
    """The coordinates of a point but for N."""

    cell: str
    type: str
    layers: int = 1
    directions: int = 1
    hidden: int = 1024
    steps: int = MANY
    projection: int = 0


def measured() -> dict[Kind, dict[int, Backends]]:
    """The batches of each kind, with cuDNN's time in percent of the resident kernels' of inference and training; the
    last one of batches that were measured with several numbers of many timesteps."""
    kinds: dict[Kind, dict[int, Backends]] = defaultdict(dict)
    for p in POINTS:
        kind = Kind(p.cell, p.type, p.layers, p.directions, p.hidden, min(p.steps, MANY), p.projection)
        kinds[kind][p.batch] = tuple(round(100 * cudnn / resident) for resident, cudnn in (p.times(0), p.times(1)))
    return kinds


ROWS = measured()


def choices(kind: Kind, batch: int, gpu: str = "H200") -> Backends:
    both = kind.directions == 2
    shape = (kind.hidden, kind.layers, kind.hidden, both)
    rnn = _C.Rnn(MODES[kind.cell], TYPES[kind.type], *shape, projection=kind.projection)
    if kind.type == "tf32":
        rnn.set_math(_C.TF32_MATH)
    found = rnn.query_gpu(gpu, [batch] * kind.steps)
    assert found["supported"], (kind, batch)
    return found["inference_backend"], found["backend"]


def training_choice(kind: Kind, batch: int, gpu: str = "H200") -> int:
    return choices(kind, batch, gpu)[1]


def test_the_table_has_every_point() -> None:
    """By kinds, of which the library looks for one."""
    kinds = rnn_ratios.table(POINTS)
    assert sum(map(len, kinds.values())) == len(POINTS) > 18000
    assert len(kinds) == 3 * 3 + 3 + 3  # cells and types without a projection, types with one, and kept apart
    lines = rnn_ratios.table([rnn_ratios.Point("gru", "float16", 3, 1, 512, 8, 96, 2.0, 6.0, 4.0, 3.0)])
    assert lines == {
        "PRNN_GRU, false, false, false, false": ["{PRNN_DATA_HALF, 3, 1, 512, 0, 8, 32, 0.693f, -0.693f, 0.693f},"]
    }


@pytest.mark.parametrize("first", range(8))
def test_a_measured_point_goes_to_the_faster_one(first: int) -> None:
    """Whatever lies around it: some points of few timesteps, and of many where they were measured once."""
    for p in POINTS[first::80]:
        found = rnn_regret.choice(GPU, p)
        for index, is_cudnn in enumerate(found):
            resident, cudnn = p.times(index)
            step_by_step = index == 0 and p.steps <= 4 and p.batch <= 32  # perhaps: resident whatever was measured
            if abs(cudnn / resident - 1) > 0.01 and not (step_by_step and not is_cudnn):
                assert is_cudnn == (cudnn < resident), (p, index)


def test_measurements_are_of_rows_of_the_gpu_table() -> None:
    """Ratios under another name would serve no GPU."""
    for file in FILES:
        gpu, points = rnn_ratios.read([str(file)])
        assert gpu in _C.gpu_names()
        assert file.stem == f"rnn_backends_{gpu.lower().replace(' ', '_')}"
        assert all(min(point.times(0) + point.times(1)) > 0 for point in points)


def test_measurements_say_which_kernels_keep_a_projection_apart() -> None:
    """Their ratios are rows of their own, which a plan finds by its engine."""
    for file in FILES:
        gpu, points = rnn_ratios.read([str(file)])
        for point in [point for point in points if point.projection > 0][::3]:
            shape = (point.hidden, point.layers, point.hidden, point.directions == 2)
            rnn = _C.Rnn(_C.LSTM, rnn_regret.TYPES[point.type], *shape, projection=point.projection)
            if point.type == "tf32":
                rnn.set_math(_C.TF32_MATH)
            found = rnn.query_gpu(gpu, [point.batch] * point.steps)
            assert (found["forward_engine"] == "projected") == point.apart, point


def crossing(batches: dict[int, Backends]) -> tuple[int, int] | None:
    """Neighbouring batches between which the choice for training changes from the resident kernels to cuDNN."""
    for low, high in itertools.pairwise(sorted(batches)):
        if batches[low][1] > 102 and batches[high][1] < 94 and low >= 8:
            return low, high
    return None


CROSSINGS = [(kind, found) for kind, batches in list(ROWS.items())[::9] if (found := crossing(batches))]


def test_between_two_measured_batches_the_choice_changes() -> None:
    assert len(CROSSINGS) >= 5
    for kind, (low, high) in CROSSINGS:
        assert (training_choice(kind, low), training_choice(kind, high)) == (_C.PERSISTENT_BACKEND, CUDNN), kind


def one_layer(type_: str, hidden: int) -> Kind:
    return Kind("lstm", type_, hidden=hidden)


def test_small_layers_of_many_timesteps_go_by_few() -> None:
    """The smallest that were measured have 64 units with many timesteps, and 16 with few."""
    for batch in (1, 64):
        assert training_choice(one_layer("float16", 64), batch) == _C.PERSISTENT_BACKEND
        assert training_choice(one_layer("float16", 16), batch) == CUDNN


def test_random_layers_that_the_table_has_not() -> None:
    """How often the choice is behind, and by how much in all."""
    gpu, points = rnn_ratios.read([str(RESULTS / "rnn_random_layers_h200.csv")])
    behind = []
    for point in points:
        for index, is_cudnn in enumerate(rnn_regret.choice(gpu, point)):
            times = point.times(index)
            behind.append(times[is_cudnn] / min(times))
    assert len(behind) > 750
    assert sum(ratio > 1.03 for ratio in behind) < 0.055 * len(behind)
    assert statistics.geometric_mean(behind) < 1.01


def test_small_batches_are_resident_and_large_ones_are_not() -> None:
    """Also beyond those that were measured, up to 2048 sequences."""
    for type_ in TYPES:
        kind = Kind("lstm", type_, hidden=1000)
        assert training_choice(kind, 8) == _C.PERSISTENT_BACKEND
        assert choices(kind, 2000) == choices(kind, 10000) == (CUDNN, CUDNN)
    for hidden in (2300, 2304):  # whose weights the mma-large kernels alone hold, aligned or not
        largest = _C.Rnn(_C.LSTM, _C.HALF, hidden, 1, 16, False)
        found = [largest.query_gpu("H200", [batch] * 64)["backend"] for batch in (8, 32, 128)]
        assert found == [_C.PERSISTENT_BACKEND, CUDNN, CUDNN]


def test_sequences_of_different_lengths_are_resident_where_cudnn_has_persistent_kernels_of_one_length_alone() -> None:
    """cuDNN runs them with kernels for each timestep."""
    for cell, type_, hidden in ((_C.LSTM, _C.FLOAT, 64), (_C.GRU, _C.FLOAT, 128), (_C.RNN_TANH, _C.FLOAT, 32)):
        rnn = _C.Rnn(cell, type_, hidden, 1, hidden, False)
        one_length, two = (rnn.query_gpu("H200", [64] * 31 + [last]) for last in (64, 63))
        assert CUDNN in (one_length["backend"], one_length["inference_backend"]), (cell, hidden)
        assert {two["backend"], two["inference_backend"]} == {_C.PERSISTENT_BACKEND}, (cell, hidden)
    large = _C.Rnn(_C.LSTM, _C.BFLOAT16, 1000, 1, 1000, False)
    assert {large.query_gpu("H200", [2000] * 31 + [last])["backend"] for last in (2000, 1999)} == {CUDNN}


def test_small_layers_of_cudnn_end_at_128_units() -> None:
    """Its kernels for small layers are ahead up to there, and a point tells less of layers that have others."""
    for hidden, expected in ((128, CUDNN), (129, _C.PERSISTENT_BACKEND), (192, _C.PERSISTENT_BACKEND)):
        assert choices(Kind("gru", "float32", hidden=hidden), 64)[0] == expected


def test_layers_with_multicast_kernels_go_by_others_that_have_them() -> None:
    """In float16, 512 units were measured up to 192 sequences; 448 and 576, far beyond, have other kernels."""
    assert {training_choice(one_layer("float16", 512), batch) for batch in (384, 1536)} == {_C.PERSISTENT_BACKEND}
    assert {training_choice(one_layer("float16", hidden), 1024) for hidden in (448, 576)} == {CUDNN}


def test_other_gpus_go_by_the_same_measurements() -> None:
    kind = one_layer("bfloat16", 1000)
    assert [training_choice(kind, batch, "H100") for batch in (8, 1024)] == [_C.PERSISTENT_BACKEND, CUDNN]


def few_and_many() -> Iterator[tuple[Kind, int]]:
    """Layers of which cuDNN is faster at training for 2 timesteps, and the resident kernels for many."""
    for kind, batches in ROWS.items():
        many = ROWS.get(kind._replace(steps=MANY), {})
        for batch in batches.keys() & many.keys():
            if kind.steps == 2 and batches[batch][1] < 90 and many[batch][1] > 110:
                yield kind, batch


def test_few_timesteps_go_to_cudnn() -> None:
    """Between measured numbers of timesteps, the choice changes once; more than the last make no difference."""
    found = list(few_and_many())
    assert {kind.projection > 0 for kind, _ in found} == {False, True}
    for kind, batch in found[:: max(len(found) // 20, 1)]:
        by_steps = [training_choice(kind._replace(steps=steps), batch) for steps in (2, 3, 5, 7, 12, 24, 48, 64, 500)]
        assert by_steps[0] == CUDNN, (kind, batch)
        assert by_steps == sorted(by_steps, reverse=True), (kind, batch)
        assert by_steps[-2:] == [_C.PERSISTENT_BACKEND] * 2, (kind, batch)


def test_more_timesteps_than_cudnn_takes_are_resident() -> None:
    """cuDNN 9 refuses 65,536 timesteps of small layers."""
    for kind in (Kind("gru", "tf32", hidden=64), Kind("lstm", "float32", hidden=64)):
        assert choices(kind._replace(steps=65535), 8) == (CUDNN, CUDNN)
        assert choices(kind._replace(steps=65536), 8) == (_C.PERSISTENT_BACKEND, _C.PERSISTENT_BACKEND)


def test_layers_remember_choices_apart_beyond_what_cudnn_takes() -> None:
    config = _layer.Config(_C.GRU, 8, 0, 1, False, 0.0, _layer.BACKENDS["best"])
    stack = _layer.layer(config, torch.float32, 8, torch.device("cpu"))
    keys = [stack._size_key([2] * steps, None)[0] for steps in (3, 64, 65535, 65536)]
    assert keys == [3, 64, 256, 65536]


def test_a_query_says_how_many_timesteps() -> None:
    kind, batch = next(few_and_many())
    rnn = _C.Rnn(MODES[kind.cell], TYPES[kind.type], kind.hidden, 1, kind.hidden, False)
    assert rnn.query_gpu("H200", [batch] * 2)["reason"].startswith(f"cuDNN is faster at N = {batch}, T = 2: in ")
    assert rnn.query_gpu("H200", [batch] * 64)["reason"] == ""


def test_a_large_stack_with_a_projection_and_few_timesteps_goes_to_cudnn_in_inference() -> None:
    rnn = _C.Rnn(_C.LSTM, _C.HALF, 2048, 8, 640, False, projection=640)
    for steps, expected in ((3, _C.PERSISTENT_BACKEND), (4, CUDNN), (16, _C.PERSISTENT_BACKEND)):
        assert rnn.query_gpu("H200", [4] * steps)["inference_backend"] == expected, steps


def test_a_layer_with_a_projection_and_few_timesteps_goes_to_cudnn_where_no_launch_a_timestep_serves_it() -> None:
    """More sequences than that has; another input size than the table has. Measured: 47 us for 96, 63 for 126."""
    rnn = _C.Rnn(_C.LSTM, _C.HALF, 2048, 1, 640, False, projection=640)
    for batch, steps in ((16, 3), (32, 4)):
        assert rnn.query_gpu("H200", [batch] * steps)["inference_backend"] == CUDNN
    assert rnn.query_gpu("H200", [8] * 3)["inference_backend"] == _C.PERSISTENT_BACKEND


def projected_backends(type_: int, hidden: int, projection: int, batch: int, steps: int, layers: int = 1) -> list[int]:
    rnn = _C.Rnn(_C.LSTM, type_, hidden, layers, hidden, False, projection=projection)
    found = rnn.query_gpu("H200", [batch] * steps)
    assert found["forward_engine"] == "projected"
    return [found["inference_backend"], found["backend"]]


def test_kernels_that_keep_a_projection_apart_serve_what_they_were_measured_to_be_faster_for() -> None:
    resident, cudnn = [_C.PERSISTENT_BACKEND] * 2, [CUDNN] * 2
    for batch, expected in ((1, resident), (8, resident), (16, resident), (64, cudnn), (500, cudnn)):
        for layer in ((_C.BFLOAT16, 2560, 640), (_C.HALF, 4096, 1024), (_C.HALF, 2400, 500)):
            assert projected_backends(*layer, batch, 100) == expected, (layer, batch)
    assert projected_backends(_C.FLOAT, 2048, 640, 64, 100) == resident
    assert projected_backends(_C.FLOAT, 2048, 640, 256, 100) == cudnn
    assert projected_backends(_C.HALF, 2560, 640, 8, 100, layers=4) == resident
    assert projected_backends(_C.HALF, 2560, 640, 64, 100, layers=4) == cudnn
    assert projected_backends(_C.HALF, 4096, 1024, 4, 2) == cudnn
    assert projected_backends(_C.HALF, 2560, 640, 4, 8, layers=4) == resident


def query(layer: Layer, backend: int) -> Info:
    capi.check("SetRNNBackend", rnnDesc=layer.rnn.pointer, backend=backend)
    return layer.query_gpu("H200")


def test_what_a_query_says() -> None:
    info = query(Layer(hidden=1536, batch=1024), 2)
    assert (info.supported, info.backend, info.inferenceBackend) == (1, CUDNN, CUDNN)
    text = rb"cuDNN is faster at N = 1024: in training \d\d %, in inference \d\d % of the resident kernels' time, "
    assert re.fullmatch(text + rb"measured on the H200", info.reason)
    small = query(Layer(hidden=1024, batch=8), 2)
    assert (small.backend, small.inferenceBackend, small.reason) == (BACKEND_PERSISTENT, BACKEND_PERSISTENT, b"")


def test_one_of_the_two_passes_may_go_to_cudnn() -> None:
    for kind, batches in ROWS.items():
        if kind == Kind("gru", "bfloat16", hidden=kind.hidden):
            for batch, (inference, training) in batches.items():
                if inference < 90 and training > 110:
                    info = query(Layer(mode=3, hidden=kind.hidden, batch=batch, data_type=capi.BFLOAT16), 2)
                    assert (info.backend, info.inferenceBackend) == (BACKEND_PERSISTENT, CUDNN)
                    assert info.reason.startswith(b"cuDNN is faster at N = %d: in inference" % batch)
                    return
    pytest.fail("no such row")


def test_who_is_asked_for_is_taken() -> None:
    info = query(Layer(hidden=1024, batch=1024), BACKEND_PERSISTENT)
    assert (info.backend, info.inferenceBackend, info.reason) == (BACKEND_PERSISTENT, BACKEND_PERSISTENT, b"")


def test_dropout_between_small_layers_counts() -> None:
    """In training alone: cuDNN's masks take two launches for each layer but the last in each pass."""
    found = []
    for layers, hidden, dropout in ((3, 64, 0.0), (3, 64, 0.3), (2, 32, 0.3)):
        rnn = _C.Rnn(_C.LSTM, _C.FLOAT, hidden, layers, 8, False, dropout=dropout)
        rnn.set_math(_C.TF32_MATH)
        if dropout > 0:
            rnn.set_dropout(_C.Handle.cpu(), dropout, 0, 0, 0)
        info = rnn.query_gpu("H200", [32 if hidden == 64 else 64] * 24)
        found.append((info["backend"], info["inference_backend"]))
    assert [training for training, _ in found] == [CUDNN, BACKEND_PERSISTENT, CUDNN]
    assert found[0][1] == found[1][1]


def test_a_plan_that_is_asked_for_is_taken() -> None:
    layer = Layer(hidden=1024, batch=1024)
    plan = ctypes.byref(capi.Plan(2, 0, 0, 1, 100))
    capi.check("SetRNNPlan", rnnDesc=layer.rnn.pointer, forward=plan, backward=plan)
    assert query(layer, 2).backend == BACKEND_PERSISTENT


def explained(module: torch.nn.Module, batch: int, **options: Any) -> Any:
    (layer,) = prnn.explain(module, batch, gpu="H200", **options).layers
    return layer


def test_explain() -> None:
    found = explained(torch.nn.LSTM(80, 1536), 1024, dtype=torch.bfloat16)
    assert (found.forward, found.backward, found.supported) == ("cudnn", "cudnn", True)
    assert found.notes[0].startswith("cuDNN is faster at N = 1024: in training ")
    module = prnn.nn.LSTM(80, 1024, backend="persistent", dtype=torch.bfloat16)
    assert explained(module, 1024).forward == "wgmma-multicast"


def test_explain_follows_the_switch_for_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = one_layer("tf32", 768), one_layer("float32", 768)
    (batch,) = [n for n in (192,) if [training_choice(k, n) for k in kinds] == [CUDNN, _C.PERSISTENT_BACKEND]]
    for allowed, engine in ((True, "cudnn"), (False, "mma")):
        monkeypatch.setattr(sys.modules["prnn.explain"], "allows_tf32_rnn", lambda allowed=allowed: allowed)
        assert explained(torch.nn.LSTM(80, 768), batch).forward == engine

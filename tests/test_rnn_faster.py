"""The choice of PRNN_BEST_BACKEND between cuDNN and the resident kernels, by measurements. No GPU is needed for the
rows of the GPU table."""

import ctypes
import itertools
import pathlib
import re
import statistics
import sys
from collections.abc import Iterator
from typing import Any

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
POINTS = sorted(RESULTS.glob("rnn_backends_*.csv"))
MODES = {"PRNN_LSTM": _C.LSTM, "PRNN_GRU": _C.GRU, "PRNN_RNN_TANH": _C.RNN_TANH}
TYPES = {"kBfloat16": _C.BFLOAT16, "kHalf": _C.HALF, "kTf32": _C.FLOAT, "kFloat32": _C.FLOAT}
STACKS = {"kOneLayer": (1, False), "kSeveralLayers": (3, False), "kTwoDirections": (1, True)}
PROJECTED = {"kProjected": (1, False), "kProjectedLayers": (4, False)}  # to H / 2, and apart to H / 4
APART = {"kProjectedApart": (1, False), "kProjectedApartLayers": (4, False)}
EQUAL = 100  # percent


def table_lines() -> list[str]:
    """The H200's rows, as the build makes them."""
    return list(rnn_ratios.table(rnn_ratios.read([str(RESULTS / "rnn_backends_h200.csv")])[1]))


Kind = tuple[str, str, str, int, int]  # cell, precision, stack, timesteps, hidden size


def measured() -> dict[Kind, dict[int, tuple[int, int]]]:
    """The batches of each row, with the percentages of inference and training."""
    row = re.compile(r"\{(PRNN_\w+), Precision::(\w+), Stack::(\w+), (\d+), (\d+), \{(.*)\}\},")
    rows = {}
    for line in table_lines():
        mode, precision, stack, steps, hidden, batches = row.fullmatch(line).groups()
        found = re.findall(r"\{(\d+), (\d+), (\d+)\}", batches)
        rows[mode, precision, stack, int(steps), int(hidden)] = {int(n): (int(a), int(b)) for n, a, b in found}
    return rows


ROWS = measured()
MANY = rnn_ratios.STEPS[-1]


def choices(kind: Kind, batch: int, gpu: str = "H200") -> tuple[int, int] | None:
    """The backends of inference and training for a row's layer, None if that is not resident."""
    mode, precision, stack, steps, hidden = kind
    layers, both = (STACKS | PROJECTED | APART)[stack]
    projection = hidden // 2 if stack in PROJECTED else hidden // 4 if stack in APART else 0
    rnn = _C.Rnn(MODES[mode], TYPES[precision], hidden, layers, hidden, both, projection=projection)
    if precision == "kTf32":
        rnn.set_math(_C.TF32_MATH)
    found = rnn.query_gpu(gpu, [batch] * steps)
    return (found["inference_backend"], found["backend"]) if found["supported"] else None


def training_choice(kind: Kind, batch: int, gpu: str = "H200") -> int | None:
    found = choices(kind, batch, gpu)
    return found[1] if found else None


def test_every_row_has_growing_batches() -> None:
    assert len(ROWS) == len(table_lines()) > 200
    for batches in ROWS.values():
        assert list(batches) == sorted(batches)
        assert all(0 < percent <= 255 for both in batches.values() for percent in both)
    for (*kind, hidden), (*next_kind, larger) in itertools.pairwise(ROWS):
        assert kind != next_kind or hidden < larger
    kinds = [kind for kind, _ in itertools.groupby(ROWS, key=lambda row: row[:4])]
    assert len(kinds) == len(set(kinds))  # the rows of a kind follow each other
    for stack in STACKS:
        assert {kind[:2] for kind in ROWS if kind[2] == stack} == {(m, p) for m in MODES for p in TYPES}
    for stack in PROJECTED | APART:
        assert {kind[:2] for kind in ROWS if kind[2] == stack} == {("PRNN_LSTM", p) for p in TYPES}


def is_step_by_step(kind: Kind, batch: int) -> bool:
    """Perhaps: few timesteps of few sequences in inference, which are resident without a look at the table."""
    return kind[3] <= 4 and batch <= 32


def is_short_stack(kind: Kind) -> bool:
    """Large layers with merged matrices and few timesteps, which go to cuDNN in inference whatever the table says."""
    return kind[2] == "kProjectedLayers" and kind[3] <= 12 and kind[4] > 1024


@pytest.mark.parametrize("first", range(8))
def test_a_measured_point_goes_to_the_faster_one(first: int) -> None:
    """Some points of every kind: by the row's own number, whatever lies around it."""
    for place, (kind, batches) in enumerate(list(ROWS.items())[first::8]):
        batch = list(batches)[place % len(batches)]
        found = choices(kind, batch)
        for is_training, percent in enumerate(batches[batch]):
            expected = CUDNN if percent < EQUAL else _C.PERSISTENT_BACKEND
            if percent == EQUAL or (not is_training and (is_step_by_step(kind, batch) or is_short_stack(kind))):
                continue
            assert found is None or found[is_training] == expected, (kind, batch, is_training)


def test_measurements_are_of_rows_of_the_gpu_table() -> None:
    """Ratios under another name would serve no GPU."""
    for file in POINTS:
        gpu, points = rnn_ratios.read([str(file)])
        assert gpu in _C.gpu_names()
        assert file.stem == f"rnn_backends_{gpu.lower().replace(' ', '_')}"
        assert all(min(point.times(0) + point.times(1)) > 0 for point in points)


def test_measurements_say_which_kernels_keep_a_projection_apart() -> None:
    """Their ratios are rows of their own, which a plan finds by its engine."""
    for file in POINTS:
        gpu, points = rnn_ratios.read([str(file)])
        for point in [point for point in points if point.projection > 0][::3]:
            shape = (point.hidden, point.layers, point.hidden, point.directions == 2)
            rnn = _C.Rnn(_C.LSTM, rnn_regret.TYPES[point.type], *shape, projection=point.projection)
            if point.type == "tf32":
                rnn.set_math(_C.TF32_MATH)
            found = rnn.query_gpu(gpu, [point.batch] * point.steps)
            assert (found["forward_engine"] == "projected") == point.apart, point


def point(type_: str, hidden: int, batch: int, ratio: float, layers: int = 1, cell: str = "lstm") -> rnn_ratios.Point:
    return rnn_ratios.Point(cell, type_, layers, 1, hidden, batch, MANY, 1, 1, ratio, 2 * ratio)


def half_rows(points: list[rnn_ratios.Point], stack: str = "kSeveralLayers") -> dict[int, dict[int, float]]:
    """cuDNN's time in inference of LSTMs in float16 by H and N."""
    rows = rnn_ratios.ratios_of(points)
    found = {h: row for (cell, t, s, _, h), row in rows.items() if (cell, t, s) == ("lstm", "float16", stack)}
    return {hidden: {batch: round(ratios[0], 6) for batch, ratios in row.items()} for hidden, row in found.items()}


def test_16_bit_types_share_what_was_measured_in_one() -> None:
    """Large layers share rows, and the batches for which cuDNN has no other kernels in float16."""
    points = [point("bfloat16", hidden, batch, batch / 8) for hidden in (128, 512, 1024) for batch in (8, 128, 256)]
    points += [point("float16", 512, 8, 3), point("float16", 512, 512, 4)]
    assert half_rows(points, "kOneLayer") == {512: {8: 3, 256: 32, 512: 4}, 1024: {8: 1, 128: 16, 256: 32}}


def test_small_stacks_in_float16_differ_from_one_layer_as_in_tf32() -> None:
    one = [point("tf32", 64, 8, 2), point("float16", 64, 8, 3), point("tf32", 64, 64, 2), point("float16", 64, 32, 3)]
    stack = [point("tf32", 64, batch, 1, 3) for batch in (8, 32, 64)] + [point("bfloat16", 64, 8, 9, 3)]
    assert half_rows(one + stack) == {64: {8: 1.5}}
    assert half_rows([*one, *stack, point("float16", 64, 64, 5, 3)]) == {64: {64: 5}}


def crossing(batches: dict[int, tuple[int, int]]) -> tuple[int, int] | None:
    """Neighbouring batches between which the choice for training changes from the resident kernels to cuDNN."""
    for low, high in itertools.pairwise(batches):
        if batches[low][1] > 102 and batches[high][1] < 94 and low >= 8:
            return low, high
    return None


CROSSINGS = [(kind, found) for kind, batches in list(ROWS.items())[::9] if (found := crossing(batches))]


def test_between_two_measured_batches_the_choice_changes() -> None:
    assert len(CROSSINGS) >= 5
    for kind, (low, high) in CROSSINGS:
        if choices(kind, low) is not None:
            assert training_choice(kind, low) == _C.PERSISTENT_BACKEND
            assert training_choice(kind, high) == CUDNN


def one_layer(precision: str, hidden: int) -> Kind:
    return "PRNN_LSTM", precision, "kOneLayer", MANY, hidden


def test_one_sequence_more_than_a_pass_takes_is_another_pass() -> None:
    """512 sequences of GRU 1024 are one pass over the weights; 513 to 1024 are two, which cuDNN beats in inference."""
    gru = ("PRNN_GRU", "kBfloat16", "kOneLayer", MANY, 1024)
    found = [choices(gru, batch) for batch in (512, 513, 768)]
    assert [choice and choice[0] for choice in found] == [_C.PERSISTENT_BACKEND, CUDNN, CUDNN]


def test_units_more_than_two_replicas_hold_are_another_pass() -> None:
    """Up to 1056 units, an LSTM has two replicas; 80 sequences of a larger one are two passes."""
    assert training_choice(one_layer("kBfloat16", 1056), 80) == _C.PERSISTENT_BACKEND
    assert training_choice(one_layer("kBfloat16", 1064), 80) == CUDNN


def test_cudnn_is_slower_where_rows_are_not_aligned() -> None:
    found = {hidden: training_choice(one_layer("kHalf", hidden), 256) for hidden in (888, 900, 904)}
    assert found == {888: CUDNN, 900: _C.PERSISTENT_BACKEND, 904: CUDNN}


def test_kernels_of_one_size_that_are_newer_than_its_ratios_do_not_move_its_neighbours() -> None:
    """LSTM and GRU 512 in tf32 have had wgmma kernels since they were measured; those of 480 units are the same."""
    for cell, batch in (("PRNN_LSTM", 160), ("PRNN_GRU", 128)):
        for hidden in (384, 480, 512):
            assert training_choice((cell, "kTf32", "kOneLayer", MANY, hidden), batch) == _C.PERSISTENT_BACKEND


def test_small_layers_of_many_timesteps_go_by_few() -> None:
    """The smallest that were measured have 64 units with many timesteps, and 16 with few."""
    for batch in (1, 64):
        assert training_choice(one_layer("kHalf", 64), batch) == _C.PERSISTENT_BACKEND
        assert training_choice(one_layer("kHalf", 16), batch) == CUDNN


def test_random_layers_that_the_table_has_not() -> None:
    """How often the choice is behind, and by how much in all: in a table of ratios that knows nothing of one layer's
    when it is asked for a stack's, 7.5 % and 1.5 %; with the whole of a short call's estimate, 5.1 % and 0.8 %."""
    gpu, points = rnn_ratios.read([str(RESULTS / "rnn_random_layers_h200.csv")])
    behind = []
    for point in points:
        for index, is_cudnn in enumerate(rnn_regret.choice(gpu, point)):
            times = point.times(index)
            behind.append(times[is_cudnn] / min(times))
    assert len(behind) > 1700
    assert sum(ratio > 1.03 for ratio in behind) < 0.047 * len(behind)
    assert statistics.geometric_mean(behind) < 1.0065


def test_small_batches_are_resident_and_large_ones_are_not() -> None:
    for mode in ("PRNN_LSTM", "PRNN_GRU"):
        for precision in TYPES:
            kind = (mode, precision, "kOneLayer", MANY, 1000)
            assert training_choice(kind, 8) == _C.PERSISTENT_BACKEND
            assert training_choice(kind, 2000) == CUDNN


def test_sequences_of_different_lengths_are_resident_where_cudnn_has_persistent_kernels_of_one_length_alone() -> None:
    """cuDNN runs them with kernels for each timestep."""
    for cell, type_, hidden in ((_C.LSTM, _C.FLOAT, 64), (_C.GRU, _C.FLOAT, 128), (_C.RNN_TANH, _C.FLOAT, 32)):
        rnn = _C.Rnn(cell, type_, hidden, 1, hidden, False)
        one_length, two = (rnn.query_gpu("H200", [64] * 31 + [last]) for last in (64, 63))
        assert CUDNN in (one_length["backend"], one_length["inference_backend"]), (cell, hidden)
        assert {two["backend"], two["inference_backend"]} == {_C.PERSISTENT_BACKEND}, (cell, hidden)
    large = _C.Rnn(_C.LSTM, _C.BFLOAT16, 1000, 1, 1000, False)
    assert {large.query_gpu("H200", [2000] * 31 + [last])["backend"] for last in (2000, 1999)} == {CUDNN}


def test_kernels_of_one_kind_go_together() -> None:
    """Between two measured sizes, those that share the larger one's kernels have its choice: resident ones above 2112
    units (LSTM in 16 bits), cuDNN's above 128 (float)."""
    large, last = (("PRNN_LSTM", "kHalf", "kOneLayer", MANY, hidden) for hidden in (2300, 2112))
    assert [training_choice(large, batch) for batch in (8, 32)] == [_C.PERSISTENT_BACKEND, CUDNN]
    assert training_choice(last, 32) == _C.PERSISTENT_BACKEND
    for hidden, expected in ((128, CUDNN), (129, _C.PERSISTENT_BACKEND), (192, _C.PERSISTENT_BACKEND)):
        found = choices(("PRNN_GRU", "kFloat32", "kOneLayer", MANY, hidden), 64)
        assert found is not None
        assert found[0] == expected


def test_other_gpus_go_by_the_same_measurements() -> None:
    kind = one_layer("kBfloat16", 1000)
    assert [training_choice(kind, batch, "H100") for batch in (8, 1024)] == [_C.PERSISTENT_BACKEND, CUDNN]


def few_and_many() -> Iterator[tuple[Kind, int]]:
    """Layers of which cuDNN is faster at training for 2 timesteps, and the resident kernels for many."""
    for kind, batches in ROWS.items():
        many = ROWS.get((*kind[:3], MANY, kind[4]), {})
        for batch in batches.keys() & many.keys():
            if kind[3] == 2 and batches[batch][1] < 90 and many[batch][1] > 110:
                yield kind, batch


def test_few_timesteps_go_to_cudnn() -> None:
    """Between measured numbers of timesteps, the choice changes once; more than the last make no difference."""
    found = list(few_and_many())
    assert {kind[2] for kind, _ in found} >= {"kOneLayer", "kProjected"}
    for kind, batch in found[:: max(len(found) // 20, 1)]:
        by_steps = [training_choice((*kind[:3], steps, kind[4]), batch) for steps in (2, 3, 5, 7, 12, 24, 48, 64, 500)]
        assert by_steps[0] == CUDNN, (kind, batch)
        assert by_steps == sorted(by_steps, reverse=True), (kind, batch)
        assert by_steps[-2:] == [_C.PERSISTENT_BACKEND] * 2, (kind, batch)


def test_more_timesteps_than_cudnn_takes_are_resident() -> None:
    """cuDNN 9 refuses 65,536 timesteps of small layers."""
    for kind in (("PRNN_GRU", "kTf32", "kOneLayer"), ("PRNN_LSTM", "kFloat32", "kOneLayer")):
        assert choices((*kind, 65535, 64), 8) == (CUDNN, CUDNN)
        assert choices((*kind, 65536, 64), 8) == (_C.PERSISTENT_BACKEND, _C.PERSISTENT_BACKEND)


def test_layers_remember_choices_apart_beyond_what_cudnn_takes() -> None:
    config = _layer.Config(_C.GRU, 8, 0, 1, False, 0.0, _layer.BACKENDS["best"])
    stack = _layer.layer(config, torch.float32, 8, torch.device("cpu"))
    keys = [stack._size_key([2] * steps, None)[0] for steps in (3, 64, 65535, 65536)]
    assert keys == [3, 64, 256, 65536]


def test_three_timesteps_go_with_two() -> None:
    """Where two go to cuDNN and four do not by as much: cuDNN has other algorithms from four on."""
    found = 0
    for kind, batches in ROWS.items():
        four = ROWS.get((*kind[:3], 4, kind[4]), {})
        for batch in batches.keys() & four.keys() if kind[3] == 2 else ():
            if abs(batches[batch][1] * four[batch][1] / EQUAL**2 - 1) < 0.02 and batches[batch][1] < 90:
                assert training_choice((*kind[:3], 3, kind[4]), batch) == CUDNN, (kind, batch)
                found += 1
    assert found > 10


def test_a_query_says_how_many_timesteps() -> None:
    kind, batch = next(found for found in few_and_many() if found[0][2] == "kOneLayer")
    rnn = _C.Rnn(MODES[kind[0]], TYPES[kind[1]], kind[4], 1, kind[4], False)
    assert rnn.query_gpu("H200", [batch] * 2)["reason"].startswith(f"cuDNN is faster at N = {batch}, T = 2: in ")
    assert rnn.query_gpu("H200", [batch] * 64)["reason"] == ""


def test_a_large_stack_with_a_projection_and_few_timesteps_goes_to_cudnn_in_inference() -> None:
    rnn = _C.Rnn(_C.LSTM, _C.HALF, 2048, 8, 640, False, projection=640)
    for steps, expected in ((3, _C.PERSISTENT_BACKEND), (4, CUDNN), (12, CUDNN), (13, _C.PERSISTENT_BACKEND)):
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
    assert projected_backends(_C.FLOAT, 2048, 640, 65, 100) == cudnn  # not measured
    assert projected_backends(_C.HALF, 2560, 640, 8, 100, layers=4) == resident
    assert projected_backends(_C.HALF, 2560, 640, 9, 100, layers=4) == cudnn  # not measured
    assert projected_backends(_C.HALF, 4096, 1024, 4, 2) == cudnn
    assert projected_backends(_C.HALF, 2560, 640, 4, 8, layers=4) == resident
    rnn = _C.Rnn(_C.LSTM, _C.HALF, 2560, 4, 2560, False, projection=640)
    assert "no measurement says" in rnn.query_gpu("H200", [9] * 100)["reason"]


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
        if kind[:4] == ("PRNN_GRU", "kBfloat16", "kOneLayer", MANY):
            for batch, (inference, training) in batches.items():
                if inference < 90 and training > 110:
                    info = query(Layer(mode=3, hidden=kind[4], batch=batch, data_type=capi.BFLOAT16), 2)
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
    kinds = one_layer("kTf32", 768), one_layer("kFloat32", 768)
    (batch,) = [n for n in (192,) if [training_choice(k, n) for k in kinds] == [CUDNN, _C.PERSISTENT_BACKEND]]
    for allowed, engine in ((True, "cudnn"), (False, "mma")):
        monkeypatch.setattr(sys.modules["prnn.explain"], "allows_tf32_rnn", lambda allowed=allowed: allowed)
        assert explained(torch.nn.LSTM(80, 768), batch).forward == engine

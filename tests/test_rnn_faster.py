"""Which backend PRNN_BEST_BACKEND takes: the choice between cuDNN and the resident kernels, by measurements. No GPU is
needed for the rows of the GPU table."""

import ctypes
import itertools
import pathlib
import re
import sys
from typing import Any

import capi
import pytest
import torch
from test_rnn_query import BACKEND_PERSISTENT, Info, Layer

import prnn
from prnn import _C
from prnn.bench import rnn_ratios

CUDNN = 1
SOURCES = pathlib.Path(__file__).parent.parent / "src/rnn/plan"
MODES = {"PRNN_LSTM": _C.LSTM, "PRNN_GRU": _C.GRU, "PRNN_RNN_TANH": _C.RNN_TANH}
TYPES = {"kBfloat16": _C.BFLOAT16, "kHalf": _C.HALF, "kTf32": _C.FLOAT, "kFloat32": _C.FLOAT}
STACKS = {"kOneLayer": (1, False), "kSeveralLayers": (3, False), "kTwoDirections": (1, True)}
PROJECTED = {"kProjected": (1, False), "kProjectedLayers": (4, False)}
MARGIN = 98  # percent


def table_lines() -> list[str]:
    names = [cell + part for cell in ("gru", "lstm", "rnn") for part in ("", "_few_timesteps")]
    files = [SOURCES / f"measured_ratios/{name}.inc" for name in names]
    return [line for file in files for line in file.read_text().splitlines() if "Stack::" in line]


def measured() -> tuple[list[int], list[tuple[tuple[str, ...], list[int]]]]:
    """The batches, and of each row its kind and its percentages."""
    (batches,) = re.findall(r"kMeasuredBatches\[\] = \{([\d, \n]+)\}", (SOURCES / "faster.h").read_text())
    row = re.compile(r"\{(PRNN_\w+), Precision::(\w+), Stack::(\w+), (\w+), (\d+), (\d+), \{([\d, ]+)\}\}")
    rows = row.findall("\n".join(table_lines()))
    return numbers(batches), [(row[:6], numbers(row[6])) for row in rows]


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


BATCHES, ROWS = measured()


def choice(kind: tuple[str, ...], batch: int, gpu: str = "H200") -> int | None:
    """The backend for a row's layer, None if that is not resident."""
    mode, precision, stack, training, steps, hidden = kind
    layers, both = (STACKS | PROJECTED)[stack]
    projection = int(hidden) // 2 if stack in PROJECTED else 0
    rnn = _C.Rnn(MODES[mode], TYPES[precision], int(hidden), layers, int(hidden), both, projection=projection)
    if precision == "kTf32":
        rnn.set_math(_C.TF32_MATH)
    found = rnn.query_gpu(gpu, [batch] * int(steps))
    backend: int = found["backend" if training == "true" else "inference_backend"]
    return backend if found["supported"] else None


def test_every_row_has_a_percentage_for_each_batch() -> None:
    assert len(ROWS) > 200
    assert all(len(percent) == len(BATCHES) and min(percent) > 0 and max(percent) <= 255 for _, percent in ROWS)
    kinds = [kind for kind, _ in ROWS]
    assert len(set(kinds)) == len(kinds)
    for (*kind, hidden), (*next_kind, larger) in itertools.pairwise(kinds):
        assert kind != next_kind or int(hidden) < int(larger)
    for stack in STACKS:
        assert {kind[:2] for kind in kinds if kind[2] == stack} == {(m, p) for m in MODES for p in TYPES}
    for stack in PROJECTED:
        assert {kind[:2] for kind in kinds if kind[2] == stack} == {("PRNN_LSTM", p) for p in TYPES}


@pytest.mark.parametrize("first", range(8))
def test_a_measured_point_goes_to_the_faster_one(first: int) -> None:
    """Some points of every kind: by the row's own number, whatever lies around it."""
    for place, (kind, percent) in enumerate(ROWS[first::8]):
        column = place % len(BATCHES)
        expected = CUDNN if percent[column] < MARGIN else _C.PERSISTENT_BACKEND
        assert choice(kind, BATCHES[column]) in (expected, None), (kind, BATCHES[column])


def test_the_table_is_that_of_the_measurements() -> None:
    results = pathlib.Path(__file__).parent.parent / "bench/results"
    _, points = rnn_ratios.read(str(file) for file in sorted(results.glob("rnn_backends_*.csv")))
    assert [line.partition("{PRNN")[2] for line in table_lines()] == [
        line.partition("{PRNN")[2] for line in rnn_ratios.table(points, "H200")
    ]


@pytest.mark.parametrize(
    ("times", "is_there"), [({8: 4.0, 64: 2.0}, False), ({8: 4.0, 64: 0.5}, True), ({8: 4.0, 256: 2.0}, True)]
)
def test_measurements_that_were_cut_off_say_nothing_of_larger_batches(times: dict[int, float], is_there: bool) -> None:
    points = [
        rnn_ratios.Point("lstm", "tf32", 1, 1, 320, batch, 32, 1.0, 1.0, cudnn, cudnn) for batch, cudnn in times.items()
    ]
    assert bool(list(rnn_ratios.table(points, "H200"))) == is_there


def crossing(kind: tuple[str, ...], percent: list[int]) -> tuple[int, int] | None:
    """Neighbouring batches between which a choice changes from the resident kernels to cuDNN."""
    for low, high, before, after in zip(BATCHES, BATCHES[1:], percent, percent[1:], strict=False):
        if before >= MARGIN > after and low >= 8:
            return low, high
    return None


def test_between_two_measured_batches_the_choice_changes_once() -> None:
    seen = 0
    for kind, percent in ROWS[::9]:
        found = crossing(kind, percent)
        if found is None or choice(kind, found[0]) is None:
            continue
        low, high = found
        choices = [choice(kind, batch) for batch in range(low, high + 1, max((high - low) // 16, 1))]
        assert choices == sorted(choices), (kind, low, high)
        assert choices[0] == _C.PERSISTENT_BACKEND
        assert choice(kind, high) == CUDNN
        seen += 1
    assert seen >= 5


def test_sequences_that_fill_a_tile_go_together() -> None:
    """The resident kernels take as long for 9 sequences as for 16."""
    for kind, percent in ROWS[::9]:
        found = crossing(kind, percent)
        if found is not None:
            for first in range(found[0] + 1, found[1], 8):
                assert len({choice(kind, batch) for batch in range(first, first + 8)}) == 1


def one_layer(precision: str, hidden: int, training: bool) -> tuple[str, ...]:
    return "PRNN_LSTM", precision, "kOneLayer", str(training).lower(), "64", str(hidden)


def test_one_sequence_more_than_a_pass_takes_is_another_pass() -> None:
    """128 sequences of LSTM 1024 are one pass over the weights, 129 to 256 are two, which cuDNN is ahead of."""
    assert choice(one_layer("kBfloat16", 1024, True), 128) == _C.PERSISTENT_BACKEND
    for batch in (129, 192):
        assert choice(one_layer("kBfloat16", 1024, True), batch) == CUDNN


def test_small_batches_are_resident_and_large_ones_are_not() -> None:
    for mode in ("PRNN_LSTM", "PRNN_GRU"):
        for precision in TYPES:
            kind = (mode, precision, "kOneLayer", "true", "64", "1000")
            assert choice(kind, 8) == _C.PERSISTENT_BACKEND
            assert choice(kind, 2000) == CUDNN


def test_kernels_of_one_kind_go_together() -> None:
    """Between two measured sizes, those that share the larger one's kernels have its choice: resident ones above 2112
    units (LSTM in 16 bits), cuDNN's above 128 (float)."""
    large, last = (("PRNN_LSTM", "kHalf", "kOneLayer", "true", "64", str(hidden)) for hidden in (2300, 2112))
    assert [choice(large, batch) for batch in (8, 32)] == [_C.PERSISTENT_BACKEND, CUDNN]
    assert choice(last, 32) == _C.PERSISTENT_BACKEND
    for hidden, expected in ((128, CUDNN), (129, _C.PERSISTENT_BACKEND), (192, _C.PERSISTENT_BACKEND)):
        assert choice(("PRNN_GRU", "kFloat32", "kOneLayer", "false", "64", str(hidden)), 64) == expected


def test_other_gpus_go_by_the_same_measurements() -> None:
    kind = one_layer("kBfloat16", 1024, True)
    assert [choice(kind, batch, "H100") for batch in (8, 1024)] == [_C.PERSISTENT_BACKEND, CUDNN]


@pytest.mark.parametrize(
    ("hidden", "layers", "batch", "few"),
    [
        (512, 1, 40, range(1, 4)),
        (1024, 5, 40, range(1, 6)),
        (2048, 1, 40, range(1, 9)),
        (512, 1, 16, range(0)),  # step by step, 4 timesteps
        (1024, 5, 16, range(4, 6)),
        (2048, 1, 8, range(5, 9)),
        (2048, 1, 9, range(1, 9)),
    ],
)
def test_a_projection_and_few_timesteps_go_to_cudnn_in_inference(
    hidden: int, layers: int, batch: int, few: range
) -> None:
    rnn = _C.Rnn(_C.LSTM, _C.HALF, hidden, layers, hidden, False, projection=hidden // 2)
    for steps in (*range(1, 10), 100):
        found = rnn.query_gpu("H200", [batch] * steps)
        assert found["backend"] == _C.PERSISTENT_BACKEND
        assert found["inference_backend"] == (CUDNN if steps in few else _C.PERSISTENT_BACKEND), steps
        text = f"in inference, cuDNN is faster for a projection and T = {steps}"
        assert found["reason"] == (text if steps in few else "")
    plain = _C.Rnn(_C.LSTM, _C.HALF, hidden, layers, hidden, False)
    assert plain.query_gpu("H200", [4] * 2)["inference_backend"] == _C.PERSISTENT_BACKEND


def query(layer: Layer, backend: int) -> Info:
    capi.check("SetRNNBackend", rnnDesc=layer.rnn.pointer, backend=backend)
    return layer.query_gpu("H200")


def test_what_a_query_says() -> None:
    info = query(Layer(hidden=1024, batch=1024), 2)
    assert (info.supported, info.backend, info.inferenceBackend) == (1, CUDNN, CUDNN)
    text = rb"cuDNN is faster at N = 1024: in training \d\d %, in inference \d\d % of the resident kernels' time, "
    assert re.fullmatch(text + rb"measured on the H200", info.reason)
    small = query(Layer(hidden=1024, batch=8), 2)
    assert (small.backend, small.inferenceBackend, small.reason) == (BACKEND_PERSISTENT, BACKEND_PERSISTENT, b"")


def test_one_of_the_two_passes_may_go_to_cudnn() -> None:
    for kind, percent in ROWS:
        if kind[:5] == ("PRNN_GRU", "kBfloat16", "kOneLayer", "false", "64"):
            (training,) = [p for k, p in ROWS if k == (*kind[:3], "true", *kind[4:])]
            for batch, inference, step in zip(BATCHES, percent, training, strict=True):
                if inference < 90 and step > 110:
                    info = query(Layer(mode=3, hidden=int(kind[5]), batch=batch, data_type=capi.BFLOAT16), 2)
                    assert (info.backend, info.inferenceBackend) == (BACKEND_PERSISTENT, CUDNN)
                    assert info.reason.startswith(b"cuDNN is faster at N = %d: in inference" % batch)
                    return
    pytest.fail("no such row")


def test_who_is_asked_for_is_taken() -> None:
    info = query(Layer(hidden=1024, batch=1024), BACKEND_PERSISTENT)
    assert (info.backend, info.inferenceBackend, info.reason) == (BACKEND_PERSISTENT, BACKEND_PERSISTENT, b"")


def test_a_plan_that_is_asked_for_is_taken() -> None:
    layer = Layer(hidden=1024, batch=1024)
    plan = ctypes.byref(capi.Plan(2, 0, 0, 1, 100))
    capi.check("SetRNNPlan", rnnDesc=layer.rnn.pointer, forward=plan, backward=plan)
    assert query(layer, 2).backend == BACKEND_PERSISTENT


def explained(module: torch.nn.Module, batch: int, **options: Any) -> Any:
    (layer,) = prnn.explain(module, batch, gpu="H200", **options).layers
    return layer


def test_explain() -> None:
    found = explained(torch.nn.LSTM(80, 1024), 1024, dtype=torch.bfloat16)
    assert (found.forward, found.backward, found.supported) == ("cudnn", "cudnn", True)
    assert found.notes[0].startswith("cuDNN is faster at N = 1024: in training ")
    module = prnn.nn.LSTM(80, 1024, backend="persistent", dtype=torch.bfloat16)
    assert explained(module, 1024).forward == "wgmma-split-k"


def test_explain_follows_the_switch_for_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = one_layer("kTf32", 512, True), one_layer("kFloat32", 512, True)
    (batch,) = [n for n in (256,) if [choice(k, n) for k in kind] == [CUDNN, _C.PERSISTENT_BACKEND]]
    for allowed, engine in ((True, "cudnn"), (False, "mma")):
        monkeypatch.setattr(sys.modules["prnn.explain"], "allows_tf32_rnn", lambda allowed=allowed: allowed)
        assert explained(torch.nn.LSTM(80, 512), batch).forward == engine

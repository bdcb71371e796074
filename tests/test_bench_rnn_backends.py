"""`prnn bench backends`: the points that it measures, and when it stops. No GPU is needed: times are made up."""

import json
import pathlib
import time
from collections.abc import Callable

import pytest

import prnn
from prnn.bench import rnn_backends, rnn_ratios
from prnn.bench.rnn_backends import Kind, Row, Task

SMALL, LARGE = Kind("lstm", "float16", 1, 1, 64), Kind("gru", "tf32", 3, 1, 1024)


def made_up(cudnn: float) -> Callable[..., Row]:
    """Rows of which cuDNN takes so many times as long."""

    def measure(kind: Kind, batch: int, steps: int, *_: object) -> Row:
        if batch == 13:
            raise prnn.NotSupportedError("the hidden size is not served")
        return Row(kind, batch, steps, (1.0, 2.0), (cudnn, 2 * cudnn))

    return measure


def batches_of(task: Task, until: float = float("inf")) -> list[int]:
    return [row.batch for row in rnn_backends.rows_of(task, until)]


def test_batches_grow_until_cudnn_is_well_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rnn_backends, "measure", made_up(0.5))
    batches = (1, 64, 128, 256, 512)
    assert batches_of(Task(LARGE, batches)) == [1, 64, 128, 256]  # three of at least 65536 states
    assert batches_of(Task(LARGE, batches, takes_all=True)) == list(batches)
    assert batches_of(Task(SMALL, batches)) == list(batches)
    monkeypatch.setattr(rnn_backends, "measure", made_up(2))
    assert batches_of(Task(LARGE, batches)) == list(batches)


def test_timesteps_are_fewer_where_there_are_many_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rnn_backends, "measure", made_up(1))
    assert [row.steps for row in rnn_backends.rows_of(Task(LARGE, (1, 64, 2048)))] == [96, 64, 32]
    assert [row.steps for row in rnn_backends.rows_of(Task(LARGE, (1, 64), 7))] == [7, 7]


def test_where_one_backend_serves_none_the_reason_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rnn_backends, "measure", made_up(1))
    assert batches_of(Task(SMALL, (1, 13, 64))) == [1]
    assert "| lstm | float16 | 1 x 1 | 64 | 13 | | the hidden size is not served |" in capsys.readouterr().out


def test_no_point_is_begun_after_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rnn_backends, "measure", made_up(1))
    assert batches_of(Task(SMALL, (1, 64)), time.monotonic() - 1) == []


def test_points_of_files_are_measured_anew(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rnn_backends, "measure", made_up(0.25))
    rows = [Row(kind, batch, steps, (1, 1), (1, 1)) for kind, batch, steps in ((LARGE, 512, 4), (SMALL, 8, 32))]
    rows += [Row(LARGE, batch, 4, (1, 1), (1, 1)) for batch in (128, 256, 1024, 2048)]
    rows.append(Row(Kind("lstm", "bfloat16", 4, 1, 512, projection=256), 8, 16, (1, 1), (1, 1), is_apart=True))
    file = str(tmp_path / "old.csv")
    rnn_ratios.write(file, "H200", map(rnn_backends.flat, rows))
    gpu, points = rnn_ratios.read([file])
    assert gpu == "H200"
    tasks = rnn_backends.tasks_of(points)
    assert [(task.kind.hidden, list(task.batches)) for task in tasks] == [
        (1024, [128, 256, 512, 1024, 2048]),
        (64, [8]),
        (512, [8]),
    ]
    again = [rnn_backends.flat(row) for task in tasks for row in rnn_backends.rows_of(task)]
    sizes = {(*point[:7], point.projection) for point in again}
    assert sizes == {(*point[:7], point.projection) for point in points}
    assert [point.apart for point in points] == [0] * 6 + [1]
    assert all(point.cudnn == 0.25 * point.resident for point in again)


def test_random_layers_are_those_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = rnn_backends.random_tasks(300, 1)
    assert tasks == rnn_backends.random_tasks(300, 1)
    assert tasks != rnn_backends.random_tasks(300, 2)
    assert {task.kind.type for task in tasks} == set(rnn_backends.TYPES)
    assert {(task.kind.layers, task.kind.directions) for task in tasks} == set(rnn_backends.RANDOM_STACKS)
    monkeypatch.setattr(rnn_backends, "measure", made_up(0.1))
    rows = [row for task in tasks for row in rnn_backends.rows_of(task)]
    assert [(row.kind, row.batch, row.steps) for row in rows] == [(t.kind, *t.batches, t.steps) for t in tasks]


def test_rows_for_json(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has what was measured so far, and cuDNN's algorithms, which the table has, too."""
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a card")
    kind = Kind("lstm", "float16", 1, 1, 64, dropout=0.1)
    rows = [Row(kind, batch, 32, (1.0, 2.0), (2.0, 6.0), {"static": (2.0, 6.5)}) for batch in (1, 8)]
    path = tmp_path / "rows.json"
    for count, row in enumerate(rnn_backends.written(str(path), rows), 1):
        assert row == rows[count - 1]
        assert len(json.loads(path.read_text())["rows"]) == count
    found = json.loads(path.read_text())
    assert found["device"] == "a card"
    expected = {
        "cell": "lstm",
        "type": "float16",
        "hidden": 64,
        "batch": 8,
        "steps": 32,
        "dropout": 0.1,
        "ragged": False,
    }
    expected |= {"resident": 1.0, "cudnn_training": 6.0, "ratio": [2.0, 3.0], "algorithms": {"static": [2.0, 6.5]}}
    assert expected.items() <= found["rows"][1].items()
    assert str(rows[1]).endswith("| 2.00 / 3.00 | static 2.00 / 6.50 |")

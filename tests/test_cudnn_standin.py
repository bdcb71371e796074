"""The library that stands in for cuDNN's recurrent functions, on host memory and against a cuDNN without kernels."""

import itertools
import pathlib
from typing import Any

import numpy as np
import pytest
from cudnn_client import BATCH_MAJOR, LSTM, PACKED, SEQUENCE_MAJOR, UNTOUCHED
from standin_case import build_fake, build_standin, expected, make_case, run_client

from prnn import _C

GRU, TANH, RELU = 3, 1, 0
DEFAULT_MATH, FMA_MATH = 0, 3  # tf32 and float32
VARYING = [2, 5, 3, 5]


def numeric_cases() -> dict[str, dict[str, Any]]:
    changes: dict[str, dict[str, Any]] = {}
    for mode, layout in itertools.product((LSTM, GRU, TANH, RELU), (SEQUENCE_MAJOR, PACKED, BATCH_MAJOR)):
        lengths = sorted(VARYING, reverse=True) if layout == PACKED else VARYING
        sizes = dict(steps=5, lengths=lengths, layers=2, directions=2)
        changes[f"mode {mode}, layout {layout}, lengths"] = dict(
            mode=mode, layout=layout, padding=2.5, x_padding=-1.5, **sizes
        )
        changes[f"mode {mode}, layout {layout}"] = dict(mode=mode, layout=layout, lengths=[4] * 3)
    for mode, bias in itertools.product((LSTM, GRU, TANH), (0, 1, 3)):
        changes[f"mode {mode}, bias {bias}"] = dict(mode=mode, bias=bias, layers=2)
    changes["weight gradients set"] = dict(add=1, dw_before=100.0)
    changes["weight gradients added"] = dict(dw_before=0.5)
    changes["weight gradients set, one bias"] = dict(add=1, dw_before=100.0, bias=1)
    changes["weight gradients added, one bias"] = dict(dw_before=0.5, bias=3)
    changes["skip input"] = dict(skip_input=True, input=8, layers=2)
    changes["projection"] = dict(projection=3, layers=2, directions=2)
    changes["projection, lengths"] = dict(
        projection=3, layers=2, directions=2, layout=BATCH_MAJOR, steps=5, lengths=VARYING, padding=1.0
    )
    changes["projection, one bias"] = dict(projection=5, bias=1, add=1)
    changes["no states"] = dict(wanted=())
    changes["no states, lengths"] = dict(wanted=(), layout=BATCH_MAJOR, lengths=[1, 4, 2])
    changes["h in, c out"] = dict(wanted=("hx", "cy", "dhy", "dcx"), layout=BATCH_MAJOR, lengths=[1, 4, 2])
    changes["all shorter than padded"] = dict(steps=6, lengths=[4, 4], padding=-1.0)
    changes["one sequence"] = dict(layout=BATCH_MAJOR, lengths=[4])
    changes["sized by the longest"] = dict(layout=BATCH_MAJOR, steps=5, lengths=[1, 5, 2], sized_by_longest=True)
    changes["many sequences"] = dict(steps=3, lengths=[1 + i % 3 for i in range(300)])
    return {name: make_case(i, **change) for i, (name, change) in enumerate(changes.items())}


CASES = numeric_cases()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("standin")


@pytest.fixture(scope="module")
def fake(folder: pathlib.Path) -> pathlib.Path:
    return build_fake(folder / "fake")


@pytest.fixture(scope="module")
def standin(folder: pathlib.Path) -> pathlib.Path:
    return build_standin(folder)


@pytest.fixture(scope="module", params=["same", "apart"])
def results(
    request: pytest.FixtureRequest, folder: pathlib.Path, standin: pathlib.Path, fake: pathlib.Path
) -> dict[str, dict[str, Any]]:
    """Runs all cases in one process, with weights laid out as cuDNN does and otherwise."""
    found, _ = run_client(folder, standin, fake, list(CASES.values()), FAKE_CUDNN_LAYOUT=request.param)
    return dict(zip(CASES, found, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_training_step(results: dict[str, dict[str, Any]], name: str) -> None:
    case, found, wanted = CASES[name], results[name], expected(CASES[name])
    assert set(found["statuses"].values()) == {0}
    assert found["calls"] == [1 + list(CASES).index(name), 0, 0, 0]  # only the sizes were cuDNN's, too
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["dx"], wanted["dx"], rtol=1e-4, atol=1e-5)
    given = case.get("wanted", ("hy", "cy", "dhx", "dcx"))
    for output in ("hy", "cy", "dhx", "dcx"):
        has = output in given and (case["mode"] == LSTM or output not in ("cy", "dcx"))
        right = wanted[output] if has else np.full_like(found[output], UNTOUCHED)
        np.testing.assert_allclose(found[output], right, rtol=1e-4, atol=1e-5, err_msg=output)
    before = case.get("dw_before", 0.0) if case.get("add", 0) == 0 else 0.0
    assert found["dw"].keys() <= wanted["dw"].keys()
    for key, gradient in found["dw"].items():
        np.testing.assert_allclose(gradient, wanted["dw"][key] + before, rtol=1e-4, atol=1e-4, err_msg=str(key))
    assert not found["dw_gaps_touched"]


FORWARDED_CASES = {
    "float64": dict(type=1),
    "a projection of a cell other than LSTM": dict(mode=GRU, projection=4),
    "clipping of the cell state": dict(clip=1.0),
    "a dropout of 1": dict(dropout=1.0, layers=2),
    "packed sequences that are not sorted by length": dict(layout=PACKED, lengths=[2, 4, 3]),
    "a sequence without timesteps": dict(layout=BATCH_MAJOR, lengths=[2, 0, 3]),
    "padding without CUDNN_RNN_PADDED_IO_ENABLED": dict(lengths=[2, 4, 3], flags=0),
    "an input that is not of the hidden size": dict(skip_input=True, input=5),
    "fewer than 8 hidden units": dict(hidden=7, projection=4),
}


def test_what_is_forwarded_and_why(folder: pathlib.Path, standin: pathlib.Path, fake: pathlib.Path) -> None:
    cases = [make_case(0, **change) for change in FORWARDED_CASES.values()]
    results, log = run_client(folder, standin, fake, cases, PRNN_CUDNN_LOG="1")
    assert [result["calls"] for result in results] == [[1 + i] * 4 for i in range(len(cases))]
    for reason, result in zip(FORWARDED_CASES, results, strict=True):
        assert result["sizes"] == (1000, 500), reason  # cuDNN's own
        assert (result["y"] == UNTOUCHED).all()
        line = f": forwarded: {reason}: 1 forward ("
        assert log.count(line) == 1, log
        assert "1 backward data (" in log.split(line)[1].split("\n")[0]


def test_the_same_decision_whatever_the_algorithm(
    folder: pathlib.Path, standin: pathlib.Path, fake: pathlib.Path
) -> None:
    cases = [make_case(0, algorithm=algorithm, backward_algorithm=1) for algorithm in (0, 1, 2, 3)]
    results, _ = run_client(folder, standin, fake, cases)
    assert results[-1]["calls"] == [4, 0, 0, 0]
    for result in results[1:]:
        assert result["sizes"] == results[0]["sizes"]
        np.testing.assert_array_equal(result["dx"], results[0]["dx"])


def test_spaces_too_small_are_cudnns_in_every_call(
    folder: pathlib.Path, standin: pathlib.Path, fake: pathlib.Path
) -> None:
    # A program that asked cuDNN itself for the sizes: through the library that has them as cuDNN says.
    (result,), log = run_client(folder, standin, fake, [make_case(0, sizes_from_objects=True)], PRNN_CUDNN_LOG="1")
    assert result["calls"] == [1, 1, 1, 1]
    assert "forwarded: a workspace or reserve space that is too small for prnn" in log


def test_spaces_are_the_least_that_a_training_step_or_inference_takes(
    folder: pathlib.Path, standin: pathlib.Path, fake: pathlib.Path
) -> None:
    sizes: dict[str, Any] = {"hidden": 64, "layers": 3, "input": 24, "steps": 20, "lengths": [20] * 3}
    results, _ = run_client(folder, standin, fake, [make_case(0, training=t, **sizes) for t in (True, False)])
    rnn, handle, batch = _C.Rnn(LSTM, _C.FLOAT, 64, 3, 24, False), _C.Handle.cpu(), [3] * 20
    for training, result in zip((True, False), results, strict=True):
        workspace, reserve = rnn.temp_space_sizes(handle, training, _C.Sequences(batch))
        assert workspace <= result["sizes"][0] <= max(1000, workspace + 1024)  # cuDNN's own, or prnn's, aligned
        assert result["sizes"][1] == reserve
        assert result["calls"][0] == [1, 2][not training]
    assert results[0]["sizes"][1] < rnn.reserve_size(handle, _C.Sequences(batch))


def test_inference_needs_no_reserve_space(folder: pathlib.Path, standin: pathlib.Path, fake: pathlib.Path) -> None:
    case = make_case(0, layers=2, training=False, dropout=0.5)
    (result,), _ = run_client(folder, standin, fake, [case])
    assert result["calls"] == [1, 0, 0, 0]
    np.testing.assert_allclose(result["y"], expected(case)["y"], rtol=1e-5, atol=1e-5)


def test_a_single_timestep_of_inference(folder: pathlib.Path, standin: pathlib.Path, fake: pathlib.Path) -> None:
    case = make_case(0, steps=1, lengths=[1, 1], training=False)
    (result,), _ = run_client(folder, standin, fake, [case])
    assert result["calls"] == [1, 0, 0, 0]
    np.testing.assert_allclose(result["y"], expected(case)["y"], rtol=1e-5, atol=1e-5)


def plan_of(case: dict[str, Any], steps: int) -> dict[str, Any]:
    """Returns the plan that libprnn would run on an H200."""
    rnn = _C.Rnn(case["mode"], _C.FLOAT, case["hidden"], case["layers"], case["input"], False)
    if case["math"] == DEFAULT_MATH:
        rnn.set_math(_C.TF32_MATH)
    found: dict[str, Any] = rnn.query_gpu("H200", [len(case["lengths"])] * steps)
    return found


@pytest.mark.parametrize("captured", [False, True], ids=["one by one", "in a graph"])
def test_the_faster_one_by_the_plan(
    folder: pathlib.Path, standin: pathlib.Path, fake: pathlib.Path, captured: bool
) -> None:
    cases = [
        make_case(0, mode=mode, hidden=hidden, math=math, steps=steps, lengths=[steps] * batch, training=training)
        for mode, hidden, math, steps, batch, training in itertools.product(
            (LSTM, GRU), (32, 64, 256), (DEFAULT_MATH, FMA_MATH), (1, 2, 4, 9, 17), (1,), (True, False)
        )
    ]
    cases += [make_case(0, hidden=1280, math=DEFAULT_MATH, steps=steps, lengths=[steps]) for steps in (8, 9)]
    environment = {"HOST_DEVICE_GPU": "H200", "PRNN_CUDNN_LOG": "1"} | (
        {"HOST_DEVICE_CAPTURES": "1"} if captured else {}
    )
    results, log = run_client(folder, standin, fake, cases, **environment)
    before, reasons = [0] * 3, set()
    for case, result in zip(cases, results, strict=True):
        training = case.get("training", True)
        by_host = not (training or captured)
        plan = plan_of(case, max(case["steps"], 4) if by_host else case["steps"])
        is_cudnn = plan["backend" if training else "inference_backend"] == _C.CUDNN_BACKEND
        calls = 3 if training else 1
        arrived = [after - count for after, count in zip(result["calls"][1:], before, strict=True)]
        assert arrived == [int(is_cudnn)] * calls + [0] * (3 - calls), case
        before = result["calls"][1:]
        if is_cudnn:
            reasons.add(plan["reason"])
    assert len(reasons) > 2
    assert all(f": forwarded: {reason}: " in log for reason in reasons)


def masks_case(seed: int) -> dict[str, Any]:
    """Two layers of which each passes its positive input on, so that outputs and gradients show the masks."""
    case = make_case(0, mode=RELU, input=16, hidden=16, layers=2, bias=0, dropout=0.4, steps=20, lengths=[20] * 3)
    case |= {"seed": seed, "x": np.abs(case["x"]) + 0.5, "dy": np.ones_like(case["dy"]), "wanted": ()}
    for (_, index, kind), block in case["weights"].items():
        block[:] = 0 if kind == "bias" or index == 1 else np.eye(16)
    return case


def test_dropout_follows_the_states(folder: pathlib.Path, standin: pathlib.Path, fake: pathlib.Path) -> None:
    cases = [masks_case(seed) for seed in (1, 1, 2)]
    results, _ = run_client(folder, standin, fake, cases)
    for case, result in zip(cases, results, strict=True):
        assert result["calls"][1:] == [0, 0, 0]
        scale = np.where(result["y"] == 0, 0, np.float32(1 / 0.6))
        np.testing.assert_allclose(result["y"], case["x"] * scale, rtol=1e-6)
        np.testing.assert_allclose(result["dx"], scale, rtol=1e-6)  # the forward call's mask
        assert 0.55 < (result["y"] > 0).mean() < 0.65
        assert result["dropout_states"][0] != case["seed"]  # the draw has advanced them
    np.testing.assert_array_equal(results[0]["y"], results[1]["y"])
    assert (results[0]["y"] == 0).mean() != (results[2]["y"] == 0).mean()


def test_threads_at_once(folder: pathlib.Path, standin: pathlib.Path, fake: pathlib.Path) -> None:
    cases = [make_case(i % 5, mode=(LSTM, GRU)[i % 2], steps=5, lengths=VARYING, hidden=32) for i in range(40)]
    serial, _ = run_client(folder, standin, fake, cases)
    parallel, _ = run_client(folder, standin, fake, cases, CLIENT_THREADS="8", OMP_NUM_THREADS="1")
    for one, other in zip(serial, parallel, strict=True):
        for name in ("y", "hy", "dx", "dhx"):
            np.testing.assert_array_equal(one[name], other[name])


def test_log_of_taken_calls(folder: pathlib.Path, standin: pathlib.Path, fake: pathlib.Path) -> None:
    cases = [make_case(0, layers=3, directions=2, hidden=9), make_case(1, training=False, mode=GRU)]
    _, log = run_client(folder, standin, fake, [*cases, cases[0]], PRNN_CUDNN_LOG="1")
    text = "prnn: LSTM 3 x 9, input 5, float32, batch 3, two directions: taken: 2 forward ("
    assert log.count(text) == 1, log
    assert "ms), 2 backward data (" in log
    assert "prnn: GRU 1 x 8, input 5, float32, batch 3: taken: 1 inference (" in log


def test_tf32_switched_off(folder: pathlib.Path, standin: pathlib.Path, fake: pathlib.Path) -> None:
    cases = [make_case(0, math=math) for math in (0, 2, 3)]
    _, log = run_client(folder, standin, fake, cases, PRNN_CUDNN_LOG="1", NVIDIA_TF32_OVERRIDE="0")
    assert "prnn: LSTM 1 x 8, input 5, float32, batch 3: taken: 3 forward (" in log


def test_a_library_without_libprnn_beside_it(
    folder: pathlib.Path, standin: pathlib.Path, fake: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    alone = tmp_path / standin.name
    alone.write_bytes(standin.read_bytes())
    (result,), log = run_client(folder, alone, fake, [make_case(0)], PRNN_CUDNN_LOG="1")
    assert result["calls"] == [1, 1, 1, 1]
    assert "forwarded: libprnn cannot be loaded: " in log

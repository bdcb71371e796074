"""The transducer search through the C API on the CPU: against a slow search in float64, in any batch and any chunks."""

from __future__ import annotations

import ctypes
import itertools
import math
from typing import Any

import capi
import pytest
import torch
from decode_case import DecodeCase, Inputs, Model, Options, Outputs, State
from loss_case import threads
from reference.transducer_search import Found

MODELS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "lstm 2": {"layers": 2, "blank": 12, "activation": "relu"},
    "gru": {"predictor": "gru", "blank": 5},
    "gru 2": {"predictor": "gru", "layers": 2, "hidden": 33, "joiner": 64},
    "stateless": {"predictor": "stateless"},
    "stateless relu": {"predictor": "stateless", "relu": True, "context": 1, "projected": True},
}
DURATIONS: dict[str, tuple[int, ...]] = {"rnn-t": (), "tdt": (0, 1, 2, 3, 4), "tdt without 0": (3, 1)}


def assert_close(found: Found, expected: Found, with_durations: bool, tolerance: float) -> None:
    assert found.symbols == expected.symbols
    assert found.frames == expected.frames
    if with_durations:
        assert found.durations == expected.durations
    for name in ("log_probs", "confidences"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=tolerance), name
    assert found.score == pytest.approx(expected.score, abs=10 * tolerance)


@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("model", MODELS)
def test_as_the_slow_search(model: str, durations: str) -> None:
    case = DecodeCase(durations=DURATIONS[durations], **MODELS[model])
    frames, lengths = case.frames(5, 17), [17, 0, 1, 9, 16]
    found = case.search(frames, lengths)
    assert sum(len(f.symbols) for f in found) > 10
    for n, length in enumerate(lengths):
        assert_close(found[n], case.reference(frames[n, :length]), bool(case.durations), 1e-9)


@pytest.mark.parametrize("durations", DURATIONS)
def test_float32(durations: str) -> None:
    case = DecodeCase(durations=DURATIONS[durations], dtype=torch.float32)
    frames = case.frames(4, 30)
    for n, found in enumerate(case.search(frames)):
        assert_close(found, case.reference(frames[n]), bool(case.durations), 1e-4)


@pytest.mark.parametrize("max_symbols", [1, 2, 3])
@pytest.mark.parametrize("durations", DURATIONS)
def test_max_symbols_reached_in_every_frame(durations: str, max_symbols: int) -> None:
    case = DecodeCase(durations=DURATIONS[durations])
    assert case.weights["outputBias"] is not None
    case.weights["outputBias"][case.blank] = -50.0
    frames = case.frames(2, 6)
    for n, found in enumerate(case.search(frames, max_symbols=max_symbols)):
        assert_close(found, case.reference(frames[n], max_symbols), bool(case.durations), 1e-9)
        assert durations != "rnn-t" or len(found.symbols) == 6 * max_symbols


def test_duration_0_ends_at_max_symbols() -> None:
    case = DecodeCase(durations=(0, 2))
    assert case.weights["outputBias"] is not None
    case.weights["outputBias"][[0, -2]] = torch.tensor([-50.0, 50.0], dtype=torch.float64)
    (found,) = case.search(case.frames(1, 3), max_symbols=2)
    assert found.frames == [0, 0, 1, 1, 2, 2]
    assert found.durations == [0, 1] * 3


def test_a_blank_of_duration_0_goes_on_by_1() -> None:
    case = DecodeCase(durations=(0, 4))
    assert case.weights["outputBias"] is not None
    case.weights["outputBias"][[0, -2]] = 50.0
    (found,) = case.search(case.frames(1, 7))
    assert found.symbols == []
    assert found.score == pytest.approx(case.reference(case.frames(1, 7)[0]).score)


def bits(found: Found) -> tuple[Any, ...]:
    return tuple(found)


@pytest.mark.parametrize("durations", ["rnn-t", "tdt"])
@pytest.mark.parametrize("model", ["lstm 2", "gru", "stateless"])
def test_same_bits_in_any_batch(model: str, durations: str) -> None:
    case = DecodeCase(durations=DURATIONS[durations], dtype=torch.float32, **MODELS[model])
    frames = case.frames(37, 12)
    lengths = [(5 * n) % 13 for n in range(37)]
    together = case.search(frames, lengths)
    for n in range(37):
        (alone,) = case.search(frames[n : n + 1, : max(lengths[n], 1)], [lengths[n]])
        assert bits(alone) == bits(together[n])
    order = torch.randperm(37, generator=torch.Generator().manual_seed(3)).tolist()
    for n, found in zip(order, case.search(frames[order], [lengths[n] for n in order]), strict=True):
        assert bits(found) == bits(together[n])


def test_same_bits_on_several_threads() -> None:
    case = DecodeCase(dtype=torch.float32, classes=300, joiner=200)
    frames, options = case.frames(40, 30), Options(40, 30, 8)
    with threads(1):
        size = case.size("GetTransducerSearchWorkspaceSize", options=ctypes.byref(options))
        alone = case.search(frames)
    with threads(3):
        larger = case.size("GetTransducerSearchWorkspaceSize", options=ctypes.byref(options))
        assert size < larger
        for workspace_size in (size, (size + larger) // 2, larger):
            assert [*map(bits, case.search(frames, workspace_size=workspace_size))] == [*map(bits, alone)]


@pytest.mark.parametrize("durations", ["rnn-t", "tdt"])
@pytest.mark.parametrize("model", ["lstm 2", "gru", "stateless"])
def test_same_bits_in_chunks(model: str, durations: str) -> None:
    case = DecodeCase(durations=DURATIONS[durations], dtype=torch.float32, **MODELS[model])
    frames = case.frames(3, 20)
    whole = case.search(frames)
    state = case.state(8)
    slots = [6, 0, 3]
    state["slots"] = torch.tensor(slots, dtype=torch.int32)
    found: list[list[tuple[Any, ...]]] = [[], [], []]
    begins, scores = [0, 0, 0], [0.0, 0.0, 0.0]
    for sizes in itertools.zip_longest([4, 1, 0, 15], [0, 0, 20], [7, 6, 7], fillvalue=0):
        chunk = torch.full((3, max(1, *sizes), case.encoder), torch.nan, dtype=torch.float32)
        for n, size in enumerate(sizes):
            chunk[n, :size] = frames[n, begins[n] : begins[n] + size]
        for n, part in enumerate(case.search(chunk, list(sizes), state=state)):
            stamps = [begins[n] + frame for frame in part.frames]
            found[n] += zip(part.symbols, stamps, part.log_probs, part.confidences, strict=True)
            begins[n] += sizes[n]
            scores[n] = part.score
    for n in range(3):
        w = whole[n]
        assert found[n] == list(zip(w.symbols, w.frames, w.log_probs, w.confidences, strict=True))
        assert scores[n] == w.score
    untouched = [slot for slot in range(8) if slot not in slots]
    assert (state["ahead"][untouched] == -1).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("durations", ["rnn-t", "tdt"])
def test_frames_that_are_not_numbers_count_as_blanks(durations: str, value: float) -> None:
    case = DecodeCase(durations=DURATIONS[durations], activation="relu", projected=True)
    frames = case.frames(2, 8)
    frames[0, 3] = value
    found = case.search(frames)
    assert_close(found[1], case.reference(frames[1]), bool(durations == "tdt"), 1e-9)
    if value > 0 or math.isnan(value):
        assert 3 not in found[0].frames
    if durations == "rnn-t" and not value < 0:
        assert found[0].score == -math.inf
        assert [f for f in found[0].frames if f < 3] == [f for f in case.reference(frames[0, :3]).frames]


@pytest.mark.parametrize("row", [2, -1])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_numbers(row: int, value: float) -> None:
    case = DecodeCase(durations=(0, 2))
    assert case.weights["outputBias"] is not None
    case.weights["outputBias"][row] = value
    frames = case.frames(2, 9)
    for n, found in enumerate(case.search(frames)):
        assert found.score == -math.inf
        expected = case.reference(frames[n])
        assert (found.symbols, found.durations) == (expected.symbols, expected.durations)
        assert not found.symbols or row == -1


def test_classes_without_a_probability_are_not_taken() -> None:
    case = DecodeCase()
    assert case.weights["outputBias"] is not None
    case.weights["outputBias"][1:7] = -math.inf
    frames = case.frames(1, 12)
    (found,) = case.search(frames)
    assert_close(found, case.reference(frames[0]), False, 1e-9)
    case = DecodeCase(classes=4, blank=2)
    case.weights["outputBias"] = torch.tensor([-math.inf, -math.inf, 0.0, 0.0], dtype=torch.float64)
    (found,) = case.search(frames)
    assert_close(found, case.reference(frames[0]), False, 1e-9)
    assert set(found.confidences) == {0.0}


@pytest.mark.parametrize("durations", ["rnn-t", "tdt"])
def test_bias(durations: str) -> None:
    case = DecodeCase(durations=DURATIONS[durations], blank=4)
    generator = torch.Generator().manual_seed(5)
    after = torch.randint(0, 6, (6, case.classes), generator=generator, dtype=torch.int32)
    gains = torch.randn(6, case.classes, generator=generator, dtype=torch.float64)
    after[:, case.blank], gains[:, case.blank] = -1, math.nan
    frames = case.frames(3, 14)
    found = case.search(frames, bias=(after, gains))
    assert [f.symbols for f in found] != [f.symbols for f in case.search(frames)]
    for n in range(3):
        assert_close(found[n], case.reference(frames[n], bias=(after, gains)), bool(case.durations), 1e-9)
    state = case.state(3) | {"node": torch.full((3,), -1, dtype=torch.int32)}
    parts = [case.search(frames[:, at : at + 2], state=state, bias=(after, gains)) for at in range(0, 14, 2)]
    for n in range(3):
        assert [s for part in parts for s in part[n].symbols] == found[n].symbols


def test_no_biases() -> None:
    case = DecodeCase(predictor="gru")
    with_zeros = DecodeCase(predictor="gru")
    for name in ("encoderBias", "predictorBias", "outputBias"):
        case.weights[name] = None
        bias = with_zeros.weights[name]
        assert bias is not None
        bias.zero_()
    for name in ("inputBiases", "recurrentBiases"):
        case.layer_weights[0][name] = None  # type: ignore[assignment]
        with_zeros.layer_weights[0][name].zero_()
    frames = case.frames(2, 9)
    assert [bits(f) for f in case.search(frames)] == [bits(f) for f in with_zeros.search(frames)]


def test_defaults() -> None:
    model = Model()
    capi.check("InitTransducerModel", model=ctypes.byref(model))
    values = {name: getattr(model, name) for name, _ in Model._fields_ if name != "durations"}
    assert {name: value for name, value in values.items() if value} == {"predictor": 1, "layers": 1, "context": 2}
    assert capi.call("InitTransducerModel", model=None) == capi.BAD_PARAM


WRONG_MODELS: dict[str, Any] = {
    "dataType": 5,
    "predictor": 3,
    "layers": 3,
    "embeddingSize": 0,
    "hiddenSize": 0,
    "encoderSize": -1,
    "joinerSize": 2**40,
    "activation": 2,
    "classes": 1,
    "blank": 13,
    "durationCount": 17,
    "durations": (ctypes.c_int * 16)(1, 1),
}


@pytest.mark.parametrize("name", WRONG_MODELS)
def test_wrong_models(name: str) -> None:
    case = DecodeCase(durations=(0, 1))
    setattr(case.model, name, WRONG_MODELS[name])
    size = ctypes.c_size_t(77)
    status = case.call("GetTransducerPreparedSize", sizeInBytes=ctypes.byref(size))
    assert (status, size.value) == (capi.BAD_PARAM, 77)
    assert name in capi.message(case.handle.pointer)


@pytest.mark.parametrize("durations", [(0,), (-1, 2)])
def test_wrong_durations(durations: tuple[int, ...]) -> None:
    case = DecodeCase(durations=durations)
    assert case.call("GetTransducerPreparedSize", sizeInBytes=ctypes.byref(ctypes.c_size_t())) == capi.BAD_PARAM
    assert "durations" in capi.message(case.handle.pointer)


@pytest.mark.parametrize("data_type", [capi.HALF, capi.BFLOAT16])
def test_types_that_a_cpu_does_not_take(data_type: int) -> None:
    case = DecodeCase()
    case.model.dataType = data_type
    assert case.call("GetTransducerPreparedSize", sizeInBytes=ctypes.byref(ctypes.c_size_t())) == capi.NOT_SUPPORTED
    assert "PRNN_DATA_FLOAT" in capi.message(case.handle.pointer)


@pytest.mark.parametrize("name", ["embedding", "predictorWeight", "outputWeight", "inputWeights", "encoderWeight"])
def test_missing_weights(name: str) -> None:
    case = DecodeCase()
    weights = case.c_weights()
    if name == "inputWeights":
        weights.inputWeights[0] = None
    else:
        setattr(weights, name, None)
    size = case.size("GetTransducerPreparedSize")
    prepared = torch.zeros(size, dtype=torch.uint8)
    arguments = {"prepared": prepared.data_ptr(), "preparedSizeInBytes": size}
    assert case.call("PrepareTransducer", weights=ctypes.byref(weights), **arguments) == capi.BAD_PARAM
    assert f"weights->{name}" in capi.message(case.handle.pointer)
    assert not prepared.any()


def refusal(case: DecodeCase, **changes: Any) -> str:
    """The message to a search of one utterance of 3 frames with these arguments changed."""
    frames, out, counts = case.frames(1, 3), torch.full((1, 24), -9, dtype=torch.int32), torch.zeros(1).int()
    options = Options(1, 3, 8)
    workspace = torch.zeros(case.size("GetTransducerSearchWorkspaceSize", options=ctypes.byref(options)) + 16).byte()
    arguments: dict[str, Any] = {
        "prepared": case.prepare().data_ptr(),
        "options": ctypes.byref(options),
        "inputs": ctypes.byref(Inputs(frames.data_ptr())),
        "state": None,
        "outputs": ctypes.byref(Outputs(symbols=out.data_ptr(), counts=counts.data_ptr())),
        "workspace": workspace.data_ptr(),
        "workspaceSizeInBytes": len(workspace),
    }
    arguments |= changes
    assert case.call("TransducerSearch", **arguments) == capi.BAD_PARAM
    assert (out == -9).all()
    return str(capi.message(case.handle.pointer))


def test_wrong_arguments_of_a_search() -> None:
    case = DecodeCase()
    frames = case.frames(1, 3)
    symbols = torch.zeros(24, dtype=torch.int32)
    four, minus = torch.tensor([4], dtype=torch.int32), torch.tensor([-1], dtype=torch.int32)
    for options, name in (
        (Options(0, 3, 8), "batch"),
        (Options(1, 0, 8), "maxFrames"),
        (Options(1, 3, 0), "maxSymbols"),
    ):
        assert name in refusal(case, options=ctypes.byref(options))
    assert "product" in refusal(case, options=ctypes.byref(Options(1, 2**30, 8)))
    for name in ("prepared", "options", "inputs", "outputs", "workspace"):
        assert name in refusal(case, **{name: None})
    assert "workspace" in refusal(case, workspaceSizeInBytes=16)
    assert "inputs->frames" in refusal(case, inputs=ctypes.byref(Inputs()))
    assert "inputs->frames" in refusal(case, inputs=ctypes.byref(Inputs(frames.data_ptr() + 1)))
    for lengths in (four, minus):
        inputs = Inputs(frames.data_ptr(), lengths.data_ptr())
        assert "inputs->lengths[0]" in refusal(case, inputs=ctypes.byref(inputs))
    assert "outputs->counts" in refusal(case, outputs=ctypes.byref(Outputs(symbols=symbols.data_ptr())))
    pointers = dict.fromkeys(("symbols", "counts", "durations"), symbols.data_ptr())
    assert "outputs->durations" in refusal(case, outputs=ctypes.byref(Outputs(**pointers)))


def test_wrong_states() -> None:
    case = DecodeCase(predictor="stateless")
    state = case.state(1)

    def with_state(**tensors: torch.Tensor | None) -> str:
        pointers = {name: t.data_ptr() for name, t in {**state, **tensors}.items() if t is not None}
        return refusal(case, state=ctypes.byref(State(**pointers)))

    assert "state->ahead" in with_state(ahead=None)
    assert "state->ahead" in with_state(ahead=torch.tensor([-2], dtype=torch.int32))
    assert "state->context" in with_state(context=None)
    assert "state->context" in with_state(ahead=torch.tensor([0], dtype=torch.int32))
    assert "state->h" in with_state(h=torch.zeros(20))
    assert "state->node" in with_state(node=torch.zeros(1, dtype=torch.int32))
    assert "state->score" in with_state(score=torch.zeros(2).byte()[1:])
    assert "state->slots[0]" in with_state(slots=torch.tensor([-1], dtype=torch.int32))


def test_slots_are_different_ones() -> None:
    case = DecodeCase(predictor="stateless")
    state = case.state(2) | {"slots": torch.tensor([1, 1], dtype=torch.int32)}
    with pytest.raises(AssertionError, match="slots holds 1 twice"):
        case.search(case.frames(2, 3), state=state)

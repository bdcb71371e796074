"""libprnn's beam search: against the beams of modules that it does not know, in any batch, chunks and threads, and
through the C API."""

from __future__ import annotations

import ctypes
import itertools
import math
from typing import Any

import capi
import pytest
import torch
from decode_case import BeamOptions, BeamOutputs, BeamState, Bias, DecodeCase, Inputs
from loss_case import threads
from reference import transducer as slow

import prnn.transducer.streaming as streaming
from prnn.transducer import (
    Hypothesis,
    NgramBias,
    PhraseBias,
    RecurrentPredictor,
    StatelessPredictor,
    StreamState,
    Transducer,
)

DURATIONS: dict[str, tuple[int, ...]] = {"rnn-t": (), "tdt": (0, 1, 2, 4), "tdt without 0": (3, 1)}
BIASES = ("", "phrases")


class OtherRecurrent(RecurrentPredictor):
    """A class that libprnn does not know."""


class OtherStateless(StatelessPredictor):
    """The same."""


def tiny_model(seed: int, durations: str, **options: Any) -> Transducer:
    steps = DURATIONS[durations]
    more = {"loss": "tdt", "durations": steps} if steps else {}
    return slow.tiny_model(seed, vocab_size=7, gain=2.5, blank_bias=0.5, **more, **options)


def other(model: Transducer) -> Transducer:
    """The model as a class whose beams are searched step by step."""
    stateless = isinstance(model.predictor, StatelessPredictor)
    model.predictor.__class__ = OtherStateless if stateless else OtherRecurrent
    return model


def bias_of(name: str) -> PhraseBias | None:
    return PhraseBias([[1, 2, 3], [4, 4], [5]], [3.0, 2.0, 0.5], 7) if name else None


def same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]], tolerance: float) -> None:
    for some, others in zip(found, expected, strict=True):
        assert [(h.tokens, h.timestamps) for h in some] == [(h.tokens, h.timestamps) for h in others]
        for h, o in zip(some, others, strict=True):
            assert h.score == pytest.approx(o.score, abs=tolerance)
            assert h.log_probs == pytest.approx(o.log_probs, abs=tolerance)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("durations", DURATIONS)
@pytest.mark.parametrize("mode", ["modified", "standard"])
@pytest.mark.parametrize("predictor", ["lstm", "gru", "stateless"])
def test_as_the_steps(predictor: str, mode: str, durations: str, bias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    by_library = streaming.whole_by_library

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(by_library(*arguments, **named))
        return calls[-1]

    monkeypatch.setattr(streaming, "whole_by_library", counted)
    symbols = 0
    for seed, beam in ((0, 1), (1, 4), (2, 21)):
        model = tiny_model(seed, durations, predictor=predictor)
        features, lengths = torch.randn(4, 24, 4, dtype=torch.float64), torch.tensor([24, 0, 3, 17])
        options = {"mode": mode, "beam": beam, "nbest": beam, "max_symbols": 3, "bias": bias_of(bias)}
        found = model.beam_search(features, lengths, **options)
        assert calls.pop() is not None
        expected = other(model).beam_search(features, lengths, **options)
        assert calls.pop() is None
        same(found, expected, 1e-9)
        symbols += sum(len(h.tokens) for nbest in found for h in nbest)
    assert symbols > 100


def streamed(model: Transducer, features: torch.Tensor, sizes: list[int], **options: Any) -> list[list[Hypothesis]]:
    """Streams whose chunks have these sizes and go at their own pace; an utterance's certain symbols are
    taken away meanwhile."""
    state: StreamState = model.stream_init(len(features), **options)
    taken: list[list[Hypothesis]] = [[] for _ in features]
    begin = 0
    for size in sizes:
        _, state = model.stream_step(features[:, begin : begin + size], state)
        begin += size
        certain, state = state.take_certain()
        for parts, part in zip(taken, certain, strict=True):
            parts.append(part)
    _, state = model.stream_finish(state)

    def whole(first: list[Hypothesis], rest: Hypothesis) -> Hypothesis:
        columns = [
            list(itertools.chain.from_iterable(getattr(part, name) for part in [*first, rest]))
            for name in ("tokens", "timestamps", "log_probs")
        ]
        return Hypothesis(columns[0], rest.score, columns[1], columns[2])

    return [[whole(first, h) for h in nbest] for first, nbest in zip(taken, state.nbest(options["beam"]), strict=True)]


@pytest.mark.parametrize("durations", ["rnn-t", "tdt"])
@pytest.mark.parametrize("mode", ["modified", "standard"])
def test_same_bits_in_chunks_and_batches(mode: str, durations: str) -> None:
    for seed, predictor in enumerate(("lstm", "gru", "stateless")):
        model = tiny_model(seed, durations, predictor=predictor, dtype=torch.float32)
        features = torch.randn(9, 30, 4)
        options = {"beam": 5, "max_symbols": 3, "bias": bias_of("phrases" if seed else "")}
        whole = model.beam_search(features, mode=mode, nbest=5, **options)
        for n in (0, 4, 8):
            assert model.beam_search(features[n : n + 1], mode=mode, nbest=5, **options) == whole[n : n + 1]
        found = streamed(model, features, [3, 0, 10, 1, 16], search=mode, **options)
        for nbest, expected in zip(found, whole, strict=True):
            assert nbest == expected


def test_a_stream_goes_on_by_steps() -> None:
    """As one does whose state is taken to another model's class, or to another device."""
    for predictor, mode in itertools.product(("lstm", "stateless"), ("greedy", "modified")):
        model = tiny_model(0, "rnn-t", predictor=predictor)
        features = torch.randn(3, 20, 4, dtype=torch.float64)
        _, state = model.stream_step(features[:, :10], model.stream_init(3, mode, bias=bias_of("phrases")))
        known, expected = model.stream_step(features[:, 10:], state)
        found, by_steps = other(model).stream_step(features[:, 10:], state)
        assert found == known
        same(by_steps.nbest(4), expected.nbest(4), 1e-9)


def test_language_model(tmp_path: Any) -> None:
    arpa = "\\data\\\nngram 1=5\nngram 2=2\n\n\\1-grams:\n-1.0 <s> -0.3\n-0.7 </s>\n-2.0 <unk>\n"
    (tmp_path / "m.arpa").write_text(arpa + "-0.5 a -0.2\n-0.9 b -0.1\n\n\\2-grams:\n-0.2 a b\n-0.4 <s> a\n\n\\end\\\n")
    bias = NgramBias(tmp_path / "m.arpa", ["<blk>", "a", "b", "c", "d", "e", "f"], 7, weight=0.7, bonus=0.2)
    model = tiny_model(3, "rnn-t")
    features = torch.randn(2, 30, 4, dtype=torch.float64)
    found = model.beam_search(features, beam=6, nbest=6, bias=bias)
    same(found, other(model).beam_search(features, beam=6, nbest=6, bias=bias), 1e-9)


def test_equal_scores_and_wide_beams() -> None:
    """Every symbol is as probable as every other, so that hypotheses of one score are more than the beam."""
    model = tiny_model(0, "rnn-t")
    with torch.no_grad():
        model.joiner.output.weight.zero_()
        model.joiner.output.bias.zero_()
    features = torch.randn(2, 12, 4, dtype=torch.float64)
    for mode, beam in itertools.product(("modified", "standard"), (1, 3, 40)):
        for nbest in model.beam_search(features, mode=mode, beam=beam, nbest=beam):
            assert len({tuple(h.tokens) for h in nbest}) == beam
            assert all(math.isfinite(h.score) for h in nbest)


def test_no_hypothesis_is_left() -> None:
    model = tiny_model(0, "rnn-t", dtype=torch.float32)
    features = torch.randn(2, 20, 4)
    features[1, 10:] = math.nan
    model.encoder.set_normalization(torch.zeros(4), torch.ones(4))
    whole, (broken,) = model.beam_search(features[:1]), model.beam_search(features[1:])
    assert math.isfinite(whole[0][0].score)
    assert broken[0].score == -math.inf
    assert model.beam_search(features) == [whole[0], broken]
    state = model.stream_init(2, "modified")
    for begin in (0, 8, 16):
        _, state = model.stream_step(features[:, begin : begin + 8], state)
    _, state = model.stream_finish(state)
    assert [h.score for h in state.best()] == [whole[0][0].score, -math.inf]


def test_same_bits_on_several_threads() -> None:
    model = slow.tiny_model(0, vocab_size=300, joiner_dim=200, dtype=torch.float32)
    features = torch.randn(13, 40, 4)
    with threads(1):
        alone = model.beam_search(features, nbest=4)
    with threads(3):
        assert model.beam_search(features, nbest=4) == alone


# ---- the C API ----


class Call:
    """A beam search of one utterance of 6 frames in slot 1 of 2."""

    def __init__(self, case: DecodeCase, beam: int = 3) -> None:
        self.case, self.beam, self.frames = case, beam, case.frames(1, 6)
        size = (2, beam)
        self.state = {
            "slots": torch.tensor([1], dtype=torch.int32),
            "ahead": torch.full(size, -1, dtype=torch.int32),
            "context": torch.full((*size, case.context), -7, dtype=torch.int32),
            "score": torch.full(size, math.nan, dtype=torch.float64),
            "hash": torch.full(size, -1, dtype=torch.int64),
        }
        self.out = {name: torch.full((1, beam, 6), -9, dtype=torch.int32) for name in ("symbols", "frames")} | {
            name: torch.full((1, beam), -9, dtype=torch.int32) for name in ("counts", "origins")
        }
        self.out["scores"] = torch.full((1, beam), -9, dtype=torch.float64)

    def run(self, **changes: Any) -> int:
        options = BeamOptions(1, 6, 1, self.beam, 0)
        size = self.case.size("GetTransducerBeamSearchWorkspaceSize", options=ctypes.byref(options))
        workspace = torch.full((size,), 0xFF, dtype=torch.uint8)
        arguments = {
            "prepared": self.case.prepare().data_ptr(),
            "options": ctypes.byref(options),
            "inputs": ctypes.byref(Inputs(self.frames.data_ptr())),
            "state": ctypes.byref(BeamState(**{name: t.data_ptr() for name, t in self.state.items()})),
            "outputs": ctypes.byref(BeamOutputs(**{name: t.data_ptr() for name, t in self.out.items()})),
            "workspace": workspace.data_ptr(),
            "workspaceSizeInBytes": size,
        }
        return self.case.call("TransducerBeamSearch", **(arguments | changes))

    def refusal(self, **changes: Any) -> str:
        assert self.run(**changes) == capi.BAD_PARAM
        assert all((t == -9).all() for t in self.out.values())
        return str(capi.message(self.case.handle.pointer))


def hash_of(symbols: list[int]) -> int:
    value = 0
    for symbol in symbols:
        value = (value * 0x9E3779B97F4A7C15 + symbol + 1) % 2**64
    return value


def test_states_of_streams() -> None:
    call = Call(DecodeCase(predictor="stateless"))
    symbols: list[list[int]] = [[]] * 3
    for _ in range(2):
        assert call.run() == capi.SUCCESS
        counts = call.out["counts"][0].tolist()
        found = [row[:count] for row, count in zip(call.out["symbols"][0].tolist(), counts, strict=True)]
        symbols = [symbols[o] + new for o, new in zip(call.out["origins"][0].tolist(), found, strict=True)]
        assert [hash_of(row) for row in symbols] == [h % 2**64 for h in call.state["hash"][1].tolist()]
        for row, context in zip(symbols, call.state["context"][1].tolist(), strict=True):
            assert context == ([0, 0] + row)[-2:]
        assert call.state["score"][1].tolist() == call.out["scores"][0].tolist()
        assert (call.state["ahead"][1] == 0).all()
    assert any(symbols)
    assert (call.state["ahead"][0] == -1).all(), "written to another slot"


def test_wrong_arguments() -> None:
    call = Call(DecodeCase(predictor="stateless"))
    for options, name in (
        (BeamOptions(0, 6, 1, 3, 0), "batch"),
        (BeamOptions(1, 0, 1, 3, 0), "maxFrames"),
        (BeamOptions(1, 6, 0, 3, 0), "maxSymbols"),
        (BeamOptions(1, 6, 2, 3, 0), "MODIFIED"),
        (BeamOptions(1, 6, 1, 0, 0), "beam"),
        (BeamOptions(1, 6, 1, 3, 2), "mode"),
        (BeamOptions(2**30, 2**30, 1, 2**30, 0), "sizes"),
    ):
        assert name in call.refusal(options=ctypes.byref(options))
    for name in ("prepared", "options", "inputs", "outputs", "workspace"):
        assert name in call.refusal(**{name: None})
    assert "workspace" in call.refusal(workspaceSizeInBytes=16)
    pointers = {name: t.data_ptr() for name, t in call.out.items()}
    for name in ("symbols", "counts", "scores"):
        outputs = BeamOutputs(**(pointers | {name: None}))
        assert f"outputs->{name}" in call.refusal(outputs=ctypes.byref(outputs))


def test_wrong_states() -> None:
    call = Call(DecodeCase(predictor="stateless"))
    whole = dict(call.state)
    for name in ("ahead", "context", "score", "hash"):
        pointers = {key: t.data_ptr() for key, t in whole.items() if key != name}
        assert f"state->{name}" in call.refusal(state=ctypes.byref(BeamState(**pointers)))
    call.state["slots"] = torch.tensor([-1], dtype=torch.int32)
    assert "state->slots[0]" in call.refusal()
    call.state = whole | {"ahead": torch.zeros(2, 3, dtype=torch.int32), "score": torch.zeros(2, 3).double()}
    assert "state->context" in call.refusal()
    call.state["context"] = torch.zeros_like(whole["context"])
    call.state["ahead"][1] = torch.tensor([0, -1, 0])
    assert "state->ahead" in call.refusal()
    call.state["ahead"][1] = 0
    tables = torch.zeros(2, 13, dtype=torch.int32), torch.zeros(2, 13, dtype=torch.float64)
    bias = Bias(2, tables[0].data_ptr(), tables[1].data_ptr())
    inputs = Inputs(call.frames.data_ptr(), None, ctypes.pointer(bias))
    assert "state->node" in call.refusal(inputs=ctypes.byref(inputs))
    call.state["node"] = torch.full((2, 3), 2, dtype=torch.int32)
    assert "state->node" in call.refusal(inputs=ctypes.byref(inputs))

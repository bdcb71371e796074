"""Contextual biasing: scores against counted occurrences, whole and streamed search, bad input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from reference import transducer as slow

from prnn.transducer import PhraseBias, Transducer

PHRASES = ([1, 2], [2, 1, 1], [2], [1, 1, 1], [1, 1, 1])
SCORES = (0.7, 1.9, 0.4, 1.1, 0.3)


def occurrences(tokens: Sequence[int], phrases: Sequence[Sequence[int]], scores: Sequence[float]) -> float:
    total = 0.0
    for phrase, score in zip(phrases, scores, strict=True):
        ends = range(len(phrase), len(tokens) + 1)
        total += score * sum(list(tokens[end - len(phrase) : end]) == list(phrase) for end in ends)
    return total


@pytest.mark.parametrize("mode", ["modified", "standard"])
@pytest.mark.parametrize("predictor", ["lstm", "stateless"])
def test_every_occurrence_counts_once(mode: str, predictor: str) -> None:
    """With a beam that holds every transcript."""
    bias = PhraseBias(PHRASES, SCORES, vocab_size=3)
    features = torch.randn(6, 4, dtype=torch.float64)
    for seed in range(2):
        model = slow.tiny_model(seed, vocab_size=3, gain=1.0, predictor=predictor)
        modified = mode == "modified"
        plain = slow.exhaustive(model, slow.encode(model, features), 1 if modified else 2, modified)
        expected = {tuple(tokens): score + occurrences(tokens, PHRASES, SCORES) for score, tokens in plain}
        options: dict[str, Any] = {"beam": 150, "mode": mode, "nbest": 150, "max_symbols": 2}
        (found,) = model.beam_search(features[None], **options, bias=bias)
        assert {tuple(h.tokens): pytest.approx(h.score, abs=1e-9) for h in found} == expected
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        (unbiased,) = model.beam_search(features[None], **options)
        assert [h.tokens for h in found] != [h.tokens for h in unbiased]


def test_a_phrase_is_found() -> None:
    model = slow.tiny_model(1, vocab_size=5, gain=2.0)
    features = torch.randn(1, 24, 4, dtype=torch.float64)
    (plain,) = model.beam_search(features)[0]
    phrase = [4, 3, 4, 4]
    assert occurrences(plain.tokens, [phrase], [1]) == 0
    found = model.beam_search(features, bias=PhraseBias([phrase], 60.0, vocab_size=5))[0][0]
    assert occurrences(found.tokens, [phrase], [1]) > 0


@pytest.mark.parametrize("search", ["modified", "standard"])
@pytest.mark.parametrize("durations", [False, True])
def test_streams_find_what_whole_utterances_do(search: str, durations: bool) -> None:
    changes = {"loss": "tdt", "durations": (0, 1, 2)} if durations else {}
    model: Transducer = slow.tiny_model(2, vocab_size=4, gain=2.0, **changes)
    bias = PhraseBias([[1, 2, 3], [3, 3]], [4.0, 2.0], vocab_size=4)
    features = torch.randn(2, 30, 4, dtype=torch.float64)
    whole = model.beam_search(features, beam=3, mode=search, bias=bias)
    state = model.stream_init(2, search, beam=3, bias=bias)
    tokens: list[list[int]] = [[], []]
    for start in range(0, 30, 7):
        certain, state = model.stream_step(features[:, start : start + 7], state)
        state = state.select(torch.arange(2)).to("cpu")
        tokens = [before + new for before, new in zip(tokens, certain, strict=True)]
    certain, state = model.stream_finish(state)
    tokens = [before + new for before, new in zip(tokens, certain, strict=True)]
    assert tokens == [nbest[0].tokens for nbest in whole]
    for one, other in zip(state.best(), whole, strict=True):
        assert one.timestamps == other[0].timestamps
        assert one.score == pytest.approx(other[0].score, abs=1e-9)


@pytest.mark.parametrize("predictor", ["lstm", "stateless"])
@pytest.mark.parametrize("durations", [False, True])
def test_greedy_search_prefers_phrases(durations: bool, predictor: str) -> None:
    """Whole utterances and streams; a phrase that was begun and not completed counts nothing."""
    changes = {"loss": "tdt", "durations": (0, 1, 2)} if durations else {}
    found_some = 0
    for seed in range(4):
        model: Transducer = slow.tiny_model(seed, vocab_size=4, gain=2.0, predictor=predictor, **changes)
        phrases, scores = [[1, 2, 3], [3, 3]], [12.0, 5.0]
        bias = PhraseBias(phrases, scores, vocab_size=4)
        features = torch.randn(2, 30, 4, dtype=torch.float64)
        plain, whole = model.greedy_search(features), model.greedy_search(features, bias=bias)
        state = model.stream_init(2, bias=bias)
        tokens: list[list[int]] = [[], []]
        for start in range(0, 30, 7):
            certain, state = model.stream_step(features[:, start : start + 7], state)
            tokens = [before + new for before, new in zip(tokens, certain, strict=True)]
        certain, state = model.stream_finish(state)
        assert [before + new for before, new in zip(tokens, certain, strict=True)] == [h.tokens for h in whole]
        assert [h.score for h in state.best()] == pytest.approx([h.score for h in whole], abs=1e-9)
        beams = model.beam_search(features, beam=1, mode="modified", bias=bias)
        if not durations:
            alone = model.greedy_search(features, max_symbols=1, bias=bias)
            assert [h.tokens for h in alone] == [nbest[0].tokens for nbest in beams]
            assert [h.score for h in alone] == pytest.approx([nbest[0].score for nbest in beams], abs=1e-9)
        counts = [[occurrences(h.tokens, phrases, [1, 1]) for h in found] for found in (whole, plain)]
        found_some += sum(counts[0]) - sum(counts[1])
    assert found_some > 0


def test_no_phrases_change_nothing() -> None:
    model = slow.tiny_model(0, vocab_size=4).float()
    features = torch.randn(2, 20, 4)
    assert model.beam_search(features, bias=PhraseBias([], 1.0, vocab_size=4)) == model.beam_search(features)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1], []], 1.0, 4), "phrases[1] is empty"),
        (([[1, 4]], 1.0, 4), "phrases[0] holds 4; its symbols must be ints of 0 to 3, and not the blank, 0"),
        (([[0]], 1.0, 4), "phrases[0] holds 0; "),
        (([[1.0]], 1.0, 4), "phrases[0] holds 1.0; "),
        (("ab", 1.0, 4), "phrases is 'ab'; it must be a list of lists of symbols"),
        ((3, 1.0, 4), "phrases is 3; it must be a list of lists of symbols"),
        (([[1]], [1.0, 2.0], 4), "scores has 2 numbers; there are 1 phrases"),
        (([[1]], 0.0, 4), "scores[0] is 0.0; it must be a positive number"),
        (([[1]], float("nan"), 4), "scores[0] is nan; it must be a positive number"),
        (([[1]], "1", 4), "scores[0] is '1'; it must be a positive number"),
        (([[1]], 1.0, 1), "vocab_size is 1; it must be at least 2"),
        (([[1]] * 2**10, 1.0, 2**17), "phrases makes a table of up to 134348800 entries; it must be at most 67108864"),
    ],
)
def test_bad_phrases(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        PhraseBias(*arguments)
    assert str(caught.value).startswith(message)


def test_bad_bias() -> None:
    model = slow.tiny_model(0, vocab_size=4)
    features = torch.randn(1, 20, 4, dtype=torch.float64)
    with pytest.raises(TypeError, match="bias is a list; it must be a PhraseBias"):
        model.beam_search(features, bias=[[1]])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bias is a int; it must be a PhraseBias"):
        model.greedy_search(features, bias=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bias has a vocab_size of 5; the model's is 4"):
        model.beam_search(features, bias=PhraseBias([[1]], 1.0, vocab_size=5))
    with pytest.raises(ValueError, match="bias has a blank of 1; the model's is 0"):
        model.stream_init(search="modified", bias=PhraseBias([[2]], 1.0, vocab_size=4, blank=1))

"""Streaming: chunks of any size give what the whole utterance gives."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from reference import transducer as slow

from prnn.transducer import Encoder, Hypothesis, PhraseBias, StreamState, Transducer

SEARCHES = ("greedy", "modified", "standard")
PREDICTORS = ("lstm", "gru", "stateless")


def whole(model: Transducer, search: str, features: torch.Tensor, lengths: torch.Tensor) -> list[list[Hypothesis]]:
    if search == "greedy":
        return [[h] for h in model.greedy_search(features, lengths, max_symbols=3)]
    return model.beam_search(features, lengths, beam=4, mode=search, nbest=4, max_symbols=3)


def chunked(
    model: Transducer, search: str, features: torch.Tensor, lengths: torch.Tensor, sizes: list[int]
) -> tuple[list[list[int]], StreamState]:
    """Stream the batch in chunks of the given sizes, over and over."""
    batch, frames, _ = features.shape
    state = model.stream_init(batch, search, beam=4, max_symbols=3)
    tokens: list[list[int]] = [[] for _ in range(batch)]
    start = step = 0
    while start < frames:
        chunk = features[:, start : start + sizes[step % len(sizes)]]
        new, state = model.stream_step(chunk, state, (lengths - start).clamp(0, chunk.shape[1]))
        for row, more in zip(tokens, new, strict=True):
            row += more
        for row, best in zip(tokens, state.best(), strict=True):
            assert best.tokens[: len(row)] == row, "what has been returned stays"
        start += chunk.shape[1]
        step += 1
    new, state = model.stream_finish(state)
    for row, more in zip(tokens, new, strict=True):
        row += more
    return tokens, state


def check(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert [(h.tokens, h.timestamps) for h in ours] == [(h.tokens, h.timestamps) for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-5)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("sizes", [[1], [3], [7], [100], [5, 0, 1, 11]], ids=str)
def test_chunks_give_the_whole(search: str, sizes: list[int]) -> None:
    lengths = torch.tensor([41, 0, 23, 1])
    some = 0
    for seed in range(3):
        stack = 1 + seed
        model = slow.tiny_model(
            seed,
            predictor=PREDICTORS[seed],
            dtype=torch.float32,
            encoder_cell=("lstm", "gru")[seed % 2],
            frame_stack=stack,
            frame_stride=(stack + 1) // 2,
        )
        features = torch.randn(4, 41, 4)
        expected = whole(model, search, features, lengths)
        tokens, state = chunked(model, search, features, lengths, sizes)
        check(state.nbest(4), expected)
        assert tokens == [nbest[0].tokens for nbest in expected]
        some += sum(map(len, tokens))
    assert some > 10


def test_streams_at_their_own_pace() -> None:
    model = slow.tiny_model(0, predictor="lstm", dtype=torch.float32, frame_stack=3, frame_stride=2)
    features = torch.randn(3, 40, 4)
    lengths = torch.tensor([40, 31, 12])
    expected = whole(model, "modified", features, lengths)
    state = model.stream_init(3, "modified", beam=4)
    place = torch.zeros(3, dtype=torch.int64)
    generator = torch.Generator().manual_seed(1)
    while bool((place < lengths).any()):
        counts = torch.minimum(torch.randint(0, 6, (3,), generator=generator), lengths - place)
        chunk = torch.full((3, 5, 4), float("nan"))
        for row, (start, count) in enumerate(zip(place.tolist(), counts.tolist(), strict=True)):
            chunk[row, :count] = features[row, start : start + count]
        _, state = model.stream_step(chunk, state, counts)
        place += counts
    _, state = model.stream_finish(state)
    check(state.nbest(4), expected)


@pytest.mark.parametrize(
    ("cell", "options"),
    [("lstm", {}), ("gru", {}), ("lstm", {"norm": "after", "residual": True}), ("gru", {"norm": "before"})],
    ids=str,
)
@pytest.mark.parametrize(("stack", "stride"), [(1, 1), (3, 1), (3, 2), (4, 4)])
def test_encoder_frames_are_the_same_bits(cell: str, options: dict[str, Any], stack: int, stride: int) -> None:
    torch.manual_seed(stack)
    encoder = Encoder(5, 24, 2, cell, stack, stride, **options).eval()
    encoder.set_normalization(torch.randn(5), torch.rand(5) + 0.5)
    features = torch.randn(3, 37, 5)
    lengths = torch.tensor([37, 20, 2])
    with torch.no_grad():
        expected, expected_lengths = encoder(features, lengths)
        assert expected_lengths.tolist() == [-(-n // stride) for n in lengths.tolist()]
        for size in (1, 4, 10):
            state = encoder.initial_state(3)
            pieces: list[list[torch.Tensor]] = [[], [], []]
            for start in range(0, 37, size):
                chunk = features[:, start : start + size]
                out, counts, state = encoder.step(chunk, (lengths - start).clamp(0, chunk.shape[1]), state)
                for row in range(3):
                    pieces[row].append(out[row, : counts[row]])
            out, counts, state = encoder.finish(state)
            for row in range(3):
                streamed = torch.cat([*pieces[row], out[row, : counts[row]]])
                assert torch.equal(streamed, expected[row, : expected_lengths[row]])


def test_a_state_may_be_gone_on_from_twice() -> None:
    model = slow.tiny_model(1, predictor="gru", dtype=torch.float32)
    features = torch.randn(2, 30, 4)
    for search in SEARCHES:
        _, state = model.stream_step(features[:, :13], model.stream_init(2, search))
        before = state.nbest(4)
        model.stream_step(torch.randn(2, 9, 4), state)
        model.stream_finish(state)
        assert state.nbest(4) == before
        _, again = model.stream_step(features[:, 13:], state)
        _, once = model.stream_step(features, model.stream_init(2, search))
        check(again.nbest(4), once.nbest(4))


def test_some_of_the_streams_go_on_alone() -> None:
    model = slow.tiny_model(2, predictor="lstm", dtype=torch.float32, frame_stack=3)
    features = torch.randn(4, 30, 4)
    for search in SEARCHES:
        _, state = model.stream_step(features[:, :10], model.stream_init(4, search))
        rows = torch.tensor([3, 1])
        _, some = model.stream_step(features[rows, 10:], state.to("cpu").select(rows))
        _, every = model.stream_step(features[:, 10:], state)
        check(some.nbest(4), [every.nbest(4)[3], every.nbest(4)[1]])


def test_a_beam_returns_what_no_hypothesis_disputes() -> None:
    model = slow.tiny_model(0, dtype=torch.float32, gain=2.0)
    state = model.stream_init(1, "modified", beam=4)
    tokens: list[int] = []
    withheld = 0
    for chunk in torch.randn(1, 60, 4).split(4, dim=1):
        (new,), state = model.stream_step(chunk, state)
        tokens += new
        (nbest,) = state.nbest(4)
        longest = min(len(h.tokens) for h in nbest)
        shared = next((i for i in range(longest) if len({h.tokens[i] for h in nbest}) > 1), longest)
        assert tokens == nbest[0].tokens[:shared]
        withheld += len(nbest[0].tokens) > shared
    assert tokens
    assert withheld


def test_bad_arguments_are_named() -> None:
    model = slow.tiny_model(0, dtype=torch.float32)
    with pytest.raises(ValueError, match="batch is 0; it must be at least 1"):
        model.stream_init(0)
    with pytest.raises(ValueError, match="search is 'best'; it must be one of 'greedy', 'modified', 'standard'"):
        model.stream_init(1, "best")
    state = model.stream_init(2)
    with pytest.raises(ValueError, match="chunk has 3 rows; the state has 2 streams"):
        model.stream_step(torch.zeros(3, 1, 4), state)
    with pytest.raises(ValueError, match=r"chunk has shape \(2, 4\); it must be \(N, T, 4\)"):
        model.stream_step(torch.zeros(2, 4), state)
    with pytest.raises(ValueError, match=r"chunk_lengths\[1\] is 2; it must be in \[0, 1\]"):
        model.stream_step(torch.zeros(2, 1, 4), state, torch.tensor([1, 2]))
    with pytest.raises(TypeError, match="state is a NoneType; it must be the StreamState"):
        model.stream_step(torch.zeros(2, 1, 4), None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="count is 0; it must be at least 1"):
        state.nbest(0)
    _, state = model.stream_finish(state)
    with pytest.raises(ValueError, match="state is of streams that have ended"):
        model.stream_step(torch.zeros(2, 1, 4), state)
    with pytest.raises(ValueError, match="state is of streams that have ended"):
        model.stream_finish(state)


# Long streams: symbols are taken out of the state

VARIANTS = [("greedy", {}), ("modified", {}), ("standard", {}), ("greedy", {"durations": (0, 1, 3), "loss": "tdt"}),
            ("standard", {"durations": (0, 1, 3), "loss": "tdt"})]  # fmt: skip


@pytest.mark.parametrize(("search", "options"), VARIANTS, ids=str)
@pytest.mark.parametrize("size", [1, 7])
def test_taking_what_is_certain_changes_nothing(search: str, options: dict[str, object], size: int) -> None:
    features = torch.randn(3, 60, 4, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([60, 17, 41])
    taken_early = 0
    for seed in range(3):
        model = slow.tiny_model(seed, predictor=PREDICTORS[seed], dtype=torch.float32, blank_bias=-1.0, **options)
        expected = whole(model, search, features, lengths)
        state = model.stream_init(3, search, beam=4, max_symbols=3)
        start: list[Hypothesis] = [Hypothesis([], 0.0, [], [])] * 3
        for place in range(0, 60, size):
            _, state = model.stream_step(features[:, place : place + size], state, (lengths - place).clamp(0, size))
            more, state = state.take_certain()
            start = [joined(a, b) for a, b in zip(start, more, strict=True)]
            assert all(not h.tokens for h in state.take_certain()[0]), "all of it is taken at once"
        _, state = model.stream_finish(state)
        taken_early += sum(len(h.tokens) for h in start)
        found = [[joined(a, b) for b in nbest] for a, nbest in zip(start, state.nbest(4), strict=True)]
        check(found, expected)
        for ours, theirs in zip(found, expected, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
    assert taken_early > 5


def test_the_state_of_a_long_stream_stays_small() -> None:
    """One hypothesis has nothing that may change; more have what they differ in."""
    model = slow.tiny_model(0, dtype=torch.float32, blank_bias=-2.0)
    features = torch.randn(1, 400, 4, generator=torch.Generator().manual_seed(0))
    for search, beam in (("greedy", 1), ("standard", 1), ("standard", 2)):
        state = model.stream_init(1, search, beam, max_symbols=3)
        count = 0
        for place in range(0, 400, 40):
            _, state = model.stream_step(features[:, place : place + 40], state)
            (taken,), state = state.take_certain()
            count += len(taken.tokens)
            columns = (state.hypotheses.tokens, state.hypotheses.timestamps, state.hypotheses.log_probs)
            rest = max(len(hypothesis.tokens) for hypothesis in state.nbest(beam)[0])
            assert {column.shape[2] for column in columns} == {rest}
            assert beam > 1 or rest == 0
        assert search != "greedy" or count > 300


def joined(start: Hypothesis, end: Hypothesis) -> Hypothesis:
    return Hypothesis(
        start.tokens + end.tokens, end.score, start.timestamps + end.timestamps, start.log_probs + end.log_probs
    )


@pytest.mark.parametrize(("search", "options"), VARIANTS, ids=str)
def test_an_utterance_ends(search: str, options: dict[str, object]) -> None:
    """With one hypothesis its end changes nothing but the score; with more, the others are gone."""
    features = torch.randn(2, 60, 4, generator=torch.Generator().manual_seed(0))
    for seed in range(3):
        model = slow.tiny_model(seed, predictor=PREDICTORS[seed], dtype=torch.float32, **options)
        for beam in (1, 3):
            _, end = model.stream_finish(model.stream_step(features, model.stream_init(2, search, beam, 3))[1])
            state = model.stream_init(2, search, beam, 3)
            parts = []
            for place in range(0, 60, 20):
                _, state = model.stream_step(features[:, place : place + 20], state)
                best = state.best()
                part, state = state.take_best()
                assert part == best
                parts.append(part)
                assert [len(nbest) for nbest in state.nbest(3)] == [1, 1]
                assert state.best() == [Hypothesis([], 0.0, [], [])] * 2
                assert state.hypotheses.tokens.shape[2] == 0
            _, state = model.stream_finish(state)
            parts.append(state.best())
            for row in range(2):
                tokens = [token for part in parts for token in part[row].tokens]
                stamps = [frame for part in parts for frame in part[row].timestamps]
                assert stamps == sorted(stamps)
                if state.hypotheses.scores.shape[1] == 1:
                    assert (tokens, stamps) == (end.best()[row].tokens, end.best()[row].timestamps)
                    assert sum(part[row].score for part in parts) == pytest.approx(end.best()[row].score, abs=1e-5)


def test_phrases_at_the_end_of_an_utterance() -> None:
    """A phrase begun before it goes on after it; the share that it had is counted once."""
    bias = PhraseBias([[1, 2, 3], [4, 4]], [3.0, 2.0], vocab_size=5)
    features = torch.randn(1, 60, 4, generator=torch.Generator().manual_seed(0))
    spelled = 0
    for seed in range(3):
        model = slow.tiny_model(seed, blank_bias=0.0)
        _, end = model.stream_finish(model.stream_step(features, model.stream_init(1, "standard", 1, 3, bias))[1])
        for place in range(8, 60, 12):
            _, state = model.stream_step(features[:, :place], model.stream_init(1, "standard", 1, 3, bias))
            first, state = state.take_best()
            share = float(bias.carried(state.hypotheses.predictor[-1]))
            _, state = model.stream_finish(model.stream_step(features[:, place:], state)[1])
            assert first[0].tokens + state.best()[0].tokens == end.best()[0].tokens
            assert first[0].score - share + state.best()[0].score == pytest.approx(end.best()[0].score, abs=1e-9)
            spelled += share > 0
    assert spelled


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("biased", [False, True])
def test_log_probs_of_symbols(search: str, biased: bool) -> None:
    """The joiner's softmax without the blank at a symbol's frame, after the symbols before it; phrases add nothing."""
    features = torch.randn(1, 60, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bias = PhraseBias([[1, 2, 3], [4, 4]], [3.0, 2.0], vocab_size=5) if biased and search != "greedy" else None
    some = 0
    for seed in range(3):
        model = slow.tiny_model(seed, predictor=PREDICTORS[seed], blank_bias=0.0)
        _, state = model.stream_step(features, model.stream_init(1, search, 4, 3, bias))
        _, state = model.stream_finish(state)
        for hypothesis in state.nbest(4)[0]:
            table = slow.log_probs(model, slow.encode(model, features[0]), tuple(hypothesis.tokens))
            places = zip(hypothesis.timestamps, hypothesis.tokens, strict=True)
            expected = [
                float(table[frame, u, 1:].log_softmax(0)[symbol - 1]) for u, (frame, symbol) in enumerate(places)
            ]
            assert hypothesis.log_probs == pytest.approx(expected, abs=1e-9)
            some += len(expected)
    assert some > 10


def test_the_best_is_that_of_all_frames_it_waits_for() -> None:
    """With a token-and-duration transducer, hypotheses of equal symbols that wait for different frames count together,
    and the most probable of them goes on."""
    model = slow.tiny_model(0, durations=(0, 1, 3), loss="tdt")
    state = model.stream_init(1, "standard", beam=3)
    hypotheses = state.hypotheses
    hypotheses = hypotheses._replace(
        tokens=torch.tensor([[[1], [2], [2]]]),
        timestamps=torch.zeros(1, 3, 1, dtype=torch.int64),
        log_probs=torch.zeros(1, 3, 1, dtype=torch.float64),
        lengths=torch.ones(1, 3, dtype=torch.int64),
        scores=torch.tensor([[0.4, 0.25, 0.35]], dtype=torch.float64).log(),
        ahead=torch.tensor([[0, 1, 2]]),
    )
    (best,), after = dataclasses.replace(state, hypotheses=hypotheses).take_best()
    assert best.tokens == [2]
    assert best.score == pytest.approx(math.log(0.6))
    assert after.hypotheses.ahead[0, 0] == 2
    assert after.hypotheses.scores[0].tolist() == [0.0, -math.inf, -math.inf]

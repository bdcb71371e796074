"""Streaming: chunks of any size give what the whole utterance gives."""

import pytest
import torch
from reference import transducer as slow

from prnn.transducer import Encoder, Hypothesis, StreamState, Transducer

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


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize(("stack", "stride"), [(1, 1), (3, 1), (3, 2), (4, 4)])
def test_encoder_frames_are_the_same_bits(cell: str, stack: int, stride: int) -> None:
    torch.manual_seed(stack)
    encoder = Encoder(5, 24, 2, cell, stack, stride).eval()
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

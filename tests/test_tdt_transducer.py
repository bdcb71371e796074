"""The token-and-duration transducer: its loss, and searches that skip frames, whole, in batches and in chunks."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import durations as paths
from reference import transducer as slow
from reference.transducer_search import Found
from reference.transducer_search import greedy as slow_greedy
from test_streaming import check, chunked
from test_training import SMALL_MODEL, TEXTS, options

import prnn
from prnn.asr import Recogniser, read_manifest
from prnn.asr.evaluation import evaluate
from prnn.asr.training import train
from prnn.transducer import Encoder, Hypothesis, Joiner, StatelessPredictor, Transducer, TransducerConfig
from prnn.transducer.greedy import greedy_search
from prnn.transducer.hypothesis import Decoder, found_hypotheses
from prnn.transducer.predictor import State

DURATIONS = (0, 1, 2, 4)


def tiny_model(seed: int, durations: tuple[int, ...] = DURATIONS, **options: object) -> Transducer:
    return slow.tiny_model(seed, loss="tdt", durations=durations, **options)


@torch.no_grad()
def log_probs(model: Transducer, frames: torch.Tensor, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns those of symbols and durations after `tokens`, at every frame."""
    targets = torch.tensor([tokens], dtype=torch.int64)
    logits = model.joiner(frames[None], model.predictor(targets))[0, :, -1].double()
    symbols, durations = logits.split([model.joiner.vocab_size, len(model.durations)], -1)
    return symbols.log_softmax(-1), durations.log_softmax(-1)


def greedy(model: Transducer, frames: torch.Tensor, max_symbols: int) -> Found:
    """One prediction at a time."""

    def predict(symbol: int, state: State | None) -> tuple[torch.Tensor, State]:
        before = model.predictor.initial_state(1) if state is None else state
        return model.predictor.step(torch.tensor([symbol]), before)

    def join(frame: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model.joiner(frame[None, None], out[None])[0, 0, 0]
        return logits

    with torch.no_grad():
        return slow_greedy(frames, predict, join, model.blank, model.durations, max_symbols)


@pytest.mark.parametrize("omega", [0.0, 0.25])
def test_loss_is_the_sum_over_paths(omega: float) -> None:
    model = tiny_model(0, gain=1.0, sigma=0.1, omega=omega)
    features, lengths = torch.randn(3, 14, 4, dtype=torch.float64), torch.tensor([14, 9, 3])
    targets, target_lengths = torch.randint(1, 5, (3, 4)), torch.tensor([4, 2, 0])
    costs = []
    for row in range(3):
        target = targets[row, : target_lengths[row]]
        frames = slow.encode(model, features[row, : lengths[row]])
        with torch.no_grad():
            tokens, durations = model.joiner(frames[None], model.predictor(target[None]))[0].split([5, 4], -1)
        tdt = paths.enumerated_cost(paths.tdt_arcs(tokens, durations, target.tolist(), 0, list(DURATIONS), 0.1))
        rnnt = paths.enumerated_cost(paths.rnnt_arcs(tokens, target.tolist(), 0))
        costs.append((1 - omega) * tdt + omega * rnnt)
    parts = model.loss_parts(features, lengths, targets, target_lengths)
    torch.testing.assert_close(parts.total.detach(), torch.stack(costs).mean(), rtol=1e-10, atol=0)
    assert parts.simple is None
    parts.total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_loss_without_the_logits_is_the_same(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(0, gain=1.0, sigma=0.1, omega=0.25, fastemit=0.1, joiner_activation=activation)
    features, lengths = torch.randn(3, 14, 4, dtype=torch.float64), torch.tensor([14, 9, 3])
    batch = features, lengths, torch.randint(1, 5, (3, 4)), torch.tensor([4, 2, 0])
    results = []
    for most in (2**22, 0):
        monkeypatch.setattr("prnn.transducer.loss._MOST_LOGITS", most)
        model.zero_grad()
        loss = model(*batch)
        loss.backward()
        results.append((loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("durations", [DURATIONS, (2, 1), (0, 3), (0, 1, 9)], ids=str)
@pytest.mark.parametrize("max_symbols", [1, 3])
def test_greedy_search_is_that_of_its_definition(seed: int, durations: tuple[int, ...], max_symbols: int) -> None:
    model = tiny_model(seed, durations, predictor=("stateless", "lstm")[seed % 2], blank=seed % 5)
    features, lengths = torch.randn(4, 40, 4, dtype=torch.float64), torch.tensor([40, 13, 0, 1])
    found = model.greedy_search(features, lengths, max_symbols)
    for row, (hypothesis, length) in enumerate(zip(found, lengths.tolist(), strict=True)):
        frames = slow.encode(model, features[row, :length]) if length else torch.empty(0, 12)
        expected = greedy(model, frames, max_symbols)
        assert (hypothesis.tokens, hypothesis.timestamps) == (expected.symbols, expected.frames)
        assert hypothesis.score == pytest.approx(expected.score, abs=1e-9)
        assert hypothesis.log_probs == pytest.approx(expected.confidences, abs=1e-9)


def test_a_blank_of_duration_0_goes_on_by_1() -> None:
    model = tiny_model(0, (0, 4))
    with torch.no_grad():
        model.joiner.output.bias[-2] += 1000.0
    features = torch.randn(1, 40, 4, dtype=torch.float64)
    frames = slow.encode(model, features[0])
    (found,) = model.greedy_search(features, max_symbols=1)
    assert found.timestamps == greedy(model, frames, 1).frames
    assert 1 in [late - early for early, late in itertools.pairwise(found.timestamps)]


def test_greedy_search_skips_frames() -> None:
    """A frame that no duration lands on does not matter."""
    model = tiny_model(1, (3,))
    features = torch.randn(1, 48, 4, dtype=torch.float64)
    (found,) = model.greedy_search(features, max_symbols=2)
    assert found.tokens
    assert {t % 3 for t in found.timestamps} == {0}
    frames = slow.encode(model, features[0])[None]
    frames[:, torch.arange(frames.shape[1]) % 3 > 0] = float("nan")
    decoder = Decoder(model.predictor, model.joiner, model.blank, model.durations)
    with torch.no_grad():
        again, _ = greedy_search(decoder, frames, torch.tensor([frames.shape[1]]), 2)
    assert found_hypotheses(again) == [found]


@pytest.mark.parametrize("symbol", [0, 2], ids=["blank", "symbol"])
@pytest.mark.parametrize("out_of_0", [-1e30, float("-inf"), float("nan")])
def test_a_search_ends_where_no_duration_leads_out_of_a_frame(symbol: int, out_of_0: float) -> None:
    model = tiny_model(0, (0, 1))
    with torch.no_grad():
        model.joiner.output.bias[symbol] += 1000.0
        model.joiner.output.bias[-1] = out_of_0
    features = torch.randn(2, 11, 4, dtype=torch.float64)
    frames, most = 6, 1 if math.isnan(out_of_0) else 3  # a duration that is no number is 1
    for found in model.greedy_search(features, max_symbols=3):
        assert found.timestamps == ([] if symbol == 0 else [t for t in range(frames) for _ in range(most)])
    _, state = model.stream_step(features[:, :5], model.stream_init(2, "greedy", max_symbols=3))
    _, state = model.stream_step(features[:, 5:], state)
    _, state = model.stream_finish(state)
    assert [h.timestamps for h in state.best()] == [found.timestamps] * 2
    for mode in ("modified", "standard"):
        for nbest in model.beam_search(features, beam=3, mode=mode, nbest=3, max_symbols=3):
            assert all(nbest[0].timestamps.count(t) <= 3 for t in range(frames))
        _, state = model.stream_step(features, model.stream_init(2, mode, beam=3, max_symbols=3))
        _, state = model.stream_finish(state)
        assert len(state.best()) == 2


@pytest.mark.parametrize("sizes", [[1], [3], [7], [100], [5, 0, 1, 11]], ids=str)
@pytest.mark.parametrize("durations", [DURATIONS, (1, 9)], ids=str)
def test_chunks_give_the_whole(sizes: list[int], durations: tuple[int, ...]) -> None:
    """Durations that reach beyond a chunk, too."""
    lengths = torch.tensor([41, 0, 23, 1])
    some = 0
    for seed in range(4):
        model = tiny_model(seed, durations, dtype=torch.float32, predictor=("lstm", "stateless")[seed % 2])
        features = torch.randn(4, 41, 4)
        expected = model.greedy_search(features, lengths, max_symbols=3)
        tokens, state = chunked(model, "greedy", features, lengths, sizes)
        check([[h] for h in state.best()], [[h] for h in expected])
        assert tokens == [h.tokens for h in expected]
        some += sum(len(row) for row in tokens)
    assert some > 0


Beam = dict[tuple[tuple[int, ...], int], tuple[float, list[int]]]


def add(beam: Beam, tokens: tuple[int, ...], frame: int, score: float, stamps: list[int]) -> None:
    """Add a way to spell `tokens` and wait for `frame`. The most probable way's timestamps stay."""
    total, kept = beam.get((tokens, frame), (-math.inf, []))
    beam[tokens, frame] = (float(np.logaddexp(total, score)), stamps if score > total else kept)


def largest(beam: Beam, size: int) -> Beam:
    return dict(sorted(beam.items(), key=lambda item: -item[1][0])[:size])


def ways_on(
    model: Transducer, frames: torch.Tensor, t: int, tokens: tuple[int, ...], last: bool
) -> list[tuple[float, tuple[int, ...], int]]:
    """Returns what `tokens` may become at frame t, and the frames they then wait for; `last`: a symbol ends the
    frame."""
    symbols, durations = (x[t].tolist() for x in log_probs(model, frames, list(tokens)))
    found = []
    for (symbol, one), (duration, other) in itertools.product(
        enumerate(symbols), zip(model.durations, durations, strict=True)
    ):
        if symbol == model.blank:
            found.append((one + other, tokens, t + max(duration, 1)))
        else:
            found.append((one + other, (*tokens, symbol), t + max(duration, int(last))))
    return found


def spelled(beam: Beam) -> list[Hypothesis]:
    """The transcripts, wherever they wait, best first."""
    ends: Beam = {}
    for (tokens, _), (score, stamps) in sorted(beam.items(), key=lambda item: -item[1][0]):
        add(ends, tokens, 0, score, stamps)
    return [Hypothesis(list(tokens), *way) for (tokens, _), way in largest(ends, len(ends)).items()]


def beam_search(model: Transducer, frames: torch.Tensor, size: int, max_symbols: int) -> list[Hypothesis]:
    """Beam search over dictionaries of prefixes and frames."""
    beam: Beam = {((), 0): (0.0, [])}
    for t in range(len(frames)):
        waiting = {key: way for key, way in beam.items() if key[1] > t}
        level = {key: way for key, way in beam.items() if key[1] == t}
        for depth in range(1, max_symbols + 1):
            leaving: list[tuple[float, tuple[int, ...], int, list[int]]] = []
            staying: Beam = {}
            for (tokens, _), (score, stamps) in level.items():
                for more, longer, frame in ways_on(model, frames, t, tokens, depth == max_symbols):
                    own = [*stamps, *[t] * (len(longer) - len(tokens))]
                    if frame == t:
                        staying[longer, t] = (score + more, own)
                    else:
                        leaving.append((score + more, longer, frame, own))
            for score, tokens, frame, stamps in sorted(leaving, key=lambda way: -way[0])[:size]:
                add(waiting, tokens, frame, score, stamps)
            ranked = sorted((score for score, _ in waiting.values()), reverse=True)
            bar = ranked[size - 1] if len(ranked) >= size else -math.inf
            level = {key: way for key, way in largest(staying, size).items() if way[0] > bar}
        beam = largest(waiting, size)
    return spelled(beam)


@pytest.mark.parametrize("durations", [DURATIONS, (2, 1), (0, 3), (0, 1, 9)], ids=str)
@pytest.mark.parametrize("mode", ["modified", "standard"])
def test_beam_against_dictionaries_of_prefixes(durations: tuple[int, ...], mode: str) -> None:
    symbols = 0
    for seed, beam in enumerate((1, 2, 3, 5)):
        model = tiny_model(seed, durations, predictor=("stateless", "lstm")[seed % 2], blank=seed, gain=2.0)
        features, lengths = torch.randn(3, 30, 4, dtype=torch.float64), torch.tensor([30, 13, 0])
        lists = model.beam_search(features, lengths, beam=beam, mode=mode, nbest=beam, max_symbols=3)
        for row, length in enumerate(lengths.tolist()):
            frames = slow.encode(model, features[row, :length]) if length else torch.empty(0, 12)
            expected = beam_search(model, frames, beam, 1 if mode == "modified" else 3)
            assert [(h.tokens, h.timestamps) for h in lists[row]] == [(h.tokens, h.timestamps) for h in expected]
            assert [h.score for h in lists[row]] == pytest.approx([h.score for h in expected], abs=1e-9)
            symbols += sum(len(h.tokens) for h in expected)
    assert symbols > 10


@pytest.mark.parametrize("max_symbols", [1, 2])
def test_beam_that_holds_everything_is_exhaustive(max_symbols: int) -> None:
    """All paths of a tiny lattice, one after the other."""
    model = tiny_model(3, (0, 1, 3), vocab_size=3, gain=1.0)
    features = torch.randn(1, 6, 4, dtype=torch.float64)
    frames = slow.encode(model, features[0])
    expected: dict[tuple[int, ...], list[float]] = {}

    def walk(tokens: tuple[int, ...], t: int, here: int, score: float) -> None:
        if t >= len(frames):
            expected.setdefault(tokens, []).append(score)
            return
        for more, longer, frame in ways_on(model, frames, t, tokens, here + 1 == max_symbols):
            walk(longer, frame, here + 1 if frame == t else 0, score + more)

    walk((), 0, 0, 0.0)
    (found,) = model.beam_search(features, beam=600, mode="standard", nbest=600, max_symbols=max_symbols)
    assert len(found) == len(expected) > 10
    for hypothesis in found:
        total = torch.tensor(expected[tuple(hypothesis.tokens)], dtype=torch.float64).logsumexp(0)
        assert hypothesis.score == pytest.approx(total.item(), abs=1e-9)


def test_scores_of_paths_that_end_at_the_end_are_the_loss() -> None:
    """With duration 1 alone every path ends at T; those of the loss end with a blank."""
    model = tiny_model(1, (1,), vocab_size=3, gain=1.0)
    features = torch.randn(1, 8, 4, dtype=torch.float64)
    frames = slow.encode(model, features[0])
    (found,) = model.beam_search(features, beam=100, nbest=100)
    assert sum(math.exp(h.score) for h in found) == pytest.approx(1.0, abs=1e-9)
    (alone,) = (h for h in found if not h.tokens)
    with torch.no_grad():
        empty = torch.empty(1, 0, dtype=torch.int64)
        logits = model.joiner(frames[None], model.predictor(empty))
        loss = prnn.tdt_loss(logits, empty, torch.tensor([4]), torch.tensor([0]), 0, [1])
    assert alone.score == pytest.approx(-loss.item(), abs=1e-9)


@pytest.mark.parametrize("sizes", [[1], [3], [5, 0, 1, 11]], ids=str)
@pytest.mark.parametrize("search_method", ["modified", "standard"])
def test_chunks_give_the_whole_beam(sizes: list[int], search_method: str) -> None:
    lengths = torch.tensor([41, 0, 23, 1])
    model = tiny_model(4, (0, 1, 9), dtype=torch.float32, predictor="lstm")
    features = torch.randn(4, 41, 4)
    expected = model.beam_search(features, lengths, beam=4, mode=search_method, nbest=4, max_symbols=3)
    tokens, state = chunked(model, search_method, features, lengths, sizes)
    check(state.nbest(4), expected)
    assert tokens == [nbest[0].tokens for nbest in expected]


def test_streams_are_selected_and_gone_on_from() -> None:
    model = tiny_model(2, (0, 1, 9), dtype=torch.float32)
    features = torch.randn(3, 31, 4)
    _, state = model.stream_step(features[:, :13], model.stream_init(3))
    order = torch.tensor([2, 0])
    _, state = model.stream_step(features[order, 13:], state.select(order))
    _, state = model.stream_finish(state)
    expected = model.greedy_search(features)
    assert [h.tokens for h in state.best()] == [expected[i].tokens for i in (2, 0)]


def test_it_learns() -> None:
    """A few steps on one batch lower the loss, and greedy search then finds its targets."""
    torch.manual_seed(0)
    config = TransducerConfig(vocab_size=5, feature_dim=4, frame_stack=1, encoder_layers=1, encoder_hidden=32,
                              predictor="stateless", predictor_hidden=16, joiner_dim=32, loss="tdt")  # fmt: skip
    model = Transducer.from_config(config)
    features, lengths = torch.randn(2, 12, 4), torch.tensor([12, 9])
    targets, target_lengths = torch.tensor([[1, 2, 3], [4, 1, 0]]), torch.tensor([3, 2])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        model(features, lengths, targets, target_lengths).backward()
        optimizer.step()
    assert [h.tokens for h in model.greedy_search(features, lengths)] == [[1, 2, 3], [4, 1]]


def test_a_recogniser_is_trained_and_loaded(tmp_path: Path) -> None:
    opts = replace(options(tmp_path), model={**SMALL_MODEL, "loss": "tdt"})
    recogniser = Recogniser.load(train(opts, progress=False))
    utterances = read_manifest(opts.manifest)
    assert evaluate(recogniser, utterances).texts == TEXTS
    assert evaluate(recogniser, utterances, beam=3).texts == TEXTS


def test_config_goes_through_json() -> None:
    config = TransducerConfig(vocab_size=7, loss="tdt", durations=(0, 1, 3), sigma=0.1, omega=0.0)
    assert TransducerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    model = Transducer.from_config(config)
    assert model.durations == (0, 1, 3)
    assert model.joiner.output.out_features == 10
    plain = Transducer.from_config(TransducerConfig(vocab_size=7))
    assert plain.durations == ()
    assert plain.joiner.output.out_features == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"durations": (0,)}, r"durations is \(0,\); it must have 1 to 16 different numbers"),
        ({"durations": ()}, r"durations is \(\); it must have"),
        ({"durations": (1, 1)}, r"durations is \(1, 1\)"),
        ({"durations": (-1, 1)}, r"durations is \(-1, 1\)"),
        ({"durations": tuple(range(17))}, "1 to 16 different"),
        ({"durations": (1.0,)}, r"durations is \(1\.0,\); it must be a tuple of ints"),
        ({"durations": 3}, "durations is 3; it must be a tuple of ints"),
        ({"sigma": -1.0}, r"sigma is -1\.0; it must be at least 0"),
        ({"omega": 1.5}, r"omega is 1\.5; it must be at least 0 and at most 1"),
        ({"omega": None}, "omega is None; it must be a number"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        TransducerConfig.from_dict({"vocab_size": 5, "loss": "tdt", **options})


def test_joiners_of_other_losses_are_refused() -> None:
    encoder, predictor = Encoder(4, 8, 1), StatelessPredictor(5, 6)
    with pytest.raises(ValueError, match="the joiner's durations is 0; with the tdt loss it must be 5"):
        Transducer(encoder, predictor, Joiner(8, 6, 3, 5), loss="tdt")
    with pytest.raises(ValueError, match="the joiner's durations is 2; with the full loss it must be 0"):
        Transducer(encoder, predictor, Joiner(8, 6, 3, 5, durations=2))

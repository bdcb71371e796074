"""The token-and-duration transducer: its loss, and greedy search that skips frames, whole, in batches and in chunks."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from reference import durations as paths
from reference import transducer as slow
from test_streaming import check, chunked
from test_training import SMALL_MODEL, TEXTS, options

import prnn
from prnn.asr import Recogniser, read_manifest
from prnn.asr.evaluation import evaluate
from prnn.asr.training import train
from prnn.transducer import Encoder, Hypothesis, Joiner, StatelessPredictor, Transducer, TransducerConfig
from prnn.transducer.hypothesis import Decoder, best_lists
from prnn.transducer.streaming import SearchOptions, search

DURATIONS = (0, 1, 2, 4)


def tiny_model(seed: int, durations: tuple[int, ...] = DURATIONS, **options: object) -> Transducer:
    return slow.tiny_model(seed, loss="tdt", durations=durations, **options)


@torch.no_grad()
def log_probs(model: Transducer, frames: torch.Tensor, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of symbols and durations after `tokens`, at every frame."""
    targets = torch.tensor([tokens], dtype=torch.int64)
    logits = model.joiner(frames[None], model.predictor(targets))[0, :, -1].double()
    symbols, durations = logits.split([model.joiner.vocab_size, len(model.durations)], -1)
    return symbols.log_softmax(-1), durations.log_softmax(-1)


def greedy(model: Transducer, frames: torch.Tensor, max_symbols: int) -> Hypothesis:
    """One prediction at a time."""
    tokens: list[int] = []
    stamps: list[int] = []
    score, t, here = 0.0, 0, 0
    while t < len(frames):
        symbols, durations = (x[t] for x in log_probs(model, frames, tokens))
        symbol = int(symbols.argmax())
        ways = [i for i, d in enumerate(model.durations) if d > 0 or symbol != model.blank]
        place = max(ways, key=lambda i: float(durations[i]))
        score += float(symbols[symbol] + durations[place])
        step = model.durations[place]
        if symbol != model.blank:
            tokens.append(symbol)
            stamps.append(t)
            here += 1
            step = max(step, int(here == max_symbols))
        here = 0 if step else here
        t += step
    return Hypothesis(tokens, score, stamps)


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
        assert (hypothesis.tokens, hypothesis.timestamps) == (expected.tokens, expected.timestamps)
        assert hypothesis.score == pytest.approx(expected.score, abs=1e-9)


def test_greedy_search_skips_frames() -> None:
    """What lies in a frame that no duration lands on does not matter."""
    model = tiny_model(1, (3,))
    features = torch.randn(1, 48, 4, dtype=torch.float64)
    (found,) = model.greedy_search(features, max_symbols=2)
    assert found.tokens
    assert {t % 3 for t in found.timestamps} == {0}
    frames = slow.encode(model, features[0])[None]
    frames[:, torch.arange(frames.shape[1]) % 3 > 0] = float("nan")
    decoder = Decoder(model.predictor, model.joiner, model.blank, model.durations)
    with torch.no_grad():
        hypotheses = search(decoder, SearchOptions.checked("greedy", 1, 2), frames, torch.tensor([frames.shape[1]]))
    assert best_lists(hypotheses, 1, False) == [[found]]


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
    with pytest.raises(prnn.NotSupportedError, match="greedy search alone"):
        evaluate(recogniser, utterances, beam=3)


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
        ({"omega": 1.5}, r"omega is 1\.5; it must be in \[0, 1\]"),
        ({"omega": None}, "omega is None; it must be a number"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        TransducerConfig.from_dict({"vocab_size": 5, "loss": "tdt", **options})


def test_what_there_is_not() -> None:
    model = tiny_model(0)
    with pytest.raises(prnn.NotSupportedError, match="search is 'modified'; a tdt model has greedy search alone"):
        model.beam_search(torch.zeros(1, 9, 4, dtype=torch.float64))
    with pytest.raises(prnn.NotSupportedError, match="search is 'standard'; a tdt model"):
        model.stream_init(1, "standard")
    encoder, predictor = Encoder(4, 8, 1), StatelessPredictor(5, 6)
    with pytest.raises(ValueError, match="the joiner's durations is 0; with the tdt loss it must be 5"):
        Transducer(encoder, predictor, Joiner(8, 6, 3, 5), loss="tdt")
    with pytest.raises(ValueError, match="the joiner's durations is 2; with the full loss it must be 0"):
        Transducer(encoder, predictor, Joiner(8, 6, 3, 5, durations=2))

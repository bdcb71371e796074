"""Greedy and beam search against slow twins, exhaustive search and each other."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from reference import transducer as slow

import prnn
from prnn.transducer import Hypothesis, StreamState, Transducer

PREDICTORS = ("lstm", "gru", "stateless")


def spelled(hypotheses: list[Hypothesis]) -> list[tuple[list[int], list[int]]]:
    return [(h.tokens, h.timestamps) for h in hypotheses]


def scores(hypotheses: list[Hypothesis]) -> torch.Tensor:
    return torch.tensor([h.score for h in hypotheses], dtype=torch.float64)


def same(hypotheses: list[Hypothesis], expected: list[Hypothesis], tolerance: float = 1e-9) -> None:
    assert spelled(hypotheses) == spelled(expected)
    torch.testing.assert_close(scores(hypotheses), scores(expected), rtol=0, atol=tolerance)


@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("max_symbols", [1, 3])
def test_greedy_against_one_symbol_at_a_time(predictor: str, max_symbols: int) -> None:
    symbols = 0
    for seed in range(4):
        model = slow.tiny_model(seed, predictor=predictor, blank=seed, blank_bias=0.5)
        features = torch.randn(40, 4, dtype=torch.float64)
        expected = slow.greedy(model, slow.encode(model, features), max_symbols)
        same(model.greedy_search(features[None], max_symbols=max_symbols), [expected])
        symbols += len(expected.tokens)
    assert symbols > 10


@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("mode", ["modified", "standard"])
def test_beam_against_dictionaries_of_prefixes(predictor: str, mode: str) -> None:
    symbols = 0
    for seed, beam in enumerate((1, 2, 3, 5)):
        model = slow.tiny_model(seed, predictor=predictor, blank=seed, gain=2.0, blank_bias=-1.0)
        features = torch.randn(24, 4, dtype=torch.float64)
        expected = slow.beam_search(model, slow.encode(model, features), beam, 2, mode == "modified")
        (found,) = model.beam_search(features[None], beam=beam, mode=mode, nbest=beam, max_symbols=2)
        same(found, expected)
        symbols += sum(len(h.tokens) for h in expected)
    assert symbols > 10


def test_modified_beam_that_holds_everything_is_exhaustive() -> None:
    for seed in range(3):
        model = slow.tiny_model(seed, vocab_size=3, gain=1.0)
        features = torch.randn(8, 4, dtype=torch.float64)
        expected = slow.exhaustive(model, slow.encode(model, features), 1, modified=True)
        assert len(expected) == 31
        (found,) = model.beam_search(features[None], beam=40, nbest=40)
        assert [tuple(h.tokens) for h in found] == [tokens for _, tokens in expected]
        exact = torch.tensor([score for score, _ in expected], dtype=torch.float64)
        torch.testing.assert_close(scores(found), exact, rtol=0, atol=1e-9)
        assert abs(float(exact.logsumexp(0))) < 1e-9, "every path is one transcript's, and they sum to one"
        frames = slow.encode(model, features)[None]
        for score, tokens in expected:
            targets = torch.tensor([tokens], dtype=torch.int64).reshape(1, -1)
            logits = model.joiner(frames, model.predictor(targets))
            loss = prnn.rnnt_loss(
                logits, targets, torch.tensor([4]), torch.tensor([len(tokens)]), blank=0, rnnt_type="modified"
            )
            assert loss.item() == pytest.approx(-score, abs=1e-9)


def test_standard_beam_that_holds_everything_is_exhaustive() -> None:
    for seed in range(2):
        model = slow.tiny_model(seed, vocab_size=3, gain=1.0)
        features = torch.randn(6, 4, dtype=torch.float64)
        expected = slow.exhaustive(model, slow.encode(model, features), 2, modified=False)
        assert len(expected) == 127
        (found,) = model.beam_search(features[None], beam=130, mode="standard", nbest=130, max_symbols=2)
        assert [tuple(h.tokens) for h in found] == [tokens for _, tokens in expected]
        exact = torch.tensor([score for score, _ in expected], dtype=torch.float64)
        torch.testing.assert_close(scores(found), exact, rtol=0, atol=1e-9)


def test_standard_beam_scores_are_the_loss() -> None:
    model = slow.tiny_model(1, vocab_size=3, gain=1.0)
    features = torch.randn(1, 6, 4, dtype=torch.float64)
    (found,) = model.beam_search(features, beam=300, mode="standard", nbest=300, max_symbols=4)
    for hypothesis in [h for h in found if len(h.tokens) <= 4]:
        targets = torch.tensor([hypothesis.tokens], dtype=torch.int64).reshape(1, -1)
        loss = model(features, torch.tensor([6]), targets, torch.tensor([targets.shape[1]]))
        assert hypothesis.score == pytest.approx(-loss.item(), abs=1e-9)


def test_modified_beam_of_one_is_greedy_with_one_symbol_a_frame() -> None:
    for seed in range(6):
        model = slow.tiny_model(seed, predictor=PREDICTORS[seed % 3])
        features = torch.randn(2, 40, 4, dtype=torch.float64)
        greedy = model.greedy_search(features, max_symbols=1)
        assert any(h.tokens for h in greedy)
        same([nbest[0] for nbest in model.beam_search(features, beam=1)], greedy)


@pytest.mark.parametrize("method", ["greedy", "modified", "standard"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_is_its_utterances(method: str, dtype: torch.dtype) -> None:
    def search(model: Transducer, features: torch.Tensor, lengths: torch.Tensor | None) -> list[list[Hypothesis]]:
        if method == "greedy":
            return [[h] for h in model.greedy_search(features, lengths, max_symbols=3)]
        return model.beam_search(features, lengths, beam=4, mode=method, nbest=4)

    lengths = torch.tensor([30, 0, 17, 1, 29])
    for seed in range(3):
        model = slow.tiny_model(seed, predictor=PREDICTORS[seed], dtype=dtype, frame_stack=3, frame_stride=2)
        features = torch.randn(5, 30, 4, dtype=dtype)
        for row, length in enumerate(lengths.tolist()):
            features[row, length:] = float("nan")
        batch = search(model, features, lengths)
        for row, length in enumerate(lengths.tolist()):
            same(search(model, features[row : row + 1, :length], None)[0], batch[row], 1e-5)
        assert spelled(batch[1]) == [([], [])]
        assert batch[1][0].score == 0.0


def test_lists_are_sorted_and_distinct() -> None:
    model = slow.tiny_model(3, gain=1.5)
    features = torch.randn(3, 40, 4, dtype=torch.float64)
    for mode in ("modified", "standard"):
        for nbest in model.beam_search(features, beam=6, mode=mode, nbest=6):
            assert len({tuple(h.tokens) for h in nbest}) == 6
            assert [h.score for h in nbest] == sorted((h.score for h in nbest), reverse=True)
            for h in nbest:
                assert len(h.timestamps) == len(h.tokens)
                assert h.timestamps == sorted(h.timestamps)
                assert all(0 <= t < 20 for t in h.timestamps)
                most = 1 if mode == "modified" else 3
                assert max(map(h.timestamps.count, h.timestamps)) <= most
        shorter = model.beam_search(features, beam=6, mode=mode, nbest=2)
        full = model.beam_search(features, beam=6, mode=mode, nbest=6)
        assert shorter == [nbest[:2] for nbest in full]


def test_length_norm_orders_by_score_per_symbol() -> None:
    changed = 0
    for seed in range(5):
        model = slow.tiny_model(seed, gain=1.0, blank_bias=2.0)
        features = torch.randn(1, 20, 4, dtype=torch.float64)
        (plain,) = model.beam_search(features, beam=8, nbest=8)
        (normed,) = model.beam_search(features, beam=8, nbest=8, length_norm=True)
        assert normed == sorted(plain, key=lambda h: -h.score / (len(h.tokens) + 1))
        changed += normed != plain
    assert changed


def test_a_model_that_never_emits_blank_stops() -> None:
    model = slow.tiny_model(0, blank_bias=-1000.0)
    features = torch.randn(1, 10, 4, dtype=torch.float64)
    (found,) = model.greedy_search(features, max_symbols=3)
    assert found.timestamps == [t for t in range(5) for _ in range(3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beam": 0}, r"beam is 0; it must be at least 1"),
        ({"beam": 2.0}, r"beam is 2\.0; it must be an int"),
        ({"nbest": 0}, r"nbest is 0; it must be at least 1"),
        ({"nbest": 5}, r"nbest is 5; it must be at most beam, 4"),
        ({"max_symbols": 0}, r"max_symbols is 0; it must be at least 1"),
        ({"mode": "wide"}, r"mode is 'wide'; it must be one of 'modified', 'standard'"),
        ({"feature_lengths": torch.tensor([11])}, r"feature_lengths\[0\] is 11; it must be in \[0, 10\]"),
        ({"feature_lengths": torch.tensor([-1])}, r"feature_lengths\[0\] is -1; it must be in \[0, 10\]"),
        ({"feature_lengths": torch.tensor([1.0])}, r"feature_lengths is a tensor of torch\.float32; .* integers"),
        ({"feature_lengths": torch.tensor([1, 2])}, r"feature_lengths has shape \(2,\); it must be \(1,\)"),
        ({"features": torch.zeros(1, 10, 3)}, r"features has shape \(1, 10, 3\); it must be \(N, T, 4\)"),
        ({"features": torch.zeros(0, 10, 4)}, r"features has shape \(0, 10, 4\); it must be \(N, T, 4\), N at least 1"),
        ({"features": torch.zeros(1, 10, 4, dtype=torch.int64)}, r"features is a tensor of torch\.int64; .* floats"),
        ({"features": [[0.0]]}, r"features is a list; it must be a tensor of floats"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    model = slow.tiny_model(0, dtype=torch.float32)
    with pytest.raises((ValueError, TypeError), match=message):
        model.beam_search(**{"features": torch.zeros(1, 10, 4), **arguments})


def test_searching_leaves_the_model_as_it_was() -> None:
    model = slow.tiny_model(0, predictor="lstm", dropout=0.5, predictor_layers=2)
    features = torch.randn(2, 20, 4, dtype=torch.float64)
    expected = model.greedy_search(features)
    model.train()
    model.joiner.eval()
    assert model.greedy_search(features) == expected, "dropout is off"
    assert model.training
    assert model.encoder.training
    assert not model.joiner.training


def test_a_search_never_writes_the_mode_that_other_threads_see() -> None:
    model = slow.tiny_model(0, predictor="lstm", dropout=0.5, predictor_layers=2).train()
    features = torch.randn(1, 20, 4, dtype=torch.float64)
    state = model.stream_init(1)
    modes: list[bool] = []

    def another_thread(*_: object) -> None:
        modes.append(all(module.training for module in model.modules()))

    for layer in (model.encoder.rnn, model.predictor.rnn):
        layer.register_forward_pre_hook(another_thread)
    searches = (
        lambda: model.greedy_search(features),
        lambda: model.beam_search(features),
        lambda: model.stream_init(1),
        lambda: model.stream_step(features, state),
        lambda: model.stream_finish(model.stream_step(features[:, :1], state)[1]),
    )
    for search in searches:
        modes.clear()
        search()
        assert modes
        assert all(modes)
    model.encoder.rnn.register_forward_pre_hook(lambda *_: model.eval() and None)
    model.greedy_search(features)
    assert not model.training, "another thread ended the training meanwhile"


def test_threads_search_with_one_model_in_training_mode() -> None:
    model = slow.tiny_model(0, predictor="lstm", dropout=0.5, predictor_layers=2).train()
    features = torch.randn(8, 20, 4, dtype=torch.float64)
    expected = [model.greedy_search(row[None]) for row in features]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert list(pool.map(lambda row: model.greedy_search(row[None]), features)) == expected
    assert all(module.training for module in model.modules())


def test_a_compiled_part_of_a_model_in_training_mode_is_searched_without_dropout() -> None:
    model = slow.tiny_model(0, predictor="lstm", dropout=0.5, predictor_layers=2)
    features = torch.randn(2, 20, 4, dtype=torch.float64)
    expected = model.greedy_search(features)
    model.train()
    model.encoder = torch.compile(model.encoder, backend="eager")  # type: ignore[assignment]
    model.predictor.compile(backend="eager")
    assert model.greedy_search(features) == expected


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("loss", ["full", "tdt"])
def test_a_model_without_numbers_still_gives_a_hypothesis(bad: float, loss: str) -> None:
    """As a training that diverged leaves one."""
    for layer, value in itertools.product(("output", "encoder_proj", "predictor_proj"), (bad, 1.0)):
        model = slow.tiny_model(0, loss=loss)
        features = torch.full((2, 9, 4), bad if value == 1.0 else 1.0, dtype=torch.float64)
        with torch.no_grad():
            getattr(model.joiner, layer).weight.mul_(value)
        found = model.greedy_search(features)
        assert len(found) == 2
        for mode in ("modified", "standard"):
            assert [len(nbest) >= 1 for nbest in model.beam_search(features, beam=3, mode=mode, nbest=3)] == [True] * 2
        for search in ("greedy", "modified", "standard"):
            _, state = model.stream_step(features, model.stream_init(2, search))
            assert len(state.best()) == 2
            _, state = model.stream_finish(state)
            assert len(state.nbest(3)) == len(state.best()) == 2


def test_no_probability_at_all_is_a_score_of_minus_infinity() -> None:
    model = slow.tiny_model(0, blank_bias=float("nan"))
    features = torch.randn(1, 6, 4, dtype=torch.float64)
    assert model.greedy_search(features)[0].score == float("-inf")
    assert model.beam_search(features)[0][0].score == float("-inf")


@pytest.mark.parametrize("loss", ["full", "tdt"])
@pytest.mark.parametrize("search", ["greedy", "modified", "standard"])
def test_whole_and_streaming_have_the_same_defaults(loss: str, search: str) -> None:
    most = 0
    for seed in range(6):
        model = slow.tiny_model(seed, loss=loss, blank_bias=-30.0)
        if loss == "tdt":
            with torch.no_grad():
                model.joiner.output.bias[model.joiner.vocab_size] += 30.0  # duration 0
        features = torch.randn(2, 10, 4, dtype=torch.float64)
        if search == "greedy":
            whole = [[hypothesis] for hypothesis in model.greedy_search(features)]
        else:
            whole = model.beam_search(features, mode=search)
        _, state = model.stream_step(features, model.stream_init(2, search))
        _, state = model.stream_finish(state)
        for found, expected in zip(state.nbest(1), whole, strict=True):
            same(found, expected, 1e-6)
            most = max([most, *map(expected[0].timestamps.count, expected[0].timestamps)])
    if search == "modified":
        assert most == 1
    elif search == "greedy" or loss == "tdt":
        assert most == 8, "the limit is what ended a frame"
    else:
        assert most > 3


def searches(model: Transducer, features: torch.Tensor, state: StreamState) -> list[Callable[[], object]]:
    return [
        lambda: model.greedy_search(features),
        lambda: model.beam_search(features),
        lambda: model.stream_step(features, state),
        lambda: model.stream_finish(state),
        lambda: model.stream_init(2),
    ]


def test_tensors_on_the_meta_device_are_refused() -> None:
    model, features = slow.tiny_model(0), torch.randn(2, 9, 4, dtype=torch.float64)
    state = model.stream_init(2)
    for name, search in zip(
        ("features", "features", "chunk"), searches(model, features.to("meta"), state), strict=False
    ):
        with pytest.raises(prnn.NotSupportedError, match=f"{name} is on the meta device"):
            search()
    with pytest.raises(prnn.NotSupportedError, match="state is on the meta device"):
        model.stream_step(features, state.to("meta"))
    model.to("meta")
    for search in searches(model, features, state):
        with pytest.raises(prnn.NotSupportedError, match="the model is on the meta device"):
            search()

"""The transducer on a GPU: the same as on the CPU, and without waiting for the GPU."""

import copy

import numpy as np
import pytest
import torch

from prnn.transducer import PhraseBias, RecurrentPredictor, Transducer, TransducerConfig

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.xdist_group("gpu"),
]


class OwnPredictor(RecurrentPredictor):
    """A class that libprnn does not know."""


def make(**options) -> Transducer:
    torch.manual_seed(0)
    sizes = {"encoder_hidden": 48, "predictor_hidden": 40, "predictor_embedding": 24, "joiner_dim": 32}
    return Transducer.from_config(TransducerConfig(vocab_size=11, feature_dim=13, **sizes, **options))


def batch(lengths: list[int], target_lengths: list[int]) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    features = torch.randn(len(lengths), max(lengths), 13)
    targets = torch.randint(1, 11, (len(lengths), max(target_lengths)))
    return features, torch.tensor(lengths), targets, torch.tensor(target_lengths)


ENCODERS = [
    {"encoder_cell": "layer_norm_lstm"},
    {"encoder_cell": "rnn", "encoder_norm": "before", "encoder_residual": True},
    {"encoder_projection": 8, "encoder_residual": True, "encoder_norm": "after", "encoder_feedforward": 24},
]


@pytest.mark.parametrize(
    "options", [{}, {"loss": "pruned"}, {"predictor": "stateless"}, {"encoder_cell": "gru"}, *ENCODERS]
)
@pytest.mark.parametrize("on_host", [True, False], ids=["lengths on the CPU", "lengths on the GPU"])
def test_loss_and_gradients_equal_the_cpus(options: dict, on_host: bool) -> None:
    model = make(ctc_weight=0.3, **options)
    on_gpu = copy.deepcopy(model).cuda()
    whole = batch([37, 20, 31], [6, 0, 4])
    loss = model(*whole)
    loss.backward()
    moved = (whole[0].cuda(), *(whole[1:] if on_host else (x.cuda() for x in whole[1:])))
    on_gpu_loss = on_gpu(*moved)
    on_gpu_loss.backward()
    torch.testing.assert_close(on_gpu_loss.cpu(), loss, rtol=1e-5, atol=1e-5)
    for (name, a), b in zip(model.named_parameters(), on_gpu.parameters(), strict=True):
        error = (a.grad - b.grad.cpu()).norm() / (a.grad.norm() + 1e-6)
        assert error < 1e-4, (name, float(error))


@pytest.mark.parametrize(
    ("predictor", "loss", "mode", "known"),
    [
        *((predictor, "full", "modified", True) for predictor in ("lstm", "gru", "stateless")),
        ("lstm", "full", "standard", True),
        ("lstm", "tdt", "modified", True),
        ("gru", "tdt", "standard", True),
        ("stateless", "tdt", "standard", True),
        # A class that libprnn does not know: step by step.
        ("lstm", "full", "modified", False),
        ("lstm", "full", "standard", False),
        ("lstm", "tdt", "standard", False),
    ],
)
def test_beam_search_equals_the_cpus(predictor: str, loss: str, mode: str, known: bool) -> None:
    """Whole and as streams."""
    model = make(predictor=predictor, loss=loss)
    if not known:
        model.predictor.__class__ = OwnPredictor
    features, lengths, _, _ = batch([37, 20, 31], [1, 1, 1])
    for bias in (None, PhraseBias([[1, 2], [3, 3]], 2.0, 11)):
        options = {"beam": 5, "mode": mode, "nbest": 5, "bias": bias}
        expected = model.beam_search(features, lengths, **options)
        on_gpu = copy.deepcopy(model).cuda()
        found = on_gpu.beam_search(features.cuda(), lengths, **options)
        state = on_gpu.stream_init(3, mode, beam=5, bias=bias)
        for begin, most in ((0, 16), (16, 21)):
            count = (lengths - begin).clamp(0, most)
            _, state = on_gpu.stream_step(features[:, begin : begin + most].cuda(), state, count)
        _, state = on_gpu.stream_finish(state)
        for some in (found, state.nbest(5)):
            for beams, others in zip(some, expected, strict=True):
                assert [(h.tokens, h.timestamps) for h in beams] == [(h.tokens, h.timestamps) for h in others]
                for h, o in zip(beams, others, strict=True):
                    assert h.score == pytest.approx(o.score, abs=1e-3)
                    assert h.log_probs == pytest.approx(o.log_probs, abs=1e-3)


def test_greedy_search_equals_the_cpus() -> None:
    model = make()
    features, lengths, _, _ = batch([37, 20, 31], [1, 1, 1])
    expected = [hypothesis.tokens for hypothesis in model.greedy_search(features, lengths)]
    found = [hypothesis.tokens for hypothesis in model.cuda().greedy_search(features.cuda(), lengths)]
    assert found == expected
    assert any(expected)


@pytest.mark.parametrize("search", ["greedy", "modified", "standard"])
@pytest.mark.parametrize("options", [{}, {"loss": "tdt"}], ids=["", "tdt"])
def test_streams_that_give_up_symbols_equal_the_cpus(search: str, options: dict) -> None:
    model = make(**options)
    features, lengths, _, _ = batch([37, 20, 31], [1, 1, 1])
    bias = None if search == "greedy" else PhraseBias([[1, 2], [3]], 2.0, vocab_size=11)
    found = []
    for device in ("cpu", "cuda"):
        model = model.to(device)
        state = model.stream_init(3, search, 3, bias=bias)
        rows: list[list] = [[], [], []]
        for place in range(0, 37, 10):
            chunk = features[:, place : place + 10].to(device)
            _, state = model.stream_step(chunk, state, (lengths - place).clamp(0, chunk.shape[1]))
            taken, state = state.take_best() if place == 20 else state.take_certain()
            for row, hypothesis in zip(rows, taken, strict=True):
                row += zip(hypothesis.tokens, hypothesis.timestamps, hypothesis.log_probs, strict=True)
        _, state = model.stream_finish(state)
        for row, hypothesis in zip(rows, state.best(), strict=True):
            row += zip(hypothesis.tokens, hypothesis.timestamps, hypothesis.log_probs, strict=True)
        found.append(rows)
    for ours, theirs in zip(*found, strict=True):
        assert [symbol[:2] for symbol in ours] == [symbol[:2] for symbol in theirs]
        assert [symbol[2] for symbol in ours] == pytest.approx([symbol[2] for symbol in theirs], abs=1e-4)
    assert any(found[0])


def test_recogniser_equals_the_cpus() -> None:
    pytest.importorskip("kaldi_native_fbank", reason="needs the packages of prnn's extra, asr")
    from prnn.asr import CharTokenizer, FeatureConfig, Recogniser
    from prnn.asr.features import compute_features

    samples = np.random.default_rng(0).normal(0, 0.1, 16000).astype(np.float32)
    torch.manual_seed(0)
    sizes = {"encoder_hidden": 48, "predictor_hidden": 40, "predictor_embedding": 24, "joiner_dim": 32}
    model = Transducer.from_config(TransducerConfig(vocab_size=4, feature_dim=80, **sizes)).eval()
    texts = []
    for device in ("cpu", "cuda"):
        recogniser = Recogniser(copy.deepcopy(model).to(device), FeatureConfig(), CharTokenizer("abc"))
        stream = recogniser.stream(16000)
        stream.accept(samples[:7000])
        stream.accept(samples[7000:])
        texts += [recogniser.transcribe(samples, 16000), stream.finish()]
        texts.append(recogniser.transcribe_batch([compute_features(samples, 16000, recogniser.features)])[0].text)
    assert len(set(texts)) == 1
    assert texts[0]


def test_training_step_does_not_wait_for_the_gpu() -> None:
    model = make(ctc_weight=0.3).cuda()
    features, *rest = batch([36, 36, 36], [5, 5, 5])
    features = features.cuda()
    rest = [x.pin_memory() for x in rest]  # copies from other memory wait, whatever the code does
    model(features, *rest).backward()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        model(features, *rest).backward()
    finally:
        torch.cuda.set_sync_debug_mode(before)

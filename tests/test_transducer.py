"""The transducer's parts, losses, configuration and messages."""

import json

import pytest
import torch
from reference import transducer as slow

import prnn
from prnn.transducer import Encoder, Joiner, RecurrentPredictor, StatelessPredictor, Transducer, TransducerConfig

PREDICTORS = ("lstm", "gru", "stateless")


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    features = torch.randn(3, 14, 4, dtype=torch.float64)
    targets = torch.randint(1, 5, (3, 4))
    return features, torch.tensor([14, 9, 3]), targets, torch.tensor([4, 2, 0])


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_loss_is_the_sum_over_alignments(predictor: str) -> None:
    model = slow.tiny_model(0, predictor=predictor, gain=1.0)
    features, lengths, targets, target_lengths = batch()
    expected = []
    for row in range(3):
        frames = slow.encode(model, features[row, : lengths[row]])
        tokens = tuple(targets[row, : target_lengths[row]].tolist())
        expected.append(-slow.total_log_prob(model, frames, tokens, len(tokens), modified=False))
    assert model(features, lengths, targets, target_lengths).item() == pytest.approx(sum(expected) / 3, abs=1e-9)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_loss_without_the_logits_is_the_same(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = slow.tiny_model(0, predictor="gru", gain=1.0, fastemit=0.1, joiner_activation=activation, blank=4)
    arguments = list(batch())
    arguments[2] = arguments[2] - 1
    results = []
    for most in (2**22, 0):
        monkeypatch.setattr("prnn.transducer.loss._MOST_LOGITS", most)
        model.zero_grad()
        loss = model(*arguments)
        loss.backward()
        results.append((loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


def test_pruned_loss_that_keeps_everything_is_the_full_loss() -> None:
    pruned = slow.tiny_model(0, gain=1.0, loss="pruned", prune_range=5)
    full = slow.tiny_model(0, gain=1.0)
    full.load_state_dict({name: value for name, value in pruned.state_dict().items() if "simple" not in name})
    arguments = batch()
    parts = pruned.loss_parts(*arguments)
    torch.testing.assert_close(parts.transducer, full(*arguments), rtol=0, atol=1e-9)
    assert parts.simple is not None
    torch.testing.assert_close(parts.total, parts.transducer + 0.5 * parts.simple)


def test_pruned_loss_bounds_the_full_loss() -> None:
    model = slow.tiny_model(0, gain=1.0, loss="pruned", prune_range=2)
    full = slow.tiny_model(0, gain=1.0)
    full.load_state_dict({name: value for name, value in model.state_dict().items() if "simple" not in name})
    features, targets = torch.randn(2, 30, 4, dtype=torch.float64), torch.randint(1, 5, (2, 5))
    arguments = (features, torch.tensor([30, 26]), targets, torch.tensor([5, 4]))
    assert model.loss_parts(*arguments).transducer > full(*arguments), "fewer paths"


@pytest.mark.parametrize("loss", ["full", "pruned"])
def test_every_parameter_learns(loss: str) -> None:
    for predictor in PREDICTORS:
        model = slow.tiny_model(0, predictor=predictor, gain=1.0, loss=loss, ctc_weight=0.3, prune_range=3)
        parts = model.loss_parts(*batch())
        assert parts.ctc is not None
        parts.total.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("loss", ["full", "pruned"])
def test_padding_never_matters(loss: str) -> None:
    model = slow.tiny_model(0, predictor="lstm", gain=1.0, loss=loss, ctc_weight=0.3, prune_range=3)
    features, lengths, targets, target_lengths = batch()
    expected = model(features, lengths, targets, target_lengths)
    for row in range(3):
        features[row, lengths[row] :] = float("nan")
        targets[row, target_lengths[row] :] = 10**6 * (-1) ** row
    found = model(features, lengths, targets, target_lengths)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    found.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_ctc_is_torchs() -> None:
    model = slow.tiny_model(0, gain=1.0, ctc_weight=0.25)
    features, lengths, targets, target_lengths = batch()
    parts = model.loss_parts(features, lengths, targets, target_lengths)
    out, out_lengths = model.encoder(features, lengths)
    assert model.ctc_output is not None
    costs = torch.nn.functional.ctc_loss(
        model.ctc_output(out).log_softmax(-1).transpose(0, 1), targets, out_lengths, target_lengths, reduction="none"
    )
    torch.testing.assert_close(parts.ctc, costs.mean())
    torch.testing.assert_close(parts.total, parts.transducer + 0.25 * costs.mean())


def test_fastemit_changes_the_gradients_alone() -> None:
    plain, early = (slow.tiny_model(0, gain=1.0, fastemit=value) for value in (0.0, 0.1))
    arguments = batch()
    gradients = []
    for model in (plain, early):
        model(*arguments).backward()
        gradients.append(model.joiner.output.bias.grad)
    assert not torch.allclose(*gradients)


def test_it_learns_a_batch_and_says_it_back() -> None:
    model = slow.tiny_model(0, dtype=torch.float32, gain=1.0, predictor="lstm", encoder_hidden=32, joiner_dim=32)
    features, lengths, targets, target_lengths = batch()
    features = features.float()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model.train()
    for _ in range(60):
        optimizer.zero_grad()
        loss = model(features, lengths, targets, target_lengths)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    expected = [targets[row, : target_lengths[row]].tolist() for row in range(3)]
    assert [h.tokens for h in model.greedy_search(features, lengths)] == expected
    for mode in ("modified", "standard"):
        assert [nbest[0].tokens for nbest in model.beam_search(features, lengths, mode=mode)] == expected


@pytest.mark.parametrize(
    "predictor",
    [
        RecurrentPredictor(6, 5, 7, 2, "lstm", blank=3),
        RecurrentPredictor(6, 5, 7, 1, "gru"),
        StatelessPredictor(6, 7, context=1),
        StatelessPredictor(6, 7, context=3, blank=5),
    ],
    ids=["lstm", "gru", "stateless-1", "stateless-3"],
)
def test_predictor_steps_are_its_forward(predictor: RecurrentPredictor | StatelessPredictor) -> None:
    targets = torch.randint(0, 6, (3, 5))
    expected = predictor(targets)
    assert expected.shape == (3, 6, predictor.output_dim)
    state = predictor.initial_state(3)
    for u in range(6):
        symbols = torch.full((3,), predictor.blank) if u == 0 else targets[:, u - 1]
        out, state = predictor.step(symbols, state)
        torch.testing.assert_close(out, expected[:, u])


def test_stateless_predictor_sees_the_last_symbols_only() -> None:
    predictor = StatelessPredictor(9, 4, context=2)
    out = predictor(torch.tensor([[1, 2, 3, 4], [5, 6, 3, 4], [5, 6, 4, 3]]))
    torch.testing.assert_close(out[0, 4], out[1, 4], rtol=0, atol=0)
    assert not torch.allclose(out[1, 4], out[2, 4])
    assert not torch.allclose(out[0, 3], out[1, 3])


@pytest.mark.parametrize(("stack", "stride"), [(1, 1), (2, 2), (3, 2), (4, 1)])
def test_encoder_stacks_frames(stack: int, stride: int) -> None:
    encoder = Encoder(2, 3, 1, "gru", stack, stride)
    features = torch.randn(1, 7, 2)
    mean, std = torch.randn(2), torch.rand(2) + 0.5
    encoder.set_normalization(mean, std)
    normal = torch.cat([(features[0] - mean) / std, torch.zeros(stack, 2)])
    stacked = torch.stack([normal[j : j + stack].flatten() for j in range(0, 7, stride)])
    plain = torch.nn.GRU(2 * stack, 3, batch_first=True)
    plain.load_state_dict(encoder.rnn.state_dict())
    out, lengths = encoder(features, torch.tensor([7]))
    assert lengths.tolist() == [len(stacked)]
    torch.testing.assert_close(out, plain(stacked[None])[0])


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_plain_torch_layers_do_the_same(predictor: str) -> None:
    model = slow.tiny_model(0, predictor=predictor)
    arguments = batch()
    loss, found = model(*arguments), model.beam_search(*arguments[:2])
    plain = prnn.convert_back(model)
    assert not any(isinstance(m, (prnn.nn.LSTM, prnn.nn.GRU)) for m in plain.modules())
    torch.testing.assert_close(plain(*arguments), loss)
    again = plain.beam_search(*arguments[:2])
    assert [n[0].tokens for n in again] == [n[0].tokens for n in found]
    assert [n[0].score for n in again] == pytest.approx([n[0].score for n in found])


@pytest.mark.parametrize("loss", ["full", "pruned"])
def test_autocast(loss: str) -> None:
    model = slow.tiny_model(
        0, dtype=torch.float32, gain=1.0, predictor="lstm", loss=loss, ctc_weight=0.3, blank_bias=0.0, prune_range=5
    )
    features, *others = batch()
    features = features.float()
    expected = model(features, *others).item()
    state = model.stream_init(3, "modified")
    with torch.autocast("cpu", torch.bfloat16):
        found = model(features, *others)
        _, state = model.stream_step(features, state)
        _, state = model.stream_finish(state)
        whole = model.beam_search(features)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected, rel=0.02)
    found.backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
    assert [h.score for h in state.best()] == pytest.approx([n[0].score for n in whole], abs=0.1)


def test_encoder_with_projection() -> None:
    model = slow.tiny_model(0, encoder_projection=5)
    assert model.encoder.output_dim == 5
    features, lengths, targets, target_lengths = batch()
    assert model(features, lengths, targets, target_lengths).isfinite()
    _, state = model.stream_step(features, model.stream_init(3))
    _, state = model.stream_finish(state)
    assert [h.tokens for h in state.best()] == [h.tokens for h in model.greedy_search(features)]


def test_normalization_travels_with_the_weights() -> None:
    one, other = Encoder(3, 4, 1), Encoder(3, 4, 1)
    one.set_normalization(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0]))
    other.load_state_dict(one.state_dict())
    features = torch.randn(1, 5, 3)
    torch.testing.assert_close(one(features, torch.tensor([5])), other(features, torch.tensor([5])))
    assert other.feature_inv_std.tolist() == [1.0, 0.5, 0.25]
    with pytest.raises(ValueError, match=r"mean has shape \(2,\); it must be \(3,\)"):
        one.set_normalization(torch.zeros(2), torch.ones(3))
    with pytest.raises(ValueError, match=r"std has a smallest value of 0\.0; it must be positive"):
        one.set_normalization(torch.zeros(3), torch.zeros(3))


def test_joiner_is_its_formula() -> None:
    for activation in ("tanh", "relu"):
        joiner = Joiner(3, 4, 5, 6, activation)
        encoder_out, predictor_out = torch.randn(2, 7, 3), torch.randn(2, 2, 4)
        logits = joiner(encoder_out, predictor_out)
        meeting = joiner.encoder_proj(encoder_out[1, 6]) + joiner.predictor_proj(predictor_out[1, 1])
        expected = joiner.output(getattr(torch, activation)(meeting))
        torch.testing.assert_close(logits[1, 6, 1], expected)
        scored = joiner.log_probs(
            joiner.project_encoder(encoder_out)[:, :, None], joiner.project_predictor(predictor_out)[:, None]
        )
        torch.testing.assert_close(scored, logits.log_softmax(-1).double(), rtol=1e-5, atol=1e-6)


def test_configuration_goes_through_json() -> None:
    config = TransducerConfig(vocab_size=30, blank=29, predictor="stateless", frame_stride=2, dropout=0.1)
    assert TransducerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert TransducerConfig.from_dict({"vocab_size": 30}) == TransducerConfig(30)
    model = Transducer.from_config(config)
    assert model.config == config
    again = Transducer.from_config(config)
    again.load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "vocab_size is missing"),
        ({"vocab_size": 1}, "vocab_size is 1; it must be at least 2"),
        ({"vocab_size": "5"}, "vocab_size is '5'; it must be an int"),
        ({"vocab_size": 5, "blank": 5}, "blank is 5; it must be below vocab_size, 5"),
        ({"vocab_size": 5, "hidden": 3}, "unknown transducer option hidden; known are blank, ctc_weight"),
        ({"vocab_size": 5, "encoder_layers": 0}, "encoder_layers is 0; it must be at least 1"),
        ({"vocab_size": 5, "encoder_cell": "cnn"}, "encoder_cell is 'cnn'; it must be one of 'lstm', 'gru'"),
        ({"vocab_size": 5, "predictor": "cnn"}, "predictor is 'cnn'; it must be one of 'lstm', 'gru', 'stateless'"),
        ({"vocab_size": 5, "frame_stride": 5}, "frame_stride is 5; it must be at most frame_stack, 4"),
        ({"vocab_size": 5, "dropout": 1.0}, r"dropout is 1\.0; it must be at least 0 and less than 1"),
        ({"vocab_size": 5, "dropout": None}, "dropout is None; it must be a number"),
        ({"vocab_size": 5, "ctc_weight": float("nan")}, "ctc_weight is nan; it must be at least 0"),
        ({"vocab_size": 5, "loss": "pruned", "fastemit": 0.1}, r"fastemit is 0\.1; the pruned loss does not have it"),
        (
            {"vocab_size": 5, "encoder_cell": "gru", "encoder_projection": 3},
            "encoder_projection is 3; only an lstm encoder has one",
        ),
        ({"vocab_size": 5, "encoder_projection": 320}, "encoder_projection is 320; it must be below encoder_hidden"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        TransducerConfig.from_dict(options)


def test_parts_that_do_not_fit_are_named() -> None:
    encoder, predictor = Encoder(4, 8, 1), StatelessPredictor(5, 6)
    with pytest.raises(ValueError, match="the encoder's output_dim is 8, but the joiner's encoder_dim is 9"):
        Transducer(encoder, predictor, Joiner(9, 6, 3, 5))
    with pytest.raises(ValueError, match="the predictor's output_dim is 6, but the joiner's predictor_dim is 7"):
        Transducer(encoder, predictor, Joiner(8, 7, 3, 5))
    with pytest.raises(ValueError, match="blank is 5; it must be below the joiner's vocab_size, 5"):
        Transducer(encoder, predictor, Joiner(8, 6, 3, 5), blank=5)
    with pytest.raises(ValueError, match="loss is 'exact'; it must be one of 'full', 'pruned'"):
        Transducer(encoder, predictor, Joiner(8, 6, 3, 5), loss="exact")
    assert isinstance(prnn.Transducer(encoder, predictor, Joiner(8, 6, 3, 5)), Transducer)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (1, torch.tensor([14, 9, 0]), r"feature_lengths\[2\] is 0; it must be in \[1, 14\]"),
        (1, torch.tensor([14, 15, 1]), r"feature_lengths\[1\] is 15; it must be in \[1, 14\]"),
        (2, torch.zeros(3, 4), r"targets is a tensor of torch\.float32; it must be a tensor of integers"),
        (2, torch.ones(2, 4, dtype=torch.int64), r"targets has shape \(2, 4\); it must be \(3, U\)"),
        (2, torch.zeros(3, 4, dtype=torch.int64), r"targets\[0, 0\] is 0; it must be in \[0, 5\) and not the blank, 0"),
        (2, torch.full((3, 4), 5), r"targets\[0, 0\] is 5; it must be in \[0, 5\) and not the blank, 0"),
        (3, torch.tensor([4, 5, 0]), r"target_lengths\[1\] is 5; it must be in \[0, 4\]"),
        (3, None, r"target_lengths is a NoneType; it must be a tensor of integers"),
    ],
)
def test_bad_arguments_are_named(place: int, value: object, message: str) -> None:
    model = slow.tiny_model(0)
    arguments: list[object] = list(batch())
    arguments[place] = value
    with pytest.raises((ValueError, TypeError), match=message):
        model(*arguments)

"""The encoder's cells, residuals, norms and feed-forward modules: values, streams, training, checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from asr_data import write_corpus
from reference import transducer as slow
from torch import Tensor, nn
from torch.nn import functional

import prnn
from prnn.asr import Recogniser
from prnn.asr.audio import read_audio
from prnn.cli import main
from prnn.transducer import Encoder, TransducerConfig

VARIANTS: dict[str, dict[str, Any]] = {
    "rnn": {"encoder_cell": "rnn"},
    "layer_norm_lstm": {"encoder_cell": "layer_norm_lstm"},
    "masked gru": {"encoder_cell": "gru", "encoder_zoneout": 0.2, "encoder_recurrent_dropout": 0.3},
    "zoned-out layer_norm_lstm": {"encoder_cell": "layer_norm_lstm", "encoder_zoneout": 0.2, "encoder_residual": True},
    "residual": {"encoder_residual": True, "encoder_cell": "gru"},
    "norm after": {"encoder_norm": "after"},
    "norm before": {"encoder_norm": "before", "encoder_cell": "rnn", "encoder_residual": True},
    "feed-forward": {"encoder_feedforward": 9},
    "lstmp after": {
        "encoder_projection": 7, "encoder_residual": True, "encoder_norm": "after", "encoder_feedforward": 9,
    },
    "lstmp before": {
        "encoder_projection": 7, "encoder_residual": True, "encoder_norm": "before", "encoder_feedforward": 9,
    },
}  # fmt: skip
LAYERS, HIDDEN = 3, 12


def made(variant: str, seed: int = 0, dtype: torch.dtype = torch.float64, **others: Any) -> prnn.Transducer:
    return slow.tiny_model(
        seed,
        dtype=dtype,
        **{"gain": 1.5, "encoder_layers": LAYERS, "encoder_hidden": HIDDEN, **VARIANTS[variant], **others},
    )


def layer_norm_lstm(weights: dict[str, Tensor], x: Tensor, zoneout: float) -> Tensor:
    """One layer of one sequence (T, I) from the definition."""
    h = c = x.new_zeros(HIDDEN)
    out = []
    for row in x:
        gates = weights["weight_ih_l0"] @ row + weights["weight_hh_l0"] @ h
        gates = functional.layer_norm(
            gates, gates.shape, weights["norm_gates_weight_l0"], weights["norm_gates_bias_l0"]
        )
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        c = functional.layer_norm(c, c.shape, weights["norm_cell_weight_l0"], weights["norm_cell_bias_l0"])
        h = zoneout * h + (1 - zoneout) * o.sigmoid() * c.tanh()
        out.append(h)
    return torch.stack(out)


def gru(weights: dict[str, Tensor], x: Tensor, zoneout: float) -> Tensor:
    h = x.new_zeros(HIDDEN)
    out = []
    for row in x:
        a = (weights["weight_ih_l0"] @ row + weights["bias_ih_l0"]).chunk(3)
        b = (weights["weight_hh_l0"] @ h + weights["bias_hh_l0"]).chunk(3)
        r, z = ((a[k] + b[k]).sigmoid() for k in range(2))
        new = (1 - z) * (a[2] + r * b[2]).tanh() + z * h
        h = zoneout * h + (1 - zoneout) * new
        out.append(h)
    return torch.stack(out)


def recurrent(cell: str, weights: dict[str, Tensor], x: Tensor, zoneout: float) -> Tensor:
    """A layer, of plain torch, over one sequence (T, I)."""
    if cell == "layer_norm_lstm":
        return layer_norm_lstm(weights, x, zoneout)
    if cell == "gru":
        return gru(weights, x, zoneout)
    projection = weights["weight_hr_l0"].shape[0] if "weight_hr_l0" in weights else 0
    layer: nn.Module = (
        nn.RNN(x.shape[1], HIDDEN) if cell == "rnn" else nn.LSTM(x.shape[1], HIDDEN, proj_size=projection)
    )
    layer.to(x.dtype).load_state_dict(weights)
    return layer(x)[0]


def expected(model: prnn.Transducer, features: Tensor) -> Tensor:
    """The encoder's frames of one utterance (T, F), by plain torch and the options' own words."""
    assert model.config is not None
    config, state = model.config, model.encoder.state_dict()
    stack = config.frame_stack
    padded = functional.pad(features, (0, 0, 0, stack - 1))
    x = torch.stack([padded[start : start + stack].flatten() for start in range(0, len(features), stack)])
    in_blocks = config.encoder_residual or config.encoder_norm != "none" or config.encoder_feedforward > 0

    def part(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}

    def norm(y: Tensor, prefix: str) -> Tensor:
        weights = part(prefix)
        return functional.layer_norm(y, y.shape[-1:], weights["weight"], weights["bias"])

    before, after = config.encoder_norm == "before", config.encoder_norm == "after"
    for number in range(LAYERS):
        block = f"rnn.blocks.{number}."
        weights = part(f"{block}layer.")
        if not in_blocks:
            own = {name: value for name, value in part("rnn.").items() if name.endswith(f"_l{number}")}
            weights = {name.replace(f"_l{number}", "_l0"): value for name, value in own.items()}
        inner = norm(x, f"{block}norm.") if before and number else x
        y = recurrent(config.encoder_cell, weights, inner, config.encoder_zoneout)
        y = x + y if config.encoder_residual and number else y
        x = norm(y, f"{block}norm.") if after else y
        if config.encoder_feedforward:
            inner = norm(x, f"{block}feedforward_norm.") if before else x
            weights = part(f"{block}feedforward.")
            y = functional.silu(inner @ weights["inner.weight"].T + weights["inner.bias"])
            y = y @ weights["outer.weight"].T + weights["outer.bias"]
            y = x + y if config.encoder_residual else y
            x = norm(y, f"{block}feedforward_norm.") if after else y
    return norm(x, "rnn.output_norm.") if before else x


@pytest.mark.parametrize("variant", VARIANTS)
def test_values(variant: str) -> None:
    model = made(variant)
    features, lengths = torch.randn(3, 17, 4, dtype=torch.float64), torch.tensor([17, 5, 10])
    features[1, 5:] = torch.nan
    out, counts = model.encoder(features, lengths)
    assert out.shape[2] == model.encoder.output_dim
    for row in range(3):
        wanted = expected(model, features[row, : lengths[row]])
        assert counts[row] == len(wanted)
        torch.testing.assert_close(out[row, : counts[row]], wanted)
        assert not out[row, counts[row] :].any()


@pytest.mark.parametrize("variant", VARIANTS)
def test_streams_are_the_whole(variant: str) -> None:
    """Encoder frames in chunks, and the searches' results."""
    model = made(variant, gain=3.0, frame_stack=3, frame_stride=2)
    features, lengths = torch.randn(3, 37, 4, dtype=torch.float64), torch.tensor([37, 20, 2])
    whole, counts = model.encoder(features, lengths)
    for size in (1, 4, 10):
        state = model.encoder.initial_state(3)
        pieces: list[list[Tensor]] = [[], [], []]
        for start in range(0, 37, size):
            chunk = features[:, start : start + size]
            out, ready, state = model.encoder.step(chunk, (lengths - start).clamp(0, chunk.shape[1]), state)
            for row in range(3):
                pieces[row].append(out[row, : ready[row]])
        out, ready, state = model.encoder.finish(state)
        for row in range(3):
            streamed = torch.cat([*pieces[row], out[row, : ready[row]]])
            torch.testing.assert_close(streamed, whole[row, : counts[row]])
    found = model.greedy_search(features, lengths)
    state = model.stream_init(3)
    for start in range(0, 37, 5):
        chunk = features[:, start : start + 5]
        _, state = model.stream_step(chunk, state, (lengths - start).clamp(0, chunk.shape[1]))
    _, state = model.stream_finish(state)
    assert [h.tokens for h in state.best()] == [h.tokens for h in found]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_learns(variant: str) -> None:
    model = made(variant, gain=1.0, dropout=0.1).train()
    features, lengths = torch.randn(3, 17, 4, dtype=torch.float64), torch.tensor([17, 9, 13])
    targets = torch.randint(1, 5, (3, 4))
    model(features, lengths, targets, torch.tensor([4, 2, 3])).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("variant", ["masked gru", "zoned-out layer_norm_lstm"])
def test_masks_are_of_training_alone(variant: str) -> None:
    model = made(variant)
    features, lengths = torch.randn(2, 12, 4, dtype=torch.float64), torch.tensor([12, 12])
    assert torch.equal(model.encoder(features, lengths)[0], model.encoder(features, lengths)[0])
    model.train()
    assert not torch.equal(model.encoder(features, lengths)[0], model.encoder(features, lengths)[0])


def test_dropout_is_of_what_layers_compute() -> None:
    """And residuals pass it by: with nearly all dropped, the last layers pass on what the first one gave them."""
    torch.manual_seed(0)
    encoder = Encoder(4, 8, 3, residual=True, feedforward=5, dropout=0.999)
    with torch.no_grad():
        out, _ = encoder(torch.randn(2, 9, 4), torch.tensor([9, 9]))
    assert float((out == 0).float().mean()) > 0.9


@pytest.mark.parametrize("variant", ["layer_norm_lstm", "residual", "lstmp after", "lstmp before"])
def test_autocast(variant: str) -> None:
    model = made(variant, dtype=torch.float32, gain=1.0, blank_bias=0.0)
    features, lengths = torch.randn(3, 17, 4), torch.tensor([17, 9, 13])
    arguments = (features, lengths, torch.randint(1, 5, (3, 4)), torch.tensor([4, 2, 3]))
    wanted = model(*arguments).item()
    with torch.autocast("cpu", torch.bfloat16):
        found = model(*arguments)
        _, state = model.stream_step(features, model.stream_init(3), lengths)
        _, state = model.stream_finish(state)
    assert found.item() == pytest.approx(wanted, rel=0.03)
    found.backward()


@pytest.mark.parametrize("variant", ["lstmp after", "residual"])
def test_plain_torch_layers_do_the_same(variant: str) -> None:
    model = made(variant)
    features, lengths = torch.randn(3, 17, 4, dtype=torch.float64), torch.tensor([17, 5, 10])
    wanted, _ = model.encoder(features, lengths)
    plain = prnn.convert_back(model)
    assert not any(isinstance(module, (prnn.nn.LSTM, prnn.nn.GRU)) for module in plain.modules())
    torch.testing.assert_close(plain.encoder(features, lengths)[0], wanted)


def test_a_config_carries_them() -> None:
    config = TransducerConfig(
        5, encoder_norm="before", encoder_residual=True, encoder_feedforward=3, encoder_zoneout=0.5
    )
    assert TransducerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder_cell": "cnn"}, "encoder_cell is 'cnn'; it must be one of 'lstm', 'gru', 'rnn', 'layer_norm_lstm'"),
        ({"encoder_norm": "both"}, "encoder_norm is 'both'; it must be one of 'none', 'before', 'after'"),
        ({"encoder_residual": 1}, "encoder_residual is 1; it must be a bool"),
        ({"encoder_feedforward": -1}, "encoder_feedforward is -1; it must be at least 0"),
        ({"encoder_zoneout": 1.0}, r"encoder_zoneout is 1\.0; it must be at least 0 and less than 1"),
        (
            {"encoder_zoneout": 0.1, "encoder_projection": 9},
            r"encoder_zoneout is 0\.1, but encoder_projection is 9: a projected LSTM has none",
        ),
        (
            {"encoder_zoneout": 0.1, "encoder_cell": "rnn"},
            r"encoder_zoneout is 0\.1, but encoder_cell is 'rnn', which has none",
        ),
        (
            {"encoder_recurrent_dropout": 0.1, "encoder_projection": 9},
            r"encoder_recurrent_dropout is 0\.1, but encoder_projection is 9: a projected LSTM has none",
        ),
        (
            {"encoder_cell": "layer_norm_lstm", "encoder_projection": 9},
            "encoder_projection is 9; only an lstm encoder has one",
        ),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        TransducerConfig(5, **options)


def test_a_checkpoint_remembers_them(tmp_path: Path) -> None:
    """The checkpoint is that of a training by the command line."""
    manifest = write_corpus(tmp_path, "tones", ["ab", "c"])
    command = ["train", "--manifest", manifest, "--valid", manifest, "--output", tmp_path / "out", "--epochs", 1]
    command += ["--cell", "layer_norm_lstm", "--layers", 2, "--hidden", 6, "--model.encoder_residual", "true"]
    command += ["--model.encoder_norm", "after", "--model.encoder_feedforward", 5, "--model.encoder_zoneout", 0.1]
    command += ["--model.encoder_recurrent_dropout", 0.1, "--accelerator", "cpu", "--no-progress", "--pictures", 0]
    assert main([str(word) for word in command]) == 0
    recogniser = Recogniser.load(tmp_path / "out" / "model.ckpt")
    config = recogniser.model.config
    assert config is not None
    assert (config.encoder_cell, config.encoder_residual, config.encoder_norm) == ("layer_norm_lstm", True, "after")
    assert (config.encoder_feedforward, config.encoder_zoneout, config.encoder_recurrent_dropout) == (5, 0.1, 0.1)
    samples, rate = read_audio(manifest.parent / "tones-0.wav")
    stream = recogniser.stream(rate)
    stream.accept(samples[:1000])
    stream.accept(samples[1000:])
    assert stream.finish() == recogniser.transcribe(samples, rate)

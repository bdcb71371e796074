"""prnn export: the graphs' numbers, sherpa-onnx's own results with them, refusals, and the folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import numpy as np
import onnxruntime
import pytest
import sherpa_onnx
import torch
from asr_data import small_checkpoint
from torch import nn

from prnn import NotSupportedError
from prnn.asr import CharTokenizer, FeatureConfig, InputError, Recogniser, compute_features
from prnn.asr.export import export
from prnn.cli import main
from prnn.transducer import Transducer, TransducerConfig

CHARACTERS = "ab ç1"
CONFIG = TransducerConfig(
    vocab_size=len(CHARACTERS) + 1,
    frame_stack=8,
    frame_stride=4,
    encoder_layers=1,
    encoder_hidden=24,
    predictor="stateless",
    predictor_hidden=8,
    joiner_dim=16,
)
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "projected": {"encoder_layers": 2, "encoder_projection": 12},
    "others": {
        "frame_stack": 4,
        "frame_stride": None,
        "predictor_context": 3,
        "joiner_activation": "relu",
        "loss": "pruned",
        "ctc_weight": 0.3,
    },
    "normalised": {"encoder_cell": "layer_norm_lstm", "encoder_layers": 2, "encoder_zoneout": 0.1},
    "norm after": {"encoder_layers": 2, "encoder_residual": True, "encoder_norm": "after", "encoder_zoneout": 0.2},
    "blocks": {
        "encoder_layers": 3,
        "encoder_projection": 12,
        "encoder_residual": True,
        "encoder_norm": "before",
        "encoder_feedforward": 20,
    },
    "normalised blocks": {"encoder_cell": "layer_norm_lstm", "encoder_layers": 2, "encoder_residual": True},
}
TAIL = 10560  # samples, 0.66 s: sherpa-onnx leaves out what does not fill a chunk


def made(
    characters: str = CHARACTERS, features: FeatureConfig | None = None, gain: float = 4, **changes: Any
) -> Recogniser:
    """A recogniser of random weights; with this gain they make it spell something else for other sounds."""
    config = dataclasses.replace(CONFIG, **{"vocab_size": len(characters) + 1, **changes})
    model = Transducer.from_config(config).eval()
    with torch.no_grad():
        for weight in model.encoder.rnn.parameters():
            weight.mul_(gain)
        model.joiner.encoder_proj.weight.mul_(3)
        model.joiner.output.weight.mul_(10)
        model.joiner.output.bias[0] += 1
    size = config.feature_dim
    model.encoder.set_normalization(torch.linspace(-9, -7, size), torch.linspace(2, 4, size))
    return Recogniser(model, features or FeatureConfig(), CharTokenizer(characters))


def recording(seed: int) -> np.ndarray:
    """2.5 s of tones that change every 100 ms, and the silence that clients of sherpa-onnx append."""
    rng = np.random.default_rng(seed)
    frequency, loudness = (np.repeat(rng.uniform(*bounds, 25), 1600) for bounds in ((200, 6000), (0, 0.5)))
    tones = loudness * np.sin(2 * np.pi * np.cumsum(frequency) / 16000) + 0.01 * rng.standard_normal(40000)
    return np.concatenate([tones, np.zeros(TAIL)]).astype(np.float32)


def with_sherpa(folder: Path, samples: list[np.ndarray], suffix: str = ".onnx") -> list[Any]:
    """Results of sherpa-onnx with its defaults, the recordings being decoded together."""
    parts = {part: str(folder / f"{part}{suffix}") for part in ("encoder", "decoder", "joiner")}
    recogniser = sherpa_onnx.OnlineRecognizer.from_transducer(tokens=str(folder / "tokens.txt"), num_threads=1, **parts)
    streams = [recogniser.create_stream() for _ in samples]
    for stream, piece in zip(streams, samples, strict=True):
        stream.accept_waveform(16000, piece)
        stream.input_finished()
    while ready := [stream for stream in streams if recogniser.is_ready(stream)]:
        recogniser.decode_streams(ready)
    return [recogniser.get_result_all(stream) for stream in streams]


def with_prnn(recogniser: Recogniser, samples: np.ndarray, chunk: int) -> tuple[list[int], list[int]]:
    """Tokens and encoder frames of a stream, as far as sherpa-onnx decodes: whole chunks, and a frame left over."""
    model = recogniser.model
    _, state = model.stream_step(compute_features(samples, 16000)[None], model.stream_init(max_symbols=1))
    best = model.stream_finish(state)[1].best()[0]
    length = (chunk - 1) * 4 + recogniser.model.encoder.frame_stack
    chunks = -(-(len(samples) // 160 - length) // (4 * chunk))
    count = sum(frame < chunks * chunk for frame in best.timestamps)
    return best.tokens[:count], best.timestamps[:count]


@pytest.mark.parametrize(
    ("shape", "chunk"), [("plain", 4), ("projected", 1), ("others", 8), ("normalised", 4), ("blocks", 2)]
)
def test_sherpa_onnx_finds_the_same(tmp_path: Path, shape: str, chunk: int) -> None:
    recogniser = made(**SHAPES[shape])
    export(recogniser, tmp_path / "model", chunk_ms=40 * chunk)
    samples = [recording(seed)[: -1000 * seed or None] for seed in range(3)]
    spelled = set()
    for result, piece in zip(with_sherpa(tmp_path / "model", samples), samples, strict=True):
        tokens, frames = with_prnn(recogniser, piece, chunk)
        text = recogniser.tokenizer.decode(tokens)
        assert "".join(result.tokens) == text
        assert result.text == text.lstrip()
        assert np.rint(np.array(result.timestamps) / 0.04).tolist() == frames
        spelled.add(text)
    assert max(map(len, spelled)) > 5
    assert len(set("".join(spelled))) > 2


def test_sherpa_onnx_runs_eight_bits(tmp_path: Path) -> None:
    export(made(**SHAPES["projected"]), tmp_path / "model", int8=True)
    (result,) = with_sherpa(tmp_path / "model", [recording(0)], ".int8.onnx")
    assert len(result.tokens) > 5


class Step(nn.Module):
    """The encoder's graph in torch."""

    def __init__(self, model: Transducer) -> None:
        super().__init__()
        self.encoder, self.joiner = model.encoder, model.joiner

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> list[torch.Tensor]:
        state = self.encoder.initial_state(len(x))._replace(hidden=(h.transpose(0, 1), c.transpose(0, 1)))
        out, _, after = self.encoder.step(x, torch.full((len(x),), x.shape[1]), state)
        return [self.joiner.encoder_proj(out), *(value.transpose(0, 1) for value in after.hidden)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("int8", [False, True])
def test_values_of_the_graphs(tmp_path: Path, shape: str, int8: bool) -> None:
    """Three streams at once, against the modules."""
    recogniser = made(gain=1, **SHAPES[shape])
    model = recogniser.model
    export(recogniser, tmp_path / "model", int8=True)
    layers, size = model.encoder.rnn.num_layers, model.encoder.output_dim
    x = -8 + 3 * torch.randn(3, 12 + model.encoder.frame_stack, 80)
    h, c = torch.tanh(torch.randn(layers, 3, size)), torch.randn(layers, 3, 24)
    context = model.predictor.context
    y = torch.randint(0, len(CHARACTERS) + 1, (3, context))
    start = torch.full((1, context), -1)
    start[0, -1] = 0
    encoder_out, decoder_out = torch.randn(3, 16), torch.randn(3, 16)
    with torch.no_grad():
        predicted = model.predictor(torch.cat([torch.zeros_like(start), y]))[:, -1]
        expected = {
            "encoder": Step(model)(x, h, c),
            "decoder": [model.joiner.predictor_proj(predicted)],
            "joiner": [model.joiner.output(model.joiner.activate(encoder_out + decoder_out))],
        }
    inputs = {
        "encoder": {"x": x, "h": h, "c": c},
        "decoder": {"y": torch.cat([start, y])},
        "joiner": {"encoder_out": encoder_out, "decoder_out": decoder_out},
    }
    for part, values in inputs.items():
        path = tmp_path / "model" / f"{part}{'.int8' if int8 else ''}.onnx"
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        assert [value.name for value in session.get_inputs()] == list(values)
        found = session.run(None, {name: value.numpy() for name, value in values.items()})
        assert len(found) == len(expected[part])
        for value, wanted in zip(found, expected[part], strict=True):
            assert value.shape == tuple(wanted.shape)
            error = np.abs(value - wanted.numpy()).max() / float(wanted.abs().max())
            assert error < (0.1 if int8 else 1e-5), (part, error)


# Models that cannot be exported


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"encoder_cell": "gru"}, "encoder_cell is 'gru'; it must be 'lstm' or 'layer_norm_lstm'"),
        ({"encoder_cell": "rnn", "encoder_residual": True}, "encoder_cell is 'rnn'; it must be 'lstm' or "),
        ({"frame_stride": 8}, "frame_stride is 8; it must be 4"),
        ({"frame_stack": 2, "frame_stride": None}, "frame_stride is 2; it must be 4"),
        ({"predictor": "lstm"}, "predictor is 'lstm'; it must be 'stateless'"),
        ({"predictor": "gru"}, "predictor is 'gru'; it must be 'stateless'"),
        ({"loss": "tdt"}, "loss is 'tdt'; "),
        ({"blank": 1}, "blank is 1; it must be 0"),
        ({"features": FeatureConfig(sample_rate=8000)}, "sample_rate is 8000; it must be 16000"),
        ({"features": FeatureConfig(num_mel_bins=40), "feature_dim": 40}, "num_mel_bins is 40; it must be 80"),
        ({"features": FeatureConfig(frame_shift_ms=12.5)}, "frame_shift_ms is 12.5; it must be 10.0"),
        ({"features": FeatureConfig(frame_length_ms=20)}, "frame_length_ms is 20; it must be 25.0"),
        ({"features": FeatureConfig(high_freq=0)}, "high_freq is 0; it must be -400.0"),
        ({"characters": "a\t"}, "tokens.txt cannot hold the character '\\t'"),
        ({"characters": "a\u2581"}, "the character \u2581 stands for a space in tokens.txt"),
        (
            {"characters": "ab\u01a1"},
            "sherpa-onnx takes characters that end in U+0180 to U+01BF for pieces of a byte-level tokenizer",
        ),
    ],
)
def test_refusals(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotSupportedError) as caught:
        export(made(**changes), tmp_path / "new" / "model")
    message = str(caught.value)
    assert message.startswith("sherpa-onnx cannot run this model: ")
    assert reason in message
    assert not list(tmp_path.iterdir())


def test_every_reason_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError) as caught:
        export(made(encoder_cell="gru", predictor="lstm", loss="tdt"), tmp_path / "model")
    for name in ("encoder_cell", "predictor", "loss"):
        assert f"{name} is " in str(caught.value)


@pytest.mark.parametrize("chunk_ms", [0, -40, 100, 2040])
def test_chunks(tmp_path: Path, chunk_ms: int) -> None:
    with pytest.raises(ValueError, match=f"chunk_ms is {chunk_ms}; it must be a multiple of 40 from 40 to 2000"):
        export(made(), tmp_path / "model", chunk_ms=chunk_ms)
    assert not list(tmp_path.iterdir())


# The folder


FILES = ["decoder.onnx", "encoder.onnx", "joiner.onnx", "tokens.txt"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    files = export(made(), tmp_path / "model")
    assert [file.name for file in files] == FILES
    assert sorted((tmp_path / "model").iterdir()) == files
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
    assert (tmp_path / "model" / "tokens.txt").read_text() == "<blk> 0\na 1\nb 2\n\u2581 3\nç 4\n1 5\n"


@pytest.mark.parametrize("occupy", [Path.write_text, lambda path, text: (path.mkdir(), (path / "a").write_text(text))])
def test_what_is_there_stays(tmp_path: Path, occupy: Callable[[Path, str], object]) -> None:
    occupy(tmp_path / "model", "precious")
    with pytest.raises(InputError, match="model: there is something already; take another folder"):
        export(made(), tmp_path / "model")
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert kept.read_text() == "precious"


@pytest.mark.parametrize("part", ["encoder", "joiner"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, error: BaseException
) -> None:
    def fail(*arguments: object) -> None:
        assert len(list(tmp_path.iterdir())) == 1
        raise error

    monkeypatch.setattr(f"prnn.asr.export.{part}_graph", fail)
    with pytest.raises(type(error)) as caught:
        export(made(), tmp_path / "model")
    assert not list(tmp_path.iterdir())
    if isinstance(caught.value, OSError):
        assert caught.value.filename == str(tmp_path / "model")


# The command line


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    contents: dict[str, Any] = small_checkpoint()
    recogniser = made()
    contents["prnn"].update(model=recogniser.model.config.to_dict(), characters=list(CHARACTERS))
    contents["state_dict"] = {f"model.{name}": value for name, value in recogniser.model.state_dict().items()}
    torch.save(contents, tmp_path / "model.ckpt")
    return tmp_path / "model.ckpt"


def test_the_command(tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(checkpoint), str(tmp_path / "out"), "--int8", "--chunk-ms", "320"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [Path(line.split()[0]).name for line in lines] == sorted(
        [*FILES, "decoder.int8.onnx", "encoder.int8.onnx", "joiner.int8.onnx"]
    )
    assert len(with_sherpa(tmp_path / "out", [recording(0)])[0].tokens) > 5


def test_the_command_refuses_in_a_sentence(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(small_checkpoint(), tmp_path / "small.ckpt")
    for arguments, message in (
        ([tmp_path / "small.ckpt", tmp_path / "out"], "sherpa-onnx cannot run this model: frame_stride is 2; "),
        ([tmp_path / "none.ckpt", tmp_path / "out"], f"{tmp_path / 'none.ckpt'}: no such file"),
        ([checkpoint, checkpoint], f"{checkpoint}: there is something already"),
        ([checkpoint, checkpoint / "out"], f"{checkpoint / 'out'}: not a directory"),
    ):
        assert main(["export", *map(str, arguments)]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith(f"prnn: {message}")
        assert output.err.count("\n") == 1
    for value in ("100", "0", "-40", "1e3", "forty", "4000"):
        with pytest.raises(SystemExit):
            main(["export", "a", "b", "--chunk-ms", value])
        assert f"'{value}' is not a multiple of 40 from 40 to 2000" in capsys.readouterr().err


def test_without_onnx(tmp_path: Path, checkpoint: Path) -> None:
    program = (
        "import sys; sys.modules['onnx'] = None; from prnn.cli import main; "
        f"sys.exit(main(['export', {str(checkpoint)!r}, {str(tmp_path / 'out')!r}]))"
    )
    result = forked.run("-c", program)
    assert result.returncode == 2
    assert result.stderr == "prnn: the package onnx is not installed; pip install onnx brings it\n"

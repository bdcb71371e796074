"""An encoder that is not prnn's: the example of docs/own_encoder.md, trained, streamed, never imported by a file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from asr_data import write_corpus
from torch import Tensor

from prnn.asr import InputError, Recogniser
from prnn.asr.audio import read_audio
from prnn.asr.configuration import parse
from prnn.asr.own_encoder import import_class
from prnn.cli import main
from prnn.transducer import Transducer, TransducerConfig

PAGE = Path(__file__).parents[1] / "docs" / "own_encoder.md"
NAME = "my_encoder:AttentionEncoder"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's code as a module of the working directory, which leaves a file when it is imported."""
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (tmp_path / "my_encoder.py").write_text(f"{block}\n\nopen('imported', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("my_encoder", None)
    yield tmp_path
    sys.modules.pop("my_encoder", None)


def made(**changes: Any) -> Transducer:
    config = TransducerConfig(
        5, feature_dim=4, frame_stack=3, frame_stride=2, encoder_hidden=16, encoder_layers=2, joiner_dim=8,
        predictor="stateless", encoder_class=NAME, **changes,
    )  # fmt: skip
    torch.manual_seed(0)
    return Transducer.from_config(config, import_class(NAME).from_config(config)).double()


def test_streams_are_the_whole(module: Path) -> None:
    model = made()
    with torch.no_grad():
        for name, parameter in model.encoder.named_parameters():
            if name.endswith("distance"):
                parameter.normal_()
        model.joiner.output.weight.mul_(20)
    model.eval()
    features, lengths = torch.randn(3, 149, 4, dtype=torch.float64), torch.tensor([149, 80, 2])
    whole, counts = model.encoder(features, lengths)
    for size in (1, 7, 100):
        state = model.encoder.initial_state(3)
        pieces: list[list[Tensor]] = [[], [], []]
        for start in range(0, 149, size):
            chunk = features[:, start : start + size]
            out, ready, state = model.encoder.step(chunk, (lengths - start).clamp(0, chunk.shape[1]), state)
            for row in range(3):
                pieces[row].append(out[row, : ready[row]])
        out, ready, _ = model.encoder.finish(state)
        for row in range(3):
            streamed = torch.cat([*pieces[row], out[row, : ready[row]]])
            torch.testing.assert_close(streamed, whole[row, : counts[row]])
    wanted = model.greedy_search(features, lengths)
    assert sum(len(found.tokens) for found in wanted) > 10
    state = model.stream_init(3)
    for start in range(0, 149, 11):
        chunk = features[:, start : start + 11]
        _, state = model.stream_step(chunk, state, (lengths - start).clamp(0, chunk.shape[1]))
    _, state = model.stream_finish(state)
    assert [found.tokens for found in state.best()] == [found.tokens for found in wanted]


def test_it_sees_what_it_says(module: Path) -> None:
    """Two layers of 32 frames reach 62 frames back, and none ahead."""
    model = made().eval()
    features = torch.randn(1, 201, 4, dtype=torch.float64, requires_grad=True)
    out, _ = model.encoder(features, torch.tensor([201]))
    (gradient,) = torch.autograd.grad(out[0, 80].sum(), features)
    seen = gradient[0].abs().sum(1).nonzero()[:, 0]
    assert (int(seen.min()), int(seen.max())) == (2 * (80 - 62), 2 * 80 + 2)


def command(manifest: Path, *more: object) -> list[str]:
    return [str(word) for word in (
        "train", "--manifest", manifest, "--valid", manifest, "--output", "out", "--hidden", 16, "--layers", 1,
        "--accelerator", "cpu", "--no-progress", "--pictures", 0, "--average", 2, *more,
    )]  # fmt: skip


def test_trained_by_its_name(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write_corpus(module / "data", "tones", ["ab", "c"])
    named = ["--encoder-class", NAME]
    assert main(command(manifest, *named, "--epochs", 2)) == 0
    assert main(command(manifest, *named, "--epochs", 3)) == 0  # goes on
    assert main(command(manifest, *named, "--epochs", 1, "--init", "out/model.ckpt", "--output", "tuned")) == 0
    assert (module / "imported").exists()
    recogniser = Recogniser.load("out/averaged.ckpt", encoder_class=NAME)
    assert type(recogniser.model.encoder).__name__ == "AttentionEncoder"
    assert float(recogniser.model.encoder.feature_mean.abs().min()) > 0
    wav = manifest.parent / "tones-0.wav"
    samples, rate = read_audio(wav)
    stream = recogniser.stream(rate)
    for start in range(0, len(samples), 999):
        stream.accept(samples[start : start + 999])
    assert stream.finish() == recogniser.transcribe(samples, rate)
    for arguments in (["transcribe", "out/model.ckpt", str(wav)], ["evaluate", "out/model.ckpt", str(manifest)]):
        assert main([*arguments, *named]) == 0

    # No file imports it.
    (module / "imported").unlink()
    del sys.modules["my_encoder"]
    capsys.readouterr()
    refusal = f"out/model.ckpt: its encoder is {NAME}, which is not prnn's: to import and run that class, say so by "
    for arguments in (["transcribe", "out/model.ckpt", str(wav)], ["evaluate", "out/model.ckpt", str(manifest)],
                      ["export", "out/model.ckpt", "exported"]):  # fmt: skip
        assert main(arguments) == 2
        assert capsys.readouterr().err == f"prnn: {refusal}--encoder-class {NAME}\n"
    with pytest.raises(InputError, match="which is not prnn's"):
        Recogniser.load("out/model.ckpt")
    for more in (["--config", "out/options.json"], ["--config", "own.yaml"]):
        (module / "own.yaml").write_text(f"model: {{encoder_class: '{NAME}'}}\n")
        with pytest.raises(SystemExit):
            main(command(manifest, *more))
        assert f"encoder_class is '{NAME}' in a configuration file; " in capsys.readouterr().err
    assert main(command(manifest, "--init", "out/model.ckpt", "--output", "other")) == 2
    assert refusal in capsys.readouterr().err
    assert not (module / "imported").exists()
    assert "my_encoder" not in sys.modules
    assert parse([*command(manifest)[1:], "--config", "out/options.json", *named])[0].model["encoder_class"] == NAME


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "importing other failed: ModuleNotFoundError"),
        ("1 / 0", "importing other failed: ZeroDivisionError"),
        ("", "encoder_class is other:Encoder; it must be a torch.nn.Module with a class method from_config(config)"),
        ("def Encoder(): pass", "it must be a torch.nn.Module with a class method from_config(config)"),
        (
            "import torch\nclass Encoder(torch.nn.Module):\n  output_dim = 3\n"
            "  @classmethod\n  def from_config(cls, config): return cls()",
            "of a config has no feature_dim, frame_stride, initial_state, step, finish, set_normalization, ",
        ),
    ],
    ids=["missing", "failing", "empty", "function", "incomplete"],
)
def test_classes_that_cannot_be(
    module: Path, capsys: pytest.CaptureFixture[str], source: str | None, message: str
) -> None:
    if source is not None:
        (module / "other.py").write_text(source)
    sys.modules.pop("other", None)
    manifest = write_corpus(module / "data", "tones", ["ab", "c"])
    assert main(command(manifest, "--encoder-class", "other:Encoder")) == 2
    assert message in capsys.readouterr().err
    sys.modules.pop("other", None)


def test_names_that_cannot_be(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"encoder_class is 'os'; it must be 'package\.module:Class'"):
        TransducerConfig(5, encoder_class="os")
    with pytest.raises(ValueError, match="encoder_class is my_encoder:AttentionEncoder, but no encoder is given"):
        Transducer.from_config(TransducerConfig(5, encoder_class=NAME))
    manifest = write_corpus(module / "data", "tones", ["ab", "c"])
    assert main(command(manifest, "--epochs", 1)) == 0
    assert main(["transcribe", "out/model.ckpt", str(manifest.parent / "tones-0.wav"), "--encoder-class", NAME]) == 2
    assert f"--encoder-class is {NAME}, but its encoder is prnn's own" in capsys.readouterr().err

"""recipes/librispeech on a corpus in LibriSpeech's layout, made here: every stage, and after kill -9 anywhere."""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import soundfile
import torch
from asr_data import tone_string

from prnn.asr.checkpoint import load_recogniser_parts, read_checkpoint
from prnn.asr.configuration import parse
from prnn.asr.manifest import read_manifest
from prnn.transducer import Transducer
from recipes.librispeech.__main__ import CONFIGS, STAGES, main

SENTENCES = {
    "train-clean-100": [
        "AB CAB",
        "CA BA ABC",
        "BACA CAB",
        "ACC AB CAB",
        "CABBA",
        "ABACA BA",
        "BABA CAB AB",
        "CAB CABBA",
    ],
    "train-other-500": ["CAB AB ABC", "ABBA CAB", "CC BA CAB"],
    "dev-clean": ["AB CAB BA", "CABBA ABC"],
    "dev-other": ["BACA AB"],
    "test-clean": ["CAB BA", "ABACA"],
    "test-other": ["BA CABBA"],
}
CONFIG = """
epochs: 2
batch_size: 4
average: 2
checkpoint_every: 2
accelerator: cpu
precision: 32-true
workers: 0
pictures: 0
model:
  encoder_layers: 1
  encoder_hidden: 16
  predictor_hidden: 8
  joiner_dim: 8
augmentation:
  speeds: [0.9, 1.1]
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PART/SPEAKER/CHAPTER/SPEAKER-CHAPTER-NUMBER.flac with SPEAKER-CHAPTER.trans.txt, as openslr.org has it."""
    corpus = tmp_path_factory.mktemp("corpus") / "LibriSpeech"
    rng = np.random.default_rng(0)
    for speaker, (part, sentences) in enumerate(SENTENCES.items(), 100):
        for chapter in (1, 2):
            folder = corpus / part / str(speaker) / str(chapter)
            folder.mkdir(parents=True)
            lines = []
            for number, sentence in enumerate(sentences[chapter - 1 :: 2]):
                name = f"{speaker}-{chapter}-{number:04d}"
                samples = np.pad(tone_string(sentence.lower(), rng), 8000)
                soundfile.write(folder / f"{name}.flac", samples, 16000)
                lines.append(f"{name} {sentence}\n")
            (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))
    return corpus


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    base = (CONFIGS / "base.yaml").read_text()
    assert "average: 10" in base
    path.write_text(CONFIG)
    return path


def command(corpus: Path, config: Path, output: Path, *stages: str) -> list[str]:
    options = ["--corpus", str(corpus), "--output", str(output), "--config", str(config), "--vocab", "12"]
    return [*stages, *options, "--", "--model.frame_stack=8", "--model.frame_stride=4", "--no-progress"]


@pytest.fixture(scope="module")
def finished(corpus: Path, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("finished") / "out"
    assert main(command(corpus, config, output)) == 0
    return output


def contents(output: Path) -> dict[str, object]:
    """Returns the stages' results, as far as runs agree on them."""
    made: dict[str, object] = {}
    for name in ("data/train.jsonl.gz", "pieces-12.model"):
        made[name] = (output / name).stat().st_size
    made["train"] = (output / "data/train.jsonl").read_text()
    for name in ("model.ckpt", "averaged.ckpt", "last.ckpt"):
        weights = read_checkpoint(output / "tiny" / name)["state_dict"]
        made[name] = {key: tensor.numpy().tobytes() for key, tensor in weights.items()}
    for test in ("test-clean", "test-other"):
        made[test] = (output / "tiny" / f"{test}.recognised.jsonl").read_text()
        made[f"{test} rates"] = json.loads((output / "tiny" / f"{test}.rates.json").read_text())["rates"]
    for path in sorted((output / "tiny/exported").iterdir()):
        made[path.name] = path.read_bytes()
    return made


def test_every_stage(finished: Path, corpus: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [utterance.text for utterance in read_manifest(finished / "data/train.jsonl")]
    assert sorted(texts) == sorted(SENTENCES["train-clean-100"] + SENTENCES["train-other-500"])
    assert texts != sorted(texts)
    assert len(read_manifest(finished / "data/dev.jsonl")) == 3
    model, _, tokenizer = load_recogniser_parts(finished / "tiny/averaged.ckpt")
    assert len(tokenizer) == 12
    assert (model.encoder.frame_stride, model.joiner.output.out_features) == (4, 12)
    for test in ("test-clean", "test-other"):
        lines = (finished / "tiny" / f"{test}.recognised.jsonl").read_text().splitlines()
        assert [json.loads(line)["text"] for line in lines] == SENTENCES[test]
        rates = json.loads((finished / "tiny" / f"{test}.rates.json").read_text())["rates"]
        count = len(SENTENCES[test])
        assert rates.startswith(f"{count} utterance{'s' if count > 1 else ''}: WER ")
    exported = finished / "tiny/exported"
    onnx.checker.check_model(onnx.load(exported / "encoder.onnx"))
    assert {"encoder.int8.onnx", "tokens.txt", "bpe.model"} <= {path.name for path in exported.iterdir()}

    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    assert main(command(corpus, config, finished)) == 0
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()} == before
    printed = capsys.readouterr().out
    assert [line[3:] for line in printed.splitlines() if line.startswith("== ")] == list(STAGES)
    assert printed.count("already") == 4
    assert printed.count("WER") == 2


def forked(run: Callable[[], int], fatal: int) -> int:
    """Runs in a process of its own, which a real SIGKILL ends at the `fatal`th move of a file, before it; returns the
    exit status, that of a signal below 0."""
    process = os.fork()
    if process == 0:
        status = 70
        try:
            moves = 0
            move = os.replace

            def counted(*names: object) -> None:
                nonlocal moves
                moves += 1
                if moves == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
                move(*names)  # type: ignore[arg-type]

            os.replace = counted  # type: ignore[assignment]
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1), os.dup2(null, 2)
            status = run()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_killed_in_each_stage(finished: Path, corpus: Path, config: Path, tmp_path: Path) -> None:
    """kill -9 before the first file of a stage takes its place."""
    torch.set_num_threads(1)
    output = tmp_path / "out"
    for stage in STAGES:
        one = command(corpus, config, output, stage)
        assert forked(lambda one=one: main(one), 1) == -signal.SIGKILL, stage
        assert forked(lambda one=one: main(one), 0) == 0, stage
    assert contents(output) == contents(finished)
    assert not list(output.rglob("*.partial"))


def test_killed_again_and_again(finished: Path, corpus: Path, config: Path, tmp_path: Path) -> None:
    """Each run gets a file further than the one before."""
    torch.set_num_threads(1)
    output = tmp_path / "out"
    for fatal in range(2, 40):
        status = forked(lambda: main(command(corpus, config, output)), fatal)
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert status == 0
    assert fatal > 6
    assert contents(output) == contents(finished)
    assert not list(output.rglob("*.partial"))


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("lstm_30m", 30),
        ("lstm_80m", 78),
        ("lstm_5x1024", 42),
        ("lstmp_12x1024", 59),
        ("layer_norm_lstm", 23),
        ("lstmp_blocks", 84),
    ],
)
def test_configurations(name: str, millions: float) -> None:
    """They parse, have the parameters that they say, and sherpa-onnx's contract holds for them."""
    arguments = ["--config", str(CONFIGS / "base.yaml"), "--config", str(CONFIGS / f"{name}.yaml")]
    options, _, _ = parse([*arguments, "--manifest", "train.jsonl.gz", "--valid", "dev.jsonl.gz"])
    assert f"{millions} million" in (CONFIGS / f"{name}.yaml").read_text()
    with torch.device("meta"):
        model = Transducer.from_config(options.transducer(500, 80))
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)
    assert options.augmentation.speeds == (0.9, 1.0, 1.1)
    assert (options.model["predictor"], options.model["frame_stride"]) == ("stateless", 4)
    assert replace(options, epochs=1).precision == "bf16-mixed"


def test_what_cannot_be_done(corpus: Path, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*arguments: str) -> str:
        assert main(list(arguments)) == 2
        return capsys.readouterr().err

    empty = tmp_path / "empty"
    assert f"{empty}: there is no train-*, so it is not LibriSpeech" in refused("--corpus", str(empty))
    for name in ("train-a", "dev-a", "test-a"):
        (empty / name).mkdir(parents=True)
    reason = "there is no *.trans.txt in it, so it is no part of LibriSpeech"
    nowhere = ["--output", str(tmp_path / "out")]
    assert refused("--corpus", str(empty), *nowhere) == f"librispeech: {empty / 'train-a'}: {reason}\n"
    (tmp_path / "file").touch()
    assert f"librispeech: {tmp_path / 'file'}/" in refused("--corpus", str(corpus), "--output", str(tmp_path / "file"))
    options = ["--corpus", str(corpus), "--output", str(tmp_path / "out")]
    assert "tiny: no such configuration; there are layer_norm_lstm" in refused("train", *options, "--config", "tiny")
    assert "model.ckpt: no such file; the stage train makes it" in refused("decode", *options)
    assert "data/train.jsonl: no such file" in refused("tokenizer", *options)
    with pytest.raises(SystemExit):
        main(["fly", *options])
    assert "there is no stage 'fly'" in capsys.readouterr().err


def test_download(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lhotse's own, of which the test sees that it is asked."""
    asked = []

    def download(target: Path, parts: str) -> None:
        asked.append((target, parts))
        (target / "LibriSpeech").symlink_to(corpus)

    monkeypatch.setattr(sys.modules["recipes.librispeech.prepare"], "download_librispeech", download)
    target = Path(tempfile.mkdtemp(dir=tmp_path))
    arguments = [
        "prepare",
        "--corpus",
        str(target),
        "--output",
        str(tmp_path / "out"),
        "--download",
        "mini_librispeech",
    ]
    assert main(arguments) == 0
    assert asked == [(target, "mini_librispeech")]
    assert (tmp_path / "out/data/train.jsonl.gz").is_file()

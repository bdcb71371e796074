"""The recipe of read sentences: manifests of a folder, and the whole of it on a few recordings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from asr_data import write_corpus
from test_media import encoded
from tones_model import RATE, tones

from prnn.asr import read_manifest
from prnn.asr.audio import read_audio
from prnn.asr.configuration import parse
from prnn.asr.errors import InputError
from recipes.speech.__main__ import CONFIGS, main
from recipes.speech.prepare import normalised, prepare, split_of

TINY = [
    "--hidden",
    "4",
    "--layers",
    "1",
    "--joiner",
    "4",
    "--predictor-hidden",
    "4",
    "--no-progress",
    "--pictures",
    "0",
]


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("Sie liegt -- in „Weißenburg-Gunzenhausen“.", "sie liegt in weißenburg gunzenhausen"),
        ("Ja, ‘foto’s’ van 't dorp!", "ja foto's van t dorp"),
        ("E\u0301e\u0301n", "één"),
        ("Im Jahr 1900", None),
        ("?!", ""),
    ],
)
def test_texts(text: str, spelled: str | None) -> None:
    assert normalised(text) == spelled


def sentences() -> list[str]:
    """Texts of tones, some for each part."""
    texts = [f"{a}{b} {c}{d}" for a in "abc" for b in "abc" for c in "abc" for d in "abc"]
    return [text for part in ("train", "valid", "test") for text in [t for t in texts if split_of(t) == part][:4]]


@pytest.mark.parametrize("below", ["", "audio"])
def test_manifests_of_metadata(tmp_path: Path, below: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = sentences()
    write_corpus(tmp_path / "made", "tones", texts)
    (tmp_path / "corpus" / below).mkdir(parents=True)
    lines = []
    for number, text in enumerate(texts):
        shutil.copy(tmp_path / "made" / f"tones-{number}.wav", tmp_path / "corpus" / below / f"a.{number}.wav")
        lines.append(f"a.{number}|{text.upper()}.\n")
    (tmp_path / "corpus" / "metadata.csv").write_text("".join([*lines, "a.0|in 1900\n", "missing|ab\n"]))
    prepare(tmp_path / "corpus", tmp_path / "out")
    output = capsys.readouterr().out
    for part in ("train", "valid", "test"):
        found = read_manifest(tmp_path / "out" / f"{part}.jsonl")
        assert [utterance.text for utterance in found] == [text for text in texts if split_of(text) == part]
        assert all(utterance.audio.is_file() for utterance in found)
        assert f"{part}: 4 sentences, 0.00 h" in output
    assert "2 lines were left out" in output


def test_recordings_in_containers_become_flac_files(tmp_path: Path) -> None:
    """Once: a second time, what was made is taken."""
    texts = sentences()
    (tmp_path / "corpus").mkdir()
    for number in range(len(texts)):
        encoded(tmp_path / "corpus" / f"{number}.webm", tones("ab"), "libopus", 48000)
    lines = [f"{number}.webm|{text}\n" for number, text in enumerate(texts)]
    (tmp_path / "corpus" / "metadata.csv").write_text("".join(lines))
    prepare(tmp_path / "corpus", tmp_path / "out")
    found = read_manifest(tmp_path / "out" / "train.jsonl")
    assert [utterance.audio.suffix for utterance in found] == [".flac"] * 4
    samples, rate = read_audio(found[0].audio)
    assert rate == 48000
    assert abs(found[0].duration - len(tones("ab")) / RATE) < 0.1
    assert len(samples) / rate == pytest.approx(found[0].duration, abs=1e-3)
    written = found[0].audio.stat().st_mtime_ns
    prepare(tmp_path / "corpus", tmp_path / "out")
    assert found[0].audio.stat().st_mtime_ns == written


def test_folders_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none"), "--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"speech: {tmp_path / 'none' / 'metadata.csv'}: no such file\n"
    (tmp_path / "metadata.csv").write_text("a|ab\n")
    (tmp_path / "a.ape").touch()
    with pytest.raises(InputError, match=r"no recordings \(.*\); there are \.ape$"):
        prepare(tmp_path, tmp_path / "out")
    (tmp_path / "a.webm").write_text("none")
    with pytest.raises(InputError, match=r"a\.webm: "):
        prepare(tmp_path, tmp_path / "out")
    (tmp_path / "a.wav").write_text("none")
    with pytest.raises(InputError, match=r"a\.wav: "):
        prepare(tmp_path, tmp_path / "out")
    write_corpus(tmp_path, "tones", ["ab"])
    (tmp_path / "metadata.csv").write_text("tones-0|ab\n")
    with pytest.raises(InputError, match=r"metadata\.csv: too few sentences: "):
        prepare(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("machine", "features_on"), [("cpu", "workers"), ("gpu", "device")])
def test_configurations(machine: str, features_on: str) -> None:
    files = ["--config", str(CONFIGS / "config.yaml"), "--config", str(CONFIGS / f"{machine}.yaml")]
    files += ["--manifest", "a.jsonl", "--valid", "b.jsonl"]
    options, *_ = parse(files)
    assert (options.features_on, options.model["encoder_cell"], options.lr) == (features_on, "layer_norm_lstm", 2e-3)
    assert parse([*files, "--cell", "gru"])[0].lr == 1e-3


def test_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With two seeds; run again, it has nothing to do but to recognise."""
    for part in ("train", "valid", "test"):
        manifest = write_corpus(tmp_path / "data", part, ["ab", "c a", "b"])
        manifest.rename(tmp_path / "data" / f"{part}.jsonl")
    command = [str(tmp_path / "data"), "--output", str(tmp_path / "out"), "--seeds", "2", "--accelerator", "cpu"]
    command += ["--", *TINY, "--steps", "2"]
    printed = []
    for _ in range(2):
        assert main(command) == 0
        printed.append(capsys.readouterr().out)
        assert printed[-1].count("3 sentences, greedy: WER") == printed[-1].count("3 sentences, beam of 4: WER") == 2
        assert "CER, beam of 4, 2 seeds: " in printed[-1]
    assert ("training loss" in printed[0], "training loss" in printed[1]) == (True, False)
    rates = json.loads((tmp_path / "out" / "rates.json").read_text())
    assert [len(rate) for rate in rates] == [4, 4]
    assert (tmp_path / "out" / "error_rates.png").read_bytes().startswith(b"\x89PNG")
    for seed in range(2):
        for name in ("learning_curve.png", "alignment.png"):
            assert (tmp_path / "out" / f"seed-{seed}" / name).read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit):
        main([*command, "--lr", "0"])


def test_the_first_of_several_processes_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`prnn train --devices 2` starts the recipe's command a second time."""
    (tmp_path / "train.jsonl").touch()
    monkeypatch.setattr("recipes.speech.__main__.prnn_command", lambda command: 0)
    monkeypatch.setattr("recipes.speech.__main__.plot_error_rates", lambda logs, path: None)
    monkeypatch.setattr("recipes.speech.__main__.report", lambda trained, test, device: {"CER": 0.5})
    for process, seeds in (("1", 0), ("0", 2)):
        (tmp_path / process).mkdir()
        monkeypatch.setenv("LOCAL_RANK", process)
        assert main([str(tmp_path), "--output", str(tmp_path / process), "--seeds", "2"]) == 0
        assert capsys.readouterr().out.count("== seed") == seeds
        assert (tmp_path / process / "rates.json").is_file() == (seeds > 0)

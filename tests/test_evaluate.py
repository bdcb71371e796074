"""prnn evaluate: what it writes, in which memory, and what of it is left where it cannot."""

import json
import re
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from asr_data import write_corpus
from test_tokenizer import refused
from test_transcripts import SPELLED, TEXT, printed
from tones_model import RATE, save, tone_recogniser, tones

from prnn.asr import compute_features
from prnn.asr.formats import TranscriptLines
from prnn.asr.recognition import _batches
from prnn.cli import main


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tone_recogniser(), tmp_path / "model.ckpt")


def test_every_format(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Times are those of the recording, of which the utterance is a part."""
    soundfile.write(tmp_path / "talk.wav", np.concatenate([np.zeros(8000), tones(SPELLED)]), RATE, subtype="FLOAT")
    manifest = tmp_path / "talk.jsonl"
    entry = {"audio_filepath": "talk.wav", "offset": 0.5, "duration": 0.1 * len(SPELLED), "text": "ab c"}
    manifest.write_text(json.dumps(entry) + "\n")
    (found,) = tone_recogniser().transcribe_batch([compute_features(tones(SPELLED), RATE)], 3)
    out = tmp_path / "out"
    command = ["evaluate", checkpoint, manifest, "--output", out, "--beam", 3]
    for name in ("text", "ctm"):
        assert re.fullmatch("1 utterance: WER .*", printed(capsys, *command, "--format", name)[0])
        wanted = list(TranscriptLines(name)(tmp_path / "talk.wav", found.moved(0.5)))
        assert out.read_text().splitlines() == wanted
    printed(capsys, *command, "--nbest", 2)
    entry = json.loads(out.read_text())
    assert (entry["text"], entry["recognised"]) == ("ab c", found.text)
    assert entry["words"][0]["start"] == pytest.approx(found.words[0].start + 0.5)
    assert len(entry["nbest"]) == 2
    assert refused(capsys, *command[:3], "--format", "ctm") == "--format says what --output has; give that, too"
    message = "--nbest says what --output has; give that, too"
    assert refused(capsys, *command[:3], "--beam", 2, "--nbest", 2) == message


def test_a_place_that_cannot_be_written_is_refused_first(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after hours of recognition."""
    monkeypatch.setattr("prnn.asr.evaluation.evaluate", None)
    manifest = write_corpus(tmp_path, "t", ["a"])
    (tmp_path / "file").touch()
    for place, reason in (("none/out", "no such file or directory"), ("", "is a directory"), ("file/out", "no such")):
        command = ["evaluate", checkpoint, manifest, "--output", tmp_path / place]
        assert refused(capsys, *command).startswith(f"{tmp_path / place}: {reason}")


def test_old_results_stay_where_the_disk_is_full(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it would leave the first bytes of modules
    manifest, out = write_corpus(tmp_path, "t", ["a"] * 60), tmp_path / "out"
    out.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        status = main(["evaluate", str(checkpoint), str(manifest), "--output", str(out)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    rates, error = capsys.readouterr()
    assert (status, error, out.read_text()) == (2, f"prnn: {out}: file too large\n", "old")
    assert rates.startswith("60 utterances: WER ")  # what took the time
    assert not list(tmp_path.glob("*.partial"))
    link = tmp_path / "link"
    link.symlink_to(out)
    printed(capsys, "evaluate", checkpoint, manifest, "--output", link, "--format", "text")
    assert len(out.read_text().splitlines()) == 60
    assert link.is_symlink()


def test_long_recordings_come_a_few_at_once() -> None:
    durations = [5.0, 590.0, 1.0, 2000.0, *[15.0] * 50]
    batches = list(_batches(durations, 32))
    assert sorted(number for batch in batches for number in batch) == list(range(54))
    assert [len(batch) for batch in batches] == [32, 20, 1, 1]
    assert batches[0][:2] == [2, 0]
    assert [len(batch) for batch in _batches([30.0] * 45, 32)] == [20, 20, 5]


def test_characters_that_no_symbol_stands_for_are_counted(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "talk.wav", tones(SPELLED), RATE, subtype="FLOAT")
    manifest = tmp_path / "talk.jsonl"
    entry = {"audio_filepath": "talk.wav", "duration": 0.1 * len(SPELLED), "text": TEXT[:-2] + "ax €x"}
    manifest.write_text(json.dumps(entry) + "\n")
    rates, unknown = printed(capsys, "evaluate", checkpoint, manifest)
    assert rates == f"1 utterance: WER {100 * 2 / 7:.2f} %, CER {100 * 4 / (len(TEXT) + 3):.2f} %"
    reason = "3 characters, 2 different ones, are not among the characters 'ab c'; they count as errors"
    assert unknown == f"{manifest}: {reason}: 'x' 2 times, '€' once"

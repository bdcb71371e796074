"""Recordings in which nothing is said: in training, validation and evaluation."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from asr_data import write_corpus
from lhotse import CutSet
from test_cuts import cut_set
from test_interrupted_training import small
from test_transcripts import SPELLED, TEXT, printed
from tones_model import RATE, save, tone_recogniser, tones

from prnn.asr import InputError, read_manifest
from prnn.asr.checkpoint import read_checkpoint
from prnn.asr.metrics import ErrorCounts, count_errors, error_rates
from prnn.asr.plots import label_posterior
from prnn.asr.training import train


def test_insertions() -> None:
    references, hypotheses = ["ab ca", "", " ", "b"], ["ab", " a  bb", "", "b c"]
    spoken = count_errors([references[0], references[3]], [hypotheses[0], hypotheses[3]])
    assert spoken == ErrorCounts(2, 3, 5, 6)
    assert count_errors(references, hypotheses) == ErrorCounts(2 + 2, 3, 5 + len("a  bb"), 6)
    assert count_errors([], []) == ErrorCounts(0, 0, 0, 0)
    assert error_rates(["", ""], ["", ""]) == (0.0, 0.0)
    assert error_rates(["", ""], ["", "a"]) == (math.inf, math.inf)


def silent_cuts(folder: Path, texts: list[str]) -> Path:
    """Cuts of which Lhotse's own writer has written the empty texts."""
    path = folder / "cuts.jsonl.gz"
    cut_set(folder, texts).to_file(path)
    assert [cut.supervisions[0].text for cut in CutSet.from_file(path)] == texts
    return path


@pytest.mark.parametrize(
    ("kind", "where", "loss"),
    [
        ("jsonl", "workers", "full"),
        ("jsonl", "workers", "pruned"),
        ("jsonl", "workers", "tdt"),
        ("jsonl", "device", "full"),
        ("cuts", "workers", "full"),
    ],
)
def test_trained_and_validated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, where: str, loss: str
) -> None:
    """A batch of empty texts alone, too; with pictures of one."""
    texts = ["", "ab ca", "", "b"]
    path = silent_cuts(tmp_path, texts) if kind == "cuts" else write_corpus(tmp_path, "tones", texts)
    options = small(path, tmp_path / "out", epochs=2, features_on=where, pictures=1, log_every=1)
    options.model["loss"] = loss
    train(options, progress=False)
    output = capsys.readouterr().out
    assert f"{path}: 2 of 4 texts are empty: nothing is said in these recordings\n" in output
    assert "4 training utterances" in output
    state = read_checkpoint(options.output / "last.ckpt")["state_dict"]
    assert all(bool(tensor.isfinite().all()) for tensor in state.values())


@pytest.mark.parametrize("kind", ["jsonl", "cuts"])
def test_all_texts_empty(tmp_path: Path, kind: str) -> None:
    path = silent_cuts(tmp_path, ["", ""]) if kind == "cuts" else write_corpus(tmp_path, "tones", ["", ""])
    with pytest.raises(InputError, match=f"^{path}: all texts are empty; there is no character to learn$"):
        train(small(path, tmp_path / "out"), progress=False)


def test_validated_on_empty_texts_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_corpus(tmp_path, "tones", ["ab", "c"])
    silence = write_corpus(tmp_path / "valid", "silence", ["", ""])
    train(small(path, tmp_path / "out", valid=silence, epochs=1), progress=False)
    assert re.search("WER (inf|0.00) %", capsys.readouterr().out)
    assert (tmp_path / "out" / "model.ckpt").exists()


def test_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = save(tone_recogniser(), tmp_path / "model.ckpt")
    soundfile.write(tmp_path / "talk.wav", tones(SPELLED), RATE, subtype="FLOAT")
    lines = [{"audio_filepath": "talk.wav", "duration": 0.1 * len(SPELLED), "text": text} for text in (TEXT, "")]
    manifest = tmp_path / "talk.jsonl"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_manifest(manifest)[1].text == ""
    (rates,) = printed(capsys, "evaluate", checkpoint, manifest, "--output", tmp_path / "out")
    assert rates == "2 utterances: WER 100.00 %, CER 100.00 %"
    assert [json.loads(line)["text"] for line in (tmp_path / "out").read_text().splitlines()] == [TEXT, ""]
    manifest.write_text(json.dumps(lines[1]) + "\n")
    assert printed(capsys, "evaluate", checkpoint, manifest) == ["1 utterance: WER inf %, CER inf %"]
    (line,) = printed(capsys, "evaluate", checkpoint, manifest, "--json")
    assert json.loads(line) == {"utterances": 1, "wer": None, "cer": None}


def test_the_posterior_of_an_empty_text() -> None:
    """All paths stay at the start."""
    torch.manual_seed(0)
    recogniser = tone_recogniser()
    features = torch.from_numpy(np.random.default_rng(0).standard_normal((40, 80)).astype(np.float32))
    posterior = label_posterior(recogniser, features, torch.zeros(0, dtype=torch.int64))
    assert posterior.shape[1] == 1
    torch.testing.assert_close(posterior, torch.ones_like(posterior))

"""Many recordings at once: the same transcripts as one by one, in the order of the inputs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from asr_data import write_corpus
from lhotse import CutSet, Fbank, FbankConfig
from test_cuts import cut_set
from test_transcripts import printed
from tones_model import RATE, save, tone_recogniser, tones

from prnn.asr import InputError, Recogniser, compute_features, read_manifest, recognition
from prnn.asr.audio import audio_blocks
from prnn.asr.data import read_utterances
from prnn.asr.evaluation import evaluate
from prnn.asr.formats import TranscriptLines
from prnn.cli import main
from prnn.commands import transcribe

# The third is longer than a batch takes here, the fifth shorter; the last ones have another sample rate.
SPELLED = ["ab c", "c", "ba.cab.cab.ca.cab.ca.ba", "..b a", "a", "cab ba", "b", "ab.ca", "c.b", "....", "ba cab"]


def recogniser() -> Recogniser:
    """No two symbols are equally probable."""
    found = tone_recogniser(gain=4.0)
    with torch.no_grad():
        found.model.joiner.output.bias[1:] = 0.1 * torch.arange(1, len(found.tokenizer))
    return found


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(recogniser(), tmp_path / "model.ckpt")


@pytest.fixture
def recordings(tmp_path: Path) -> list[Path]:
    paths = []
    for number, spelled in enumerate(SPELLED):
        samples, rate = tones(spelled), RATE if number < 8 else 2 * RATE
        if rate != RATE:
            samples = np.repeat(samples, 2)
        if spelled == "a":
            samples = samples[:1400]
        paths.append(tmp_path / f"{number}.wav")
        soundfile.write(paths[-1], samples, rate, subtype="FLOAT")
    return paths


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of three of four recordings at once."""
    monkeypatch.setattr(transcribe, "_AT_ONCE", 4)
    monkeypatch.setattr(transcribe, "_LONGEST", 2.0)
    monkeypatch.setattr(recognition, "_MOST_SECONDS", 1.5)


def one_by_one(paths: list[Path], name: str, beam: int) -> list[str]:
    model, lines, found = recogniser(), TranscriptLines(name, beam if name != "ctm" else 1), []
    for path in paths:
        rate, blocks = audio_blocks(path, 10.0)
        stream = model.stream(rate, beam)
        for block in blocks:
            stream.feed(block)
        stream.finish()
        found += [line for transcript in stream.utterances() for line in lines(path, transcript)]
    return found


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("name", ["text", "jsonl", "ctm"])
def test_transcribed_as_one_by_one(
    checkpoint: Path, recordings: list[Path], capsys: pytest.CaptureFixture[str], name: str, beam: int
) -> None:
    nbest = beam if name != "ctm" else 1
    command = ["transcribe", checkpoint, *recordings, "--format", name, "--beam", beam, "--nbest", nbest]
    expected = one_by_one(recordings, name, beam)
    assert printed(capsys, *command) == expected


@pytest.mark.usefixtures("few_at_once")
def test_those_before_a_damaged_one_are_printed(
    checkpoint: Path, recordings: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = recordings[6]
    samples, _ = soundfile.read(damaged, dtype="float32")
    samples[100] = np.nan
    soundfile.write(damaged, samples, RATE, subtype="FLOAT")
    assert main(["transcribe", str(checkpoint), *map(str, recordings)]) == 2
    output = capsys.readouterr()
    assert output.err == f"prnn: {damaged}: the recording has samples that are not finite numbers\n"
    assert output.out.splitlines() == one_by_one(recordings[:6], "text", 1)


@pytest.mark.parametrize("beam", [1, 3])
def test_evaluated_as_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beam: int) -> None:
    monkeypatch.setattr(recognition, "_MOST_SECONDS", 2.0)
    utterances = read_manifest(write_corpus(tmp_path, "tones", ["ab ca", "c", "ba cab cab", "b", "cab ba", "a"]))
    model = recogniser()
    expected = []
    for utterance in utterances:
        features = compute_features(soundfile.read(utterance.audio, dtype="float32")[0], RATE)
        expected += model.transcribe_batch([features], beam)
    assert evaluate(model, utterances, beam).transcripts == expected


def test_an_evaluation_ends_at_a_damaged_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "_MOST_SECONDS", 1.0)
    utterances = read_manifest(write_corpus(tmp_path, "tones", ["ab ca", "c", "ba cab cab", "b"]))
    utterances[2].audio.write_bytes(b"RIFF")
    with pytest.raises(InputError, match=r"line 3: .*tones-2\.wav: not a recording"):
        evaluate(tone_recogniser(), utterances)


def features_on_the_device(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Features are computed as for a GPU, here on the CPU. Returns what will have been recognised."""
    seen: list[torch.Tensor] = []
    transcribe_padded = Recogniser.transcribe_padded

    def noted(self: Recogniser, padded: torch.Tensor, *arguments: Any) -> Any:
        seen.append(padded)
        return transcribe_padded(self, padded, *arguments)

    monkeypatch.setattr(recognition, "_computes_features", lambda _: True)
    monkeypatch.setattr(Recogniser, "transcribe_padded", noted)
    return seen


def test_features_on_the_device(
    checkpoint: Path, recordings: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = features_on_the_device(monkeypatch)
    assert printed(capsys, "transcribe", checkpoint, *recordings) == one_by_one(recordings, "text", 1)
    assert seen
    assert all(batch.dim() == 3 for batch in seen)


@pytest.mark.parametrize("kind", ["recordings", "stored", "both"])
@pytest.mark.parametrize("device", [False, True])
def test_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, device: bool) -> None:
    """Stored features are taken wherever features are computed, in a batch with others, too."""
    cuts = cut_set(tmp_path / "data", ["ab ca", "cab", "b", "acc ab"])
    if kind != "recordings":
        config = FbankConfig(num_mel_bins=80, device="cpu")
        stored = cuts.compute_and_store_features(Fbank(config), tmp_path / "feats", num_jobs=1)
        cuts = stored if kind == "stored" else CutSet.from_cuts([*list(stored)[:2], *list(cuts)[2:]])
    path = tmp_path / "cuts.jsonl.gz"
    cuts.to_file(path)
    utterances, load = read_utterances(path)
    expected = evaluate(tone_recogniser(), utterances, load=load).texts
    seen = features_on_the_device(monkeypatch) if device else []
    assert evaluate(tone_recogniser(), utterances, load=load).texts == expected
    assert all(batch.dim() == 3 for batch in seen)


def test_a_checkpoint_is_read_without_a_compiler(checkpoint: Path) -> None:
    """torch._dynamo takes most of a second of each start."""
    code = f"""
import sys
from prnn.asr import Recogniser
Recogniser.load({str(checkpoint)!r})
print("torch._dynamo" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.xdist_group("gpu")
@pytest.mark.parametrize("beam", [1, 3])
def test_on_a_gpu(recordings: list[Path], beam: int) -> None:
    """The texts are those of the CPU, of recordings at two rates."""
    durations = [soundfile.info(path).duration for path in recordings]
    texts = []
    for device in ("cpu", "cuda"):
        model = recogniser()
        model.model.to(device)
        found = dict(recognition.recognise(model, recognition.LoadRecording(recordings), durations, beam))
        texts.append([found[number].text for number in range(len(recordings))])  # type: ignore[union-attr]
    assert texts[0] == texts[1]

"""The digits recipe: who speaks, what is written, and that it is the same each time."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import espeakng_loader
import forked
import numpy as np
import pytest

from prnn.asr import read_manifest
from prnn.asr.audio import read_audio
from recipes.digits.__main__ import command_line
from recipes.digits.espeak import Speaker, Synthesizer
from recipes.digits.prepare import DIGITS, add_noise, prepare
from recipes.digits.voices import ACCENTS, DEV, SPEAKERS, TEST, TRAIN

COUNTS = {"train": 30, "dev": 5, "test": 10}


def definition(variant: str) -> dict[str, str]:
    """The lines of a variant's file that say how it sounds, by their first words."""
    path = Path(espeakng_loader.get_data_path()) / "voices" / "!v" / variant
    lines = {}
    for line in path.read_text(errors="replace").splitlines():
        words = line.split("//")[0].split()
        if words and words[0] not in ("language", "name", "gender", "maintainer", "status"):
            size = 2 if words[0] == "formant" else 1
            lines[" ".join(words[:size])] = " ".join(words[size:])
    return lines


def test_the_command_to_try_needs_no_environment() -> None:
    printed = subprocess.run([*shlex.split(command_line()), "--version"], env={}, capture_output=True, check=True)
    assert printed.stdout.startswith(b"prnn ")


def test_where_data_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    failed = forked.run("-m", "recipes.digits", "--output", str(tmp_path / "file"))
    message = f"digits: {tmp_path / 'file' / 'data' / 'prepared.json'}: not a directory\n"
    assert (failed.returncode, failed.stderr) == (2, message)


def test_no_speaker_is_in_two_splits() -> None:
    everybody = [*TRAIN, *DEV, *TEST]
    assert len(everybody) == len(set(everybody))


def test_held_out_speakers_are_no_copies_of_training_speakers() -> None:
    training = {variant: definition(variant) for variant in TRAIN}
    for held_out in (*DEV, *TEST):
        own = definition(held_out)
        for variant, other in training.items():
            keys = own.keys() | other.keys()
            shared = sum(own.get(key) == other.get(key) for key in keys) / len(keys)
            assert shared < 0.5, (held_out, variant)


def test_held_out_speakers_have_the_formants_of_people() -> None:
    for held_out in (*DEV, *TEST):
        for formant in ("formant 1", "formant 2"):
            scale = int(definition(held_out).get(formant, "100").split()[0])
            assert 75 <= scale <= 135, held_out


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    prepare(folder, COUNTS, seed=3, processes=2)
    return folder


def test_manifests(data: Path) -> None:
    for split, count in COUNTS.items():
        entries = [json.loads(line) for line in (data / f"{split}.jsonl").read_text().splitlines()]
        assert len(entries) == len(read_manifest(data / f"{split}.jsonl")) == count
        for entry in entries:
            words = entry["text"].split()
            assert 1 <= len(words) <= 5
            assert set(words) <= set(DIGITS)
            assert entry["speaker"] in SPEAKERS[split]
            assert entry["accent"] in ACCENTS
            samples, rate = read_audio(data / entry["audio_filepath"])
            assert rate == 16000
            assert len(samples) / rate == pytest.approx(entry["duration"], abs=1e-3)
            assert 0.15 * len(words) < entry["duration"] < 1.2 * len(words) + 1.0
            assert 0.05 < np.abs(samples).max() < 0.9


def test_the_same_seed_gives_the_same_bytes(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(tmp_path, {"dev": 5, "test": 10}, seed=3, processes=1)
    for path in sorted(tmp_path.glob("*/*.wav")) + [tmp_path / "dev.jsonl", tmp_path / "test.jsonl"]:
        assert path.read_bytes() == (data / path.relative_to(tmp_path)).read_bytes(), path.name
    capsys.readouterr()
    prepare(tmp_path, {"dev": 5, "test": 10}, seed=3)
    assert "holds these data already" in capsys.readouterr().out
    prepare(tmp_path, {"dev": 5}, seed=4, processes=1)
    assert (tmp_path / "dev.jsonl").read_bytes() != (data / "dev.jsonl").read_bytes()


def test_espeak_speaks_with_every_voice() -> None:
    synthesizer = Synthesizer()
    lengths = set()
    for variant in (*TRAIN, *DEV, *TEST):
        samples = synthesizer.speak("seven", Speaker("en-us", variant))
        assert np.abs(samples).max() > 0.05, variant
        lengths.add(len(samples))
    assert len(lengths) > 10
    for accent in ACCENTS:
        assert len(synthesizer.speak("two", Speaker(accent, "f1"))) > 0.1 * synthesizer.sample_rate
    slow, fast = (len(synthesizer.speak("one two", Speaker("en", "m1", rate=rate))) for rate in (90, 200))
    assert slow > 1.5 * fast
    with pytest.raises(ValueError, match=re.escape("no voice 'en-nowhere+f1'")):
        synthesizer.speak("one", Speaker("en-nowhere", "f1"))


@pytest.mark.parametrize(("colour", "ratio"), [(0.0, 1.0), (2.0, 16.0)])
def test_noise_has_its_level_and_colour(colour: float, ratio: float) -> None:
    rng = np.random.default_rng(0)
    speech = np.sin(np.arange(32000) * 0.3).astype(np.float32)
    noise = add_noise(speech, 20.0, colour, rng) - speech
    assert 10 * np.log10(np.mean(speech**2) / np.mean(noise**2)) == pytest.approx(20.0, abs=0.5)
    power = np.abs(np.fft.rfft(noise)) ** 2
    frequency = np.fft.rfftfreq(len(noise), 1 / 16000)

    def band(low: float, high: float) -> float:
        return float(power[(frequency >= low) & (frequency < high)].mean())

    assert band(900, 1100) / band(3600, 4400) == pytest.approx(ratio, rel=0.25)

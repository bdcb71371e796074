"""Manifests: what is read, what is refused and in which words; recordings behind them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import soundfile
from test_media import encoded
from tones_model import RATE, tones

from prnn.asr import FeatureConfig, InputError, Utterance, read_manifest, write_manifest
from prnn.asr.audio import chunks, read_audio
from prnn.asr.dataset import load_audio, load_features

GOOD = {"audio_filepath": "a.wav", "duration": 1.0, "text": "one"}


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    path = tmp_path / "a.wav"
    soundfile.write(path, np.linspace(-0.5, 0.5, 8000, dtype=np.float32), 8000, subtype="FLOAT")
    return path


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_an_offset_of_null_is_none(wav: Path, tmp_path: Path) -> None:
    """As NeMo reads it; pandas writes missing values so."""
    (utterance,) = read_manifest(write(tmp_path / "m.jsonl", {**GOOD, "offset": None, "channel_selector": None}))
    assert (utterance.offset, utterance.channel) == (0.0, None)


def test_reads_relative_and_absolute_paths_and_passes_over_other_keys(wav: Path, tmp_path: Path) -> None:
    manifest = write(
        tmp_path / "m.jsonl",
        {"audio_filepath": "a.wav", "duration": 1, "text": " one  two ", "speaker": "x"},
        "",
        {"audio_filepath": str(wav), "duration": 0.5, "text": "three", "offset": 0.25},
    )
    first, second = read_manifest(manifest)
    assert first == Utterance(wav, 1.0, "one two", 0.0, f"{manifest}, line 1")
    assert second == Utterance(wav, 0.5, "three", 0.25, f"{manifest}, line 3")


def test_the_channel_of_an_utterance(tmp_path: Path) -> None:
    """NeMo's channel_selector, before the channel of those that do not have it."""
    samples = np.linspace([0, 0.1, 0.2], [0.5, 0.6, 0.7], 8000, dtype=np.float32)
    soundfile.write(tmp_path / "a.wav", samples, 8000, subtype="FLOAT")
    lines = [{**GOOD, "channel_selector": value} for value in (2, 0, "average", None)]
    manifest = write(tmp_path / "m.jsonl", *lines, GOOD)
    config = FeatureConfig(sample_rate=8000)
    for channel, found in ((None, [2, 0, None, None, None]), (1, [2, 0, None, 1, 1])):
        utterances = read_manifest(manifest, channel)
        assert [utterance.channel for utterance in utterances] == found
        for utterance in utterances:
            expected = samples.mean(axis=1) if utterance.channel is None else samples[:, utterance.channel]
            np.testing.assert_allclose(load_audio(utterance, config), expected, atol=1e-6)
    write_manifest(tmp_path / "again.jsonl", utterances)
    assert [utterance.channel for utterance in read_manifest(tmp_path / "again.jsonl")] == found
    for value in (-1, 1.0, True, "mean", [0, 1], {}):
        with pytest.raises(InputError, match=r'line 1: "channel_selector" is .*; it must be the number of a channel'):
            read_manifest(write(manifest, {**GOOD, "channel_selector": value}))
    (utterance,) = read_manifest(write(manifest, {**GOOD, "channel_selector": 3}))
    with pytest.raises(
        InputError, match=r"m.jsonl, line 1: .*a.wav: it has 3 channels, counted from 0, and no channel 3"
    ):
        load_features(utterance, config)


def test_write_and_read_again(wav: Path, tmp_path: Path) -> None:
    utterances = [Utterance(wav, 1.0, "eins"), Utterance(wav, 0.5, "größer", 0.25)]
    write_manifest(tmp_path / "out.jsonl", utterances)
    assert '"audio_filepath": "a.wav"' in (tmp_path / "out.jsonl").read_text()
    again = read_manifest(tmp_path / "out.jsonl")
    assert [(u.audio, u.duration, u.text, u.offset) for u in again] == [
        (u.audio, u.duration, u.text, u.offset) for u in utterances
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not a JSON object (Expecting"),
        ("[1, 2]", "line 2: not a JSON object but [1, 2]"),
        ({"duration": 1.0, "text": "one"}, 'line 2: has no "audio_filepath"'),
        ({"audio_filepath": "a.wav", "text": "one"}, 'line 2: has no "duration"'),
        ({"audio_filepath": "a.wav", "duration": 1.0}, 'line 2: has no "text"'),
        ({**GOOD, "text": 7}, 'line 2: "text" is 7; it must be a string'),
        ({**GOOD, "text": None}, 'line 2: "text" is null; it must be a string'),
        ({"id": "c", "type": "MonoCut", "duration": 1.0}, 'line 2: has no "audio_filepath", but is a cut of Lhotse'),
        ({**GOOD, "audio_filepath": " "}, 'line 2: "audio_filepath" is " "; it must be the path of a recording'),
        ({**GOOD, "audio_filepath": "b.wav"}, "line 2: there is no file"),
        ({**GOOD, "audio_filepath": "."}, "line 2: there is no file"),
        ({**GOOD, "duration": 0}, 'line 2: "duration" is 0; it must be a number of seconds, at least 0.001'),
        ({**GOOD, "duration": -1.5}, 'line 2: "duration" is -1.5; it must be a number of seconds, at least 0.001'),
        ({**GOOD, "duration": "1"}, 'line 2: "duration" is "1"; it must be a number of seconds, at least 0.001'),
        ({**GOOD, "duration": True}, 'line 2: "duration" is true; it must be a number of seconds, at least 0.001'),
        ({**GOOD, "duration": math.nan}, 'line 2: "duration" is NaN; it must be a number of seconds, at least 0.001'),
        ({**GOOD, "offset": -1}, 'line 2: "offset" is -1; it must be a number of seconds, at least 0'),
    ],
)
def test_a_bad_line_is_named(wav: Path, tmp_path: Path, line: object, message: str) -> None:
    manifest = write(tmp_path / "m.jsonl", GOOD, line)
    with pytest.raises(InputError) as caught:
        read_manifest(manifest)
    assert str(caught.value).startswith(f"{manifest}, {message}")


def test_a_bad_manifest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_manifest(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="not a file"):
        read_manifest(tmp_path)
    with pytest.raises(InputError, match="has no utterance"):
        read_manifest(write(tmp_path / "empty.jsonl", ""))
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00\x80" * 10)
    with pytest.raises(InputError, match="line 1: not text in UTF-8"):
        read_manifest(tmp_path / "binary.jsonl")


@pytest.mark.parametrize("kind", ["wav", "flac", "ogg", "mp3", "aiff", "webm"])
def test_a_recording_in_the_place_of_a_manifest(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    if kind == "webm":
        encoded(path, tones("ab"), "libopus", 48000)
    else:
        soundfile.write(path, tones("ab"), RATE, format=kind)
    with pytest.raises(InputError, match=rf"a\.{kind}: a recording, and a manifest is wanted: "):
        read_manifest(path)


@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_audio_stereo_is_the_mean(tmp_path: Path, suffix: str) -> None:
    left, right = np.linspace(0, 0.5, 100), np.linspace(0.5, -0.5, 100)
    soundfile.write(tmp_path / f"s.{suffix}", np.stack([left, right], axis=1), 44100)
    samples, rate = read_audio(tmp_path / f"s.{suffix}")
    assert rate == 44100
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, (left + right) / 2, atol=1e-4)


def test_audio_part_of_a_recording(wav: Path) -> None:
    whole, rate = read_audio(wav)
    part, _ = read_audio(wav, offset=0.25, duration=0.5)
    assert len(whole) == rate == 8000
    np.testing.assert_array_equal(part, whole[2000:6000])
    with pytest.raises(InputError, match=r"offset 2 s is beyond the end of the recording, at 1\.00 s"):
        read_audio(wav, offset=2)


def test_a_recording_shorter_than_its_manifest_says(wav: Path, tmp_path: Path) -> None:
    """A truncated file, or a duration in milliseconds; decoders differ by some hundredths of a second."""
    lines = [{**GOOD, "duration": 1.4, "offset": 0.1}, {**GOOD, "duration": 1000.0, "offset": 0.25}]
    manifest = write(tmp_path / "m.jsonl", *lines)
    near, far = read_manifest(manifest)
    config = FeatureConfig(sample_rate=8000)
    assert len(load_features(near, config)) == 90
    for load in (load_features, load_audio):
        with pytest.raises(InputError) as caught:
            load(far, config)
        reason = f"the duration is 1000 s, but {wav} has only 0.75 s from 0.25 s on"
        assert str(caught.value) == f"{manifest}, line 2: {reason}"


def test_audio_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.wav").write_text("This is no recording. " * 50)
    (tmp_path / "text.raw").write_text("This is no recording. " * 50)
    soundfile.write(tmp_path / "none.wav", np.zeros(0, np.float32), 16000)
    soundfile.write(tmp_path / "nan.wav", np.full(100, np.nan, np.float32), 16000, subtype="FLOAT")
    for name, message in (
        ("missing.wav", "no such file"),
        (".", "is a directory, not a recording"),
        ("empty.wav", "the file is empty"),
        ("text.wav", "not a recording that libsndfile can read"),
        ("text.raw", "not a recording that libsndfile can read"),
        ("none.wav", "the recording has no samples"),
        ("nan.wav", "samples that are not finite numbers"),
    ):
        with pytest.raises(InputError, match=message):
            read_audio(tmp_path / name)


def test_chunks_cover_the_recording() -> None:
    samples = np.arange(1000, dtype=np.float32)
    pieces = list(chunks(samples, 8000, 40))
    assert [len(piece) for piece in pieces] == [320, 320, 320, 40]
    np.testing.assert_array_equal(np.concatenate(pieces), samples)

"""Manifests, recordings and options of commands that were damaged or made up: one sentence each, in bounded memory."""

import json
import math
import os
import re
import struct
import wave
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import soundfile
import torch
from asr_data import bounded_memory, small_checkpoint, write_corpus

from prnn.asr import CharTokenizer, FeatureConfig, InputError, OnlineFeatures, read_manifest
from prnn.asr.audio import audio_blocks, read_audio
from prnn.asr.folder import locked
from prnn.asr.options import TrainingOptions
from prnn.cli import main

DEEP = 100_000  # more than any stack


# Manifests

GOOD = '"audio_filepath": "tones-0.wav", "text": "ab"'
LONG = "9" * 400


@pytest.mark.parametrize(
    ("line", "message"),
    [
        *(
            (f'{{{GOOD}, "duration": {value}}}', '"duration" is ')
            for value in ("1e308", "1e-320", "-0.0", LONG, "[[]]")
        ),
        *(
            (f'{{{GOOD}, "duration": 1, "offset": {value}}}', '"offset" is ')
            for value in ("1e308", LONG, "[]", "-1e-9")
        ),
        (f'{{{GOOD}, "duration": {"9" * 5000}}}', "not a JSON object (Exceeds the limit"),
        (f'{{{GOOD}, "duration": 1, "speaker": {"9" * 5000}}}', "not a JSON object (Exceeds the limit"),
        ('{"audio_filepath": "~nosuchuser/x", "duration": 1, "text": "a"}', '"audio_filepath" is "~nosuchuser/x": '),
        (
            '{"audio_filepath": "a\\ud800", "duration": 1, "text": "a"}',
            '"audio_filepath" is "a\\ud800", which has half',
        ),
        ('{"audio_filepath": "a\\u0000b", "duration": 1, "text": "a"}', "there is no file "),
        (f'{{"audio_filepath": "{"a" * 9000}", "duration": 1, "text": "a"}}', '"audio_filepath" is "aaaa'),
        (
            '{"audio_filepath": "tones-0.wav", "duration": 1, "text": "\\udfffa"}',
            '"text" is "\\udfffa", which has half',
        ),
        ("[" * DEEP, "not a JSON object ("),
        ("null", "not a JSON object but null"),
        ('"' + "a" * 5000 + '"', "not a JSON object but "),
    ],
)
def test_a_line_of_a_manifest(tmp_path: Path, line: str, message: str) -> None:
    manifest = write_corpus(tmp_path, "tones", ["ab"])
    manifest.write_text(manifest.read_text() + line + "\n")
    with pytest.raises(InputError) as caught:
        read_manifest(manifest)
    assert str(caught.value).startswith(f"{manifest}, line 2: {message}")
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


def test_encodings_of_a_manifest(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, "tones", ["ab", "c"])
    text = manifest.read_text()
    manifest.write_text(text, encoding="utf-8-sig")
    assert [utterance.text for utterance in read_manifest(manifest)] == ["ab", "c"]
    manifest.write_text(text, encoding="utf-16")
    with pytest.raises(InputError, match="line 1: not text in UTF-8"):
        read_manifest(manifest)
    manifest.write_bytes(text.replace('"c"', '"ö"').encode("latin-1"))
    with pytest.raises(InputError, match="line 2: not text in UTF-8"):
        read_manifest(manifest)


# Recordings


def refused_audio(path: Path) -> str:
    with bounded_memory(), pytest.raises(InputError) as caught:
        read_audio(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.fixture
def flac(tmp_path: Path) -> bytes:
    samples = 0.1 * np.random.default_rng(0).standard_normal(16000)
    soundfile.write(tmp_path / "good.flac", samples, 16000)
    return (tmp_path / "good.flac").read_bytes()


def claiming(flac: bytes, samples: int) -> bytes:
    """Returns the FLAC with another number of samples in its header: the last 36 of the bits from byte 18 on."""
    word = int.from_bytes(flac[18:26], "big") >> 36 << 36 | samples
    return flac[:18] + word.to_bytes(8, "big") + flac[26:]


def test_a_flac_that_is_not_whole(tmp_path: Path, flac: bytes) -> None:
    path = tmp_path / "a.flac"
    rng = np.random.default_rng(0)
    for size in (43, len(flac) // 2, len(flac) - 1, *rng.integers(50, len(flac), 5).tolist()):
        path.write_bytes(flac[:size])
        assert "cannot be read to its end" in refused_audio(path) or size < 100
    for _ in range(20):
        damaged = bytearray(flac)
        for place in rng.integers(100, len(flac), 3):
            damaged[place] ^= 0x55
        path.write_bytes(damaged)
        assert "cannot be read to its end" in refused_audio(path)


@pytest.mark.parametrize("samples", [2**36 - 1, 2**29 + 1, 2**29, 16001])
def test_a_flac_whose_header_claims_more(tmp_path: Path, flac: bytes, samples: int) -> None:
    path = tmp_path / "a.flac"
    path.write_bytes(claiming(flac, samples))
    message = refused_audio(path)
    assert re.search("too much at once" if samples > 2**29 else "to its end|before the end", message)
    assert len(read_audio(path, duration=0.5)[0]) == 8000


def test_a_flac_of_unknown_length(tmp_path: Path, flac: bytes) -> None:
    (tmp_path / "a.flac").write_bytes(claiming(flac, 0))
    message = "its header does not give its length, as where it was written to a pipe; write it anew, to a file"
    assert refused_audio(tmp_path / "a.flac") == message
    with pytest.raises(InputError, match="does not give its length"):
        audio_blocks(tmp_path / "a.flac", 1.0)


@pytest.mark.parametrize("mode", ["VARIABLE", "CONSTANT"])
def test_an_mp3_that_does_not_give_its_length(tmp_path: Path, mode: str) -> None:
    """Without the frame that gives it, libsndfile takes the length from the first frames."""
    path = tmp_path / "a.mp3"
    noise = 0.2 * np.random.default_rng(0).standard_normal(8000)
    lengthless = "an MP3 of variable bit rate without its length; convert it, to FLAC for instance"
    longer = f"and it is longer: several in one file, or {lengthless}"
    for sound in (np.concatenate([np.zeros(24_000), noise]), np.concatenate([noise, np.zeros(24_000)])):
        soundfile.write(path, sound, 16000, bitrate_mode=mode, compression_level=0.5)
        whole = path.read_bytes()
        assert len(read_audio(path)[0]) == 32_000
        path.write_bytes(whole + b"TAG" + bytes(125))
        assert len(read_audio(path)[0]) == 32_000
        path.write_bytes(whole + whole)
        assert refused_audio(path) == f"libsndfile finds 2.00 s in it, {longer}"
        path.write_bytes(whole[whole.index(whole[:2], 2) :])
        seconds = soundfile.info(path).duration
        if mode == "CONSTANT":
            assert len(read_audio(path)[0]) >= 32_000
        elif not sound[0]:
            assert seconds > 3
            assert 32_000 <= len(read_audio(path)[0]) < 34_000  # to the end of the file, whatever libsndfile says
        else:
            assert seconds < 1.5
            assert refused_audio(path) == f"libsndfile finds {seconds:.2f} s in it, {longer}"
            _, pieces = audio_blocks(path, 0.3)
            with pytest.raises(InputError, match="and it is longer"):
                list(pieces)


@pytest.mark.parametrize("rate", [8000, 44_100])
@pytest.mark.parametrize("channels", [1, 2])
def test_mp3s_of_any_length(tmp_path: Path, rate: int, channels: int) -> None:
    """With some lengths a whole frame of padding follows the last sample."""
    path, tagged = tmp_path / "a.mp3", tmp_path / "tagged.mp3"
    noise = 0.1 * np.random.default_rng(0).standard_normal((10_000, channels))
    for samples in range(6000, 7300, 60):
        soundfile.write(path, noise[:samples], rate)
        assert len(read_audio(path)[0]) == samples
        tagged.write_bytes(b"ID3\4\0\0\0\0\2\4" + bytes(260) + path.read_bytes())
        assert len(read_audio(tagged)[0]) == samples
        for first, second in ((path, path), (path, tagged), (tagged, tagged)):
            (tmp_path / "two.mp3").write_bytes(first.read_bytes() + second.read_bytes())
            assert "and it is longer: several in one file" in refused_audio(tmp_path / "two.mp3")


@pytest.mark.parametrize("codec", ["VORBIS", "OPUS"])
@pytest.mark.parametrize("seconds", [1, 30])
def test_a_chained_ogg(tmp_path: Path, codec: str, seconds: int) -> None:
    """Radio streams are saved as such; libsndfile gives each file that it writes a serial number of its own."""
    parts = []
    for _ in range(2):
        samples = 0.1 * np.random.default_rng(0).standard_normal(16000 * seconds)
        soundfile.write(tmp_path / "a.ogg", samples, 16000, format="OGG", subtype=codec)
        parts.append((tmp_path / "a.ogg").read_bytes())
        assert len(read_audio(tmp_path / "a.ogg")[0]) == 16000 * seconds
    (tmp_path / "a.ogg").write_bytes(b"".join(parts))
    message = "it has several streams, one after the other, of which libsndfile reads the first; convert it"
    assert refused_audio(tmp_path / "a.ogg") == message


@pytest.mark.parametrize("rate", [1, 999, 384_001, 10_000_000])
def test_a_sample_rate_that_is_none(tmp_path: Path, rate: int) -> None:
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", "not compressed"))
        file.writeframes(b"\0\1" * 1000)
    assert refused_audio(tmp_path / "a.wav") == (
        f"the sample rate is {rate} Hz; it must be at least 1000 and at most 384000"
    )
    with pytest.raises(ValueError, match=f"sample_rate is {rate}; it must be at least 1000"):
        OnlineFeatures(rate)


def test_channels(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).standard_normal((1000, 64)) * 0.1
    soundfile.write(tmp_path / "a.wav", samples, 16000, subtype="FLOAT")
    assert refused_audio(tmp_path / "a.wav") == "the recording has 64 channels; there may be at most 32"
    soundfile.write(tmp_path / "a.wav", samples[:, :32], 16000, subtype="FLOAT")
    np.testing.assert_allclose(read_audio(tmp_path / "a.wav")[0], samples[:, :32].mean(axis=1), atol=1e-6)


def test_a_recording_of_many_blocks(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, (200_000, 2)).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", samples, 16000, subtype="FLOAT")
    np.testing.assert_array_equal(read_audio(tmp_path / "a.wav")[0], samples.mean(axis=1))
    np.testing.assert_array_equal(read_audio(tmp_path / "a.wav", 1.0, 9.0)[0], samples[16000:160_000].mean(axis=1))
    for suffix in ("ogg", "mp3", "aiff"):
        soundfile.write(tmp_path / f"a.{suffix}", samples, 16000)
        assert len(read_audio(tmp_path / f"a.{suffix}")[0]) == 200_000


@pytest.mark.parametrize("value", [1e30, -1e30, 3e9, math.nan, math.inf])
def test_samples_that_are_no_numbers(tmp_path: Path, value: float) -> None:
    samples = np.zeros(1000, np.float32)
    samples[500] = value
    soundfile.write(tmp_path / "a.wav", samples, 16000, subtype="FLOAT")
    assert refused_audio(tmp_path / "a.wav").startswith("the recording has samples ")
    online = OnlineFeatures(16000)
    with pytest.raises(ValueError, match="the recording has samples "):
        online.accept_waveform(samples)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    assert refused_audio(tmp_path / "pipe.wav") == "is no regular file, not a recording"
    assert "File name too long" in refused_audio(tmp_path / ("a" * 300))


def test_features_that_a_checkpoint_may_have_do_not_crash() -> None:
    """At the corners of what FeatureConfig takes, in a process of its own: the feature library ends its process."""
    program = """
import itertools, numpy, torch
from prnn.asr import FeatureConfig, compute_features
corners = (1000, 192000), (1, 512), (1, 200), (5, 200), (0, 100)
for rate, bins, shift, length, high in itertools.product(*corners):
    samples = numpy.random.default_rng(0).uniform(-1, 1, rate // 50).astype(numpy.float32)
    features = compute_features(samples, rate, FeatureConfig(rate, bins, shift, length, high))
    assert features.shape[1] == bins and bool(features.isfinite().all()), (rate, bins, shift, length, high)
"""
    result = forked.run("-c", program)
    assert result.returncode == 0, result.stderr[-1000:]


# The command line


@pytest.mark.parametrize(
    "option",
    [
        ["--seed", str(2**32)],
        ["--seed", "9" * 5000],
        ["--cache-gb", "1e300"],
        ["--cache-gb", "inf"],
        ["--batch-seconds", "1e308"],
        ["--epochs", "1e3"],
        ["--epochs", str(10**9)],
        ["--hidden", str(2**40)],
        ["--layers", "1001"],
        ["--dropout", "1"],
        ["--gain-db", "1e308"],
        ["--lr", "1e31"],
        ["--workers", str(10**9)],
    ],
)
def test_options_beyond_all_bounds(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--manifest", "a", "--valid", "b", *option])
    assert stopped.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert re.match(rf"prnn train: error: argument (--\S+/)?{option[0]}(/--\S+)?: '", message)
    assert " number of " in message
    assert len(message) < 300


def test_chunks_beyond_all_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--chunk-ms", "1e308"], ["--chunk-ms", "0"], ["--beam", "1000000"]):
        with pytest.raises(SystemExit):
            main(["transcribe", "m.ckpt", "a.wav", *option])
        assert "number of" in capsys.readouterr().err


def test_commands_say_it_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents: dict[str, Any] = small_checkpoint()
    contents["prnn"]["features"]["frame_shift_ms"] = 0
    torch.save(contents, tmp_path / "model.ckpt")
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 1, 0, "NONE", "not compressed"))
        file.writeframes(struct.pack("<h", 7) * 100)
    soundfile.write(tmp_path / "good.wav", np.zeros(1600), 16000)
    for audio, message in (
        ("a.wav", "the sample rate is 1 Hz"),
        ("good.wav", "a damaged checkpoint (frame_shift_ms is 0"),
    ):
        for extra in ([], ["--stream"]):
            assert main(["transcribe", str(tmp_path / "model.ckpt"), str(tmp_path / audio), *extra]) == 2
            output = capsys.readouterr()
            assert output.out == ""
            assert output.err.startswith("prnn: ")
            assert output.err.count("\n") == 1
            assert message in output.err


def test_values_from_python_are_checked_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frame_length_ms is 0; it must be at least 5"):
        FeatureConfig(frame_length_ms=0)
    with pytest.raises(TypeError, match=r"seed is 1\.5; it must be an int"):
        TrainingOptions(tmp_path, tmp_path, tmp_path, seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="encoder_layers is 0; it must be at least 1"):
        TrainingOptions(tmp_path, tmp_path, tmp_path, model={"encoder_layers": 0})
    with pytest.raises(ValueError, match="precision is '8'; it must be one of '32-true'"):
        TrainingOptions(tmp_path, tmp_path, tmp_path, precision="8")  # type: ignore[arg-type]
    assert CharTokenizer("ab") == CharTokenizer(["a", "b"])
    json.dumps(small_checkpoint()["prnn"])


def test_a_training_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    output = tmp_path / os.fsdecode(b"\x80")
    with pytest.raises(InputError, match="its name is not UTF-8"), locked(output):
        pass
    assert not output.exists()

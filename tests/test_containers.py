"""Recordings that are not whole, or more than one, in every container; sizes that programs write to pipes; channels;
and samples of another size than theirs."""

import re
import struct
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from asr_data import small_checkpoint
from test_hostile_files import refused_audio
from tones_model import RATE, save, tone_recogniser, tones

from prnn.asr import InputError, InputWarning
from prnn.asr.audio import audio_blocks, check_audio, read_audio
from prnn.cli import main

SAMPLES = 40_000
SIZED = [
    ("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "IMA_ADPCM"), ("WAVEX", "PCM_24"), ("RF64", "PCM_16"),
    ("W64", "PCM_16"), ("AIFF", "PCM_16"), ("AIFF", "FLOAT"), ("AU", "PCM_16"), ("CAF", "PCM_16"), ("NIST", "PCM_16"),
    ("NIST", "ULAW"), ("WAV", "GSM610"), ("AU", "G721_32"),
]  # fmt: skip
ENCODED = [("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")]
EXOTIC = ["AVR", "IRCAM", "MAT4", "MAT5", "PAF", "PVF", "SVX", "VOC"]


def noise(samples: int = SAMPLES) -> np.ndarray:
    return 0.1 * np.random.default_rng(0).standard_normal(samples)


def write(path: Path, kind: str, subtype: str | None = None, samples: int = SAMPLES) -> bytes:
    soundfile.write(path, noise(samples), 16000, format=kind, subtype=subtype)
    return path.read_bytes()


@pytest.mark.parametrize(("kind", "subtype"), [*SIZED, *ENCODED])
@pytest.mark.parametrize("share", [0.03, 0.5, 0.99])
def test_a_recording_that_is_not_whole(tmp_path: Path, kind: str, subtype: str, share: float) -> None:
    path = tmp_path / "a.wav"
    whole = write(path, kind, subtype)
    assert abs(len(read_audio(path)[0]) - SAMPLES) < 2000
    check_audio(path)
    path.write_bytes(whole[: int(share * len(whole))])
    refused_audio(path)
    if (kind, subtype) in SIZED:
        with pytest.raises(InputError):
            check_audio(path)
        if share > 0.1 and kind != "CAF":
            assert len(read_audio(path, 0.1, 0.5)[0]) == 8000  # a part that is there
            assert re.fullmatch(r"it is not whole: it has \d+ % of the samples that its header .*", refused_audio(path))


@pytest.mark.parametrize(
    ("kind", "subtype"),
    [*SIZED, ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")],
)
def test_a_second_recording_behind_the_first(tmp_path: Path, kind: str, subtype: str) -> None:
    path = tmp_path / "a.wav"
    first, second = write(path, kind, subtype, 23_000), write(path, kind, subtype, 700)
    for both in (first + second, first + first):
        path.write_bytes(both)
        assert "several" in refused_audio(path)


def test_what_a_wav_may_have_behind_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    whole = write(path, "WAV")
    more = b"LIST" + struct.pack("<I", 4) + b"INFO"
    for tail in (more, b"\0" * 1000, b"\0"):
        path.write_bytes(whole + tail)
        assert len(read_audio(path)[0]) == SAMPLES
    for size in (len(whole) - 8, len(whole)):  # of the file, which some programs write in the place of the samples'
        path.write_bytes(whole[:40] + struct.pack("<I", size) + whole[44:])
        assert len(read_audio(path)[0]) == SAMPLES


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0xFFFFFFDB, 0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0x7FFFFFDB])
@pytest.mark.parametrize("riff", [0, 36, 0xFFFFFFFF, 0x7FFFF024])
def test_sizes_that_programs_write_to_a_pipe(tmp_path: Path, size: int, riff: int) -> None:
    path = tmp_path / "a.wav"
    whole = write(path, "WAV")
    path.write_bytes(whole[:4] + struct.pack("<I", riff) + whole[8:40] + struct.pack("<I", size) + whole[44:])
    assert len(read_audio(path)[0]) == SAMPLES
    check_audio(path)


def test_other_containers_from_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "a.au"
    whole = write(path, "AU")
    path.write_bytes(whole[:8] + b"\xff" * 4 + whole[12:])
    assert len(read_audio(path)[0]) == SAMPLES
    whole = write(path, "AIFF")
    place = whole.index(b"SSND") + 4
    path.write_bytes(whole[:place] + struct.pack(">I", 0x7F000008) + whole[place + 4 :])
    assert len(read_audio(path)[0]) == SAMPLES


def test_a_wav_whose_length_was_never_written(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    whole = write(path, "WAV")
    for riff in (b"\0" * 4, whole[4:8]):
        path.write_bytes(whole[:4] + riff + whole[8:40] + b"\0" * 4 + whole[44:])
        assert refused_audio(path).startswith("its header does not give its length, as where it was written to a pipe;")
    path.write_bytes(whole[:4] + b"\0" * 4 + whole[8:40] + b"\0" * 4)
    assert refused_audio(path) == "the recording has no samples"


@pytest.mark.parametrize("kind", EXOTIC)
def test_containers_that_do_not_say_how_long_they_are(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "a.wav", kind)
    assert refused_audio(tmp_path / "a.wav").startswith(
        f"its format is {kind}; it must be one of AIFF, AU, CAF, FLAC, "
    )


def test_damaged_headers(tmp_path: Path) -> None:
    """They are read or refused, whatever is in them."""
    rng, path = np.random.default_rng(0), tmp_path / "a.wav"
    for kind, subtype in (*SIZED, *ENCODED):
        whole = write(path, kind, subtype, 3000)
        for _ in range(15):
            damaged = bytearray(whole)
            for place in rng.integers(0, 120, 3):
                damaged[place] = rng.choice([0, 255, 128, int(rng.integers(256))])
            path.write_bytes(damaged)
            with suppress(InputError):
                read_audio(path)


def without_info(path: Path) -> bytes:
    """An MP3 of constant bit rate without the frame that gives its length, as ffmpeg writes it to a pipe."""
    soundfile.write(path, noise(), 16000, format="MP3", bitrate_mode="CONSTANT", compression_level=0.5)
    whole = path.read_bytes()
    return whole[whole.index(whole[:2], 2) :]


@pytest.mark.parametrize("tag", [100, 2000, 200_000])
def test_an_mp3_of_constant_bit_rate_behind_a_tag(tmp_path: Path, tag: int) -> None:
    """libsndfile takes the bytes of the tag, a picture perhaps, for audio."""
    path = tmp_path / "a.mp3"
    plain = without_info(path)
    path.write_bytes(plain)
    samples, _ = read_audio(path)
    size = bytes(tag >> shift & 127 for shift in (21, 14, 7, 0))
    path.write_bytes(b"ID3\4\0\0" + size + bytes(tag) + plain)
    assert soundfile.info(path).frames > len(samples) or tag == 100
    tagged, _ = read_audio(path)
    assert np.array_equal(tagged, samples)
    _, pieces = audio_blocks(path, 0.5)
    assert np.array_equal(np.concatenate(list(pieces)), samples)


@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE"])
def test_an_mp3_piece_by_piece(tmp_path: Path, mode: str) -> None:
    """Its frames take bits from those before, which a decoder lacks where it has been sent to another place."""
    path = tmp_path / "a.mp3"
    soundfile.write(path, noise(), 16000, format="MP3", bitrate_mode=mode, compression_level=0.5)
    samples, _ = read_audio(path)
    for seconds in (0.1, 0.37, 1.0):
        np.testing.assert_allclose(np.concatenate(list(audio_blocks(path, seconds)[1])), samples, rtol=0, atol=1e-6)


# Channels


def stereo(path: Path, left: np.ndarray, right: np.ndarray, subtype: str = "FLOAT") -> Path:
    soundfile.write(path, np.stack([left, right], axis=1), 16000, subtype=subtype)
    return path


def test_one_channel_of_several(tmp_path: Path) -> None:
    left, right = noise().astype(np.float32), np.random.default_rng(1).uniform(-0.2, 0.2, SAMPLES).astype(np.float32)
    path = stereo(tmp_path / "a.wav", left, right)
    assert np.array_equal(read_audio(path, channel=0)[0], left)
    assert np.array_equal(read_audio(path, channel=1)[0], right)
    assert np.array_equal(np.concatenate(list(audio_blocks(path, 0.3, 1)[1])), right)
    np.testing.assert_allclose(read_audio(path)[0], (left + right) / 2, atol=1e-6)
    for read in (lambda: read_audio(path, channel=2), lambda: check_audio(path, 2)):
        with pytest.raises(InputError, match="it has 2 channels, counted from 0, and no channel 2"):
            read()
    soundfile.write(path, left, 16000)
    with pytest.raises(InputError, match="it has one channel, counted from 0, and no channel 1"):
        read_audio(path, channel=1)


@pytest.mark.parametrize("subtype", ["FLOAT", "PCM_16"])
def test_channels_that_cancel_one_another_out(tmp_path: Path, subtype: str) -> None:
    left = noise()
    quiet = 0.02 * np.random.default_rng(1).standard_normal(SAMPLES)
    path = tmp_path / "a.wav"
    for right in (-left, -left + quiet * 0.1):
        stereo(path, left, right, subtype)
        for read in (lambda: read_audio(path), lambda: list(audio_blocks(path, 0.5)[1])):
            with pytest.warns(
                InputWarning, match=r"its channels cancel one another out, and their mean has lost (all|\d+)"
            ):
                read()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_audio(path, channel=0)
        for right in (left, quiet, 0 * left, np.roll(left, 100)):
            stereo(path, left, right, subtype)
            read_audio(path)
        stereo(path, 0 * left, 0 * left, subtype)
        read_audio(path)
        soundfile.write(path, np.random.default_rng(0).uniform(-1, 1, (SAMPLES, 32)), 16000)
        read_audio(path)


def test_transcribed_from_one_channel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = save(tone_recogniser(), tmp_path / "model.ckpt")
    spoken = tones("ab c")
    path = tmp_path / "talk.wav"
    soundfile.write(path, np.stack([spoken, -spoken], axis=1), RATE, subtype="FLOAT")
    texts = []
    for options in ([], ["--channel", "0"]):
        assert main(["transcribe", str(checkpoint), str(path), *options]) == 0
        output = capsys.readouterr()
        texts.append(output.out)
        expected = f"prnn: {path}: its channels cancel one another out, and their mean has lost all of their power"
        assert output.err.startswith(expected) if not options else output.err == ""
        assert output.err.count("\n") == (not options)
    assert texts == ["\n", "ab c\n"]
    assert main(["transcribe", str(checkpoint), str(path), "--channel", "2"]) == 2
    assert capsys.readouterr() == ("", f"prnn: {path}: it has 2 channels, counted from 0, and no channel 2\n")


# The size of samples


@pytest.mark.parametrize("factor", [32767, 2**31 - 1, 127])
def test_integers_written_as_floats(tmp_path: Path, factor: int) -> None:
    """As scipy.io.wavfile writes an int16 array that was made float32 for a computation."""
    path = tmp_path / "a.wav"
    samples = np.random.default_rng(0).uniform(-1, 1, 8000)
    samples[100] = 1
    soundfile.write(path, samples * factor, 16000, subtype="FLOAT")
    message = refused_audio(path)
    assert message.startswith(
        f"the recording has samples of {np.float32(factor):g}, and floating-point samples are from -1"
    )
    with pytest.raises(InputError, match="floating-point samples are from -1 to 1"):
        list(audio_blocks(path, 0.1)[1])
    soundfile.write(path, samples * 10, 16000, subtype="FLOAT")  # with gain
    assert len(read_audio(path)[0]) == 8000


def test_integers_as_floats_from_python() -> None:
    recogniser = tone_recogniser()
    loud = tones("ab c") * 32768
    with pytest.raises(ValueError, match="floating-point samples are from -1 to 1"):
        recogniser.transcribe(loud, RATE)
    with pytest.raises(ValueError, match="floating-point samples are from -1 to 1"):
        recogniser.stream(RATE).accept(loud)


def test_a_broken_recording_is_refused_before_anything_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(small_checkpoint(), tmp_path / "model.ckpt")
    whole = write(tmp_path / "good.wav", "WAV")
    (tmp_path / "half.wav").write_bytes(whole[: len(whole) // 2])
    names = [str(tmp_path / name) for name in ("good.wav", "half.wav")]
    assert main(["transcribe", str(tmp_path / "model.ckpt"), *names]) == 2
    assert capsys.readouterr() == (
        "", f"prnn: {names[1]}: it is not whole: it has 50 % of the samples that its header promises\n"
    )  # fmt: skip

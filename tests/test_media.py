"""Recordings from standard input, and those in containers that PyAV reads."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from tones_model import RATE, save, tone_recogniser, tones

from prnn.asr import InputError, media
from prnn.asr.audio import check_audio, read_audio
from prnn.cli import main

TEXT = "..ab c..ba"


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A recording, one whose length its header does not give, as ffmpeg writes it to a pipe, and none."""
    checkpoint = save(tone_recogniser(), tmp_path / "model.ckpt")

    def transcribe(recording: bytes, *options: str) -> tuple[int, str, str]:
        media.standard_input.cache_clear()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(recording)))
        status = main(["transcribe", str(checkpoint), "-", *options])
        return (status, *capsys.readouterr())

    memory = io.BytesIO()
    soundfile.write(memory, tones(TEXT), RATE, format="WAV")
    whole = memory.getvalue()
    for recording in (whole, whole[:4] + b"\xff" * 4 + whole[8:40] + b"\xff" * 4 + whole[44:]):
        status, out, err = transcribe(recording, "--format", "jsonl")
        assert (status, err) == (0, "")
        assert '"audio_filepath": "-", "text": "ab cba"' in out
    for recording, message in ((b"", "prnn: -: the file is empty\n"), (b"abc", "prnn: -: not a recording")):
        status, out, err = transcribe(recording)
        assert (status, out) == (2, "")
        assert err.startswith(message)
    assert transcribe(whole, "-") == (2, "", "prnn: standard input, -, is given several times\n")
    media.standard_input.cache_clear()


def encoded(path: Path, samples: np.ndarray, codec: str, rate: int) -> Path:
    av = pytest.importorskip("av", reason="needs the package of prnn's extra media")
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.layout = "mono"
        resampler = av.AudioResampler(
            format=stream.format, layout="mono", rate=rate, frame_size=stream.frame_size or 1024
        )
        frame = av.AudioFrame.from_ndarray((samples[None] * 32767).astype(np.int16), format="s16", layout="mono")
        frame.sample_rate = RATE
        for part in (frame, None):
            for piece in resampler.resample(part):
                container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(("name", "codec", "rate"), [("talk.m4a", "aac", 16000), ("talk.webm", "libopus", 48000)])
def test_containers_that_av_decodes(tmp_path: Path, name: str, codec: str, rate: int) -> None:
    samples = tones(TEXT * 3)
    path = encoded(tmp_path / name, samples, codec, rate)
    found, found_rate = read_audio(path)
    assert found_rate == rate
    assert abs(len(found) / rate - len(samples) / RATE) < 0.1
    assert abs(check_audio(path) - len(found) / rate) < 1e-6
    part, _ = read_audio(path, offset=0.2, duration=0.3)
    assert np.array_equal(part, found[round(0.2 * rate) : round(0.5 * rate)])
    # The encoder adds noise before the first tone, which differs by processor and may be heard as tones.
    assert "ab cba" in tone_recogniser().transcribe(found, rate)

    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(InputError, match=r"it is not whole|cannot be decoded"):
        read_audio(path)


def test_damaged_containers(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="needs the package of prnn's extra media")
    path = tmp_path / "talk.m4a"
    path.write_bytes(b"\0\0\0\x20ftypM4A " + bytes(1000))
    with pytest.raises(InputError, match=r"talk\.m4a: cannot be decoded \(invalid data"):
        read_audio(path)

"""Transcripts as lines: text, JSON lines, CTM and SubRip."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .transcript import Transcript, rounded

FORMATS = ("text", "jsonl", "ctm", "srt")


_SHORTEST_CUE = 1.0  # seconds


class TranscriptLines:
    """Writes transcripts in a format.

    ====== ====================================================================================================
    text   the text; with ``nbest`` above 1, a line for each alternative: its score, a tab, its text
    jsonl  an object: audio_filepath, text, start, end, confidence, words, and with ``nbest`` above 1 nbest
    ctm    NIST's: a line for each word with recording, channel 1, start, duration, word, confidence
    srt    SubRip: number, times and text of each transcript that is not empty; one that is too short to be read stays
           for as long as its pause, up to a second in all
    ====== ====================================================================================================

    Args:
        name: the format.
        nbest: alternatives of each transcript, in text and jsonl.
    """

    def __init__(self, name: str, nbest: int = 1) -> None:
        self._format = {"text": self._text, "jsonl": self._jsonl, "ctm": self._ctm, "srt": self._srt}[name]
        self._nbest = nbest
        self._cues = 0

    def __call__(self, audio: Path, transcript: Transcript, **more: Any) -> Iterator[str]:
        """The lines of a transcript of a recording, without their ends; ``more`` goes first into its JSON object, in
        which it may replace the text."""
        return self._format(audio, transcript, more)

    def _text(self, audio: Path, transcript: Transcript, more: dict[str, Any]) -> Iterator[str]:
        if self._nbest == 1:
            yield transcript.text
            return
        for alternative in transcript.alternatives[: self._nbest]:
            yield f"{alternative.score:.3f}\t{alternative.text}"

    def _jsonl(self, audio: Path, transcript: Transcript, more: dict[str, Any]) -> Iterator[str]:
        entry = {"audio_filepath": str(audio), "text": transcript.text, **more, **transcript.as_dict()}
        if self._nbest > 1:
            entry["nbest"] = [
                {"text": alternative.text, "score": rounded(alternative.score, 3)}
                for alternative in transcript.alternatives[: self._nbest]
            ]
        yield json.dumps(entry, ensure_ascii=False)

    def _ctm(self, audio: Path, transcript: Transcript, more: dict[str, Any]) -> Iterator[str]:
        recording = "_".join(audio.stem.split()) or "_"
        for word in transcript.words:
            times = f"{word.start:.2f} {word.end - word.start:.2f}"
            yield f"{recording} 1 {times} {word.text} {word.confidence:.4f}"

    def _srt(self, audio: Path, transcript: Transcript, more: dict[str, Any]) -> Iterator[str]:
        if transcript.words:
            self._cues += 1
            yield str(self._cues)
            start, end = transcript.words[0].start, transcript.words[-1].end
            latest = end + transcript.pause  # the next cue's beginning, or before it
            yield f"{_clock(start)} --> {_clock(min(latest, max(end, start + _SHORTEST_CUE)))}"
            yield transcript.text
            yield ""


def _clock(seconds: float) -> str:
    milliseconds = round(1000 * seconds)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{milliseconds // 1000:02},{milliseconds % 1000:03}"

"""Manifests: one JSON object a line with ``audio_filepath``, ``duration`` and ``text``, as NeMo has them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from .errors import InputError


@dataclass(frozen=True)
class Utterance:
    """A recording, or a part of one, and what is said in it.

    Args:
        audio: the recording.
        duration: seconds.
        text: the transcript.
        offset: where in the recording it begins, in seconds.
        source: manifest and line number, for messages.
    """

    audio: Path
    duration: float
    text: str
    offset: float = 0.0
    source: str = ""


def _seconds(value: object, name: str, source: str, *, minimum: str) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and minimum == "positive"):  # type: ignore[operator]
        raise InputError(f'{source}: "{name}" is {json.dumps(value)}; it must be a {minimum} number of seconds')
    return float(value)  # type: ignore[arg-type]


def _parse(line: str, source: str, directory: Path) -> Utterance:
    try:
        entry = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{source}: not a JSON object ({error})") from error
    if not isinstance(entry, dict):
        raise InputError(f"{source}: not a JSON object but {json.dumps(entry)[:40]}")
    for key in ("audio_filepath", "duration", "text"):
        if key not in entry:
            raise InputError(f'{source}: has no "{key}"')
    for key in ("audio_filepath", "text"):
        if not isinstance(entry[key], str) or not entry[key].strip():
            raise InputError(f'{source}: "{key}" is {json.dumps(entry[key])}; it must be a string that is not empty')
    audio = Path(entry["audio_filepath"]).expanduser()
    audio = audio if audio.is_absolute() else directory / audio
    if not audio.is_file():
        raise InputError(f"{source}: there is no file {audio}")
    return Utterance(
        audio=audio,
        duration=_seconds(entry["duration"], "duration", source, minimum="positive"),
        text=" ".join(entry["text"].split()),
        offset=_seconds(entry.get("offset", 0.0), "offset", source, minimum="non-negative"),
        source=source,
    )


def read_manifest(path: str | Path) -> list[Utterance]:
    """Reads a manifest. Relative ``audio_filepath`` are relative to the manifest; blank lines and other keys are passed
    over.

    Raises:
        InputError: the manifest is missing or empty, or a line is not as it must be; the message names the line.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    utterances = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    utterances.append(_parse(line, f"{path}, line {number}", path.parent))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file in UTF-8") from error
    if not utterances:
        raise InputError(f"{path}: the manifest has no utterance")
    return utterances


def write_manifest(path: str | Path, utterances: list[Utterance]) -> None:
    """Writes a manifest. Recordings under its folder are written relative to it."""
    path = Path(path)
    folder = path.parent.resolve()
    lines = []
    for utterance in utterances:
        audio = utterance.audio.resolve()
        name = audio.relative_to(folder) if audio.is_relative_to(folder) else audio
        entry: dict[str, object] = {"audio_filepath": str(name), "duration": utterance.duration, "text": utterance.text}
        if utterance.offset:
            entry["offset"] = utterance.offset
        lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
    path.write_text("".join(lines), encoding="utf-8")

"""Manifests: one JSON object a line with ``audio_filepath``, ``duration`` and ``text``, as NeMo has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from prnn._fields import Within, shown

from .containers import is_recording
from .errors import InputError


@dataclass(frozen=True)
class Utterance:
    """A recording, or a part of one, and what is said in it.

    Args:
        audio: the recording.
        duration: seconds.
        text: the transcript; empty where nothing is said.
        offset: where in the recording it begins, in seconds.
        source: manifest and line number, for messages.
        channel: of a recording with several, the number of the one to read, from 0 on; None is the mean of all.
    """

    audio: Path
    duration: float
    text: str
    offset: float = 0.0
    source: str = ""
    channel: int | None = None


_DURATION = Within(0.001, 1e6)  # seconds: 1 ms to 11 days
_OFFSET = Within(0, 1e6)
_EXAMPLE = '{"audio_filepath": "a.wav", "duration": 2.5, "text": "what is said"}'


def _seconds(entry: dict[str, object], name: str, source: str, rule: Within) -> float:
    value = entry[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not rule.accepts(value):
        raise InputError(f'{source}: "{name}" is {shown(value, json.dumps)}; it must be a number of seconds, {rule}')
    return float(value)


def _string(entry: dict[str, object], name: str, source: str) -> str:
    value = entry[name]
    if not isinstance(value, str):
        raise InputError(f'{source}: "{name}" is {shown(value, json.dumps)}; it must be a string')
    if any(0xD800 <= ord(character) <= 0xDFFF for character in value):
        raise InputError(f'{source}: "{name}" is {shown(value, json.dumps)}, which has half of a surrogate pair')
    return value


def _channel(entry: dict[str, object], source: str) -> int | None:
    """NeMo's channel_selector: a channel, or their mean."""
    value = entry["channel_selector"]
    if value == "average":
        return None
    if type(value) is not int or value < 0:
        accepted = 'it must be the number of a channel, from 0 on, or "average"'
        raise InputError(f'{source}: "channel_selector" is {shown(value, json.dumps)}; {accepted}')
    return value


def _parse(line: str, source: str, directory: Path, channel: int | None) -> Utterance:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, or an int of thousands of digits
        fault = " ".join(str(error).split())
        raise InputError(f"{source}: not a JSON object ({fault}); a manifest has lines such as {_EXAMPLE}") from error
    if not isinstance(entry, dict):
        raise InputError(f"{source}: not a JSON object but {shown(entry, json.dumps)}")
    for key in ("audio_filepath", "duration", "text"):
        if key not in entry:
            cut = isinstance(entry.get("type"), str) and entry["type"].endswith("Cut")
            hint = ", but is a cut of Lhotse's; those are read from a *.jsonl.gz" if cut else ""
            raise InputError(f'{source}: has no "{key}"{hint}')
    name = _string(entry, "audio_filepath", source)
    if not name.strip():
        raise InputError(f'{source}: "audio_filepath" is {shown(name, json.dumps)}; it must be the path of a recording')
    try:
        audio = directory / Path(name).expanduser()
        found = audio.is_file()
    except (OSError, RuntimeError) as error:  # a name too long; ~ of nobody
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f'{source}: "audio_filepath" is {shown(name, json.dumps)}: {reason}') from error
    if not found:
        raise InputError(f"{source}: there is no file {audio}")
    return Utterance(
        audio=audio,
        duration=_seconds(entry, "duration", source, _DURATION),
        text=" ".join(_string(entry, "text", source).split()),
        offset=_seconds(entry, "offset", source, _OFFSET) if entry.get("offset") is not None else 0.0,
        source=source,
        channel=_channel(entry, source) if entry.get("channel_selector") is not None else channel,
    )


def read_manifest(path: str | Path, channel: int | None = None) -> list[Utterance]:
    """Reads a manifest. Relative ``audio_filepath`` are relative to the manifest; blank lines and other keys are passed
    over. An ``offset`` or ``channel_selector`` of null is none, as in NeMo; pandas writes missing values so.

    Args:
        path: the manifest.
        channel: that of utterances whose lines have no ``channel_selector``; None is the mean of all channels.

    Raises:
        InputError: the manifest is missing or empty, or a line is not as it must be; the message names the line.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    utterances = []
    with path.open("rb") as file:
        if is_recording(file.read(16)):
            raise InputError(
                f"{path}: a recording, and a manifest is wanted: a text file with a line for each recording, {_EXAMPLE}"
            )
        file.seek(0)
        for number, line in enumerate(file, start=1):
            source = f"{path}, line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{source}: not text in UTF-8") from error
            if text.strip():
                utterances.append(_parse(text, source, path.parent, channel))
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
        if utterance.channel is not None:
            entry["channel_selector"] = utterance.channel
        lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
    path.write_text("".join(lines), encoding="utf-8")

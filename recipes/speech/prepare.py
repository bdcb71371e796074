"""Manifests of a folder with metadata.csv: lines NAME|text, and recordings NAME.wav (or .flac, .ogg, .opus, .mp3; with
the extra "media" .webm and .m4a, which become FLAC files) in the folder or in one below it, as Rhasspy's voices and
LJ Speech have them.

    python -m recipes.speech.prepare dataset-voice-flemishguy --output data/flemish

Texts become lower case without punctuation; sentences with digits, whose words are not written, are left out. Which of
train.jsonl, valid.jsonl and test.jsonl a sentence is in follows from its text: 6 and 8 in a hundred are for validation
and test.
"""

from __future__ import annotations

import argparse
import binascii
import json
import os
import sys
import unicodedata
from pathlib import Path

import soundfile

from prnn.asr.audio import read_audio
from prnn.asr.errors import InputError
from prnn.asr.folder import replacing
from prnn.commands.failure import CommandError, reported

SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3")
CONTAINERS = (".webm", ".m4a")  # which libsndfile does not read
_APOSTROPHES = "'\u2019"


def normalised(text: str) -> str | None:
    """A text in lower case, of letters, apostrophes within words, and single spaces; None if it has digits."""
    text = unicodedata.normalize("NFC", text).lower()
    if any(character.isnumeric() for character in text):
        return None
    kept = [
        "'" if character in _APOSTROPHES else character if unicodedata.category(character)[0] in "LM" else " "
        for character in text
    ]
    words = (word.strip("'") for word in "".join(kept).split())
    return " ".join(word for word in words if word)


def split_of(text: str) -> str:
    """Which part a sentence is in: the same sentence always in the same."""
    place = binascii.crc32(text.encode()) % 100
    return "valid" if place < 6 else "test" if place < 14 else "train"


def _recordings(folder: Path) -> dict[str, Path]:
    """The recordings by their names without suffix; of several of one name, the one that libsndfile reads."""
    paths = sorted(folder.rglob("*"))
    found = {path.stem: path for kinds in (CONTAINERS, SUFFIXES) for path in paths if path.suffix.lower() in kinds}
    if not found:
        others = sorted({path.suffix for path in paths if path.is_file()} - {".csv", ".md", ""})
        kinds = ", ".join((*SUFFIXES, *CONTAINERS))
        raise InputError(f"{folder}: no recordings ({kinds}); there are {', '.join(others) or 'no others'}")
    return found


def _readable(path: Path, output: Path) -> Path:
    """The recording, or, of one in a container, a FLAC file made of it."""
    if path.suffix.lower() in SUFFIXES:
        return path
    made = output / "audio" / f"{path.stem}.flac"
    if not made.is_file():
        samples, rate = read_audio(path)
        made.parent.mkdir(parents=True, exist_ok=True)
        with replacing(made) as file:
            soundfile.write(file, samples, rate, format="FLAC")
    return made


def prepare(folder: Path, output: Path) -> None:
    """Writes the manifests of a folder, and FLAC files of recordings in containers, and says how much they hold.

    Raises:
        InputError: there is no metadata.csv, or no recording of it that can be read.
    """
    metadata = folder / "metadata.csv"
    if not metadata.is_file():
        raise InputError(f"{metadata}: no such file")
    recordings = _recordings(folder)
    entries: dict[str, list[dict[str, object]]] = {"train": [], "valid": [], "test": []}
    left_out = 0
    for line in metadata.read_text(encoding="utf-8").splitlines():
        name, _, text = line.partition("|")
        text = text.split("|")[-1]  # LJ Speech has a second one, with numbers written as words
        stem = Path(name).stem if Path(name).suffix in SUFFIXES + CONTAINERS else name
        path, spelled = recordings.get(stem), normalised(text)
        if path is None or not spelled:
            left_out += 1
            continue
        path = _readable(path, output)
        try:
            duration = soundfile.info(path).duration
        except soundfile.LibsndfileError as error:
            raise InputError(f"{path}: {error.error_string}") from error
        entry = {"audio_filepath": os.path.abspath(path), "duration": round(duration, 4), "text": spelled}
        entries[split_of(spelled)].append(entry)
    if not all(entries.values()):
        sizes = ", ".join(f"{len(lines)} for {part}" for part, lines in entries.items())
        raise InputError(f"{metadata}: too few sentences: {sizes}")
    output.mkdir(parents=True, exist_ok=True)
    for part, lines in entries.items():
        with replacing(output / f"{part}.jsonl") as file:
            file.write("".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in lines).encode())
        hours = sum(float(str(entry["duration"])) for entry in lines) / 3600
        print(f"{part}: {len(lines)} sentences, {hours:.2f} h")
    if left_out:
        print(f"{left_out} lines were left out: numbers in them, no text, or no recording")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="with metadata.csv and recordings")
    parser.add_argument("--output", type=Path, required=True, help="folder for the manifests")
    arguments = parser.parse_args()
    try:
        with reported():
            prepare(arguments.folder, arguments.output)
    except CommandError as error:
        print(f"speech: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

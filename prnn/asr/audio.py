"""Reading recordings with libsndfile (WAV, FLAC and whatever else the installed version takes)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import numpy as np
import soundfile

from .errors import InputError
from .features import SAMPLE_RATES, check_samples

_MOST_CHANNELS = 32
_MOST_SAMPLES = 2**29  # of one channel: 9 hours at 16 kHz
_BLOCK = 2**20
_OGG_PAGE = 2**16  # bytes; none is longer
_UNKNOWN = 2**62  # more than this libsndfile gives as the length of a FLAC that does not give it, and fails at its end
_MP3_FIRST_FRAME = 4096  # bytes, in which it begins
# Its header, side information and the tag of LAME and others, with how many bytes all frames have.
_MP3_LENGTH = re.compile(
    rb"\xff[\xe0-\xff]..(?:..)?(?:.{9}|.{17}|.{32})(?:Xing|Info)...[\x03\x07\x0b\x0f].{4}(.{4})", re.DOTALL
)

_LENGTHLESS = "an MP3 of variable bit rate without its length; convert it, to FLAC for instance"


class _Mp3(soundfile.SoundFile):
    """An MP3, read through Python, which knows how far in the file libsndfile has come."""

    def __init__(self, path: Path) -> None:
        self._bytes = path.open("rb")
        super().__init__(self._bytes)

    def close(self) -> None:
        super().close()
        self._bytes.close()

    def goes_on(self) -> bool:
        """Whether another frame follows after the last sample, or after the end that the first frame gives: frames of
        padding may follow the last sample. libsndfile estimates the length of an MP3 that does not give its own from
        its first frames, which is wrong where the bit rate varies, and knows no second part."""
        here = self._bytes.tell()
        head = self._frames(0, _MP3_FIRST_FRAME)
        found = _MP3_LENGTH.search(head)
        end = here if found is None else self._bytes.tell() - len(head) + found.start() + int.from_bytes(found[1])
        following = self._frames(end, 2)
        return len(following) == 2 and following[0] == 0xFF and following[1] >= 0xE0

    def _frames(self, place: int, size: int) -> bytes:
        """What lies at a place of the file, or behind the ID3 tag there."""
        self._bytes.seek(place)
        if (tag := self._bytes.read(10))[:3] == b"ID3" and len(tag) == 10:
            place += 10 + sum(byte << shift for byte, shift in zip(tag[6:], (21, 14, 7, 0), strict=True))
        self._bytes.seek(place)
        return self._bytes.read(size)


def _ogg_pages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The flags and the stream's serial number of each page of an Ogg file (RFC 3533)."""
    for found in re.finditer(rb"OggS\0(.).{8}(.{4})", data, re.DOTALL):
        yield found[1][0], found[2]


def _is_chained(path: Path) -> bool:
    """Whether an Ogg file ends with another stream than those that it begins with: libsndfile reads the first alone."""
    with path.open("rb") as file:
        head = file.read(_OGG_PAGE)
        file.seek(max(0, path.stat().st_size - _OGG_PAGE))
        tail = file.read()
    first = {serial for _, serial in takewhile(lambda page: page[0] & 2, _ogg_pages(head))}
    return any(serial not in first for _, serial in list(_ogg_pages(tail))[-1:])


def _open(path: Path) -> soundfile.SoundFile:
    try:
        if not path.exists():
            raise InputError(f"{path}: no such file")
        if not path.is_file():
            raise InputError(f"{path}: is {'a directory' if path.is_dir() else 'no regular file'}, not a recording")
        if path.stat().st_size == 0:
            raise InputError(f"{path}: the file is empty")
        file = soundfile.SoundFile(path)
        if file.format == "MP3":
            file.close()
            file = _Mp3(path)
    # TypeError: a suffix that means headerless samples. UnicodeError: a name that is no text.
    except (soundfile.SoundFileError, TypeError, OSError, UnicodeError) as error:
        raise InputError(f"{path}: not a recording that libsndfile can read ({_one_line(error)})") from error
    problem = ""
    if file.frames == 0:
        problem = "the recording has no samples"
    elif file.format == "OGG" and _is_chained(path):
        problem = "it has several streams, one after the other, of which libsndfile reads the first; convert it"
    elif file.frames > _UNKNOWN:
        problem = "its header does not give its length, as where it was written to a pipe; write it anew, to a file"
    elif not SAMPLE_RATES.accepts(file.samplerate):
        problem = f"the sample rate is {file.samplerate} Hz; it must be {SAMPLE_RATES}"
    elif file.channels > _MOST_CHANNELS:
        problem = f"the recording has {file.channels} channels; there may be at most {_MOST_CHANNELS}"
    if problem:
        file.close()
        raise InputError(f"{path}: {problem}")
    return file


def sample_rate(path: str | Path) -> int:
    """A recording's sample rate in hertz, from its header.

    Raises:
        InputError: there is no such file, or it is no recording.
    """
    with _open(Path(path)) as file:
        rate: int = file.samplerate
    return rate


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _read_mono(file: soundfile.SoundFile, path: Path, count: int) -> np.ndarray:
    """The next `count` samples, the mean of the channels, or as many as there are, block by block: memory follows what
    the file holds, not what its header claims."""
    blocks, read = [], 0
    while read < count:
        block = file.read(min(_BLOCK, count - read), dtype="float32", always_2d=True)
        if len(block) == 0:
            reason = f", or is {_LENGTHLESS}" if isinstance(file, _Mp3) else ""
            raise InputError(f"{path}: ends {count - read} samples before the end that its header gives{reason}")
        with np.errstate(invalid="ignore", over="ignore"):  # read_audio says what is not finite
            blocks.append(block.mean(axis=1) if block.shape[1] > 1 else block[:, 0])
        read += len(block)
    if isinstance(file, _Mp3) and file.tell() == file.frames and file.goes_on():
        raise InputError(
            f"{path}: libsndfile finds {file.frames / file.samplerate:.2f} s in it, and it is longer: several in one "
            f"file, or {_LENGTHLESS}"
        )
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def read_audio(path: str | Path, offset: float = 0.0, duration: float | None = None) -> tuple[np.ndarray, int]:
    """Reads a recording, or the part of it from ``offset`` on that lasts ``duration`` seconds.

    Returns:
        Samples as float32 of shape (samples,), the mean of the channels, from -1 to 1; and the sample rate in hertz.

    Raises:
        InputError: the file is missing, empty, not a recording, damaged, an MP3 whose length libsndfile cannot tell, or
            ends before ``offset``; its sample rate is not from 1 to 384 kHz; it has more than 32 channels; the part has
            more than 2^29 samples, or some that are not finite.
    """
    path = Path(path)
    with _open(path) as file:
        rate = file.samplerate
        start = round(offset * rate)
        if start >= file.frames:
            end = file.frames / rate
            raise InputError(f"{path}: offset {offset} s is beyond the end of the recording, at {end:.2f} s")
        count = file.frames - start
        if duration is not None:
            count = min(count, max(1, round(duration * rate)))
        if count > _MOST_SAMPLES:
            raise InputError(
                f"{path}: the header gives {count / rate:.0f} s at {rate} Hz, which is too much at once; "
                "cut the recording, if the header is right"
            )
        try:
            file.seek(start)
            samples = _read_mono(file, path, count)
        except soundfile.SoundFileError as error:
            raise InputError(f"{path}: cannot be read to its end ({_one_line(error)})") from error
    try:
        check_samples(samples)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    return np.ascontiguousarray(samples), rate


def audio_seconds(path: str | Path) -> float:
    """How long a recording is, as far as its header says. Raises InputError unless the file is one."""
    with _open(Path(path)) as file:
        return float(file.frames / file.samplerate)


def audio_blocks(path: str | Path, seconds: float) -> tuple[int, Iterator[np.ndarray]]:
    """Reads a recording of any length piece by piece, in memory that does not depend on its length.

    Args:
        path: the recording.
        seconds: of a piece; the last one may be shorter.

    Returns:
        The sample rate in hertz, and the pieces, each as of :func:`read_audio`.

    Raises:
        InputError: as :func:`read_audio`, at once or with the piece that cannot be read.
    """
    path = Path(path)
    file = _open(path)

    def pieces() -> Iterator[np.ndarray]:
        size, left = max(1, round(seconds * file.samplerate)), file.frames
        with file:
            while left:
                try:
                    samples = _read_mono(file, path, min(size, left))
                    check_samples(samples)
                except soundfile.SoundFileError as error:
                    raise InputError(f"{path}: cannot be read to its end ({_one_line(error)})") from error
                except InputError:
                    raise
                except ValueError as error:
                    raise InputError(f"{path}: {error}") from error
                left -= len(samples)
                yield np.ascontiguousarray(samples)

    return file.samplerate, pieces()


def chunks(samples: np.ndarray, sample_rate: int, milliseconds: float) -> Iterator[np.ndarray]:
    """Cuts samples into pieces of ``milliseconds``, as a microphone would deliver them; the last one may be shorter."""
    size = max(1, round(sample_rate * milliseconds / 1000))
    for start in range(0, len(samples), size):
        yield samples[start : start + size]

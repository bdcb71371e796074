"""Reading recordings with libsndfile; what it does not know, through PyAV where that is installed (media.py)."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import soundfile

from prnn._extras import install_command

from . import containers, media
from .errors import InputError, InputWarning
from .features import SAMPLE_RATES, check_recording

_MOST_CHANNELS = 32
_MOST_SAMPLES = 2**29  # of one channel: 9 hours at 16 kHz
_BLOCK = 2**20
_UNKNOWN = 2**62  # more than this libsndfile gives as the length of a FLAC that does not give it, and fails at its end
_MISSING_BYTES = 64  # by which samples may end early: some programs count the header among them
_CANCELLED = 0.01  # power of the mean of channels, as a share of theirs: 20 dB less

_LENGTHLESS = "an MP3 of variable bit rate without its length; convert it, to FLAC for instance"
_PIPED = "its header does not give its length, as where it was written to a pipe"


class _Recording(soundfile.SoundFile):
    """A recording whose file is looked at beside libsndfile, which knows only what it reads.

    Raises:
        InputError: not a file, or not a recording that can be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        try:
            if path == media.STANDARD_INPUT:
                self._descriptor = media.reopened(media.standard_input())
            elif not path.exists():
                raise InputError(f"{path}: no such file")
            elif not path.is_file():
                raise InputError(f"{path}: is {'a directory' if path.is_dir() else 'no regular file'}, not a recording")
            else:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._size = os.fstat(self._descriptor).st_size
            if self._size == 0:
                raise InputError(f"{path}: the file is empty")
            if containers.is_for_ffmpeg(self._bytes):
                self._decode()
            self._extent = containers.extent(self._bytes)
            super().__init__(self._descriptor, closefd=False)
        except soundfile.LibsndfileError as error:
            reason = f"not a recording that libsndfile can read ({error.error_string.rstrip('.')})"
            raise InputError(f"{path}: {self._behind() or reason}") from error
        except (OSError, UnicodeError, ValueError) as error:  # the latter two: a name that is none
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path}: not a recording that libsndfile can read ({_one_line(error)})") from error
        self._at = 0  # samples until here have been read
        self._mp3_length = containers.mp3_length(self._bytes) if self.format == "MP3" else None
        self._mp3_is_open = self.format == "MP3" and self._mp3_length is None

    def _decode(self) -> None:
        """Puts what PyAV decodes in the place of a file that libsndfile does not know."""
        try:
            decoded = media.decoded(self._descriptor)
        except ModuleNotFoundError as error:
            source = self.path if self.path != media.STANDARD_INPUT else "FILE"
            command = f"ffmpeg -i {shlex.quote(str(source))} {shlex.quote(str(Path(source).with_suffix('.flac')))}"
            raise InputError(
                f"{self.path}: not a recording that libsndfile can read; make one of it: {command}; or let prnn decode "
                f"it: {install_command('av')}"
            ) from error
        except ValueError as error:
            raise InputError(f"{self.path}: {error}") from error
        os.close(self._descriptor)
        self._descriptor = decoded
        self._size = os.fstat(decoded).st_size

    def close(self) -> None:
        super().close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def seekable(self) -> bool:
        """No: soundfile would seek after each block, behind which an MP3 decoder lacks what the next frame takes from
        the frames before it."""
        return False

    def _bytes(self, place: int, size: int) -> bytes:
        return os.pread(self._descriptor, max(0, size), place) if place < self._size else b""

    def _missing(self) -> int:
        """Bytes of samples that the header promises, and the file has not."""
        extent = self._extent
        return 0 if extent is None or extent.size is None else max(0, extent.begin + extent.size - self._size)

    def _behind(self) -> str:
        """The error for a file that has another recording behind the first; empty if it has none."""
        end = None if self._extent is None else self._extent.end
        if end is not None and containers.begins_recording(self._bytes, end):
            return "it has several recordings, one after the other, of which libsndfile reads the first; convert it"
        return ""

    def problem(self) -> str:
        """The error in the recording that its header and the ends of its file show; empty if there is none."""
        if self.format not in containers.FORMATS:
            return f"its format is {self.format}; it must be one of {', '.join(containers.FORMATS)}"
        if self.format == "OGG" and (problem := containers.ogg_problem(self._bytes, self._size)):
            return problem
        if self.frames == 0:
            extent = self._extent
            is_open = extent is not None and extent.size == 0 and self._size > extent.begin
            return f"{_PIPED}; write it anew, to a file" if is_open else "the recording has no samples"
        if self.frames > _UNKNOWN:
            return f"{_PIPED}; write it anew, to a file"
        if not SAMPLE_RATES.accepts(self.samplerate):
            return f"the sample rate is {self.samplerate} Hz; it must be {SAMPLE_RATES}"
        if self.channels > _MOST_CHANNELS:
            return f"the recording has {self.channels} channels; there may be at most {_MOST_CHANNELS}"
        return ""

    def problem_at_the_end(self) -> str:
        """The error at the end of the recording, whatever part of it is read; empty if there is none."""
        if self._extent is not None and self._missing() > _MISSING_BYTES:
            assert self._extent.size is not None
            share = (self._size - self._extent.begin) / self._extent.size
            return f"it is not whole: it has {100 * share:.0f} % of the samples that its header promises"
        return self._behind()

    def require_all_read(self) -> None:
        """Raises InputError if more follows behind the last sample, which libsndfile has read."""
        problem = self.problem_at_the_end()
        place = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        if (self.format == "FLAC" and containers.flac_follows(self._bytes, place)) or (
            self.format == "OGG" and containers.ogg_begins_anew(self._bytes, self._size)
        ):
            problem = "it has several recordings, one after the other, of which libsndfile reads the first; convert it"
        elif self.format == "MP3" and containers.mp3_goes_on(self._bytes, self._mp3_length or place):
            problem = (
                f"libsndfile finds {self._at / self.samplerate:.2f} s in it, and it is longer: several in one file, "
                f"or {_LENGTHLESS}"
            )
        if problem:
            raise InputError(f"{self.path}: {problem}")

    def next(self, count: int) -> Iterator[np.ndarray]:
        """The next `count` samples of all channels, float32 (S, channels), block by block: memory follows what the file
        holds, not what its header claims. Those of an MP3 that does not give its length end where the file does.

        Raises:
            InputError: there are fewer, or more behind the last one.
        """
        read = 0
        while read < count:
            try:
                block = self.read(min(_BLOCK, count - read), dtype="float32", always_2d=True)
            except soundfile.SoundFileError as error:
                raise InputError(f"{self.path}: cannot be read to its end ({_one_line(error)})") from error
            if len(block) == 0:
                if self._mp3_is_open:
                    break
                raise InputError(f"{self.path}: ends {count - read} samples before the end that its header gives")
            read += len(block)
            self._at += len(block)
            yield block
        if self._at == self.frames or read < count:
            self.require_all_read()

    def skip(self, count: int) -> None:
        """Passes over the first `count` samples; decodes them where the coding cannot be entered elsewhere than at its
        beginning, as GSM 6.10. Raises InputError where that fails."""
        if not super().seekable():
            for _ in self.next(count):
                pass
            return
        try:
            self._at = self.seek(count)
        except soundfile.SoundFileError as error:
            raise InputError(f"{self.path}: cannot be read to its end ({_one_line(error)})") from error


class Downmix:
    """Makes one channel of several.

    Args:
        place: the recording, for messages.
        channel: its number, from 0 on; None is the mean of all.

    Raises:
        InputError: there is no such channel.
    """

    def __init__(self, place: object, channel: int | None = None) -> None:
        self._place = place
        self._channel = channel
        self._power = self._mean_power = 0.0

    def __call__(self, block: np.ndarray) -> np.ndarray:
        """Takes samples (S, channels), returns (S,)."""
        channels = block.shape[1]
        if self._channel is not None and self._channel >= channels:
            count = "one channel" if channels == 1 else f"{channels} channels"
            raise InputError(f"{self._place}: it has {count}, counted from 0, and no channel {self._channel}")
        if channels == 1 or self._channel is not None:
            return block[:, self._channel or 0]
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is found where all have been read
            mean = block.mean(axis=1)
            self._power += float(np.square(block, dtype=np.float64).sum()) / channels
            self._mean_power += float(np.square(mean, dtype=np.float64).sum())
        return mean

    def finish(self) -> None:
        """Warns where the channels' mean was taken, and has lost what they hold."""
        if self._mean_power < _CANCELLED * self._power:
            lost = f"{10 * np.log10(self._power / self._mean_power):.0f} dB" if self._mean_power else "all"
            warnings.warn(
                f"{self._place}: its channels cancel one another out, and their mean has lost {lost} of their power; "
                "--channel 0 takes the first one",
                InputWarning,
                stacklevel=2,
            )


def _open(path: Path) -> _Recording:
    file = _Recording(path)
    if problem := file.problem():
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


def _checked(samples: np.ndarray, path: Path) -> np.ndarray:
    try:
        check_recording(samples)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    return np.ascontiguousarray(samples)


def read_audio(
    path: str | Path, offset: float = 0.0, duration: float | None = None, channel: int | None = None
) -> tuple[np.ndarray, int]:
    """Reads a recording, or the part of it from ``offset`` on that lasts ``duration`` seconds.

    Args:
        path: the recording: WAV, FLAC, MP3, Ogg (Vorbis, Opus), AIFF, AU, CAF, W64, RF64 or NIST SPHERE; with PyAV, MP4
            (m4a), Matroska (webm) and others. "-" is standard input.
        offset: seconds.
        duration: seconds; None is all.
        channel: of several, the number of the one to take, from 0 on; None is the mean of all.

    Returns:
        Samples as float32 of shape (samples,), from -1 to 1; and the sample rate in hertz.

    Raises:
        InputError: the file is missing, empty, not a recording, damaged, or not whole, has another recording behind the
            first, is an MP3 whose length libsndfile cannot tell, or ends before ``offset``; its sample rate is not from
            1 to 384 kHz; it has more than 32 channels, or no such channel; the part has more than 2^29 samples, or some
            that are not finite, or far from -1 to 1.

    Warns:
        InputWarning: the mean of the channels has lost what they hold.
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
        file.skip(start)
        mix = Downmix(path, channel)
        blocks = [mix(block) for block in file.next(count)]
    mix.finish()
    if not blocks:
        raise InputError(f"{path}: offset {offset} s is beyond the end of the recording")
    return _checked(blocks[0] if len(blocks) == 1 else np.concatenate(blocks), path), rate


def check_audio(path: str | Path, channel: int | None = None) -> float:
    """Returns how many seconds a recording has. Raises InputError unless the file is a whole one, as far as its header
    says, and has that channel."""
    with _open(Path(path)) as file:
        if problem := file.problem_at_the_end():
            raise InputError(f"{path}: {problem}")
        Downmix(path, channel)(np.zeros((1, file.channels), np.float32))
        return float(file.frames / file.samplerate)


def audio_blocks(path: str | Path, seconds: float, channel: int | None = None) -> tuple[int, Iterator[np.ndarray]]:
    """Reads a recording of any length piece by piece, in memory that does not depend on its length.

    Args:
        path: the recording.
        seconds: of a piece; the last one may be shorter.
        channel: as for :func:`read_audio`.

    Returns:
        The sample rate in hertz, and the pieces, each as of :func:`read_audio`.

    Raises:
        InputError: as :func:`read_audio`, at once or with the piece that cannot be read.

    Warns:
        InputWarning: as :func:`read_audio`, after the last piece.
    """
    path = Path(path)
    file = _open(path)

    def pieces() -> Iterator[np.ndarray]:
        size, left, mix = max(1, round(seconds * file.samplerate)), file.frames, Downmix(path, channel)
        with file:
            while left:
                blocks = [mix(block) for block in file.next(min(size, left))]
                if not blocks:
                    break
                samples = _checked(blocks[0] if len(blocks) == 1 else np.concatenate(blocks), path)
                left -= len(samples)
                yield samples
        mix.finish()

    return file.samplerate, pieces()


def chunks(samples: np.ndarray, sample_rate: int, milliseconds: float) -> Iterator[np.ndarray]:
    """Cuts samples into pieces of ``milliseconds``, as a microphone would deliver them; the last one may be shorter."""
    size = max(1, round(sample_rate * milliseconds / 1000))
    for start in range(0, len(samples), size):
        yield samples[start : start + size]

"""Finds where a recording's samples end in its file by its header, and what follows them: libsndfile reads as far as
the file goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import NamedTuple

# libsndfile's formats whose files say how long they are.
FORMATS = ("AIFF", "AU", "CAF", "FLAC", "MP3", "NIST", "OGG", "RF64", "W64", "WAV", "WAVEX")

_MOST_CHUNKS = 1000  # before the samples, or behind them
_NIST_HEADER = 2**16  # bytes; 1024 in almost all
_OGG_PAGE = 2**16  # bytes; none is longer
_MP3_FIRST_FRAME = 4096  # bytes, in which it begins
# Its header, side information and the tag of LAME and others, with how many bytes all frames have.
_MP3_LENGTH = re.compile(
    rb"\xff[\xe0-\xff]..(?:..)?(?:.{9}|.{17}|.{32})(?:Xing|Info)...[\x03\x07\x0b\x0f].{4}(.{4})", re.DOTALL
)
_FLAC_BUFFER = 2**15  # bytes that libFLAC and libsndfile have read too many at most
_FLAC = re.compile(rb"fLaC[\x00\x80]\x00\x00\x22")
_MAGIC = (b"RIFF", b"RIFX", b"RF64", b"riff", b"FORM", b".snd", b"dns.", b"NIST", b"caff", b"fLaC", b"OggS")
_MP3 = (b"ID3", b"\xff\xfb", b"\xff\xfa", b"\xff\xf3", b"\xff\xf2", b"\xff\xe3", b"\xff\xe2")  # a tag, frames

Read = Callable[[int, int], bytes]  # what lies at a place of the file, up to so many bytes


class Extent(NamedTuple):
    """The place of the samples in a file.

    Attributes:
        begin: of their bytes.
        size: of them in bytes, by the header; None where it is not known, as of what was written to a pipe.
        end: of the whole recording, behind which another may follow; None where it is not known.
    """

    begin: int
    size: int | None
    end: int | None


def _known(size: int, bytes_of_it: int = 4) -> int | None:
    """A size, unless it is one that stands for an unknown one: programs write it to a pipe, where they cannot go back
    (ffmpeg, SoX, arecord and others, each another, or the largest, less a header)."""
    largest = 1 << 8 * bytes_of_it
    unknown = size >= largest - 256 or (bytes_of_it == 4 and 0x7EFF_FF00 <= size <= 0x8000_0000)
    return None if unknown else size


def _of_riff(read: Read) -> Extent | None:
    """WAV (RIFF, and RF64 with 64-bit sizes), and with the other byte order AIFF."""
    order: str = "little" if read(0, 4) in (b"RIFF", b"RF64") else "big"

    def number(data: bytes) -> int:
        return int.from_bytes(data, "little" if order == "little" else "big")

    whole, large = _known(number(read(4, 4))), b""
    place = 12
    for _ in range(_MOST_CHUNKS):
        head = read(place, 8)
        size = number(head[4:])
        if len(head) < 8:
            break
        if head[:4] == b"ds64":
            large = read(place + 8, 16)
            whole = _known(number(large[:8]), 8)
        elif head[:4] in (b"data", b"SSND"):
            length = _known(number(large[8:]), 8) if large and size == 2**32 - 1 else _known(size)
            return Extent(place + 8, length, 8 + whole + whole % 2 if whole else None)
        place += 8 + size + size % 2
    return None


def _of_w64(read: Read) -> Extent | None:
    place = 40
    for _ in range(_MOST_CHUNKS):
        head = read(place, 24)
        size = int.from_bytes(head[16:], "little")
        if len(head) < 24 or size < 24:
            break
        if head[:4] == b"data":
            whole = _known(int.from_bytes(read(16, 8), "little"), 8)
            return Extent(place + 24, None if _known(size, 8) is None else size - 24, whole)
        place += -(-size // 8) * 8
    return None


def _of_au(read: Read) -> Extent | None:
    head = read(0, 12)
    order = "big" if head[:4] == b".snd" else "little"
    begin, size = (int.from_bytes(head[place : place + 4], order) for place in (4, 8))  # type: ignore[arg-type]
    length = _known(size)
    return Extent(begin, length, None if length is None else begin + length)


def _of_caf(read: Read) -> Extent | None:
    place, found = 8, None
    for _ in range(_MOST_CHUNKS):
        head = read(place, 12)
        size = _known(int.from_bytes(head[4:], "big"), 8)
        if len(head) < 12 or head[:4] in _MAGIC:
            break
        if head[:4] == b"data":
            found = place + 16, size
        if size is None:
            break
        place += 12 + size
    return None if found is None else Extent(found[0], None if found[1] is None else found[1] - 4, place)


def _of_nist(read: Read) -> Extent | None:
    begin = int(read(8, 8))
    fields = dict(re.findall(rb"\n(\w+) -(?:i|s\d+) (\d+)(?=\n)", read(0, min(begin, _NIST_HEADER))))
    names = (b"sample_count", b"sample_n_bytes", b"channel_count")
    if not all(name in fields for name in names):
        return None
    size = 1
    for name in names:
        size *= int(fields[name])
    return Extent(begin, size, begin + size)


_EXTENTS: dict[bytes, Callable[[Read], Extent | None]] = {
    b"RIFF": _of_riff, b"RIFX": _of_riff, b"RF64": _of_riff, b"FORM": _of_riff, b"riff": _of_w64, b".snd": _of_au,
    b"dns.": _of_au, b"caff": _of_caf, b"NIST": _of_nist,
}  # fmt: skip


def extent(read: Read) -> Extent | None:
    """The place of the samples in a file; None for formats that have no such place, and for damaged headers."""
    find = _EXTENTS.get(read(0, 4))
    try:
        return None if find is None else find(read)
    except ValueError:  # a number that is none
        return None


def begins_recording(read: Read, place: int) -> bool:
    """Whether a recording begins at a place."""
    return read(place, 4) in _MAGIC


def is_for_ffmpeg(read: Read) -> bool:
    """Whether a file is one of MP4 (m4a, mp4), Matroska (webm), ADTS (aac), ASF (wma) or AMR: not for libsndfile."""
    head = read(0, 12)
    return head[4:8] == b"ftyp" or head.startswith((b"\x1aE\xdf\xa3", b"\xff\xf1", b"\xff\xf9", b"0&\xb2u", b"#!AMR"))


def is_recording(head: bytes) -> bool:
    """Whether a file with these first bytes, 16 or more, is a recording by its format's mark."""

    def read(place: int, size: int) -> bytes:
        return head[place : place + size]

    return begins_recording(read, 0) or is_for_ffmpeg(read) or head.startswith(_MP3)


def flac_follows(read: Read, place: int) -> bool:
    """Whether a FLAC begins behind one of which all has been decoded, and so many bytes read."""
    begin = max(1, place - _FLAC_BUFFER)
    return _FLAC.search(read(begin, place + 8 - begin)) is not None


def _ogg_pages(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """The flags, the stream's serial number and the end of each page of an Ogg file (RFC 3533)."""
    for found in re.finditer(rb"OggS\0(.).{8}(.{4}).{8}(.)", data, re.DOTALL):
        sizes = data[found.end() : found.end() + found[3][0]]
        yield found[1][0], found[2], found.end() + found[3][0] + sum(sizes)


def ogg_problem(read: Read, size: int) -> str:
    """The error in an Ogg file of `size` bytes: it ends within a page, or with another stream than those that it begins
    with, of which libsndfile reads the first alone. Empty if there is none."""
    first = {serial for _, serial, _ in takewhile(lambda page: page[0] & 2, _ogg_pages(read(0, _OGG_PAGE)))}
    tail = read(max(0, size - _OGG_PAGE), _OGG_PAGE)
    for _, serial, end in list(_ogg_pages(tail))[-1:]:
        if serial not in first:
            return "it has several streams, one after the other, of which libsndfile reads the first; convert it"
        if end > len(tail):
            return "it ends within a page: it is not whole"
    return ""


def ogg_begins_anew(read: Read, size: int) -> bool:
    """Whether a first page (RFC 3533) comes behind pages of samples, as where two files were joined, one with the same
    serial number among them."""
    place, has_begun = 0, False
    while place < size:
        page = read(place, 27 + 255)
        if len(page) < 27 or page[:4] != b"OggS":
            return False
        if page[5] & 2 and has_begun:
            return True
        has_begun = has_begun or not page[5] & 2
        place += 27 + page[26] + sum(page[27 : 27 + page[26]])
    return False


def _behind_tag(read: Read, place: int) -> int:
    """A place of an MP3, or the end of the ID3 tag there."""
    tag = read(place, 10)
    if tag[:3] != b"ID3" or len(tag) < 10:
        return place
    return place + 10 + sum(byte << shift for byte, shift in zip(tag[6:], (21, 14, 7, 0), strict=True))


def mp3_length(read: Read) -> int | None:
    """The end of an MP3 in bytes by its first frame; None if that does not say it. libsndfile then estimates the length
    from the first frames and the size of the file, tags included, which is wrong where the bit rate varies."""
    begin = _behind_tag(read, 0)
    found = _MP3_LENGTH.search(read(begin, _MP3_FIRST_FRAME))
    return None if found is None else begin + found.start() + int.from_bytes(found[1])


def mp3_goes_on(read: Read, place: int) -> bool:
    """Whether a frame of an MP3 is at a place, or behind the tag there."""
    following = read(_behind_tag(read, place), 2)
    return len(following) == 2 and following[0] == 0xFF and following[1] >= 0xE0

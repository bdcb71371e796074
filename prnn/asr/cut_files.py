"""The files that a cut is read from. Lhotse also runs commands, opens URLs and loads pickles for a manifest that names
them; here a manifest, whoever wrote it, opens files and nothing else."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lhotse import Features, Recording
from lhotse.audio.backend import LibsndfileBackend, get_current_audio_backend, set_current_audio_backend
from lhotse.augmentation import AudioTransform
from lhotse.augmentation.utils import FastRandomRIRGenerator
from lhotse.cut import Cut, MixedCut, MonoCut, MultiCut, PaddingCut

from prnn._fields import shown

from .errors import InputError

_TRANSFORMS = (
    "Clipping", "Compress", "DereverbWPE", "LoudnessNormalization", "Narrowband", "Resample",
    "ReverbWithImpulseResponse", "Speed", "Tempo", "Volume",
)  # fmt: skip
PARTS = ("recording", "features")  # of a cut
_FOLDERS = ("lilcom_files", "numpy_files")  # storage of features: a file for each utterance
_ARCHIVES = ("chunked_lilcom_hdf5", "lilcom_chunky", "lilcom_hdf5", "numpy_hdf5")
_MEMORY = ("memory_lilcom", "memory_npy")  # memory_raw is a pickle
_PLACEHOLDER = "shar"  # a Shar's tar files have what its cuts do not
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")  # Lhotse opens pipe:COMMAND and URLs


def files_of(item: Any, parts: Sequence[str] = PARTS) -> Iterator[str]:
    """The files that Lhotse opens for these parts of a cut, for those of its tracks and for transforms, or for a
    recording or features.

    Raises:
        ValueError: naming what is read from elsewhere, or not known.
    """
    if type(item) in (MonoCut, MultiCut):
        for part in parts:
            if getattr(item, part) is not None:
                yield from files_of(getattr(item, part))
    elif type(item) is MixedCut:
        yield from _of_transforms(item.transforms)
        for track in item.tracks:
            yield from files_of(track.cut, parts)
    elif type(item) is Recording:
        yield from _of_recording(item)
    elif type(item) is Features:
        yield from _of_features(item)
    elif type(item) is not PaddingCut:
        raise ValueError(f"it holds a {type(item).__name__}, where a cut, a recording or features must be")


def require_files(cut: Cut, place: str, part: str | None = None) -> None:
    """Raises InputError unless a cut is read from files alone, as `files_of` says.

    Args:
        cut: the cut.
        place: its manifest and name, with which the message begins.
        part: recording or features, whose files must be there; None looks at all parts, and not for their files.
    """
    try:
        for file in files_of(cut, PARTS if part is None else (part,)):
            if part is not None and not Path(file).is_file():
                reason = "is no regular file" if Path(file).exists() else "does not exist"
                raise ValueError(f"{shown(file, str)} {reason}")
    except ValueError as error:
        raise InputError(f"{place} cannot be read: {error}") from error


def _file(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"it is read from {shown(name)}; that must be the name of a file")
    if _SCHEME.match(name) or name == "-":
        raise ValueError(f"it is read from {shown(name)}, and only files are opened (a file of that name is ./{name})")
    return name


def _of_recording(recording: Recording) -> Iterator[str]:
    yield from _of_transforms(recording.transforms)
    for source in recording.sources:
        if source.type == "file":
            yield _file(source.source)
        elif source.type not in (_PLACEHOLDER, "memory"):
            raise ValueError(f"its recording is of type {shown(source.type)}, and only files are opened")


def _of_features(features: Features) -> Iterator[str]:
    kind = features.storage_type
    if kind in _FOLDERS:
        yield _file(f"{_file(features.storage_path)}/{str(features.storage_key).removeprefix('/')}")
    elif kind in _ARCHIVES:
        yield _file(features.storage_path)
    elif kind not in (_PLACEHOLDER, *_MEMORY):
        known = ", ".join(_FOLDERS + _ARCHIVES)
        raise ValueError(f"its features are stored as {shown(kind)}; that must be one of {known}")


def _of_transforms(transforms: Any) -> Iterator[str]:
    for transform in transforms or ():
        name = type(transform).__name__
        if name not in _TRANSFORMS or type(transform) is not AudioTransform.KNOWN_TRANSFORMS.get(name):
            raise ValueError(f"it has the transform {shown(name)}; known are {', '.join(_TRANSFORMS)}")
        for key, value in _fields(transform).items():
            if isinstance(value, (Cut, Recording)):
                yield from files_of(value)
            else:
                parts = _fields(value) if type(value) is FastRandomRIRGenerator else value
                if not _is_plain(parts):
                    raise ValueError(f"{key} of its transform {name} is {shown(value)}, no plain value")


def _fields(instance: Any) -> dict[str, Any]:
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float))


@contextmanager
def read_by_libsndfile() -> Iterator[None]:
    """Within it Lhotse reads recordings with libsndfile alone. Its other readers give a file's name to a shell, which
    runs sph2pipe or ffmpeg."""
    before = get_current_audio_backend()
    set_current_audio_backend(LibsndfileBackend())
    try:
        yield
    finally:
        set_current_audio_backend(before)

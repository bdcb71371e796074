"""Lhotse's cuts: manifests of them (.jsonl.gz), and Lhotse Shar, a folder of shards."""

from __future__ import annotations

import binascii
import random
import tarfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lhotse import CutSet
from lhotse.cut import Cut, MixedCut, MultiCut
from lhotse.dataset import DynamicBucketingSampler
from lhotse.lazy import LazyManifestIterator
from lhotse.serialization import decode_json_line, deserialize_item
from lhotse.shar.utils import fill_shar_placeholder
from lhotse.utils import fastcopy
from torch import Tensor

from prnn._fields import shown

from .audio import Downmix
from .augment import Augmentation
from .cut_files import read_by_libsndfile, require_files
from .dataset import Batch, Example, Request, Shown, audio_or_features, augmented, collate, encoded, require_frames
from .errors import InputError
from .fbank import fewest_samples, frame_count
from .feature_config import FeatureConfig
from .features import check_recording, compute_features, resampled
from .manifest import Utterance
from .perturb import Perturbation
from .selection import Selection
from .tokenizer import Tokenizer

_BUCKETS = 30
_OPEN_SHARDS = 64  # of which a process keeps the tables of contents
_SAMPLED = 500  # cuts for the statistics of features
_ROUNDING = 0.002  # seconds by which a supervision may lie outside of its cut, or overlap with another speaker's
_FBANKS = ("fbank", "kaldi-fbank", "kaldifeat-fbank")  # Lhotse's names for what Kaldi computes


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


class _InShard(NamedTuple):
    """The place of a cut in a Shar: its shard, and its number among the cuts with its id there."""

    shard: Path
    place: int


class _Shards:
    """The cuts of shards, each of which knows its place."""

    def __init__(self, shards: Sequence[Path]) -> None:
        self._shards = shards

    def __iter__(self) -> Iterator[Cut]:
        for shard in self._shards:
            ids = Counter[str]()
            for cut in LazyManifestIterator(shard):
                if isinstance(cut, Cut):
                    cut.in_shard = _InShard(shard, ids[cut.id])
                    ids[cut.id] += 1
                yield cut


def _name(cut: Cut) -> str:
    """A cut's id, for messages."""
    return shown(cut.id, str)


def _in_shard(cut: Cut) -> _InShard | None:
    """The place of a cut, if it comes from a Shar; a manifest's fields of that name do not count."""
    place = getattr(cut, "in_shard", None)
    return place if isinstance(place, _InShard) else None


class CutManifest:
    """Cuts, read one after the other as often as is wanted.

    Args:
        path: a manifest, or a folder of Lhotse Shar (cuts.000000.jsonl.gz, recording.000000.tar, ...).

    Raises:
        InputError: missing, or not what it should be; then, or when it is iterated.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shards = sorted(path.absolute().glob("cuts.*.jsonl*")) if path.is_dir() else []
        if path.is_dir() and not self.shards:
            raise InputError(f"{path}: a folder without cuts.*.jsonl.gz, so no Lhotse Shar, and no manifest")
        if not path.exists():
            raise InputError(f"{path}: no such file")

    def cuts(self, seed: int | None) -> CutSet:
        """The cuts without their recordings; shards in an order drawn with `seed`."""
        if not self.shards:
            return CutSet.from_jsonl_lazy(self.path.absolute())  # never what Lhotse takes for a command or a URL
        shards = self.shards.copy()
        if seed is not None:
            random.Random(seed).shuffle(shards)
        return CutSet(_Shards(shards))

    def __iter__(self) -> Iterator[Cut]:
        with self.reported():
            yield from self.checked(self.cuts(None))

    def checked(self, cuts: Iterable[Any]) -> Iterator[Cut]:
        """Yields the cuts that can be trained on. Raises InputError for one that cannot."""
        for cut in cuts:
            if not isinstance(cut, Cut):
                raise InputError(f"{self.path}: holds a {type(cut).__name__}; it must hold cuts")
            if not isinstance(cut.id, str):
                raise InputError(f"{self.path}: holds a cut whose id is {shown(cut.id)}; it must be a string")
            if not self.shards:
                _require_no_placeholder(cut, self.path)
            require_files(cut, f"{self.path}: cut {_name(cut)}")
            if not (cut.has_recording or cut.has_features):
                raise InputError(f"{self.path}: cut {_name(cut)} has neither a recording nor features")
            text_of(cut, self.path)
            yield cut

    def reported(self) -> _Reported:
        """Turns what reading stumbles over into an InputError."""
        return _Reported(self.path)


def _require_no_placeholder(cut: Cut, path: Path) -> None:
    for track in cut.tracks if isinstance(cut, MixedCut) else [cut]:
        recording = getattr(getattr(track, "cut", track), "recording", None)
        if recording is not None and any(source.type == "shar" for source in recording.sources):
            raise InputError(f"{path}: a part of a Lhotse Shar; give the folder, {path.parent}")


class _Reported:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        # Whatever the bytes of some other file make Lhotse's readers stumble over.
        if isinstance(error, Exception) and not isinstance(error, InputError):
            if "audio_filepath" in str(error):
                raise InputError(f"{self._path}: has NeMo's lines, which are read uncompressed, *.jsonl") from error
            raise InputError(f"{self._path}: not a manifest of cuts, or a damaged one ({_one_line(error)})") from error


def text_of(cut: Cut, path: Path) -> str:
    """A cut's transcript: the texts of its supervisions, in the order of their beginnings; empty if all are.

    Raises:
        InputError: it has none, or one lies outside of the cut, or two speakers speak at once.
    """
    if all(segment.text is None for segment in cut.supervisions):
        raise InputError(f"{path}: cut {_name(cut)} has no supervision with a text, which may be empty")
    spoken = [segment for segment in cut.supervisions if segment.text and segment.text.strip()]
    spoken.sort(key=lambda segment: segment.start)
    for segment in spoken:
        if segment.start < -_ROUNDING or segment.end > cut.duration + _ROUNDING:
            raise InputError(
                f"{path}: cut {_name(cut)} lasts {cut.duration:g} s, and its supervision {segment.id} is from "
                f"{segment.start:g} to {segment.end:g} s: only a part of its text is in the cut; lhotse cut "
                "trim-to-supervisions --discard-overlapping makes cuts with their whole texts"
            )
    for number, segment in enumerate(spoken):
        for other in spoken[number + 1 :]:
            if other.start > segment.end - _ROUNDING:
                break
            if None not in (segment.speaker, other.speaker) and segment.speaker != other.speaker:
                raise InputError(
                    f"{path}: cut {_name(cut)} has supervisions of two speakers at once, {segment.id} and {other.id}, "
                    "whose words are in no order; lhotse cut trim-to-supervisions --discard-overlapping separates them"
                )
    return " ".join(" ".join(segment.text for segment in spoken).split())


def read_cuts(path: Path) -> list[Cut]:
    """All cuts of a manifest or Shar.

    Raises:
        InputError: as :class:`CutManifest`, or there are none.
    """
    cuts = list(CutManifest(path))
    if not cuts:
        raise InputError(f"{path}: the manifest has no cuts")
    return cuts


def utterance_of(cut: Cut, path: Path) -> Utterance:
    """A cut's text and the name of its recording: the file, or else the recording's id, or the cut's own id where it is
    a mix of several."""
    recording = None if hasattr(cut, "tracks") else getattr(cut, "recording", None)
    files = [source.source for source in recording.sources if source.type == "file"] if recording is not None else []
    name = files[0] if files else (None if hasattr(cut, "tracks") else cut.recording_id) or cut.id
    offset = 0.0 if hasattr(cut, "tracks") else cut.start
    return Utterance(Path(name), cut.duration, text_of(cut, path), offset, f"{path}: cut {_name(cut)}")


@lru_cache(_OPEN_SHARDS)
def _contents(tar: Path) -> dict[tuple[str, int], tuple[tarfile.TarInfo, tarfile.TarInfo]]:
    """Indexes a shard: by a cut's id, and its number among the cuts with that id, the tar members of its data and of
    their description."""
    with tarfile.open(tar, "r:") as archive:
        members = archive.getmembers()
    ids = Counter[str]()
    contents = {}
    for data, meta in zip(members[::2], members[1::2], strict=True):
        name = str(Path(data.name).with_suffix(""))
        contents[name, ids[name]] = data, meta
        ids[name] += 1
    return contents


def _tar(place: _InShard, field: str) -> Path:
    """The tar file of a shard's recordings or features."""
    return place.shard.with_name(f"{field}.{place.shard.name.split('.')[1]}.tar")


def _has_recording(cut: Cut) -> bool:
    """Whether there are samples; cuts of a Shar speak of their recordings without them, too."""
    place = _in_shard(cut)
    return bool(cut.has_recording if place is None else _tar(place, "recording").exists())


def _whole(cut: Cut, path: Path, field: str) -> Cut:
    """A cut with its recording or features, which one of a Shar has in a tar file; all that is opened for it is a
    file."""
    shard = _in_shard(cut)
    if shard is not None:
        tar = _tar(shard, field)
        data, meta = _contents(tar)[cut.id, shard.place]
        with tar.open("rb") as file:

            def read(member: tarfile.TarInfo) -> bytes:
                file.seek(member.offset_data)
                return file.read(member.size)

            manifest = deserialize_item(decode_json_line(read(meta).decode()))
            fill_shar_placeholder(manifest=manifest, data=read(data), tarpath=data.name)
        cut = fastcopy(cut, **{field: manifest})
    require_files(cut, f"{path}: cut {_name(cut)}", field)
    return cut


def read_cut(cut: Cut, path: Path, channel: int | None = None) -> tuple[np.ndarray, int]:
    """A cut's samples, float32 (S,), and their rate.

    Args:
        cut: the cut.
        path: of its manifest, for messages.
        channel: of a cut with several, the one to take; None is the mean of all.
    """
    cut = _whole(cut, path, "recording")
    with read_by_libsndfile():
        samples = cut.load_audio()
    if samples is None:
        raise ValueError("it has no recording")
    place = f"{path}: cut {_name(cut)}"
    if len(samples) == 1:
        channel = None  # the cut says which it is of
    elif isinstance(cut, MultiCut) and channel is not None:
        if channel not in cut.channel:
            raise InputError(
                f"{place}: it has the channels {', '.join(map(str, cut.channel))}, and no channel {channel}"
            )
        channel = cut.channel.index(channel)
    mix = Downmix(place, channel)
    samples = np.ascontiguousarray(mix(samples.T), dtype=np.float32)
    mix.finish()
    check_recording(samples)
    return samples, recording_rate(cut)


def load_samples(cut: Cut, path: Path, rate: int, channel: int | None = None) -> np.ndarray:
    """The samples of a cut, as `read_cut` gives them, at another rate."""
    return resampled(*read_cut(cut, path, channel), rate)


def recording_rate(cut: Cut) -> int:
    """The sample rate of a cut's recording in hertz, which that of its stored features may differ from."""
    first = cut.first_non_padding_cut if isinstance(cut, MixedCut) else cut
    recording = getattr(first, "recording", None)
    return int(first.sampling_rate if recording is None else recording.sampling_rate)


def load_cut(cut: Cut, path: Path, config: FeatureConfig, audio: bool = False, channel: int | None = None) -> Tensor:
    """A cut's features, stored or computed, (T, bins), or with `audio` its samples, (S,); the rest as in
    `load_samples`."""
    try:
        if cut.has_features and not audio:
            return _stored(cut, path, config)
        samples = load_samples(cut, path, config.sample_rate, channel)
    except InputError:
        raise
    except Exception as error:  # a missing or damaged file, by any of Lhotse's readers
        raise InputError(f"{path}: cut {_name(cut)} cannot be read ({_one_line(error)})") from error
    frames = int(frame_count(len(samples), config))
    require_frames(frames, len(samples), config.sample_rate, f"{path}: cut {_name(cut)}")
    return audio_or_features(samples, audio, config)


def _stored(cut: Cut, path: Path, config: FeatureConfig) -> Tensor:
    cut = _whole(cut, path, "features")
    wanted = config.num_mel_bins, config.frame_shift_ms / 1000, config.sample_rate
    for track in cut.tracks if isinstance(cut, MixedCut) else [cut]:
        features = getattr(getattr(track, "cut", track), "features", None)
        if features is None:  # of silence
            continue
        found = features.num_features, features.frame_shift, features.sampling_rate
        if found != wanted or features.type not in _FBANKS:
            raise InputError(
                f"{path}: cut {_name(cut)} has {found[0]} stored features of type {shown(features.type)}, every "
                f"{found[1]} s at {found[2]} Hz; those of the configuration are {wanted[0]} of an fbank, every "
                f"{wanted[1]:g} s at {wanted[2]} Hz. Lhotse's CutSet.drop_features leaves recordings, of which "
                "they are computed"
            )
    return torch.from_numpy(np.array(cut.load_features(), dtype=np.float32))


class LoadCut:
    """Loads cuts of a manifest, for `recognise`: stored features where there are such."""

    def __init__(self, cuts: Sequence[Cut], path: Path, channel: int | None = None) -> None:
        self._cuts, self._path, self._channel = cuts, path, channel

    def __call__(self, number: int, config: FeatureConfig, audio: bool) -> Tensor:
        cut = self._cuts[number]
        return load_cut(cut, self._path, config, audio and not cut.has_features, self._channel)


class CutDataset:
    """Features and targets of cuts.

    Args:
        path: of their manifest, for messages.
        tokenizer: of the texts.
        config: of the features.
        augmentation: what training does; None does nothing.
        seed: of the augmentation.
        audio: makes batches of samples, whose features are computed and augmented elsewhere.
        pass_over_unknown: leave characters that no label stands for out of the targets.
        channel: of cuts with several, the one to take; None is the mean of all.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer,
        config: FeatureConfig,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        audio: bool = False,
        pass_over_unknown: bool = False,
        channel: int | None = None,
    ) -> None:
        self.path = path
        self.channel = channel
        self.config = config
        self.audio = audio
        self.mean = torch.zeros(config.num_mel_bins)
        self._tokenizer = tokenizer
        self._augmentation = augmentation
        changes = augmentation is not None and augmentation.of_recordings
        self._perturbation = (
            Perturbation(augmentation, config.sample_rate, fewest_samples(config)) if augmentation and changes else None
        )
        self._from_audio = audio or self._perturbation is not None
        self._seed = seed
        self._pass_over_unknown = pass_over_unknown

    def loaded(self, cut: Cut, audio: bool) -> Tensor:
        """Loads a cut as `load_cut` does."""
        return load_cut(cut, self.path, self.config, audio, self.channel)

    def read(self, cut: Cut) -> tuple[np.ndarray, int]:
        """Reads a cut as `read_cut` does."""
        return read_cut(cut, self.path, self.channel)

    def sample(self, cuts: Iterable[Cut]) -> Iterator[Tensor]:
        """Yields the samples (S,) of each cut, or its stored features (T, bins)."""
        return (self.loaded(cut, self.reads_recording(cut)) for cut in cuts)

    def reads_recording(self, cut: Cut) -> bool:
        """Whether batches are made of its recording, not of stored features."""
        return self._from_audio or not cut.has_features

    def shown(self, cut: Cut) -> Shown:
        """A cut for the log."""
        audio = self.loaded(cut, audio=True) if _has_recording(cut) else None
        if audio is not None and self.reads_recording(cut):
            features = compute_features(audio.numpy(), self.config.sample_rate, self.config)
        else:
            features = self.loaded(cut, audio=False)
        return Shown(audio, features, text_of(cut, self.path))

    def example(self, cut: Cut, epoch: int) -> Example:
        """A cut as an epoch sees it."""
        text = text_of(cut, self.path)
        targets = encoded(text, self._tokenizer, self._pass_over_unknown, f"{self.path}: cut {_name(cut)}")
        loaded = self.loaded(cut, self._from_audio)
        key = [self._seed, epoch, binascii.crc32(cut.id.encode())]
        if self._perturbation is not None:
            samples = self._perturbation(loaded.numpy(), np.random.default_rng([*key, 1]))
            loaded = audio_or_features(samples, self.audio, self.config)
        example = Example(loaded, targets, text)
        augmentation = self._augmentation.in_epoch(epoch) if self._augmentation else None
        return augmented(example, augmentation, self.config, self.mean, np.random.default_rng(key))

    def batch(self, request: Request) -> Batch:
        """The batch of the given cuts."""
        epoch = request.after.epoch
        return collate([self.example(cut, epoch) for cut in request.items])._replace(after=request.after)


class CutSampler:
    """Batches of cuts by Lhotse's DynamicBucketingSampler. Its first pass, over the texts and durations alone, counts.

    Args:
        manifest: the cuts.
        batch_size: most cuts in a batch.
        batch_seconds: most seconds in a batch.
        seed: of the shuffling.
        selection: of the cuts, which this counts; None takes all.

    Attributes:
        cuts: how many there are.
        hours: of audio.
        characters: how often each occurs in the texts.
        sampled: about 500 cuts, for the statistics of features.
    """

    def __init__(
        self,
        manifest: CutManifest,
        batch_size: int,
        batch_seconds: float,
        seed: int,
        selection: Selection | None = None,
    ) -> None:
        self._manifest = manifest
        self._selection = selection
        self._sizes = {"max_cuts": batch_size, "max_duration": batch_seconds}
        self._seed = seed
        self.cuts, self.hours, self.characters = 0, 0.0, Counter[str]()
        self.sampled: list[Cut] = []
        durations = []
        rng = np.random.default_rng(seed)
        for cut in manifest:
            text = text_of(cut, manifest.path)
            if selection is not None and not selection.takes(cut.duration, text):
                continue
            self.cuts += 1
            self.characters.update(text)
            durations.append(cut.duration)
            place = self.cuts - 1 if self.cuts <= _SAMPLED else int(rng.integers(self.cuts))
            if place < _SAMPLED:
                self.sampled[place : place + 1] = [cut]
        if selection is not None:
            selection.require_some()
        if not durations:
            raise InputError(f"{manifest.path}: the manifest has no cuts")
        self.hours = sum(durations) / 3600
        # Edges of buckets that hold equal shares of the audio.
        durations.sort()
        share = np.cumsum(durations) / np.sum(durations)
        buckets = max(1, min(_BUCKETS, self.cuts // (2 * batch_size)))
        places = np.searchsorted(share, np.arange(1, buckets) / buckets)
        self._bins = sorted({float(durations[min(place, self.cuts - 1)]) for place in places})
        self._batches = sum(1 for _ in self.epoch(0))

    def __len__(self) -> int:
        return self._batches

    def epoch(self, number: int, process: int = 0, processes: int = 1) -> Iterator[Sequence[Cut]]:
        """The batches of an epoch, for one of the processes that train together."""
        with warnings.catch_warnings(), self._manifest.reported():
            warnings.simplefilter("ignore")
            cuts = self._manifest.cuts(self._seed + number)
            if self._selection is not None:
                cuts = cuts.filter(self._fits)
            sampler = DynamicBucketingSampler(
                cuts,
                **self._sizes,
                shuffle=True,
                duration_bins=self._bins,
                seed=self._seed,
                world_size=processes,
                rank=process,
            )
            sampler.set_epoch(number)
            for batch in sampler:
                yield list(self._manifest.checked(batch))

    def _fits(self, cut: Any) -> bool:
        return self._selection is None or not isinstance(cut, Cut) or self._selection.fits(cut.duration)

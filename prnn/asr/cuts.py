"""Lhotse's cuts: manifests of them (.jsonl.gz), and Lhotse Shar, a folder of shards."""

from __future__ import annotations

import binascii
import tarfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import soxr
import torch
from lhotse import CutSet
from lhotse.cut import Cut
from lhotse.dataset import DynamicBucketingSampler
from lhotse.serialization import decode_json_line, deserialize_item
from lhotse.shar.utils import fill_shar_placeholder
from lhotse.utils import fastcopy
from torch import Tensor

from .augment import Augmentation
from .dataset import Batch, Example, Request, Shown, audio_or_features, augmented, collate, encoded, require_frames
from .errors import InputError
from .fbank import fewest_samples, frame_count
from .features import FeatureConfig, check_samples, compute_features
from .manifest import Utterance
from .perturb import Perturbation
from .selection import Selection
from .tokenizer import Tokenizer

_BUCKETS = 30
_OPEN_SHARDS = 64  # of which a process keeps the tables of contents
_SAMPLED = 500  # cuts for the statistics of features


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


class CutManifest:
    """Cuts, read one after the other as often as is wanted.

    Args:
        path: a manifest, or a folder of Lhotse Shar (cuts.000000.jsonl.gz, recording.000000.tar, ...).

    Raises:
        InputError: missing, or not what it should be; then, or when it is iterated.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shards = sorted(path.glob("cuts.*.jsonl*")) if path.is_dir() else []
        if path.is_dir() and not self.shards:
            raise InputError(f"{path}: a folder without cuts.*.jsonl.gz, so no Lhotse Shar")
        if not path.exists():
            raise InputError(f"{path}: no such file")

    def cuts(self, seed: int | None) -> CutSet:
        """The cuts without their recordings; shards in an order drawn with `seed`."""
        if not self.shards:
            return CutSet.from_jsonl_lazy(self.path)
        return CutSet.from_shar(
            fields={"cuts": [str(shard) for shard in self.shards]}, shuffle_shards=seed is not None, seed=seed or 0
        )

    def __iter__(self) -> Iterator[Cut]:
        with self.reported():
            yield from self.checked(self.cuts(None))

    def checked(self, cuts: Iterable[Any]) -> Iterator[Cut]:
        """Those that can be trained on. Raises InputError for one that cannot."""
        for cut in cuts:
            if not isinstance(cut, Cut):
                raise InputError(f"{self.path}: holds a {type(cut).__name__}; it must hold cuts")
            text_of(cut, self.path)
            for track in getattr(cut, "tracks", None) or [cut]:
                recording = getattr(getattr(track, "cut", track), "recording", None)
                for source in recording.sources if recording is not None else []:
                    if source.type == "command":
                        raise InputError(f"{self.path}: cut {cut.id} is the output of a command, which is not run")
                    if source.type == "shar" and not self.shards:
                        raise InputError(f"{self.path}: a part of a Lhotse Shar; give the folder, {self.path.parent}")
            yield cut

    def reported(self) -> _Reported:
        """Turns what reading stumbles over into an InputError."""
        return _Reported(self.path)


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
    """A cut's transcript."""
    texts = [segment.text for segment in cut.supervisions if segment.text and segment.text.strip()]
    if not texts:
        raise InputError(f"{path}: cut {cut.id} has no text")
    return " ".join(" ".join(texts).split())


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
    """What is said in a cut, and where: in the file of its recording, or else in what has the recording's name; of a
    cut made of several, its own."""
    recording = None if hasattr(cut, "tracks") else getattr(cut, "recording", None)
    files = [source.source for source in recording.sources if source.type == "file"] if recording is not None else []
    name = files[0] if files else cut.id if hasattr(cut, "tracks") else cut.recording_id
    offset = 0.0 if hasattr(cut, "tracks") else cut.start
    return Utterance(Path(name), cut.duration, text_of(cut, path), offset, f"{path}: cut {cut.id}")


@lru_cache(_OPEN_SHARDS)
def _contents(tar: Path) -> dict[str, tuple[tarfile.TarInfo, tarfile.TarInfo]]:
    """Of a shard: where the data of each cut are, and their description."""
    with tarfile.open(tar, "r:") as archive:
        members = archive.getmembers()
    return {
        str(Path(data.name).with_suffix("")): (data, meta)
        for data, meta in zip(members[::2], members[1::2], strict=True)
    }


def _shard(cut: Cut, field: str) -> Path:
    """Where a shard keeps a cut's recording or features."""
    shard = Path(cut.shard_origin)
    return shard.with_name(f"{field}.{shard.name.split('.')[1]}.tar")


def _has_recording(cut: Cut) -> bool:
    """Whether there are samples; cuts of a Shar speak of their recordings without them, too."""
    return bool(_shard(cut, "recording").exists() if hasattr(cut, "shard_origin") else cut.has_recording)


def _from_shard(cut: Cut, field: str) -> Any:
    """A cut's recording or features, read from its shard."""
    tar = _shard(cut, field)
    data, meta = _contents(tar)[cut.id]
    with tar.open("rb") as file:

        def read(member: tarfile.TarInfo) -> bytes:
            file.seek(member.offset_data)
            return file.read(member.size)

        manifest = deserialize_item(decode_json_line(read(meta).decode()))
        fill_shar_placeholder(manifest=manifest, data=read(data), tarpath=data.name)
    return manifest


def load_samples(cut: Cut, rate: int) -> np.ndarray:
    """A cut's samples at a rate, float32 (S,), the mean of its channels."""
    if hasattr(cut, "shard_origin"):
        cut = fastcopy(cut, recording=_from_shard(cut, "recording"))
    samples = cut.load_audio()
    if samples is None:
        raise ValueError("it has no recording")
    samples = np.ascontiguousarray(samples.mean(axis=0), dtype=np.float32)
    check_samples(samples)
    return samples if cut.sampling_rate == rate else soxr.resample(samples, cut.sampling_rate, rate)


def load_cut(cut: Cut, path: Path, config: FeatureConfig, audio: bool = False) -> Tensor:
    """A cut's features, stored or computed, (T, bins), or its samples, (S,). path: of its manifest, for messages."""
    try:
        if cut.has_features and not audio:
            return _stored(cut, path, config)
        samples = load_samples(cut, config.sample_rate)
    except InputError:
        raise
    except Exception as error:  # a missing or damaged file, by any of Lhotse's readers
        raise InputError(f"{path}: cut {cut.id} cannot be read ({_one_line(error)})") from error
    frames = int(frame_count(len(samples), config))
    require_frames(frames, len(samples), config.sample_rate, f"{path}: cut {cut.id}")
    return audio_or_features(samples, audio, config)


def _stored(cut: Cut, path: Path, config: FeatureConfig) -> Tensor:
    if (cut.num_features, cut.frame_shift) != (config.num_mel_bins, config.frame_shift_ms / 1000):
        raise InputError(
            f"{path}: cut {cut.id} has {cut.num_features} stored features every {cut.frame_shift} s; the "
            f"configuration asks for {config.num_mel_bins} every {config.frame_shift_ms / 1000:g} s"
        )
    if hasattr(cut, "shard_origin"):
        cut = fastcopy(cut, features=_from_shard(cut, "features"))
    return torch.from_numpy(np.array(cut.load_features(), dtype=np.float32))


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
    ) -> None:
        self.path = path
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
        """What `load_cut` returns."""
        return load_cut(cut, self.path, self.config, audio)

    def sample(self, cuts: Iterable[Cut]) -> Iterator[Tensor]:
        """Of each cut what batches are made of: samples (S,), or stored features (T, bins)."""
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
        targets = encoded(text, self._tokenizer, self._pass_over_unknown, f"{self.path}: cut {cut.id}")
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


class CutOrder:
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

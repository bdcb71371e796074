"""The cache of utterances: shared by processes, bounded, with the same batches as without."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from asr_data import write_corpus
from test_interrupted_training import small
from torch import Tensor

from prnn.asr import CharTokenizer, FeatureConfig, InputError, Utterance, dataset, read_manifest
from prnn.asr.augment import Augmentation
from prnn.asr.cache import Cache
from prnn.asr.data import open_data
from prnn.asr.dataset import Batch, UtteranceDataset
from prnn.asr.loader import BatchLoader
from prnn.asr.sampler import BucketSampler

TEXTS = ["ab ca", "cab", "b", "acc ab", "bb", "cc ca"]


def test_what_fits_is_kept() -> None:
    cache = Cache([4, 3, 9], (2,), 4 * 2 * (4 + 3 + 8))
    rows = [torch.randn(size, 2) for size in (4, 2, 5)]
    for number, tensor in enumerate(rows):
        assert cache.get(number) is None
        cache.put(number, tensor)
    for number in (0, 1):
        assert torch.equal(cache.get(number), rows[number])  # type: ignore[arg-type]
    assert cache.get(2) is None  # for whose most rows there is no room
    cache.put(1, torch.randn(4, 2))  # more than it may have: the place after it is another's
    assert torch.equal(cache.get(1), rows[1])  # type: ignore[arg-type]
    fresh = pickle.loads(pickle.dumps(cache))
    assert fresh.get(0) is None
    empty = Cache([4], (), 0)
    empty.put(0, torch.ones(4))
    assert empty.get(0) is None
    with pytest.raises(InputError, match=r"no room for 4000000000\.0 GB of cached utterances; take a lower cache_gb"):
        Cache([10**18], (), 10**19)


@pytest.mark.parametrize("where", ["workers", "device"])
@pytest.mark.parametrize("rate", [16000, 22050])
def test_processes_read_each_recording_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, rate: int
) -> None:
    utterances = read_manifest(write_corpus(tmp_path, "tones", TEXTS, rate))
    load = {"workers": dataset.load_features, "device": dataset.load_audio}[where]
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_APPEND | os.O_RDWR)

    def noted(utterance: Utterance, config: FeatureConfig) -> Tensor:
        os.write(log, b"x")
        return load(utterance, config)

    monkeypatch.setattr(dataset, load.__name__, noted)

    def batches(cache_bytes: int) -> list[Batch]:
        source = UtteranceDataset(
            utterances, CharTokenizer("abc "), FeatureConfig(), Augmentation(), 0, cache_bytes, audio=where == "device"
        )
        loader = BatchLoader(source, BucketSampler([u.duration for u in utterances], 2, 100.0, seed=0), workers=2)
        try:
            return [batch for _ in range(4) for batch in loader]
        finally:
            loader.close()

    cached = batches(10**8)
    os.lseek(log, 0, os.SEEK_SET)
    # Batches are prepared ahead: a process may begin with the second pass before the other has ended the first.
    assert len(TEXTS) <= len(os.read(log, 1000)) <= 2 * len(TEXTS)
    for one, other in zip(cached, batches(0), strict=True):
        assert one.texts == other.texts
        assert torch.equal(one.features, other.features)
    os.lseek(log, 0, os.SEEK_SET)
    assert len(os.read(log, 1000)) > 5 * len(TEXTS)
    os.close(log)


def test_a_cache_larger_than_the_memory(tmp_path: Path) -> None:
    """The cache of a smaller corpus takes what the corpus needs."""
    manifest = write_corpus(tmp_path, "tones", TEXTS)
    data = open_data(small(manifest, tmp_path / "out", cache_gb=1e6), 0)
    assert len(list(data.loader)) == len(data.loader)
    data.close()

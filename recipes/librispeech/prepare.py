"""LibriSpeech's manifests: Lhotse's cuts for training and validation, and prnn's own of every split."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

from lhotse import CutSet
from lhotse.cut import Cut
from lhotse.recipes import download_librispeech, prepare_librispeech

from prnn.asr.errors import InputError

SHORTEST, LONGEST = 1.0, 20.0  # seconds of a training utterance


def parts(corpus: Path, beginning: str) -> list[str]:
    """The parts of the corpus whose names begin so."""
    return sorted(path.name for path in corpus.glob(f"{beginning}-*") if path.is_dir())


def _write(cuts: Iterable[Cut], path: Path) -> None:
    lines = []
    for cut in cuts:
        (text,), (source,) = cut.supervisions, cut.recording.sources
        lines.append(json.dumps({"audio_filepath": source.source, "duration": cut.duration, "text": text.text}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def prepare(corpus: Path, folder: Path, download: str | None, jobs: int) -> None:
    """Writes the manifests into a folder, whole or not at all.

    Args:
        corpus: where LibriSpeech lies: train-*, dev-* and test-*, or a folder LibriSpeech with these.
        folder: new. It gets train.jsonl.gz, dev.jsonl.gz (cuts, shuffled) and train.jsonl, dev.jsonl, test-*.jsonl.
        download: "librispeech" or "mini_librispeech", to be fetched first; None takes what is there.
        jobs: threads that read the corpus.

    Raises:
        InputError: the corpus is not there.
    """
    if download is not None:
        download_librispeech(corpus, download)
    if (corpus / "LibriSpeech").is_dir():
        corpus = corpus / "LibriSpeech"
    corpus = corpus.absolute()
    wanted = {beginning: parts(corpus, beginning) for beginning in ("train", "dev", "test")}
    for beginning, names in wanted.items():
        if not names:
            raise InputError(f"{corpus}: there is no {beginning}-*, so it is not LibriSpeech; --download fetches that")
    for name in [name for names in wanted.values() for name in names]:
        if not any((corpus / name).rglob("*.trans.txt")):
            raise InputError(f"{corpus / name}: there is no *.trans.txt in it, so it is no part of LibriSpeech")
    manifests = prepare_librispeech(corpus, dataset_parts=[name for names in wanted.values() for name in names],
                                    num_jobs=jobs)  # fmt: skip
    cuts = {name: CutSet.from_manifests(**manifest).to_eager() for name, manifest in manifests.items()}
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for split in ("train", "dev"):
        whole = [cut for name in wanted[split] for cut in cuts[name]]
        whole.sort(key=lambda cut: cut.id)  # whatever the order in which files were found
        random.Random(0).shuffle(whole)
        kept = whole if split == "dev" else [cut for cut in whole if SHORTEST <= cut.duration <= LONGEST]
        if not kept:
            raise InputError(f"{corpus}: {', '.join(wanted[split])} have no utterance of {SHORTEST:g} to {LONGEST:g} s")
        CutSet.from_cuts(kept).to_file(partial / f"{split}.jsonl.gz")
        _write(kept, partial / f"{split}.jsonl")
        hours = sum(cut.duration for cut in kept) / 3600
        print(f"{split}: {len(kept)} of {len(whole)} utterances, {hours:.2f} hours, from {', '.join(wanted[split])}")
    for name in wanted["test"]:
        _write(sorted(cuts[name], key=lambda cut: cut.id), partial / f"{name}.jsonl")
        print(f"{name}: {len(cuts[name])} utterances")
    os.replace(partial, folder)

"""Manifests of cuts by somebody else: they open files, and run nothing."""

import gzip
import io
import json
import os
import pickle
import tarfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from asr_data import small_checkpoint
from lhotse import CutSet, Fbank, FbankConfig, NumpyFilesWriter
from lhotse.cut import MixedCut
from lhotse.shar import SharWriter
from test_cuts import cut_set, write_lines

from prnn.asr import CharTokenizer, FeatureConfig, InputError
from prnn.asr.cuts import CutDataset, CutManifest, read_cuts
from prnn.cli import main

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A cut as a manifest has it, and one with stored features under the key "stored"."""
    folder = tmp_path_factory.mktemp("plain")
    (cut,) = cut_set(folder, ["abc"])
    stored = cut.compute_and_store_features(Fbank(FbankConfig(num_mel_bins=80)), NumpyFilesWriter(folder / "features"))
    return {"recorded": cut.to_dict(), "stored": stored.drop_recording().to_dict()}


def source(kind: str, place: object) -> dict[str, Any]:
    return {"type": kind, "channels": [0], "source": place}


def recording(cut: dict[str, Any]) -> dict[str, Any]:
    found = deepcopy(cut["recording"])
    assert isinstance(found, dict)
    return found


def mixed(*cuts: dict[str, Any], **more: Any) -> dict[str, Any]:
    tracks = [
        {"cut": {**cut, "id": f"track-{number}"}, "type": cut["type"], "offset": 0.0} for number, cut in enumerate(cuts)
    ]
    return {"id": "mixed", "tracks": tracks, "type": "MixedCut", **more}


def from_command(cut: dict[str, Any], command: str) -> dict[str, Any]:
    return {**deepcopy(cut), "recording": {**recording(cut), "sources": [source("command", command)]}}


def from_pipe(cut: dict[str, Any], command: str) -> dict[str, Any]:
    return {**deepcopy(cut), "recording": {**recording(cut), "sources": [source("url", f"pipe:{command}")]}}


def reverberated(cut: dict[str, Any], command: str, rir: Any = None) -> dict[str, Any]:
    rir = rir or from_pipe(cut, command)["recording"]
    return {"name": "ReverbWithImpulseResponse", "kwargs": {"rir": rir}}


def hostile(cut: dict[str, Any], stored: dict[str, Any], command: str) -> dict[str, tuple[dict[str, Any], str]]:
    """Cuts that would run a command, or open what is no file, and what is said of each."""
    command_cut, piped = from_command(cut, command), from_pipe(cut, command)
    with_rir = {**deepcopy(cut), "recording": {**recording(cut), "transforms": [reverberated(cut, command)]}}
    rir_cut = {**deepcopy(cut), "recording": {**recording(cut), "transforms": [reverberated(cut, command, piped)]}}

    def of(name: str, **values: Any) -> dict[str, Any]:
        return {**deepcopy(cut), "recording": {**recording(cut), "transforms": [{"name": name, "kwargs": values}]}}

    def kept(**values: Any) -> dict[str, Any]:
        return {**deepcopy(stored), "features": {**deepcopy(stored["features"]), **values}}

    def opened(place: object, kind: str = "file") -> dict[str, Any]:
        return {**deepcopy(cut), "recording": {**recording(cut), "sources": [source(kind, place)]}}

    pipe = f"pipe:{command}; cat "
    no_file = "and only files are opened"
    return {
        "command": (command_cut, f"its recording is of type 'command', {no_file}"),
        "url": (piped, f"its recording is of type 'url', {no_file}"),
        "file": (opened(f"pipe:{command}"), f"it is read from 'pipe:{command[:10]}"),
        "PIPE": (
            opened("PIPE:true"),
            "it is read from 'PIPE:true', and only files are opened (a file of that name is ./P",
        ),
        "address": (opened("https://example.org/a.wav"), no_file),
        "stdin": (opened("-"), no_file),
        "number": (opened(3), "it is read from 3; that must be the name of a file"),
        "two sources": (
            {**cut, "recording": {**recording(cut), "sources": [*recording(cut)["sources"], source("url", pipe)]}},
            no_file,
        ),
        "rir": (with_rir, no_file),
        "rir that is a cut": (rir_cut, no_file),
        "rir that is no recording": (
            of("ReverbWithImpulseResponse", rir=deepcopy(stored["features"])),
            "not a manifest",
        ),
        "mixed": (mixed(cut, piped), no_file),
        "mixed in mixed": (mixed(mixed(cut, piped)), no_file),
        "mixed with rir": (mixed(cut, transforms=[reverberated(cut, command)]), no_file),
        "unknown transform": (of("System", command=command), "not a manifest of cuts, or a damaged one"),
        "pickle": (kept(storage_type="memory_raw", storage_key="gASV", storage_path=""), "stored as 'memory_raw'"),
        "kaldi": (
            kept(storage_type="kaldiio", storage_path=f"{command} |"),
            "its features are stored as 'kaldiio'; that",
        ),
        "features of an address": (kept(storage_type="lilcom_url", storage_path="https://example.org"), "'lilcom_url'"),
        "features of a pipe": (kept(storage_path=pipe), "it is read from 'pipe:"),
        "features in no folder": (kept(storage_path="", storage_key=pipe), "cannot be read"),
        "archive of a pipe": (kept(storage_type="lilcom_hdf5", storage_path=pipe), "it is read from 'pipe:"),
    }


NAMES = list(hostile({"type": "", "recording": {"sources": []}}, {"features": {}}, ""))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_run(plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """By evaluate, nor by train, of a manifest or of a Shar."""
    ran = tmp_path / "ran"
    cut, message = hostile(plain["recorded"], plain["stored"], f"touch {ran}")[name]
    manifest = write_lines(tmp_path / "cuts.jsonl.gz", [cut])
    (tmp_path / "shar").mkdir()
    write_lines(tmp_path / "shar" / "cuts.000000.jsonl.gz", [cut])
    torch.save(small_checkpoint(" abc"), tmp_path / "model.ckpt")
    good = write_lines(tmp_path / "good.jsonl.gz", [plain["recorded"]])
    train = ["train", "--output", tmp_path / "out", "--epochs", 1, "--hidden", 4, "--layers", 1, "--accelerator", "cpu"]
    for path in (manifest, tmp_path / "shar"):
        for command in (
            ["evaluate", tmp_path / "model.ckpt", path],
            [*train, "--manifest", path, "--valid", good],
            [*train, "--manifest", good, "--valid", path],
        ):
            if name == "features in no folder" and command[-1] == path and command[0] == "train":
                continue  # trained before validated
            status = main([str(word) for word in command])
            error = capsys.readouterr().err
            assert (status, error.count("\n")) == (2, 1), error
            assert error.startswith(f"prnn: {path}: ")
            if path == manifest:
                assert message in error
    assert not ran.exists()


def shar_with(folder: Path, cut: dict[str, Any], meta: dict[str, Any], data: bytes, suffix: str, field: str) -> Path:
    folder.mkdir()
    write_lines(folder / "cuts.000000.jsonl.gz", [cut])
    with tarfile.open(folder / f"{field}.000000.tar", "w") as tar:
        for name, content in ((f"{cut['id']}.{suffix}", data), (f"{cut['id']}.json", json.dumps(meta).encode())):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return folder


class Harmful:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_the_descriptions_in_a_shar_run_nothing(plain: dict[str, Any], tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    cut, command = plain["recorded"], f"touch {ran}"
    wav = Path(cut["recording"]["sources"][0]["source"]).read_bytes()
    meta = {**recording(cut), "sources": [source("shar", "")], "transforms": [reverberated(cut, command)]}
    stored = plain["stored"]
    pickled = io.BytesIO()
    np.save(pickled, np.array([Harmful(command)], dtype=object))
    for number, (whole, description, data, suffix, field, message) in enumerate(
        (
            (cut, meta, wav, "wav", "recording", "only files are opened"),
            (cut, {**meta, "transforms": []}, b"RIFF", "wav", "recording", "cannot be read"),
            (cut, plain["stored"], wav, "wav", "recording", "cannot be read"),
            (
                stored,
                {**stored["features"], "storage_type": "shar"},
                pickled.getvalue(),
                "npy",
                "features",
                "cannot be",
            ),
            (stored, stored["features"], pickle.dumps(Harmful(command)), "pkl", "features", "cannot be read"),
        )
    ):
        shar = shar_with(tmp_path / f"shar{number}", whole, description, data, suffix, field)
        dataset = CutDataset(shar, CharTokenizer("abc "), FeatureConfig())
        (found,) = CutManifest(shar)
        with pytest.raises(InputError, match=message):
            dataset.loaded(found, audio=field == "recording")
        assert not ran.exists()
    good = shar_with(tmp_path / "good", cut, {**meta, "transforms": []}, wav, "wav", "recording")
    (found,) = CutManifest(good)
    assert len(CutDataset(good, CharTokenizer("abc "), FeatureConfig()).loaded(found, audio=True)) == 6400


def test_names_of_files_reach_no_shell(plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lhotse gives those of .sph to sph2pipe, and those of .opus to ffmpeg, in a shell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LHOTSE_LEGACY_OPUS_LOADING", "1")
    cut = plain["recorded"]
    for name in ("a;touch ran;.sph", "a';touch ran;'.opus"):
        soundfile.write(tmp_path / name, np.zeros(6400), 16000, format="WAV")
        changed = {**cut, "recording": {**recording(cut), "sources": [source("file", name)]}}
        (found,) = read_cuts(write_lines(tmp_path / "cuts.jsonl.gz", [changed]))
        dataset = CutDataset(tmp_path, CharTokenizer("abc "), FeatureConfig())
        assert len(dataset.loaded(found, audio=True)) == 6400
        assert not (tmp_path / "ran").exists()


def test_what_is_no_regular_file_is_not_opened(plain: dict[str, Any], tmp_path: Path) -> None:
    """A pipe would be waited for."""
    os.mkfifo(tmp_path / "pipe.wav")
    cut = plain["recorded"]
    changed = {**cut, "recording": {**recording(cut), "sources": [source("file", str(tmp_path / "pipe.wav"))]}}
    (found,) = read_cuts(write_lines(tmp_path / "cuts.jsonl.gz", [changed]))
    with pytest.raises(InputError, match="is no regular file"):
        CutDataset(tmp_path, CharTokenizer("abc "), FeatureConfig()).loaded(found, audio=True)


def test_a_folder_named_like_a_command(plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = Path("pipe:touch ran;")
    place.mkdir()
    write_lines(place / "cuts.jsonl.gz", [plain["recorded"]])
    write_lines(place / "cuts.000000.jsonl.gz", [plain["recorded"]])
    for path in (place / "cuts.jsonl.gz", place):
        assert len(list(CutManifest(path))) == 1
    assert not Path("ran").exists()


def test_what_lhotse_makes_is_taken(plain: dict[str, Any], tmp_path: Path) -> None:
    """Transforms, mixtures, padding, and recordings in several files."""
    cuts = CutSet.from_dicts([deepcopy(plain["recorded"])]).to_eager()
    (cut,) = cuts
    rir = cut.recording.perturb_volume(0.5)
    varied = [
        cut.perturb_speed(1.1), cut.perturb_volume(0.3), cut.resample(8000), cut.reverb_rir(rir), cut.reverb_rir(),
        cut.normalize_loudness(-20), cut.pad(duration=2.0), cut.mix(cut.perturb_volume(2.0), snr=10),
        cut.append(cut.with_id("x")).reverb_rir(rir, mix_first=True), cut.clip_amplitude(gain_db=3.0),
    ]  # fmt: skip
    varied = [made.with_id(f"cut-{number}") for number, made in enumerate(varied)]
    assert any(isinstance(made, MixedCut) for made in varied)
    CutSet.from_cuts(varied).to_file(tmp_path / "varied.jsonl.gz")
    found = read_cuts(tmp_path / "varied.jsonl.gz")
    assert len(found) == len(varied)
    dataset = CutDataset(tmp_path, CharTokenizer("abc "), FeatureConfig())
    for made in found:
        if made.id not in ("cut-2", "cut-4", "cut-5", "cut-9"):  # these need scipy, torchaudio or pyloudnorm
            assert len(dataset.loaded(made, audio=True)) > 5000
    with SharWriter(str(tmp_path), fields={"recording": "wav"}) as writer:
        writer.write(found[0])
    with gzip.open(next(tmp_path.glob("cuts.*.gz"))) as file:
        assert b"shar" in file.read()

"""Lhotse's manifests and Shar, and the augmentation of recordings."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from asr_data import small_checkpoint, write_corpus
from lhotse import CutSet, Fbank, FbankConfig, MonoCut, NumpyFilesWriter, Recording, SupervisionSegment
from lhotse.cut import MultiCut
from lhotse.shar import SharWriter
from lhotse.utils import fastcopy
from test_interrupted_training import Killed, Killer, assert_same_training, killer, kills, small  # noqa: F401

from prnn.asr import CharTokenizer, FeatureConfig, InputError, InputWarning, Utterance, read_manifest
from prnn.asr.augment import Augmentation
from prnn.asr.checkpoint import read_checkpoint
from prnn.asr.cuts import (
    CutDataset,
    CutManifest,
    CutSampler,
    load_samples,
    read_cuts,
    recording_rate,
    text_of,
)
from prnn.asr.data import open_data
from prnn.asr.dataset import Position, Request, UtteranceDataset
from prnn.asr.folder import best_checkpoint
from prnn.asr.loader import BatchLoader
from prnn.asr.perturb import Perturbation, add_noise, add_room, change_speed
from prnn.asr.training import train
from prnn.cli import main

TEXTS = ["ab ca", "cab", "b", "acc ab", "ba", "c b", "abc abc", "cc", "a", "bb ca"]


def cut_set(folder: Path, texts: list[str] = TEXTS, rate: int = 16000) -> CutSet:
    cuts = []
    for index, utterance in enumerate(read_manifest(write_corpus(folder, "tones", texts, rate))):
        recording = Recording.from_file(utterance.audio, recording_id=f"r{index}")
        text = SupervisionSegment(f"s{index}", f"r{index}", 0, recording.duration, text=utterance.text)
        cuts.append(MonoCut(f"cut-{index}", 0, recording.duration, 0, recording=recording, supervisions=[text]))
    return CutSet.from_cuts(cuts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """data/: recordings and tones.jsonl; cuts.jsonl.gz; shar/."""
    folder = tmp_path_factory.mktemp("cuts")
    cuts = cut_set(folder / "data")
    cuts.to_file(folder / "cuts.jsonl.gz")
    (folder / "shar").mkdir()
    with SharWriter(str(folder / "shar"), fields={"recording": "flac"}, shard_size=4) as writer:
        for cut in cuts:
            writer.write(cut)
    return folder


KINDS = ["cuts.jsonl.gz", "shar"]


def order(path: Path, size: int = 3, seed: int = 0) -> CutSampler:
    return CutSampler(CutManifest(path), size, 100.0, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_has_every_cut_once(folder: Path, kind: str) -> None:
    batches = order(folder / kind)
    assert (batches.cuts, len(batches.sampled)) == (10, 10)
    assert sorted(batches.characters) == [" ", "a", "b", "c"]
    epochs = [[[cut.id for cut in batch] for batch in batches.epoch(number)] for number in range(3)]
    for epoch in epochs:
        assert sorted(cut for batch in epoch for cut in batch) == sorted(f"cut-{index}" for index in range(10))
        assert max(map(len, epoch)) <= 3
    assert epochs[0] != epochs[1]
    assert epochs[0] == [[cut.id for cut in batch] for batch in order(folder / kind).epoch(0)]
    assert epochs[0] != [[cut.id for cut in batch] for batch in order(folder / kind, seed=1).epoch(0)]
    assert len(epochs[0]) == len(batches)


@pytest.mark.parametrize("kind", KINDS)
def test_processes_share_an_epoch(folder: Path, kind: str) -> None:
    batches = order(folder / kind)
    shares = [[[cut.id for cut in batch] for batch in batches.epoch(1, process, 2)] for process in range(2)]
    assert len(shares[0]) == len(shares[1])
    assert {cut for share in shares for batch in share for cut in batch} == {f"cut-{index}" for index in range(10)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_loader_goes_on_after_any_batch(folder: Path, kind: str) -> None:
    def loader(workers: int = 0) -> BatchLoader:
        dataset = CutDataset(folder / kind, CharTokenizer("abc "), FeatureConfig(), Augmentation(), 3)
        return BatchLoader(dataset, order(folder / kind), workers)

    straight = loader(1)
    batches = [batch for _ in range(3) for batch in straight]
    assert len(batches) == 3 * len(straight)
    for done in (0, 1, len(straight), 2 * len(straight) - 1):
        resumed = loader()
        resumed.start(batches[done - 1].after if done else Position(0, 0), done)
        rest = [batch for _ in range(3) for batch in resumed][: len(batches) - done]
        assert len(rest) == len(batches) - done
        for batch, other in zip(batches[done:], rest, strict=True):
            assert (batch.texts, batch.after) == (other.texts, other.after)
            assert torch.equal(batch.features, other.features)


@pytest.mark.parametrize("kind", KINDS)
def test_cuts_have_the_features_of_a_manifest(folder: Path, kind: str) -> None:
    """Lhotse's Shar here holds FLAC of 16 bits, as the WAV files are."""
    utterances = read_manifest(folder / "data" / "tones.jsonl")
    expected = UtteranceDataset(utterances, CharTokenizer("abc "), FeatureConfig())
    dataset = CutDataset(folder / kind, CharTokenizer("abc "), FeatureConfig())
    for index, cut in enumerate(CutManifest(folder / kind)):
        example = dataset.example(cut, 0)
        assert torch.equal(example.features, expected.features(index))
        assert example.text == TEXTS[index]


def test_a_part_of_a_recording_at_another_rate(tmp_path: Path) -> None:
    cut = cut_set(tmp_path, ["abcabc"], rate=44100)[0].truncate(offset=0.16, duration=0.24)
    samples = load_samples(cut, tmp_path, 16000)
    assert len(samples) == 3840
    spectrum = np.abs(np.fft.rfft(samples[:1280]))
    assert np.argmax(spectrum) * 12.5 == pytest.approx(900, abs=13)  # the tone of b


def test_the_channels_of_cuts(tmp_path: Path) -> None:
    """A cut of one channel says which; of one with several, the channel is by its number in the recording."""
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, (16000, 3)).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", samples, 16000, subtype="FLOAT")
    whole = Recording.from_file(tmp_path / "a.wav").to_cut()
    assert isinstance(whole, MultiCut)
    for channel in (None, 0, 2):
        for cut, found in ((whole, samples), (whole.with_channels([0, 2]), samples[:, [0, 2]])):
            expected = found.mean(axis=1) if channel is None else samples[:, channel]
            np.testing.assert_allclose(load_samples(cut, tmp_path, 16000, channel), expected, atol=1e-6)
        mono = whole.with_channels(1)
        assert np.array_equal(load_samples(mono, tmp_path, 16000, channel), samples[:, 1])
    with pytest.raises(InputError, match="it has the channels 0, 2, and no channel 1"):
        load_samples(whole.with_channels([0, 2]), tmp_path, 16000, 1)
    soundfile.write(tmp_path / "a.wav", samples[:, :1] * [1, -1], 16000, subtype="FLOAT")
    opposite = Recording.from_file(tmp_path / "a.wav").to_cut()
    with pytest.warns(InputWarning, match="cut .*: its channels cancel one another out"):
        load_samples(opposite, tmp_path, 16000)
    soundfile.write(tmp_path / "a.wav", samples[:, 0] * 32768, 16000, subtype="FLOAT")
    loud = Recording.from_file(tmp_path / "a.wav").to_cut()
    with pytest.raises(ValueError, match="floating-point samples are from -1 to 1"):
        load_samples(loud, tmp_path, 16000)


def test_one_channel_in_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The options of train and evaluate, of both kinds of manifest."""
    texts = ["ab", "ca", "b", "c"]
    manifest = write_corpus(tmp_path / "data", "tones", texts)
    for number in range(len(texts)):
        path = manifest.parent / f"tones-{number}.wav"
        samples, rate = soundfile.read(path, dtype="float32")
        soundfile.write(path, np.stack([samples, -samples], axis=1), rate)
    cuts = []
    for number, utterance in enumerate(read_manifest(manifest)):
        cut = Recording.from_file(utterance.audio).to_cut().with_id(str(number))
        cut.supervisions = [SupervisionSegment(str(number), cut.recording_id, 0, cut.duration, text=utterance.text)]
        cuts.append(cut)
    CutSet.from_cuts(cuts).to_file(tmp_path / "cuts.jsonl.gz")
    for path in (manifest, tmp_path / "cuts.jsonl.gz"):
        for channel in (0, 1):
            options = replace(small(path, tmp_path / f"{path.stem}-{channel}", epochs=1), channel=channel)
            data = open_data(options, 0)
            batches = [*data.loader, *data.valid_loader]
            data.close()
            assert batches
            assert all(batch.features.std() > 1 for batch in batches)
        command = ["evaluate", str(train(options, progress=False)), str(path)]
        capsys.readouterr()
        assert main([*command, "--channel", "1"]) == 0
        assert capsys.readouterr().err == ""
        assert main(command) == 0
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 4
        assert all("cancel one another out" in line for line in lines[:3])
        assert lines[3] == "prnn: there are more warnings like these, which are not shown"


@pytest.mark.parametrize("kind", KINDS)
def test_trained_on_cuts_and_killed(
    killer: Killer,  # noqa: F811
    folder: Path,
    tmp_path: Path,
    kind: str,
) -> None:
    straight = small(folder / kind, tmp_path / "straight", epochs=2, batch_size=3, checkpoint_every=2)
    killer.arm(None)
    train(straight, progress=False)
    killed = small(folder / kind, tmp_path / "killed", epochs=2, batch_size=3, checkpoint_every=2)
    assert kills(killer, killed, [*range(7, killer.points + 1, 9), None]) > 1
    assert_same_training(straight.output, killed.output)


@pytest.mark.parametrize(
    "change",
    [{"type": "whisper-fbank"}, {"type": "kaldi-mfcc"}, {"sampling_rate": 8000}, {"frame_shift": 0.0125}],
    ids=str,
)
def test_stored_features_of_another_front_end(folder: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    """They have as many bins as those of the configuration. A track of silence has none."""
    (cut, *_) = CutSet.from_file(folder / "cuts.jsonl.gz").to_eager()
    cut = cut.compute_and_store_features(Fbank(FbankConfig(num_mel_bins=80)), NumpyFilesWriter(tmp_path))
    dataset = CutDataset(tmp_path, CharTokenizer("abc "), FeatureConfig())
    for found in (cut, cut.pad(duration=1.0)):
        assert dataset.loaded(found, audio=False).shape[1] == 80
    cut.features = fastcopy(cut.features, **change)
    for found in (cut, cut.pad(duration=1.0)):
        with pytest.raises(
            InputError, match=r"those of the configuration are 80 of an fbank, every 0.01 s at 16000 Hz"
        ):
            dataset.loaded(found, audio=False)


def test_stored_features_of_another_rate_than_the_recording(folder: Path, tmp_path: Path) -> None:
    """The recording is resampled from its own rate."""
    (cut, *_) = CutSet.from_file(folder / "cuts.jsonl.gz").to_eager()
    samples = load_samples(cut, tmp_path, 16000)
    cut = cut.compute_and_store_features(Fbank(FbankConfig(num_mel_bins=80)), NumpyFilesWriter(tmp_path))
    cut.features = fastcopy(cut.features, sampling_rate=8000)
    assert np.array_equal(load_samples(cut, tmp_path, 16000), samples)
    assert recording_rate(cut) == recording_rate(cut.pad(duration=1.0, direction="left")) == 16000


def test_stored_features(folder: Path, tmp_path: Path) -> None:
    extractor = Fbank(FbankConfig(num_mel_bins=80))
    cuts = CutSet.from_file(folder / "cuts.jsonl.gz").to_eager()
    stored = cuts.compute_and_store_features(extractor, str(tmp_path / "features"), progress_bar=False)
    dataset = CutDataset(tmp_path, CharTokenizer("abc "), FeatureConfig())
    for cut, other in zip(cuts, stored, strict=True):
        features = dataset.loaded(other, audio=False)
        torch.testing.assert_close(features, dataset.loaded(cut, audio=False), atol=0.02, rtol=0)
    narrow = CutDataset(tmp_path, CharTokenizer("abc "), FeatureConfig(num_mel_bins=40))
    with pytest.raises(
        InputError, match=r"cut cut-0 has 80 stored features of type 'kaldi-fbank', every 0.01 s at 16000"
    ):
        narrow.loaded(stored[0], audio=False)


@pytest.mark.parametrize("where", ["workers", "device"])
def test_trained_on_stored_features(folder: Path, tmp_path: Path, where: str) -> None:
    """Without recordings, if they are those of the configuration; with these, others do not matter on a device."""
    bins = {"workers": 80, "device": 40}[where]
    extractor = Fbank(FbankConfig(num_mel_bins=bins))
    cuts = CutSet.from_file(folder / "cuts.jsonl.gz").to_eager()
    stored = cuts.compute_and_store_features(extractor, str(tmp_path / "features"), progress_bar=False)
    if where == "workers":
        stored = stored.map(lambda cut: cut.drop_recording())
    stored.to_file(tmp_path / "stored.jsonl.gz")
    manifest = tmp_path / "stored.jsonl.gz"
    shar = tmp_path / "shar"
    shar.mkdir()
    with SharWriter(str(shar), fields={"features": "numpy"}) as writer:
        for cut in stored:
            writer.write(cut)
    valid = shar if where == "workers" else manifest
    options = replace(small(manifest, tmp_path / "out"), valid=valid, features_on=where, pictures=1)
    train(options, progress=False)
    mean = read_checkpoint(best_checkpoint(options.output))["state_dict"]["model.encoder.feature_mean"]
    expected = torch.cat([CutDataset(manifest, CharTokenizer("abc "), FeatureConfig()).loaded(c, False) for c in cuts])
    torch.testing.assert_close(mean, expected.mean(dim=0), atol=0.02, rtol=0)


def test_cuts_of_a_lower_sample_rate_are_reported(tmp_path: Path) -> None:
    """Unless it is their stored features that are trained on."""
    cuts = cut_set(tmp_path / "data", rate=8000)
    stored = cuts.compute_and_store_features(
        Fbank(FbankConfig(sampling_rate=8000, num_mel_bins=80, high_freq=-400)),
        str(tmp_path / "features"),
        progress_bar=False,
    )
    for number, some in enumerate((cuts, stored)):
        manifest = tmp_path / f"{number}.jsonl.gz"
        some.to_file(manifest)
        options = small(manifest, tmp_path / "out")
        data = open_data(options, 0)
        report = data.report_rates(manifest, options.features)
        data.close()
        assert report.startswith(f"{manifest}: 10 of 10 recordings looked at have") is (some is cuts)
        assert ("(10 of 8000 Hz)" in report) is (some is cuts)


def write_lines(path: Path, lines: list[Any]) -> Path:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


def hostile(folder: Path, tmp_path: Path) -> list[tuple[Path, str]]:
    """Manifests, and what is said of each."""
    (cut, *_) = (entry for entry in CutSet.from_file(folder / "cuts.jsonl.gz").to_dicts())
    bare = {name: value for name, value in cut.items() if name != "recording"}
    silent = {**cut, "supervisions": []}
    gone = json.loads(json.dumps(cut))
    gone["recording"]["sources"][0]["source"] = str(tmp_path / "gone.wav")
    whole = (folder / "cuts.jsonl.gz").read_bytes()
    (tmp_path / "half.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.jsonl.gz").write_text("no gzip")
    (tmp_path / "empty").mkdir()
    shar = tmp_path / "shar"
    shar.mkdir()
    for path in (folder / "shar").iterdir():
        (shar / path.name).write_bytes(path.read_bytes())
    (shar / "recording.000000.tar").write_bytes((shar / "recording.000000.tar").read_bytes()[:3000])
    damaged = "not a manifest of cuts, or a damaged one"
    return [
        (tmp_path / "none.jsonl.gz", "no such file"),
        (tmp_path / "half.jsonl.gz", damaged),
        (tmp_path / "text.jsonl.gz", damaged),
        (tmp_path / "empty", "a folder without cuts.*.jsonl.gz"),
        (write_lines(tmp_path / "nothing.jsonl.gz", []), "the manifest has no cuts"),
        (write_lines(tmp_path / "numbers.jsonl.gz", [1, 2]), damaged),
        (write_lines(tmp_path / "nemo.jsonl.gz", [{"audio_filepath": "a", "text": "b"}]), "has NeMo's lines, which"),
        (write_lines(tmp_path / "id.jsonl.gz", [{**cut, "id": ["a"] * 99}]), "holds a cut whose id is ['a', 'a', "),
        (write_lines(tmp_path / "bare.jsonl.gz", [bare]), "cut cut-0 has neither a recording nor features"),
        (write_lines(tmp_path / "silent.jsonl.gz", [silent]), "cut cut-0 has no supervision with a text, which may be"),
        (write_lines(tmp_path / "gone.jsonl.gz", [gone]), "cut cut-0 cannot be read"),
        (shar / "cuts.000000.jsonl.gz", f"a part of a Lhotse Shar; give the folder, {shar}"),
        (shar, "cannot be read"),
    ]


def spoken(*segments: tuple[float, float, str, str | None], duration: float = 10.0) -> MonoCut:
    """A cut with supervisions: start and end in it, text, speaker."""
    supervisions = [
        SupervisionSegment(f"s{number}", "r", start, end - start, text=text, speaker=speaker)
        for number, (start, end, text, speaker) in enumerate(segments)
    ]
    return MonoCut("cut", 5.0, duration, 0, supervisions=supervisions)


def test_the_text_of_a_cut(tmp_path: Path) -> None:
    """In the order of time, whatever that of the list."""
    assert text_of(spoken((4, 6, " b  c", "x"), (0, 2, "a", "x"), (2, 4, "  ", "y")), tmp_path) == "a b c"
    assert text_of(spoken((0, 4, "a", "x"), (3.999, 9, "b", "y")), tmp_path) == "a b"
    assert text_of(spoken((0, 4, "a", None), (3, 9, "b", "y"), (5, 10.001, "c", "y")), tmp_path) == "a b c"
    for start, end in ((-0.01, 3), (9, 10.01), (-20, -10), (11, 12)):
        message = f"cut cut lasts 10 s, and its supervision s1 is from {start:g} to {end:g} s: only a part of its text"
        with pytest.raises(InputError, match=message):
            text_of(spoken((3, 4, "a", "x"), (start, end, "b", "x")), tmp_path)
        assert text_of(spoken((3, 4, "a", "x"), (start, end, " ", "x")), tmp_path) == "a"
    for start, end in ((2, 3), (3.9, 9), (1.001, 4)):
        with pytest.raises(InputError, match="two speakers at once, s1 and s0, whose words are in no order"):
            text_of(spoken((start, end, "b", "y"), (1, 4, "a", "x")), tmp_path)


def test_windows_with_the_text_of_the_whole_cut_are_refused(tmp_path: Path) -> None:
    """cut_into_windows leaves every window the whole supervision. The same of a Shar."""
    cuts = cut_set(tmp_path / "data", ["abc ab cab ab"])
    windows = cuts.cut_into_windows(0.5)
    windows.to_file(tmp_path / "windows.jsonl.gz")
    (tmp_path / "shar").mkdir()
    with SharWriter(str(tmp_path / "shar"), fields={"recording": "wav"}) as writer:
        for cut in CutSet.from_file(tmp_path / "windows.jsonl.gz"):
            writer.write(cut)
    for name in ("windows.jsonl.gz", "shar"):
        for read in (read_cuts, lambda path: order(path)):
            with pytest.raises(InputError, match="only a part of its text is in the cut"):
                read(tmp_path / name)


def test_cuts_of_a_shar_with_one_id(tmp_path: Path) -> None:
    """Each has its own recording, in any order of the shards."""
    texts = ["a", "ab", "abc", "abca", "abcab"]
    cuts = [fastcopy(cut, id="same") for cut in cut_set(tmp_path / "data", texts)]
    (tmp_path / "shar").mkdir()
    with SharWriter(str(tmp_path / "shar"), fields={"recording": "wav"}, shard_size=3) as writer:
        for cut in cuts:
            writer.write(cut)
    dataset = CutDataset(tmp_path / "shar", CharTokenizer("abc "), FeatureConfig())
    for seed in (None, 0, 1):
        found = list(CutManifest(tmp_path / "shar").cuts(seed))
        assert len(found) == 5
        for cut in found:
            assert len(dataset.loaded(cut, audio=True)) == 1280 * (len(text_of(cut, tmp_path)) + 2)


def test_evaluated_and_spelt_as_a_manifest(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """prnn evaluate and prnn tokenizer take what prnn train takes. Times count from the recording's beginning."""
    torch.save(small_checkpoint(" abc"), tmp_path / "model.ckpt")
    parts = CutSet.from_cuts(
        fastcopy(part, supervisions=[part.supervisions[0].trim(part.duration)])
        for cut in CutSet.from_file(folder / "cuts.jsonl.gz").to_eager()
        for part in [cut.truncate(offset=0.08, duration=cut.duration - 0.08)]
    )
    parts.to_file(tmp_path / "parts.jsonl.gz")
    entries = [
        {"audio_filepath": str(folder / "data" / f"tones-{number}.wav"), "duration": cut.duration, "offset": 0.08,
         "text": text} for number, (cut, text) in enumerate(zip(parts, TEXTS, strict=True))
    ]  # fmt: skip
    (tmp_path / "parts.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    whole, shards, files = folder / "cuts.jsonl.gz", folder / "shar", folder / "data" / "tones.jsonl"
    for cuts, manifest in ((whole, files), (shards, files), (tmp_path / "parts.jsonl.gz", tmp_path / "parts.jsonl")):
        results = []
        for path in (manifest, cuts):
            out = tmp_path / "out.jsonl"
            assert main(["evaluate", str(tmp_path / "model.ckpt"), str(path), "--output", str(out)]) == 0
            assert main(["tokenizer", "--manifest", str(path), "--vocab", "8", "--out", str(tmp_path / "p.model")]) == 0
            found = [json.loads(line) for line in out.read_text().splitlines()]
            assert [entry["text"] for entry in found] == TEXTS
            names = [Path(entry.pop("audio_filepath")).stem for entry in found]
            assert names == [f"r{number}" if path == shards else f"tones-{number}" for number in range(len(TEXTS))]
            results.append((found, (tmp_path / "p.model").read_bytes(), capsys.readouterr()))
        assert results[0] == results[1]


def test_cuts_that_cannot_be_used(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = folder / "cuts.jsonl.gz"
    for path, message in hostile(folder, tmp_path):
        for train_, valid in ((path, good), (good, path)):
            if train_ == good and message == "cannot be read":
                continue
            arguments = ["train", "--manifest", train_, "--valid", valid, "--output", tmp_path / "out", "--epochs", 1]
            arguments += ["--hidden", 4, "--layers", 1, "--accelerator", "cpu", "--restart", "--pictures", 0]
            status = main([str(argument) for argument in arguments])
            error = capsys.readouterr().err
            assert (status, error.count("\n")) == (2, 1), (path, error)
            assert error.startswith(f"prnn: {path}: "), error
            assert message in error


# Recordings changed


def tone(hertz: float, seconds: float = 1.0) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(round(16000 * seconds)) / 16000)).astype(np.float32)


def brightest(samples: np.ndarray) -> float:
    return float(np.abs(np.fft.rfft(samples * np.hanning(len(samples)))).argmax() * 16000 / len(samples))


@pytest.mark.parametrize("speed", [0.9, 1.0, 1.1])
def test_speed(speed: float) -> None:
    changed = change_speed(tone(1000), speed, 16000)
    assert len(changed) == pytest.approx(16000 / speed, abs=2)
    assert brightest(changed) == pytest.approx(1000 * speed, abs=2)


@pytest.mark.parametrize("snr", [-5.0, 20.0])
def test_noise_is_so_many_decibels_lower(snr: float) -> None:
    noise = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    samples = tone(300)
    added = add_noise(samples, noise, snr) - samples
    assert 10 * np.log10(np.mean(samples**2) / np.mean(added**2)) == pytest.approx(snr, abs=0.01)
    assert np.array_equal(add_noise(samples, np.zeros(10, np.float32), snr), samples)


def test_a_room() -> None:
    """An echo, and nothing moves: the direct sound stays where it was."""
    response = np.zeros(3000, np.float32)
    response[100], response[1100] = 1.0, 0.5
    samples = np.zeros(8000, np.float32)
    samples[2000] = 1.0
    heard = add_room(samples, response)
    assert len(heard) == len(samples)
    assert np.flatnonzero(np.abs(heard) > 1e-3).tolist() == [2000, 3000]
    assert heard[3000] / heard[2000] == pytest.approx(0.5, abs=1e-5)
    assert np.mean(heard**2) == pytest.approx(np.mean(samples**2), rel=1e-4)


@pytest.fixture
def folders(tmp_path: Path) -> Augmentation:
    rng = np.random.default_rng(0)
    for name, rate, count in (("noise/a/babble.flac", 16000, 40000), ("noise/short.wav", 8000, 500)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(tmp_path / name, 0.1 * rng.standard_normal(count), rate)
    (tmp_path / "rooms").mkdir()
    soundfile.write(tmp_path / "rooms" / "hall.wav", np.exp(-np.arange(8000) / 800) * rng.standard_normal(8000), 16000)
    (tmp_path / "noise" / "notes.txt").write_text("no recording")
    return Augmentation(
        0, 0, 0, 0, 0, speeds=(0.9, 1.1), noise=tmp_path / "noise", noise_share=1.0,
        reverberation=tmp_path / "rooms", reverberation_share=0.5,
    )  # fmt: skip


@pytest.mark.parametrize("audio", [False, True])
def test_a_short_recording_keeps_its_speed(tmp_path: Path, audio: bool) -> None:
    """One that at another speed would have no frame."""
    soundfile.write(tmp_path / "short.wav", tone(500)[:80], 16000)
    soundfile.write(tmp_path / "long.wav", tone(500)[:160], 16000)
    tokenizer, config, augmentation = CharTokenizer("a"), FeatureConfig(), Augmentation(0, 0, 0, 0, 0, speeds=(2.0,))
    utterances, cuts = [], []
    for name, seconds in (("short", 0.005), ("long", 0.01)):
        utterances.append(Utterance(tmp_path / f"{name}.wav", seconds, "a"))
        text = SupervisionSegment(name, name, 0, seconds, text="a")
        cuts.append(Recording.from_file(tmp_path / f"{name}.wav").to_cut())
        cuts[-1].supervisions = [text]
    manifest = UtteranceDataset(utterances, tokenizer, config, augmentation, audio=audio)
    of_cuts = CutDataset(tmp_path, tokenizer, config, augmentation, audio=audio)
    for dataset, items in ((manifest, [0, 1]), (of_cuts, cuts)):
        batch = dataset.batch(Request(items, Position(0, 1)))  # type: ignore[attr-defined]
        assert batch.feature_lengths.tolist() == ([80, 80] if audio else [1, 1])


def test_recordings_are_changed_as_the_seed_says(folders: Augmentation, folder: Path) -> None:
    perturbation = Perturbation(folders, 16000)
    changed = [perturbation(tone(500), np.random.default_rng(seed)) for seed in range(20)]
    assert {len(samples) for samples in changed} == {round(16000 / 0.9), round(16000 / 1.1)}
    again = [perturbation(tone(500), np.random.default_rng(seed)) for seed in range(20)]
    assert all(np.array_equal(one, two) for one, two in zip(changed, again, strict=True))
    assert len({samples.tobytes() for samples in changed}) == 20
    assert all(samples.dtype == np.float32 for samples in changed)

    utterances = read_manifest(folder / "data" / "tones.jsonl")
    tokenizer, config = CharTokenizer("abc "), FeatureConfig()
    for audio in (False, True):
        manifest = UtteranceDataset(utterances, tokenizer, config, folders, 3, 10**8, audio)
        cuts = CutDataset(folder / "cuts.jsonl.gz", tokenizer, config, folders, 3, audio)
        first = list(CutManifest(folder / "cuts.jsonl.gz"))[:2]
        for dataset, items in ((manifest, [0, 1]), (cuts, first)):
            epochs = [dataset.batch(Request(items, Position(epoch, 1))) for epoch in (0, 1, 0)]  # type: ignore[attr-defined]
            assert epochs[0].audio == audio
            assert torch.equal(epochs[0].features, epochs[2].features)
            assert epochs[0].features.shape != epochs[1].features.shape or not torch.equal(
                epochs[0].features, epochs[1].features
            )


def test_folders_without_recordings(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none: no such folder, from which noise was to come"):
        Perturbation(Augmentation(noise=tmp_path / "none"), 16000)
    with pytest.raises(InputError, match=r"there are no recordings in it, from which reverberation was to come"):
        Perturbation(Augmentation(reverberation=tmp_path), 16000)
    (tmp_path / "bad.wav").write_text("no recording")
    with pytest.raises(InputError, match=r"bad.wav: not a recording that libsndfile can read"):
        Perturbation(Augmentation(noise=tmp_path, noise_share=1.0), 16000)(tone(100), np.random.default_rng(0))

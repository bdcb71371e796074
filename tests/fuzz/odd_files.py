"""Cuts, Shar, configurations and containers that are wrong or hostile, and systems that lack something."""

from __future__ import annotations

import gzip
import io
import json
import resource
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import yaml

from fuzz.case import Case, Finding
from fuzz.commands import copy_training, materials, run_command, train_arguments, workplace
from fuzz.mutations import junk, mutated_bytes, mutated_tree

TRAINING = 0.1  # of the cases that may train
STORAGE = ("numpy_files", "lilcom_files", "memory_raw", "kaldiio", "lilcom_url", "lilcom_hdf5")
CONTAINERS = (
    ("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "IMA_ADPCM"), ("WAVEX", "PCM_24"), ("RF64", "PCM_16"),
    ("W64", "PCM_16"), ("AIFF", "PCM_16"), ("AU", "PCM_16"), ("CAF", "PCM_16"), ("NIST", "PCM_16"), ("VOC", "PCM_16"),
    ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III"), ("MAT5", "PCM_16"), ("SVX", "PCM_16"),
    ("NIST", "ULAW"), ("WAV", "GSM610"), ("AU", "G721_32"), ("AIFF", "DWVW_16"), ("CAF", "ALAC_16"), ("OGG", "OPUS"),
)  # fmt: skip


def cut_of(number: int = 0) -> dict[str, Any]:
    """A cut of a recording of the materials, as a manifest has it."""
    path = materials() / f"tones-{number}.wav"
    info = soundfile.info(path)
    recording = {
        "id": f"r{number}", "sources": [{"type": "file", "channels": [0], "source": str(path)}],
        "sampling_rate": info.samplerate, "num_samples": info.frames, "duration": info.duration, "channel_ids": [0],
    }  # fmt: skip
    said = {
        "id": f"s{number}", "recording_id": f"r{number}", "start": 0.0, "duration": info.duration, "channel": 0,
        "text": "ab",
    }  # fmt: skip
    return {
        "id": f"c{number}", "start": 0.0, "duration": info.duration, "channel": 0, "supervisions": [said],
        "recording": recording, "type": "MonoCut",
    }  # fmt: skip


def hostile(case: Case, cut: dict[str, Any], ran: Path) -> str:
    """Puts into a cut what would run a command if it were opened."""
    random, command = case.random, f"pipe:touch {ran}"
    source = random.choice(
        (
            {"type": "command", "channels": [0], "source": f"touch {ran}"},
            {"type": random.choice(("url", "file", "memory", "shar")), "channels": [0], "source": command},
            {"type": "file", "channels": [0], "source": f"a;touch {ran};.sph"},
        )
    )
    recording = {**cut["recording"], "sources": [source]}
    how = random.choice(("recording", "reverb", "mixed", "mixed in mixed", "features", "custom"))
    if how == "recording":
        cut["recording"] = recording
    elif how == "reverb":
        cut["recording"]["transforms"] = [{"name": "ReverbWithImpulseResponse", "kwargs": {"rir": recording}}]
    elif how == "features":
        cut["features"] = {
            "type": "kaldi-fbank", "num_frames": 10, "num_features": 80, "frame_shift": 0.01, "sampling_rate": 16000,
            "start": 0, "duration": 0.1, "channels": 0, "recording_id": "r",
            "storage_key": random.choice(("a", command)), "storage_type": random.choice(STORAGE),
            "storage_path": random.choice((command, f"touch {ran} |", "")),
        }  # fmt: skip
    elif how == "custom":
        cut["custom"] = {"in_shard": [command, 0], "shard_origin": command, "target": recording}
    else:
        inner = {**cut, "recording": recording}
        for _ in range(1 if how == "mixed" else 2):
            inner = {"id": "m", "type": "MixedCut", "tracks": [{"cut": inner, "type": inner["type"], "offset": 0.0}]}
        cut.clear()
        cut.update(inner)
    return how


def shar(folder: Path, cuts: list[dict[str, Any]], about: list[str], case: Case) -> None:
    """Writes cuts as one shard, a part of it changed perhaps."""
    folder.mkdir()
    lines, tar = [], io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for cut in cuts:
            recording = cut.get("recording")
            lines.append(json.dumps(cut))
            if not isinstance(recording, dict):
                continue
            meta = {**recording, "sources": [{"type": "shar", "channels": [0], "source": ""}]}
            for name, data in (
                ("wav", (materials() / "tones-0.wav").read_bytes()),
                ("json", json.dumps(meta).encode()),
            ):
                member = tarfile.TarInfo(f"{cut.get('id')}.{name}"[:90].replace("\0", ""))
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    contents = {
        "cuts.000000.jsonl.gz": gzip.compress("\n".join(lines).encode()),
        "recording.000000.tar": tar.getvalue(),
    }
    if case.random.random() < 0.3:
        name = case.random.choice(list(contents))
        contents[name] = mutated_bytes(case.random, contents[name])
        about.append(f"{name} changed")
    for name, data in contents.items():
        (folder / name).write_bytes(data)


def run_cuts(case: Case) -> None:
    """A manifest of cuts, or a Shar, with wrong values, or by somebody who wants a command to be run."""
    random = case.random
    with workplace() as place:
        ran = Path(place) / "ran"
        cuts = [cut_of(number) for number in range(random.randint(1, 3))]
        about = []
        if random.random() < 0.5:
            about.append(hostile(case, random.choice(cuts), ran))
        for _ in range(random.choice((0, 1, 1, 2))):
            number = random.randrange(len(cuts))
            cuts[number], what = mutated_tree(random, cuts[number])
            about.append(what)
        if random.random() < 0.1:
            cuts.insert(random.randrange(len(cuts) + 1), junk(random))
        if random.random() < 0.3:
            path = Path(place) / "shar"
            try:
                shar(path, [cut for cut in cuts if isinstance(cut, dict)], about, case)
            except (ValueError, TypeError, RecursionError):  # what JSON or a tar file cannot hold
                return
        else:
            path = Path(place) / "cuts.jsonl.gz"
            try:
                text = "\n".join(json.dumps(cut) for cut in cuts)
            except (ValueError, TypeError, RecursionError):
                return
            contents = gzip.compress(text.encode())
            path.write_bytes(mutated_bytes(random, contents) if random.random() < 0.1 else contents)
        if random.random() < TRAINING:
            arguments = train_arguments(Path(place) / "output")
            arguments[arguments.index(random.choice(("--manifest", "--valid"))) + 1] = str(path)
            run_command(case, arguments, "; ".join(about))
        else:
            run_command(case, ["evaluate", str(materials() / "model.ckpt"), str(path)], "; ".join(about))
        if ran.exists():
            raise Finding(f"a manifest has run a command: {'; '.join(about)}")


def run_configuration(case: Case) -> None:
    """A configuration in YAML."""
    random = case.random
    tree: dict[str, Any] = {
        "manifest": str(materials() / "tones.jsonl"), "valid": str(materials() / "tones.jsonl"), "epochs": 1,
        "batch_size": 3, "lr": 0.001, "model": {"encoder_hidden": 8, "encoder_layers": 1, "predictor_hidden": 4},
        "features": {"num_mel_bins": 40}, "augmentation": {"speeds": [0.9, 1.0], "noise": None},
    }  # fmt: skip
    about = "as it is"
    if random.random() < 0.7:
        tree, about = mutated_tree(random, tree)
    try:
        text = yaml.safe_dump(tree, allow_unicode=random.random() < 0.5)
    except (yaml.YAMLError, RecursionError):
        return
    if random.random() < 0.3:
        lines = ["a0: &a0 [1, 2, 3]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))]
        extra = (
            "\n".join(lines),
            "model: &m {x: *m}",
            "epochs: 2",
            "? [1, 2]\n: 3",
            "<<: {lr: 1}",
            "a: !!python/object:os.x {}",
        )
        text += random.choice(extra) + "\n"
    contents = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.3:
        contents = mutated_bytes(random, contents)
    with workplace() as place:
        path = Path(place) / "a.yaml"
        path.write_bytes(contents)
        sizes = train_arguments(Path(place) / "output")[5:]
        if random.random() > TRAINING:  # the manifest is not there, which is said after all options have been read
            sizes += ["--manifest", str(Path(place) / "none.jsonl")]
        run_command(case, ["train", "--config", str(path), *sizes], f"{about}\n{contents[-300:]!a}")


def run_container(case: Case) -> None:
    """A recording in some container, of some channels, that is cut, doubled, or has other sizes in its header."""
    random = case.random
    kind, subtype = random.choice(CONTAINERS)
    channels, frames = random.choice((1, 1, 2, 2, 3)), random.choice((100, 4000, 40_000))
    samples = 0.1 * np.random.default_rng(random.getrandbits(32)).standard_normal((frames, channels))
    if channels > 1 and random.random() < 0.5:
        samples[:, 1] = -samples[:, 0]
    if subtype == "FLOAT":
        samples *= random.choice((1, 1, 20, 32768))
    file = io.BytesIO()
    try:
        soundfile.write(file, samples, 16000, subtype, format=kind)
    except (soundfile.SoundFileError, ValueError):  # a container that does not take so many channels
        return
    whole = file.getvalue()
    how = random.choice(("whole", "cut", "doubled", "tail", "header", "zeros"))
    place = random.randrange(len(whole))
    data = {
        "whole": whole,
        "cut": whole[:place],
        "doubled": whole + whole[: random.choice((place, len(whole)))],
        "tail": whole + bytes(random.getrandbits(8) for _ in range(random.randrange(3000))),
        "header": mutated_bytes(random, whole[:100]) + whole[100:],
        "zeros": whole[:40] + bytes(random.choice((4, 8))) + whole[48:],
    }[how]
    with workplace() as folder:
        path = Path(folder) / random.choice(("a.wav", f"a.{kind.lower()}", "a"))
        path.write_bytes(data)
        options = random.choice(([], [], ["--channel", str(random.randrange(4))]))
        about = f"{kind} {subtype}, {channels} channels, {frames} frames, {how}"
        outcome = run_command(case, ["transcribe", str(materials() / "model.ckpt"), str(path), *options], about)
        if how == "cut" and outcome.status == 0 and place < 0.95 * len(whole) and kind != "MP3":
            raise Finding(f"{about}: {place} of {len(whole)} bytes are transcribed as if they were all")


def run_fault(case: Case) -> None:
    """A command where files may not grow, or few may be open."""
    random = case.random
    with workplace() as place:
        output = Path(place) / "output"
        checkpoint, manifest = (str(materials() / name) for name in ("model.ckpt", "tones.jsonl"))
        commands = [
            ["transcribe", checkpoint, str(materials() / "tones-0.wav")],
            ["evaluate", checkpoint, manifest, "--output", str(output)],
            ["tokenizer", "--manifest", manifest, "--vocab", "6", "--out", str(output)],
        ]
        if random.random() < 0.2:
            commands = [train_arguments(copy_training(Path(place)) if random.random() < 0.5 else output)]
            commands[0] += random.choice(([], ["--workers", "1"]))
        command = random.choice(commands)
        if random.random() < 0.5:
            limits = {resource.RLIMIT_FSIZE: random.choice((2000, 5000, 10_000))}  # messages fit
        else:
            limits = {resource.RLIMIT_NOFILE: random.choice((12, 16, 24, 32, 48))}
        run_command(case, command, f"limits {limits}", limits)

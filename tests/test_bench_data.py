"""prnn bench data: it measures, on a corpus of its own and on others."""

import json
import re
from pathlib import Path

import pytest
from asr_data import write_corpus
from test_cuts import cut_set

from prnn.cli import main

SMALL = ["--batches", "2", "--hidden", "8", "--layers", "1", "--joiner", "8", "--predictor-hidden", "8"]
SMALL += ["--batch-size", "2", "--accelerator", "cpu"]


@pytest.mark.parametrize("where", ["workers", "device"])
def test_on_noise(capsys: pytest.CaptureFixture[str], tmp_path: Path, where: str) -> None:
    written = tmp_path / "data.json"
    command = [
        "bench",
        "data",
        "--files",
        "3",
        *SMALL,
        "--features-on",
        where,
        "--workers",
        "1",
        "--json",
        str(written),
    ]
    assert main(command) == 0
    output = capsys.readouterr().out
    hours = re.search(r"^batches alone: [\d.]+ ms each, ([\d.]+) hours of audio a second$", output, re.MULTILINE)
    assert hours
    assert float(hours[1]) > 0
    assert re.search(r"^a step on batches that are there: [\d.]+ ms$", output, re.MULTILINE)
    waiting = re.search(r"^the program waits for batches ([\d.]+) % of the time$", output, re.MULTILINE)
    assert waiting
    (row,) = json.loads(written.read_text())["rows"]
    assert f"{row['hours_of_audio_a_second']:.3f}" == hours[1]
    assert f"{row['waiting_percent']:.1f}" == waiting[1]
    assert row["step_ms"] > 0
    assert row["reading_ms_a_second"] > 0


PARTS = ["reading and decoding", "resampling", "changes of speed, noise, rooms", "features", "masks, padding, sending"]


@pytest.mark.parametrize("kind", ["jsonl", "cuts"])
@pytest.mark.parametrize("where", ["workers", "device"])
def test_which_part_is_the_limit(capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, where: str) -> None:
    """With recordings of 8 kHz and speeds each part takes some time, but features on the device."""
    path = write_corpus(tmp_path, "tones", ["ab", "c", "cab"], rate=8000)
    if kind == "cuts":
        path = tmp_path / "cuts.jsonl.gz"
        cut_set(tmp_path, ["ab", "c", "cab"], rate=8000).to_file(path)
    command = ["bench", "data", *SMALL, "--manifest", str(path), "--valid", str(path), "--features-on", where]
    assert main([*command, "--workers", "2", "--augmentation.speeds", "[0.9, 1.1]"]) == 0
    output = capsys.readouterr().out
    found = re.findall(r"^  (\w.*\w) +([\d.]+) ms +([\d.]+) %$", output, re.MULTILINE)
    assert [part for part, _, _ in found] == PARTS
    assert sum(float(share) for _, _, share in found) == pytest.approx(100, abs=0.5)
    assert all(float(share) > 0 for part, _, share in found if part != "features" or where == "workers")
    whole = re.search(r"^  in all +([\d.]+) ms, most of it (.*)$", output, re.MULTILINE)
    assert whole
    assert max(float(time) for _, time, _ in found) == float(next(time for part, time, _ in found if part == whole[2]))
    speed = re.search(r"^(\d+) s of audio a second a process, (\d+) s by 2 of them$", output, re.MULTILINE)
    assert speed
    assert float(speed[1]) == pytest.approx(1000 / float(whole[1]), rel=0.02, abs=1)
    assert re.search(r"^a batch takes a process [\d.]+ ms: \d+ with cores of their own keep up", output, re.MULTILINE)


def test_on_a_manifest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, "tones", ["ab", "c", "cab"])
    assert main(["bench", "data", *SMALL, "--manifest", str(manifest), "--valid", str(manifest)]) == 0
    assert "hours of audio a second" in capsys.readouterr().out
    missing = ["bench", "data", "--manifest", str(tmp_path / "none.jsonl"), "--valid", str(manifest)]
    assert main(missing) == 2
    assert capsys.readouterr().err == f"prnn: {tmp_path / 'none.jsonl'}: no such file\n"

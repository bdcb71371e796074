"""prnn bench data: it measures, on a corpus of its own and on others."""

import re
from pathlib import Path

import pytest
from asr_data import write_corpus

from prnn.cli import main

SMALL = ["--batches", "2", "--hidden", "8", "--layers", "1", "--joiner", "8", "--predictor-hidden", "8"]
SMALL += ["--batch-size", "2", "--accelerator", "cpu"]


@pytest.mark.parametrize("where", ["workers", "device"])
def test_on_noise(capsys: pytest.CaptureFixture[str], where: str) -> None:
    assert main(["bench", "data", "--files", "3", *SMALL, "--features-on", where, "--workers", "1"]) == 0
    output = capsys.readouterr().out
    hours = re.search(r"^batches alone: [\d.]+ ms each, ([\d.]+) hours of audio a second$", output, re.MULTILINE)
    assert hours
    assert float(hours[1]) > 0
    assert re.search(r"^a step on batches that are there: [\d.]+ ms$", output, re.MULTILINE)
    assert re.search(r"^the program waits for batches [\d.]+ % of the time$", output, re.MULTILINE)


def test_on_a_manifest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, "tones", ["ab", "c", "cab"])
    assert main(["bench", "data", *SMALL, "--manifest", str(manifest), "--valid", str(manifest)]) == 0
    assert "hours of audio a second" in capsys.readouterr().out
    missing = ["bench", "data", "--manifest", str(tmp_path / "none.jsonl"), "--valid", str(manifest)]
    assert main(missing) == 2
    assert capsys.readouterr().err == f"prnn: {tmp_path / 'none.jsonl'}: no such file\n"

"""The Python programs of README and the documentation run as they stand there, and print what stands below them."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import soundfile
from c_program import ROOT
from tones_model import RATE, save, tone_recogniser, tones

import prnn
from prnn.asr import CharTokenizer, FeatureConfig, Recogniser
from prnn.asr.export import export
from prnn.transducer import Transducer, TransducerConfig

PROGRAM = re.compile(r"```python\n(.*?)```\n\n?((?:    [^\n]*\n)*)", re.DOTALL)
ELSEWHERE = {"own_encoder.md"}  # tests/test_own_encoder.py trains its class
OWN_PROCESS = {"jax.md", "migration.md"}  # whose programs are of processes without torch, or change what is imported
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if path.name not in ELSEWHERE and PROGRAM.search(path.read_text())
]


def write_files(folder: Path) -> None:
    """The files that the programs read: models, recordings, a table, phrases."""
    save(tone_recogniser(), folder / "model.ckpt")
    (folder / "my-model").mkdir()
    save(tone_recogniser(), folder / "my-model" / "model.ckpt")
    for name in ("talk.flac", "recording.flac", "recording.wav", "one.flac", "two.flac"):
        soundfile.write(folder / name, np.concatenate([tones("..abc.ba..a"), np.zeros(RATE, np.float32)]), RATE)
    (folder / "phrases.txt").write_text("abc :6\n")
    (folder / "text.txt").write_text("ab c\nc\n")
    with open(folder / "train.csv", "w", newline="") as table:
        csv.writer(table).writerows([("audio", "text"), ("one.flac", "abc"), ("two.flac", "ba")])


def missing(program: str) -> list[str]:
    """Packages that a program imports, or names to prnn.compat, and that the tests' environment does not have."""
    names = re.findall(r"^(?:import|from) (\w+)", program, flags=re.MULTILINE)
    names += re.findall(r'"(\w+)"', "".join(re.findall(r"compat\.install\((.*?)\)", program)))
    return [name for name in names if importlib.util.find_spec(name) is None]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_python(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = PROGRAM.findall(page.read_text())
    absent = sorted({name for program, _ in programs for name in missing(program)})
    if absent:
        pytest.skip(f"{page.name} uses {', '.join(absent)}, which this environment does not have")
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    if page.name == "export.md":
        config = TransducerConfig(
            4, encoder_layers=1, encoder_hidden=16, frame_stack=8, frame_stride=4, joiner_dim=8, predictor="stateless"
        )
        export(Recogniser(Transducer.from_config(config), FeatureConfig(), CharTokenizer("abc")), "deployed")
    namespace = {"__name__": "program"}
    everything = ""
    for program, output in programs:
        capsys.readouterr()
        if page.name in OWN_PROCESS:
            command = [sys.executable, "-c", program]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            printed = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.filterwarnings("ignore", category=DeprecationWarning)
                exec(compile(program, page.name, "exec"), namespace)
            printed = capsys.readouterr().out
        assert printed == textwrap.dedent(output) or not output
        everything += printed
    assert everything, f"{page.name}: its programs print nothing"


def test_pages_name_what_there_is() -> None:
    """Every `prnn.name` in the pages' text is an attribute of the package, as far as it can be followed."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for name in set(re.findall(r"`prnn((?:\.[a-z]\w*|\.[A-Z]\w*[a-z]\w*)+)", page.read_text())):
            found: object = prnn
            path = "prnn"
            for part in name.split(".")[1:]:
                path += f".{part}"
                if not hasattr(found, part) and importlib.util.find_spec(path.rpartition(".")[0]) is not None:
                    found = importlib.import_module(path)
                    continue
                assert hasattr(found, part), f"{page.name} names prnn{name}"
                found = getattr(found, part)

"""Messages of prnn train while it runs, and what a signal leaves of it."""

import io
import os
import re
import signal
import sys
from pathlib import Path

import forked
import pytest
import torch
from asr_data import write_corpus

from prnn.asr import InputError
from prnn.asr.audio import read_audio
from prnn.asr.checkpoint import read_checkpoint
from prnn.asr.folder import last_checkpoint
from prnn.asr.notes import spelling_note
from prnn.asr.task import TransducerTask
from prnn.asr.throughput import _duration
from prnn.asr.tokenizer import CharTokenizer
from prnn.cli import main

TEXTS = ["ab ca", "cab", "b", "acc ab"]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data"), "tones", TEXTS)


def command(manifest: Path, output: Path, *more: object) -> list[str]:
    line = f"train --manifest {manifest} --valid {manifest} --output {output} --batch-size 2 --hidden 8 --layers 1"
    return [*line.split(), "--accelerator", "cpu", "--pictures", "0", "--log-every", "1", *map(str, more)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Goes ten seconds further whenever somebody looks at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 10
        return self.now


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_line(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stream: type
) -> None:
    said = stream()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("prnn.asr.throughput.time.monotonic", Clock().monotonic)
    assert main(command(manifest, tmp_path / "out", "--epochs", 6)) == 0
    log = capsys.readouterr().out
    text = said.getvalue()
    assert "v_num" not in text
    if stream is io.StringIO:
        assert "\r" not in text
        lines = text.splitlines()
    else:
        assert text.endswith("\r\x1b[K")  # nothing stays
        lines = [line for line in text.split("\r\x1b[K") if line]
    shown = [re.match(r"epoch (\d), step (\d+) of 12, (\d+) %(.*)", line) for line in lines]
    assert all(shown)
    assert len(lines) > 3
    found = [tuple(map(int, match.groups()[:3])) for match in shown if match]
    assert found == sorted(found)
    assert all(share == round(100 * step / 12) for _, step, share in found)
    assert all(epoch == (step + 1) // 2 for epoch, step, _ in found)  # as the log counts them
    assert "epoch 6, step 12: " in log
    last = shown[-1]
    assert last is not None
    speed = r"\d+ ms a step, of which \d+ % waiting for batches, \d+ % for the device"
    assert re.search(rf"^, \d+:\d\d left, until \S+, loss \d+\.\d{{3}}, WER \d+\.\d\d %, {speed}", last[4])
    assert any(line.endswith(", validation 1/2") for line in lines) or stream is io.StringIO


def test_no_line(manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert main(command(manifest, tmp_path / "out", "--epochs", 1, "--no-progress")) == 0
    assert isinstance(sys.stderr, Terminal)
    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (3599, "59:59"), (360_061, "100:01:01")])
def test_durations(seconds: float, text: str) -> None:
    assert _duration(seconds) == text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_signal_leaves_a_checkpoint_of_the_last_step(
    manifest: Path, tmp_path: Path, number: signal.Signals, workers: int
) -> None:
    """Sent to all processes, as a terminal does; the training then goes on from there."""
    more = ["--steps", 10_000, "--valid-every", 5000, "--checkpoint-every", 1_000_000, "--no-progress"]
    arguments = command(manifest, tmp_path / "out", *more, "--workers", workers)
    program = f"""
import os, signal, sys
from prnn.asr.task import TransducerTask
step = TransducerTask.training_step
def stopped(self, *arguments):
    if self.global_step == 6:
        os.killpg(0, {int(number)}) if {int(number)} == signal.SIGINT else os.kill(os.getpid(), {int(number)})
    return step(self, *arguments)
TransducerTask.training_step = stopped
from prnn.cli import main
sys.exit(main({arguments!r}))
"""
    done = forked.run("-c", program)
    status, word = (130, "interrupted") if number == signal.SIGINT else (143, "terminated")
    sentence = f"prnn: {word}; the same command goes on from {last_checkpoint(tmp_path / 'out')}\n"
    assert (done.returncode, done.stderr) == (status, sentence)
    assert read_checkpoint(last_checkpoint(tmp_path / "out"))["global_step"] == 7
    changed = [value if value != "10000" else "8" for value in arguments]
    assert main(changed) == 0
    assert read_checkpoint(last_checkpoint(tmp_path / "out"))["global_step"] == 8


def test_interrupted_and_gone_on_is_the_same_training(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of its steps, the last of an epoch among them."""
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    more = ["--epochs", 3, "--checkpoint-every", 1000, "--no-progress"]
    assert main(command(manifest, straight, *more)) == 0
    step = TransducerTask.training_step
    stops = [0, 1, 2, 3, 4, 5]

    def stopped(self: TransducerTask, *arguments: object) -> torch.Tensor:
        if stops and self.global_step == stops[0]:
            stops.pop(0)
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *arguments)  # type: ignore[arg-type]

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(TransducerTask, "training_step", stopped)
    statuses = [main(command(manifest, parts, *more)) for _ in range(7)]
    assert statuses == [130] * 6 + [0]
    assert signal.getsignal(signal.SIGINT) is before
    one, two = (read_checkpoint(last_checkpoint(folder))["state_dict"] for folder in (straight, parts))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["abc", "it's", "well-known"], ""),
        (["ABC", "DEF"], ""),
        (["Abc"], "capitals beside small letters"),
        (["abc, def."], ", ."),
        (["Ein Öl!", "ab"], "capitals beside small letters and !"),
    ],
)
def test_spelling_is_noted(texts: list[str], found: str) -> None:
    note = spelling_note(Path("a.jsonl"), CharTokenizer.from_texts(texts))
    assert note.startswith(f"a.jsonl: the texts have {found}: the model learns") if found else note == ""


def test_one_manifest_for_both_is_noted(manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(manifest, tmp_path / "out", "--epochs", 1, "--no-progress")) == 0
    assert f"{manifest}: validation and training have the same manifest: error rates" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("a talk.m4a", b"\0\0\0\x20ftypM4A "),
        ("talk.webm", b"\x1aE\xdf\xa3\x01\0\0\0\0\0\0\0"),
        ("talk.aac", b"\xff\xf1\x50\x80\0\0\0\0\0\0\0\0"),
    ],
)
def test_formats_that_libsndfile_lacks_are_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, head: bytes
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / name).write_bytes(head + bytes(1000))
    with pytest.raises(InputError) as caught:
        read_audio(tmp_path / name)
    source = f"'{tmp_path / name}'" if " " in name else f"{tmp_path / name}"
    assert f"; make one of it: ffmpeg -i {source} " in str(caught.value)
    (tmp_path / name).write_bytes(b"no recording at all")
    with pytest.raises(InputError) as caught:
        read_audio(tmp_path / name)
    assert "ffmpeg" not in str(caught.value)

"""Arguments that nobody expects: choices that are lists or arrays, numbers beyond 32 and 64 bits, complex lengths, no
ranges at all."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import soundfile
import torch
from asr_data import small_checkpoint
from reference import transducer as slow

import prnn
from prnn.cli import main


@pytest.mark.parametrize("value", [[], {"best"}, np.zeros(2), 3, None], ids=str)
def test_choices_that_are_no_strings(value: Any) -> None:
    model = slow.tiny_model(0, dtype=torch.float32)
    wrong = [
        ("backend", lambda: prnn.nn.GRU(2, 3, backend=value)),
        ("backend", lambda: prnn.convert(torch.nn.GRU(2, 3), backend=value)),
        ("search", lambda: model.stream_init(1, value)),
        ("mode", lambda: model.beam_search(torch.zeros(1, 5, 4), mode=value)),
    ]
    for name, call in wrong:
        with pytest.raises(ValueError, match=f"^{name} is .* it must be one of"):
            call()


def test_counts_beyond_32_bits() -> None:
    model = slow.tiny_model(0, dtype=torch.float32)
    for name in ("batch", "beam", "max_symbols"):
        with pytest.raises(ValueError, match=f"^{name} is {2**70}; it must be at most 2147483647"):
            model.stream_init(**{"search": "standard", name: 2**70})


def test_complex_lengths_and_targets() -> None:
    model = slow.tiny_model(0, dtype=torch.float32)
    good: dict[str, torch.Tensor] = {
        "features": torch.zeros(1, 6, 4),
        "feature_lengths": torch.tensor([6]),
        "targets": torch.tensor([[1, 2]]),
        "target_lengths": torch.tensor([2]),
    }
    for name in ("feature_lengths", "targets", "target_lengths"):
        with pytest.raises(TypeError, match=f"^{name} is a tensor of torch.complex64; it must be a tensor of integers"):
            model(**{**good, name: good[name].to(torch.complex64)})


def test_no_ranges() -> None:
    ranges = torch.zeros(2, 5, 0, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"^ranges has the shape \(2, 5, 0\); it must be \(2, 5, R\), R at least 1"):
        prnn.do_rnnt_pruning(torch.zeros(2, 5, 3), torch.zeros(2, 4, 3), ranges)


def test_a_penalty_beyond_64_bits() -> None:
    """As a float; the same for the costs and for the occupation."""
    arguments = torch.zeros(1, 1, 2, 3), torch.tensor([[1]]), [1], [1]
    for penalty in (-(2**63) - 1, 2**70):
        found = prnn.rnnt_loss(*arguments, delay_penalty=penalty, return_grad=True)
        expected = prnn.rnnt_loss(*arguments, delay_penalty=float(penalty), return_grad=True)
        torch.testing.assert_close(found, expected)


def test_a_sentence_is_one_line(tmp_path: Path) -> None:
    """Whatever the name of a file, and without NumPy's warnings."""
    torch.save(small_checkpoint(), tmp_path / "model.ckpt")
    entry = {"audio_filepath": "a\nb\x1b[31m", "duration": 1, "text": "ab"}
    (tmp_path / "odd.jsonl").write_text(json.dumps(entry))
    samples = np.zeros((1000, 3), np.float32)
    samples[500] = np.inf, -np.inf, 0
    soundfile.write(tmp_path / "infinite.wav", samples, 16000, "FLOAT")
    commands = [["evaluate", "model.ckpt", "odd.jsonl"], ["transcribe", "model.ckpt", "infinite.wav"]]
    said = [r"there is no file \S*a\\nb\\x1b\[31m", "has samples that are not finite numbers"]
    for (command, *files), words in zip(commands, said, strict=True):
        done = forked.run("-m", "prnn", command, *(str(tmp_path / name) for name in files))
        assert done.returncode == 2
        assert re.fullmatch(rf"prnn: [^\n]*{words}\n", done.stderr), done.stderr


def test_characters_that_the_output_cannot_encode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(small_checkpoint(), tmp_path / "model.ckpt")
    soundfile.write(tmp_path / "a.wav", np.zeros(8000), 16000)
    (tmp_path / "a.jsonl").write_text(json.dumps({"audio_filepath": "a.wav", "duration": 0.5, "text": "a\u5341"}))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert main(["evaluate", str(tmp_path / "model.ckpt"), str(tmp_path / "a.jsonl")]) == 0
    assert rb"1 character is not among the characters 'abc'; it counts as an error: '\u5341' once" in written.getvalue()


def test_an_option_that_ends_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--lr", "--hidden"):
        with pytest.raises(SystemExit) as stopped:
            main(["train", "--manifest", "a", "--valid", "b", f"{option}=--"])
        assert stopped.value.code == 2
        assert f"argument {option}: expected one argument" in capsys.readouterr().err

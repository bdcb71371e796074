"""How the command line begins: without torch where it only prints, with a hint after a mistake, and completed by a
shell."""

import pathlib
import shutil
import subprocess
import sys

import pytest

from prnn import cli
from prnn._startup import is_computing
from prnn.cli import main

# As `python -m prnn`, with a look at what was imported in the end.
PROGRAM = """
import atexit, runpy, sys
atexit.register(lambda: print("torch" in sys.modules))
sys.argv[:] = ["-m", *sys.argv[3:]]
runpy.run_module("prnn", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("arguments", "with_torch"),
    [
        ("--version", False),
        ("--help", False),
        ("", False),
        ("trian", False),
        ("transcribe --help", False),
        ("evaluate -h", False),
        ("export --help", False),
        ("tokenizer --help", False),
        ("info --help", False),
        ("bench --help", False),
        ("bench data --help", False),
        ("bench rnn --help", False),
        ("bench --accelerator cpu compat measure --help", False),
        ("bench decode -h", False),
        ("bench jax --help", False),
        ("selftest --help", False),
        ("run --help", False),
        ("completion --help", False),
        ("train --help", False),
        ("completion bash", False),
        ("info --cell gru", True),
    ],
)
def test_what_only_prints_imports_no_torch(arguments: str, with_torch: bool) -> None:
    command = [sys.executable, "-c", PROGRAM, "-m", "prnn", *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 2), done.stderr
    assert done.stdout.splitlines()[-1] == str(with_torch)


@pytest.mark.parametrize(
    ("argv", "orig_argv", "computes"),
    [
        (["-m", "--version"], ["python", "-m", "prnn", "--version"], False),
        (["-m", "train"], ["python", "-u", "-m", "prnn", "train"], True),
        (["-m", "train", "--help"], ["python", "-m", "prnn", "train", "--help"], False),
        (["-m", "bench", "data", "-h"], ["python", "-m", "prnn", "bench", "data", "-h"], False),
        (["-m", "bench", "data"], ["python", "-m", "prnn", "bench", "data"], True),
        (["-m", "run", "--", "python"], ["python", "-m", "prnn", "run", "--", "python"], False),
        (["-m", "--version"], ["python", "-m", "pytest", "--version"], True),
        (["-m", "rnn", "-h"], ["python", "-m", "prnn.bench.rnn_gpu", "rnn", "-h"], True),
        (["/venv/bin/prnn", "--help"], ["/venv/bin/python", "/venv/bin/prnn", "--help"], False),
        (["/venv/bin/prnn", "info"], ["/venv/bin/python", "/venv/bin/prnn", "info"], True),
        (["train.py", "--help"], ["python", "train.py", "--help"], True),
        ([""], ["python"], True),
        ([], [], True),
    ],
)
def test_whether_a_process_computes(argv: list[str], orig_argv: list[str], computes: bool) -> None:
    assert is_computing(argv, orig_argv) is computes


def test_all_commands_but_two_compute() -> None:
    for command in cli._COMMANDS:
        name = command.__name__.rpartition(".")[2]
        assert is_computing(["prnn", name], ["python", "prnn", name]) is (name not in ("run", "completion"))


@pytest.mark.parametrize("argument", ["--version", "run"])
def test_what_begins_without_torch_has_it_at_its_first_use(argument: str) -> None:
    program = "import sys, prnn; print('torch' in sys.modules, prnn.ctc_loss.__name__, prnn.nn.LSTM.__name__)"
    command = [sys.executable, "-c", f"import sys; sys.argv = ['prnn', '{argument}']; {program}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "False ctc_loss LSTM\n", done.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["trian"], "did you mean train?"),
        (["evaluate", "--fromat", "ctm", "a", "b"], "did you mean --format?"),
        (["transcribe", "a", "b", "--format", "jsonn"], "did you mean jsonl?"),
        (["train", "--hiden", "5"], "did you mean --hidden?"),
        (["train", "--manifest", "a", "--valid", "a", "--cell", "lstn"], "did you mean lstm?"),
        (["bench", "rn"], "did you mean rnn?"),
        (["bench", "--accelerator", "cpu", "rnn", "--hiden", "5"], "did you mean --hidden?"),
        (["evaluate", "a", "b", "--zzz"], "unrecognized arguments: --zzz"),
    ],
)
def test_what_was_probably_meant(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert capsys.readouterr().err.endswith(f"{hint}\n")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("epoch: 3", "Option 'epoch' is not accepted; did you mean epochs?"),
        ("model: {encoder_layer: 3}", "did you mean model.encoder_layers?"),
    ],
)
def test_what_a_configuration_probably_meant(
    text: str, hint: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my.yaml").write_text(text)
    with pytest.raises(SystemExit, match="2"):
        main(["train", "--config", str(tmp_path / "my.yaml"), "--manifest", "a", "--valid", "b"])
    assert capsys.readouterr().err.endswith(f"{hint}\n")


def completed(script: str, *words: str) -> list[str]:
    """Returns bash's completions of the last of the words."""
    line = " ".join(f"'{word}'" for word in words)
    program = f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _prnn; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")
def test_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert completed(script, "prnn", "tr") == ["train", "transcribe"]
    assert completed(script, "prnn", "evaluate", "--form") == ["--format"]
    assert completed(script, "prnn", "transcribe", "--format", "j") == ["jsonl"]
    assert completed(script, "prnn", "train", "--model.loss", "t") == ["tdt"]
    assert "--hidden" in completed(script, "prnn", "train", "--h")
    assert completed(script, "prnn", "bench", "lo") == ["loss"]
    assert completed(script, "prnn", "bench", "rnn", "--ta") == ["--targets"]
    assert completed(script, "prnn", "bench", "--accelerator", "cpu", "rnn", "--fro") == ["--frozen"]
    assert completed(script, "prnn", "bench", "decode", "--predictor", "s") == ["stateless"]
    assert completed(script, "prnn", "transcribe", "/etc/host") == completed(script, "prnn", "train", "/etc/host")
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out == f"autoload -U +X bashcompinit && bashcompinit\n{script}"


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh on this machine")
def test_completion_in_zsh(capsys: pytest.CaptureFixture[str]) -> None:
    """As zsh's bashcompinit calls it; zsh leaves out itself what does not begin as the word does."""
    assert main(["completion", "zsh"]) == 0
    program = (
        "autoload -U compinit && compinit -u -D\n"
        f"{capsys.readouterr().out}\n"
        "call() { emulate -L sh; COMP_WORDS=(prnn bench rnn --ta); COMP_CWORD=3; _prnn; "
        "printf '%s\\n' \"${COMPREPLY[@]}\"; }; call"
    )
    done = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, check=True)
    assert "--targets" in done.stdout.split(), done.stderr

"""recipes.finetune: what it says without its packages, and the whole of it on a few recordings where they are there."""

import importlib.util
import json
import pathlib
import re

import forked
import pytest

from recipes.finetune import __main__ as recipe

needs_transformers = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("accelerate", "transformers")),
    reason="transformers and accelerate, which the tests' environment need not have, are not installed",
)


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(recipe, "find_spec", lambda name: None)
    assert recipe.main([]) == 2
    said = capsys.readouterr().err
    assert said == "recipes.finetune needs packages: pip install accelerate espeakng-loader transformers\n"


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    slow = {"seconds": [9.0, 9.0, 0.5, 0.3, 0.4], "bytes": 2**30, "loss": [2.0, 1.0]}
    recipe.compare(slow, {**slow, "seconds": [0.1] * 4, "loss": [2.0, 1.25]})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["Transformers", "0.400", "1.00", "2.000000", "1.000000"]
    assert lines[3] == "losses of 2 steps differ by 2.5e-01 of themselves at most"


def test_what_is_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []

    def run(*words: object, prnn: bool = True) -> None:
        ran.append((*map(str, words[:1]), prnn))
        if "--steps" in words:
            folder = pathlib.Path(str(words[words.index("--output") + 1]))
            folder.mkdir()
            log = {"seconds": [1.0] * 3, "bytes": 1, "loss": [1.0] * 3}
            (folder / "log.json").write_text(json.dumps(log))
        if "recipes.finetune.evaluate" in words:
            checkpoint = pathlib.Path(str(words[words.index("--checkpoint") + 1]))
            (checkpoint / "rates.json").write_text('{"wer": 0.06}')

    monkeypatch.setattr(recipe, "run", run)
    monkeypatch.setattr(recipe, "find_spec", lambda name: "")
    (tmp_path / "own").mkdir()
    for _ in range(2):
        command = ["--output", str(tmp_path), "--checkpoint", str(tmp_path / "own"), "--steps", "3"]
        assert recipe.main(command) == 1
        assert capsys.readouterr().err == "the word error rate, 6.00 %, is above the target of 5 %\n"
    train, evaluate, prepare = (f"recipes.{name}" for name in ("finetune.train", "finetune.evaluate", "digits.prepare"))
    again = [(prepare, False), (evaluate, True), (evaluate, True)]
    first = [again[0], (train, False), (train, True), (train, True), *again[1:]]
    assert ran == [*first, *again]


PROGRAM = """
import contextlib, json, pathlib, sys
import prnn.compat
from prnn.asr import read_manifest
from recipes.digits.prepare import prepare
from recipes.finetune import checkpoint, evaluate, train

folder = pathlib.Path(sys.argv[1])
manifest = folder / "data/train.jsonl"

def run(module, *arguments):
    sys.argv = ["", *map(str, arguments)]
    module.main()

if __name__ == "__main__":
    prepare(folder / "data", {"train": 12}, processes=1)
    checkpoint.make_checkpoint(folder / "start", [utterance.text for utterance in read_manifest(manifest)])
    options = ["--checkpoint", folder / "start", "--manifest", manifest, "--steps", 3, "--batch-size", 4]
    with contextlib.redirect_stdout(sys.stderr):
        run(train, *options, "--output", folder / "without")
        prnn.compat.install("transformers")
        run(train, *options, "--output", folder / "with")
    logs = [json.loads((folder / name / "log.json").read_text()) for name in ("without", "with")]
    assert [len(log["loss"]) for log in logs] == [len(log["seconds"]) for log in logs] == [3, 3]
    print("difference", max(abs(a - b) / a for a, b in zip(logs[0]["loss"], logs[1]["loss"])))
    run(evaluate, "--checkpoint", folder / "with", "--manifest", manifest)
"""


@needs_transformers
def test_on_a_few_recordings(tmp_path: pathlib.Path) -> None:
    done = forked.run("-c", PROGRAM, str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = re.search(r"difference (\S+)\n12 utterances in .* WER", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) < 1e-5
    for name in ("config.json", "model.safetensors", "tokenizer.json", "processor_config.json", "rates.json"):
        assert (tmp_path / "with" / name).is_file()

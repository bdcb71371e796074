"""Fine-tuning of a Parakeet-shaped checkpoint with Transformers' Trainer, on spoken digits: makes the recordings and a
checkpoint that knows single digits, compares the first steps with and without prnn, tunes it on strings of digits, and
reports the word error rate on unseen voices.

    python -m recipes.finetune --output finetune

What is there already is not made again. Exit status 1 when the word error rate misses the target.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from prnn._fields import Within, number_parser
from prnn.asr import Utterance, read_manifest, write_manifest

TARGET_WER = 0.05
COMPARED = 40  # steps with and without prnn
PRNN = ["-m", "prnn", "run", "--compat", "transformers", "--", sys.executable]


def section(title: str, began: float) -> None:
    """Prints a heading with the seconds since the start."""
    print(f"\n== {title} [{time.monotonic() - began:.0f} s]", flush=True)


def run(*words: object, prnn: bool = True) -> None:
    """Runs a module of Python with prnn's losses and searches in Transformers, or without."""
    subprocess.run([sys.executable, *(PRNN if prnn else []), "-m", *map(str, words)], check=True)


def train(checkpoint: Path, manifest: Path, output: Path, steps: int, prnn: bool = True) -> dict[str, Any]:
    """Runs recipes.finetune.train, unless it has; its log."""
    if not (output / "log.json").is_file():
        command = ["recipes.finetune.train", "--checkpoint", checkpoint, "--manifest", manifest, "--output", output]
        run(*command, "--steps", steps, prnn=prnn)
    log: dict[str, Any] = json.loads((output / "log.json").read_text())
    return log


def make_start(output: Path, utterances: list[Utterance], steps: int) -> Path:
    """A checkpoint that knows single digits."""
    from recipes.finetune.checkpoint import make_checkpoint  # imports Transformers, which this module does not need

    texts = [utterance.text for utterance in utterances]
    make_checkpoint(output / "random", texts)
    single = output / "single.jsonl"
    write_manifest(single, [utterance for utterance in utterances if " " not in utterance.text])
    train(output / "random", single, output / "checkpoint", steps)
    return output / "checkpoint"


def compare(without: dict[str, Any], with_prnn: dict[str, Any]) -> None:
    """Prints a table of two logs."""
    print(f"{'':14}{'s a step':>10}{'GiB':>7}{'first loss':>12}{'last':>12}")
    for name, log in (("Transformers", without), ("with prnn", with_prnn)):
        seconds = statistics.median(log["seconds"][2:])
        print(f"{name:14}{seconds:10.3f}{log['bytes'] / 2**30:7.2f}{log['loss'][0]:12.6f}{log['loss'][-1]:12.6f}")
    pairs = list(zip(without["loss"], with_prnn["loss"], strict=True))
    print(f"losses of {len(pairs)} steps differ by {max(abs(a - b) / a for a, b in pairs):.1e} of themselves at most")


def main(arguments: list[str] | None = None) -> int:
    """Runs the recipe; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m recipes.finetune", description=(__doc__ or "").split(":")[0])
    count = number_parser(int, Within(1, 10**6))
    add = parser.add_argument
    add("--output", type=Path, default=Path("finetune"), help="data and checkpoints (%(default)s)")
    add("--checkpoint", type=Path, help="a folder with a checkpoint to begin from (a small one is made)")
    add("--utterances", type=count, default=4000, help="training utterances (%(default)s)")
    add("--steps", type=count, default=600, help="batches of the fine-tuning (%(default)s)")
    add(
        "--start-steps",
        type=count,
        default=400,
        help="batches of the training before it, of single digits (%(default)s)",
    )
    options = parser.parse_args(arguments)
    missing = [name for name in ("accelerate", "espeakng_loader", "transformers") if find_spec(name) is None]
    if missing:
        print(f"recipes.finetune needs packages: pip install {' '.join(missing)}".replace("_", "-"), file=sys.stderr)
        return 2
    began = time.monotonic()
    data = options.output / "data"

    section("Making spoken digits", began)
    counts = ["--train", options.utterances, "--dev", 1, "--test", max(1, options.utterances // 20)]
    run("recipes.digits.prepare", "--output", data, *counts, prnn=False)

    checkpoint = options.checkpoint
    if checkpoint is None:
        section("Making a checkpoint that knows single digits", began)
        checkpoint = make_start(options.output, read_manifest(data / "train.jsonl"), options.start_steps)

    section("The first steps with and without prnn", began)
    steps = min(COMPARED, options.steps)
    logs = [
        train(checkpoint, data / "train.jsonl", options.output / name, steps, prnn)
        for name, prnn in (("without", False), ("with", True))
    ]
    compare(*logs)

    section("Fine-tuning on strings of digits", began)
    tuned = options.output / "tuned"
    train(checkpoint, data / "train.jsonl", tuned, options.steps)

    section("Error rates on voices that were not in training, before and after", began)
    for folder in (checkpoint, tuned):
        run("recipes.finetune.evaluate", "--checkpoint", folder, "--manifest", data / "test.jsonl")
    section("Done", began)
    wer = json.loads((tuned / "rates.json").read_text())["wer"]
    if wer > TARGET_WER:
        print(f"the word error rate, {100 * wer:.2f} %, is above the target of {100 * TARGET_WER:g} %", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

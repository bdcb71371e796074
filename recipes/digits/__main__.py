"""The whole experiment: makes the data, trains, reports error rates on unseen voices, streams a recording, draws two
pictures.

    python -m recipes.digits --output digits

Run again after an interruption, it goes on where it was. Exit status 1 when the word error rate misses the target.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

from prnn._fields import option
from prnn.asr import Recogniser, read_manifest
from prnn.asr.audio import chunks, read_audio
from prnn.asr.dataset import load_features
from prnn.asr.evaluation import evaluate
from prnn.asr.options import TrainingOptions
from prnn.asr.plots import plot_alignment, plot_losses
from prnn.cli import main as prnn_command
from prnn.commands.transcribe import stream_and_report

TARGET_WER = 0.05
DATA: list[str] = []  # options of prepare.py
TRAINING = ["--config", str(Path(__file__).with_name("config.yaml"))]  # options of prnn train


def section(title: str, began: float) -> None:
    """Prints a heading with the seconds since the start."""
    print(f"\n== {title} [{time.monotonic() - began:.0f} s]", flush=True)


def command_line() -> str:
    """Returns the command by which a shell calls prnn: scripts/demo leaves no command of that name, nor its environment
    active."""
    python, here = Path(sys.executable), Path.cwd()
    return shlex.join([str(python.relative_to(here) if python.is_relative_to(here) else python), "-m", "prnn"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m recipes.digits", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("digits"), help="data, model and pictures (%(default)s)")
    parser.add_argument("--seed", **option(TrainingOptions, "seed"), help="seed of the training (%(default)s)")
    parser.add_argument("--restart", action="store_true", help="train anew")
    arguments = parser.parse_args()
    data, trained = arguments.output / "data", arguments.output / "training"
    began = time.monotonic()

    section("Making spoken digits", began)
    # In a process of its own, since each of its workers imports what the main module imports.
    command = [sys.executable, "-m", "recipes.digits.prepare", "--output", str(data), *DATA]
    status = subprocess.run(command, check=False).returncode
    if status:
        return status

    section("Training", began)
    command = ["train", "--manifest", str(data / "train.jsonl"), "--valid", str(data / "dev.jsonl")]
    command += ["--output", str(trained), "--seed", str(arguments.seed), *TRAINING]
    status = prnn_command(command + (["--restart"] if arguments.restart else []))
    if status:
        return status

    section("Error rates on voices that were not in training", began)
    recogniser = Recogniser.load(trained / "model.ckpt")
    test = read_manifest(data / "test.jsonl")
    result = evaluate(recogniser, test)
    wer, cer = result.rates
    wrong = [(u.text, text) for u, text in zip(test, result.texts, strict=True) if u.text != text]
    print(f"{len(test)} utterances: WER {100 * wer:.2f} %, CER {100 * cer:.2f} %; {len(wrong)} with an error, such as")
    for text, recognised in wrong[:3]:
        print(f"  said: {text}\n  read: {recognised}")

    section("Streaming a recording in chunks of 160 ms", began)
    shown = max(test[:50], key=lambda utterance: utterance.duration)
    print(f"{shown.audio}: {shown.text}")
    samples, rate = read_audio(shown.audio)
    stream = recogniser.stream(rate)
    stream_and_report(stream, chunks(samples, rate, 160), rate, chunk_ms=160)
    print(stream.utterances()[0].text)

    section("Pictures", began)
    plot_losses(trained / "tensorboard", arguments.output / "loss_curve.png")
    features = load_features(shown, recogniser.features)
    plot_alignment(recogniser, features, shown.text, arguments.output / "alignment.png")
    print(f"{arguments.output / 'loss_curve.png'}\n{arguments.output / 'alignment.png'}")

    section("Done", began)
    print(f"try: {command_line()} transcribe {trained / 'model.ckpt'} {shown.audio} --stream")
    if wer > TARGET_WER:
        print(f"the word error rate, {100 * wer:.2f} %, is above the target of {100 * TARGET_WER:g} %", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

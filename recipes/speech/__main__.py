"""A recogniser from a folder of read sentences: training, error rates on unseen sentences, learning curves.

    python -m recipes.speech data/german --output speech/german

The folder has train.jsonl, valid.jsonl and test.jsonl, or metadata.csv and recordings (recipes/speech/prepare.py). Run
again after an interruption, it goes on where it was. With --seeds 3 it trains three times and prints mean and range.
The configuration is config.yaml and, on a GPU, gpu.yaml, else cpu.yaml, of recipes/speech. What follows -- goes to prnn
train after them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from prnn._fields import Within, number_parser
from prnn.asr import Recogniser, read_manifest
from prnn.asr.dataset import load_features
from prnn.asr.evaluation import evaluate
from prnn.asr.folder import best_checkpoint, replacing
from prnn.asr.plots import plot_alignment, plot_error_rates, plot_losses
from prnn.cli import main as prnn_command
from prnn.commands.failure import CommandError, reported
from prnn.commands.options import add_accelerator, torch_device
from recipes.speech.prepare import prepare

CONFIGS = Path(__file__).parent
_BEAM = 4


def manifests(folder: Path, output: Path) -> Path:
    """The folder with the three manifests, made if need be."""
    if (folder / "train.jsonl").is_file():
        return folder
    data = output / "data"
    if not (data / "test.jsonl").is_file():  # which is written last
        prepare(folder, data)
    return data


def report(trained: Path, test: Path, device: str) -> dict[str, float]:
    """Error rates of a training's best model on the test sentences, with pictures beside it."""
    recogniser = Recogniser.load(best_checkpoint(trained), device)
    utterances = read_manifest(test)
    rates: dict[str, float] = {}
    for beam, search in ((1, "greedy"), (_BEAM, f"beam of {_BEAM}")):
        result = evaluate(recogniser, utterances, beam)
        wer, cer = result.rates
        print(f"{test}: {len(utterances)} sentences, {search}: WER {100 * wer:.2f} %, CER {100 * cer:.2f} %")
        rates |= {f"WER, {search}": wer, f"CER, {search}": cer}
    print("the first three, of the beam:")
    for utterance, text in list(zip(utterances, result.texts, strict=True))[:3]:
        print(f"  said: {utterance.text}\n  read: {text}")
    plot_losses(trained / "tensorboard", trained / "learning_curve.png")
    features = load_features(utterances[0], recogniser.features)
    plot_alignment(recogniser, features, utterances[0].text, trained / "alignment.png")
    return rates


def process_number() -> int:
    """The number of this process of those that `prnn train --devices N` starts, all by this command."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def main(arguments: list[str] | None = None) -> int:
    """Runs the recipe; returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(prog="python -m recipes.speech", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("folder", type=Path, help="train.jsonl, valid.jsonl and test.jsonl; or metadata.csv and recordings")
    add("--output", type=Path, default=Path("speech"), help="models, logs and pictures (%(default)s)")
    add(
        "--seeds",
        type=number_parser(int, Within(1, 100)),
        default=1,
        help="trainings, with seeds from 0 on (%(default)s)",
    )
    add_accelerator(parser, "where to train and recognise")
    options = parser.parse_args(given[:cut])
    rates = []
    first = process_number() == 0
    try:
        with reported():
            device = torch_device(options.accelerator)
            data = manifests(options.folder, options.output)
            for seed in range(options.seeds):
                trained = options.output / f"seed-{seed}"
                if first:
                    print(f"== seed {seed}", flush=True)
                began = time.monotonic()
                machine = CONFIGS / ("cpu.yaml" if device == "cpu" else "gpu.yaml")
                command = ["train", "--config", CONFIGS / "config.yaml", "--config", machine, "--manifest"]
                command += [data / "train.jsonl", "--valid", data / "valid.jsonl"]
                command += ["--output", trained, "--seed", seed, "--accelerator"]
                command += [options.accelerator, *given[cut + 1 :]]
                if status := prnn_command([str(word) for word in command]):
                    return status
                if not first:
                    continue
                print(f"trained in {time.monotonic() - began:.0f} s")
                rates.append(report(trained, data / "test.jsonl", device))
                with replacing(options.output / "rates.json") as file:
                    file.write(json.dumps(rates, indent=2).encode())
    except CommandError as error:
        print(f"speech: {error}", file=sys.stderr)
        return 2
    if len(rates) > 1:
        logs = {f"seed {seed}": options.output / f"seed-{seed}" / "tensorboard" for seed in range(len(rates))}
        plot_error_rates(logs, options.output / "error_rates.png")
        for name in rates[0]:
            values = [100 * rate[name] for rate in rates]
            mean = sum(values) / len(values)
            print(f"{name}, {len(values)} seeds: {mean:.2f} % ({min(values):.2f} to {max(values):.2f} %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``prnn evaluate``: error rates over a manifest."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from prnn.commands.failure import reported
from prnn.commands.options import add_search


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "evaluate",
        help="word and character error rates over a manifest",
        description="Recognise every recording of a manifest and print word and character error rates.",
    )
    add = parser.add_argument
    add("checkpoint", type=Path, help="model.ckpt of prnn train")
    add("manifest", type=Path, help="manifest, as for prnn train")
    add_search(parser)
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where to recognise (%(default)s)")
    add("--output", type=Path, metavar="FILE", help="write what was recognised, one JSON object a line")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Prints the error rates."""
    with reported("prnn evaluate"):
        from prnn.asr import Recogniser, read_manifest
        from prnn.asr.evaluation import evaluate

        utterances = read_manifest(arguments.manifest)
        recogniser = Recogniser.load(arguments.checkpoint, arguments.device)
        result = evaluate(recogniser, utterances, arguments.beam, max_symbols=arguments.max_symbols)
        if arguments.output:
            with arguments.output.open("w", encoding="utf-8") as file:
                for utterance, text in zip(utterances, result.texts, strict=True):
                    entry = {"audio_filepath": str(utterance.audio), "text": utterance.text, "recognised": text}
                    file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        wer, cer = result.rates
        print(f"{len(utterances)} utterances: WER {100 * wer:.2f} %, CER {100 * cer:.2f} %")

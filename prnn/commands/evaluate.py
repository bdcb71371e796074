"""``prnn evaluate``: error rates over a manifest."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

from prnn._fields import counted
from prnn.commands.failure import reported
from prnn.commands.options import (
    add_accelerator,
    add_channel,
    add_encoder_class,
    add_search,
    check_search,
    search_bias,
    torch_device,
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "evaluate",
        help="word and character error rates over a manifest",
        description="Recognise every recording of a manifest and print word and character error rates.",
    )
    add = parser.add_argument
    add("checkpoint", type=Path, help="model.ckpt of prnn train")
    add("manifest", type=Path, help="manifest, as for prnn train: JSON lines, Lhotse's cuts or Shar")
    add("--json", action="store_true", help="print the error rates as JSON, as fractions of 1")
    add("--output", type=Path, metavar="FILE", help="write what was recognised")
    add("--format", choices=("text", "jsonl", "ctm"), help="of that file (jsonl: one JSON object a line)")
    add_channel(parser, ", where the manifest does not say it")
    add_search(parser)
    add_accelerator(parser, "where to recognise")
    add_encoder_class(parser)
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Prints the error rates."""
    with reported():
        from prnn.asr import InputError, Recogniser
        from prnn.asr.data import read_utterances
        from prnn.asr.evaluation import evaluate
        from prnn.asr.folder import require_place, written
        from prnn.asr.formats import TranscriptLines
        from prnn.asr.tokenizer import unknown_characters, unknown_sentence

        check_search(arguments)
        for name in ("format", "nbest"):
            if not arguments.output and getattr(arguments, name) not in (None, 1):
                raise InputError(f"--{name} says what --output has; give that, too")
        if arguments.output:
            require_place(arguments.output)
        utterances, load = read_utterances(arguments.manifest, arguments.channel)
        recogniser = Recogniser.load(arguments.checkpoint, torch_device(arguments.accelerator), arguments.encoder_class)
        bias = search_bias(arguments, recogniser)
        search = {"beam": arguments.beam, "max_symbols": arguments.max_symbols, "bias": bias}
        result = evaluate(recogniser, utterances, **search, load=load)
        wer, cer = result.rates
        if arguments.json:
            rates = {name: rate if math.isfinite(rate) else None for name, rate in result.rates._asdict().items()}
            print(json.dumps({"utterances": len(utterances), **rates}))
        else:
            print(f"{counted(len(utterances), 'utterance')}: WER {100 * wer:.2f} %, CER {100 * cer:.2f} %")
        unknown = unknown_characters(recogniser.tokenizer, (utterance.text for utterance in utterances))
        if unknown:
            notes = sys.stderr if arguments.json else sys.stdout
            print(f"{arguments.manifest}: {unknown_sentence(recogniser.tokenizer, unknown)}", file=notes)
        if arguments.output:
            lines = TranscriptLines(arguments.format or "jsonl", arguments.nbest)
            with written(arguments.output) as file:
                for utterance, found in zip(utterances, result.transcripts, strict=True):
                    found = found.moved(utterance.offset)
                    for line in lines(utterance.audio, found, text=utterance.text, recognised=found.text):
                        file.write(f"{line}\n".encode())

"""``prnn tokenizer``: word pieces from the texts of a manifest."""

from __future__ import annotations

import argparse
from pathlib import Path

from prnn._fields import Within, number_parser
from prnn.commands.failure import reported

_DESCRIPTION = """
Train a sentencepiece model on the texts of manifests, for prnn train --tokenizer. Its piece 0 is <blk>, the blank, and
piece 1 is <unk>, so that the numbers of its pieces are those of the recogniser's outputs. Texts are taken as they are:
put them into one spelling first.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    parser = subparsers.add_parser("tokenizer", help="make word pieces of your texts", description=_DESCRIPTION)
    add = parser.add_argument
    vocab = number_parser(int, Within(4, 100_000))
    coverage = number_parser(float, Within(0.9, 1.0))
    add("--manifest", type=Path, nargs="+", required=True, metavar="FILE", help="manifests, as for prnn train")
    add("--vocab", type=vocab, default=500, metavar="N", help="outputs, blank and <unk> among them (%(default)s)")
    add("--out", type=Path, required=True, metavar="FILE.model", help="where to write the model")
    add("--type", choices=("bpe", "unigram"), default="bpe", help="how pieces are chosen (%(default)s)")
    help_ = "share of all characters that pieces cover (%(default)s); prnn train refuses texts with the others"
    add("--coverage", type=coverage, default=1.0, metavar="P", help=help_)
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Writes the model."""
    with reported():
        from prnn.asr.data import read_utterances
        from prnn.asr.folder import require_place, written
        from prnn.asr.tokenizer import train_pieces

        texts = [utterance.text for path in arguments.manifest for utterance in read_utterances(path)[0]]
        require_place(arguments.out)
        tokenizer = train_pieces(texts, arguments.vocab, arguments.type, arguments.coverage)
        with written(arguments.out) as file:
            file.write(tokenizer.model)
        words = sum(len(text.split()) for text in texts)
        pieces = sum(len(tokenizer.encode_known(text)[0]) for text in texts)
        print(f"{arguments.out}: {len(tokenizer)} symbols; {len(texts)} texts of {words} words have {pieces} pieces")

"""Command-line options that several commands have."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from prnn._fields import Within, number_parser
from prnn._search import MAX_SYMBOLS
from prnn.asr.errors import InputError

if TYPE_CHECKING:
    from prnn.asr import Recogniser
    from prnn.transducer import SymbolBias

_COUNT = number_parser(int, Within(1, 1000))


def add_search(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the search: ``beam``, ``max_symbols``, ``nbest``, and what the search prefers: ``phrases``,
    ``phrase_score``, ``lm``, ``lm_weight`` and ``lm_bonus``."""
    group = parser.add_argument_group("search")
    add = group.add_argument
    add("--beam", type=_COUNT, default=1, metavar="N", help="hypotheses kept; 1 is greedy search (%(default)s)")
    help_ = "most symbols in an encoder frame (%(default)s); sherpa-onnx takes 1"
    add("--max-symbols", type=_COUNT, default=MAX_SYMBOLS, metavar="N", help=help_)
    help_ = "hypotheses written of each utterance, at most the beam (%(default)s); in the formats text and jsonl"
    add("--nbest", type=_COUNT, default=1, metavar="N", help=help_)
    help_ = 'phrases that the search prefers, one a line; "a phrase :2.5" gives it a score of its own'
    add("--phrases", type=Path, metavar="FILE", help=help_)
    score = number_parser(float, Within(0, 1000, above=True))
    help_ = "what each occurrence adds to a transcript's log-probability (4)"
    add("--phrase-score", type=score, metavar="S", help=help_)
    help_ = "ARPA file, gzipped or not, of an n-gram language model over the tokenizer's symbols, which the search adds"
    add("--lm", type=Path, metavar="FILE", help=help_)
    help_ = "weight of the language model's log-probabilities (0.3)"
    add("--lm-weight", type=score, metavar="W", help=help_)
    bonus = number_parser(float, Within(-1000, 1000))
    help_ = "what each symbol adds beside the language model, so that a large weight leaves out no symbols (0)"
    add("--lm-bonus", type=bonus, metavar="B", help=help_)


def check_search(arguments: argparse.Namespace) -> None:
    """Raises InputError unless the options of `add_search` and ``format`` go together."""
    if arguments.nbest > arguments.beam:
        raise InputError(f"--nbest is {arguments.nbest}; it must be at most --beam, {arguments.beam}")
    if arguments.nbest > 1 and arguments.format in ("ctm", "srt"):
        raise InputError(f"--nbest is {arguments.nbest}; the format {arguments.format} holds one hypothesis")
    for name, needed in (("phrase_score", "phrases"), ("lm_weight", "lm"), ("lm_bonus", "lm")):
        if getattr(arguments, name) is not None and not getattr(arguments, needed):
            raise InputError(f"--{name.replace('_', '-')} needs --{needed}")
    if arguments.phrases and arguments.lm:
        raise InputError("--phrases and --lm are given; take one of the two")


def search_bias(arguments: argparse.Namespace, recogniser: Recogniser) -> SymbolBias | None:
    """The phrases or the language model that the options of `add_search` name."""
    from prnn.asr.language_model import read_language_model
    from prnn.asr.phrases import read_phrases

    if arguments.phrases is not None:
        return read_phrases(arguments.phrases, recogniser.tokenizer, arguments.phrase_score or 4.0)
    if arguments.lm is not None:
        bonus = arguments.lm_bonus or 0.0
        return read_language_model(arguments.lm, recogniser.tokenizer, arguments.lm_weight or 0.3, bonus)
    return None


def add_channel(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Adds ``channel``; more: on when it counts, for the help."""
    rule = number_parser(int, Within(0, 31))
    help_ = f"of recordings with several channels the one to read, from 0 on{more} (the mean of all)"
    parser.add_argument("--channel", type=rule, metavar="N", help=help_)


def add_accelerator(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds ``accelerator``, by both of its names, which prnn train has, too. what: the help's first words."""
    parser.add_argument(
        "--accelerator",
        "--device",
        choices=("auto", "cpu", "gpu", "cuda"),
        default="auto",
        help=f"{what}: auto is a GPU if there is one (%(default)s); --device is another name of this option",
    )


def add_encoder_class(parser: argparse.ArgumentParser) -> None:
    """Adds ``encoder_class``."""
    help_ = "imports this class for a checkpoint whose encoder is not prnn's own"
    parser.add_argument("--encoder-class", metavar="MODULE:CLASS", help=help_)


def torch_device(accelerator: str) -> str:
    """The device that an accelerator is. Raises InputError where there is none."""
    import torch

    if accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise InputError(f"the accelerator is {accelerator}, but torch can use no GPU here")
    return "cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu"

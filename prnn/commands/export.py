"""``prnn export``: a model that sherpa-onnx runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from prnn.commands.failure import reported


def _chunk_ms(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
    if value % 40 or not 40 <= value <= 2000:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a multiple of 40 from 40 to 2000")
    return value


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "export",
        help="write ONNX files that sherpa-onnx runs",
        description="Write encoder.onnx, decoder.onnx, joiner.onnx and tokens.txt for sherpa-onnx's streaming "
        "recognisers.",
    )
    add = parser.add_argument
    add("checkpoint", type=Path, help="model.ckpt of prnn train")
    add("folder", type=Path, metavar="DIR", help="a new folder")
    add("--int8", action="store_true", help="write the same with 8-bit weights, too: encoder.int8.onnx and so on")
    add(
        "--chunk-ms",
        type=_chunk_ms,
        default=160,
        metavar="MS",
        help="milliseconds of audio that a step takes, a multiple of 40 (%(default)s)",
    )
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Writes the folder."""
    with reported():
        from prnn.asr import Recogniser
        from prnn.asr.export import export

        recogniser = Recogniser.load(arguments.checkpoint)
        for path in export(recogniser, arguments.folder, arguments.int8, arguments.chunk_ms):
            print(f"{path}  {path.stat().st_size / 1e6:.2f} MB")

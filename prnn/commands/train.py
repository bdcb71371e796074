"""``prnn train``: a recogniser from recordings and their texts."""

from __future__ import annotations

import argparse

from prnn.commands.failure import reported


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line. All that follows it is for the parser of prnn.asr.configuration."""
    parser = subparsers.add_parser(
        "train", help="train a recogniser on your recordings", add_help=False, prefix_chars="\0"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Trains."""
    with reported():
        from prnn.asr.configuration import parse

        options, restart, progress = parse(arguments.arguments)
        from prnn.asr.folder import how_to_go_on
        from prnn.asr.training import train  # takes seconds, which a wrong option need not wait for

        try:
            train(options, restart=restart, progress=progress)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(how_to_go_on(options.output, restart)) from error

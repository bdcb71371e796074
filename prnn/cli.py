"""The command line: ``prnn tokenizer``, ``train``, ``transcribe``, ``evaluate``, ``export``, ``info``, ``selftest``,
``bench``, ``run`` and ``completion``. Commands import what they compute with when they run: --help and --version need
no torch.

Exit status: 0 done; 1 selftest found a difference; 2 the input or an option cannot be used, the output cannot be
written, or a training has diverged, said in one sentence on stderr; 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import io
import itertools
import os
import sys
from collections.abc import Iterator, Sequence

from prnn import __version__
from prnn.commands import bench, completion, evaluate, export, info, run, selftest, tokenizer, train, transcribe
from prnn.commands.failure import CommandError
from prnn.commands.parser import Parser

_COMMANDS = (tokenizer, train, transcribe, evaluate, export, info, selftest, bench, run, completion)
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    description = (
        "Train, run and measure streaming speech recognisers, and run other programs' layers on prnn's kernels."
    )
    epilog = "prnn COMMAND --help describes a command and its options."
    parser = Parser(prog="prnn", description=description, epilog=epilog)
    parser.add_argument("--version", action="version", version=f"prnn {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        subparser = command.add_parser(subparsers)
        subparser.set_defaults(run=command.run)
    return parser


def _one_line(text: str) -> str:
    """The text with what does not print, of a file's name for instance, as Python writes it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _own(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments that this parser or that of a program of prnn.bench reads: not those of a program to run."""
    is_run = arguments[:1] == ["run"]
    return itertools.takewhile(
        lambda argument: argument != "--" and (not is_run or argument == "run" or argument.startswith("-")), arguments
    )


def _run(arguments: Sequence[str]) -> int:
    parser = build_parser()
    for argument in _own(arguments):
        if argument.startswith("--") and argument.endswith("=--"):  # of which argparse makes [], whatever the type
            parser.error(f"argument {argument[:-3]}: expected one argument")
    parsed = parser.parse_args(arguments)
    try:
        parsed.run(parsed)
    except CommandError as error:
        print(f"prnn: {_one_line(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"prnn: interrupted{f'; {_one_line(str(error))}' if str(error) else ''}", file=sys.stderr)
        return 130
    return 0


def _drop_output() -> None:
    """Drops the buffer of standard output, which nothing reads any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # what the locale's characters lack ends no training
    try:
        try:
            return _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:  # --help and wrong options leave by SystemExit
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has gone
        _drop_output()
        return 0
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _drop_output()
        print(f"prnn: the output cannot be written: {os.strerror(error.errno).lower()}", file=sys.stderr)
        return 2

"""Options that the programs share. Nothing here imports torch, which --help does not need."""

import argparse

from prnn._fields import Within, number_parser

# A cell's name in options -> its class in torch.nn and prnn.nn.
MODULES = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}
COUNT = number_parser(int, Within(1, 2**20))
THREADS = number_parser(int, Within(1, 1024))
SECONDS = number_parser(float, Within(0, 86400, above=True))
PROBABILITY = number_parser(float, Within(0, 1, below=True))


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds the option whose value write_rows() takes."""
    parser.add_argument(
        "--json", metavar="FILE", help="file to write the rows to; -: standard output, and tables to standard error"
    )


def require_gpu(parser: argparse.ArgumentParser) -> None:
    """Ends the program, by way of its parser, where torch can use no GPU."""
    import torch

    if not torch.cuda.is_available():
        parser.error("this program measures a GPU, but torch can use none here")

"""``prnn transcribe``: the text of a recording."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from prnn._fields import Within, number_parser
from prnn.commands.failure import reported
from prnn.commands.options import add_search

if TYPE_CHECKING:
    from prnn.asr import RecogniserStream


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "transcribe",
        help="recognise a recording, whole or chunk by chunk",
        description="Recognise a WAV or FLAC file of any sample rate, mono or stereo, and print its text.",
    )
    add = parser.add_argument
    add("checkpoint", type=Path, help="model.ckpt of prnn train")
    add("audio", type=Path, help="the recording")
    add("--stream", action="store_true", help="feed it in chunks; print the text as it grows and the time per chunk")
    milliseconds = number_parser(float, Within(0, 1e6, above=True))
    add("--chunk-ms", type=milliseconds, default=160.0, metavar="MS", help="length of a chunk (%(default)g)")
    add_search(parser)
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where to recognise (%(default)s)")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Prints the text of the recording."""
    with reported("prnn transcribe"):
        from prnn.asr import Recogniser
        from prnn.asr.audio import read_audio

        samples, rate = read_audio(arguments.audio)
        recogniser = Recogniser.load(arguments.checkpoint, arguments.device)
        if arguments.stream:
            stream = recogniser.stream(rate, arguments.beam, arguments.max_symbols)
            print(stream_and_report(stream, samples, rate, arguments.chunk_ms))
        else:
            print(recogniser.transcribe(samples, rate, arguments.beam, arguments.max_symbols))


def stream_and_report(stream: RecogniserStream, samples, sample_rate: int, chunk_ms: float) -> str:  # type: ignore[no-untyped-def]
    """Streams a recording, printing for each chunk where it ends, the time it took and the text so far.

    Returns the last text.
    """
    import torch

    from prnn.asr.audio import chunks

    torch.set_num_threads(1)  # a chunk is a few ms of work: less than threads cost that wait for one another
    heard, times = 0, []
    print(f"{'heard':>8}  {'took':>9}  text so far")

    def report(began: float, text: str) -> None:
        times.append(1000 * (time.perf_counter() - began))
        print(f"{heard / sample_rate:6.2f} s  {times[-1]:6.1f} ms  {text}", flush=True)

    for chunk in chunks(samples, sample_rate, chunk_ms):
        heard += len(chunk)
        began = time.perf_counter()
        report(began, stream.accept(chunk))
    began = time.perf_counter()
    text = stream.finish()
    report(began, text)
    seconds = len(samples) / sample_rate
    print(
        f"{len(times)} chunks of {chunk_ms:g} ms: {sum(times) / len(times):.1f} ms each in the mean, "
        f"{max(times):.1f} ms at most; {1000 * seconds / sum(times):.0f} times faster than real time"
    )
    return text

"""``prnn transcribe``: the text of recordings, or of a microphone."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prnn._fields import Within, number_parser, option
from prnn.asr.endpoint import EndpointRules
from prnn.asr.errors import InputError
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

if TYPE_CHECKING:
    import numpy as np

    from prnn.asr import Recogniser, RecogniserStream, Transcript
    from prnn.asr.formats import TranscriptLines

_BLOCK_SECONDS = 10.0  # of a recording that is read at full speed
_SHORTEST, _LONGEST = 0.25, 60.0  # seconds of recordings that are recognised in batches
_AT_ONCE = 1024  # recordings of which the short ones are sorted by length, to make batches

_DESCRIPTION = """
Recognise recordings of any length, WAV, FLAC, MP3, Ogg and others that libsndfile reads, with the extra "media" also
m4a, mp4 and webm, at any sample rate, mono or stereo, or what a microphone hears. Each recording is one utterance,
unless one of the endpoint options cuts it into several.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    help_ = "recognise recordings, whole or chunk by chunk, or a microphone"
    parser = subparsers.add_parser("transcribe", help=help_, description=_DESCRIPTION)
    add = parser.add_argument
    add("checkpoint", type=Path, help="model.ckpt of prnn train")
    add("audio", type=Path, nargs="*", help="recordings; - is standard input, read to its end")
    help_ = "text, JSON lines, NIST's CTM or SubRip, which implies --endpoint (%(default)s)"
    add("--format", choices=("text", "jsonl", "ctm", "srt"), default="text", help=help_)
    add(
        "--stream",
        action="store_true",
        help="feed recordings in chunks; print the text as it grows and the time per chunk",
    )
    milliseconds = number_parser(float, Within(0, 1e6, above=True))
    help_ = "length of a chunk of --stream and --microphone (%(default)g)"
    add("--chunk-ms", type=milliseconds, default=160.0, metavar="MS", help=help_)
    add("--microphone", action="store_true", help="listen to a microphone until Ctrl-C; implies --endpoint")
    add("--input-device", metavar="NAME", help="which microphone, as python -m sounddevice lists them")
    group = parser.add_argument_group("endpoints")
    group.add_argument("--endpoint", action="store_true", help="end utterances at pauses")
    help_ = "seconds without a symbol that make a pause (1.2); implies --endpoint"
    group.add_argument("--endpoint-silence", metavar="S", help=help_, **_optional("silence"))
    help_ = "longest utterance in seconds, from its first symbol (20); implies --endpoint"
    group.add_argument("--endpoint-length", metavar="S", help=help_, **_optional("longest"))
    add_channel(parser)
    add_search(parser)
    add_accelerator(parser, "where to recognise")
    add_encoder_class(parser)
    return parser


def _optional(rule: str) -> dict[str, Any]:
    return {**option(EndpointRules, rule), "default": None}


def _check(arguments: argparse.Namespace) -> None:
    check_search(arguments)
    if not arguments.audio and not arguments.microphone:
        checkpoint = arguments.checkpoint
        raise InputError(f"there is no recording after the checkpoint, {checkpoint}; name one, or --microphone")
    if arguments.audio and arguments.microphone:
        raise InputError("recordings and --microphone are given; take one of the two")
    if arguments.audio.count(Path("-")) > 1:
        raise InputError("standard input, -, is given several times")
    if arguments.input_device and not arguments.microphone:
        raise InputError("--input-device is for --microphone")
    if arguments.channel is not None and arguments.microphone:
        raise InputError("--channel is for recordings, not for --microphone")
    if arguments.stream and (arguments.microphone or arguments.format != "text"):
        other = "--microphone" if arguments.microphone else f"--format {arguments.format}"
        raise InputError(f"--stream prints a table of times, which does not go with {other}")
    if arguments.format == "srt" and len(arguments.audio) > 1:
        raise InputError(f"--format srt is for one recording; there are {len(arguments.audio)}")


def _endpoint(arguments: argparse.Namespace) -> EndpointRules | None:
    given = {"silence": arguments.endpoint_silence, "longest": arguments.endpoint_length}
    rules = {name: value for name, value in given.items() if value is not None}
    wanted = arguments.endpoint or arguments.microphone or arguments.format == "srt" or rules
    return EndpointRules(**rules) if wanted else None


def run(arguments: argparse.Namespace) -> None:
    """Prints what is recognised."""
    with reported(), ExitStack() as stack:
        from prnn.asr import Recogniser
        from prnn.asr.audio import audio_blocks, check_audio
        from prnn.asr.formats import TranscriptLines

        _check(arguments)
        endpoint = _endpoint(arguments)
        seconds = arguments.chunk_ms / 1000 if arguments.stream else _BLOCK_SECONDS
        channel = arguments.channel
        durations = [check_audio(audio, channel) for audio in arguments.audio]  # before anything is printed
        recogniser = Recogniser.load(arguments.checkpoint, torch_device(arguments.accelerator), arguments.encoder_class)
        bias = search_bias(arguments, recogniser)
        lines = TranscriptLines(arguments.format, arguments.nbest)

        def stream(rate: int) -> RecogniserStream:
            return recogniser.stream(rate, arguments.beam, arguments.max_symbols, bias, endpoint)

        if arguments.microphone:
            _listen(stream(recogniser.features.sample_rate), recogniser.features.sample_rate, lines, arguments)
        found: Iterable[Transcript | None] = repeat(None)
        if len(durations) > 1 and endpoint is None and not arguments.stream:
            options = {"beam": arguments.beam, "max_symbols": arguments.max_symbols, "bias": bias}
            found = stack.enter_context(closing(_in_batches(recogniser, arguments.audio, channel, durations, options)))
        for audio, transcript in zip(arguments.audio, found, strict=False):
            if transcript is not None:
                _print(lines(audio, transcript))
                continue
            rate, blocks = audio_blocks(audio, seconds, channel)
            one = stream(rate)
            if arguments.stream:
                stream_and_report(one, blocks, rate, arguments.chunk_ms)
            else:
                for block in blocks:
                    one.feed(block)
                    _write(one, lines, audio)
                one.finish()
            _write(one, lines, audio)


def _in_batches(
    recogniser: Recogniser,
    files: Sequence[Path],
    channel: int | None,
    durations: Sequence[float],
    options: dict[str, Any],
) -> Generator[Transcript | None]:
    """The transcript of each recording, in their order; None for one that is not of a length for a batch.

    Raises:
        InputError: a recording cannot be used, after those before it.
    """
    from prnn.asr.recognition import LoadRecording, recognise

    for first in range(0, len(files), _AT_ONCE):
        numbers = range(first, min(first + _AT_ONCE, len(files)))
        short = [number for number in numbers if _SHORTEST <= durations[number] <= _LONGEST]
        load = LoadRecording([files[number] for number in short], channel)
        results = recognise(recogniser, load, [durations[number] for number in short], **options)
        found: dict[int, Transcript | InputError] = {}
        with closing(results):
            for number in numbers:
                if not _SHORTEST <= durations[number] <= _LONGEST:
                    yield None
                    continue
                while number not in found:
                    place, result = next(results)
                    found[short[place]] = result
                transcript = found.pop(number)
                if isinstance(transcript, InputError):
                    raise transcript
                yield transcript


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _write(stream: RecogniserStream, lines: TranscriptLines, audio: Path) -> None:
    for transcript in stream.utterances():
        _print(lines(audio, transcript))


def _listen(stream: RecogniserStream, rate: int, lines: TranscriptLines, arguments: argparse.Namespace) -> None:
    """Prints each utterance when it has ended, and on a terminal the text of the present one as it grows."""
    from prnn.asr.microphone import microphone_blocks

    shown = sys.stderr.isatty()
    where = Path(arguments.input_device or "microphone")

    def lost() -> None:
        print("prnn: samples were lost, since recognition is slower than speech", file=sys.stderr)

    def show(text: str) -> None:
        if shown:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    try:
        for block in microphone_blocks(rate, arguments.chunk_ms / 1000, arguments.input_device, lost):
            text = stream.accept(block)
            show("")
            _write(stream, lines, where)
            show(text)
    except KeyboardInterrupt:  # the way to stop
        stream.finish()
        show("")
        _write(stream, lines, where)


def stream_and_report(
    stream: RecogniserStream, chunks: Iterable[np.ndarray], sample_rate: int, chunk_ms: float
) -> None:
    """Streams a recording, printing for each chunk where it ends, the time it took and the text of the utterance so
    far, and in the end the times of all."""
    import torch

    torch.set_num_threads(1)  # a chunk is a few ms of work: less than threads cost that wait for one another
    heard, count, total, most = 0, 0, 0.0, 0.0
    print(f"{'heard':>8}  {'took':>9}  text so far")

    def report(began: float, text: str) -> None:
        nonlocal count, total, most
        took = 1000 * (time.perf_counter() - began)
        count, total, most = count + 1, total + took, max(most, took)
        print(f"{heard / sample_rate:6.2f} s  {took:6.1f} ms  {text}", flush=True)

    for chunk in chunks:
        heard += len(chunk)
        began = time.perf_counter()
        report(began, stream.accept(chunk))
    began = time.perf_counter()
    report(began, stream.finish())
    print(
        f"{count} chunks of {chunk_ms:g} ms: {total / count:.1f} ms each in the mean, "
        f"{most:.1f} ms at most; {1000 * heard / sample_rate / total:.0f} times faster than real time"
    )

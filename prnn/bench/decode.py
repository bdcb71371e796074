"""Greedy search of a transducer: microseconds a symbol, and seconds of audio a second.

    prnn bench --accelerator cpu decode [--batch 1 16] [--frames 188] [--classes 1025] [--predictor lstm] [--layers 1]
                                        [--hidden 640] [--joiner 640] [--tdt] [--dtype float32] [--rate 0.3]
                                        [--frame-ms 80] [--beam 4] [--seconds 1] [--threads 2] [--json FILE]
    prnn bench --accelerator cpu decode --streams 1 16 [--chunk-ms 160 320] [--encoder-layers 3] [--encoder-hidden 320]
                                        [--encoder-projection 0] [--sherpa] ...

A predictor and a joiner with random weights, the blank's bias such that a frame has `--rate` symbols; random encoder
frames, all of one length. Searches of the same modules: `libprnn`, where it has one for them, `steps`, which serves
modules of any class (docs/transducer.md), and `NeMo`, greedily with an LSTM where its package is installed, on a GPU in
CUDA graphs. `ms` is the median time of a search of the batch, with the results on
the host; `us a symbol` is that over the symbols of the longest transcript, `audio s/s` the audio of the batch, of
frames of `--frame-ms`, over it. With `--beam`, each of them searches with a beam of that size, too, at most one symbol
a frame. On a GPU, `launch` is the library's call alone, as a program in C has it: the median time of a replay of its
CUDA graph, from projected frames and prepared weights to results on the GPU.

With `--streams`, N streams of a random model with recurrent layers go through a `StreamPool` chunk by chunk: `ms` is
the median time of a chunk of all streams, from their samples to their symbols on the host, features, encoder and search
included. On a GPU the samples lie in one array of pinned memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import prnn
from prnn._errors import NotSupportedError
from prnn._fields import Within, number_parser
from prnn._ops import transducer_search as library
from prnn._ops.transducer_search import BeamFound, Found
from prnn.bench.decode_nemo import nemo_search
from prnn.bench.json_rows import processor, write_rows
from prnn.bench.options import COUNT, SECONDS, THREADS, add_json
from prnn.bench.timing import time_graph
from prnn.transducer import Joiner, RecurrentPredictor, StatelessPredictor
from prnn.transducer.hypothesis import Decoder, best_lists, found_hypotheses
from prnn.transducer.resident import resident
from prnn.transducer.streaming import MAX_SYMBOLS, SearchOptions
from prnn.transducer.streaming import search as beam_search

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ENCODER = 512
_DURATIONS = (0, 1, 2, 3, 4)
_REPLAYS = 20


class _Recurrent(RecurrentPredictor):
    """A class that libprnn does not know."""


class _Stateless(StatelessPredictor):
    """A stateless predictor that libprnn's search does not know."""


def modules(
    arguments: argparse.Namespace, device: torch.device
) -> tuple[RecurrentPredictor | StatelessPredictor, Joiner]:
    """The predictor and the joiner, their decisions depending on frames and symbols."""
    torch.manual_seed(0)
    hidden, classes = arguments.hidden, arguments.classes
    predictor: RecurrentPredictor | StatelessPredictor
    if arguments.predictor == "stateless":
        predictor = StatelessPredictor(classes, hidden)
    else:
        predictor = RecurrentPredictor(classes, hidden, hidden, arguments.layers, arguments.predictor)
    joiner = Joiner(_ENCODER, hidden, arguments.joiner, classes, durations=len(_DURATIONS) * arguments.tdt)
    with torch.no_grad():
        joiner.output.weight.mul_(8.0)
        joiner.encoder_proj.weight.mul_(2.0)
    return predictor.to(device).eval(), joiner.to(device).eval()


def set_rate(search: Callable[[], prnn.transducer.TransducerSearchResult], bias: Tensor, wanted: float) -> None:
    """Moves the blank's bias, so that a search finds about so many symbols an utterance."""
    low, high = -50.0, 50.0
    for _ in range(16):
        middle = (low + high) / 2
        with torch.no_grad():
            bias[0] = middle
        found = float(search().counts.float().mean())
        low, high = (middle, high) if found > wanted else (low, middle)


def on_host(find: Callable[[], Any]) -> list[prnn.Hypothesis]:
    return found_hypotheses(find())


def median_time(call: Callable[[], object], seconds: float) -> float:
    for _ in range(2):
        call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@torch.no_grad()
def library_call(decoder: Decoder, frames: Tensor, beam: int | None) -> Callable[[], Found | BeamFound] | None:
    """The library's search of whole utterances (N, T, E), with its weights prepared and the frames projected; with a
    beam, at most one symbol a frame. None where it has none for the modules, sizes and device."""
    known = resident(decoder, trusts_versions=False)
    if known is None:
        return None
    prepared, projected = known.prepared, known.frames(frames)
    lengths = torch.full((len(frames),), frames.shape[1], dtype=torch.int32, device=frames.device)
    if beam is None:
        return partial(library.search, prepared, projected, lengths, MAX_SYMBOLS)
    search = partial(library.beam_search, prepared, projected, lengths, beam, 1, True, None, None)
    try:
        search()
    except NotSupportedError:
        return None
    return search


def measure(arguments: argparse.Namespace, device: torch.device) -> list[dict[str, object]]:
    predictor, joiner = modules(arguments, device)
    durations = _DURATIONS if arguments.tdt else ()
    dtype = _DTYPES[arguments.dtype]
    frames = torch.randn(max(arguments.batch), arguments.frames, _ENCODER, device=device)

    def search(count: int) -> prnn.transducer.TransducerSearchResult:
        return prnn.transducer_search(frames[:count], predictor=predictor, joiner=joiner, durations=durations)

    @torch.no_grad()
    def by_library(decoder: Decoder, count: int) -> Found | None:
        """Calls the library's search, as `search` does. None where it has none for the modules or sizes."""
        known = resident(decoder, trusts_versions=False)
        lengths = torch.full((count,), arguments.frames, device=device)
        return None if known is None else known.search(frames[:count], lengths, MAX_SYMBOLS, None)

    set_rate(lambda: search(min(8, len(frames))), joiner.output.bias, arguments.rate * arguments.frames)
    predictor, joiner, frames = predictor.to(dtype), joiner.to(dtype), frames.to(dtype)
    known, other = (
        (StatelessPredictor, _Stateless) if arguments.predictor == "stateless" else (RecurrentPredictor, _Recurrent)
    )
    nemo = nemo_search(predictor, joiner, 0, durations, MAX_SYMBOLS)
    rows: list[dict[str, object]] = []

    def add(count: int, way: str, longest: int, seconds: float) -> None:
        audio = count * arguments.frames * arguments.frame_ms / 1000
        row: dict[str, Any] = {"batch": count, "symbols": longest, "search": way, "ms": round(1000 * seconds, 3)}
        row |= {"us_a_symbol": round(1e6 * seconds / max(longest, 1), 1), "audio_s_per_s": round(audio / seconds)}
        rows.append(row)
        print("{batch:5d} {symbols:8d} {search:>12} {ms:9.3f} {us_a_symbol:12.1f} {audio_s_per_s:10d}".format(**row))

    @torch.no_grad()
    def by_beam(decoder: Decoder, count: int) -> list[list[prnn.Hypothesis]]:
        options = SearchOptions.checked("modified", arguments.beam, 1)
        lengths = torch.full((count,), arguments.frames, device=device)
        return best_lists(beam_search(decoder, options, frames[:count], lengths), 1, length_norm=False)

    def add_launch(count: int, way: str, longest: int, decoder: Decoder, beam: int | None) -> None:
        call = library_call(decoder, frames[:count], beam) if way == "libprnn" and device.type == "cuda" else None
        if call is not None:
            name = "launch" if beam is None else f"launch {beam}"
            add(count, name, longest, time_graph(call, _REPLAYS) / 1e6)

    print(f"{'N':>5} {'symbols':>8} {'search':>12} {'ms':>9} {'us a symbol':>12} {'audio s/s':>10}")
    for count in arguments.batch:
        for way in ("libprnn", "steps"):
            predictor.__class__ = known if way == "libprnn" else other
            decoder = Decoder.of(predictor, joiner, 0, durations, None)
            find: Callable[[], Any] = (
                partial(by_library, decoder, count) if way == "libprnn" else partial(search, count)
            )
            found = find()
            if found is None:
                continue
            longest = int(found.counts.max())
            add(count, way, longest, median_time(partial(on_host, find), arguments.seconds))
            add_launch(count, way, longest, decoder, None)
            if arguments.beam and (way != "libprnn" or library_call(decoder, frames[:count], arguments.beam)):
                longest = max(len(best[0].tokens) for best in by_beam(decoder, count))
                seconds = median_time(partial(by_beam, decoder, count), arguments.seconds)
                add(count, f"{way} {arguments.beam}", longest, seconds)
                add_launch(count, way, longest, decoder, arguments.beam)
        if nemo is not None:
            longest = max(map(len, nemo(frames[:count])))
            add(count, "NeMo", longest, median_time(partial(nemo, frames[:count]), arguments.seconds))
    predictor.__class__ = known
    return rows


def main(arguments: Sequence[str], device: str) -> None:
    """Runs the program with these options on "cpu" or "gpu"."""
    parser = argparse.ArgumentParser(
        prog="prnn bench decode",
        description=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batch", type=COUNT, nargs="+", default=[1, 16, 128] if device == "gpu" else [1, 16])
    parser.add_argument("--frames", type=COUNT, default=188)
    parser.add_argument("--classes", type=COUNT, default=1025)
    parser.add_argument("--predictor", choices=("lstm", "gru", "stateless"), default="lstm")
    parser.add_argument("--layers", type=COUNT, default=1)
    parser.add_argument("--hidden", type=COUNT, default=640)
    parser.add_argument("--joiner", type=COUNT, default=640)
    parser.add_argument("--tdt", action="store_true", help="a token-and-duration transducer, durations 0 to 4")
    parser.add_argument("--dtype", choices=tuple(_DTYPES), default="float32")
    parser.add_argument("--rate", type=SECONDS, default=0.3, help="symbols a frame")
    parser.add_argument("--beam", type=COUNT, help="measure beam searches of this size, too")
    parser.add_argument("--frame-ms", type=SECONDS, default=80.0, help="audio of an encoder frame")
    parser.add_argument("--seconds", type=SECONDS, default=1.0, help="of each measurement")
    parser.add_argument("--threads", type=THREADS, help="of a CPU; all unless told otherwise")
    group = parser.add_argument_group("streams")
    group.add_argument("--streams", type=COUNT, nargs="+", metavar="N", help="measure so many streams, chunk by chunk")
    group.add_argument("--chunk-ms", type=SECONDS, nargs="+", metavar="MS", default=[160.0, 320.0])
    group.add_argument("--encoder-layers", type=COUNT, default=3)
    group.add_argument("--encoder-hidden", type=COUNT, default=320)
    group.add_argument("--encoder-projection", type=number_parser(int, Within(0)), default=0)
    group.add_argument("--sherpa", action="store_true", help="sherpa-onnx with the exported model in the same run")
    add_json(parser)
    options = parser.parse_args(arguments)
    if device == "gpu" and not torch.cuda.is_available():
        parser.error("torch can use no GPU here; measure the CPU with prnn bench --accelerator cpu decode")
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.sherpa and (not options.streams or device == "gpu" or options.predictor != "stateless" or options.tdt):
        parser.error("--sherpa is for --streams with --accelerator cpu and --predictor stateless, and without --tdt")
    if options.streams and options.dtype != "float32" and device != "gpu":
        parser.error(f"--dtype is {options.dtype}; --streams is measured in float32 on a CPU")
    run = measure
    if options.streams:
        from prnn.bench.decode_streams import measure_streams as run  # needs the packages of prnn.asr
    rows = run(options, torch.device("cuda" if device == "gpu" else "cpu"))
    if options.json:
        write_rows(options.json, rows, None if device == "gpu" else processor())

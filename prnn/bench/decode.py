"""Greedy and beam search of a transducer: microseconds a symbol, seconds of audio a second (options:
command_lines.decode)."""

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
from prnn._ops import transducer_search as library
from prnn._ops.transducer_search import BeamFound, Found
from prnn.bench import command_lines
from prnn.bench.decode_nemo import nemo_search
from prnn.bench.json_rows import processor, write_rows
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
    parser = command_lines.decode()
    options = parser.parse_args(arguments)
    if device == "gpu" and not torch.cuda.is_available():
        parser.error("torch can use no GPU here; measure the CPU with prnn bench --accelerator cpu decode")
    if options.batch is None:
        options.batch = [1, 16, 128] if device == "gpu" else [1, 16]
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

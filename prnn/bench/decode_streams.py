"""Streams of `prnn bench decode --streams`: features, encoder and greedy search of each chunk of N streams."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prnn._search import MAX_SYMBOLS
from prnn.asr import CharTokenizer, FeatureConfig, Recogniser, compute_features
from prnn.asr.export import export
from prnn.asr.fbank import Fbank
from prnn.asr.features import OnlineFeatures
from prnn.transducer import StreamPool, Transducer, TransducerConfig

RATE = 16000
SECONDS = 10  # of a recording
_RECORDINGS = 64  # different ones
_FIRST = 5  # chunks before a measurement
_TAIL = 0.66  # seconds of silence with which sherpa-onnx decodes the last frames

Pass = Callable[[Sequence[np.ndarray], int], tuple[list[float], int]]


def recording(seed: int) -> np.ndarray:
    """Tones that change every 100 ms, of random frequency and loudness, and noise."""
    random = np.random.default_rng(seed)
    count, piece = 10 * SECONDS, RATE // 10
    frequency = np.repeat(random.uniform(200, 6000, count), piece)
    loudness = np.repeat(random.uniform(0, 0.5, count), piece)
    tones = loudness * np.sin(2 * np.pi * np.cumsum(frequency) / RATE)
    noisy: np.ndarray = (tones + 0.01 * random.standard_normal(count * piece)).astype(np.float32)
    return noisy


def model_of(arguments: argparse.Namespace, max_symbols: int, device: torch.device) -> Transducer:
    """Random weights, such that symbols depend on sounds, and about `--rate` of them are found in a frame."""
    torch.manual_seed(0)
    kind = {} if arguments.predictor == "stateless" else {"predictor_layers": arguments.layers}
    model = Transducer.from_config(
        TransducerConfig(
            vocab_size=arguments.classes,
            encoder_layers=arguments.encoder_layers,
            encoder_hidden=arguments.encoder_hidden,
            encoder_projection=arguments.encoder_projection,
            predictor=arguments.predictor,
            predictor_hidden=arguments.hidden,
            joiner_dim=arguments.joiner,
            loss="tdt" if arguments.tdt else "full",
            **kind,
        )
    ).eval()
    model.to(device)
    features = compute_features(recording(0), RATE).to(device)
    bias, low, high = model.joiner.output.bias, -50.0, 50.0
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(2.0 if name.startswith("encoder.rnn") else 1.0)
        model.joiner.encoder_proj.weight.mul_(3.0)
        model.joiner.output.weight.mul_(10.0)
        model.encoder.set_normalization(features.mean(0), features.std(0))
        wanted = arguments.rate * (len(features) // model.encoder.frame_stride)
        for _ in range(14):
            bias[0] = (low + high) / 2
            found = len(model.greedy_search(features[None], max_symbols=max_symbols)[0].tokens)
            low, high = (float(bias[0]), high) if found > wanted else (low, float(bias[0]))
    return model


def by_prnn(model: Transducer, max_symbols: int, device: torch.device) -> Pass:
    """A pool, which stays from pass to pass. On a GPU it takes samples, which lie in one array of pinned memory."""
    fbank = Fbank(FeatureConfig()).to(device) if device.type == "cuda" else None
    pools: dict[int, StreamPool] = {}

    def run(recordings: Sequence[np.ndarray], chunk: int) -> tuple[list[float], int]:
        count = len(recordings)
        if count not in pools:
            pools[count] = StreamPool(model, count, max_symbols, fbank=fbank)
        pool = pools[count]
        slots = sorted(pool.open() for _ in recordings)
        features = [OnlineFeatures(RATE) for _ in recordings] if fbank is None else []
        times, symbols = [], 0
        for pieces in _pieces(recordings, chunk):
            samples = None if fbank is None else torch.from_numpy(np.stack(pieces)).pin_memory()
            began = time.perf_counter()
            if samples is not None:
                frames = samples.to(device, non_blocking=True)
            else:
                for one, piece in zip(features, pieces, strict=True):
                    one.accept_waveform(piece)
                frames = torch.stack([one.pop() for one in features])
            symbols += len(pool.step(slots, frames).tokens)
            times.append(time.perf_counter() - began)
        if features:
            for one in features:
                one.input_finished()
            symbols += len(pool.step(slots, torch.stack([one.pop() for one in features])).tokens)
        symbols += len(pool.finish(slots).tokens)
        for slot in slots:
            pool.close(slot)
        return times, symbols

    return run


def by_sherpa(model: Transducer, threads: int) -> Pass:
    """sherpa-onnx's OnlineRecognizer with the exported model."""
    import sherpa_onnx  # type: ignore[import-untyped]

    characters = [chr(0x4E00 + number) for number in range(model.joiner.vocab_size - 1)]
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        export(Recogniser(model, FeatureConfig(), CharTokenizer(characters)), folder)
        parts = {part: str(folder / f"{part}.onnx") for part in ("encoder", "decoder", "joiner")}
        recogniser = sherpa_onnx.OnlineRecognizer.from_transducer(
            tokens=str(folder / "tokens.txt"), num_threads=threads, **parts
        )

    def decode(streams: Sequence[Any]) -> None:
        while ready := [stream for stream in streams if recogniser.is_ready(stream)]:
            recogniser.decode_streams(ready)

    def run(recordings: Sequence[np.ndarray], chunk: int) -> tuple[list[float], int]:
        streams = [recogniser.create_stream() for _ in recordings]
        times = []
        for pieces in _pieces(recordings, chunk):
            began = time.perf_counter()
            for stream, piece in zip(streams, pieces, strict=True):
                stream.accept_waveform(RATE, piece)
            decode(streams)
            times.append(time.perf_counter() - began)
        for stream in streams:
            stream.accept_waveform(RATE, np.zeros(round(_TAIL * RATE), np.float32))
            stream.input_finished()
        decode(streams)
        return times, sum(len(recogniser.get_result_all(stream).tokens) for stream in streams)

    return run


def _pieces(recordings: Sequence[np.ndarray], chunk: int) -> Iterator[list[np.ndarray]]:
    for start in range(0, len(recordings[0]), chunk):
        yield [samples[start : start + chunk] for samples in recordings]


def measure_streams(arguments: argparse.Namespace, device: torch.device) -> list[dict[str, object]]:
    """The rows, which are printed, too."""
    max_symbols = 1 if arguments.sherpa else MAX_SYMBOLS
    model = model_of(arguments, max_symbols, device)
    ways: dict[str, Pass] = {}
    if arguments.sherpa:
        ways["sherpa-onnx"] = by_sherpa(model, torch.get_num_threads())
    model.to(getattr(torch, arguments.dtype))
    ways = {"prnn": by_prnn(model, max_symbols, device), **ways}
    rows: list[dict[str, object]] = []
    print(
        f"{'N':>5} {'chunk':>8} {'search':>12} {'symbols':>8} {'ms':>9} {'p99 ms':>9} {'CPU ms/s':>9} {'audio s/s':>10}"
    )
    for count in arguments.streams:
        different = [recording(seed) for seed in range(min(count, _RECORDINGS))]
        recordings = [different[number % _RECORDINGS] for number in range(count)]
        for chunk_ms in arguments.chunk_ms:
            chunk = max(1, round(chunk_ms * RATE / 1000))
            times: dict[str, list[float]] = {way: [] for way in ways}
            cpu: dict[str, list[float]] = {way: [] for way in ways}
            symbols: dict[str, int] = {}
            for run in ways.values():  # makes what first calls make
                run([samples[: _FIRST * chunk] for samples in recordings], chunk)
            end = time.perf_counter() + arguments.seconds * len(ways)
            while len(cpu["prnn"]) < 2 or time.perf_counter() < end:
                for way, run in ways.items():  # alternately: other programs may use the machine
                    began = time.process_time()
                    spent, symbols[way] = run(recordings, chunk)
                    cpu[way].append(time.process_time() - began)
                    times[way] += spent
            for way in ways:
                median, p99 = np.percentile(times[way], [50, 99])
                row: dict[str, Any] = {"streams": count, "chunk_ms": chunk_ms, "search": way}
                row |= {"symbols": symbols[way], "ms": round(1000 * median, 3), "p99_ms": round(1000 * p99, 3)}
                row |= {"cpu_ms_per_s": round(1000 * min(cpu[way]) / (count * SECONDS), 3)}
                row |= {"audio_s_per_s": round(count * chunk_ms / 1000 / float(median))}
                rows.append(row)
                print(
                    "{streams:5d} {chunk_ms:8g} {search:>12} {symbols:8d} {ms:9.3f} {p99_ms:9.3f} {cpu_ms_per_s:9.3f} "
                    "{audio_s_per_s:10d}".format(**row)
                )
    return rows

"""The time of a training step on many GPUs, from measurements on two: docs/scaling.md as Markdown tables.

    python bench/scaling_model.py [--training FILE] [--allreduce FILE] [--durations FILE]

step(n) = alone + overhead + all-reduce(n), in a node and over nodes of eight GPUs:

    alone       the slowest GPU's step without communication, measured
    all-reduce  start + 2 (n - 1) / n bytes / bandwidth; start and bandwidth are fitted to two GPUs. Over several nodes,
                the faster of ring and tree with the latencies of NCCL's own model (src/graph/tuning.cc at 01afd20,
                protocol Simple) and a network card of 47 GB/s for each GPU
    overhead    packing and unpacking: for each gradient, the median of what is left of two GPUs' steps

Fitted on two GPUs, compared with the steps measured on two and four, and extrapolated to 8, 64 and 512. Batches whose
lengths differ add the imbalance of --durations, seconds a line, or of a made-up corpus.

Learning: utterances a millisecond, divided by 1 + batch / noise scale (McCandlish et al. 2018), the noise scale being
fitted to the epochs that MLPerf's RNN-T needs at batches of 512 to 6144.
"""

import argparse
import itertools
import json
import math
import pathlib
import statistics
from typing import Any

import numpy as np

RESULTS = pathlib.Path(__file__).parent / "results"
NODE = 8
NETWORK = 47.0 * NODE  # GB/s of a node: 46 to 48 for each 400 Gb/s card (NVIDIA/nccl-tests#290)
BYTES_A_GRADIENT = 2
# Batch: epochs until MLPerf's RNN-T has a WER of 5.8 % on LibriSpeech's dev-clean, mean of 20 runs each
# (mlcommons/logging, mlperf_logging/rcp_checker/training_3.1.0/rcps_rnnt.json at 7bbf792).
EPOCHS = {512: 42.05, 1024: 44.6, 1536: 48.9, 2048: 56.5, 3072: 65.1, 6144: 96.1}
TRAINING = sorted(RESULTS.glob("train_*_h200.json"))
Row = dict[str, Any]


class AllReduce:
    """Milliseconds of an all-reduce of so many bytes over so many GPUs, fitted to the rows of two GPUs."""

    def __init__(self, rows: list[Row]) -> None:
        two = [row for row in rows if row["GPUs"] == 2 and row["bytes"] >= 2**23]
        slope, start = np.polyfit([row["bytes"] for row in two], [row["us"] / 1000 for row in two], 1)
        self.start, self.bandwidth = float(start), float(1e-6 / slope)

    def __call__(self, gpus: int, size: float) -> float:
        if gpus == 1:
            return 0.0
        ring = self.start + 2 * (gpus - 1) / gpus * size / self.bandwidth * 1e-6
        nodes = math.ceil(gpus / NODE)
        if nodes == 1:
            return ring
        bandwidth = min(self.bandwidth, NETWORK)
        between = 2 * (nodes - 1)
        latency = 8.4 + (2 * (gpus - 1) - between) * 3.4 + between * 9.6
        ring = self.start + 1.9 * latency / 1000 + 2 * (gpus - 1) / gpus * size / bandwidth * 1e-6
        latency = 2 * ((NODE - 1) * 28 + math.log2(nodes) * 50)
        tree = self.start + latency / 1000 + 2 * size / (0.9 * bandwidth) * 1e-6
        return min(ring, tree)


class Model:
    """Milliseconds of a training step on so many GPUs."""

    def __init__(self, training: list[Row], allreduce: list[Row]) -> None:
        self.allreduce = AllReduce(allreduce)
        self.overhead = 0.0
        left = [
            (row["GradientMean"]["ms"] - self.step(row, 2)) / row["parameters"] for row in training if row["GPUs"] == 2
        ]
        self.overhead = statistics.median(left)

    def step(self, row: Row, gpus: int) -> float:
        gradients = row["parameters"]
        return max(row["each"]) + self.overhead * gradients + self.allreduce(gpus, BYTES_A_GRADIENT * gradients)

    def efficiency(self, row: Row, gpus: int, imbalance: float = 0.0) -> float:
        """Throughput over that of as many GPUs alone, in percent."""
        alone = max(row["each"])
        return 100 * alone / (self.step(row, gpus) + imbalance * alone)


def noise_scale() -> tuple[float, float]:
    """Epochs of a small batch, and the batch at which they are twice as many: a line through EPOCHS."""
    slope, start = np.polyfit(list(EPOCHS), list(EPOCHS.values()), 1)
    return float(start), float(start / slope)


def imbalance(durations: np.ndarray, size: int, processes: int) -> float:
    """By what share the longest utterance of all processes' batches exceeds the mean of the batches' longest, where
    batches are dealt as prnn train deals them: those of a step are neighbours in the order of length."""
    from prnn.asr.sampler import BucketSampler

    batches = BucketSampler(durations.tolist(), size, 1e6, seed=0).epoch(0)
    longest = np.sort([durations[batch].max() for batch in batches])[len(batches) % processes :]
    steps = longest.reshape(-1, processes)
    return float((steps.max(axis=1) / steps.mean(axis=1)).mean() - 1)


def made_up_durations(count: int = 85_617) -> np.ndarray:
    """Seconds: as many utterances as train-clean-100 has at three speeds; most of 12 to 17 s, the others shorter."""
    rng = np.random.default_rng(0)
    long = rng.random(count) < 0.7
    return np.round(np.where(long, rng.uniform(12, 17, count), rng.uniform(1.5, 12, count)), 2)


def table(head: list[str], rows: list[list[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--training", nargs="+", default=TRAINING, help="of prnn bench train on 2 and 4")
    parser.add_argument("--allreduce", default=RESULTS / "allreduce_four_h200.json", help="of bench/allreduce_gpu.py")
    parser.add_argument("--durations", help="seconds of each utterance of a corpus, one a line")
    options = parser.parse_args()
    training = [row for path in options.training for row in json.loads(pathlib.Path(path).read_text())["rows"]]
    training = [row for row in training if row["GPUs"] > 1]
    allreduce = json.loads(pathlib.Path(options.allreduce).read_text())["rows"]
    allreduce = [row for row in allreduce if row["algorithm"] == "NCCL's choice"]
    model = Model(training, allreduce)
    fit = model.allreduce
    print(f"start {fit.start:.3f} ms, bandwidth {fit.bandwidth:.0f} GB/s", end=", ")
    print(f"overhead {1e6 * model.overhead:.4f} ms for a million gradients\n")

    rows: list[list[object]] = []
    for row in (row for row in allreduce if row["GPUs"] == 4 and row["bytes"] >= 2**23):
        expected = model.allreduce(4, row["bytes"])
        rows.append([f"{row['bytes'] / 2**20:.0f}", f"{row['us'] / 1000:.3f}", f"{expected:.3f}"])
    print(table(["MiB, four GPUs", "measured, ms", "model"], rows))

    rows = []
    for row in training:
        measured, expected = row["GradientMean"]["ms"], model.step(row, row["GPUs"])
        cells = [row["encoder"], row["V"], row["N"], row["GPUs"]]
        times = [f"{max(row['each']):.2f}", f"{measured:.2f}", f"{expected:.2f}"]
        rows.append([*cells, *times, f"{100 * (expected / measured - 1):+.1f} %"])
    print(table(["encoder", "V", "N", "GPUs", "alone, ms", "measured, ms", "model", "error"], rows))

    least, noise = noise_scale()
    rows = [[batch, epochs, f"{least * (1 + batch / noise):.1f}"] for batch, epochs in EPOCHS.items()]
    print(f"{least:.1f} epochs of small batches, noise scale {noise:.0f} utterances\n")
    print(table(["batch", "epochs", "fit"], rows))

    counts = [8, 64, 512]
    durations = np.loadtxt(options.durations) if options.durations else made_up_durations()
    rows, learning = [], []
    largest = {(row["encoder"], row["V"], row["N"]): row for row in sorted(training, key=lambda row: row["GPUs"])}
    for _, row in sorted(largest.items()):
        more = [imbalance(durations, row["N"], count) for count in counts]
        alike = [f"{model.efficiency(row, count):.0f} %" for count in counts]
        unlike = [f"{model.efficiency(row, count, share):.0f} %" for count, share in zip(counts, more, strict=True)]
        both = itertools.chain(*zip(alike, unlike, strict=True))
        rows.append([row["encoder"], row["V"], row["N"], *both, 512 * row["N"]])
        speeds = [row["N"] / max(row["each"]) / (1 + row["N"] / noise)]
        for count, share in zip(counts, more, strict=True):
            batch, efficiency = count * row["N"], model.efficiency(row, count, share) / 100
            speeds.append(batch / max(row["each"]) * efficiency / (1 + batch / noise))
        learning.append([row["encoder"], row["V"], row["N"], *(f"{speed:.3g}" for speed in speeds)])
    names = [f"{count} GPUs{what}" for count in counts for what in ("", ", lengths as they come")]
    print(table(["encoder", "V", "N", *names, "batch of 512 GPUs"], rows))
    print(table(["encoder", "V", "N", "learning, 1 GPU", *(f"{count} GPUs" for count in counts)], learning))


if __name__ == "__main__":
    main()

"""Pools of streams whose steps take samples: features as of the whole recording, whatever comes when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from reference import transducer as slow

from prnn.asr import FeatureConfig
from prnn.asr.fbank import Fbank, fewest_samples
from prnn.transducer import Hypothesis, StepResult, StreamPool, Transducer
from prnn.transducer.samples import SampleSlots

CONFIGS = {
    "16 kHz": FeatureConfig(num_mel_bins=4),
    "8 kHz": FeatureConfig(8000, 4, high_freq=0.0),
    "20 ms": FeatureConfig(16000, 4, frame_shift_ms=12.5, frame_length_ms=26.0),
}


def test_frames_are_those_of_the_whole() -> None:
    """For lengths from nothing on, in pieces of random sizes, in the order of the slots and in another one."""
    random = np.random.default_rng(0)
    for config in CONFIGS.values():
        fbank = Fbank(config)
        for length in (*range(0, 1000, 37), 159, 160, 279, 280, 281, 5000):
            audio = torch.rand(2, length) - 0.5
            expected = torch.zeros(2, 0, 4)
            if length >= fewest_samples(config):
                expected, _ = fbank(audio, torch.full((2,), length))
            slots = SampleSlots(fbank, 2, torch.device("cpu"))
            parts, at = [], 0
            while at < length:
                size = int(random.integers(0, 700))
                piece = audio[:, at : at + size]
                ((rows, given, phase),) = slots.groups(np.arange(2), np.full(2, piece.shape[1]), np.zeros(2, int))
                assert rows.tolist() == [0, 1]
                order = None if random.integers(2) else torch.tensor([0, 1])
                parts.append(slots.taken(order, piece, phase))
                assert slots.advance(np.arange(2), given, phase) == parts[-1].shape[1]
                at += size
            ((_, _, phase),) = slots.groups(np.arange(2), np.zeros(2, int), np.zeros(2, int))
            parts.append(slots.rest(torch.tensor([0, 1]), phase))
            torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=0, atol=2e-4)


def come_and_go(model: Transducer, pool: StreamPool, fbank: Fbank, sizes: tuple[int, ...]) -> list[Hypothesis]:
    """At random, the pool's five slots for nine recordings, in chunks of these sizes, some of which are not full."""
    device = model.joiner.output.weight.device
    random, draw = np.random.default_rng(2), torch.Generator().manual_seed(1)
    recordings = [(torch.rand(int(n), generator=draw) - 0.5).to(device) for n in random.integers(100, 9000, 9)]
    waiting, heard = list(range(9)), dict[int, list[int]]()
    parts: list[list[Hypothesis]] = [[] for _ in recordings]

    def take(slots: list[int], found: StepResult) -> None:
        for slot, row in zip(slots, found, strict=True):
            parts[heard[slot][0]].append(row)

    while waiting or heard:
        while waiting and len(heard) < 5 and random.integers(3):
            heard[pool.open()] = [waiting.pop(), 0]
        size = int(random.choice(sizes))
        slots = [slot for slot in random.permutation(list(heard)).astype(int).tolist() if random.integers(4)]
        if not slots:
            continue
        chunk, lengths = torch.zeros(len(slots), size, device=device), []
        for row, slot in enumerate(slots):
            number, at = heard[slot]
            piece = recordings[number][at : at + size]
            chunk[row, : len(piece)] = piece
            lengths.append(len(piece))
            heard[slot][1] += len(piece)
        take(slots, pool.step(slots, chunk, torch.tensor(lengths)))
        ended = [slot for slot in slots if heard[slot][1] == len(recordings[heard[slot][0]])]
        take(ended, pool.finish(ended))
        for slot in ended:
            pool.close(slot)
            del heard[slot]
    symbols = 0
    for audio, found in zip(recordings, parts, strict=True):
        features, _ = fbank(audio[None], torch.tensor([len(audio)]))
        (expected,) = model.greedy_search(features, max_symbols=3)
        assert [token for part in found for token in part.tokens] == expected.tokens
        assert [stamp for part in found for stamp in part.timestamps] == expected.timestamps
        assert found[-1].score == pytest.approx(expected.score, abs=1e-2)
        symbols += len(expected.tokens)
    assert symbols > 20


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stack": {"frame_stack": 3, "frame_stride": 2},
    "blocks": {"encoder_residual": True},
}


def hearing(device: str = "cpu", **options: Any) -> tuple[Transducer, Fbank]:
    """A small model that finds symbols in noise, and its features."""
    model = slow.tiny_model(3, dtype=torch.float32, predictor="lstm", **options).to(device)
    fbank = Fbank(CONFIGS["16 kHz"]).to(device)
    noise, _ = fbank(torch.rand(1, 16000, device=device) - 0.5, torch.tensor([16000]))
    model.encoder.set_normalization(noise[0].mean(0), noise[0].std(0) / 3)
    with torch.no_grad():
        model.joiner.output.bias[0] -= 3.0
    return model, fbank


@pytest.mark.parametrize("kind", OPTIONS)
def test_streams_come_and_go(kind: str) -> None:
    model, fbank = hearing(**OPTIONS[kind])
    come_and_go(model, StreamPool(model, 5, 3, fbank=fbank), fbank, (1, 100, 700, 2560))


def test_wrong_samples_are_refused() -> None:
    model, fbank = hearing()
    pool = StreamPool(model, 2, fbank=fbank)
    slot = pool.open()
    with pytest.raises(ValueError, match=r"chunk has shape \(1, 9, 4\); it must be \(N, S\)"):
        pool.step([slot], torch.zeros(1, 9, 4))
    with pytest.raises(TypeError, match=r"chunk is a tensor of torch\.int16; it must be a tensor of floats"):
        pool.step([slot], torch.zeros(1, 9, dtype=torch.int16))
    with pytest.raises(ValueError, match=r"chunk_lengths\[0\] is 10; it must be in \[0, 9\]"):
        pool.step([slot], torch.zeros(1, 9), torch.tensor([10]))
    with pytest.raises(ValueError, match="fbank has a shift of 400 samples; it must be at most half of a frame, 400"):
        StreamPool(model, 2, fbank=Fbank(FeatureConfig(num_mel_bins=4, frame_shift_ms=25.0)))

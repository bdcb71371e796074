"""Training on a GPU: mixed precision from the command line, features computed there."""

from pathlib import Path

import numpy as np
import pytest
import torch
from asr_data import write_corpus
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from prnn.asr import FeatureConfig, compute_features
from prnn.asr.checkpoint import read_checkpoint
from prnn.asr.fbank import Fbank
from prnn.cli import main

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "32-true"])
@pytest.mark.parametrize("where", ["device", "workers"])
def test_precision(tmp_path: Path, precision: str, where: str) -> None:
    """float16 begins with a scale at which steps overflow: they are skipped, counted, and the training goes on."""
    manifest = write_corpus(tmp_path / "data", "tones", ["ab ca", "cab", "b", "acc ab"])
    command = f"""train --manifest {manifest} --valid {manifest} --output {tmp_path / "out"} --epochs 20 --batch-size 4
        --hidden 64 --layers 1 --precision {precision} --accelerator gpu --features-on {where} --workers 1
        --log-every 1 --valid-every 20 --pictures 1 --no-progress"""
    assert main(command.split()) == 0
    events = EventAccumulator(str(tmp_path / "out/tensorboard"))
    events.Reload()
    skipped = [event.value for event in events.Scalars("train/skipped_steps")]
    assert len(skipped) == 20
    assert all(value < 0.5 for value in skipped[10:])
    if precision != "16-mixed":
        assert not any(skipped)
    losses = [event.value for event in events.Scalars("train/loss")]
    assert losses[-1] < 0.5 * losses[0]
    checkpoint = read_checkpoint(tmp_path / "out/last.ckpt")
    assert {tensor.dtype for tensor in checkpoint["state_dict"].values()} == {torch.float32}


def test_features_of_the_gpu_are_kaldi_native_fbanks() -> None:
    rng = np.random.default_rng(0)
    recordings = [0.3 * rng.standard_normal(count) for count in (240000, 100000, 1234, 40)]
    audio = torch.nn.utils.rnn.pad_sequence([torch.tensor(r).float() for r in recordings], batch_first=True)
    lengths = torch.tensor([len(recording) for recording in recordings])
    features, counts = Fbank(FeatureConfig()).cuda()(audio.cuda(), lengths)
    for row, count, recording in zip(features.cpu(), counts, recordings, strict=True):
        expected = compute_features(recording.astype(np.float32), 16000)
        assert count == len(expected)
        torch.testing.assert_close(row[:count], expected, atol=1e-3, rtol=0)
        assert not row[count:].any()

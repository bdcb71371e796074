"""Training on a GPU: mixed precision from the command line, features computed there, batches ahead of the training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

for package in ("kaldi_native_fbank", "soundfile", "tensorboard"):
    pytest.importorskip(package, reason="needs the packages of prnn's extra, asr")

from asr_data import write_corpus
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from prnn.asr import FeatureConfig, compute_features
from prnn.asr.augment import Augmentation
from prnn.asr.checkpoint import read_checkpoint
from prnn.asr.data import open_data
from prnn.asr.fbank import Fbank
from prnn.asr.loader import Prefetcher
from prnn.asr.options import TrainingOptions
from prnn.asr.task import TransducerTask
from prnn.cli import main
from prnn.transducer import Transducer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


# torch warns where several processes of tests make its folder of compiled kernels at the same time.
@pytest.mark.filterwarnings("ignore:Specified kernel cache directory")
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


def test_batches_prepared_ahead_are_those_prepared_in_time(tmp_path: Path) -> None:
    """Although the training's stream is behind, and memory is used again and again."""
    manifest = write_corpus(tmp_path, "tones", ["ab ca", "cab", "b", "acc ab"] * 8)
    options = TrainingOptions(
        manifest, manifest, tmp_path / "out", batch_size=2, workers=2, features_on="device", accelerator="gpu",
        model={"encoder_hidden": 8, "encoder_layers": 1, "frame_stack": 4}, augmentation=Augmentation(time_warp=3),
    )  # fmt: skip
    device = torch.device("cuda", torch.cuda.current_device())
    busy = torch.randn(4096, 4096, device=device)
    features: list[list[Tensor]] = []
    for ahead in (True, False):
        data = open_data(options, 0)
        model = Transducer.from_config(options.transducer(len(data.tokenizer), 80))
        model.encoder.set_normalization(torch.full((80,), -7.0), torch.ones(80))  # type: ignore[union-attr]
        task = TransducerTask(model, options.features, data.tokenizer, options).to(device)
        features.append([])
        prefetcher = Prefetcher(data.loader, task.prepared, lambda: device)
        for batch in prefetcher if ahead else data.loader:
            if len(features[-1]) % 3:
                prefetcher.begin()
            for _ in range(10):
                busy = (busy @ busy).clamp(-1, 1)
            if not ahead:
                assert batch.features.is_pinned()
                batch = task.prepared(batch, device)
                torch.cuda.synchronize()  # the loader uses its memory again
            features[-1].append(batch.features * 2)
        data.close()
    assert len(features[0]) == 16
    assert all(torch.equal(one, two) for one, two in zip(*features, strict=True))


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_steps_do_not_wait_for_the_gpu(tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other than those that look at the gradients, or write to the log: torch refuses what would wait."""
    manifest = write_corpus(tmp_path / "data", "tones", ["ab ca", "cab", "b", "acc ab"] * 8)
    start = TransducerTask.on_train_batch_start

    def on_start(self: TransducerTask, *batch: Any) -> None:
        torch.cuda.set_sync_debug_mode("error" if 6 <= self.global_step <= 8 else "default")
        start(self, *batch)

    monkeypatch.setattr(TransducerTask, "on_train_batch_start", on_start)
    command = f"""train --manifest {manifest} --valid {manifest} --output {tmp_path / "out"} --steps 12 --batch-size 2
        --hidden 64 --layers 2 --precision {precision} --accelerator gpu --features-on device --workers 2
        --log-every 6 --valid-every 1 --pictures 0 --no-progress"""
    try:
        assert main(command.split()) == 0
    finally:
        torch.cuda.set_sync_debug_mode("default")

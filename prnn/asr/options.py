"""What a training can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from prnn._fields import Within, check_fields
from prnn.transducer import TransducerConfig

from .augment import Augmentation
from .features import FeatureConfig

_Count = Annotated[int, Within(1, 10**6)]


@dataclass(frozen=True)
class TrainingOptions:
    """What ``prnn train`` can be told.

    Args:
        manifest: training manifest.
        valid: validation manifest.
        output: folder for checkpoints and logs.
        tokenizer: a sentencepiece model, whose pieces the model is to spell; None makes the characters of the training
            texts its symbols.
        epochs: passes over the training manifest.
        batch_size: most utterances in a batch.
        batch_seconds: most seconds of audio in a batch, padding included.
        lr: peak learning rate.
        warmup: share of all steps in which the learning rate rises.
        weight_decay: of AdamW.
        clip: largest norm of the gradient.
        precision: Lightning's name of it.
        accelerator: Lightning's name of it; auto is a GPU if there is one.
        devices: GPUs, or processes on the CPU. Each takes batches of its own; their gradients are averaged.
        seed: of weights, order, augmentation and dropout.
        checkpoint_every: steps between the checkpoints from which an interrupted training goes on.
        valid_every: epochs between validations, at most ``epochs``.
        workers: processes that prepare batches; 0 prepares them in the training process, with a cache.
        cache_gb: memory for cached features, in GB.
        model: options of ``TransducerConfig`` other than vocab_size and feature_dim.
        features: what the model sees of a recording.
        augmentation: of the training features.

    Raises:
        ValueError, TypeError: naming the option, its value and what is accepted.
    """

    manifest: Path
    valid: Path
    output: Path = Path("prnn-train")
    tokenizer: Path | None = None
    epochs: _Count = 20
    batch_size: _Count = 12
    batch_seconds: Annotated[float, Within(0, 1e6, above=True)] = 120.0
    lr: Annotated[float, Within(0, 1e30, above=True)] = 3e-3
    warmup: Annotated[float, Within(0, 1)] = 0.1
    weight_decay: Annotated[float, Within(0, 1e6)] = 0.01
    clip: Annotated[float, Within(0, 1e30, above=True)] = 5.0
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    accelerator: Literal["auto", "cpu", "gpu", "cuda"] = "auto"
    devices: Annotated[int, Within(1, 1024)] = 1
    seed: Annotated[int, Within(0, 2**32 - 1)] = 0
    checkpoint_every: Annotated[int, Within(1, 10**9)] = 100
    valid_every: _Count = 1
    workers: Annotated[int, Within(0, 1024)] = 0
    cache_gb: Annotated[float, Within(0, 1e6)] = 2.0
    model: dict[str, Any] = field(default_factory=dict)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        check_fields(self)
        self.transducer(vocab_size=2, feature_dim=1)

    def transducer(self, vocab_size: int, feature_dim: int) -> TransducerConfig:
        """The model for so many symbols and features a frame."""
        return TransducerConfig.from_dict({**self.model, "vocab_size": vocab_size, "feature_dim": feature_dim})

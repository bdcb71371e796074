"""Options of a training."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from prnn._fields import Within, check_fields
from prnn.transducer import TransducerConfig

from .augment import Augmentation
from .feature_config import FeatureConfig

_Count = Annotated[int, Within(1, 10**6)]
_MOST_TIMES = 1000


@dataclass(frozen=True)
class TrainingOptions:
    """Options of ``prnn train``.

    Args:
        manifest: training manifest.
        also: further training manifests, of JSON lines as `manifest` then is, each with the times that an epoch has it:
            [own.jsonl:5, more.jsonl].
        valid: validation manifest.
        output: folder for checkpoints and logs.
        tokenizer: a sentencepiece model, whose pieces the model is to spell; null makes the characters of the training
            texts its symbols.
        init: a checkpoint with whose weights the training begins: all of its encoder, with the features' mean and
            standard deviation, and of the rest what belongs to symbols that are the same. Options of the model and of
            the features that are not given are those of the checkpoint. null begins with random weights.
        channel: of recordings with several channels the one to read, from 0 on, where the manifest does not say it;
            null is the mean of all.
        epochs: passes over the training manifest.
        steps: steps of the optimizer at which the training ends, in the place of `epochs`; null is none.
        batch_size: most utterances in a batch.
        batch_seconds: most seconds of audio in a batch, padding included; an utterance that is longer is a batch of its
            own.
        min_duration: seconds of the shortest utterance that is trained on.
        max_duration: seconds of the longest utterance that is trained on; null takes all.
        accumulate: batches of each process whose gradients make one step.
        lr: peak learning rate; the command's default is 0.001 if the encoder's cell is not layer_norm_lstm.
        warmup: share of all steps in which the learning rate rises; then it falls along a cosine to 1 %.
        weight_decay: of AdamW.
        beta1: of AdamW: decay of the mean of gradients.
        beta2: of AdamW: decay of the mean of their squares.
        eps: of AdamW.
        clip: largest norm of the gradient.
        ema: decay, at each step, of an exponential moving average of the weights, which then is what is validated and
            saved as the model; 0 is none.
        average: validated models whose mean is saved at the end, as averaged.ckpt; 0 is none.
        average_of: whether these are the best ones or the last ones.
        precision: of the arithmetic, by Lightning's names: float32, or with float32 weights bfloat16 or float16.
        accelerator: where to train; auto is a GPU if there is one.
        devices: GPUs, or processes on the CPU, of a node. Each takes batches of its own; their gradients are averaged.
        num_nodes: machines, each with so many devices; torchrun starts the training on every one.
        seed: of weights, order, augmentation and dropout.
        checkpoint_every: steps between the checkpoints from which an interrupted training goes on.
        valid_every: epochs between validations; the end of the training is validated, too.
        log_every: steps between the entries of the log.
        pictures: validation utterances whose audio and alignment the log has, for each validation.
        workers: processes that prepare batches; 0 prepares them in the training process.
        cache_gb: memory, in GB, for utterances of a *.jsonl manifest that have been read: their features, or their
            samples where these are changed or go to the device. A process that trains shares it with its workers.
        features_on: where features are computed: by the processes that prepare batches ("workers"), or by the device
            that trains ("device").
        model: options of ``TransducerConfig`` other than vocab_size and feature_dim.
        features: what the model sees of a recording.
        augmentation: of the training data.

    Raises:
        ValueError, TypeError: naming the option, its value and what is accepted.
    """

    manifest: Path
    valid: Path
    output: Path = Path("prnn-train")
    also: tuple[str, ...] = ()
    tokenizer: Path | None = None
    init: Path | None = None
    channel: Annotated[int | None, Within(0, 31)] = None
    epochs: _Count = 40
    steps: Annotated[int | None, Within(1, 10**9)] = None
    batch_size: _Count = 16
    batch_seconds: Annotated[float, Within(0, 1e6, above=True)] = 120.0
    min_duration: Annotated[float, Within(0, 1e6)] = 0.0
    max_duration: Annotated[float | None, Within(0, 1e6, above=True)] = None
    accumulate: _Count = 1
    lr: Annotated[float, Within(0, 1e30, above=True)] = 2e-3
    warmup: Annotated[float, Within(0, 1)] = 0.1
    weight_decay: Annotated[float, Within(0, 1e6)] = 0.01
    beta1: Annotated[float, Within(0, 1, below=True)] = 0.9
    beta2: Annotated[float, Within(0, 1, below=True)] = 0.98
    eps: Annotated[float, Within(0, 1, above=True)] = 1e-8
    clip: Annotated[float, Within(0, 1e30, above=True)] = 5.0
    ema: Annotated[float, Within(0, 1, below=True)] = 0.0
    average: Annotated[int, Within(0, 1000)] = 0
    average_of: Literal["best", "last"] = "best"
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    accelerator: Literal["auto", "cpu", "gpu", "cuda"] = "auto"
    devices: Annotated[int, Within(1, 1024)] = 1
    num_nodes: Annotated[int, Within(1, 1024)] = 1
    seed: Annotated[int, Within(0, 2**32 - 1)] = 0
    checkpoint_every: Annotated[int, Within(1, 10**9)] = 100
    valid_every: _Count = 1
    log_every: _Count = 10
    pictures: Annotated[int, Within(0, 100)] = 2
    workers: Annotated[int, Within(0, 1024)] = 0
    cache_gb: Annotated[float, Within(0, 1e6)] = 2.0
    features_on: Literal["workers", "device"] = "workers"
    model: dict[str, Any] = field(default_factory=dict)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        check_fields(self)
        _ = self.manifests
        self.transducer(vocab_size=2, feature_dim=1)
        if self.max_duration is not None and self.max_duration < self.min_duration:
            raise ValueError(
                f"max_duration is {self.max_duration:g}; it must be at least min_duration, {self.min_duration:g}"
            )

    @property
    def manifests(self) -> list[tuple[Path, int]]:
        """The training manifests, and how often an epoch has each."""
        found = [(self.manifest, 1)]
        for item in self.also:
            path, _, times = item.rpartition(":") if re.fullmatch(r".+:\d+", item) else (item, "", "1")
            if not 1 <= int(times[:9]) <= _MOST_TIMES:
                raise ValueError(f"also has {item!r}; a manifest may be there 1 to {_MOST_TIMES} times")
            found.append((Path(path).expanduser(), int(times)))
        return found

    @property
    def processes(self) -> int:
        """The number of processes that train together."""
        return self.devices * self.num_nodes

    def transducer(self, vocab_size: int, feature_dim: int) -> TransducerConfig:
        """The model for so many symbols and features a frame."""
        return TransducerConfig.from_dict({**self.model, "vocab_size": vocab_size, "feature_dim": feature_dim})

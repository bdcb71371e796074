"""Fine-tunes a Parakeet checkpoint on a manifest with Transformers' Trainer.

    python -m recipes.finetune.train --checkpoint FOLDER --manifest train.jsonl --output tuned
    prnn run --compat transformers -- python -m recipes.finetune.train ...

The same script with and without prnn: it names neither a loss nor a search. The output folder is a checkpoint, too;
log.json in it has the loss and the seconds of every step, and the peak of the memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForRNNT,
    AutoModelForTDT,
    AutoProcessor,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_pt_utils import LengthGroupedSampler

from prnn.asr import Utterance, read_manifest
from prnn.asr.dataset import read_samples
from prnn.asr.features import resampled


def load_checkpoint(folder: str) -> tuple[Any, Any]:
    """Model and processor (tokenizer and feature extractor) of a folder, or of a name on a hub."""
    kinds = {"parakeet_tdt": AutoModelForTDT, "parakeet_rnnt": AutoModelForRNNT}
    kind = AutoConfig.from_pretrained(folder).model_type
    if kind not in kinds:
        raise SystemExit(f"{folder} has a model of type {kind}; it must be one of {', '.join(kinds)}")
    return kinds[kind].from_pretrained(folder), AutoProcessor.from_pretrained(folder)


def samples_of(utterance: Utterance, rate: int) -> np.ndarray:
    """An utterance's part of its recording, (S,), at `rate` hertz."""
    return resampled(*read_samples(utterance), rate)


class Collator:
    """Batches of utterances as the model takes them: features and their mask, labels, and the decoder's input."""

    def __init__(self, processor: Any, blank_is_padding: bool) -> None:
        self.processor = processor
        self.blank_is_padding = blank_is_padding  # of labels, by which ParakeetForRNNT counts them

    def __call__(self, utterances: list[Utterance]) -> Any:
        rate = self.processor.feature_extractor.sampling_rate
        samples = [samples_of(utterance, rate) for utterance in utterances]
        batch = self.processor(samples, text=[utterance.text for utterance in utterances], sampling_rate=rate)
        if self.blank_is_padding:
            padding = batch["labels"] == self.processor.tokenizer.pad_token_id
            batch["labels"] = batch["labels"].masked_fill(padding, self.processor.blank_token_id)
        return batch


class ByLength(Trainer):
    """A Trainer whose batches are of utterances of about the same length."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return LengthGroupedSampler(
            self.args.train_batch_size,
            lengths=[round(1000 * utterance.duration) for utterance in self.train_dataset],
            generator=torch.Generator().manual_seed(self.args.seed),
        )


class Times(TrainerCallback):
    """Seconds of every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, *arguments: Any, **options: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, *arguments: Any, **options: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self._began)


def peak_memory() -> int:
    """Bytes: of the GPU, or of the process where there is none."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--checkpoint", required=True, help="a folder of save_pretrained, or a name on a hub")
    add("--manifest", type=Path, required=True, help="training utterances, one JSON object a line")
    add("--output", type=Path, required=True, help="the folder of the tuned checkpoint")
    add("--steps", type=int, default=1000, help="batches (%(default)s)")
    add("--batch-size", type=int, default=16, help="utterances (%(default)s)")
    add("--lr", type=float, default=1e-3, help="peak learning rate (%(default)s)")
    add("--warmup", type=int, default=50, help="steps until then (%(default)s)")
    add("--workers", type=int, default=0, help="processes that load batches (%(default)s: none)")
    add("--seed", type=int, default=0, help="of the order of the utterances, and of dropout (%(default)s)")
    arguments = parser.parse_args()
    model, processor = load_checkpoint(arguments.checkpoint)
    times = Times()
    trainer = ByLength(
        model=model,
        args=TrainingArguments(
            output_dir=str(arguments.output),
            max_steps=arguments.steps,
            per_device_train_batch_size=arguments.batch_size,
            learning_rate=arguments.lr,
            warmup_steps=arguments.warmup,
            lr_scheduler_type="cosine",
            bf16=torch.cuda.is_available(),
            use_cpu=not torch.cuda.is_available(),  # without it several processes on CPUs train a model each
            dataloader_num_workers=arguments.workers,
            logging_steps=1,
            disable_tqdm=True,
            save_strategy="no",
            report_to="none",
            remove_unused_columns=False,
            seed=arguments.seed,
        ),
        data_collator=Collator(processor, model.config.model_type == "parakeet_rnnt"),
        train_dataset=read_manifest(arguments.manifest),
        callbacks=[times],
    )
    trainer.train()
    trainer.save_model()
    if not trainer.is_world_process_zero():
        return
    processor.save_pretrained(arguments.output)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    log = {"loss": losses, "seconds": times.seconds, "bytes": peak_memory()}
    (arguments.output / "log.json").write_text(json.dumps(log))


if __name__ == "__main__":
    main()

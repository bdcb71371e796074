"""Recognises a manifest with a Parakeet checkpoint by Transformers' `generate` and prints the error rates.

    python -m recipes.finetune.evaluate --checkpoint FOLDER --manifest test.jsonl

They are written to rates.json in the folder, too.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from prnn.asr import Utterance, read_manifest
from prnn.asr.metrics import error_rates
from recipes.finetune.train import load_checkpoint, samples_of


@torch.inference_mode()
def recognise(model: Any, processor: Any, utterances: list[Utterance], batch_size: int = 32) -> list[str]:
    """The texts, in the manifest's order."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device).eval()
    order = sorted(range(len(utterances)), key=lambda number: utterances[number].duration)
    texts = [""] * len(utterances)
    rate = processor.feature_extractor.sampling_rate
    for begin in range(0, len(order), batch_size):
        numbers = order[begin : begin + batch_size]
        samples = [samples_of(utterances[number], rate) for number in numbers]
        inputs = processor(samples, sampling_rate=rate).to(device)
        found = model.generate(**inputs)
        for number, text in zip(
            numbers, processor.batch_decode(found.sequences, skip_special_tokens=True), strict=True
        ):
            texts[number] = text
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--checkpoint", required=True, help="a folder of save_pretrained, or a name on a hub")
    parser.add_argument("--manifest", type=Path, required=True, help="utterances, one JSON object a line")
    arguments = parser.parse_args()
    model, processor = load_checkpoint(arguments.checkpoint)
    utterances = read_manifest(arguments.manifest)
    began = time.perf_counter()
    texts = recognise(model, processor, utterances)
    seconds = time.perf_counter() - began
    wer, cer = error_rates([utterance.text for utterance in utterances], texts)
    if Path(arguments.checkpoint).is_dir():
        (Path(arguments.checkpoint) / "rates.json").write_text(json.dumps({"wer": wer, "cer": cer}))
    print(f"{len(texts)} utterances in {seconds:.1f} s: WER {100 * wer:.2f} %, CER {100 * cer:.2f} %; the first three:")
    for utterance, text in list(zip(utterances, texts, strict=True))[:3]:
        print(f"  said: {utterance.text}\n  read: {text}")


if __name__ == "__main__":
    main()

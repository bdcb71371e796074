"""Time and memory of a training step of Parakeet-TDT 0.6B's shape, with random weights, AdamW and bfloat16: with
Transformers as it comes, with prnn's loss of the logits, and with prnn's loss without logits, each in a process of its
own.

    python -m recipes.finetune.measure
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

WAYS = {
    "shipped": "Transformers",
    "logits": "prnn's loss of the logits",
    "fused": "prnn's loss without logits",
    "encoder": "the encoder alone",
}


def median_ms(step: Callable[[], object], steps: int, device: torch.device) -> float:
    """Milliseconds of a call, after two that do not count."""
    times = []
    for _ in range(steps + 2):
        began = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[2:]) * 1e3


def measure(way: str, arguments: argparse.Namespace) -> None:
    if way in ("logits", "fused"):
        import prnn.compat

        prnn.compat.install("transformers")
    from transformers import ParakeetForTDT, ParakeetTDTConfig

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    config = ParakeetTDTConfig()
    config.encoder_config.num_hidden_layers = arguments.layers
    with device:
        model = ParakeetForTDT(config).to(torch.bfloat16).train()
    batch, frames = arguments.batch_size, 100 * arguments.seconds
    mels = config.encoder_config.num_mel_bins
    audio = {
        "input_features": torch.randn(batch, frames, mels, device=device, dtype=torch.bfloat16),
        "attention_mask": torch.ones(batch, frames, dtype=torch.long, device=device),
    }
    labels = torch.randint(3, 1000, (batch, arguments.symbols), device=device)
    begin = torch.full((batch, 1), config.blank_token_id, device=device)
    texts = {"labels": labels, "decoder_input_ids": torch.cat([begin, labels], 1)}
    options = {"output_logits": True} if way == "logits" else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)  # as Transformers' Trainer has it

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        if way == "encoder":
            loss = model.get_audio_features(**audio).pooler_output.float().square().mean()
        else:
            loss = model(**audio, **texts, **options).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    first = step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    ms = median_ms(step, arguments.steps, device)
    memory = f", peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if device.type == "cuda" else ""
    print(f"{WAYS[way]}: first loss {first:.4f}, step {ms:.1f} ms{memory}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--way", choices=WAYS, help="of these alone, in this process")
    add("--batch-size", type=int, default=8, help="utterances (%(default)s)")
    add("--seconds", type=int, default=12, help="of each (%(default)s)")
    add("--symbols", type=int, default=40, help="of each (%(default)s)")
    add("--layers", type=int, default=24, help="of the encoder (%(default)s)")
    add("--steps", type=int, default=7, help="measured steps (%(default)s)")
    arguments = parser.parse_args()
    if arguments.way:
        measure(arguments.way, arguments)
        return
    if torch.cuda.is_available():
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments}", flush=True)
    for way in WAYS:
        command = [sys.executable, "-m", "recipes.finetune.measure", *sys.argv[1:], "--way", way]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()

"""Where the random numbers of dropout come from."""

import torch
from torch import Tensor

__all__ = ["draw_seed"]


def draw_seed(device: torch.device, words: int = 1) -> Tensor:
    """(words,) int64 on `device`, from which a call's masks are to follow, drawn by torch from the device's default
    generator.

    So torch.manual_seed reproduces the masks, activation checkpointing repeats them, and a replay of a CUDA graph draws
    again: nothing is drawn on the host for a tensor on a GPU, and nothing waits for it."""
    return torch.randint(2**63 - 1, (words,), dtype=torch.int64, device=device)

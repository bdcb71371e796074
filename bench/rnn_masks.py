"""An LSTM with zoneout 0.1 and recurrent dropout 0.1 by the kernels of plain layers and by those of LayerNormLSTM,
between which prnn._state_masks.are_kernels_faster() chooses; microseconds per timestep.

    python bench/rnn_masks.py [--types bfloat16 float32 tf32] [--hidden 128 ...] [--batch 1 ...] [--steps 64]

Forward / training step with the gradients of input and parameters, masks drawn in every replay of a CUDA graph. Input
size = hidden size. The ratio is LayerNormLSTM's time over the plain kernels'; "chosen" says which the module takes.
"""

import argparse
import itertools
from unittest.mock import patch

import torch

import prnn
from prnn import _state_masks
from prnn.bench.rnn_gpu import Times, time_module

MASKS = {"zoneout": 0.1, "recurrent_dropout": 0.1}
REPEATS = 7


def times_of(hidden: int, batch: int, dtype: torch.dtype, steps: int, plain: bool) -> Times:
    module = prnn.nn.LSTM(hidden, hidden, device="cuda", dtype=dtype, **MASKS)
    x = torch.randn(steps, batch, hidden, device="cuda", dtype=dtype, requires_grad=True)
    with patch.object(prnn.nn, "are_in_kernels", lambda *_: plain):
        return time_module(module, x, torch.randn_like(x), REPEATS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", default=["bfloat16", "float32", "tf32"])
    parser.add_argument("--hidden", nargs="+", type=int, default=[128, 256, 512, 640, 1024, 1536])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 32, 64, 128, 256, 512])
    parser.add_argument("--steps", type=int, default=64)
    arguments = parser.parse_args()
    print("| type | H | N | plain kernels | LayerNormLSTM's | ratio | chosen |\n|---|---|---|---|---|---|---|")
    for name, hidden, batch in itertools.product(arguments.types, arguments.hidden, arguments.batch):
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        dtype = torch.float32 if name == "tf32" else getattr(torch, name)
        plain, other = (times_of(hidden, batch, dtype, arguments.steps, by_plain) for by_plain in (True, False))
        chosen = [
            "plain" if _state_masks.are_kernels_faster(hidden, batch, dtype, t) else "other" for t in (False, True)
        ]
        columns = [" / ".join(f"{time / arguments.steps:.2f}" for time in pair) for pair in (plain, other)]
        ratio = " / ".join(f"{theirs / ours:.2f}" for ours, theirs in zip(plain, other, strict=True))
        print(f"| {name} | {hidden} | {batch} | {' | '.join(columns)} | {ratio} | {' / '.join(chosen)} |", flush=True)


if __name__ == "__main__":
    main()

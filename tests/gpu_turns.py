"""Training steps of stacks on the GPU, again and again, by processes between which it takes turns: each must leave the
same bits as the first one of its stack. Blocks of a process that the GPU leaves and comes back to may be late by
milliseconds. `PYTHONPATH=. python tests/gpu_turns.py [--seconds S] [--processes N]`."""

import argparse
import multiprocessing
import random
import time

import torch

import prnn

# Cell, layers, hidden size, projection, batch, timesteps, whether sequences have different lengths, dropout.
STACKS = [
    ("LSTM", 5, 1024, 0, 4, 160, False, 0.0),
    ("LSTM", 5, 1024, 0, 8, 200, True, 0.0),
    ("LSTM", 7, 1024, 0, 4, 130, False, 0.0),
    ("LSTM", 10, 960, 0, 8, 150, True, 0.0),
    ("LSTM", 3, 1024, 0, 8, 133, True, 0.0),
    ("LSTM", 5, 1024, 0, 4, 129, True, 0.0),
    ("LSTM", 12, 1024, 512, 4, 150, False, 0.0),
    ("LSTM", 5, 832, 0, 8, 129, False, 0.0),
    ("LSTM", 8, 640, 0, 5, 140, True, 0.0),
    ("LSTM", 5, 1024, 512, 3, 150, True, 0.0),
    ("LSTM", 12, 1024, 512, 4, 150, False, 0.1),
    ("LSTM", 5, 1024, 512, 8, 150, True, 0.1),
    ("LSTM", 7, 1024, 0, 8, 130, False, 0.1),
    ("GRU", 5, 1024, 0, 4, 160, False, 0.0),
    ("GRU", 6, 1024, 0, 8, 150, True, 0.0),
    ("GRU", 8, 640, 0, 3, 140, True, 0.0),
]
INPUT, AT_ONCE = 128, 4  # stacks of a process


class Step:
    def __init__(
        self,
        cell: str,
        layers: int,
        hidden: int,
        projection: int,
        batch: int,
        steps: int,
        is_ragged: bool,
        dropout: float,
    ) -> None:
        sizes = f"{layers} x {hidden} -> {projection or hidden}, N = {batch}, T = {steps}"
        self.name = f"{cell} {sizes}, lengths: {is_ragged}, dropout {dropout}"
        like = {"device": "cuda", "dtype": torch.float16}
        projected = {"proj_size": projection} if projection else {}
        self.module = getattr(prnn.nn, cell)(INPUT, hidden, layers, dropout=dropout, **projected, **like)
        self.x = torch.randn(steps, batch, INPUT, requires_grad=True, **like)
        self.dy = torch.randn(steps, batch, projection or hidden, **like)
        self.lengths = torch.tensor([steps - (steps - 1) * n // batch for n in range(batch)]) if is_ragged else None
        self.first = self.run()

    def run(self) -> dict[str, torch.Tensor]:
        torch.manual_seed(5)  # dropout's masks
        y, states = self.module(self.x, lengths=self.lengths)
        named = dict(self.module.named_parameters())
        gradients = torch.autograd.grad(y, [self.x, *named.values()], self.dy)
        named_states = dict(zip("hc", states if isinstance(states, tuple) else (states,), strict=False))
        return {"y": y} | named_states | dict(zip(("x", *named), gradients, strict=True))

    def differences(self) -> list[str]:
        return [name for name, found in self.run().items() if not torch.equal(found, self.first[name])]


def take_steps(number: int, seconds: float) -> bool:
    random.seed(number)
    torch.manual_seed(number)
    steps = [Step(*stack) for stack in random.sample(STACKS, AT_ONCE)]
    end, taken, wrong = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        step = random.choice(steps)
        taken += 1
        if names := step.differences():
            wrong += 1
            print(f"process {number}, step {taken}, {step.name}: other bits in {', '.join(names)}", flush=True)
    print(f"process {number}: {taken} steps, {wrong} wrong", flush=True)
    return wrong == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=8)
    arguments = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        taken_right = pool.starmap(take_steps, [(n, arguments.seconds) for n in range(arguments.processes)], 1)
    raise SystemExit(not all(taken_right))

"""prnn.nn.LSTM and GRU against torch.nn's on the CPU: time of inference and of a training step, and their ratios.

    prnn bench --device cpu rnn [--threads 2] [--steps 100] [--seconds 1.5] [--cpu-time] [--cells LSTM] [--hidden 256]

float32, one layer, input size = hidden size. Both modules have the same weights and run in turn in one process, many
times, so that whatever else the machine does meets both. `ratio` is torch's time over prnn's (more than 1: prnn is
faster), of the two fastest runs and, in brackets, the median over the pairs of neighbouring runs. A training step is
the forward pass and the gradients of input and weights.

--cpu-time takes one thread's processor time in place of the clock's: what to use on a machine with other work, where a
thread that waits for its partner mostly measures the scheduler.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import prnn
from prnn.bench.options import COUNT, SECONDS, THREADS


def inference(module: torch.nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        module(x)


def training_step(module: torch.nn.Module, x: torch.Tensor) -> None:
    module.zero_grad(set_to_none=True)
    output, _ = module(x.detach().requires_grad_())
    output.backward(torch.ones_like(output))


def measure(
    ours: Callable[[], None], theirs: Callable[[], None], seconds: float, clock: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Seconds of each run, the two in turn and the first to run changing, for about `seconds` in all."""
    times: tuple[list[float], list[float]] = ([], [])
    ours(), theirs()
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(times[0]) < 3:
        order = (0, 1) if len(times[0]) % 2 == 0 else (1, 0)
        for which in order:
            start = clock()
            (ours, theirs)[which]()
            times[which].append(clock() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=THREADS, default=2)
    parser.add_argument("--steps", type=COUNT, default=100)
    parser.add_argument("--seconds", type=SECONDS, default=1.5, help="per measurement")
    parser.add_argument("--cpu-time", action="store_true", help="one thread, its processor time")
    parser.add_argument("--cells", nargs="+", default=["LSTM", "GRU"], choices=["LSTM", "GRU", "RNN"])
    parser.add_argument("--hidden", nargs="+", type=COUNT, default=[256, 512, 1024])
    parser.add_argument("--batch", nargs="+", type=COUNT, default=[1, 4, 16])
    parser.add_argument("--what", nargs="+", default=["inference", "training"], choices=["inference", "training"])
    options = parser.parse_args()
    threads = 1 if options.cpu_time else options.threads
    clock = time.thread_time if options.cpu_time else time.perf_counter
    torch.set_num_threads(threads)
    kind = "processor time" if options.cpu_time else "time"
    print(f"float32, {options.steps} timesteps, threads {threads}, torch {torch.__version__}; {kind} in ms")
    print("| cell | H | N | what | prnn | torch | ratio |\n|---|---|---|---|---|---|---|")
    for cell in options.cells:
        for hidden in options.hidden:
            theirs = getattr(torch.nn, cell)(hidden, hidden)
            ours = getattr(prnn.nn, cell)(hidden, hidden)
            ours.load_state_dict(theirs.state_dict())
            for batch in options.batch:
                x = torch.randn(options.steps, batch, hidden)
                for what in options.what:
                    step = inference if what == "inference" else training_step
                    mine, other = measure(lambda: step(ours, x), lambda: step(theirs, x), options.seconds, clock)  # noqa: B023
                    median = statistics.median(b / a for a, b in zip(mine, other, strict=True))
                    print(
                        f"| {cell} | {hidden} | {batch} | {what} | {min(mine) * 1e3:.2f} | {min(other) * 1e3:.2f} "
                        f"| {min(other) / min(mine):.2f} ({median:.2f}) |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()

"""Recurrent layers on a GPU: prnn against torch (cuDNN), microseconds per timestep, both replayed from CUDA graphs.

    python bench/rnn_gpu.py [--dtype float16] [--cells lstm gru rnn] [--hidden 512 1024] [--batch 1 8 64] [--steps 256]

Forward is inference; train is forward and backward of all gradients. Input size = hidden size. "torch" is the best that
torch's own modules do, which pick among cuDNN's algorithms.
"""

import argparse
import statistics
from collections.abc import Callable

import torch

import prnn

CELLS: dict[str, Callable[..., tuple[torch.nn.Module, torch.nn.Module]]] = {
    "lstm": lambda size: (prnn.nn.LSTM(size, size, backend="persistent"), torch.nn.LSTM(size, size)),
    "gru": lambda size: (prnn.nn.GRU(size, size, backend="persistent"), torch.nn.GRU(size, size)),
    "rnn": lambda size: (prnn.nn.RNN(size, size, backend="persistent"), torch.nn.RNN(size, size)),
}


def time_graph(run: Callable[[], object], repeats: int = 7) -> float:
    """Median microseconds of a replay."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def measure(module: torch.nn.Module, x: torch.Tensor, dy: torch.Tensor) -> tuple[float, float]:
    """Forward and training step, microseconds per timestep."""
    steps = x.shape[0]

    def forward() -> None:
        with torch.no_grad():
            module(x)

    def train() -> None:
        for parameter in (x, *module.parameters()):
            parameter.grad = None
        module(x)[0].backward(dy)

    return time_graph(forward) / steps, time_graph(train) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float16")
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--hidden", nargs="+", type=int, default=[256, 512, 1024, 2048])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--steps", type=int, default=256)
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {arguments.dtype}, T = {arguments.steps}")
    print("| cell | H | N | prnn fwd / train | torch fwd / train | ratio fwd / train |\n|---|---|---|---|---|---|")
    for cell in arguments.cells:
        for hidden in arguments.hidden:
            ours, theirs = (module.to("cuda", dtype) for module in CELLS[cell](hidden))
            theirs.flatten_parameters()
            for batch in arguments.batch:
                torch.manual_seed(0)
                x = torch.randn(arguments.steps, batch, hidden, device="cuda", dtype=dtype, requires_grad=True)
                dy = torch.randn_like(x)
                try:
                    mine = measure(ours, x, dy)
                except prnn.NotSupportedError as error:
                    print(f"| {cell} | {hidden} | {batch} | {error} | | |")
                    continue
                other = measure(theirs, x, dy)
                print(
                    f"| {cell} | {hidden} | {batch} | {mine[0]:.2f} / {mine[1]:.2f} | {other[0]:.2f} / {other[1]:.2f} "
                    f"| {other[0] / mine[0]:.2f} / {other[1] / mine[1]:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

"""Times on a GPU: calls one after the other, replays of a CUDA graph, passes of a module."""

import statistics
from collections.abc import Callable

import torch

from prnn._ops._capture import capture_into

Times = tuple[float, float]  # forward, train


def time_calls(run: Callable[[], object], repeats: int) -> float:
    """Median microseconds."""
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def time_graph(run: Callable[[], object], repeats: int) -> float:
    """Median microseconds of a replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # for what the calls read
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with capture_into(graph, errors="relaxed"):
            run()
    graph.replay()
    return time_calls(graph.replay, repeats)


def time_module(module: torch.nn.Module, x: torch.Tensor, dy: torch.Tensor, repeats: int) -> Times:
    def forward() -> None:
        with torch.no_grad():
            module(x)

    def train() -> None:
        for parameter in (x, *module.parameters()):
            parameter.grad = None
        module(x)[0].backward(dy)

    return time_graph(forward, repeats), time_graph(train, repeats)


def per_step(times: Times, steps: int) -> str:
    return " / ".join(f"{time / steps:.2f}" for time in times)

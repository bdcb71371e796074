"""The backend of recurrent layers by measurement, as torch has it of convolutions: with torch.backends.cudnn.benchmark,
the first eager call of a size with backend="best" times both, and later ones of that size take the faster one."""

import threading
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch

from prnn._errors import NotSupportedError
from prnn._ops._capture import capture_into

__all__ = ["ALONE", "Turn", "faster_of", "is_benchmark", "replay_time"]


def is_benchmark() -> bool:
    """torch's switch."""
    return bool(torch.backends.cudnn.benchmark)


Turn = AbstractContextManager[object]  # held while the GPU works for a process
ALONE: Turn = nullcontext()

_choices: dict[Hashable, int] = {}  # each is made once and stays
_measuring = threading.Lock()


def faster_of(key: Hashable, calls: Mapping[int, Callable[[], object]], estimate: int) -> int:
    """The backend whose call takes the least time; the estimated one where cuDNN is not there or memory is short, and
    while a CUDA graph is captured, in which nothing can be timed, if the key has none yet."""
    with _measuring:  # so that calls are timed alone, and once
        if key not in _choices and not torch.cuda.is_current_stream_capturing():
            try:
                times = {backend: replay_time(call) for backend, call in calls.items()}
                _choices[key] = min(times, key=lambda backend: times[backend])
            except (NotSupportedError, torch.OutOfMemoryError):
                _choices[key] = estimate
            torch.cuda.empty_cache()  # of a step's memory for each graph
        return _choices.get(key, estimate)


def replay_time(call: Callable[[], object], turn: Turn = ALONE) -> float:
    """Microseconds of what a call launches on the current GPU, without the host's time: the lower quartile of replays
    from a CUDA graph, more of them where they are short. The current stream waits."""
    given, stream = torch.cuda.current_stream(), torch.cuda.Stream()
    stream.wait_stream(given)
    with torch.cuda.stream(stream):
        with turn:
            call()
            stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with capture_into(graph):
            call()
        times: list[float] = []
        with turn:
            graph.replay()
            while len(times) < 5 or (len(times) < 15 and sum(times) < 4e3):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                graph.replay()
                end.record()
                end.synchronize()
                times.append(start.elapsed_time(end) * 1e3)
    given.wait_stream(stream)
    return sorted(times)[len(times) // 4]

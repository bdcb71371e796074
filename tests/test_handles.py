"""The handles that torch's modules and losses make for themselves."""

import subprocess
import sys

import pytest
import torch

from prnn import _C, NotSupportedError
from prnn._ops import _handles


class Gpu:
    """Stands for one without memory, of which torch holds so much that it does not use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_held: bool = True, is_capturing: bool = False) -> None:
        self.is_held, self.calls, library = is_held, [], _C.Handle.cpu()

        class Handle:
            @staticmethod
            def cuda() -> _C.Handle:
                self.calls.append("cuda")
                if self.calls.count("empty_cache") == 0 or not self.is_held:
                    raise MemoryError("67108864 bytes of GPU memory for cuBLAS could not be had")
                return library

        monkeypatch.setattr(_C, "BUILT_FOR", "CUDA 13.0: 9.0a")
        monkeypatch.setattr(_C, "Handle", Handle)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: self.calls.append("empty_cache"))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_capturing)
        self.library = library


def test_memory_that_torch_holds_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    assert _handles._cuda_library() is gpu.library
    assert gpu.calls == ["cuda", "empty_cache", "cuda"]


def test_no_memory_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch, is_held=False)
    with pytest.raises(MemoryError, match="67108864 bytes of GPU memory for cuBLAS"):
        _handles._cuda_library()
    assert gpu.calls == ["cuda", "empty_cache", "cuda"]


def test_a_graphs_memory_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch, is_capturing=True)
    with pytest.raises(MemoryError):
        _handles._cuda_library()
    assert gpu.calls == ["cuda"]


def test_a_build_for_the_cpu_alone_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    monkeypatch.setattr(_C, "BUILT_FOR", "CPU")
    with pytest.raises(
        NotSupportedError, match=r"built for the CPU alone.*move the model and its input to the CPU, or bu"
    ):
        _handles._cuda_library()
    assert gpu.calls == []


def test_an_ended_threads_handle_is_kept() -> None:
    """But the CPU's, which cost nothing."""
    library, spare = _C.Handle.cpu(), []
    made = _handles._Made(library, 0, spare)
    assert not spare
    del made
    assert spare == [library]
    del library
    made = _handles._Made(_C.Handle.cpu(), -1)
    del made
    assert len(spare) == 1


def test_a_program_ends_in_silence() -> None:
    """Whatever the order in which the interpreter lets go of the module's variables."""
    program = """
import torch
from prnn import _C
from prnn._ops import _handles

spare = _handles._spare.setdefault(0, [])
_handles._handles.of[torch.device("cuda", 0)] = _handles._Made(_C.Handle.cpu(), 0, spare)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

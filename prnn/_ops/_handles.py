"""The library handles of this process: one for each device and thread, for a handle is used by one thread at a time."""

import functools
import threading
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from prnn import _C
from prnn._errors import NotSupportedError
from prnn._ops._torch_private import cuda_current_stream

DTYPES = {
    torch.float32: _C.FLOAT,
    torch.float64: _C.DOUBLE,
    torch.float16: _C.HALF,
    torch.bfloat16: _C.BFLOAT16,
}


# Handles of threads that have ended, by GPU: the next thread takes one, for making one takes milliseconds.
_spare: dict[int, list[_C.Handle]] = {}


class _Made:
    """A library handle, its GPU, -1 for the CPU, and the stream that it was last set to. Goes to `spare` at its end."""

    __slots__ = ("index", "library", "spare", "stream")

    def __init__(self, library: _C.Handle, index: int, spare: list[_C.Handle] | None = None) -> None:
        self.library, self.index, self.stream, self.spare = library, index, -1, spare

    def __del__(self) -> None:
        if self.spare is not None:
            self.spare.append(self.library)


class _Handles(threading.local):
    def __init__(self) -> None:
        self.of: dict[torch.device, _Made] = {}


class _Thread(threading.local):
    """The calling thread; others have other tokens, also once it has ended."""

    def __init__(self) -> None:
        self.token = object()


_handles, this_thread = _Handles(), _Thread()
_NOTHING = nullcontext()


def handle(device: torch.device) -> _C.Handle:
    """The calling thread's handle for `device`, set to torch's current stream there."""
    found = _handles.of.get(device) or _new(device)
    if found.index >= 0:
        stream = cuda_current_stream(found.index)
        if stream != found.stream:
            found.library.set_stream(stream)
            found.stream = stream
    return found.library


def _new(device: torch.device) -> _Made:
    if device.type == "cpu":
        made = _Made(_C.Handle.cpu(), -1)
    elif device.type == "cuda":
        with torch.cuda.device(device):
            index = torch.cuda.current_device()
            spare = _spare.setdefault(index, [])
            try:
                library = spare.pop()
            except IndexError:
                library = _cuda_library()
            made = _Made(library, index, spare)
    else:
        raise NotSupportedError(f"prnn runs on cpu and cuda tensors; got a tensor on {device}")
    _handles.of[device] = made
    return made


def _cuda_library() -> _C.Handle:
    """Returns the handle of the current GPU, whose memory torch may hold without using it."""
    if _C.BUILT_FOR == "CPU":
        raise NotSupportedError(
            "this prnn was built for the CPU alone, and the tensors are on a GPU: move the model and its input to the "
            "CPU, or build prnn again where there is an nvcc (docs/build.md)"
        )
    try:
        return _C.Handle.cuda()
    except MemoryError:
        if torch.cuda.is_current_stream_capturing():
            raise
        torch.cuda.empty_cache()
        return _C.Handle.cuda()


@functools.cache
def is_unproven(device: torch.device, *, of_layers: bool = True) -> bool:
    """Whether no plan of a GPU's row has ever run on one. Without a row a GPU has no layers, but losses."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        plan = _C.Rnn(_C.LSTM, _C.FLOAT, 64, 1, 64, False).query(handle(device), [1])
    return not plan["measured"] and bool(plan["supported"] or not of_layers)


def require_proven(kernels: str, device: torch.device, dtype: torch.dtype) -> None:
    """On a GPU that is_unproven(), the kernels of a loss or of the search agree with the CPU's.

    Raises:
        NotSupportedError: they do not.
    """
    if is_unproven(device, of_layers=False):
        from prnn._ops._twin import require_agreement  # which calls them

        require_agreement(kernels, device, dtype)


def is_elsewhere(tensor: Tensor) -> bool:
    """Whether the tensor is on a GPU that is not the current one."""
    return tensor.is_cuda and tensor.get_device() != torch.cuda.current_device()


def device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Makes the tensor's GPU the current one; nothing for a tensor on the CPU or on the GPU that is current."""
    if not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device():
        return _NOTHING
    return torch.cuda.device_of(tensor)

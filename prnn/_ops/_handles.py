"""The library handles of this process: one for each device and thread, for a handle is used by one thread at a time."""

import threading
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from prnn import _C
from prnn._errors import NotSupportedError

DTYPES = {
    torch.float32: _C.FLOAT,
    torch.float64: _C.DOUBLE,
    torch.float16: _C.HALF,
    torch.bfloat16: _C.BFLOAT16,
}


class _Handles(threading.local):
    def __init__(self) -> None:
        self.of: dict[torch.device, tuple[_C.Handle, bool]] = {}  # and whether it is a GPU's


_handles = _Handles()
_NOTHING = nullcontext()


def handle(device: torch.device) -> _C.Handle:
    """The calling thread's handle for `device`, set to torch's current stream there."""
    found, is_cuda = _handles.of.get(device) or _new(device)
    if is_cuda:
        # torch.cuda.current_stream() would make an object of it, at ten times the cost.
        found.set_stream(torch._C._cuda_getCurrentRawStream(device.index))
    return found


def _new(device: torch.device) -> tuple[_C.Handle, bool]:
    if device.type not in ("cpu", "cuda"):
        raise NotSupportedError(f"prnn runs on cpu and cuda tensors; got a tensor on {device}")
    if device.type == "cpu":
        made = _C.Handle.cpu()
    else:
        with torch.cuda.device(device):
            made = _C.Handle.cuda()
    _handles.of[device] = made, device.type == "cuda"
    return _handles.of[device]


def device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Makes the tensor's GPU the current one; nothing for a tensor on the CPU or on the GPU that is current."""
    if not tensor.is_cuda or tensor.get_device() == torch._C._cuda_getDevice():
        return _NOTHING
    return torch.cuda.device_of(tensor)

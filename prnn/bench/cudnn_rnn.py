"""cuDNN's recurrent layers called directly, through ctypes: every algorithm it has, where PyTorch picks for itself."""

import ctypes
import functools
from collections.abc import Callable, Iterator

import torch

ALGORITHMS = {"standard": 0, "static": 1, "dynamic": 2, "small-H": 3}
_CELLS = {"rnn": 1, "lstm": 2, "gru": 3}
_DTYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 9}
_TF32, _TENSOR_CORES, _TRUE_FLOAT32 = 0, 1, 3  # math types
_TWO_BIASES, _PACKED = 2, 1


class RefusedError(Exception):
    """cuDNN does not serve the configuration; the text has its status."""


_handles: list[ctypes.c_void_p] = []  # cuDNN's, once it is made


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcudnn.so.9")  # the copy that torch has loaded


def _call(name: str, *arguments: object) -> None:
    # A Python integer is a size or an enumeration; as 64 bits it is right for both in the calling convention.
    status = getattr(_library(), name)(*(ctypes.c_size_t(a) if isinstance(a, int) else a for a in arguments))
    if status != 0:
        raise RefusedError(f"{name}: status {status}")


def _make(name: str) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    _call(name, ctypes.byref(made))
    return made


class CudnnRnn:
    """A unidirectional stack with input size = hidden size on a batch of sequences of one length.

    forward() is inference, train() forward and both backward calls; all go to torch's current stream."""

    def __init__(
        self, cell: str, hidden: int, layers: int, algorithm: str, steps: int, batch: int, dtype: torch.dtype
    ) -> None:
        if not _handles:
            _handles.append(_make("cudnnCreate"))
        self.handle = _handles[0]
        rnn, dropout = _make("cudnnCreateRNNDescriptor"), _make("cudnnCreateDropoutDescriptor")
        _call("cudnnSetDropoutDescriptor", dropout, self.handle, ctypes.c_float(0), None, 0, 0)
        kind = _DTYPES[dtype]
        math = _TENSOR_CORES
        if dtype == torch.float32:
            math = _TF32 if torch.backends.cudnn.allow_tf32 else _TRUE_FLOAT32
        sizes = (hidden, hidden, hidden, layers)
        setting = (ALGORITHMS[algorithm], _CELLS[cell], _TWO_BIASES, 0, 0, kind, 0, math, *sizes)
        _call("cudnnSetRNNDescriptor_v8", rnn, *setting, dropout, 0)
        lengths = (ctypes.c_int * batch)(*[steps] * batch)
        padding = ctypes.c_float(0)
        data, states = _make("cudnnCreateRNNDataDescriptor"), _make("cudnnCreateTensorDescriptor")
        shape = (steps, batch, hidden)
        _call("cudnnSetRNNDataDescriptor", data, kind, _PACKED, *shape, lengths, ctypes.byref(padding))
        dims, strides = (ctypes.c_int * 3)(layers, batch, hidden), (ctypes.c_int * 3)(batch * hidden, hidden, 1)
        _call("cudnnSetTensorNdDescriptor", states, kind, 3, dims, strides)
        if algorithm == "dynamic":
            _call("cudnnBuildRNNDynamic", self.handle, rnn, batch)
        weights = self._sizes("cudnnGetRNNWeightSpaceSize", 1, rnn)[0]
        inference, _ = self._sizes("cudnnGetRNNTempSpaceSizes", 2, rnn, 0, data)
        training, reserve = self._sizes("cudnnGetRNNTempSpaceSizes", 2, rnn, 1, data)

        def memory(size: int) -> torch.Tensor:
            return torch.zeros(max(size, 1), dtype=torch.uint8, device="cuda")

        w = (torch.rand(weights // dtype.itemsize, device="cuda") - 0.5).mul_(2 / hidden**0.5).to(dtype)
        dw, work, kept = memory(weights), memory(max(inference, training)), memory(reserve)
        x, dy = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
        y, dx = torch.empty_like(x), torch.empty_like(x)
        on_device = torch.full((batch,), steps, dtype=torch.int32, device="cuda")
        self.memory = (w, dw, work, kept, x, dy, y, dx, on_device)  # which the calls below hold by address
        w_, dw_, work_, kept_, x_, dy_, y_, dx_, lengths_ = (ctypes.c_void_p(t.data_ptr()) for t in self.memory)
        forward = ("cudnnRNNForward", self.handle, rnn)
        data_pass = (lengths_, data, x_, data, y_, states, None, None, states, None, None, weights, w_)
        self._inference = (*forward, 0, *data_pass, inference, work_, 0, None)
        self._training = (
            (*forward, 1, *data_pass, training, work_, reserve, kept_),
            ("cudnnRNNBackwardData_v8", self.handle, rnn, lengths_, data, y_, dy_, data, dx_)
            + (states, None, None, None) * 2
            + (weights, w_, training, work_, reserve, kept_),
            ("cudnnRNNBackwardWeights_v8", self.handle, rnn, 0, lengths_, data, x_, states, None, data, y_)
            + (weights, dw_, training, work_, reserve, kept_),
        )

    def forward(self) -> None:
        self._set_stream()
        _call(*self._inference)

    def train(self) -> None:
        self._set_stream()
        for call in self._training:
            _call(*call)

    def _set_stream(self) -> None:
        _call("cudnnSetStream", self.handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    def _sizes(self, name: str, count: int, *arguments: object) -> list[int]:
        sizes = [ctypes.c_size_t() for _ in range(count)]
        _call(name, self.handle, *arguments, *map(ctypes.byref, sizes))
        return [size.value for size in sizes]


def candidates(
    cell: str, hidden: int, layers: int, steps: int, batch: int, dtype: torch.dtype
) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """(algorithm, forward, train) for each algorithm that cuDNN takes here."""
    for name in ALGORITHMS:
        try:
            made = CudnnRnn(cell, hidden, layers, name, steps, batch, dtype)
            made.forward()
            made.train()
            torch.cuda.synchronize()
        except RefusedError:
            continue
        yield name, made.forward, made.train

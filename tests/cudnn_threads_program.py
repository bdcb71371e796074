"""Threads that call cuDNN's recurrent functions themselves, each with a handle, a stream and a layer of its own.

`python cudnn_threads_program.py FUNCTIONS`: FUNCTIONS is the library whose recurrent functions are called; all others
are those of torch's cuDNN. Prints, for each layer, how many of its training steps, all threads at once, gave what it
gives alone.
"""

import ctypes
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

STEPS, LENGTH = 20, 40
TYPES = {0: torch.float32, 2: torch.float16, 9: torch.bfloat16}
FMA, TENSOR_OP = 3, 1
RNN_TANH, LSTM, GRU = 1, 2, 3
# mode, type, math, hidden, layers, batch
LAYERS = [(LSTM, 2, TENSOR_OP, 256, 1, 8), (GRU, 0, FMA, 256, 1, 4), (LSTM, 9, TENSOR_OP, 512, 2, 4)]
LAYERS += [(RNN_TANH, 0, FMA, 256, 1, 8), (LSTM, 0, FMA, 256, 1, 4)]


def of_torch() -> ctypes.CDLL:
    torch.nn.LSTM(8, 8).cuda()(torch.zeros(1, 1, 8, device="cuda"))  # loads it
    with open("/proc/self/maps") as maps:
        return ctypes.CDLL(next(line.split()[-1] for line in maps if "libcudnn.so" in line))


class Layer:
    """A layer with its data. Every call of step() is a training step on its own stream."""

    def __init__(self, functions: ctypes.CDLL, cudnn: ctypes.CDLL, number: int) -> None:
        mode, kind, math, hidden, layers, batch = LAYERS[number]
        self.functions, self.cudnn, self.mode, self.stream = functions, cudnn, mode, torch.cuda.Stream()
        self.handle = self.made("cudnnCreate")
        self.set("cudnnSetStream", self.handle, ctypes.c_void_p(self.stream.cuda_stream))
        dropout = self.made("cudnnCreateDropoutDescriptor")
        none = (ctypes.c_float(0), None, ctypes.c_size_t(0), ctypes.c_ulonglong(0))
        self.set("cudnnSetDropoutDescriptor", dropout, self.handle, *none)
        self.rnn = self.made("cudnnCreateRNNDescriptor")
        shape = (hidden, hidden, hidden, layers, dropout, 0)
        self.set("cudnnSetRNNDescriptor_v8", self.rnn, 0, mode, 2, 0, 0, kind, 0, math, *shape)
        self.rows = self.made("cudnnCreateRNNDataDescriptor")
        lengths = (ctypes.c_int * batch)(*[LENGTH] * batch)
        self.set("cudnnSetRNNDataDescriptor", self.rows, kind, 0, LENGTH, batch, hidden, lengths, None)
        self.states = self.made("cudnnCreateTensorDescriptor")
        dims, strides = (layers, batch, hidden), (batch * hidden, hidden, 1)
        triple = ctypes.c_int * 3
        self.set("cudnnSetTensorNdDescriptor", self.states, kind, 3, triple(*dims), triple(*strides))
        self.weight_size = ctypes.c_size_t()
        self.set("cudnnGetRNNWeightSpaceSize", self.handle, self.rnn, ctypes.byref(self.weight_size))

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device="cuda").to(TYPES[kind])

        generator = torch.Generator("cuda").manual_seed(number)
        self.x, self.dy = (normal(LENGTH, batch, hidden) for _ in range(2))
        self.w = normal(self.weight_size.value // self.x.element_size()) / hidden**0.5

    def made(self, create: str) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.set(create, ctypes.byref(made))
        return made

    def set(self, name: str, *arguments: Any) -> None:
        status = getattr(self.cudnn, name)(*arguments)
        assert status == 0, f"{name}: {status}"

    def step(self) -> list[torch.Tensor]:
        with torch.cuda.stream(self.stream):
            work, reserve = ctypes.c_size_t(), ctypes.c_size_t()
            self.call("cudnnGetRNNTempSpaceSizes", 1, self.rows, ctypes.byref(work), ctypes.byref(reserve))
            spaces = [torch.empty(size.value, dtype=torch.uint8, device="cuda") for size in (work, reserve)]
            y, dx, dw = torch.empty_like(self.x), torch.empty_like(self.x), torch.zeros_like(self.w)
            given = (work, pointer(spaces[0]), reserve, pointer(spaces[1]))
            x, dy, w, rows, weights = pointer(self.x), pointer(self.dy), pointer(self.w), self.rows, self.weight_size
            h, c = (self.states, None, None), (self.states if self.mode == LSTM else None, None, None)
            self.call("cudnnRNNForward", 1, None, rows, x, rows, pointer(y), *h, *c, weights, w, *given)
            data = (None, rows, pointer(y), dy, rows, pointer(dx), *h, None, *c, None, weights, w, *given)
            self.call("cudnnRNNBackwardData_v8", *data)
            gradient = (rows, x, self.states, None, rows, pointer(y), weights, pointer(dw), *given)
            self.call("cudnnRNNBackwardWeights_v8", 0, None, *gradient)  # CUDNN_WGRAD_MODE_ADD
            self.stream.synchronize()
            return [y, dx, dw]

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.functions, name)(self.handle, self.rnn, *arguments)
        assert status == 0, f"{name}: {status}"


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def main() -> None:
    functions, cudnn = ctypes.CDLL(sys.argv[1]), of_torch()
    layers = [Layer(functions, cudnn, number) for number in range(len(LAYERS))]
    torch.cuda.synchronize()
    together = threading.Barrier(len(layers))

    def steps(layer: Layer) -> list[list[torch.Tensor]]:
        together.wait()  # the first calls of the process come at once
        return [layer.step() for _ in range(STEPS)]

    with ThreadPoolExecutor(len(layers)) as pool:
        found = list(pool.map(steps, layers))
    for number, layer in enumerate(layers):
        alone = layer.step()
        assert all(tensor.isfinite().all() and tensor.any() for tensor in alone)
        same = sum(all(map(torch.equal, at_once, alone)) for at_once in found[number])
        print(f"layer {number}: {same} of {STEPS}", flush=True)


if __name__ == "__main__":
    main()

"""A client of cuDNN 9's recurrent functions, by ctypes and numpy, in a process that has no other cuDNN.

`python cudnn_client.py FUNCTIONS OBJECTS JOB RESULTS`: FUNCTIONS is the library whose four recurrent functions are
called, OBJECTS that of all others; JOB a pickled list of cases, RESULTS where the pickled results go.
"""

import concurrent.futures
import ctypes
import os
import pickle
import sys
from typing import Any

import numpy as np

FLOAT = 0
LSTM = 2
SEQUENCE_MAJOR, PACKED, BATCH_MAJOR = range(3)
PADDED_IO = 1
UNTOUCHED = -777.0


class Client:
    def __init__(self, functions: str, objects: str) -> None:
        self.objects = ctypes.CDLL(objects)
        self.functions = ctypes.CDLL(functions)
        self.handle = self.made("cudnnCreate")

    def made(self, create: str) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        assert getattr(self.objects, create)(ctypes.byref(made)) == 0
        return made

    def set(self, name: str, *arguments: Any) -> None:
        status = getattr(self.objects, name)(*arguments)
        assert status == 0, f"{name}: {status}"

    def tensor(self, *dims: int) -> ctypes.c_void_p:
        tensor = self.made("cudnnCreateTensorDescriptor")
        strides = [int(np.prod(dims[i + 1 :])) for i in range(len(dims))]
        array = ctypes.c_int * len(dims)
        self.set("cudnnSetTensorNdDescriptor", tensor, FLOAT, len(dims), array(*dims), array(*strides))
        return tensor

    def data(self, case: dict[str, Any], width: int, fill: str = "x_padding") -> ctypes.c_void_p:
        data = self.made("cudnnCreateRNNDataDescriptor")
        lengths = case["lengths"]
        padding = ctypes.byref(ctypes.c_float(case.get(fill, 0.0)))
        array = (ctypes.c_int * len(lengths))(*lengths)
        kind = case.get("type", FLOAT)
        sizes = (case["steps"], len(lengths), width)
        self.set("cudnnSetRNNDataDescriptor", data, kind, case["layout"], *sizes, array, padding)
        return data

    def run(self, case: dict[str, Any]) -> dict[str, Any]:
        gates = {0: 1, 1: 1, 2: 4, 3: 3}[case["mode"]]
        states = case["layers"] * case["directions"]
        handle, hidden, batch = self.handle, case["hidden"], len(case["lengths"])
        widths = {"h": case.get("projection", hidden), "c": hidden}
        dropout = self.made("cudnnCreateDropoutDescriptor")
        dropout_states = np.zeros(2, np.uint64)
        probability = ctypes.c_float(case.get("dropout", 0.0))
        seed = ctypes.c_ulonglong(case.get("seed", 1))
        self.set("cudnnSetDropoutDescriptor", dropout, handle, probability, pointer(dropout_states), size(16), seed)
        rnn = self.made("cudnnCreateRNNDescriptor")
        layer = (
            *(case["mode"], case.get("bias", 2), case["directions"] - 1),
            *(int(case.get("skip_input", False)), case.get("type", FLOAT), FLOAT, case.get("math", 3), case["input"]),
            *(hidden, widths["h"], case["layers"], dropout, case.get("flags", PADDED_IO)),
        )
        self.set("cudnnSetRNNDescriptor_v8", rnn, case.get("algorithm", 0), *layer)
        if "clip" in case:
            self.set("cudnnRNNSetClip_v9", rnn, 1, ctypes.c_double(-case["clip"]), ctypes.c_double(case["clip"]))
        x_desc, y_desc = self.data(case, case["input"]), self.data(case, case["directions"] * widths["h"], "padding")
        h_desc, c_desc = (self.tensor(states, batch, width, 1, 1) for width in widths.values())  # as PyTorch does

        space = size(0)
        self.set("cudnnGetRNNWeightSpaceSize", handle, rnn, ctypes.byref(space))
        w = np.full(space.value // 4, 0.125, np.float32)  # the gaps, too
        dw = np.full(space.value // 4, case.get("dw_before", 0.0), np.float32)
        places = self.places(handle, rnn, space, gates, states)
        for key, (first, count) in places.items() if case.get("type", FLOAT) == FLOAT else ():
            w[first : first + count] = case["weights"][key].ravel()

        x = case["x"]
        rows = x.shape[:-1]
        wanted = case.get("wanted", ("hx", "cx", "hy", "cy", "dhy", "dcy", "dhx", "dcx"))
        given = {name: case[name] if name in wanted else None for name in ("hx", "cx", "dhy", "dcy")}
        out = {
            name: np.full((states, batch, widths[name.strip("dxy")]), UNTOUCHED, np.float32)
            for name in ("hy", "cy", "dhx", "dcx")
        }
        taken = {name: out[name] if name in wanted else None for name in out}
        y = np.full((*rows, case["directions"] * widths["h"]), UNTOUCHED, np.float32)
        dx = np.full_like(x, UNTOUCHED)

        f = self.functions
        work, reserve, statuses = size(0), size(0), {}
        training = case.get("training", True)
        sized = x_desc
        if case.get("sized_by_longest"):
            sized = self.data({**case, "lengths": [case["steps"]] * batch}, case["input"])
        sizes_from = self.objects if case.get("sizes_from_objects") else f
        statuses["sizes"] = sizes_from.cudnnGetRNNTempSpaceSizes(
            handle, rnn, int(training), sized, ctypes.byref(work), ctypes.byref(reserve) if training else None
        )
        work_space = np.full(work.value, 255, np.uint8)  # NaN, were it taken for numbers
        reserve_space = np.full(reserve.value, 255, np.uint8) if training else None
        spaces = (size(work_space.size), pointer(work_space), reserve, pointer(reserve_space))
        statuses["forward"] = f.cudnnRNNForward(
            *(handle, rnn, int(training), None, x_desc, pointer(x), y_desc, pointer(y)),
            *(h_desc, pointer(given["hx"]), pointer(taken["hy"]), c_desc, pointer(given["cx"]), pointer(taken["cy"])),
            *(space, pointer(w), *spaces),
        )
        if training:
            # Programs may ask for another algorithm in the backward calls.
            self.set("cudnnSetRNNDescriptor_v8", rnn, case.get("backward_algorithm", 0), *layer)
            work_space[:] = 255  # holds nothing between calls
            statuses["backward_data"] = f.cudnnRNNBackwardData_v8(
                *(handle, rnn, None, y_desc, pointer(y), pointer(case["dy"]), x_desc, pointer(dx)),
                *(h_desc, pointer(given["hx"]), pointer(given["dhy"]), pointer(taken["dhx"])),
                *(c_desc, pointer(given["cx"]), pointer(given["dcy"]), pointer(taken["dcx"])),
                *(space, pointer(w), *spaces),
            )
            work_space[:] = 255
            statuses["backward_weights"] = f.cudnnRNNBackwardWeights_v8(
                *(handle, rnn, case.get("add", 0), None, x_desc, pointer(x), h_desc, pointer(given["hx"])),
                *(y_desc, pointer(y), space, pointer(dw), *spaces),
            )
        gradients = {key: dw[first : first + count].copy() for key, (first, count) in places.items()}
        for first, count in places.values():
            dw[first : first + count] = case.get("dw_before", 0.0)
        return {
            "statuses": statuses,
            "sizes": (work.value, reserve.value),
            "calls": [self.objects.fakeCalls(i) for i in range(4)],
            "y": y,
            "dx": dx,
            "dw": gradients,
            "dw_gaps_touched": bool((dw != np.float32(case.get("dw_before", 0.0))).any()),
            "dropout_states": dropout_states,
            **out,
        }

    def places(self, handle: Any, rnn: Any, space: Any, gates: int, states: int) -> dict[Any, tuple[int, int]]:
        """First element and number of elements of each matrix and bias: (pseudo-layer, id, "matrix" or "bias")."""
        places = {}
        for pseudo in range(states):
            for index in (*range(2 * gates), 8):  # 8: the projection
                descs = [self.made("cudnnCreateTensorDescriptor") for _ in range(2)]
                addresses = [ctypes.c_void_p(), ctypes.c_void_p()]
                base = 1 << 32
                self.set(
                    "cudnnGetRNNWeightParams",
                    *(handle, rnn, pseudo, space, ctypes.c_void_p(base), index),
                    *(descs[0], ctypes.byref(addresses[0]), descs[1], ctypes.byref(addresses[1])),
                )
                for kind, desc, address in zip(("matrix", "bias"), descs, addresses, strict=True):
                    if address.value is None:
                        continue
                    dims, strides = (ctypes.c_int * 8)(), (ctypes.c_int * 8)()
                    numbers = [ctypes.byref(ctypes.c_int()), ctypes.byref(ctypes.c_int())]
                    self.set("cudnnGetTensorNdDescriptor", desc, 8, *numbers, dims, strides)
                    places[pseudo, index, kind] = ((address.value - base) // 4, int(np.prod(dims[:3])))
        return places


def size(value: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(value)


def pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


if __name__ == "__main__":
    with open(sys.argv[3], "rb") as file:
        cases = pickle.load(file)
    client = Client(sys.argv[1], sys.argv[2])
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("CLIENT_THREADS", "1"))) as pool:
        results = list(pool.map(client.run, cases))
    with open(sys.argv[4], "wb") as file:
        pickle.dump(results, file)

"""A training step of a recurrent stack through the C API: descriptors, data, and the arguments of each call by name."""

import ctypes
from typing import Any

import capi
import torch
from reference import rnn as reference

DATA_TYPES = {
    torch.float32: capi.FLOAT,
    torch.float64: capi.DOUBLE,
    torch.float16: capi.HALF,
    torch.bfloat16: capi.BFLOAT16,
}
OUTPUTS = ("y", "hy", "cy", "dx", "dhx", "dcx", "dw")


class RnnCase:
    """Everything the four calls take, with random inputs and outputs full of a value that no call writes."""

    UNTOUCHED = -777.0

    def __init__(
        self,
        stack: reference.Stack,
        batch_sizes: list[int],
        dtype: torch.dtype = torch.float64,
        dropout: capi.Object | None = None,
        handle: capi.Object | None = None,
    ) -> None:
        self.stack, self.batch_sizes, self.dtype = stack, batch_sizes, dtype
        self.data_type = DATA_TYPES[dtype]
        self.handle = handle or capi.cpu_handle()
        self.dropout = dropout
        self.states: ctypes.Array | None = None  # of the dropout descriptor, for who wants to look at them
        self.rnn = capi.descriptor("RNN")
        self.set_rnn()
        self.make_descriptors()
        self.make_data()

    def set_rnn(self, **changes: Any) -> None:
        arguments = dict(
            rnnDesc=self.rnn.pointer,
            hiddenSize=self.stack.hidden,
            numLayers=self.stack.layers,
            dropoutDesc=self.dropout.pointer if self.dropout else None,
            inputMode=int(self.stack.skip_input),
            direction=self.stack.directions - 1,
            mode=self.stack.mode,
            dataType=self.data_type,
        )
        capi.check("SetRNNDescriptor", **(arguments | changes))
        capi.check("SetRNNProjectionSize", rnnDesc=self.rnn.pointer, projSize=self.stack.projection)

    def make_descriptors(self) -> None:
        stack, kind = self.stack, self.data_type
        cells = stack.layers * stack.directions
        self.x_descs = [capi.tensor([batch, stack.input, 1], kind) for batch in self.batch_sizes]
        self.y_descs = [capi.tensor([batch, stack.directions * stack.state, 1], kind) for batch in self.batch_sizes]
        self.x_desc, self.y_desc = capi.addresses(self.x_descs), capi.addresses(self.y_descs)
        self.h_desc = capi.tensor([cells, self.batch_sizes[0], stack.state], kind)
        self.c_desc = capi.tensor([cells, self.batch_sizes[0], stack.hidden], kind)
        self.w_desc = capi.filter_([reference.params_size(stack), 1, 1], kind)

    def make_data(self) -> None:
        stack, rows = self.stack, sum(self.batch_sizes)
        cells, batch = stack.layers * stack.directions, self.batch_sizes[0]

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, dtype=torch.float64).to(self.dtype)

        def output(*shape: int) -> torch.Tensor:
            return torch.full(shape, self.UNTOUCHED, dtype=self.dtype)

        width = stack.directions * stack.state
        h, c = (cells, batch, stack.state), (cells, batch, stack.hidden)
        self.data = {
            "x": random(rows, stack.input),
            "w": random(reference.params_size(stack)) / stack.hidden**0.5,
            "hx": random(*h),
            "cx": random(*c),
            "dy": random(rows, width),
            "dhy": random(*h),
            "dcy": random(*c),
            "y": output(rows, width),
            "hy": output(*h),
            "cy": output(*c),
            "dx": output(rows, stack.input),
            "dhx": output(*h),
            "dcx": output(*c),
            "dw": torch.zeros(reference.params_size(stack), dtype=self.dtype),
        }
        self.workspace = torch.full((self.size("GetRNNWorkspaceSize"),), 0x5A, dtype=torch.uint8)
        self.reserve = torch.full((self.reserve_size(),), 0x5A, dtype=torch.uint8)

    def reserve_size(self) -> int:
        return self.size("GetRNNTrainingReserveSize")

    def least_reserve_size(self) -> int:
        """That of prnnGetRNNTempSpaceSizes, with which the backward calls run once."""
        return self.temp_space_sizes()[2]

    def temp_space_sizes(self, **changes: Any) -> tuple[int, int, int]:
        """(status, workspace, reserve space) of prnnGetRNNTempSpaceSizes; 77 and 78 where it says nothing."""
        work, reserve = ctypes.c_size_t(77), ctypes.c_size_t(78)
        arguments: dict[str, Any] = dict(
            handle=self.handle.pointer,
            rnnDesc=self.rnn.pointer,
            fwdMode=1,
            seqLength=len(self.batch_sizes),
            xDesc=self.x_desc,
            workSpaceSize=ctypes.byref(work),
            reserveSpaceSize=ctypes.byref(reserve),
        )
        status = capi.call("GetRNNTempSpaceSizes", **(arguments | changes))
        return status, work.value, reserve.value

    def size(self, name: str) -> int:
        return capi.size_from(
            name,
            handle=self.handle.pointer,
            rnnDesc=self.rnn.pointer,
            seqLength=len(self.batch_sizes),
            xDesc=self.x_desc,
        )

    def arguments(self, name: str) -> dict[str, Any]:
        """All arguments of prnn<name>, one of the four calls that compute."""
        values: dict[str, Any] = {key: tensor.data_ptr() for key, tensor in self.data.items()}
        values |= {f"{key}Desc": self.h_desc.pointer for key in ("hx", "hy", "dhx", "dhy")}
        values |= {f"{key}Desc": self.c_desc.pointer for key in ("cx", "cy", "dcx", "dcy")}
        values |= {"xDesc": self.x_desc, "dxDesc": self.x_desc, "yDesc": self.y_desc, "dyDesc": self.y_desc}
        values |= {"wDesc": self.w_desc.pointer, "dwDesc": self.w_desc.pointer}
        values |= {
            "handle": self.handle.pointer,
            "rnnDesc": self.rnn.pointer,
            "seqLength": len(self.batch_sizes),
            "workspace": self.workspace.data_ptr(),
            "workSpaceSizeInBytes": self.workspace.numel(),
            "reserveSpace": self.reserve.data_ptr(),
            "reserveSpaceSizeInBytes": self.reserve.numel(),
        }
        return {parameter: values[parameter] for parameter in capi.FUNCTIONS[f"prnn{name}"].parameters}

    def call(self, name: str, **changes: Any) -> int:
        """The status of prnn<name> with some arguments replaced."""
        return capi.call(name, **(self.arguments(name) | changes))

    def check(self, name: str, **changes: Any) -> None:
        capi.check(name, **(self.arguments(name) | changes))

    def train(self) -> None:
        """Forward, data gradient, weight gradient; the workspace is spoilt in between, as it may be."""
        for name in ("RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights"):
            self.check(name)
            self.workspace.fill_(0xFF)

    def results(self) -> dict[str, torch.Tensor]:
        return {name: self.data[name].clone() for name in OUTPUTS}

    def expected(self, **changes: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the reference's results on the data, some of it replaced."""
        names = ("x", "w", "hx", "cx", "dy", "dhy", "dcy")
        inputs = {name: changes.get(name, self.data[name]) for name in names}
        dropout = changes.get("dropout")
        step = vars(reference.train_step(self.stack, batch_sizes=self.batch_sizes, dropout=dropout, **inputs))
        asked_for = ("cells", "dreset_hx", "dreset_cx")  # by prnnSetRNNExtras alone
        return {name: value for name, value in step.items() if name not in asked_for}


def dropout_descriptor(
    handle: capi.Object, probability: float, states: ctypes.Array | torch.Tensor | None, seed: int
) -> capi.Object:
    """`states`: where the handle's device keeps them, a tensor on a GPU."""
    on_tensor = isinstance(states, torch.Tensor)
    made = capi.descriptor("Dropout")
    capi.check(
        "SetDropoutDescriptor",
        dropoutDesc=made.pointer,
        handle=handle.pointer,
        dropout=probability,
        states=states.data_ptr() if on_tensor else states,
        stateSizeInBytes=states.nbytes if on_tensor else ctypes.sizeof(states) if states else 0,
        seed=seed,
    )
    return made

"""prnn_layer_norm_lstm.h: random layers on memory between inaccessible pages against the float64 recursion, and calls
with one thing wrong."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import capi
import torch
from layer_norm_lstm_c_case import GRADIENTS, INPUTS, CCase, Info, Options
from reference.layer_norm_lstm import layer_norm_lstm as reference
from torch import Tensor

from fuzz.c_calls import Client
from fuzz.case import Case, Finding
from fuzz.memory import Memory, poison

KINDS = ("gates", "products", "none")
PARAMETERS = ("gateGain", "gateBias", "cellGain", "cellBias")
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3}  # of statistics over a few elements
WRONG_NUMBERS = {
    "dataType": (-1, 3, 8, 2**31 - 1),
    "normalize": (-1, 3, 2**31 - 1),
    "steps": (0, -1, 2**31, 2**62, -(2**63)),
    "batch": (0, -1, 2**31, 2**62),
    "hiddenSize": (0, -1, 2**31 - 1, 2**62),
    "epsilon": (-1.0, math.nan, math.inf),
    "zoneout": (-0.1, 1.1, math.nan),
    "allowTf32": (-1, 2, 2**31 - 1),
}
ROUNDS = 12


class Layer(Client):
    """A layer whose arrays lie in guarded memory, by the names of the header."""

    def __init__(self, case: Case, memory: Memory) -> None:
        super().__init__(case, memory)
        random = self.random
        self.dtype = random.choice((torch.float32, torch.float64))
        self.kind = random.choice(KINDS)
        t, n, h = random.randint(1, 9), random.choice((1, 2, 5, 17)), random.choice((1, 2, 3, 8, 16, 33, 70))
        self.handle = self.create("Handle")
        epsilon = random.choice((1e-2, 1e-3)) if self.dtype == torch.float32 else random.choice((1e-2, 1e-5))
        reverse, zoneout = random.randrange(2), random.choice((0.0, 0.0, 0.3, 1.0))
        data_type = capi.FLOAT if self.dtype == torch.float32 else capi.DOUBLE
        self.options = Options(
            data_type, KINDS.index(self.kind), t, n, h, reverse, epsilon, zoneout, random.randrange(2)
        )
        shapes = {"x": (t, n, 4 * h), "h0": (n, h), "c0": (n, h), "recurrent": (4 * h, h)}
        shapes |= {"gateGain": (4 * h,), "gateBias": (4 * h,), "cellGain": (h,), "cellBias": (h,)}
        self.values: dict[str, Tensor | None] = dict.fromkeys(INPUTS)
        for name, shape in shapes.items():
            if (name in PARAMETERS and self.kind == "none") or (name in ("h0", "c0") and random.random() < 0.3):
                continue
            value = torch.randn(shape) * (h**-0.5 if name == "recurrent" else 1.0)
            self.values[name] = memory.input(value.to(self.dtype))
        if random.random() < 0.4:
            self.values["zoneoutMask"] = memory.input((torch.rand(t, n, h) < 0.3).to(self.dtype))
        if random.random() < 0.4:
            self.values["recurrentMask"] = memory.input((torch.rand(n, h) < 0.7).to(self.dtype) / 0.7)
        if random.random() < 0.4:
            self.values["lengths"] = memory.input(torch.randint(0, t + 1, (n,), dtype=torch.int32))
        self.dy, self.dcy = (memory.input(torch.randn(shape).to(self.dtype)) for shape in ((t, n, h), (n, h)))
        self.y, self.cy = (memory.output(shape, self.dtype) for shape in ((t, n, h), (n, h)))
        self.gradients: dict[str, Tensor | None] = {}
        for name, gradient in zip(INPUTS, GRADIENTS, strict=False):
            exists = name not in PARAMETERS or self.kind != "none"
            wanted = exists and (name == "x" or random.random() < 0.8)
            self.gradients[gradient] = memory.output(shapes[name], self.dtype) if wanted else None
        self.workspace, self.reserve = (
            memory.space(self.size(name)) for name in ("GetWorkspaceSize", "GetReserveSize")
        )

    def size(self, name: str) -> int:
        out = self.memory.output((1,), torch.int64)
        self.call(CCase.function(name), self.arguments(name) | {"sizeInBytes": out.data_ptr()}, [out], must_fail=False)
        return int(out)

    def arguments(self, name: str) -> dict[str, Any]:
        self.inputs = pointers([self.values[name] for name in INPUTS])
        self.wanted = pointers([self.gradients[name] for name in GRADIENTS]) if hasattr(self, "gradients") else None
        self.info = Info()
        values: dict[str, Any] = {
            "handle": self.handle,
            "gpu": None,
            "options": ctypes.addressof(self.options),
            "inputs": ctypes.addressof(self.inputs),
            "gradients": None if self.wanted is None else ctypes.addressof(self.wanted),
            "info": ctypes.addressof(self.info),
            "sizeInBytes": None,
        }
        for key in ("y", "cy", "dy", "dcy"):
            values[key] = getattr(self, key).data_ptr() if hasattr(self, key) else None
        for key, space in (("workspace", "workspace"), ("reserve", "reserveSpace")):
            tensor = getattr(self, key, None)
            values[space] = None if tensor is None else tensor.data_ptr()
            values[f"{key}SizeInBytes"] = 0 if tensor is None else tensor.numel()
        return {key: values[key] for key in capi.FUNCTIONS[f"prnn{CCase.function(name)}"].parameters}

    def outputs(self) -> list[Tensor]:
        return [self.y, self.cy, self.reserve, *(x for x in self.gradients.values() if x is not None)]

    def try_wrong(self) -> None:
        """A call with one thing wrong."""
        random, name = self.random, self.random.choice(("Forward", "Backward"))
        arguments = self.arguments(name)
        what = random.choice(("handle", "null", "options", "input", "parameter", "lengths", "space", "query"))
        changes: dict[str, Any] = {}
        if what == "handle":
            changes = {"handle": self.wrong("Handle")}
        elif what == "null":
            pointers_ = ("options", "inputs", "y") + (("dy", "gradients", "reserveSpace") if name == "Backward" else ())
            changes = {random.choice(pointers_): None}
        elif what == "options":
            field = random.choice(list(WRONG_NUMBERS))
            options = Options.from_buffer_copy(self.options)
            setattr(options, field, random.choice(WRONG_NUMBERS[field]))
            changes = {"options": ctypes.addressof(options)}
        elif what == "input":
            missing = {**self.values, random.choice(("x", "recurrent")): None}
            inputs = pointers([missing[name] for name in INPUTS])
            changes = {"inputs": ctypes.addressof(inputs)}
        elif what == "parameter":
            given = {**self.values, random.choice(PARAMETERS): self.y if self.kind == "none" else None}
            inputs = pointers([given[name] for name in INPUTS])
            changes = {"inputs": ctypes.addressof(inputs)}
        elif what == "lengths":
            lengths = torch.zeros(self.options.batch, dtype=torch.int32)
            lengths[random.randrange(len(lengths))] = random.choice((-1, self.options.steps + 1, 2**31 - 1, -(2**31)))
            inputs = pointers([{**self.values, "lengths": lengths}[name] for name in INPUTS])
            changes = {"inputs": ctypes.addressof(inputs)}
        elif what == "space":
            space, size = random.choice((("workspace", "workspaceSizeInBytes"), ("reserveSpace", "reserveSizeInBytes")))
            changes = {size: 0} if arguments[size] > 0 and random.random() < 0.5 else {space: arguments[space] + 8}
        else:
            options = Options.from_buffer_copy(self.options)
            options.dataType = random.choice((capi.FLOAT, capi.HALF, capi.BFLOAT16, capi.DOUBLE))
            options.hiddenSize, options.batch = random.choice((1, 512, 513, 4096, 10**6)), random.choice((1, 64, 10**6))
            gpu = ctypes.create_string_buffer(random.choice((b"H200", b"A100", b"RTX 5090", b"TITAN X", b"none")))
            changes = {"handle": None, "options": ctypes.addressof(options), "gpu": ctypes.addressof(gpu)}
            self.call("QueryLayerNormLSTM", self.arguments("Query"), changes=changes, must_fail=gpu.value == b"none")
            return
        self.call(CCase.function(name), arguments, self.outputs(), must_fail=True, changes=changes)

    def compare(self) -> None:
        for tensor in (*self.outputs(), self.workspace):
            poison(tensor)
        self.call("LayerNormLSTMForward", self.arguments("Forward"), must_fail=False)
        poison(self.workspace)
        self.call("LayerNormLSTMBackward", self.arguments("Backward"), must_fail=False)
        self.case.counts["steps compared"] += 1
        taken = [None if x is None else x.double() for x in (self.values[name] for name in INPUTS[:10])]
        for value in taken[:8]:
            if value is not None:
                value.requires_grad_()
        o = self.options
        rules: dict[str, Any] = {"reverse": bool(o.reverse), "epsilon": o.epsilon, "zoneout": o.zoneout}
        y, cy = reference(*taken, self.values["lengths"], normalize=self.kind, **rules)  # type: ignore[arg-type]
        torch.autograd.backward([y, cy], [self.dy.double(), self.dcy.double()])
        pairs = {"y": (self.y, y.detach()), "cy": (self.cy, cy.detach())}
        for value, (name, found) in zip(taken, self.gradients.items(), strict=False):
            if value is not None and found is not None:
                pairs[name] = (found, value.grad if value.grad is not None else torch.zeros_like(value))
        for name, (found, expected) in pairs.items():
            largest = (found.double() - expected).abs().max().item()
            if not largest <= TOLERANCE[self.dtype] * max(1.0, expected.abs().max().item()):
                shape = {field: getattr(o, field) for field, _ in Options._fields_}
                raise Finding(f"{name} of a LayerNormLSTM is off by {largest:g}: {shape}")


def pointers(tensors: list[Tensor | None]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(None if x is None else x.data_ptr() for x in tensors))


def run(case: Case) -> None:
    torch.manual_seed(case.random.getrandbits(32))
    torch.set_num_threads(case.random.choice((1, 1, 2)))
    with Memory(case.random) as memory:
        layer = Layer(case, memory)
        for _ in range(ROUNDS):
            layer.try_wrong()
        layer.compare()
        for _ in range(ROUNDS):
            layer.try_wrong()
        layer.destroy_all()
        if not memory.intact():
            raise Finding("memory around a buffer was written")

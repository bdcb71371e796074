"""LSTMs on the input of their gates (prnn_call.h), normalised or not: random layers on memory between inaccessible
pages against the float64 recursion, and calls with one thing wrong."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import capi
import torch
from layer_norm_lstm_c_case import GRADIENTS, INPUTS, PARAMETERS, RUNS, fill_args, shapes_of
from reference.layer_norm_lstm import layer_norm_lstm as reference
from torch import Tensor

from fuzz.c_calls import Client
from fuzz.case import Case, Finding
from fuzz.memory import Memory, poison

KINDS = ("gates", "products", "none")
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3}  # of statistics over a few elements
WRONG_LAYER: dict[str, tuple[Any, ...]] = {
    "hiddenSize": (0, -1, -(2**31)),
    "numLayers": (0, 2, -1),
    "direction": (-1, 1, 3),
    "mode": (-1, 0, 3, 6),
    "dataType": (-1, 3, 8, 2**31 - 1),
}
WRONG_KIND: tuple[dict[str, Any], ...] = (
    *({"kind": kind} for kind in (-1, 3, 2**31 - 1)),
    *({"kind": 1, "epsilon": epsilon} for epsilon in (-1.0, 0.0, math.nan, math.inf)),
)
WRONG_CALL: dict[str, tuple[Any, ...]] = {
    "mode": (-1, 2, 2**31 - 1),
    "inputSize": (0, -1, 1, 2**31 - 1),
    "seqLength": (0, -1),
    "batchSizes": (None,),
    "call": (None,),
}
ROUNDS = 12


class Layer(Client):
    """A layer and its prepared call, whose arrays lie in guarded memory, by the names of the header."""

    def __init__(self, case: Case, memory: Memory) -> None:
        super().__init__(case, memory)
        random = self.random
        self.dtype = random.choice((torch.float32, torch.float64))
        self.kind = random.choice(KINDS)
        self.normalizes = self.kind != "none"
        self.sizes = t, n, h = random.randint(1, 9), random.choice((1, 2, 5, 17)), random.choice((1, 2, 3, 8, 33, 70))
        self.reverse, self.expectation = bool(random.randrange(2)), random.choice((0.0, 0.0, 0.3, 1.0))
        self.epsilon = random.choice((1e-2, 1e-3)) if self.dtype == torch.float32 else random.choice((1e-2, 1e-5))
        self.handle, self.rnn = self.create("Handle"), self.create("RNN")
        self.layer = dict(hiddenSize=h, numLayers=1, dropoutDesc=None, inputMode=2, mode=2)
        self.layer |= {"direction": 2 if self.reverse else 0, "dataType": capi.FLOAT if self.is_float else capi.DOUBLE}
        shapes = shapes_of(t, n, h)
        self.data: dict[str, Tensor | None] = {}
        for name in INPUTS[:8]:
            if (name in PARAMETERS and not self.normalizes) or (name in ("hx", "cx") and random.random() < 0.3):
                continue
            value = torch.randn(shapes[name]) * (h**-0.5 if name == "w" else 1.0)
            self.data[name] = memory.input(value.to(self.dtype))
        if self.expectation == 0 and random.random() < 0.4:
            self.data["zoneout"] = memory.input((torch.rand(t, n, h) < 0.3).to(self.dtype))
        if random.random() < 0.4:
            self.data["recurrent"] = memory.input((torch.rand(n, h) < 0.7).to(self.dtype) / 0.7)
        if random.random() < 0.4:
            self.data["lengths"] = memory.input(torch.randint(0, t + 1, (n,), dtype=torch.int32))
        for name in ("dy", "dcy"):
            self.data[name] = memory.input(torch.randn(shapes[name]).to(self.dtype))
        for name in ("y", "hy", "cy", *GRADIENTS):
            exists = self.normalizes or name[1:] not in PARAMETERS
            if exists and (name in ("y", "dx") or random.random() < 0.8):
                self.data[name] = memory.output(shapes[name], self.dtype)
        self.set_layer(must_fail=False)
        self.made = memory.output((1,), torch.int64, host=True)
        self.call("PrepareRNN", self.prepare_arguments(), [self.made], must_fail=False)
        self.prepared = int(self.made[0]) % 2**64
        info = capi.CallInfo()
        self.call("GetRNNCallInfo", {"call": self.prepared, "info": ctypes.addressof(info)}, must_fail=False)
        for space in ("workspace", "reserve"):
            self.data[space] = memory.space(getattr(info, f"{space}Size"))

    @property
    def is_float(self) -> bool:
        return self.dtype == torch.float32

    def set_layer(self, must_fail: bool, **changes: Any) -> None:
        """Sets the descriptor anew; changes: of the layer or its normalisation."""
        kind = {"kind": KINDS.index(self.kind), "epsilon": self.epsilon}
        own = {key: value for key, value in changes.items() if key in self.layer}
        self.call(
            "SetRNNDescriptor", {"rnnDesc": self.rnn, **self.layer}, changes=own, must_fail=must_fail and own != {}
        )
        if own:
            return
        self.call(
            "SetRNNNormalization", {"rnnDesc": self.rnn, **kind}, changes=changes, must_fail=must_fail and changes != {}
        )
        addresses = (None if (mask := self.data.get(name)) is None else mask.data_ptr() for name in INPUTS[9:7:-1])
        masks = capi.Masks(*addresses, self.expectation)
        self.call("SetRNNMasks", {"rnnDesc": self.rnn, "masks": ctypes.addressof(masks)}, must_fail=False)

    def prepare_arguments(self) -> dict[str, Any]:
        t, n, h = self.sizes
        self.batch_sizes = capi.ints([n] * t)
        return {
            "handle": self.handle,
            "rnnDesc": self.rnn,
            "mode": 1,
            "inputSize": 4 * h,
            "seqLength": t,
            "batchSizes": ctypes.addressof(self.batch_sizes),
            "call": self.made.data_ptr(),
        }

    def arguments(self, name: str, **changes: Any) -> dict[str, Any]:
        """changes: arrays in the place of the layer's."""
        self.args = capi.RUN_ARGS[RUNS[name]]()
        fill_args(self.args, self.data | changes, self.normalizes, self.expectation)
        return {"call": self.prepared, "args": ctypes.addressof(self.args)}

    def message(self, handle: int | None) -> str:
        """Runs have no handle among their arguments; a call that is none has the thread's message."""
        return super().message(handle) or super().message(self.handle)

    def outputs(self) -> list[Tensor]:
        return [x for name in ("y", "hy", "cy", "reserve", *GRADIENTS) if (x := self.data.get(name)) is not None]

    def try_wrong(self) -> None:
        """A call with one thing wrong."""
        random, name = self.random, self.random.choice(("Forward", "Backward"))
        what = random.choice(("call", "layer", "kind", "prepare", "missing", "parameter", "lengths", "space"))
        if what == "layer":
            field = random.choice(list(WRONG_LAYER))
            self.set_layer(must_fail=True, **{field: random.choice(WRONG_LAYER[field])})
            return
        if what == "kind":
            self.set_layer(must_fail=True, **random.choice(WRONG_KIND))
            return
        if what == "prepare":
            self.set_layer(must_fail=False)
            field = random.choice(list(WRONG_CALL))
            value = random.choice([value for value in WRONG_CALL[field] if value != 4 * self.sizes[2]])
            changes = {field: value}
            self.call("PrepareRNN", self.prepare_arguments(), [self.made], must_fail=True, changes=changes)
            return
        arguments, changes = self.arguments(name), {}
        if what == "call":
            changes = {random.choice(("call", "args")): None}
        elif what == "missing":
            needed = ("x", "w", "y") if name == "Forward" else ("x", "w", "y", "dy", "dx", "reserve")
            arguments = self.arguments(name, **{random.choice(needed): None})
        elif what == "parameter" and self.normalizes:
            arguments = self.arguments(name, **{random.choice(PARAMETERS): None})
        elif what == "parameter":
            norm = capi.Norm()
            self.args.norm = ctypes.addressof(norm)
        elif what == "lengths":
            t, n, _ = self.sizes
            lengths = torch.zeros(n, dtype=torch.int32)
            lengths[random.randrange(n)] = random.choice((-1, t + 1, 2**31 - 1, -(2**31)))
            arguments = self.arguments(name, lengths=lengths)
        else:
            setattr(self.args, random.choice(("workspaceSize", "reserveSize")), random.choice((0, 7)))
        self.call(RUNS[name], arguments, self.outputs(), must_fail=True, changes=changes)

    def compare(self) -> None:
        data = self.data
        for tensor in (*self.outputs(), data["workspace"]):
            poison(tensor)
        self.call("RunRNNForward", self.arguments("Forward"), must_fail=False)
        poison(data["workspace"])
        self.call("RunRNNBackward", self.arguments("Backward"), must_fail=False)
        self.case.counts["steps compared"] += 1
        taken = [None if (x := data.get(name)) is None else x.double() for name in INPUTS[:10]]
        for value in taken[:8]:
            if value is not None:
                value.requires_grad_()
        rules: dict[str, Any] = {"reverse": self.reverse, "epsilon": self.epsilon, "zoneout": self.expectation}
        y, cy = reference(*taken, data.get("lengths"), normalize=self.kind, **rules)  # type: ignore[arg-type]
        torch.autograd.backward([y, cy], [data["dy"].double(), data["dcy"].double()])
        expected = {"y": y.detach(), "hy": y[0 if self.reverse else -1].detach(), "cy": cy.detach()}
        for value, name in zip(taken, GRADIENTS, strict=False):
            if value is not None:
                expected[name] = value.grad if value.grad is not None else torch.zeros_like(value)
        for name, wanted in expected.items():
            found = data.get(name)
            if found is None:
                continue
            largest = (found.double() - wanted).abs().max().item()
            if not largest <= TOLERANCE[self.dtype] * max(1.0, wanted.abs().max().item()):
                shape = (self.sizes, self.kind, self.dtype, rules)
                raise Finding(f"{name} of a LayerNormLSTM is off by {largest:g}: {shape}")


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
        layer.call("DestroyRNNCall", {"call": layer.prepared}, must_fail=False)
        layer.destroy_all()
        if not memory.intact():
            raise Finding("memory around a buffer was written")

"""prnnRunStreamLayers: random layers on memory between inaccessible pages, chunks of streams in slots against prnn.nn's
layers over the whole, and calls with one thing wrong."""

from __future__ import annotations

import ctypes
from typing import Any

import capi
import torch
from decode_case import Layers, LayerWeights
from torch import Tensor

from fuzz.c_calls import Client
from fuzz.case import Case, Finding
from fuzz.memory import Memory
from prnn import _C, nn

ROUNDS = 6
WRONG: dict[str, tuple[int, ...]] = {
    "dataType": (-1, 99, capi.HALF),
    "mode": (-1, 0, 4, 2**31 - 1),
    "layers": (0, -1, 1001, 2**62),
    "inputSize": (0, -1, 2**31, 2**62),
    "hiddenSize": (0, -1, 2**31, 2**62),
    "projectionSize": (-1, 2**62),
}


class Streams(Client):
    """Layers and a pool of their states."""

    def __init__(self, case: Case, memory: Memory) -> None:
        super().__init__(case, memory)
        random = self.random
        self.dtype = random.choice((torch.float32, torch.float64))
        is_lstm, layers = random.random() < 0.6, random.randint(1, 3)
        self.input, hidden = random.choice((1, 5, 17, 33)), random.choice((2, 7, 16, 40, 65))
        self.batch, self.steps = random.choice((1, 2, 17, 40)), random.choice((1, 5, 70))
        options: dict[str, Any] = {"bias": random.random() < 0.7, "batch_first": True}
        if is_lstm:
            options["proj_size"] = random.choice((0, 1, hidden - 1))
        self.module = (nn.LSTM if is_lstm else nn.GRU)(self.input, hidden, layers, **options).to(self.dtype)
        self.size = options.get("proj_size", 0) or hidden
        kind = capi.FLOAT if self.dtype == torch.float32 else capi.DOUBLE
        mode = _C.LSTM if is_lstm else _C.GRU
        self.layers = Layers(kind, mode, layers, self.input, hidden, options.get("proj_size", 0))
        self.handle = self.create("Handle")
        self.weights = (LayerWeights * layers)()
        self.kept: list[Tensor] = []
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        for layer, own in enumerate(self.weights):
            for name, (field, _) in zip(names, LayerWeights._fields_, strict=True):
                weight = getattr(self.module, f"{name}_l{layer}", None)
                if weight is not None:
                    self.kept.append(memory.input(weight.detach()))
                    setattr(own, field, self.kept[-1].data_ptr())
        slots = self.batch + random.randint(0, 3)
        self.slots = memory.input(torch.tensor(random.sample(range(slots), self.batch), dtype=torch.int32))
        shapes = {"h": (slots, layers, self.size), "c": (slots, layers, hidden)}
        self.states = {name: memory.output(shapes[name], self.dtype) for name in ("h", "c")[: 1 + is_lstm]}
        for state in self.states.values():
            state.zero_()
        self.prepared = memory.space(self.bytes_of("GetStreamLayersPreparedSize", {}))
        self.call("PrepareStreamLayers", self.preparing(), [], must_fail=False)

    def common(self) -> dict[str, Any]:
        return {"handle": self.handle, "layers": ctypes.addressof(self.layers)}

    def bytes_of(self, name: str, arguments: dict[str, Any]) -> int:
        out = self.memory.output((1,), torch.int64)
        self.call(name, {**self.common(), **arguments, "sizeInBytes": out.data_ptr()}, [out], must_fail=False)
        return int(out)

    def preparing(self) -> dict[str, Any]:
        place = {"prepared": self.prepared.data_ptr(), "preparedSizeInBytes": len(self.prepared)}
        return {**self.common(), "weights": ctypes.addressof(self.weights), **place}

    def chunk(self, x: Tensor, lengths: list[int]) -> tuple[dict[str, Any], list[Tensor]]:
        """A call's arguments and what it writes, y first."""
        counts = {"batch": self.batch, "maxFrames": x.shape[1]}
        self.given = self.memory.input(x), self.memory.input(torch.tensor(lengths, dtype=torch.int32))
        y = self.memory.output((self.batch, x.shape[1], self.size), self.dtype)
        workspace = self.memory.space(self.bytes_of("GetStreamLayersWorkspaceSize", counts))
        states = {name: self.states[name].data_ptr() if name in self.states else None for name in ("h", "c")}
        arguments = {
            **self.common(),
            **counts,
            **states,
            "prepared": self.prepared.data_ptr(),
            "x": self.given[0].data_ptr(),
            "lengths": self.given[1].data_ptr(),
            "slots": self.slots.data_ptr(),
            "y": y.data_ptr(),
            "workspace": workspace.data_ptr(),
            "workspaceSizeInBytes": len(workspace),
        }
        return arguments, [y, *self.states.values()]

    def compare(self) -> None:
        x = torch.randn(self.batch, self.steps, self.input, dtype=self.dtype)
        with torch.no_grad():
            expected, _ = self.module(x)
        at = [0] * self.batch
        while min(at) < self.steps:
            size = self.random.randint(1, self.steps)
            lengths = [min(self.random.randint(0, size), self.steps - place) for place in at]
            piece = torch.full((self.batch, size, self.input), torch.nan, dtype=self.dtype)
            for row, (place, length) in enumerate(zip(at, lengths, strict=True)):
                piece[row, :length] = x[row, place : place + length]
            arguments, outputs = self.chunk(piece, lengths)
            self.call("RunStreamLayers", arguments, outputs, must_fail=False)
            for row, (place, length) in enumerate(zip(at, lengths, strict=True)):
                if not torch.equal(outputs[0][row, :length], expected[row, place : place + length]):
                    raise Finding(f"stream {row}: timesteps {place} to {place + length} are other bits than prnn.nn's")
                at[row] = place + length

    def try_wrong(self) -> None:
        random, name = self.random, "RunStreamLayers"
        arguments, outputs = self.chunk(torch.zeros(self.batch, 2, self.input, dtype=self.dtype), [2] * self.batch)
        what = random.choice(("handle", "null", "layers", "sizes", "lengths", "slots", "space", "weights"))
        wrong = torch.zeros(self.batch, dtype=torch.int32)
        changes: dict[str, Any]
        if what == "handle":
            changes = {"handle": self.wrong("Handle")}
        elif what == "null":
            changes = {random.choice(("layers", "prepared", "x", "h", "y", "workspace")): None}
        elif what == "layers":
            layers, field = Layers.from_buffer_copy(self.layers), random.choice(list(WRONG))
            setattr(layers, field, random.choice(WRONG[field]))
            changes = {"layers": ctypes.addressof(layers)}
        elif what == "sizes":
            changes = {random.choice(("batch", "maxFrames")): random.choice((0, -1, 2**31, 2**62))}
        elif what in ("lengths", "slots"):
            wrong += torch.arange(self.batch) if what == "slots" else 0
            wrong[random.randrange(self.batch)] = random.choice(
                (-1, -(2**31), 3) if what == "lengths" else (-1, -(2**31))
            )
            changes = {what: wrong.data_ptr()}
        elif what == "space":
            changes = random.choice(({"workspaceSizeInBytes": 0}, {"prepared": arguments["prepared"] + 4}))
        else:
            name, arguments, outputs = "PrepareStreamLayers", self.preparing(), [self.prepared]
            kept, field = self.weights[0].recurrent, "recurrent"
            setattr(self.weights[0], field, None)
            self.call(name, arguments, outputs, must_fail=True, changes={"weights": arguments["weights"]})
            self.weights[0].recurrent = kept
            return
        self.call(name, arguments, outputs, must_fail=True, changes=changes)


def run(case: Case) -> None:
    torch.manual_seed(case.random.getrandbits(32))
    torch.set_num_threads(case.random.choice((1, 1, 2)))
    with Memory(case.random) as memory:
        streams = Streams(case, memory)
        for _ in range(ROUNDS):
            streams.try_wrong()
        streams.compare()
        streams.destroy_all()
        if not memory.intact():
            raise Finding("memory around a buffer was written")

"""Recurrent layers through the C API: training steps of random stacks whose calls come in any order, some with
arguments that are wrong, on memory between inaccessible pages; and whole steps against the float64 recursion."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import capi
import torch
from reference import rnn as reference
from rnn_case import OUTPUTS, RnnCase
from torch import Tensor

from fuzz.c_calls import Client
from fuzz.case import Case, Finding
from fuzz.memory import Memory, poison

CALLS = ("RNNForwardInference", "RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights")
WRITTEN = {
    "RNNForwardInference": ("y", "hy", "cy"),
    "RNNForwardTraining": ("y", "hy", "cy"),
    "RNNBackwardData": ("dx", "dhx", "dcx"),
    "RNNBackwardWeights": ("dw",),
}
NULLABLE = ("hx", "cx", "hy", "cy", "dhx", "dcx", "dhy", "dcy", "dx")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-3, torch.bfloat16: 8e-3}
ROUNDS = 14


class Problem(RnnCase):
    """A layer with its data in guarded memory. `stage` is how far the reserve space has come: 0, 1 forward, 2 data
    gradient, None unknown."""

    def __init__(self, client: Client, handle: capi.Object) -> None:
        random, memory = client.random, client.memory
        self.random, self.memory = random, memory
        mode = random.randrange(4)
        hidden = random.choice((1, 2, 3, 5, 8, 16, 17, 33, random.randint(1, 70)))
        skip = random.random() < 0.15
        projection = (
            random.randint(1, hidden - 1) if mode == reference.LSTM and hidden > 1 and random.random() < 0.3 else 0
        )
        stack = reference.Stack(
            mode,
            hidden if skip else random.choice((1, 3, 4, random.randint(1, 40))),
            hidden,
            random.choice((1, 1, 2, 3)),
            random.choice((1, 2)),
            skip,
            projection if memory.device == "cpu" else 0,
        )
        batch, batch_sizes = random.choice((1, 2, 4, 5, random.randint(1, 20))), []
        for _ in range(random.choice((1, 2, 3, random.randint(1, 12)))):
            batch_sizes.append(batch)
            batch = random.choice((batch, batch, random.randint(1, batch)))
        dtype = random.choice(tuple(TOLERANCE)) if memory.device == "cpu" else torch.float32
        dropout = None
        self.masked = random.random() < 0.2
        if self.masked:
            size = capi.size_from("DropoutGetStatesSize", handle=handle.pointer)
            self.random_states = memory.space(size)
            dropout = capi.descriptor("Dropout")
            capi.check(
                "SetDropoutDescriptor",
                dropoutDesc=dropout.pointer,
                handle=handle.pointer,
                dropout=random.choice((0.1, 0.5, 0.9)),
                states=self.random_states.data_ptr(),
                stateSizeInBytes=size,
                seed=random.getrandbits(64),
            )
        super().__init__(stack, batch_sizes, dtype, dropout, handle)
        for name, value in self.data.items():
            value = value.to(memory.device)
            self.data[name] = memory.output(value.shape, dtype) if name in OUTPUTS else memory.input(value)
        self.data["dw"].zero_()
        self.workspace = memory.space(self.workspace.numel())
        self.reserve = memory.space(self.reserve.numel())
        self.x_desc, self.y_desc = (guarded(memory, descriptors) for descriptors in (self.x_descs, self.y_descs))
        self.stage: int | None = 0
        self.handle_is_cpu = memory.device == "cpu"

    def make_data(self) -> None:
        super().make_data()
        self.given: dict[str, Any] = {}  # to the reference, besides the data
        self.given_back: dict[str, Tensor] = {}
        what = self.random.choice(((), (), (self.set_masks,), (self.set_extras,), (self.set_masks, self.set_extras)))
        if not what or self.memory.device != "cpu":
            return
        for each in what:
            each()
        self.workspace = torch.empty(self.size("GetRNNWorkspaceSize"), dtype=torch.uint8)
        self.reserve = torch.empty(self.reserve_size(), dtype=torch.uint8)

    def set_masks(self) -> None:
        stack, memory, is_gru = self.stack, self.memory, self.stack.mode == reference.GRU
        if stack.mode == reference.LSTM or stack.skip_input:
            return
        cells, rows = stack.layers * stack.directions, sum(self.batch_sizes)
        given: dict[str, Any] = {}
        if not is_gru or self.random.random() < 0.6:
            kept = torch.rand(cells, self.batch_sizes[0], stack.hidden) < 0.7
            given["recurrent"] = memory.input((kept / 0.7).to(self.dtype))
        if is_gru and self.random.random() < 0.5:
            given["zoneout"] = memory.input(torch.randint(0, 3, (rows, cells, stack.hidden), dtype=torch.uint8))
        elif is_gru:
            given["expectation"] = self.random.choice((0.0, 0.2, 1.0))
        addresses = [given[name].data_ptr() if name in given else None for name in ("recurrent", "zoneout")]
        masks = capi.Masks(*addresses, given.get("expectation", 0.0))
        capi.check("SetRNNMasks", rnnDesc=self.rnn.pointer, masks=ctypes.addressof(masks))
        self.given["masks"] = reference.Masks(**given)

    def set_extras(self) -> None:
        """Resets, and of an LSTM c of every timestep."""
        stack, memory, rows = self.stack, self.memory, sum(self.batch_sizes)
        extras = capi.Extras()
        states = {"h": (stack.state, "resetHx", "dresetHx"), "c": (stack.hidden, "resetCx", "dresetCx")}
        if self.random.random() < 0.8:
            flags = torch.rand(rows) < self.random.choice((0.0, 0.2, 1.0))
            self.given["reset"] = memory.input(flags * torch.randint(1, 256, (rows,), dtype=torch.uint8))
            extras.reset = self.given["reset"].data_ptr()
            for letter, (width, state, gradient) in states.items():
                shape = (stack.layers * stack.directions, self.batch_sizes[0], width)
                if (letter == "c" and stack.mode != reference.LSTM) or self.random.random() < 0.3:
                    continue
                self.given[f"reset_{letter}x"] = memory.input(torch.randn(shape).to(self.dtype))
                setattr(extras, state, self.given[f"reset_{letter}x"].data_ptr())
                self.given_back[f"dreset_{letter}x"] = memory.output(shape, self.dtype)
                setattr(extras, gradient, self.given_back[f"dreset_{letter}x"].data_ptr())
        if stack.mode == reference.LSTM:
            shape = (rows, stack.directions * stack.hidden)
            self.given_back["cells"] = memory.output(shape, self.dtype)
            self.given["dcells"] = memory.input(torch.randn(shape).to(self.dtype))
            extras.cells, extras.dcells = self.given_back["cells"].data_ptr(), self.given["dcells"].data_ptr()
        capi.check("SetRNNExtras", rnnDesc=self.rnn.pointer, extras=ctypes.addressof(extras))

    def expected(self, **_: Tensor) -> dict[str, Tensor]:
        inputs = {name: self.data[name] for name in ("x", "w", "hx", "cx", "dy", "dhy", "dcy")}
        step = vars(reference.train_step(self.stack, batch_sizes=self.batch_sizes, **inputs, **self.given))
        return {name: step[name] for name in (*OUTPUTS, *self.given_back)}

    def arguments(self, name: str) -> dict[str, Any]:
        values = super().arguments(name)
        for key in ("xDesc", "dxDesc", "yDesc", "dyDesc"):
            if key in values:
                values[key] = values[key].data_ptr()
        return values

    def outputs(self) -> list[Tensor]:
        return [*(self.data[name] for name in OUTPUTS), *self.given_back.values(), self.reserve]


def guarded(memory: Memory, descriptors: list[capi.Object]) -> Tensor:
    """An array of descriptors, in host memory whatever the device."""
    values = torch.tensor([descriptor.pointer for descriptor in descriptors], dtype=torch.int64)
    return memory.input(values, host=True)


class Layers(Client):
    def __init__(self, case: Case, memory: Memory) -> None:
        super().__init__(case, memory)
        self.handle = capi.Object("Create" if memory.device == "cuda" else "CreateCPU", "Destroy")
        assert self.handle.pointer
        self.alive["Handle"].append(self.handle.pointer)
        for kind in ("Tensor", "Filter", "RNN"):
            self.create(kind)  # never set
            self.destroy(kind, self.create(kind))
        self.problems = [self.problem() for _ in range(2)]

    def problem(self) -> Problem:
        """A problem that the device serves."""
        while True:
            try:
                return Problem(self, self.handle)
            except AssertionError as error:
                if self.memory.device == "cpu" or f": {capi.NOT_SUPPORTED}:" not in str(error):
                    raise

    def unset_or_wrong(self, kind: str) -> int | None:
        return self.alive[kind][0] if self.random.random() < 0.3 else self.wrong(kind)

    def refused(self, problem: Problem, name: str) -> tuple[dict[str, Any], bool | None]:
        """Changes to the arguments of a call, and whether it must then fail (None: it may)."""
        random, arguments = self.random, problem.arguments(name)
        lstm = problem.stack.mode == reference.LSTM
        data = [parameter for parameter in arguments if f"{parameter}Desc" in arguments]
        what = random.choice(
            ("handle", "rnn", "data", "state", "sequence", "element", "weights", "steps", "space", "mix")
        )
        if what == "handle":
            return {"handle": self.wrong("Handle")}, True
        if what == "rnn":
            return {"rnnDesc": self.unset_or_wrong("RNN")}, True
        if what == "data":
            parameter = random.choice(data)
            return {parameter: None}, None if parameter in NULLABLE else True
        if what == "state":
            states = [parameter for parameter in data if parameter[-2:] in ("hx", "cx", "hy", "cy")]
            parameter = random.choice(states)
            looked_at = lstm or "c" not in parameter
            if random.random() < 0.2:
                return {parameter: None, f"{parameter}Desc": self.wrong("Tensor")}, None
            return {f"{parameter}Desc": self.unset_or_wrong("Tensor")}, True if looked_at else None
        if what == "weights":
            parameter = next(parameter for parameter in ("wDesc", "dwDesc") if parameter in arguments)
            return {parameter: self.unset_or_wrong("Filter")}, True
        sequences = [parameter for parameter in ("xDesc", "yDesc", "dxDesc", "dyDesc") if parameter in arguments]
        if what == "sequence":
            return {random.choice(sequences): None}, True
        if what == "element":
            parameter = random.choice(sequences)
            pointers = (problem.x_desc if "x" in parameter else problem.y_desc).clone()
            bad = self.unset_or_wrong("Tensor") or 0
            pointers[random.randrange(len(pointers))] = bad if bad < 2**63 else bad - 2**64
            return {parameter: self.memory.input(pointers, host=True).data_ptr()}, True
        if what == "steps":
            steps = random.choice((0, -1, -(2**31), random.randint(1, len(problem.batch_sizes))))
            return {"seqLength": steps}, True if steps < 1 else None
        if what == "space":
            space, size = random.choice(
                (("workspace", "workSpaceSizeInBytes"), ("reserveSpace", "reserveSpaceSizeInBytes"))
            )
            if space in arguments:
                needed = arguments[size]
                if space == "workspace" and name != "RNNForwardInference":  # may need more
                    needed = problem.temp_space_sizes(xDesc=problem.x_desc.data_ptr())[1]
                elif name == "RNNForwardTraining":  # takes the least reserve space, too
                    needed = problem.temp_space_sizes(xDesc=problem.x_desc.data_ptr())[2]
                change = random.choice(({space: None}, {size: random.choice((0, 1, needed - 1))}))
                must = arguments[size] > 0 and (name != "RNNForwardInference" or change.get(size) == 0)
                return change, True if must else None
        other = random.choice(self.problems)  # its rnnDesc with all else of this one
        if other.given:  # which has arrays of other sizes
            return {"rnnDesc": self.unset_or_wrong("RNN")}, True
        return {"rnnDesc": other.rnn.pointer}, None

    def try_call(self) -> None:
        problem, name = self.random.choice(self.problems), self.random.choice(CALLS)
        changes, must_fail = self.refused(problem, name) if self.random.random() < 0.6 else ({}, False)
        if name == "RNNForwardInference" and "cells" in problem.given_back and not changes.get("rnnDesc"):
            must_fail = True  # prnnRNNForwardTraining alone fills them
        needed = {"RNNBackwardData": 1, "RNNBackwardWeights": 2}.get(name, 0)
        if must_fail is False and problem.handle_is_cpu and needed:
            must_fail = None if problem.stage is None else problem.stage < needed
        if not problem.handle_is_cpu and problem.stage != 2 and needed:
            return  # a GPU's reserve space is not looked at
        poison(problem.workspace)
        for output in WRITTEN[name]:
            if output != "dw":
                poison(problem.data[output])
        if name == "RNNForwardTraining":
            poison(problem.reserve)
            problem.stage = 0
        refusals = (capi.NOT_SUPPORTED,) if self.memory.device == "cuda" else ()
        status = self.call(name, problem.arguments(name), problem.outputs(), must_fail, refusals, changes)
        if status != capi.SUCCESS:
            problem.data["y"].zero_()  # a data gradient may come next
            return
        if changes:
            problem.stage = None
            problem.data["y"].nan_to_num_()  # fewer steps may have been written
        elif name != "RNNForwardInference":
            problem.stage = max(problem.stage or 0, {"RNNForwardTraining": 1}.get(name, 2))
        if not changes:
            self.require_written(problem, name)

    def require_written(self, problem: Problem, name: str) -> None:
        lstm = problem.stack.mode == reference.LSTM
        for output in WRITTEN[name]:
            if (lstm or "c" not in output) and not bool(problem.data[output].isfinite().all()):
                raise Finding(f"prnn{name} of {problem.stack}, batches {problem.batch_sizes}: {output} is not finite")

    def compare(self, problem: Problem) -> None:
        """A whole step against the recursion."""
        if problem.masked and problem.stack.layers > 1:
            return
        self.case.note(f"a step of {dataclasses.asdict(problem.stack)}, batches {problem.batch_sizes}, {problem.dtype}")
        for output in (*(problem.data[name] for name in OUTPUTS), *problem.given_back.values()):
            poison(output)
        problem.data["dw"].zero_()
        poison(problem.reserve)
        try:
            problem.train()
        except AssertionError as error:
            if self.memory.device == "cuda" and f": {capi.NOT_SUPPORTED}:" in str(error):
                return
            raise
        problem.stage = 2
        self.case.counts["steps compared"] += 1
        for name, expected in problem.expected().items():
            if name in ("cy", "dcx") and problem.stack.mode != reference.LSTM:
                continue
            found = (problem.data | problem.given_back)[name].double()
            largest = (found - expected).abs().max().item()
            if not largest <= TOLERANCE[problem.dtype] * max(1.0, expected.abs().max().item()):
                raise Finding(
                    f"{name} of {problem.stack}, batches {problem.batch_sizes}, {problem.dtype} is off by {largest:g}"
                )


def run(case: Case) -> None:
    device = "cuda" if torch.cuda.is_available() and case.random.random() < 0.5 else "cpu"
    torch.manual_seed(case.random.getrandbits(32))
    torch.set_num_threads(case.random.choice((1, 1, 2)))
    with Memory(case.random, device) as memory:
        layers = Layers(case, memory)
        for _ in range(ROUNDS):
            layers.try_call()
        layers.compare(case.random.choice(layers.problems))
        for kind in ("Tensor", "Filter", "RNN"):
            layers.destroy(kind, layers.alive[kind][0])
        if not memory.intact():
            raise Finding("memory around a buffer was written")

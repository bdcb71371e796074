"""prnn_decode.h: random models and searches on memory between inaccessible pages, whole and as streams in slots,
against a slow search in float64, and calls with one thing wrong."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from decode_case import Bias, DecodeCase, Inputs, Model, Options, Outputs, State
from reference.transducer_search import Found
from torch import Tensor

from fuzz.c_beams import compare_beams
from fuzz.c_calls import Client
from fuzz.case import Case, Finding
from fuzz.memory import Memory

ROUNDS = 8
WRONG_NUMBERS: dict[str, tuple[int, ...]] = {
    "dataType": (-1, 3, 8, 2**31 - 1),
    "predictor": (-1, 3, 2**31 - 1),
    "layers": (0, 3, -1, 2**62),
    "context": (0, 9, -1),
    "embeddingSize": (0, -1, 2**31, 2**62),
    "hiddenSize": (0, -1, 2**31 - 1, 2**62),
    "encoderSize": (0, -1, 2**62),
    "joinerSize": (0, -1, 2**31 - 1),
    "activation": (-1, 2),
    "classes": (1, 0, -1, 2**31, 2**62),
    "blank": (-1, 10**6, 2**62),
    "durationCount": (-1, 17, 2**62),
}


class Search(Client):
    """A model, and searches with it, whose arrays lie in guarded memory."""

    def __init__(self, case: Case, memory: Memory) -> None:
        super().__init__(case, memory)
        random = self.random
        durations = random.sample(range(6), random.randint(1, 5))
        durations = durations if any(durations) and random.random() < 0.5 else []
        self.model = DecodeCase(
            random.choice(("lstm", "gru", "stateless")),
            random.choice((torch.float32, torch.float64)),
            random.randint(1, 2),
            tuple(durations),
            random.choice(("tanh", "relu")),
            random.randrange(3),
            random.choice((3, 13, 40, 130)),
            random.choice((1, 7, 32, 33)),
            random.choice((1, 5, 16, 35)),
            random.choice((1, 3, 17)),
            random.randint(1, 4),
            random.random() < 0.5,
            random.random() < 0.3,
            random.getrandbits(16),
        )
        self.handle = self.create("Handle")
        model = self.model
        for name, tensor in model.weights.items():
            kept = tensor is not None and not (
                name in ("encoderBias", "predictorBias", "outputBias") and random.random() < 0.2
            )
            model.weights[name] = memory.input(tensor) if kept and tensor is not None else None
        model.layer_weights = [{name: memory.input(t) for name, t in layer.items()} for layer in model.layer_weights]
        self.prepared = memory.space(self.size("GetTransducerPreparedSize", {}))
        self.call("PrepareTransducer", self.preparing(), [], must_fail=False)
        self.begin()

    def common(self) -> dict[str, Any]:
        return {"handle": self.handle, "model": ctypes.addressof(self.model.model)}

    def size(self, name: str, arguments: dict[str, Any]) -> int:
        out = self.memory.output((1,), torch.int64)
        arguments = {**self.common(), **arguments, "sizeInBytes": out.data_ptr()}
        self.call(name, arguments, [out], must_fail=False)
        return int(out)

    def preparing(self) -> dict[str, Any]:
        self.c_weights = self.model.c_weights()
        return {
            **self.common(),
            "weights": ctypes.addressof(self.c_weights),
            "prepared": self.prepared.data_ptr(),
            "preparedSizeInBytes": len(self.prepared),
        }

    def begin(self) -> None:
        """The frames of a batch, and, of streams, a pool of states."""
        random, memory, model = self.random, self.memory, self.model
        self.batch, self.count = random.choice((1, 2, 7, 20)), random.randint(1, 9)
        self.max_symbols = random.choice((1, 2, 5))
        self.frames = model.frames(self.batch, self.count, random.getrandbits(16))
        self.bias: tuple[Tensor, Tensor] | None = None
        if random.random() < 0.3:
            nodes = random.randint(1, 4)
            after = torch.randint(0, nodes, (nodes, model.classes), dtype=torch.int32)
            gains = torch.randn(nodes, model.classes, dtype=model.dtype)
            self.bias = memory.input(after), memory.input(gains)
        self.state: dict[str, Tensor] | None = None
        if random.random() < 0.6:
            slots = self.batch + random.randint(0, 3)
            state = model.state(slots)
            if self.bias is not None:
                state["node"] = torch.full((slots,), -1, dtype=torch.int32)
            self.state = {name: memory.output(tensor.shape, tensor.dtype) for name, tensor in state.items()}
            for name, tensor in state.items():
                self.state[name].copy_(tensor)
            self.slots = random.sample(range(slots), self.batch)

    def chunk(self, frames: Tensor, lengths: list[int]) -> tuple[dict[str, Any], list[Tensor]]:
        """A call's arguments and its outputs."""
        memory, model = self.memory, self.model
        batch, count, _ = frames.shape
        real = torch.arange(count)[None, :, None] < torch.tensor(lengths)[:, None, None]
        self.given = (
            memory.input(torch.where(real, frames, torch.nan)),
            memory.input(torch.tensor(lengths, dtype=torch.int32)),
        )
        self.inputs = Inputs(*(tensor.data_ptr() for tensor in self.given))
        if self.bias is not None:
            self.c_bias = Bias(len(self.bias[0]), self.bias[0].data_ptr(), self.bias[1].data_ptr())
            self.inputs.bias = ctypes.pointer(self.c_bias)
        room = (batch, count * self.max_symbols)
        out = {name: memory.output(room, torch.int32) for name in ("symbols", "frames", "durations")}
        out |= {name: memory.output(room, model.dtype) for name in ("logProbs", "confidences")}
        out |= {"counts": memory.output((batch,), torch.int32), "scores": memory.output((batch,), torch.float64)}
        if not model.durations:
            del out["durations"]
        self.out = out
        self.c_outputs = Outputs(**{name: tensor.data_ptr() for name, tensor in out.items()})
        self.options = Options(batch, count, self.max_symbols)
        options = {"options": ctypes.addressof(self.options)}
        self.workspace = memory.space(self.size("GetTransducerSearchWorkspaceSize", options))
        outputs = list(out.values())
        pool = None
        if self.state is not None:
            slots = memory.input(torch.tensor(self.slots, dtype=torch.int32))
            self.pool = State(slots=slots.data_ptr(), **{name: t.data_ptr() for name, t in self.state.items()})
            pool = ctypes.addressof(self.pool)
            outputs += self.state.values()
        return {
            **self.common(),
            **options,
            "prepared": self.prepared.data_ptr(),
            "inputs": ctypes.addressof(self.inputs),
            "state": pool,
            "outputs": ctypes.addressof(self.c_outputs),
            "workspace": self.workspace.data_ptr(),
            "workspaceSizeInBytes": len(self.workspace),
        }, outputs

    def found(self, n: int) -> Found:
        count = int(self.out["counts"][n])
        columns = [self.out[name][n] for name in ("symbols", "frames", "logProbs", "confidences")]
        for column in columns:
            if not (column[count:].contiguous().view(torch.uint8) == 0xFF).all():
                raise Finding("a search wrote beyond the symbols that it counted")
        symbols, frames, log_probs, confidences = (column[:count].tolist() for column in columns)
        spans = self.out["durations"][n, :count].tolist() if self.model.durations else []
        return Found(symbols, frames, spans, log_probs, confidences, float(self.out["scores"][n]))

    def compare(self) -> None:
        begin, parts = 0, [Found([], [], [], [], [], 0.0) for _ in range(self.batch)]
        lengths = [self.random.randint(0, self.count) for _ in range(self.batch)]
        while begin < self.count:
            end = self.random.randint(begin + 1, self.count) if self.state is not None else self.count
            arguments, _ = self.chunk(self.frames[:, begin:end], [min(max(n - begin, 0), end - begin) for n in lengths])
            self.call("TransducerSearch", arguments, must_fail=False)
            for n in range(self.batch):
                found = self.found(n)
                frames = [frame + begin for frame in found.frames]
                joined = [a + b for a, b in zip(parts[n][:5], found._replace(frames=frames)[:5], strict=True)]
                parts[n] = Found(*joined, found.score)
            begin = end
        for n, length in enumerate(lengths):
            self.require_same(parts[n], self.model.reference(self.frames[n, :length], self.max_symbols, self.bias))
        self.case.counts["searches compared"] += 1

    def require_same(self, found: Found, expected: Found) -> None:
        if self.model.dtype == torch.float32 and found.symbols != expected.symbols:
            return  # two choices may be as close as the type's rounding
        if not self.model.durations:
            expected = expected._replace(durations=[])
        tolerance = 1e-8 if self.model.dtype == torch.float64 else 1e-3
        numbers = zip(found[3] + found[4] + [found.score], expected[3] + expected[4] + [expected.score], strict=True)
        if found[:3] != expected[:3] or not all(
            math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) for a, b in numbers
        ):
            raise Finding(f"a transducer search found {found} in place of {expected}")

    def try_wrong(self) -> None:
        """A call with one thing wrong."""
        random = self.random
        arguments, outputs = self.chunk(self.frames, [self.count] * self.batch)
        name, what = (
            "TransducerSearch",
            random.choice(("handle", "null", "model", "options", "lengths", "space", "state", "weights")),
        )
        changes: dict[str, Any] = {}
        if what == "handle":
            changes = {"handle": self.wrong("Handle")}
        elif what == "null":
            changes = {random.choice(("model", "prepared", "options", "inputs", "outputs", "workspace")): None}
        elif what == "model":
            model, field = Model.from_buffer_copy(self.model.model), random.choice(list(WRONG_NUMBERS))
            unused = ("layers", "embeddingSize") if self.model.predictor == "stateless" else ("context",)
            if field in unused:
                return
            setattr(model, field, random.choice(WRONG_NUMBERS[field]))
            changes = {"model": ctypes.addressof(model)}
        elif what == "options":
            options, field = Options.from_buffer_copy(self.options), random.choice(("batch", "maxFrames", "maxSymbols"))
            setattr(options, field, random.choice((0, -1, 2**31, 2**62, -(2**63))))
            changes = {"options": ctypes.addressof(options)}
        elif what == "lengths":
            lengths = torch.zeros(self.batch, dtype=torch.int32)
            lengths[random.randrange(self.batch)] = random.choice((-1, self.count + 1, 2**31 - 1, -(2**31)))
            inputs = Inputs.from_buffer_copy(self.inputs)
            inputs.lengths = lengths.data_ptr()
            changes = {"inputs": ctypes.addressof(inputs)}
        elif what == "space":
            changes = random.choice(({"workspaceSizeInBytes": 16}, {"workspace": arguments["workspace"] + 8}))
            if random.random() < 0.3:
                changes = {"prepared": arguments["prepared"] + 4}
        elif what == "state":
            ahead = torch.full((self.batch + 3,), -2, dtype=torch.int32)
            state = State(ahead=ahead.data_ptr()) if self.state is None else State.from_buffer_copy(self.pool)
            if self.state is not None:
                setattr(state, random.choice([name for name in self.state if name != "score"]), None)
            changes = {"state": ctypes.addressof(state)}
        else:
            name, arguments, outputs = "PrepareTransducer", self.preparing(), [self.prepared]
            field = random.choice(("embedding", "predictorWeight", "outputWeight"))
            setattr(self.c_weights, field, None)
            changes = {"weights": arguments["weights"]}
        self.call(name, arguments, outputs, must_fail=True, changes=changes)


def run(case: Case) -> None:
    torch.manual_seed(case.random.getrandbits(32))
    torch.set_num_threads(case.random.choice((1, 1, 2)))
    with Memory(case.random) as memory:
        search = Search(case, memory)
        for _ in range(ROUNDS):
            search.try_wrong()
        search.begin()
        search.compare()
        compare_beams(search)
        search.destroy_all()
        if not memory.intact():
            raise Finding("memory around a buffer was written")

"""Beam searches of prnn_decode.h with the model and the frames of a fuzzed greedy search: whole and in chunks, which
give the same bits, and with a beam of one, which is greedy."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from decode_case import BeamOptions, BeamOutputs, BeamState, Bias, Inputs
from torch import Tensor

from fuzz.case import Finding

if TYPE_CHECKING:
    from fuzz.c_decode import Search


class Hypothesis(NamedTuple):
    """The symbols found so far, and how probable they are."""

    symbols: list[int]
    frames: list[int]
    confidences: list[float]
    score: float


class Beams:
    """Searches with one beam and mode, whose arrays lie in guarded memory."""

    def __init__(self, search: Search) -> None:
        random = search.case.random
        self.search, self.beam, self.modified = search, random.choice((1, 1, 2, 4, 17)), random.random() < 0.5
        self.max_symbols = 1 if self.modified else search.max_symbols

    def new_state(self, slots: int) -> dict[str, Tensor]:
        """The state of so many streams that have not begun."""
        model, memory, size = self.search.model, self.search.memory, (slots, self.beam)
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "ahead": (size, torch.int32),
            "score": (size, torch.float64),
            "hash": (size, torch.int64),
        }
        if model.predictor == "stateless":
            shapes["context"] = ((*size, model.context), torch.int32)
        else:
            shapes["h"] = ((*size, model.layers, model.hidden), model.dtype)
        if model.predictor == "lstm":
            shapes["c"] = shapes["h"]
        if self.search.bias is not None:
            shapes["node"] = (size, torch.int32)
        state = {name: memory.output(*shape) for name, shape in shapes.items()}
        state["ahead"].fill_(-1)
        return state

    def run(
        self, frames: Tensor, lengths: list[int], state: dict[str, Tensor] | None, before: list[list[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """The hypotheses after these frames of each utterance, which come from those `before`."""
        search, memory, beam = self.search, self.search.memory, self.beam
        batch, count, _ = frames.shape
        given = memory.input(frames), memory.input(torch.tensor(lengths, dtype=torch.int32))
        inputs = Inputs(*(tensor.data_ptr() for tensor in given))
        if search.bias is not None:
            bias = Bias(len(search.bias[0]), search.bias[0].data_ptr(), search.bias[1].data_ptr())
            inputs.bias = ctypes.pointer(bias)
        room = (batch, beam, count * self.max_symbols)
        out = {name: memory.output(room, torch.int32) for name in ("symbols", "frames")}
        out |= {name: memory.output(room[:2], torch.int32) for name in ("counts", "origins")}
        out["confidences"] = memory.output(room, search.model.dtype)
        out["scores"] = memory.output(room[:2], torch.float64)
        options = BeamOptions(batch, count, self.max_symbols, beam, int(not self.modified))
        asked = {"options": ctypes.addressof(options)}
        workspace = memory.space(search.size("GetTransducerBeamSearchWorkspaceSize", asked))
        outputs = BeamOutputs(**{name: tensor.data_ptr() for name, tensor in out.items()})
        pool = BeamState(**{name: tensor.data_ptr() for name, tensor in (state or {}).items()})
        arguments: dict[str, Any] = {
            **search.common(),
            **asked,
            "prepared": search.prepared.data_ptr(),
            "inputs": ctypes.addressof(inputs),
            "state": None if state is None else ctypes.addressof(pool),
            "outputs": ctypes.addressof(outputs),
            "workspace": workspace.data_ptr(),
            "workspaceSizeInBytes": len(workspace),
        }
        search.call("TransducerBeamSearch", arguments, [*out.values(), *(state or {}).values()], must_fail=False)
        return [[self._joined(out, n, k, before[n]) for k in range(beam)] for n in range(batch)]

    @staticmethod
    def _joined(out: dict[str, Tensor], n: int, k: int, before: list[Hypothesis]) -> Hypothesis:
        count, old = int(out["counts"][n, k]), before[int(out["origins"][n, k])]
        if not (out["symbols"][n, k, count:].contiguous().view(torch.uint8) == 0xFF).all():
            raise Finding("a beam search wrote beyond the symbols that it counted")
        columns = [out[name][n, k, :count].tolist() for name in ("symbols", "frames", "confidences")]
        return Hypothesis(
            *(a + b for a, b in zip(old[:3], columns, strict=True)),  # type: ignore[arg-type]
            float(out["scores"][n, k]),
        )


def compare_beams(search: Search) -> None:
    random, beams = search.case.random, Beams(search)
    batch, total = search.batch, search.count
    nothing = [[Hypothesis([], [], [], 0.0)] * beams.beam] * batch
    whole = beams.run(search.frames, [total] * batch, None, nothing)
    state, found, begin = beams.new_state(batch), nothing, 0
    while begin < total:
        end = random.randint(begin + 1, total)
        before = [[h._replace(frames=[frame - begin for frame in h.frames]) for h in row] for row in found]
        found = beams.run(search.frames[:, begin:end], [end - begin] * batch, state, before)
        found = [[h._replace(frames=[frame + begin for frame in h.frames]) for h in row] for row in found]
        begin = end
    for one, other in zip(whole, found, strict=True):
        if [h for h in one if h.score > -math.inf] != [h for h in other if h.score > -math.inf]:
            raise Finding(f"a beam search in chunks found {other} in place of {one}")
    if beams.beam == 1 and beams.modified and search.model.dtype == torch.float64 and not search.model.durations:
        for n, (hypothesis,) in enumerate(whole):
            expected = search.model.reference(search.frames[n], 1, search.bias)
            if hypothesis.symbols != expected.symbols or not math.isclose(
                hypothesis.score, expected.score, abs_tol=1e-8
            ):
                raise Finding(f"a beam of one found {hypothesis} in place of {expected}")
    search.case.counts["beam searches compared"] += 1

"""The losses through the C API: random problems on memory between inaccessible pages, in one call and in two, which
must agree, and with options, data, pointers and spaces that are wrong."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import capi
import loss_case
import torch
from torch import Tensor

from fuzz.c_calls import Client
from fuzz.case import Case, Finding
from fuzz.memory import Memory, poison
from prnn.losses._checks import RNNT_TYPES

ROUNDS = 3
REAL = {capi.FLOAT: torch.float32, capi.DOUBLE: torch.float64, capi.HALF: torch.float16, capi.BFLOAT16: torch.bfloat16}
NAN, INF = math.nan, math.inf


@dataclass
class Reduction:
    """prnnLossReduction_t, and what must come of it."""

    struct: ctypes.Structure
    weights: Tensor  # of the costs, float64
    loss: Tensor


@dataclass
class Trial:
    """A problem. wrong_options: (field, value) that the header forbids; wrong_data: array, index and value."""

    loss: str
    options: ctypes.Structure
    inputs: dict[str, Tensor | None]
    gradients: dict[str, Tensor]
    costs: Tensor
    reduction: Reduction | None
    required: list[str]  # inputs that must not be NULL
    wrong_options: list[tuple[str, Any]]
    wrong_data: list[tuple[str, int, int]]
    padding: Callable[[], bool]  # whether the gradients are right in padding
    reserve: Tensor


class Losses(Client):
    def __init__(self, case: Case, memory: Memory) -> None:
        super().__init__(case, memory)
        self.handle = self.create("Handle")
        self.destroy("Handle", self.create("Handle"))

    # Problems

    def data_type(self) -> int:
        types = list(REAL) if self.memory.device == "cuda" else [capi.FLOAT, capi.DOUBLE]
        return self.random.choice(types)

    def lengths(self, batch: int, low: int, high: int) -> Tensor:
        values = [self.random.choice((high, self.random.randint(low, high))) for _ in range(batch)]
        return torch.tensor(values, dtype=torch.int32)

    def symbols(self, count: int, classes: list[int]) -> Tensor:
        return torch.tensor([self.random.choice(classes or [0]) for _ in range(count)], dtype=torch.int32)

    def reals(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        values = torch.randn(shape, dtype=torch.float64) * self.random.choice((0.1, 1.0, 1.0, 10.0, 60.0))
        if self.random.random() < 0.1:
            values[..., 1:][torch.rand(values[..., 1:].shape) < 0.05] = -INF  # never a whole distribution
        return values.to(dtype)

    def options(self, struct: type[ctypes.Structure], init: str | None, **fields: Any) -> ctypes.Structure:
        options = struct()
        if init:
            capi.check(init, options=ctypes.byref(options))
        for name, value in fields.items():
            setattr(options, name, value)
        return options

    def targets(self, lengths: Tensor, most: int, classes: list[int], concatenated: bool) -> tuple[Tensor, int]:
        """Symbols in either layout, any numbers in padding, and targetElements."""
        rows = [self.symbols(most, classes) for _ in lengths]
        if concatenated:
            joined = torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)])
            return joined, len(joined)
        padded = torch.stack(rows)
        for row, length in zip(padded, lengths.tolist(), strict=True):
            row[length:] = self.random.choice((-1, 10**9, -(10**9), 0))
        return padded, 0

    def ctc(self) -> Trial:
        random, kind = self.random, self.data_type()
        batch, frames, most, classes = (
            random.randint(1, 5),
            random.randint(1, 14),
            random.randint(0, 6),
            random.randint(1, 9),
        )
        most = 0 if classes == 1 else most
        blank, concatenated = random.randrange(classes), random.random() < 0.4
        frame_lengths, lengths = self.lengths(batch, 0, frames), self.lengths(batch, 0, most)
        usable = [symbol for symbol in range(classes) if symbol != blank]
        targets, elements = self.targets(lengths, most, usable, concatenated)
        time, sequence = random.choice(((0, 0), (classes, frames * classes), (batch * classes + 3, classes)))
        if random.random() < 0.2:
            time, sequence = classes + 2, frames * (classes + 2) + 5
        strides = (time, sequence) if time else (batch * classes, classes)
        extent = (frames - 1) * strides[0] + (batch - 1) * strides[1] + classes
        dtype = REAL[kind]
        storage = torch.full((extent,), NAN, dtype=dtype)  # in gaps and padding
        view = storage.as_strided((frames, batch, classes), (*strides, 1))
        values = self.reals((frames, batch, classes), dtype)
        for n, length in enumerate(frame_lengths.tolist()):
            view[:length, n] = values[:length, n]
        input = random.randrange(2)
        options = self.options(
            loss_case.CtcOptions, "InitCTCLossOptions", dataType=kind, input=input, targetLayout=int(concatenated),
            batch=batch, maxFrames=frames, maxTargets=most, targetElements=elements, classes=classes, blank=blank,
            timeStride=time, batchStride=sequence, zeroInfinity=random.randrange(2),
        )  # fmt: skip
        gradients = self.memory.output((extent,), dtype)

        def padding() -> bool:
            found = gradients.as_strided((frames, batch, classes), (*strides, 1))
            return all(not found[length:, n].any() for n, length in enumerate(frame_lengths.tolist()))

        inputs = {"activations": storage, "targets": targets, "frameLengths": frame_lengths, "targetLengths": lengths}
        wrong = [
            ("dataType", 3),
            ("input", 2),
            ("targetLayout", 2),
            ("batch", 0),
            ("batch", -(2**63)),
            ("maxFrames", 0),
        ]
        wrong += [("maxTargets", -1), ("classes", 0), ("blank", classes), ("blank", -1), ("maxFrames", 2**62)]
        wrong += [("timeStride", -1)] + [("batchStride", 2**62)] * (batch > 1) + [("targetElements", -1)] * concatenated
        return self.trial(
            "CTCLoss", options, inputs, {"gradients": gradients}, wrong, padding, classes, blank, frames, 0
        )

    def rnnt(self) -> Trial:
        random, kind = self.random, self.data_type()
        batch, frames, most, classes = (
            random.randint(1, 4),
            random.randint(1, 9),
            random.randint(0, 5),
            random.randint(1, 8),
        )
        gathered = random.random() < 0.15
        classes = 2 if gathered else classes
        most = 0 if classes == 1 else most
        blank, concatenated = random.randrange(classes), random.random() < 0.3
        frame_lengths, lengths = self.lengths(batch, 1, frames), self.lengths(batch, 0, most)
        usable = [symbol for symbol in range(classes) if symbol != blank]
        targets, elements = self.targets(lengths, most, usable, concatenated)
        layout, width, rows, dtype = random.randrange(3), random.randint(1, most + 1), 0, REAL[kind]
        begins = None
        if layout == loss_case.RNNT_PRUNED:
            shape: tuple[int, ...] = (batch, frames, width, classes)
            begins = torch.randint(0, 3, (batch, frames)).cumsum(1).clamp(max=most).int()
            begins[:, 0] = 0
        elif layout == loss_case.RNNT_PACKED:
            rows = int((frame_lengths * (lengths + 1)).sum())
            shape = (rows, classes)
        else:
            shape = (batch, frames, most + 1, classes)
        values = self.reals(shape, dtype)
        if layout != loss_case.RNNT_PACKED:
            for n, length in enumerate(frame_lengths.tolist()):
                values[n, length:] = NAN
                if layout == loss_case.RNNT_PADDED:
                    values[n, :, int(lengths[n]) + 1 :] = NAN
        gradients = self.memory.output(shape, dtype)

        def padding() -> bool:
            ends = enumerate(frame_lengths.tolist())
            return layout == loss_case.RNNT_PACKED or all(not gradients[n, length:].any() for n, length in ends)

        options = self.options(
            loss_case.RnntOptions, "InitRNNTLossOptions", dataType=kind, input=2 if gathered else random.randrange(2),
            layout=layout, targetLayout=int(concatenated), type=random.randrange(len(RNNT_TYPES)), batch=batch,
            maxFrames=frames, maxTargets=most, targetElements=elements, rows=rows, pruneRange=width, classes=classes,
            blank=blank, zeroInfinity=random.randrange(2), fastEmitLambda=random.choice((0.0, 0.0, 0.1)),
            clamp=random.choice((-1.0, 0.0, 0.01, 1.0)), delayPenalty=random.choice((0.0, 0.0, 0.1, -1.0)),
        )  # fmt: skip
        inputs = {"activations": values, "targets": targets, "frameLengths": frame_lengths, "targetLengths": lengths}
        inputs["rangeBegins"] = begins
        wrong = [("dataType", 8), ("input", 3), ("layout", 3), ("targetLayout", -1), ("type", 99), ("batch", -1)]
        wrong += [("maxFrames", 0), ("maxTargets", -5), ("classes", 0), ("fastEmitLambda", -0.1), ("clamp", NAN)]
        wrong += [("delayPenalty", INF), ("batch", 2**62)] + [("blank", classes)] * (not gathered)
        wrong += [("pruneRange", 0), ("pruneRange", most + 2)] * (layout == loss_case.RNNT_PRUNED)
        wrong += [("rows", 0)] * (layout == loss_case.RNNT_PACKED)
        if layout == loss_case.RNNT_PACKED and self.memory.device == "cpu":  # on a GPU no lengths are looked at
            wrong += [("rows", rows - 1)]
        blank = -7 if gathered else blank
        names = {"gradients": gradients}
        return self.trial(
            "RNNTLoss", options, inputs, names, wrong, padding, None if gathered else classes, blank, frames, 1
        )

    def duration(self) -> Trial:
        random, kind = self.random, self.data_type()
        multi = random.random() < 0.5
        batch, frames, most = random.randint(1, 4), random.randint(1, 9), random.randint(0, 4)
        count = random.randint(0 if multi else 1, 5)
        durations = random.sample(range(2, 12) if multi else range(0, 8), count)
        if not multi and not any(durations):
            durations = [*durations[:-1], 3]
        classes = random.randint(1, 7) + (count if multi else 0)
        blank = random.randint(count, classes - 1) if multi else random.randrange(classes)
        blanks = range(blank - count, blank + 1) if multi else (blank,)
        usable = [symbol for symbol in range(classes) if symbol not in blanks]
        most = most if usable else 0
        frame_lengths, lengths = self.lengths(batch, 1, frames), self.lengths(batch, 0, most)
        targets, _ = self.targets(lengths, most, usable, False)
        dtype, cells = REAL[kind], batch * frames * (most + 1)
        strides = [random.choice((0, size, size + 3)) for size in (classes, count)]
        sizes = [stride or size for stride, size in zip(strides, (classes, count), strict=True)]
        shapes = [(cells - 1) * stride + size for stride, size in zip(sizes, (classes, count), strict=True)]
        fields: dict[str, Any] = {"omega": random.choice((0.0, 0.0, 0.2, 1.0))} if not multi else {}
        options = self.options(
            loss_case.DurationOptions, "InitDurationRNNTLossOptions", dataType=kind, type=int(multi), batch=batch,
            maxFrames=frames, maxTargets=most, classes=classes, blank=blank, durationCount=count,
            tokenStride=strides[0], durationStride=0 if multi else strides[1], zeroInfinity=random.randrange(2),
            sigma=random.choice((0.0, 0.05, -1.0)), fastEmitLambda=random.choice((0.0, 0.1)),
            clamp=random.choice((-1.0, 0.0, 0.02)), **fields,
        )  # fmt: skip
        options.durations[:count] = durations
        inputs = {"tokenLogits": self.reals((shapes[0], 1), dtype).view(-1)}
        inputs["durationLogits"] = None if multi else self.reals((shapes[1], 1), dtype).view(-1)
        inputs |= {"targets": targets, "frameLengths": frame_lengths, "targetLengths": lengths}
        gradients = {"tokenGradients": self.memory.output((shapes[0],), dtype)}
        if not multi:
            gradients["durationGradients"] = self.memory.output((shapes[1],), dtype)
        wrong = [("dataType", 3), ("type", 2), ("batch", 0), ("maxFrames", -1), ("maxTargets", -1), ("classes", 0)]
        wrong += [("blank", -1), ("blank", classes), ("durationCount", 17), ("durationCount", -1), ("sigma", NAN)]
        wrong += [("omega", 1.5), ("fastEmitLambda", NAN), ("clamp", NAN), ("tokenStride", -3), ("batch", 2**61)]
        return self.trial(
            "DurationRNNTLoss", options, inputs, gradients, wrong, lambda: True, classes, blank, frames, 1
        )

    def trial(
        self, loss: str, options: ctypes.Structure, inputs: dict[str, Tensor | None], gradients: dict[str, Tensor],
        wrong: list[tuple[str, Any]], padding: Callable[[], bool], classes: int | None, blank: int, frames: int,
        shortest: int,
    ) -> Trial:  # fmt: skip
        batch, most = options.batch, options.maxTargets
        lengths, targets = inputs["targetLengths"], inputs["targets"]
        assert lengths is not None
        assert targets is not None
        last = self.random.randrange(batch)
        bad = [("frameLengths", last, value) for value in (shortest - 1, frames + 1, -(2**31), 2**31 - 1)]
        bad += [("targetLengths", last, value) for value in (-1, most + 1, 2**31 - 1)]
        if classes is not None and int(lengths[last]) > 0:
            start = int(lengths[:last].sum()) if targets.dim() == 1 else last * most
            index = start + self.random.randrange(int(lengths[last]))
            bad += [("targets", index, value) for value in (-1, classes, blank, 2**31 - 1)]
        given = {name: None if value is None else self.memory.input(value) for name, value in inputs.items()}
        required = [name for name, value in given.items() if value is not None]
        if targets.numel() == 0 or classes is None:
            required.remove("targets")
        real = torch.float64 if options.dataType == capi.DOUBLE else torch.float32
        costs = self.memory.output((batch,), real)
        reduction = None
        if self.random.random() < 0.5:
            reduction = self.reduction(batch, real)
            options.reduction = self.placed(reduction.struct)
            for scale in (INF, NAN):
                changed = type(reduction.struct).from_buffer_copy(reduction.struct)
                changed.scale = scale
                wrong.append(("reduction", self.placed(changed)))
        nothing = torch.empty(0, dtype=torch.uint8)
        return Trial(loss, options, given, gradients, costs, reduction, required, wrong, bad, padding, nothing)

    def reduction(self, batch: int, dtype: torch.dtype) -> Reduction:
        lengths = self.lengths(batch, 0, 9) if self.random.random() < 0.5 else torch.ones(batch, dtype=torch.int32)
        loss, scale = self.memory.output((1,), dtype), self.random.choice((1.0, 1 / batch, -2.0))
        divisors = self.memory.input(lengths).data_ptr() if lengths.ne(1).any() else None
        struct = loss_case.Reduction(scale=scale, lengths=divisors, loss=loss.data_ptr())
        return Reduction(struct, scale / lengths.clamp(min=1).double(), loss)

    # Calls

    def placed(self, options: ctypes.Structure) -> int:
        return self.memory.input(torch.frombuffer(bytearray(options), dtype=torch.uint8), host=True).data_ptr()

    def size(self, name: str, options: int) -> int:
        out = self.memory.output((1,), torch.int64, host=True)
        arguments = {"handle": self.handle, "options": options, "sizeInBytes": out.data_ptr()}
        self.call(f"Get{name}Size", arguments, [out], must_fail=False)
        return int(out)

    def calls(self, trial: Trial) -> dict[str, dict[str, Any]]:
        """The arguments of the single call, of Forward and of Backward."""
        options = self.placed(trial.options)
        scratch, kept = self.size(f"{trial.loss}Workspace", options), self.size(f"{trial.loss}Reserve", options)
        inputs = {name: None if value is None else value.data_ptr() for name, value in trial.inputs.items()}
        gradients: dict[str, int | None] = {name: value.data_ptr() for name, value in trial.gradients.items()}
        if trial.loss == "DurationRNNTLoss":
            gradients.setdefault("durationGradients", None)
        common = {"handle": self.handle, "options": options, **inputs}
        costs = {"costs": trial.costs.data_ptr()}
        both, workspace = ({"workspaceSizeInBytes": size} for size in (scratch + kept, scratch))
        for space in (both, workspace):
            space["workspace"] = self.memory.space(space["workspaceSizeInBytes"]).data_ptr()
        trial.reserve = self.memory.space(kept)
        reserve = {"reserveSpace": trial.reserve.data_ptr(), "reserveSizeInBytes": kept}
        return {
            trial.loss: common | costs | gradients | both,
            f"{trial.loss}Forward": common | costs | workspace | reserve,
            f"{trial.loss}Backward": common | gradients | {"costGradients": None} | reserve,
        }

    def run(self, trial: Trial) -> None:
        """One call, and two."""
        calls = self.calls(trial)
        outputs = [trial.costs, *trial.gradients.values()]
        if trial.reduction is not None:
            outputs.append(trial.reduction.loss)
        results = []
        for names in ((trial.loss,), (f"{trial.loss}Forward", f"{trial.loss}Backward")):
            for tensor in outputs:
                poison(tensor)
            for name in names:
                self.call(name, calls[name], outputs, must_fail=False)
            results.append([tensor.clone() for tensor in outputs])
        self.require_results(trial)
        if not all(torch.equal(bits(one), bits(two)) for one, two in zip(*results, strict=True)):
            raise Finding(f"prnn{trial.loss}: one call and two differ: {described(trial.options)}")
        for name, arguments in calls.items():
            for _ in range(4):
                self.refused(trial, name, arguments, [*outputs, trial.reserve])
        if trial.loss in ("CTCLoss", "RNNTLoss"):
            inputs = {key: calls[trial.loss][key] for key in ("handle", "options", *trial.inputs)}
            self.align(trial, inputs)

    def require_results(self, trial: Trial) -> None:
        if trial.costs.isnan().any() or (trial.options.zeroInfinity and trial.costs.isinf().any()):
            raise Finding(f"prnn{trial.loss}: costs {trial.costs.tolist()}: {described(trial.options)}")
        if trial.reduction is not None:
            loss, wanted = trial.reduction.loss.cpu().double(), trial.reduction.weights @ trial.costs.cpu().double()
            if not torch.isclose(loss, wanted, rtol=1e-5, atol=1e-5, equal_nan=True):
                raise Finding(
                    f"prnn{trial.loss}: loss {loss.item()} of costs {trial.costs.tolist()} by {wanted.item()}"
                )
        whole = trial.options.tokenStride in (0, trial.options.classes) if trial.loss == "DurationRNNTLoss" else True
        if trial.loss == "CTCLoss":
            whole = not trial.options.timeStride
        for name, values in trial.gradients.items():
            if whole and name != "durationGradients" and not values.isfinite().all():
                raise Finding(f"prnn{trial.loss}: {name} is not finite: {described(trial.options)}")
        if not trial.padding():
            raise Finding(f"prnn{trial.loss}: gradients in padding are not zero: {described(trial.options)}")

    def refused(self, trial: Trial, name: str, arguments: dict[str, Any], outputs: list[Tensor]) -> None:
        """The call with something wrong, which must fail; on a GPU data is not looked at."""
        random = self.random
        what = random.choice(("handle", "options", "field", "data", "null", "space", "align"))
        changes: dict[str, Any] = {}
        if what == "handle":
            changes["handle"] = self.wrong("Handle")
        elif what == "options":
            changes["options"] = None
        elif what == "field":
            options = type(trial.options).from_buffer_copy(trial.options)
            setattr(options, *random.choice(trial.wrong_options))
            if (
                trial.options.dataType in (capi.FLOAT, capi.DOUBLE)
                and self.memory.device == "cpu"
                and random.random() < 0.1
            ):
                options = type(trial.options).from_buffer_copy(trial.options)
                options.dataType = random.choice((capi.HALF, capi.BFLOAT16))
            changes["options"] = self.placed(options)
        elif what == "data":
            array, index, value = random.choice(trial.wrong_data)
            original = trial.inputs[array]
            assert original is not None
            if original.device.type == "cuda":
                return
            values = original.clone()
            values.view(-1)[index] = value
            changes[array] = self.memory.input(values).data_ptr()
        elif what == "null":
            written = [key for key in (*trial.gradients, "costs") if key in arguments]
            if not name.endswith("Backward"):
                written = ["costs"]  # gradients may be NULL
            changes[random.choice(trial.required + written)] = None
        else:
            sizes = {"workspace": "workspaceSizeInBytes", "reserveSpace": "reserveSizeInBytes"}
            space = random.choice([key for key in sizes if key in arguments])
            if arguments[sizes[space]] == 0:
                return
            if what == "align":
                changes = {space: arguments[space] + random.choice((1, 4, 8))}
            else:
                less = random.choice((1, arguments[sizes[space]] // 2, arguments[sizes[space]] - 1))
                if space == "workspace" and torch.get_num_threads() > 1:
                    less = 1  # more may be enough for fewer threads
                smaller = self.memory.space(less)
                if space == "reserveSpace":
                    smaller.copy_(outputs[-1][:less])
                changes = {space: smaller.data_ptr(), sizes[space]: less}
        for tensor in outputs[:-1]:
            poison(tensor)
        self.call(name, arguments, outputs, must_fail=True, changes=changes)

    def align(self, trial: Trial, common: dict[str, Any]) -> None:
        options, batch, most = trial.options, trial.options.batch, trial.options.maxTargets
        name = trial.loss.replace("Loss", "Align")
        space = self.memory.space(self.size(f"{name}Workspace", common["options"]))
        scores = self.memory.output((batch,), trial.costs.dtype)
        places = ("begins", "ends") if name == "CTCAlign" else ("frames",)
        outputs = {place: self.memory.output((batch, most), torch.int32) for place in places}
        arguments = common | {"scores": scores.data_ptr(), "workspace": space.data_ptr()}
        arguments |= {"workspaceSizeInBytes": len(space), **{key: value.data_ptr() for key, value in outputs.items()}}
        written = [scores, *outputs.values()]
        self.call(name, arguments, written, must_fail=False)
        frames, lengths = trial.inputs["frameLengths"], trial.inputs["targetLengths"]
        assert frames is not None
        assert lengths is not None
        for n, (score, length) in enumerate(zip(scores.tolist(), lengths.tolist(), strict=True)):
            emitted = outputs[places[0]][n].tolist()
            last = outputs[places[-1]][n].tolist()
            there = score > -INF
            good = not math.isnan(score) and score < INF
            good = good and all(0 <= place < int(frames[n]) for place in emitted[:length]) if there else good
            good = good and all(place == -1 for place in (emitted[length:] if there else emitted))
            ends = zip(emitted, last, strict=True)
            good = good and (name == "RNNTAlign" or not there or all(begin < end for begin, end in list(ends)[:length]))
            if not good:
                raise Finding(f"prnn{name}: sequence {n} has score {score}, {emitted}, {last}: {described(options)}")
        null = self.random.choice([key for key in ("scores", *places) if key == "scores" or most > 0])
        self.call(name, arguments, written, must_fail=True, changes={null: None})


def bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def described(options: ctypes.Structure) -> str:
    values = {name: getattr(options, name) for name, _ in options._fields_}
    return str({name: list(value) if isinstance(value, ctypes.Array) else value for name, value in values.items()})


def run(case: Case) -> None:
    device = "cuda" if torch.cuda.is_available() and case.random.random() < 0.5 else "cpu"
    torch.manual_seed(case.random.getrandbits(32))
    torch.set_num_threads(case.random.choice((1, 1, 2)))
    with Memory(case.random, device) as memory:
        losses = Losses(case, memory)
        for _ in range(ROUNDS):
            losses.run(case.random.choice((losses.ctc, losses.rnnt, losses.duration))())
        losses.destroy_all()
        if not memory.intact():
            raise Finding("memory around a buffer was written")

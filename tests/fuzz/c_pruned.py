"""The C API's recursion of pruned RNN-T, its bounds, and RNN-T with its joiner: random problems and wrong arguments on
memory between inaccessible pages."""

from __future__ import annotations

import ctypes
import itertools
import math
from typing import Any

import capi
import loss_case
import torch
from torch import Tensor

from fuzz.c_losses import REAL, Losses, described
from fuzz.case import Case, Finding
from fuzz.memory import Memory, poison
from prnn.losses._checks import RNNT_TYPES

ROUNDS = 4


class Pruned(Losses):
    def try_wrong(
        self, name: str, arguments: dict[str, Any], outputs: list[Tensor], required: list[str],
        options: ctypes.Structure, wrong: list[tuple[str, Any]],
    ) -> None:  # fmt: skip
        """The call with a NULL, an option, a handle or a space that is wrong."""
        changed = type(options).from_buffer_copy(options)
        setattr(changed, *self.random.choice(wrong))
        changes: list[dict[str, Any]] = [{self.random.choice(required): None}, {"handle": self.wrong("Handle")}]
        changes.append({"options": self.placed(changed)})
        if arguments.get("workspaceSizeInBytes"):
            # With several threads a byte less may be enough for fewer of them.
            less = arguments["workspaceSizeInBytes"] - 1 if torch.get_num_threads() == 1 else 1
            changes.append({"workspaceSizeInBytes": self.random.choice((1, less))})
            changes.append({"workspace": arguments["workspace"] + 4})
        for change in changes:
            for tensor in outputs:
                poison(tensor)
            self.call(name, arguments, outputs, must_fail=True, changes=change)

    def recursion(self) -> None:
        random, kind = self.random, self.random.choice((capi.FLOAT, capi.DOUBLE))
        batch, symbols, frames = random.randint(1, 4), random.randint(0, 5), random.randint(1, 8)
        type_, dtype = random.randrange(3), REAL[kind]
        fields = {"dataType": kind, "type": type_, "batch": batch, "symbols": symbols, "frames": frames}
        options = self.options(loss_case.MutualInformationOptions, None, **fields)
        columns = frames + (type_ == loss_case.REGULAR)
        px, py = self.reals((batch, symbols, columns), dtype), self.reals((batch, symbols + 1, frames), dtype)
        rows = []
        for _ in range(batch):
            ends = random.randint(0, symbols), random.randint(1, frames)
            begins = (random.randint(0, ends[0]), random.randint(0, ends[1])) if random.random() < 0.3 else (0, 0)
            rows.append([*begins, *ends])
        boundary = self.memory.input(torch.tensor(rows, dtype=torch.int32))
        given = {"px": self.memory.input(px), "py": self.memory.input(py)}
        real = torch.float64 if kind == capi.DOUBLE else torch.float32
        scores = self.memory.output((batch,), real)
        gradients = {
            "pxGradients": self.memory.output(px.shape, dtype),
            "pyGradients": self.memory.output(py.shape, dtype),
        }
        placed = self.placed(options)
        space = self.memory.space(self.size("MutualInformationWorkspace", placed))
        arguments: dict[str, Any] = {"handle": self.handle, "options": placed, "boundary": boundary.data_ptr()}
        arguments |= {name: value.data_ptr() for name, value in (given | gradients | {"scores": scores}).items()}
        arguments |= {"workspace": space.data_ptr(), "workspaceSizeInBytes": len(space)}
        outputs = [scores, *gradients.values()]
        self.call("MutualInformation", arguments, outputs, must_fail=False)
        if scores.isnan().any() or not all(value.isfinite().all() for value in gradients.values()):
            raise Finding(f"prnnMutualInformation: scores {scores.tolist()}: {described(options)}, {rows}")
        self.ranges(options, placed, gradients, rows, arguments)
        wrong = [("dataType", 3), ("dataType", capi.HALF), ("type", 99)]
        wrong += [("batch", 0), ("symbols", -1), ("frames", 0), ("batch", 2**62)]
        required = ["py", "scores"] + ["px"] * (symbols > 0)
        self.try_wrong("MutualInformation", arguments, outputs, required, options, wrong)
        if self.memory.device == "cpu":
            bad = boundary.clone()
            bad[random.randrange(batch), random.randrange(4)] = random.choice((-1, 100, 2**31 - 1, -(2**31)))
            change = {"boundary": self.memory.input(bad).data_ptr()}
            self.call("MutualInformation", arguments, outputs, must_fail=True, changes=change)

    def ranges(
        self, options: ctypes.Structure, placed: int, gradients: dict[str, Tensor], rows: list[list[int]],
        common: dict[str, Any],
    ) -> None:  # fmt: skip
        least = 2 if options.type == loss_case.REGULAR and options.symbols else 1
        width = self.random.randint(least, options.symbols + 1)
        begins = self.memory.output((options.batch, options.frames), torch.int32)
        arguments = {key: common[key] for key in ("handle", "options", "boundary", "pxGradients", "pyGradients")}
        arguments |= {"pruneRange": width, "rangeBegins": begins.data_ptr()}
        self.call("RNNTPruneRanges", arguments, [begins], must_fail=False)
        found = begins.tolist()
        for row, (_, _, symbols, frames) in zip(found, rows, strict=True):
            steps = [after - before for before, after in itertools.pairwise(row)]
            if row[0] != 0 or min(steps, default=0) < 0 or max(row) > options.symbols:
                raise Finding(
                    f"prnnRNNTPruneRanges: {row} for {symbols} symbols, {frames} frames: {described(options)}"
                )
        poison(begins)
        for change in ({"pruneRange": self.random.choice((0, -1, options.symbols + 2))}, {"rangeBegins": None}):
            self.call("RNNTPruneRanges", arguments, [begins], must_fail=True, changes=change)

    def joint(self) -> None:
        """On a CPU, where there is none, it is refused."""
        random, kind = self.random, self.data_type()
        batch, frames, most, size = (
            random.randint(1, 3),
            random.randint(1, 9),
            random.randint(0, 4),
            random.randint(1, 20),
        )
        classes, dtype = random.randint(2, 9), REAL[kind]
        lengths = {"frameLengths": self.lengths(batch, 1, frames), "targetLengths": self.lengths(batch, 0, most)}
        width = random.choice((0, 0, random.randint(1, most + 1)))
        begins = torch.randint(0, 2, (batch, frames)).cumsum(1).clamp(max=most).int()
        begins[:, 0] = 0
        targets, _ = self.targets(lengths["targetLengths"], most, list(range(1, classes)), False)
        real = torch.float64 if kind == capi.DOUBLE else torch.float32
        options = self.options(
            loss_case.JointOptions, "InitJointRNNTLossOptions", dataType=kind, activation=random.randrange(2),
            type=random.randrange(len(RNNT_TYPES)), batch=batch, maxFrames=frames, maxTargets=most, pruneRange=width,
            joinerSize=size, classes=classes, blank=0, chunkCells=random.choice((0, 1, 7, 64)), zeroInfinity=1,
            fastEmitLambda=random.choice((0.0, 0.1)), clamp=random.choice((0.0, 0.1)),
            dropout=random.choice((0.0, 0.5)), allowTf32=random.randrange(2),
        )  # fmt: skip
        shapes = {"encoder": (batch, frames, size), "predictor": (batch, most + 1, size), "weight": (classes, size)}
        inputs = {name: self.memory.input(torch.randn(shape).to(dtype)) for name, shape in shapes.items()}
        bias = self.memory.input(torch.randn(classes).to(real)) if random.random() < 0.7 else None
        outputs = {f"{name}Gradients": self.memory.output(shape, dtype) for name, shape in shapes.items()}
        outputs |= {"biasGradients": self.memory.output((classes,), real), "costs": self.memory.output((batch,), real)}
        given = {**inputs, "targets": self.memory.input(targets)}
        given |= {name: self.memory.input(value) for name, value in lengths.items()}
        arguments = {name: value.data_ptr() for name, value in (given | outputs).items()}
        arguments |= {"bias": None if bias is None else bias.data_ptr()}
        arguments["rangeBegins"] = self.memory.input(begins).data_ptr() if width else None
        seed = self.memory.input(torch.tensor([random.getrandbits(62)]))
        arguments["dropoutSeed"] = seed.data_ptr() if options.dropout else None
        arguments |= {"handle": self.handle, "options": self.placed(options)}
        written = list(outputs.values())
        if self.memory.device == "cpu":
            space = self.memory.space(1 << 16)
            arguments |= {"workspace": space.data_ptr(), "workspaceSizeInBytes": len(space)}
            self.call("JointRNNTLoss", arguments, written, must_fail=True)
            return
        size = sum(self.size(f"JointRNNTLoss{kind}", arguments["options"]) for kind in ("Workspace", "Reserve"))
        space = self.memory.space(size)
        arguments |= {"workspace": space.data_ptr(), "workspaceSizeInBytes": size}
        self.call("JointRNNTLoss", arguments, written, must_fail=False)
        bad = [name for name, value in outputs.items() if not value.isfinite().all()]
        if bad:
            costs = outputs["costs"].tolist()
            raise Finding(f"prnnJointRNNTLoss: {', '.join(bad)} not finite, costs {costs}: {described(options)}")
        wrong = [("dataType", 3), ("activation", 2), ("type", 99), ("batch", 0), ("maxFrames", 0), ("joinerSize", 0)]
        wrong += [("classes", 0), ("blank", classes), ("pruneRange", most + 2), ("dropout", 1.0), ("clamp", math.nan)]
        required = [*inputs, "frameLengths", "targetLengths", "costs", "encoderGradients", "weightGradients"]
        self.try_wrong("JointRNNTLoss", arguments, written, required, options, wrong)


def run(case: Case) -> None:
    device = "cuda" if torch.cuda.is_available() and case.random.random() < 0.5 else "cpu"
    torch.manual_seed(case.random.getrandbits(32))
    torch.set_num_threads(case.random.choice((1, 1, 2)))
    with Memory(case.random, device) as memory:
        client = Pruned(case, memory)
        for _ in range(ROUNDS):
            case.random.choice((client.recursion, client.recursion, client.joint))()
        client.destroy_all()
        if not memory.intact():
            raise Finding("memory around a buffer was written")

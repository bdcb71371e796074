"""Handles, descriptors and queries of the C API in random order, with dead, foreign and unset objects and any
values."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import capi
import loss_case
import torch
from torch import Tensor

from fuzz.c_calls import DESCRIPTORS, INTS, Client
from fuzz.case import Case, Finding
from fuzz.memory import Memory

CALLS = 60
TYPES = (capi.FLOAT, capi.DOUBLE, capi.HALF, capi.BFLOAT16)
INT64S = (*INTS, -(2**63), 2**32, 2**40, 2**62, 2**63 - 1)
REALS = (0.0, 0.5, 1.0, -1.0, 1e-310, 1e308, float("inf"), float("nan"))
GPUS = (b"H200", b"A100", b"L4", b"GTX 1080", b"", b"h200", b"No such GPU", b"\xff\xfe", b"H" * 3000)
LOSSES = {
    "CTCLoss": (loss_case.CtcOptions, ("GetCTCLossWorkspaceSize", "GetCTCLossReserveSize", "GetCTCAlignWorkspaceSize")),
    "RNNTLoss": (
        loss_case.RnntOptions,
        ("GetRNNTLossWorkspaceSize", "GetRNNTLossReserveSize", "GetRNNTAlignWorkspaceSize"),
    ),
    "DurationRNNTLoss": (
        loss_case.DurationOptions,
        ("GetDurationRNNTLossWorkspaceSize", "GetDurationRNNTLossReserveSize"),
    ),
    "JointRNNTLoss": (
        loss_case.JointOptions,
        ("GetJointRNNTLossWorkspaceSize", "GetJointRNNTLossReserveSize"),
    ),
    "JointTDTLoss": (
        loss_case.JointTdtOptions,
        ("GetJointTDTLossWorkspaceSize", "GetJointTDTLossReserveSize"),
    ),
    "MutualInformation": (loss_case.MutualInformationOptions, ("GetMutualInformationWorkspaceSize",)),
}


def struct_size(name: str) -> int:
    """sizeof a struct of the headers, of numbers, enumerations and characters."""
    text = re.sub(r"/\*.*?\*/", "", "".join(path.read_text() for path in capi.HEADERS), flags=re.DOTALL)
    body = re.search(rf"typedef struct \{{([^}}]*)\}} {name};", text)
    assert body, name
    fields: list[tuple[str, Any]] = []
    for declaration in body[1].split(";")[:-1]:
        kind, names = declaration.split(maxsplit=1)
        type_ = ctypes.c_char if kind == "char" else capi.VALUE_TYPES.get(kind, ctypes.c_int)
        for field, count in re.findall(r"(\w+)(?:\[(\d+)\])?", names):
            fields.append((field, type_ * int(count) if count else type_))
    return ctypes.sizeof(type(name, (ctypes.Structure,), {"_fields_": fields}))


INFO_BYTES, PLAN_BYTES = struct_size("prnnRNNInfo_t"), struct_size("prnnRNNPlan_t")


class Objects(Client):
    """The settings of the descriptors as far as the client knows: `None` for nothing yet."""

    def __init__(self, case: Case, memory: Memory) -> None:
        super().__init__(case, memory)
        self.set: dict[int, Any] = {}

    def number(self) -> int:
        return self.random.choice(INTS) if self.random.random() < 0.3 else self.random.randint(1, 6)

    def type(self) -> int:
        return self.random.choice(TYPES) if self.random.random() < 0.9 else self.number()

    def integers(self, count: int) -> Tensor:
        values = [self.number() if self.random.random() < 0.2 else self.random.randint(1, 9) for _ in range(count)]
        return self.memory.input(torch.tensor(values, dtype=torch.int32), host=True)

    def out(self, count: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return self.memory.output((count,), dtype, host=True)

    # Life and death

    def make(self) -> None:
        kind = self.random.choice(("Handle", *DESCRIPTORS, *DESCRIPTORS))
        if len(self.alive[kind]) < 4:
            self.set.pop(self.create(kind), None)

    def end(self) -> None:
        kind = self.random.choice(("Handle", *DESCRIPTORS))
        if len(self.alive[kind]) > 1:
            self.destroy(kind, self.random.choice(self.alive[kind]))

    def end_wrong(self) -> None:
        kind = self.random.choice(("Handle", *DESCRIPTORS))
        pointer = self.wrong(kind)
        name = "Destroy" if kind == "Handle" else f"Destroy{kind}Descriptor"
        self.call(name, {capi.FUNCTIONS[f"prnn{name}"].parameters[0]: pointer}, must_fail=pointer is not None)

    def stream(self) -> None:
        handle, right = self.pick("Handle")
        out = self.out(1, torch.int64)
        if self.memory.device == "cpu":
            self.call("SetStream", {"handle": handle, "stream": self.number()}, must_fail=not right)
        self.call("GetStream", {"handle": handle, "stream": out.data_ptr()}, [out], must_fail=not right)
        self.call("GetStream", {"handle": handle, "stream": None}, must_fail=True)

    def copy(self) -> None:
        handle, right = self.pick("Handle")
        size = self.random.choice((0, 1, 7, 4096, 5000))
        given = self.memory.input(torch.randint(0, 256, (size,), dtype=torch.uint8))
        taken = self.memory.space(size)
        arguments = {"handle": handle, "to": taken.data_ptr(), "from": given.data_ptr(), "sizeInBytes": size}
        self.call("Copy", arguments, [taken], must_fail=not right)
        if right and not torch.equal(taken, given):
            raise Finding(f"prnnCopy of {size} bytes: they differ")
        null = {self.random.choice(("to", "from")): None}
        self.call("Copy", arguments, [taken], must_fail=True if size > 0 else None, changes=null)

    def sequences(self) -> None:
        """There and back, and with one wrong argument."""
        handle, right = self.pick("Handle")
        steps, batch, row = (self.random.randint(1, 9) for _ in range(3))
        sizes = sorted((self.random.randint(1, batch) for _ in range(steps - 1)), reverse=True)
        sizes = [batch, *sizes]
        order = self.random.sample(range(batch), batch)
        padded = self.memory.input(torch.randint(1, 256, (steps, batch, row), dtype=torch.uint8))
        packed, back = self.memory.space(sum(sizes) * row), self.memory.space(padded.numel())
        numbers = [self.memory.input(torch.tensor(v, dtype=torch.int32), host=True) for v in (sizes, order)]
        arguments = {"handle": handle, "seqLength": steps, "rowBytes": row, "packed": packed.data_ptr()}
        arguments |= {"batchSizes": numbers[0].data_ptr(), "order": numbers[1].data_ptr()}
        arguments |= {"stepStride": batch * row, "sequenceStride": row}
        unpack = {**arguments, "padded": back.data_ptr(), "paddedLength": steps}
        self.call("PackSequences", {**arguments, "padded": padded.data_ptr()}, [packed], must_fail=not right)
        self.call("UnpackSequences", unpack, [back], must_fail=not right)
        if right:
            active = torch.zeros(steps, batch, 1, dtype=torch.bool)
            for step, size in enumerate(sizes):
                active[step, order[:size]] = True
            if not torch.equal(back.view(padded.shape), padded.masked_fill(~active.to(padded.device), 0)):
                raise Finding("prnnUnpackSequences does not give back what prnnPackSequences took")
        wrong: dict[str, Any] = self.random.choice(
            (
                *({name: None} for name in ("handle", "batchSizes", "padded", "packed")),
                *({name: self.random.choice((0, -1, -(2**31)))} for name in ("seqLength", "paddedLength")),
                *({name: 0} for name in ("rowBytes", "stepStride", "sequenceStride")),
                {"stepStride": 2**63, "sequenceStride": 2**63},
                {"batchSizes": self.memory.input(torch.zeros(steps, dtype=torch.int32), host=True).data_ptr()},
                {"order": self.memory.input(torch.full((batch,), -1, dtype=torch.int32), host=True).data_ptr()},
            )
        )
        self.call("UnpackSequences", unpack, [back], must_fail=True, changes=wrong)

    def text(self) -> None:
        assert capi.call("GetVersion") > 0
        if not capi.call("GetErrorString", **{capi.FUNCTIONS["prnnGetErrorString"].parameters[0]: self.number()}):
            raise Finding("prnnGetErrorString returned NULL")
        capi.call("GetGPUName", index=self.number())
        if self.message(self.pick("Handle", 0.5)[0]) is None:
            raise Finding("prnnGetLastErrorMessage returned NULL")

    # Descriptors

    def set_tensor(self) -> None:
        pointer, right = self.pick("Tensor")
        count = self.number() if self.random.random() < 0.2 else self.random.randint(1, 8)
        dims, strides = (self.integers(max(0, min(count, 64))) for _ in range(2))
        values = {"tensorDesc": pointer, "dataType": self.type(), "nbDims": count}
        arrays = {"dimA": dims.data_ptr(), "strideA": strides.data_ptr()}
        if self.random.random() < 0.1:
            arrays[self.random.choice(list(arrays))] = 0
        wrong = not right or 0 in arrays.values() or not 1 <= count <= 8 or values["dataType"] not in TYPES
        wrong = wrong or bool((dims < 1).any()) or bool((strides < 1).any())
        status = self.call("SetTensorNdDescriptor", {**values, **arrays}, must_fail=True if wrong else None)
        if status == capi.SUCCESS:
            assert pointer is not None
            self.set[pointer] = (values["dataType"], dims.tolist(), strides.tolist())

    def set_filter(self) -> None:
        pointer, right = self.pick("Filter")
        count = self.number() if self.random.random() < 0.2 else self.random.randint(1, 8)
        dims = self.integers(max(0, min(count, 64)))
        format = self.random.choice((0, 0, 1, 2, -1))
        values = {"filterDesc": pointer, "dataType": self.type(), "format": format, "nbDims": count}
        wrong = not right or not 1 <= count <= 8 or values["dataType"] not in TYPES or format not in (0, 1)
        wrong = wrong or bool((dims < 1).any())
        arguments = {**values, "filterDimA": dims.data_ptr()}
        if self.call("SetFilterNdDescriptor", arguments, must_fail=True if wrong else None) == capi.SUCCESS:
            assert pointer is not None
            self.set[pointer] = (values["dataType"], dims.tolist(), format)

    def get(self) -> None:
        kind = self.random.choice(("Tensor", "Filter"))
        pointer, right = self.pick(kind)
        requested = self.number()
        room = min(8, max(0, requested))
        type_, rank, dims, last = self.out(1), self.out(1), self.out(room), self.out(room if kind == "Tensor" else 1)
        outputs = [type_, rank, dims, last]
        arguments = {
            "tensorDesc" if kind == "Tensor" else "filterDesc": pointer,
            "nbDimsRequested": requested,
            "dataType": type_.data_ptr(),
            "nbDims": rank.data_ptr(),
            "dimA" if kind == "Tensor" else "filterDimA": dims.data_ptr(),
            "strideA" if kind == "Tensor" else "format": last.data_ptr(),
        }
        status = self.call(f"Get{kind}NdDescriptor", arguments, outputs, must_fail=None if right else True)
        if status == capi.SUCCESS and pointer in self.set:
            data_type, sizes, other = self.set[pointer]
            shown = min(room, len(sizes))
            expected = (data_type, len(sizes), sizes[:shown], other[:shown] if kind == "Tensor" else [other])
            count = shown if kind == "Tensor" else 1
            found = (int(type_), int(rank), dims.tolist()[:shown], last.tolist()[:count])
            if found != expected:
                raise Finding(f"prnnGet{kind}NdDescriptor read {found}; it was set to {expected}")

    def set_dropout(self) -> None:
        handle, right = self.pick("Handle")
        size = self.out(1, torch.int64)
        self.call("DropoutGetStatesSize", {"handle": handle, "sizeInBytes": size.data_ptr()}, [size], not right)
        if not right:
            return
        states = self.memory.space(int(size))
        pointer, alive = self.pick("Dropout")
        share = self.random.choice((0.0, 0.3, 0.999, *REALS))
        given = self.random.choice((int(size), int(size), 0, int(size) - 1, int(size) // 2))
        null = self.random.random() < 0.2
        arguments = {"dropoutDesc": pointer, "handle": handle, "dropout": share, "stateSizeInBytes": given}
        arguments |= {"states": None if null else states.data_ptr(), "seed": self.random.getrandbits(64)}
        as_float = float(torch.tensor(share, dtype=torch.float32))
        wrong = not alive or not 0 <= as_float < 1 or (given < int(size) and not null) or (null and given > 0)
        name = self.random.choice(("SetDropoutDescriptor", "RestoreDropoutDescriptor"))
        self.call(name, arguments, [states], must_fail=True if wrong else None)

    def set_rnn(self) -> None:
        pointer, right = self.pick("RNN")
        dropout, dropout_right = self.pick("Dropout", 0.3)
        fields = {
            "hiddenSize": self.number(),
            "numLayers": self.number(),
            "inputMode": self.random.choice((0, 0, 1, 2)),
        }
        fields |= {"direction": self.random.choice((0, 1, 1, 3)), "mode": self.random.choice((0, 1, 2, 3, 3, 2, 4, -1))}
        fields["dataType"] = self.type()
        wrong = not right or (dropout is not None and not dropout_right)
        wrong = wrong or fields["hiddenSize"] < 1 or fields["numLayers"] < 1 or fields["dataType"] not in TYPES
        wrong = wrong or fields["inputMode"] > 1 or fields["direction"] > 1 or not 0 <= fields["mode"] <= 3
        arguments = {"rnnDesc": pointer, "dropoutDesc": dropout, **fields}
        self.call("SetRNNDescriptor", arguments, must_fail=True if wrong else None)

    def tune_rnn(self) -> None:
        pointer, right = self.pick("RNN")
        must = None if right else True
        self.call("SetRNNBackend", {"rnnDesc": pointer, "backend": self.number()}, must_fail=must)
        self.call("SetRNNMatrixMathType", {"rnnDesc": pointer, "mType": self.number()}, must_fail=must)
        self.call("SetRNNProjectionSize", {"rnnDesc": pointer, "projSize": self.number()}, must_fail=must)
        self.call("SetRNNWgradMode", {"rnnDesc": pointer, "wgradMode": self.number()}, must_fail=must)
        self.call("SetRNNFrozenLayers", {"rnnDesc": pointer, "frozenLayers": self.number()}, must_fail=must)
        self.call("SetRNNHeads", {"rnnDesc": pointer, "heads": self.number()}, must_fail=must)
        plans = [self.integers(PLAN_BYTES // 4).data_ptr() if self.random.random() < 0.7 else None for _ in range(2)]
        self.call("SetRNNExtras", {"rnnDesc": pointer, "extras": None}, must_fail=must)
        self.call("SetRNNMasks", {"rnnDesc": pointer, "masks": None}, must_fail=must)
        self.call("SetRNNPlan", {"rnnDesc": pointer, "forward": plans[0], "backward": plans[1]}, must_fail=must)

    # Queries

    def ask_sizes(self) -> None:
        (handle, right), (rnn, alive) = self.pick("Handle"), self.pick("RNN")
        out = self.out(1, torch.int64)
        x, x_alive = self.pick("Tensor")
        must = None if right and alive and x_alive else True
        common = {"handle": handle, "rnnDesc": rnn, "sizeInBytes": out.data_ptr()}
        self.call("GetRNNParamsSize", {**common, "xDesc": x, "dataType": self.type()}, [out], must)
        steps = self.random.randint(1, 5)
        given = steps if self.random.random() < 0.9 else self.random.choice((0, -1, -(2**31)))
        picked = [self.pick("Tensor", 0.97) for _ in range(steps)]
        if self.random.random() < 0.7:
            picked = picked[:1] * steps
        descriptors = self.memory.input(torch.tensor([signed(p or 0) for p, _ in picked], dtype=torch.int64), host=True)
        must = None if right and alive and given > 0 and all(alive for _, alive in picked) else True
        for name in ("GetRNNWorkspaceSize", "GetRNNTrainingReserveSize"):
            self.call(name, {**common, "seqLength": given, "xDesc": descriptors.data_ptr()}, [out], must)
        sizes, mode = self.out(2, torch.int64), self.random.choice((0, 1, 1, 2, -1))
        arguments = {"handle": handle, "rnnDesc": rnn, "fwdMode": mode, "seqLength": given}
        arguments |= {"xDesc": descriptors.data_ptr(), "workSpaceSize": sizes.data_ptr()}
        arguments |= {"reserveSpaceSize": sizes.data_ptr() + 8}
        self.call("GetRNNTempSpaceSizes", arguments, [sizes], True if mode not in (0, 1) else must)
        null = self.random.choice(("workSpaceSize", "reserveSpaceSize", "xDesc", "rnnDesc", "handle"))
        self.call("GetRNNTempSpaceSizes", arguments, [sizes], must_fail=True, changes={null: None})
        info = self.memory.space(INFO_BYTES, host=True)
        name = self.random.choice(GPUS)
        gpu = self.memory.input(torch.tensor([*name, 0], dtype=torch.uint8), host=True)
        arguments = {"rnnDesc": rnn, "seqLength": given, "xDesc": descriptors.data_ptr(), "info": info.data_ptr()}
        self.call("QueryRNNSequence", {"handle": handle, "gpu": None, **arguments}, [info], must)
        must = None if alive and given > 0 and all(alive for _, alive in picked) else True
        self.call("QueryRNNSequence", {"handle": handle, "gpu": gpu.data_ptr(), **arguments}, [info], must)

    def ask_plan(self) -> None:
        (handle, right), (rnn, alive), (x, x_alive) = self.pick("Handle"), self.pick("RNN"), self.pick("Tensor")
        info = self.memory.space(INFO_BYTES, host=True)
        arguments = {"rnnDesc": rnn, "xDesc": x, "info": info.data_ptr()}
        must = None if alive and x_alive else True
        self.call("QueryRNN", {"handle": handle, **arguments}, [info], must_fail=must if right else True)
        name = self.random.choice(GPUS)
        gpu = self.memory.input(torch.tensor(list(name) + [0], dtype=torch.uint8), host=True)
        self.call("QueryRNNForGPU", {"gpu": gpu.data_ptr(), **arguments}, [info], must_fail=must)
        self.call("QueryRNNForGPU", {"gpu": None, **arguments}, [info], must_fail=True)
        text = self.memory.space(256, host=True)
        size = self.random.choice((0, 1, 10, 255, 256))
        arguments = {"handle": handle, "text": text.data_ptr(), "size": size}
        self.call("DescribeGPU", arguments, [text], must_fail=None if right else True)

    def ask_part(self) -> None:
        """Where a gate's matrix or bias lies in the packed weights."""
        (handle, right), (rnn, alive), (x, x_alive) = self.pick("Handle"), self.pick("RNN"), self.pick("Tensor")
        (w, w_alive), (part, part_alive) = self.pick("Filter"), self.pick("Filter")
        out = self.out(1, torch.int64)
        kind = self.random.choice(("Mat", "Bias"))
        arguments = {"handle": handle, "rnnDesc": rnn, "layer": self.number() - 1, "xDesc": x, "wDesc": w}
        arguments |= {"w": self.random.choice((None, 4096)), "linLayerID": self.number() - 1}
        arguments |= {f"linLayer{kind}Desc": part, f"linLayer{kind}": out.data_ptr()}
        must = None if right and alive and x_alive and w_alive and part_alive else True
        name = f"GetRNNLinLayer{'Matrix' if kind == 'Mat' else 'Bias'}Params"
        if self.call(name, arguments, [out], must_fail=must) == capi.SUCCESS:
            self.set.pop(part, None)  # type: ignore[arg-type]

    def ask_loss_sizes(self) -> None:
        loss = self.random.choice(list(LOSSES))
        struct, names = LOSSES[loss]
        options = self.memory.space(ctypes.sizeof(struct), host=True)
        view = struct.from_address(options.data_ptr())
        if loss != "MutualInformation":
            self.call(f"Init{loss}Options", {"options": options.data_ptr()}, must_fail=False)
            self.call(f"Init{loss}Options", {"options": None}, must_fail=True)
        else:
            options.zero_()
        wild = self.random.random() < 0.5
        for name, kind in struct._fields_:
            if issubclass(kind, ctypes.Array):
                setattr(view, name, kind(*(self.number() for _ in range(kind._length_))))
            elif kind is ctypes.c_double:
                setattr(view, name, self.random.choice(REALS) if wild and self.random.random() < 0.2 else 0.0)
            elif kind is ctypes.c_int64:
                setattr(view, name, self.random.choice(INT64S) if wild else self.random.randint(1, 50))
            elif kind is ctypes.c_int and wild and self.random.random() < 0.2:  # no address: the library reads there
                setattr(view, name, self.number())
        handle, right = self.pick("Handle")
        out = self.out(1, torch.int64)
        for name in names:
            arguments = {"handle": handle, "options": options.data_ptr(), "sizeInBytes": out.data_ptr()}
            self.call(name, arguments, [out], must_fail=None if right else True)
            null = self.random.choice(("handle", "options", "sizeInBytes"))
            self.call(name, {**arguments, null: None}, [out], must_fail=True)


def signed(pointer: int) -> int:
    return pointer - 2**64 if pointer >= 2**63 else pointer


ACTIONS: tuple[Callable[[Objects], None], ...] = (
    Objects.make,
    Objects.make,
    Objects.end,
    Objects.end_wrong,
    Objects.stream,
    Objects.copy,
    Objects.sequences,
    Objects.text,
    Objects.set_tensor,
    Objects.set_tensor,
    Objects.set_filter,
    Objects.get,
    Objects.get,
    Objects.set_dropout,
    Objects.set_rnn,
    Objects.set_rnn,
    Objects.tune_rnn,
    Objects.ask_sizes,
    Objects.ask_plan,
    Objects.ask_part,
    Objects.ask_loss_sizes,
)


def run(case: Case) -> None:
    device = "cuda" if torch.cuda.is_available() and case.random.random() < 0.5 else "cpu"
    with Memory(case.random, device) as memory:
        client = Objects(case, memory)
        for kind in ("Handle", *DESCRIPTORS):
            client.create(kind)
        for _ in range(CALLS):
            case.random.choice(ACTIONS)(client)
        client.destroy_all()
        if not memory.intact():
            raise Finding("memory around a buffer was written")

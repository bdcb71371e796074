"""The losses through the C API: the options structs of prnn_losses.h, and a call with every argument by name."""

import contextlib
import ctypes
import re
from collections.abc import Iterator
from typing import Any

import capi
import torch

LOGITS, LOG_PROBS, GATHERED = range(3)
PADDED, CONCATENATED = range(2)
RNNT_PADDED, RNNT_PACKED, RNNT_PRUNED = range(3)
REGULAR, MODIFIED, CONSTRAINED = range(3)
TDT, MULTI_BLANK = range(2)
DTYPES = {capi.FLOAT: torch.float32, capi.DOUBLE: torch.float64}


def options_struct(name: str) -> type[ctypes.Structure]:
    """The ctypes twin of a struct in prnn_losses.h, read from there; enumerations are int."""
    header = next(path for path in capi.HEADERS if path.name == "prnn_losses.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    body = re.search(rf"typedef struct \{{([^}}]*)\}} {name};", text)[1]
    fields = []
    for declaration in body.split(";")[:-1]:
        kind, names = declaration.split(maxsplit=1)
        if "*" in declaration:
            fields.append((names.rpartition("*")[2].strip(), ctypes.c_void_p))
            continue
        for name, size in re.findall(r"(\w+)(?:\[(\w+)\])?", names):
            field = capi.VALUE_TYPES.get(kind, ctypes.c_int)
            length = re.search(rf"#define {size} (\d+)", header) if size else None
            fields.append((name, field * int(length[1]) if length else field))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Reduction = options_struct("prnnLossReduction_t")
CtcOptions = options_struct("prnnCTCLossOptions_t")
RnntOptions = options_struct("prnnRNNTLossOptions_t")
MutualInformationOptions = options_struct("prnnMutualInformationOptions_t")
DurationOptions = options_struct("prnnDurationRNNTLossOptions_t")
JointOptions = options_struct("prnnJointRNNTLossOptions_t")
JointTdtOptions = options_struct("prnnJointTDTLossOptions_t")


def address(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    return ctypes.byref(value) if isinstance(value, ctypes.Structure) else value


class LossCase:
    """A family of calls on one problem. `data` has every array by its parameter name; `UNTOUCHED` fills the outputs."""

    UNTOUCHED = 7

    def __init__(self, options: ctypes.Structure, data: dict[str, torch.Tensor], outputs: list[str]) -> None:
        self.handle = capi.cpu_handle()
        self.options, self.data, self.outputs = options, data, outputs

    def call(self, name: str, **changes: Any) -> int:
        """Calls prnn<name> with the case's arguments but for `changes`."""
        arguments: dict[str, Any] = {"handle": self.handle.pointer, "options": self.options, **self.data}
        for space in ("workspace", "reserve"):
            if space in self.data:
                key = "workspaceSizeInBytes" if space == "workspace" else "reserveSizeInBytes"
                arguments[key] = self.data[space].numel()
        if "reserve" in self.data:
            arguments["reserveSpace"] = arguments.pop("reserve")
        arguments.update(changes)
        wanted = capi.FUNCTIONS[f"prnn{name}"].parameters
        return capi.call(name, **{key: address(arguments[key]) for key in wanted})

    def run(self, name: str, **changes: Any) -> None:
        status = self.call(name, **changes)
        assert status == capi.SUCCESS, capi.message(self.handle.pointer)

    def size(self, name: str, **changes: Any) -> int:
        size = ctypes.c_size_t()
        self.run(name, sizeInBytes=ctypes.byref(size), **changes)
        return size.value

    def reset(self) -> None:
        for name in self.outputs:
            self.data[name].fill_(self.UNTOUCHED)

    def untouched(self) -> bool:
        return all(bool((self.data[name] == self.UNTOUCHED).all()) for name in self.outputs)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """So many OpenMP threads, on which the size of a workspace depends."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def space(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def ctc_case(**fields: Any) -> LossCase:
    """Three sequences; `fields` go into the options before spaces are measured."""
    options = CtcOptions()
    capi.check("InitCTCLossOptions", options=ctypes.byref(options))
    values = {"dataType": capi.DOUBLE, "batch": 3, "maxFrames": 10, "maxTargets": 4, "classes": 6, **fields}
    for name, value in values.items():
        setattr(options, name, value)
    dtype = DTYPES[options.dataType]
    data = {
        "activations": torch.randn(10, 3, 6, dtype=dtype),
        "targets": torch.randint(1, 6, (3, 4), dtype=torch.int32),
        "frameLengths": torch.tensor([10, 7, 9], dtype=torch.int32),
        "targetLengths": torch.tensor([4, 2, 0], dtype=torch.int32),
        "costGradients": torch.tensor([1.0, 0.5, 2.0], dtype=dtype),
        "costs": torch.empty(3, dtype=dtype),
        "gradients": torch.empty(10, 3, 6, dtype=dtype),
        "scores": torch.empty(3, dtype=dtype),
        "begins": torch.empty(3, 4, dtype=torch.int32),
        "ends": torch.empty(3, 4, dtype=torch.int32),
    }
    if options.targetLayout == CONCATENATED:
        data["targets"] = torch.cat((data["targets"][0], data["targets"][1, :2]))
        options.targetElements = 6
    case = LossCase(options, data, ["costs", "gradients", "scores", "begins", "ends"])
    reserve = case.size("GetCTCLossReserveSize")
    sizes = [case.size("GetCTCLossWorkspaceSize") + reserve, case.size("GetCTCAlignWorkspaceSize")]
    data["workspace"], data["reserve"] = space(max(sizes)), space(reserve)
    case.reset()
    return case


def rnnt_case(**fields: Any) -> LossCase:
    """Three sequences; as ctc_case."""
    options = RnntOptions()
    capi.check("InitRNNTLossOptions", options=ctypes.byref(options))
    values = {"dataType": capi.DOUBLE, "batch": 3, "maxFrames": 8, "maxTargets": 4, "classes": 6, **fields}
    for name, value in values.items():
        setattr(options, name, value)
    dtype = DTYPES[options.dataType]
    lengths, symbols = [8, 6, 7], [4, 2, 0]
    shape: tuple[int, ...] = (3, 8, 5, options.classes)
    if options.layout == RNNT_PACKED:
        options.rows = sum(t * (u + 1) for t, u in zip(lengths, symbols, strict=True))
        shape = (options.rows, options.classes)
    if options.layout == RNNT_PRUNED:
        options.pruneRange = 3
        shape = (3, 8, 3, options.classes)
    data = {
        "activations": torch.randn(shape, dtype=dtype),
        "targets": torch.randint(1, 6, (3, 4), dtype=torch.int32),
        "frameLengths": torch.tensor(lengths, dtype=torch.int32),
        "targetLengths": torch.tensor(symbols, dtype=torch.int32),
        "rangeBegins": torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0] * 8, [0] * 8], dtype=torch.int32),
        "costGradients": torch.tensor([1.0, 0.5, 2.0], dtype=dtype),
        "costs": torch.empty(3, dtype=dtype),
        "gradients": torch.empty(shape, dtype=dtype),
        "scores": torch.empty(3, dtype=dtype),
        "frames": torch.empty(3, 4, dtype=torch.int32),
    }
    if options.targetLayout == CONCATENATED:
        data["targets"] = torch.cat((data["targets"][0], data["targets"][1, :2]))
        options.targetElements = 6
    case = LossCase(options, data, ["costs", "gradients", "scores", "frames"])
    reserve = case.size("GetRNNTLossReserveSize")
    sizes = [case.size("GetRNNTLossWorkspaceSize") + reserve, case.size("GetRNNTAlignWorkspaceSize")]
    data["workspace"], data["reserve"] = space(max(sizes)), space(reserve)
    case.reset()
    return case


def mutual_information_case(**fields: Any) -> LossCase:
    """Two sequences of 4 symbols and 6 frames."""
    options = MutualInformationOptions(dataType=capi.DOUBLE, type=REGULAR, batch=2, symbols=4, frames=6)
    for name, value in fields.items():
        setattr(options, name, value)
    dtype = DTYPES[options.dataType]
    columns = 7 if options.type == REGULAR else 6
    data = {
        "px": torch.randn(2, 4, columns, dtype=dtype),
        "py": torch.randn(2, 5, 6, dtype=dtype),
        "boundary": torch.tensor([[0, 0, 4, 6], [1, 1, 3, 5]], dtype=torch.int32),
        "scores": torch.empty(2, dtype=dtype),
        "pxGradients": torch.empty(2, 4, columns, dtype=dtype),
        "pyGradients": torch.empty(2, 5, 6, dtype=dtype),
        "rangeBegins": torch.empty(2, 6, dtype=torch.int32),
    }
    case = LossCase(options, data, ["scores", "pxGradients", "pyGradients", "rangeBegins"])
    data["workspace"] = space(case.size("GetMutualInformationWorkspaceSize"))
    case.reset()
    return case


def duration_case(durations: list[int] | None = None, **fields: Any) -> LossCase:
    """Three sequences; as ctc_case. TDT with the blank 0, multi-blank with the blank 3 and big blanks 1 and 2."""
    options = DurationOptions()
    capi.check("InitDurationRNNTLossOptions", options=ctypes.byref(options))
    tdt = fields.get("type", TDT) == TDT
    durations = durations or ([0, 1, 2, 4] if tdt else [3, 2])
    values = {"dataType": capi.DOUBLE, "batch": 3, "maxFrames": 8, "maxTargets": 4, "classes": 6, **fields}
    values = {"blank": 0 if tdt else 3, "durationCount": len(durations), "sigma": 0.05, **values}
    for name, value in values.items():
        setattr(options, name, value)
    options.durations[: len(durations)] = durations
    dtype = DTYPES[options.dataType]
    tokens = torch.randn(3, 8, 5, options.tokenStride or 6, dtype=dtype)
    own = torch.randn(3, 8, 5, options.durationStride or len(durations), dtype=dtype) if tdt else None
    data = {
        "tokenLogits": tokens,
        "durationLogits": own,
        "targets": torch.randint(*((1, 6) if tdt else (4, 6)), (3, 4), dtype=torch.int32),
        "frameLengths": torch.tensor([8, 6, 7], dtype=torch.int32),
        "targetLengths": torch.tensor([4, 2, 0], dtype=torch.int32),
        "costGradients": torch.tensor([1.0, 0.5, 2.0], dtype=dtype),
        "costs": torch.empty(3, dtype=dtype),
        "tokenGradients": torch.empty_like(tokens),
        "durationGradients": torch.empty_like(own) if tdt else None,
    }
    outputs = ["costs", "tokenGradients", *(["durationGradients"] if tdt else [])]
    case = LossCase(options, data, outputs)
    reserve = case.size("GetDurationRNNTLossReserveSize")
    data["workspace"] = space(case.size("GetDurationRNNTLossWorkspaceSize") + reserve)
    data["reserve"] = space(reserve)
    case.reset()
    return case

"""Every bad argument of every loss function, in C and in Python: a message with name and value, outputs untouched."""

import ctypes
from collections.abc import Iterator
from typing import Any

import capi
import loss_case
import pytest
import torch

import prnn
from prnn import _C
from prnn.losses import pruned

HUGE = 2**62
CTC_CALLS = ("CTCLoss", "CTCLossForward", "CTCLossBackward", "CTCAlign")
RNNT_CALLS = ("RNNTLoss", "RNNTLossForward", "RNNTLossBackward", "RNNTAlign")
SIZE_CALLS = {
    "CTC": ("GetCTCLossWorkspaceSize", "GetCTCLossReserveSize", "GetCTCAlignWorkspaceSize"),
    "RNNT": ("GetRNNTLossWorkspaceSize", "GetRNNTLossReserveSize", "GetRNNTAlignWorkspaceSize"),
}

CTC_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"dataType": 3}, "dataType is 3"),
    (
        {"input": loss_case.GATHERED},
        "input is PRNN_LOSS_GATHERED (2); it must be PRNN_LOSS_LOGITS (0) or PRNN_LOSS_LOG_PROBS (1)",
    ),
    ({"targetLayout": -1}, "targetLayout is -1"),
    ({"batch": 0}, "batch is 0"),
    ({"batch": -3}, "batch is -3"),
    ({"maxFrames": 0}, "maxFrames is 0"),
    ({"maxFrames": HUGE}, f"maxFrames is {HUGE}"),
    ({"maxTargets": -1}, "maxTargets is -1"),
    ({"classes": 0}, "classes is 0"),
    ({"blank": -1}, "blank is -1; it must be 0 to 5"),
    ({"blank": 6}, "blank is 6; it must be 0 to 5"),
    ({"targetLayout": 1, "targetElements": -1}, "targetElements is -1"),
    ({"batch": 2**30, "maxFrames": 2**30, "classes": 2**10}, "64 bits"),
    ({"timeStride": -18, "batchStride": 6}, "timeStride is -18"),
    ({"timeStride": 6, "batchStride": 6}, "would coincide"),
    ({"timeStride": 17, "batchStride": 6}, "would coincide"),
    ({"timeStride": 18, "batchStride": 5}, "would coincide"),
    ({"timeStride": 0, "batchStride": 6}, "would coincide"),
    ({"timeStride": HUGE, "batchStride": 6}, "64 bits"),
]
RNNT_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"dataType": 3}, "dataType is 3"),
    ({"input": 3}, "input is 3; it must be PRNN_LOSS_LOGITS (0), PRNN_LOSS_LOG_PROBS (1) or PRNN_LOSS_GATHERED (2)"),
    ({"layout": 3}, "layout is 3; it must be PRNN_RNNT_PADDED (0), PRNN_RNNT_PACKED (1) or PRNN_RNNT_PRUNED (2)"),
    ({"targetLayout": 2}, "targetLayout is 2"),
    (
        {"type": 4},
        "type is 4; it must be PRNN_RNNT_REGULAR (0), PRNN_RNNT_MODIFIED (1), PRNN_RNNT_CONSTRAINED (2) or "
        "PRNN_RNNT_FINAL_BLANK (3)",
    ),
    ({"batch": 0}, "batch is 0"),
    ({"maxFrames": 0}, "maxFrames is 0"),
    ({"maxTargets": -1}, "maxTargets is -1"),
    ({"maxTargets": HUGE}, f"maxTargets is {HUGE}"),
    ({"classes": 0}, "classes is 0"),
    ({"input": loss_case.GATHERED}, "classes is 6; it must be 2"),
    ({"blank": 6}, "blank is 6; it must be 0 to 5"),
    ({"targetLayout": 1, "targetElements": -1}, "targetElements is -1"),
    ({"layout": loss_case.RNNT_PACKED, "rows": 0}, "rows is 0"),
    ({"layout": loss_case.RNNT_PRUNED, "pruneRange": 0}, "pruneRange is 0; it must be 1 to 5"),
    ({"layout": loss_case.RNNT_PRUNED, "pruneRange": 6}, "pruneRange is 6; it must be 1 to 5"),
    ({"batch": 2**30, "maxFrames": 2**30}, "64 bits"),
    ({"fastEmitLambda": -0.5}, "fastEmitLambda is -0.5"),
    ({"fastEmitLambda": float("nan")}, "fastEmitLambda is"),
    ({"clamp": float("nan")}, "clamp is NaN"),
    ({"delayPenalty": float("inf")}, "delayPenalty is inf"),
]


def refused(case: loss_case.LossCase, name: str, text: str, status: int = capi.BAD_PARAM, **changes: Any) -> None:
    reserve = case.data["reserve"].clone() if "reserve" in case.data else None
    assert case.call(name, **changes) == status, f"{name} {changes}: {capi.message(case.handle.pointer)}"
    message = capi.message(case.handle.pointer)
    assert text in message, f"{name}: {message}"
    assert case.untouched(), f"{name}: an output was written"
    assert reserve is None or torch.equal(case.data["reserve"], reserve), f"{name}: reserveSpace was written"


def with_options(case: loss_case.LossCase, fields: dict[str, Any]) -> ctypes.Structure:
    changed = type(case.options).from_buffer_copy(case.options)
    for field, value in fields.items():
        setattr(changed, field, value)
    return changed


@pytest.mark.parametrize(
    ("family", "fields", "text"),
    [("CTC", *row) for row in CTC_OPTIONS] + [("RNNT", *row) for row in RNNT_OPTIONS],
)
def test_options(family: str, fields: dict[str, Any], text: str) -> None:
    case = loss_case.ctc_case() if family == "CTC" else loss_case.rnnt_case()
    options = with_options(case, fields)
    for name in CTC_CALLS if family == "CTC" else RNNT_CALLS:
        refused(case, name, text, options=options)
    for name in SIZE_CALLS[family]:
        size = ctypes.c_size_t(7)
        refused(case, name, text, options=options, sizeInBytes=ctypes.byref(size))
        assert size.value == 7


@pytest.mark.parametrize("family", ["CTC", "RNNT"])
@pytest.mark.parametrize(("data_type", "name"), [(capi.HALF, "HALF"), (capi.BFLOAT16, "BFLOAT16")])
def test_half_types_are_not_supported_on_the_cpu(family: str, data_type: int, name: str) -> None:
    case = loss_case.ctc_case() if family == "CTC" else loss_case.rnnt_case()
    options = with_options(case, {"dataType": data_type})
    refused(case, f"{family}Loss", f"dataType is PRNN_DATA_{name}", capi.NOT_SUPPORTED, options=options)


def test_null_and_stale_handles() -> None:
    dead = capi.cpu_handle()
    pointer = dead.pointer
    cases = [
        (loss_case.ctc_case(), CTC_CALLS + SIZE_CALLS["CTC"]),
        (loss_case.rnnt_case(), RNNT_CALLS + SIZE_CALLS["RNNT"]),
    ]
    cases.append(
        (
            loss_case.mutual_information_case(),
            ("MutualInformation", "RNNTPruneRanges", "GetMutualInformationWorkspaceSize"),
        )
    )
    del dead
    size = ctypes.c_size_t()
    for case, names in cases:
        for name in names:
            for handle in (None, pointer):
                status = case.call(name, handle=handle, sizeInBytes=ctypes.byref(size), pruneRange=2)
                assert status == capi.NOT_INITIALIZED
                assert "the handle is" in capi.message()
                assert case.untouched()


@pytest.mark.parametrize("family", ["CTC", "RNNT"])
def test_null_arguments(family: str) -> None:
    case = loss_case.ctc_case() if family == "CTC" else loss_case.rnnt_case()
    inputs = ["options", "activations", "targets", "frameLengths", "targetLengths"]
    loss, forward, backward, align = CTC_CALLS if family == "CTC" else RNNT_CALLS
    for name in (loss, forward, backward, align):
        for argument in inputs:
            refused(case, name, f"{argument} is NULL", **{argument: None})
    for name, outputs in (
        (loss, ["costs", "workspace"]),
        (forward, ["costs", "workspace"]),
        (backward, ["gradients", "reserveSpace"]),
        (align, ["scores", "workspace", *(["begins", "ends"] if family == "CTC" else ["frames"])]),
    ):
        for argument in outputs:
            refused(case, name, f"{argument} is NULL", **{argument: None})
    for name in SIZE_CALLS[family]:
        refused(case, name, "sizeInBytes is NULL", sizeInBytes=None)


FAMILIES = {"CTC": loss_case.ctc_case, "RNNT": loss_case.rnnt_case, "DurationRNNT": loss_case.duration_case}
ARRAYS = {
    "CTC": ("activations", "targets", "frameLengths", "targetLengths", "costs", "gradients", "costGradients", "scores"),
    "RNNT": (
        "activations",
        "targets",
        "frameLengths",
        "targetLengths",
        "costs",
        "gradients",
        "costGradients",
        "scores",
    ),
    "DurationRNNT": ("tokenLogits", "durationLogits", "targets", "frameLengths", "targetLengths", "costs")
    + ("tokenGradients", "durationGradients", "costGradients"),
}


@pytest.mark.parametrize("family", ARRAYS)
def test_arrays_that_are_not_aligned(family: str) -> None:
    case = FAMILIES[family]()
    tried = set()
    for name in (f"{family}Loss", f"{family}LossForward", f"{family}LossBackward", f"{family}Align"):
        for array in (*ARRAYS[family], "begins", "ends", "frames"):
            if f"prnn{name}" in capi.FUNCTIONS and array in capi.FUNCTIONS[f"prnn{name}"].parameters:
                refused(case, name, f"{array} is at address 0x1002; it must be aligned to ", **{array: 4098})
                tried.add(array)
    assert tried >= set(ARRAYS[family]) - {"scores"}


def test_arrays_of_pruned_rnnt_that_are_not_aligned() -> None:
    options = loss_case.MutualInformationOptions(capi.DOUBLE, 0, 1, 2, 3)
    handle = capi.cpu_handle()
    values = {name: 4096 for name in ("px", "py", "boundary", "scores", "pxGradients", "pyGradients", "rangeBegins")}
    values |= {"handle": handle.pointer, "options": ctypes.addressof(options), "pruneRange": 2, "workspace": 4096}
    values |= {"workspaceSizeInBytes": 2**20}
    for name in ("MutualInformation", "RNNTPruneRanges"):
        parameters = capi.FUNCTIONS[f"prnn{name}"].parameters
        for array in set(parameters) - {"handle", "options", "pruneRange", "workspace", "workspaceSizeInBytes"}:
            changed = {key: (values | {array: 4098})[key] for key in parameters}
            assert capi.call(name, **changed) == capi.BAD_PARAM
            size = 4 if array in ("boundary", "rangeBegins") else 8
            message = f"{array} is at address 0x1002; it must be aligned to {size} bytes"
            assert capi.message(handle.pointer) == message


SPACES = (("", "Workspace"), ("Forward", "Workspace"), ("Forward", "Reserve"), ("Backward", "Reserve"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """With several, a workspace that is smaller than the query says may be enough for fewer of them."""
    with loss_case.threads(1):
        yield


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("family", ["CTC", "RNNT"])
def test_spaces_too_small_or_misaligned(family: str) -> None:
    case = loss_case.ctc_case() if family == "CTC" else loss_case.rnnt_case()
    loss, forward, backward, align = CTC_CALLS if family == "CTC" else RNNT_CALLS
    workspace = case.size(f"Get{family}LossWorkspaceSize")
    for name in (loss, forward, align):
        refused(case, name, "workspace has 16 bytes; it needs", workspaceSizeInBytes=16)
        misaligned = case.data["workspace"].data_ptr() + 8
        refused(case, name, "it must be aligned to 16 bytes", workspace=misaligned)
    refused(case, loss, f"workspace has {workspace} bytes; it needs", workspaceSizeInBytes=workspace)
    for name in (forward, backward):
        refused(case, name, "reserveSpace has 16 bytes; it needs", reserveSizeInBytes=16)
        refused(case, name, "aligned to 16 bytes", reserveSpace=case.data["reserve"].data_ptr() + 8)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("make", "call", "space"),
    [
        *((make, f"{family}Loss{part}", space) for family, make in FAMILIES.items() for part, space in SPACES),
        (loss_case.ctc_case, "CTCAlign", "Workspace"),
        (loss_case.rnnt_case, "RNNTAlign", "Workspace"),
        (loss_case.mutual_information_case, "MutualInformation", "Workspace"),
    ],
)
def test_spaces_of_a_byte_less_than_the_query_says(make: Any, call: str, space: str) -> None:
    """Whatever the arrays in them need, which the query rounds up."""
    case = make()
    loss = call.removesuffix("Forward").removesuffix("Backward")
    size = case.size(f"Get{loss}{space}Size")
    if call.endswith("Loss"):  # with gradients
        size += case.size(f"Get{loss}ReserveSize")
    assert size % 256 == 0
    name = "reserveSpace" if space == "Reserve" else "workspace"
    changes = {f"{space[0].lower()}{space[1:]}SizeInBytes": size - 1}
    refused(case, call, f"{name} has {size - 1} bytes; it needs {size}", **changes)


@pytest.mark.parametrize("family", ["CTC", "RNNT"])
@pytest.mark.parametrize("layout", [loss_case.PADDED, loss_case.CONCATENATED])
def test_lengths_and_symbols(family: str, layout: int) -> None:
    case = (loss_case.ctc_case if family == "CTC" else loss_case.rnnt_case)(targetLayout=layout)
    frames = case.options.maxFrames

    def changed(name: str, index: int, value: int) -> dict[str, torch.Tensor]:
        tensor = case.data[name].clone()
        tensor.view(-1)[index] = value
        return {name: tensor}

    least = 0 if family == "CTC" else 1
    rows = [
        (changed("frameLengths", 1, -1), f"frameLengths[1] is -1; it must be {least} to {frames}"),
        (changed("frameLengths", 2, frames + 1), f"frameLengths[2] is {frames + 1}; it must be {least} to {frames}"),
        (changed("targetLengths", 0, -2), "targetLengths[0] is -2; it must be 0 to 4"),
        (changed("targetLengths", 0, 5), "targetLengths[0] is 5; it must be 0 to 4"),
        (changed("targets", 2, 6), "targets of sequence 0 hold 6 at position 2; it must be 0 to 5"),
        (changed("targets", 4, -1), "targets of sequence 1 hold -1 at position 0; it must be 0 to 5"),
        (changed("targets", 3, 0), "targets of sequence 0 hold the blank, 0, at position 3"),
    ]
    if family == "RNNT":
        rows.append((changed("frameLengths", 0, 0), "frameLengths[0] is 0; it must be 1 to 8"))
    if layout == loss_case.CONCATENATED:
        rows.append((changed("targetLengths", 2, 1), "targetElements is 6, but targetLengths add up to 7"))
        rows.append((changed("targetLengths", 1, 1), "targetElements is 6, but targetLengths add up to 5"))
    for name in CTC_CALLS if family == "CTC" else RNNT_CALLS:
        for changes, text in rows:
            refused(case, name, text, **changes)


def test_rnnt_layouts() -> None:
    packed = loss_case.rnnt_case(layout=loss_case.RNNT_PACKED)
    kept = loss_case.rnnt_case(layout=loss_case.RNNT_PRUNED)
    rows = packed.options.rows
    begins = kept.data["rangeBegins"]
    falling, negative, beyond = begins.clone(), begins.clone(), begins.clone()
    falling[0, 4], negative[1, 2], beyond[0, 7] = 0, -1, 5
    for name in RNNT_CALLS:
        for wrong in (rows - 1, rows + 1, 3 * 8 * 5):
            options = with_options(packed, {"rows": wrong})
            refused(packed, name, f"rows is {wrong}, but the lengths make {rows} cells", options=options)
        refused(kept, name, "rangeBegins is NULL", rangeBegins=None)
        refused(kept, name, "rangeBegins[0, 4] is 0 after 1; it must not decrease", rangeBegins=falling)
        refused(kept, name, "rangeBegins[1, 2] is -1; it must be 0 to 4", rangeBegins=negative)
        refused(kept, name, "rangeBegins[0, 7] is 5; it must be 0 to 4", rangeBegins=beyond)


def test_mutual_information() -> None:
    case = loss_case.mutual_information_case()
    both = ("MutualInformation", "RNNTPruneRanges")
    for fields, text in (
        ({"dataType": 5}, "dataType is 5"),
        ({"type": 3}, "type is PRNN_RNNT_FINAL_BLANK (3); it must be PRNN_RNNT_REGULAR (0), PRNN_RNNT_MODIFIED (1) or"),
        ({"batch": 0}, "batch is 0"),
        ({"symbols": -1}, "symbols is -1"),
        ({"frames": 0}, "frames is 0"),
        ({"symbols": 2**30, "frames": 2**30, "batch": 2**20}, "64 bits"),
    ):
        options = with_options(case, fields)
        for name in (*both, "GetMutualInformationWorkspaceSize"):
            size = ctypes.c_size_t()
            refused(case, name, text, options=options, pruneRange=2, sizeInBytes=ctypes.byref(size))
    half = with_options(case, {"dataType": capi.HALF})
    refused(case, "MutualInformation", "dataType is PRNN_DATA_HALF", capi.NOT_SUPPORTED, options=half)
    for argument in ("options", "px", "py", "scores", "workspace", "pxGradients", "pyGradients"):
        refused(case, "MutualInformation", f"{argument} is NULL", **{argument: None})
    for argument in ("options", "pxGradients", "pyGradients", "rangeBegins"):
        refused(case, "RNNTPruneRanges", f"{argument} is NULL", pruneRange=2, **{argument: None})
    for value in (-1, 0, 1, 6):
        refused(case, "RNNTPruneRanges", f"pruneRange is {value}; it must be 2 to 5", pruneRange=value)
    refused(case, "MutualInformation", "workspace has 0 bytes; it needs", workspaceSizeInBytes=0)
    for row, text in (
        ([-1, 0, 4, 6], "boundary[1] has s_begin -1"),
        ([3, 0, 2, 6], "s_begin 3 and s_end 2"),
        ([0, 0, 5, 6], "s_end 5"),
        ([0, 4, 4, 3], "t_begin 4 and t_end 3"),
        ([0, 0, 4, 7], "t_end 7; they must rise from 0 to at most 6"),
    ):
        boundary = torch.tensor([[0, 0, 4, 6], row], dtype=torch.int32)
        for name in both:
            refused(case, name, text, boundary=boundary, pruneRange=2)


# ---- Python ----


def ctc(**changes: Any) -> torch.Tensor:
    arguments = {
        "log_probs": torch.randn(7, 2, 5, requires_grad=True),
        "targets": torch.tensor([[1, 2, 3], [4, 4, 1]]),
        "input_lengths": torch.tensor([7, 6]),
        "target_lengths": torch.tensor([3, 2]),
    }
    return prnn.ctc_loss(**{**arguments, **changes})


def rnnt(**changes: Any) -> torch.Tensor:
    arguments = {
        "logits": torch.randn(2, 7, 4, 5, requires_grad=True),
        "targets": torch.tensor([[1, 2, 3], [4, 4, 1]]),
        "logit_lengths": torch.tensor([7, 6]),
        "target_lengths": torch.tensor([3, 2]),
        "blank": 0,
    }
    return prnn.rnnt_loss(**{**arguments, **changes})


def align(**changes: Any) -> Any:
    arguments = {
        "activations": torch.randn(2, 7, 5),
        "targets": torch.tensor([[1, 2, 3], [4, 4, 1]]),
        "input_lengths": torch.tensor([7, 6]),
        "target_lengths": torch.tensor([3, 2]),
    }
    return prnn.forced_align(**{**arguments, **changes})


BAD_TARGETS = torch.tensor([[1, 2, 3], [4, 9, 1]])
BLANK_TARGETS = torch.tensor([[1, 0, 3], [4, 4, 1]])
TENSOR_ROWS: list[tuple[str, Any, type[Exception], str]] = [
    ("targets", BAD_TARGETS, ValueError, "sequence 1 hold 9 at position 1"),
    ("targets", BLANK_TARGETS, ValueError, "sequence 0 hold the blank, 0, at position 1"),
    ("targets", torch.tensor([[1, 2**33 + 1, 3], [4, 4, 1]]), ValueError, "sequence 0 hold 2147483647 at position 1"),
    ("targets", torch.tensor([[1, 2 - 2**32, 3], [4, 4, 1]]), ValueError, "sequence 0 hold -2147483648 at position 1"),
    ("targets", torch.ones(3, 3, dtype=torch.int64), ValueError, r"targets has the shape \(3, 3\)"),
    ("targets", torch.ones(2, 3, 1, dtype=torch.int64), ValueError, r"targets has the shape \(2, 3, 1\)"),
    ("targets", torch.ones(2, 3), TypeError, "targets is of torch.float32"),
    ("targets", "abc", TypeError, "targets is a str"),
    ("target_lengths", torch.tensor([3, 4]), ValueError, r"target_lengths\[1\] is 4; it must be 0 to 3"),
    ("target_lengths", torch.tensor([-1, 2]), ValueError, r"target_lengths\[0\] is -1"),
    ("target_lengths", torch.tensor([3]), ValueError, r"target_lengths has the shape \(1,\)"),
    ("target_lengths", torch.tensor([3.0, 2.0]), TypeError, "target_lengths is of torch.float32"),
    ("target_lengths", {}, TypeError, "target_lengths is a dict"),
]
LENGTH_ROWS: list[tuple[Any, type[Exception], str]] = [
    (torch.tensor([8, 6]), ValueError, r"(input|logit)_lengths\[0\] is 8; it must be"),
    (torch.tensor([7, -1]), ValueError, r"(input|logit)_lengths\[1\] is -1"),
    (torch.tensor([7, 2**32 + 6]), ValueError, r"(input|logit)_lengths\[1\] is 2147483647"),
    ([7, 6, 5], ValueError, r"lengths has the shape \(3,\)"),
    (torch.tensor([True, True]), TypeError, "lengths is of torch.bool"),
]


@pytest.mark.parametrize("shape", [(2, 7, 5), (2, 7, 4, 5)], ids=["ctc", "rnnt"])
@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (torch.tensor([8, 6]), ValueError, r"^input_lengths\[0\] is 8"),
        ([7, 6, 5], ValueError, r"^input_lengths has the shape \(3,\)"),
        (torch.tensor([True, True]), TypeError, "^input_lengths is of torch.bool"),
    ],
)
def test_alignment_names_its_own_lengths(shape: tuple[int, ...], value: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        align(activations=torch.randn(shape), input_lengths=value)


@pytest.mark.parametrize("function", [ctc, rnnt, align])
@pytest.mark.parametrize(("name", "value", "error", "text"), TENSOR_ROWS)
def test_python_targets(function: Any, name: str, value: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        function(**{name: value})


@pytest.mark.parametrize(("value", "error", "text"), LENGTH_ROWS)
def test_python_frame_lengths(value: Any, error: type[Exception], text: str) -> None:
    for function, name in ((ctc, "input_lengths"), (rnnt, "logit_lengths"), (align, "input_lengths")):
        with pytest.raises(error, match=text):
            function(**{name: value})


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ([1.0], TypeError, "is a list; it must be a torch.Tensor"),
        (torch.ones(7, 2, 5, dtype=torch.int64), TypeError, "is of torch.int64"),
        (torch.randn(7, 2, 5, dtype=torch.complex64), TypeError, "is of torch.complex64"),
        (torch.randn(5), ValueError, r"has the shape \(5,\); it must be"),
        (torch.randn(1, 7, 2, 4, 5), ValueError, r"has the shape \(1, 7, 2, 4, 5\); it must be"),
        (torch.empty(7, 2, 0), ValueError, r"has the shape \(7, 2, .*0\); no dimension may be empty"),
    ],
)
def test_python_activations(value: Any, error: type[Exception], text: str) -> None:
    for function, name in ((ctc, "log_probs"), (rnnt, "logits"), (align, "activations")):
        if isinstance(value, torch.Tensor) and value.dim() == 3 and function is rnnt:
            value = value.unsqueeze(2)
        with pytest.raises(error, match=f"{name} {text}"):
            function(**{name: value})


@pytest.mark.parametrize("function", [ctc, rnnt, align])
def test_python_options(function: Any) -> None:
    for blank, error in ((5, ValueError), (-6, ValueError), (1.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match=f"blank is {blank}"):
            function(blank=blank)
    if function is not align:
        with pytest.raises(ValueError, match="reduction is 'avg'; it must be one of 'none', 'mean', 'sum'"):
            function(reduction="avg")
    if function is not ctc:
        with pytest.raises(ValueError, match="rnnt_type is 'fast'; it must be one of 'regular'"):
            function(rnnt_type="fast")


def test_python_rnnt_options() -> None:
    for name, value, error in (
        ("fastemit_lambda", -1.0, ValueError),
        ("fastemit_lambda", "0.1", TypeError),
        ("clamp", float("nan"), ValueError),
        ("delay_penalty", float("inf"), ValueError),
        ("delay_penalty", None, TypeError),
    ):
        with pytest.raises(error, match=f"(?i){name.replace('_', '_?')} is"):
            rnnt(**{name: value})
    with pytest.raises(ValueError, match=r"logits has the shape \(2, 7, 4, 5\); gathered, its last dimension"):
        rnnt(gathered=True)
    with pytest.raises(ValueError, match=r"targets has the shape \(6,\).*packed logits"):
        rnnt(targets=torch.ones(6, dtype=torch.int64))
    with pytest.raises(
        ValueError,
        match=r"logits .* \(2, 7, 4, 5\) and targets \(2, 2\); the third size of logits must be U \+ 1, here 3",
    ):
        rnnt(targets=torch.ones(2, 2, dtype=torch.int64))
    for rows in (45, 47, 2 * 7 * 4):
        with pytest.raises(ValueError, match=f"the number of rows of logits is {rows}, but the lengths make 46 cells"):
            rnnt(logits=torch.randn(rows, 5))
    with pytest.raises(ValueError, match="not available for packed logits"):
        rnnt(logits=torch.randn(46, 5), return_grad=True)
    with pytest.raises(ValueError, match=r"logit_lengths\[1\] is 0; it must be 1 to 7"):
        rnnt(logit_lengths=[7, 0])
    for count in (4, 6):
        symbols = torch.ones(count, dtype=torch.int64)
        with pytest.raises(ValueError, match=f"the number of targets is {count}, but target_lengths add up to 5"):
            rnnt(logits=torch.randn(46, 5), targets=symbols)
        with pytest.raises(ValueError, match=f"the number of targets is {count}, but target_lengths add up to 5"):
            ctc(targets=symbols)


def test_python_pruned() -> None:
    lm, am = torch.randn(2, 4, 6), torch.randn(2, 7, 6)
    symbols = torch.ones(2, 3, dtype=torch.int64)
    boundary = torch.tensor([[0, 0, 3, 7], [0, 0, 2, 6]])
    for changes, error, text in (
        ({"lm": torch.randn(2, 4, 5)}, ValueError, r"lm and am have the shapes \(2, 4, 5\)"),
        ({"lm": lm.double()}, ValueError, "lm is torch.float64"),
        ({"am": torch.randn(7, 6)}, ValueError, r"am has the shape \(7, 6\)"),
        ({"symbols": symbols[:, :2]}, ValueError, r"symbols has the shape \(2, 2\); it must be \(2, 3\)"),
        ({"symbols": symbols + 5}, ValueError, "symbols holds 6; with 6 classes"),
        ({"symbols": symbols - 2}, ValueError, "symbols holds -1"),
        ({"termination_symbol": 6}, ValueError, "termination_symbol is 6"),
        ({"boundary": boundary[:1]}, ValueError, r"boundary has the shape \(1, 4\)"),
        ({"boundary": boundary.float()}, TypeError, "boundary is of torch.float32"),
        ({"boundary": boundary + 1}, ValueError, r"boundary\[0\] has s_begin 1 and s_end 4"),
        ({"rnnt_type": True}, ValueError, "rnnt_type is True"),
        ({"reduction": None}, ValueError, "reduction is None"),
        ({"delay_penalty": "x"}, TypeError, "delay_penalty is 'x'"),
    ):
        arguments: dict[str, Any] = {
            "lm": lm,
            "am": am,
            "symbols": symbols,
            "termination_symbol": 0,
            "boundary": boundary,
            **changes,
        }
        for function in (prnn.rnnt_loss_simple, prnn.rnnt_loss_smoothed):
            with pytest.raises(error, match=text):
                function(**arguments)
    _, occupation = prnn.rnnt_loss_simple(lm, am, symbols, 0, boundary, return_grad=True)
    for s_range in (0, -1, 2.0, True):
        with pytest.raises((ValueError, TypeError), match=f"s_range is {s_range}"):
            prnn.get_rnnt_prune_ranges(*occupation, boundary, s_range)
    with pytest.raises(TypeError, match="boundary is None"):
        prnn.get_rnnt_prune_ranges(*occupation, None, 2)
    with pytest.raises(ValueError, match="px_grad and py_grad have the shapes"):
        prnn.get_rnnt_prune_ranges(occupation[0][:, :2], occupation[1], boundary, 2)
    ranges = prnn.get_rnnt_prune_ranges(*occupation, boundary, 2)
    logits = torch.randn(2, 7, 2, 6)
    with pytest.raises(ValueError, match=r"ranges has the shape \(2, 6, 2\); it must be \(2, 7, R\)"):
        prnn.rnnt_loss_pruned(logits, symbols, ranges[:, :6], 0, boundary)
    with pytest.raises(ValueError, match="they must agree in R"):
        prnn.rnnt_loss_pruned(logits, symbols, ranges[:, :, :1], 0, boundary)
    with pytest.raises(ValueError, match=r"ranges holds 4; with symbols \(N, 3\) it must be 0 to 3"):
        prnn.rnnt_loss_pruned(logits, symbols, ranges.clamp(min=4), 0, boundary)
    with pytest.raises(ValueError, match="the third size of logits must be S"):
        pruned.rnnt_loss(logits, symbols, 0, boundary)
    with pytest.raises(TypeError, match=r"px and py are torch\.float32 and torch\.float64"):
        prnn.mutual_information_recursion(torch.randn(2, 3, 4), torch.randn(2, 4, 4).double())
    with pytest.raises(ValueError, match=r"px and py have the shapes \(2, 3, 6\) and \(2, 4, 4\)"):
        prnn.mutual_information_recursion(torch.randn(2, 3, 6), torch.randn(2, 4, 4))
    with pytest.raises(ValueError, match="px and py have 1 and 2 tensors"):
        pruned.joint_mutual_information_recursion([torch.randn(1, 1, 2)], [torch.randn(1, 2, 1)] * 2)


def test_python_modules_check_when_they_are_made() -> None:
    with pytest.raises(ValueError, match="reduction is 'average'"):
        prnn.CTCLoss(reduction="average")
    with pytest.raises(ValueError, match="rnnt_type is 'x'"):
        prnn.RNNTLoss(rnnt_type="x")


def test_the_binding_takes_options_in_full() -> None:
    good = (_C.FLOAT, _C.TARGETS_PADDED, 1, 4, 2, 2, 3, 3, 12, _C.LOSS_LOGITS, 0, False)
    handle = _C.Handle.cpu()
    assert len(good) == len(_C.CTC_LOSS_FIELDS)
    assert min(_C.ctc_loss_sizes(handle, good)) > 0
    for bad in ((), good[:-1], (*good, 0), list(good), ("0", *good[1:]), (2**40, *good[1:])):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            _C.ctc_loss_sizes(handle, bad)

"""prnnDurationRNNTLoss through the C API: what Python has no way to ask for, that the two agree, and bad arguments."""

import ctypes
from typing import Any

import capi
import loss_case
import pytest
import torch
from test_losses_bad_input import refused, with_options

import prnn

CALLS = ("DurationRNNTLoss", "DurationRNNTLossForward", "DurationRNNTLossBackward")
SIZE_CALLS = ("GetDurationRNNTLossWorkspaceSize", "GetDurationRNNTLossReserveSize")
HUGE = 2**62
INF, NAN = float("inf"), float("nan")
both_types = pytest.mark.parametrize("kind", [loss_case.TDT, loss_case.MULTI_BLANK])


def python_loss(case: loss_case.LossCase, tokens: torch.Tensor, durations: torch.Tensor | None) -> torch.Tensor:
    data, options = case.data, case.options
    batch = data["targets"], data["frameLengths"], data["targetLengths"]
    steps = options.durations[: options.durationCount]
    given: dict[str, Any] = {"reduction": "none", "sigma": options.sigma}
    if options.type == loss_case.MULTI_BLANK:
        return prnn.multi_blank_rnnt_loss(tokens, *batch, options.blank, steps, **given)
    return prnn.tdt_loss(tokens, *batch, options.blank, steps, duration_logits=durations, omega=options.omega, **given)


def test_defaults() -> None:
    struct = loss_case.DurationOptions
    options = struct.from_buffer_copy(b"\x01" * ctypes.sizeof(struct))
    capi.check("InitDurationRNNTLossOptions", options=loss_case.address(options))
    for name, _ in struct._fields_:
        value = getattr(options, name)
        assert not (any(value) if isinstance(value, ctypes.Array) else value)
    assert capi.call("InitDurationRNNTLossOptions", options=None) == capi.BAD_PARAM


@both_types
@pytest.mark.parametrize("data_type", [capi.FLOAT, capi.DOUBLE])
def test_agrees_with_python(kind: int, data_type: int) -> None:
    case = loss_case.duration_case(type=kind, dataType=data_type, omega=0.25 if kind == loss_case.TDT else 0)
    data = case.data
    leaves = [
        data[name].clone().requires_grad_() for name in ("tokenLogits", "durationLogits") if data[name] is not None
    ]
    names = ["tokenGradients", "durationGradients"][: len(leaves)]
    costs = python_loss(case, *leaves, *[None] * (2 - len(leaves)))
    gradients = torch.autograd.grad((costs * data["costGradients"]).sum(), leaves, retain_graph=True)
    case.run("DurationRNNTLossForward")
    assert torch.equal(data["costs"], costs)
    case.run("DurationRNNTLossBackward")
    for name, gradient in zip(names, gradients, strict=True):
        assert torch.equal(data[name], gradient)
    case.reset()
    case.run("DurationRNNTLoss")
    assert torch.equal(data["costs"], costs)
    for name, gradient in zip(names, torch.autograd.grad(costs.sum(), leaves), strict=True):
        assert torch.equal(data[name], gradient)
    # Without gradients a call wants the smaller workspace, and Forward no reserve space.
    case.reset()
    size = case.size("GetDurationRNNTLossWorkspaceSize")
    case.run("DurationRNNTLoss", tokenGradients=None, durationGradients=None, workspaceSizeInBytes=size)
    assert torch.equal(data["costs"], costs)
    case.reset()
    case.run("DurationRNNTLossForward", reserveSpace=None, reserveSizeInBytes=0, workspaceSizeInBytes=size)
    assert torch.equal(data["costs"], costs)
    assert (data["tokenGradients"] == case.UNTOUCHED).all()


@both_types
def test_gradients_in_place_of_the_logits(kind: int) -> None:
    case = loss_case.duration_case(type=kind, clamp=0.1)
    data = case.data
    case.run("DurationRNNTLoss")
    kept = {name: value.clone() for name, value in data.items() if value is not None}
    case.reset()
    case.run("DurationRNNTLoss", tokenGradients=data["tokenLogits"], durationGradients=data["durationLogits"])
    assert torch.equal(data["costs"], kept["costs"])
    assert torch.equal(data["tokenLogits"], kept["tokenGradients"])
    if kind == loss_case.TDT:
        assert torch.equal(data["durationLogits"], kept["durationGradients"])


@pytest.mark.parametrize("omega", [0.0, 0.25])
def test_gathered_log_probabilities(omega: float) -> None:
    """Log-probabilities of blank, next target and durations in place of the logits, whose targets are not read: the
    same costs, and gradients that are minus the probabilities of the arcs."""
    logits = loss_case.duration_case(omega=omega, fastEmitLambda=0.1)
    data = logits.data
    logits.run("DurationRNNTLoss")
    case = loss_case.duration_case(omega=omega, fastEmitLambda=0.1, input=loss_case.GATHERED, classes=2, tokenStride=6)
    case.data |= {name: data[name] for name in ("frameLengths", "targetLengths")}
    tokens, durations = data["tokenLogits"].log_softmax(3), data["durationLogits"].log_softmax(3)
    labels = torch.nn.functional.pad(data["targets"].long(), (0, 1))[:, None, :, None].expand(-1, 8, -1, 1)
    case.data["tokenLogits"][..., 0], case.data["tokenLogits"][..., 1:2] = tokens[..., 0], tokens.gather(3, labels)
    case.data["durationLogits"].copy_(durations)
    case.run("DurationRNNTLoss", targets=None)
    torch.testing.assert_close(case.data["costs"], data["costs"])
    shares = case.data["tokenGradients"][..., :2].neg(), case.data["durationGradients"].neg()
    assert all((x >= 0).all() for x in shares)
    for name, gained, probabilities in (
        ("durationGradients", shares[1], durations.exp()),
        ("tokenGradients", torch.zeros_like(tokens), tokens.exp()),
    ):
        if name == "tokenGradients":
            gained.scatter_add_(3, labels, shares[0][..., 1:])
            gained[..., 0] += shares[0][..., 0]
        wanted = probabilities * gained.sum(3, keepdim=True) - gained
        torch.testing.assert_close(data[name], wanted, rtol=1e-9, atol=1e-12)


def test_strides_leave_gaps_alone() -> None:
    plain = loss_case.duration_case()
    plain.run("DurationRNNTLoss")
    case = loss_case.duration_case(tokenStride=9, durationStride=5)
    for name in ("targets", "frameLengths", "targetLengths"):
        case.data[name] = plain.data[name]
    for name, count in (("token", 6), ("duration", 4)):
        case.data[f"{name}Logits"].fill_(NAN)[..., :count] = plain.data[f"{name}Logits"]
    case.run("DurationRNNTLoss")
    assert torch.equal(case.data["costs"], plain.data["costs"])
    for name, count in (("tokenGradients", 6), ("durationGradients", 4)):
        assert torch.equal(case.data[name][..., :count], plain.data[name])
        assert (case.data[name][..., count:] == case.UNTOUCHED).all()


@both_types
def test_spaces_are_neither_overrun_nor_wanted_larger(kind: int) -> None:
    """Exactly the size asked for, between guard bytes."""
    case = loss_case.duration_case(type=kind, omega=0.5 if kind == loss_case.TDT else 0)
    size = case.size("GetDurationRNNTLossWorkspaceSize") + case.size("GetDurationRNNTLossReserveSize")
    guarded = torch.full((size + 128,), 171, dtype=torch.uint8)
    case.run("DurationRNNTLoss", workspace=guarded.data_ptr() + 64, workspaceSizeInBytes=size)
    assert (guarded[:64] == 171).all()
    assert (guarded[-64:] == 171).all()


def test_calls_without_targets_take_null() -> None:
    case = loss_case.duration_case(maxTargets=0)
    case.data["targetLengths"].zero_()
    case.run("DurationRNNTLoss", targets=None)
    assert torch.isfinite(case.data["costs"]).all()


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"dataType": 3}, "dataType is 3"),
    ({"input": 1}, "input is PRNN_LOSS_LOG_PROBS (1); it must be PRNN_LOSS_LOGITS (0) or PRNN_LOSS_GATHERED (2)"),
    ({"input": 2}, "classes is 6; it must be 2 for PRNN_LOSS_GATHERED"),
    ({"type": 2}, "type is 2; it must be PRNN_DURATION_TDT (0) or PRNN_DURATION_MULTI_BLANK (1)"),
    ({"batch": 0}, "batch is 0"),
    ({"maxFrames": 0}, "maxFrames is 0"),
    ({"maxTargets": -1}, "maxTargets is -1"),
    ({"maxTargets": HUGE}, f"maxTargets is {HUGE}"),
    ({"classes": 0}, "classes is 0"),
    ({"blank": 6}, "blank is 6; it must be 0 to 5"),
    ({"type": 1}, "durations[0] is 0; it must be at least 2"),
    ({"durationCount": 0}, "durationCount is 0; it must be 1 to 16"),
    ({"durationCount": 17}, "durationCount is 17; it must be 1 to 16"),
    ({"durationCount": 1}, "durations has 0 alone"),
    ({"durationCount": 6}, "durations[0] and durations[4] are both 0"),
    ({"tokenStride": 5}, "tokenStride is 5; it must be at least 6"),
    ({"durationStride": 3}, "durationStride is 3; it must be at least 4"),
    ({"tokenStride": HUGE}, "64 bits"),
    ({"durationStride": HUGE}, "64 bits"),
    ({"batch": 2**30, "maxFrames": 2**30}, "64 bits"),
    ({"sigma": NAN}, "sigma is"),
    ({"sigma": INF}, "sigma is inf"),
    ({"omega": -0.1}, "omega is -0.1; it must be 0 to 1"),
    ({"omega": 1.5}, "omega is 1.5"),
    ({"omega": NAN}, "omega is"),
    ({"fastEmitLambda": -0.5}, "fastEmitLambda is -0.5"),
    ({"clamp": NAN}, "clamp is NaN"),
]
MULTI_BLANK_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"blank": 1}, "blank is 1; it must be 2 to 5"),
    ({"input": 2}, "input is PRNN_LOSS_GATHERED; it must be PRNN_LOSS_LOGITS with PRNN_DURATION_MULTI_BLANK"),
    ({"omega": 0.1}, "omega is 0.1; it must be 0 with PRNN_DURATION_MULTI_BLANK"),
]


@pytest.mark.parametrize(
    ("kind", "fields", "text"), [(0, *row) for row in OPTIONS] + [(1, *row) for row in MULTI_BLANK_OPTIONS]
)
def test_bad_options(kind: int, fields: dict[str, Any], text: str) -> None:
    case = loss_case.duration_case(type=kind)
    options = with_options(case, fields)
    for name in CALLS:
        refused(case, name, text, options=options)
    for name in SIZE_CALLS:
        size = ctypes.c_size_t(7)
        refused(case, name, text, options=options, sizeInBytes=ctypes.byref(size))
        assert size.value == 7


def test_bad_arguments() -> None:
    case = loss_case.duration_case()
    half = with_options(case, {"dataType": capi.HALF})
    refused(case, CALLS[0], "dataType is PRNN_DATA_HALF", capi.NOT_SUPPORTED, options=half)
    inputs = ["options", "tokenLogits", "durationLogits", "targets", "frameLengths", "targetLengths"]
    outputs = {
        CALLS[0]: ["costs", "workspace", "tokenGradients", "durationGradients"],
        CALLS[1]: ["costs", "workspace"],
        CALLS[2]: ["tokenGradients", "durationGradients", "reserveSpace"],
    }
    for name in CALLS:
        for argument in (*inputs, *outputs[name]):
            refused(case, name, f"{argument} is NULL", **{argument: None})
    for name in SIZE_CALLS:
        refused(case, name, "sizeInBytes is NULL", sizeInBytes=None)
    for name in CALLS[:2]:
        refused(case, name, "workspace has 1 bytes; it needs", workspaceSizeInBytes=1)
    for name in CALLS[1:]:
        refused(case, name, "reserveSpace has 1 bytes; it needs", reserveSizeInBytes=1)
    assert case.call(CALLS[0], handle=None) == capi.NOT_INITIALIZED


@both_types
def test_bad_lengths_and_targets(kind: int) -> None:
    case = loss_case.duration_case(type=kind)

    def changed(name: str, index: int, value: int) -> dict[str, torch.Tensor]:
        tensor = case.data[name].clone()
        tensor.view(-1)[index] = value
        return {name: tensor}

    rows = [
        (changed("frameLengths", 1, 0), "frameLengths[1] is 0; it must be 1 to 8"),
        (changed("frameLengths", 2, 9), "frameLengths[2] is 9; it must be 1 to 8"),
        (changed("targetLengths", 0, -2), "targetLengths[0] is -2; it must be 0 to 4"),
        (changed("targetLengths", 0, 5), "targetLengths[0] is 5; it must be 0 to 4"),
        (changed("targets", 2, 6), "targets of sequence 0 hold 6 at position 2; it must be 0 to 5"),
        (changed("targets", 4, -1), "targets of sequence 1 hold -1 at position 0; it must be 0 to 5"),
    ]
    for blank in (1, 2, 3) if kind == loss_case.MULTI_BLANK else (0,):
        rows.append((changed("targets", 3, blank), f"sequence 0 hold the blank, {blank}, at position 3"))
    for name in CALLS:
        for changes, text in rows:
            refused(case, name, text, **changes)


def tdt(**changes: Any) -> torch.Tensor:
    arguments = {
        "logits": torch.randn(2, 7, 4, 8, requires_grad=True),
        "targets": torch.tensor([[1, 2, 3], [4, 4, 1]]),
        "logit_lengths": torch.tensor([7, 6]),
        "target_lengths": torch.tensor([3, 2]),
        "blank": 0,
        "durations": [0, 1, 2],
    }
    return prnn.tdt_loss(**{**arguments, **changes})


def multi_blank(**changes: Any) -> torch.Tensor:
    arguments = {
        "logits": torch.randn(2, 7, 4, 8, requires_grad=True),
        "targets": torch.tensor([[1, 2, 3], [4, 4, 1]]),
        "logit_lengths": torch.tensor([7, 6]),
        "target_lengths": torch.tensor([3, 2]),
        "blank": -1,
        "big_blank_durations": [2, 4],
    }
    return prnn.multi_blank_rnnt_loss(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("logits", torch.randn(2, 7, 8), ValueError, r"logits has the shape \(2, 7, 8\); it must be"),
        ("logits", torch.randn(2, 7, 4, 8).long(), TypeError, "logits is of torch.int64"),
        ("targets", torch.tensor([[1, 2, 3], [4, 9, 1]]), ValueError, "sequence 1 hold 9 at position 1"),
        ("targets", torch.tensor([1, 2, 3, 4, 4]), ValueError, r"targets has the shape \(5,\)"),
        ("target_lengths", torch.tensor([3, 4]), ValueError, r"target_lengths\[1\] is 4; it must be 0 to 3"),
        ("logit_lengths", torch.tensor([7, 0]), ValueError, r"logit_lengths\[1\] is 0; it must be 1 to 7"),
        ("reduction", "mean_batch", ValueError, "reduction is 'mean_batch'; it must be one of"),
        ("sigma", INF, ValueError, "sigma is inf"),
        ("sigma", "x", TypeError, "sigma is 'x'"),
        ("fastemit_lambda", -1.0, ValueError, "fastemit_lambda is -1"),
        ("clamp", NAN, ValueError, "clamp is nan; it must be above 0"),
        ("blank", 8, ValueError, "blank is 8; with"),
        ("blank", 1.0, TypeError, "blank is 1.0"),
    ],
)
def test_python(name: str, value: Any, error: type[Exception], text: str) -> None:
    for function in (tdt, multi_blank):
        with pytest.raises(error, match=text):
            function(**{name: value})


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (3, TypeError, " is a int; it must be a list of ints"),
        ("12", TypeError, " is a str; it must be a list of ints"),
        ([1.0], TypeError, r"\[0\] is 1.0; it must be an int"),
        ([True], TypeError, r"\[0\] is True; it must be an int"),
        ([2, -1], ValueError, r"\[1\] is -1; it must be 0 to 2147483647"),
        ([2**31], ValueError, r"\[0\] is 2147483648; it must be 0 to 2147483647"),
        (list(range(1, 18)), ValueError, " has 17 elements; it may have 16"),
    ],
)
def test_python_durations(value: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"durations{text}"):
        tdt(durations=value)
    with pytest.raises(error, match=f"big_blank_durations{text}"):
        multi_blank(big_blank_durations=value)
    with pytest.raises(error, match=f"durations{text}"):
        prnn.TDTLoss(0, value)
    with pytest.raises(error, match=f"big_blank_durations{text}"):
        prnn.MultiBlankRNNTLoss(0, value)


def test_python_the_rest() -> None:
    tokens, durations = torch.randn(2, 7, 4, 5), torch.randn(2, 7, 4, 3)
    for changes, text in (
        ({"durations": []}, "the number of durations is 0; it must be 1 to 16"),
        ({"durations": [0]}, "durations has 0 alone"),
        ({"durations": [1, 1]}, r"durations\[0\] and durations\[1\] are both 1"),
        ({"durations": list(range(8))}, r"logits has the shape \(2, 7, 4, 8\); with 8 durations C must be larger"),
        ({"omega": 2.0}, "omega is 2.0; it must be 0 to 1"),
        ({"blank": 5}, "blank is 5; with 5 classes"),
        ({"logits": tokens, "duration_logits": durations[..., :2]}, r"duration_logits has the shape \(2, 7, 4, 2\)"),
        ({"logits": tokens, "duration_logits": durations[:1]}, r"it must be \(2, 7, 4, 3\)"),
        ({"logits": tokens, "duration_logits": durations.double()}, "duration_logits is torch.float64 on cpu"),
    ):
        with pytest.raises(ValueError, match=text):
            tdt(**changes)
    with pytest.raises(TypeError, match="duration_logits is a list"):
        tdt(logits=tokens, duration_logits=[1.0])
    for changes, text in (
        ({"big_blank_durations": [1]}, r"big_blank_durations\[0\] is 1; it must be at least 2"),
        ({"blank": 1}, "blank is 1; it must be 2 to 7"),
        ({"targets": torch.tensor([[1, 2, 5], [4, 4, 1]])}, "sequence 0 hold the blank, 5, at position 2"),
    ):
        with pytest.raises(ValueError, match=text):
            multi_blank(**changes)

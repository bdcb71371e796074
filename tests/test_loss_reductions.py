"""Reductions of the costs, by the library and in torch operations: values, gradients, bad arguments."""

import ctypes
import math
from collections.abc import Callable
from typing import Any

import capi
import loss_case
import pytest
import torch

import prnn

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


FAMILIES = {"CTC": loss_case.ctc_case, "RNNT": loss_case.rnnt_case, "DurationRNNT": loss_case.duration_case}


def given(**fields: Any) -> tuple[loss_case.Reduction, int]:
    """A reduction, and its address for the options."""
    reduction = loss_case.Reduction(**fields)
    return reduction, ctypes.addressof(reduction)


@pytest.mark.parametrize("data_type", [capi.FLOAT, capi.DOUBLE])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("divided", [False, True])
def test_c_api(data_type: int, family: str, divided: bool) -> None:
    case = FAMILIES[family](dataType=data_type)
    gradients = [name for name in case.outputs if name.lower().endswith("gradients")]
    lengths = torch.tensor([2, 0, 5], dtype=torch.int32)
    loss, gradient = (torch.full((1,), value, dtype=case.data["costs"].dtype) for value in (case.UNTOUCHED, 3.0))
    weights = (0.25 / lengths.clamp(min=1) if divided else torch.full((3,), 0.25)).to(loss)
    case.run(f"{family}LossForward")
    costs = case.data["costs"].clone()
    case.run(f"{family}LossBackward", costGradients=3 * weights)
    wanted = {name: case.data[name].clone() for name in gradients}
    case.run(f"{family}LossBackward", costGradients=weights)
    ones = {name: case.data[name].clone() for name in gradients}

    pointer = lengths.data_ptr() if divided else None
    reduction, case.options.reduction = given(scale=0.25, lengths=pointer, loss=loss.data_ptr())
    case.reset()
    case.run(f"{family}LossForward", reserveSpace=None, reserveSizeInBytes=0)
    alone = loss.clone()
    torch.testing.assert_close(alone, (costs * weights).sum(0, keepdim=True))
    loss.fill_(case.UNTOUCHED)
    case.run(f"{family}LossForward")
    assert torch.equal(loss, alone)
    assert torch.equal(case.data["costs"], costs)
    reduction.loss = None  # not read
    case.run(f"{family}LossBackward", costGradients=gradient)
    for name in gradients:
        torch.testing.assert_close(case.data[name], wanted[name])
    case.run(f"{family}LossBackward", costGradients=None)
    for name in gradients:
        torch.testing.assert_close(case.data[name], ones[name])
    reduction.loss = loss.data_ptr()
    case.reset()
    loss.fill_(case.UNTOUCHED)
    case.run(f"{family}Loss")
    assert torch.equal(loss, alone)
    for name in gradients:
        torch.testing.assert_close(case.data[name], ones[name])


@pytest.mark.parametrize("family", FAMILIES)
def test_bad_reductions_of_the_c_api(family: str) -> None:
    case = FAMILIES[family]()
    loss = torch.full((1,), case.UNTOUCHED, dtype=torch.float64)
    for changes, text in (
        ({"scale": math.inf}, "reduction.scale is inf; it must be finite"),
        ({"scale": math.nan}, "reduction.scale is nan; it must be finite"),
        ({"loss": None}, "reduction.loss is NULL"),
    ):
        reduction, case.options.reduction = given(**{"scale": 1.0, "loss": loss.data_ptr(), **changes})
        for name in (f"{family}Loss", f"{family}LossForward"):
            assert case.call(name) == capi.BAD_PARAM
            assert text in capi.message(case.handle.pointer)
            assert case.untouched()
            assert loss.item() == case.UNTOUCHED
        if reduction.loss:
            assert case.call(f"{family}LossBackward") == capi.BAD_PARAM


def test_sums_of_many_costs() -> None:
    """Summed in double: in float, these lose their last digits."""
    torch.manual_seed(0)
    x, batch = torch.randn(1, 700, 3), 700
    targets, lengths = torch.empty(batch, 0, dtype=torch.int32), [1] * batch
    costs = prnn.ctc_loss(x, targets, lengths, [0] * batch, reduction="none")
    loss = prnn.ctc_loss(x, targets, lengths, [0] * batch, reduction="sum")
    assert loss.item() == costs.double().sum().float().item()


def batch_of(name: str, device: str, batch: int = 4) -> tuple[Callable[..., torch.Tensor], torch.Tensor, torch.Tensor]:
    """A loss of logits alone, its logits, and the lengths that its mean divides the costs by."""
    torch.manual_seed(0)
    targets = torch.randint(1, 6, (batch, 3), device=device)
    frames, lengths = (torch.tensor(x[:batch], device=device, dtype=torch.int32) for x in ([9, 7, 8, 9], [3, 0, 2, 1]))
    shape = (9, batch, 7) if name == "ctc" else (batch, 9, 4, 7)
    x = torch.randn(shape, device=device, dtype=torch.float64)
    calls: dict[str, tuple[Callable[..., torch.Tensor], torch.Tensor]] = {
        "ctc": (lambda y, **o: prnn.ctc_loss(y, targets, frames, lengths, **o), lengths),
        "rnnt": (lambda y, **o: prnn.rnnt_loss(y, targets, frames, lengths, 0, **o), torch.ones_like(frames)),
        "rnnt, averaged": (
            lambda y, **o: prnn.rnnt_loss(y, targets, frames, lengths, 0, average_frames=o["reduction"] != "none", **o),
            frames,
        ),
        "tdt": (lambda y, **o: prnn.tdt_loss(y, targets, frames, lengths, 0, [1], **o), torch.ones_like(frames)),
        "multi-blank": (
            lambda y, **o: prnn.multi_blank_rnnt_loss(y, targets - 1, frames, lengths, 6, [], **o),
            torch.ones_like(frames),
        ),
    }
    loss, divided = calls[name]
    return loss, x.requires_grad_(), divided


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", ["ctc", "rnnt", "rnnt, averaged", "tdt", "multi-blank"])
@pytest.mark.parametrize("batch", [4, 1])
def test_reductions_are_those_of_the_costs(name: str, reduction: str, batch: int, device: str) -> None:
    loss, x, divided = batch_of(name, device, batch)
    costs = loss(x, reduction="none")
    if reduction == "mean" or name != "ctc":
        costs = costs / divided.clamp(min=1)
    expected = costs.mean() if reduction == "mean" else costs.sum()
    (wanted,) = torch.autograd.grad(3 * expected, x)
    found = loss(x, reduction=reduction)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(3 * found, x)[0], wanted, rtol=1e-12, atol=1e-14)
    with torch.no_grad():
        assert torch.equal(loss(x, reduction=reduction), found)


@pytest.mark.parametrize("name", ["ctc", "rnnt", "tdt"])
def test_second_derivatives_are_refused(name: str) -> None:
    loss, x, _ = batch_of(name, "cpu")
    (wanted,) = torch.autograd.grad(loss(x, reduction="mean"), x)
    (first,) = torch.autograd.grad(loss(x, reduction="mean"), x, create_graph=True)
    torch.testing.assert_close(first, wanted, rtol=1e-12, atol=1e-14)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        first.sum().backward()


@pytest.mark.parametrize("name", ["ctc", "rnnt"])
def test_compiled_reductions(name: str) -> None:
    loss, x, _ = batch_of(name, "cpu")
    compiled = torch.compile(lambda y: loss(y, reduction="mean"), backend="aot_eager", fullgraph=True)
    found = compiled(x)
    torch.testing.assert_close(found, loss(x, reduction="mean"), rtol=1e-12, atol=0)
    (wanted,) = torch.autograd.grad(loss(x, reduction="mean"), x)
    torch.testing.assert_close(torch.autograd.grad(found, x)[0], wanted, rtol=1e-12, atol=1e-14)


def test_infinite_and_bad_costs() -> None:
    logits = torch.randn(2, 3, 7, requires_grad=True)
    targets, lengths = torch.tensor([[1, 1, 1], [1, 2, 3], [4, 5, 6]]), torch.tensor([3, 1, 0])
    assert prnn.ctc_loss(logits, targets, [2, 2, 2], lengths).item() == math.inf
    loss = prnn.ctc_loss(logits, targets, [2, 2, 2], lengths, zero_infinity=True)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad[:, 0].eq(0).all()
    assert loss.isfinite()

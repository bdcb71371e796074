"""What reductions make of the costs, by the library and in torch operations: values, gradients, bad arguments."""

import math
from collections.abc import Callable
from typing import Any

import capi
import pytest
import torch

import prnn

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
DTYPES = {capi.FLOAT: torch.float32, capi.DOUBLE: torch.float64}


@pytest.mark.parametrize("data_type", DTYPES)
@pytest.mark.parametrize("batch", [1, 5, 700])
@pytest.mark.parametrize("divided", [False, True])
def test_c_api(data_type: int, batch: int, divided: bool) -> None:
    costs = 100 * torch.rand(batch, dtype=DTYPES[data_type])
    lengths = torch.randint(-1, 4, (batch,), dtype=torch.int32)
    loss, gradient, gradients = torch.zeros(1).to(costs), torch.full((1,), 3.0).to(costs), torch.zeros_like(costs)
    handle, pointer = capi.cpu_handle(), lengths.data_ptr() if divided else None
    weights = 0.25 / lengths.clamp(min=1).double() if divided else torch.full((batch,), 0.25, dtype=torch.float64)
    arguments = {"handle": handle.pointer, "dataType": data_type, "batch": batch, "scale": 0.25, "lengths": pointer}
    capi.check("ReduceCosts", **arguments, costs=costs.data_ptr(), loss=loss.data_ptr())
    assert loss.item() == pytest.approx((costs.double() * weights).sum().item(), rel=1e-6)
    capi.check(
        "ReduceCostsBackward",
        **arguments,
        lossGradient=gradient.data_ptr(),
        costGradients=gradients.data_ptr(),
    )
    torch.testing.assert_close(gradients.double(), 3 * weights, rtol=1e-6, atol=0)


def test_bad_arguments_of_the_c_api() -> None:
    number, handle = torch.zeros(1), capi.cpu_handle()
    good: dict[str, Any] = {
        "handle": handle.pointer,
        "dataType": capi.FLOAT,
        "batch": 1,
        "scale": 1.0,
        "lengths": None,
        "costs": number.data_ptr(),
        "loss": number.data_ptr(),
    }
    for changes, text in (
        ({"dataType": 7}, "dataType is 7"),
        ({"batch": 0}, "batch is 0"),
        ({"scale": math.inf}, "scale is inf"),
        ({"costs": None}, "costs is NULL"),
        ({"loss": None}, "loss is NULL"),
    ):
        assert capi.call("ReduceCosts", **{**good, **changes}) == capi.BAD_PARAM
        assert text in capi.message(good["handle"])


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

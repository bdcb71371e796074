"""inplace=True of the losses: gradients where the logits were, and autograd's safety; bounds on lengths, max_frames and
max_target_length. On the CPU, and on a GPU where there is one."""

import pytest
import torch

import prnn

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
FRAMES, SYMBOLS = [7, 5, 6], [3, 3, 1]


def rnnt(x, **options):
    targets = torch.tensor([[1, 2, 3], [2, 2, 1], [3, 0, 0]], device=x.device)
    return prnn.rnnt_loss(x, targets, FRAMES, SYMBOLS, blank=0, **options)


def ctc(x, **options):
    targets = torch.tensor([[1, 2, 3], [2, 2, 1], [3, 0, 0]], device=x.device)
    return prnn.ctc_loss(x, targets, FRAMES, SYMBOLS, **options)


KINDS = {"rnnt": (rnnt, (3, 7, 4, 5)), "ctc": (ctc, (7, 3, 5))}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture(params=DEVICES)
def leaf(request, kind):
    return torch.randn(kind[1], device=request.param, requires_grad=True)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_are_where_the_logits_were(kind, leaf, reduction):
    loss = kind[0]
    (expected,) = torch.autograd.grad(loss(leaf * 3, reduction=reduction).sum(), leaf)
    logits = leaf * 3
    loss(logits, reduction=reduction, inplace=True).sum().backward()
    assert torch.equal(leaf.grad, expected)
    torch.testing.assert_close(logits.detach() * 3, expected)


def test_half_types_and_views(kind, leaf):
    loss, shape = kind
    for make in (lambda y: (y * 2).half(), lambda y: (y * 2).reshape(-1).view(shape), lambda y: (y * 2).mT.mT):
        (expected,) = torch.autograd.grad(loss(make(leaf)), leaf)
        (found,) = torch.autograd.grad(loss(make(leaf), inplace=True), leaf)
        assert torch.equal(found, expected)


def test_whoever_kept_the_logits_is_told(kind, leaf):
    loss = kind[0]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss(leaf.exp(), inplace=True).backward()
    logits = leaf * 2
    both = loss(logits, inplace=True) + loss(logits, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        both.backward()
    once = loss(leaf * 2, inplace=True)
    once.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        once.backward()


def test_leaves_are_refused_where_they_would_be_lost(kind, leaf):
    loss, shape = kind
    with pytest.raises(ValueError, match="is a leaf that requires a gradient"):
        loss(leaf, inplace=True)
    with pytest.raises(ValueError, match="is a view of a leaf that requires a gradient"):
        loss(leaf.view(-1).view(shape), inplace=True)
    before = leaf.detach().clone()
    with torch.no_grad():
        expected = loss(leaf)
        assert torch.equal(loss(leaf, inplace=True), expected)
    assert torch.equal(loss(leaf.detach(), inplace=True), expected)
    assert torch.equal(leaf, before)


def test_compiled_and_twice_differentiated_it_is_not_in_place(kind, leaf):
    loss = kind[0]
    (expected,) = torch.autograd.grad(loss(leaf * 2), leaf)
    compiled = torch.compile(lambda x: loss(x * 2, inplace=True), fullgraph=True, backend="aot_eager")
    assert torch.equal(torch.autograd.grad(compiled(leaf), leaf)[0], expected)
    (gradient,) = torch.autograd.grad(loss(leaf * 2, inplace=True), leaf, create_graph=True)
    assert torch.equal(gradient, expected)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        gradient.sum().backward()


def test_modules_pass_it_on():
    x = torch.randn(2, 4, 3, 5, requires_grad=True)
    logits = x * 1.0
    prnn.RNNTLoss(blank=0, inplace=True)(logits, torch.tensor([[1, 2], [3, 4]]), [4, 3], [2, 1]).backward()
    assert torch.equal(x.grad, logits)
    frames = torch.randn(6, 2, 5, requires_grad=True)
    logits = frames * 1.0
    module = prnn.CTCLoss(inplace=True)
    module(logits, torch.tensor([1, 2, 3]), [6, 5], [2, 1], max_target_length=2).backward()
    assert torch.equal(frames.grad, logits)


@pytest.mark.parametrize("device", DEVICES)
def test_bounds_on_lengths(device):
    x = torch.randn(3, 7, 4, 5, device=device)
    packed = torch.cat([x[n, :t, : u + 1].reshape(-1, 5) for n, (t, u) in enumerate(zip(FRAMES, SYMBOLS, strict=True))])
    targets = torch.tensor([1, 2, 3, 2, 2, 1, 3], device=device)
    frames, symbols = torch.tensor(FRAMES, device=device), torch.tensor(SYMBOLS, device=device)
    expected = rnnt(x, reduction="none")
    for lengths, bounds in (
        ((FRAMES, SYMBOLS), {}),
        ((frames, symbols), {}),
        ((frames, symbols), {"max_frames": 7, "max_target_length": 3}),
        ((frames, symbols), {"max_frames": 1000}),
    ):
        costs = prnn.rnnt_loss(packed.requires_grad_(), targets, *lengths, blank=0, reduction="none", **bounds)
        torch.testing.assert_close(costs.detach(), expected)
        (gradient,) = torch.autograd.grad(costs.sum(), packed)
        torch.testing.assert_close(gradient.sum(1), torch.zeros(len(packed), device=device))
    logits = torch.randn(7, 3, 5, device=device)
    expected = ctc(logits, reduction="none")
    for lengths, bounds in (
        ((FRAMES, SYMBOLS), {}),
        ((frames, symbols), {}),
        ((frames, symbols), {"max_target_length": 3}),
    ):
        costs = prnn.ctc_loss(logits, targets, *lengths, reduction="none", **bounds)
        torch.testing.assert_close(costs, expected)
    short = {"max_frames": 6, "blank": 0, "reduction": "none"}
    if device == "cpu":
        with pytest.raises(ValueError, match=r"logit_lengths\[0\] is 7; it must be 1 to 6"):
            prnn.rnnt_loss(packed, targets, frames, symbols, **short)
    else:
        assert prnn.rnnt_loss(packed, targets, frames, symbols, **short)[0].isnan()


def test_bad_bounds():
    x, targets, packed = torch.randn(2, 4, 3, 5), torch.tensor([[1, 2], [3, 4]]), torch.randn(18, 5)
    for bound, error, text in (
        ({"max_frames": 4}, ValueError, "max_frames is 4; it goes with packed logits"),
        ({"max_target_length": 2}, ValueError, "max_target_length is 2; it goes with targets"),
    ):
        with pytest.raises(error, match=text):
            prnn.rnnt_loss(x, targets, [4, 3], [2, 1], blank=0, **bound)
    for bound, error, text in (
        ({"max_frames": 2.0}, TypeError, "max_frames is 2.0; it must be an int"),
        ({"max_frames": -1}, ValueError, "max_frames is -1; it must be 0 to"),
        ({"max_frames": 0}, ValueError, "max_frames is 0; it must be 1 to"),
        ({"max_target_length": 1}, ValueError, r"target_lengths\[0\] is 2; it must be 0 to 1"),
    ):
        with pytest.raises(error, match=text):
            prnn.rnnt_loss(packed, targets.flatten()[:3], [4, 3], [2, 1], blank=0, **bound)
    with pytest.raises(ValueError, match="max_target_length is 2; it goes with targets"):
        prnn.ctc_loss(torch.randn(6, 2, 5), targets, [6, 5], [2, 1], max_target_length=2)

"""prnn.ctc_loss: against enumeration of all paths, against torch, and in what must not change it."""

import pytest
import torch
import torch.nn.functional as F
from reference import lattice

import prnn
from prnn._ops import ctc as ops
from prnn._ops.ctc import ctc_options

BLANK = 1
# T, V, target: with repeats, none, and more symbols than classes
SMALL = [
    (1, 2, []),
    (1, 3, [0]),
    (3, 3, []),
    (3, 3, [0, 2]),
    (3, 3, [2, 2]),
    (4, 3, [0, 0, 2]),
    (5, 3, [2, 0, 2]),
    (6, 2, [0, 0, 0]),
    (5, 4, [3, 2, 2]),
]


def batch(dtype=torch.float64, frames=30, size=5, classes=9, symbols=8):
    """Logits (T, N, V), targets (N, L), lengths: full, short, empty, with repeats."""
    x = torch.randn(frames, size, classes, dtype=dtype, requires_grad=True)
    targets = torch.randint(1, classes, (size, symbols))
    targets[1, :4] = 3
    input_lengths = torch.tensor([frames, frames - 5, frames - 1, frames, 17])[:size]
    target_lengths = torch.tensor([symbols, 4, 0, 1, symbols - 1])[:size]
    return x, targets, input_lengths, target_lengths


@pytest.mark.parametrize(("frames", "classes", "target"), SMALL)
@pytest.mark.parametrize("from_logits", [True, False])
def test_cost_and_gradient_are_those_of_all_paths(frames, classes, target, from_logits):
    x = torch.randn(frames, classes, dtype=torch.float64, requires_grad=True)
    expected = lattice.ctc_cost(x.log_softmax(1) if from_logits else x, target, BLANK)
    cost = prnn.ctc_loss(
        x, torch.tensor(target, dtype=torch.int64), frames, len(target), BLANK, "sum", from_logits=from_logits
    )
    torch.testing.assert_close(cost, expected, rtol=1e-12, atol=1e-12)
    (gradient,), (expected_gradient,) = (torch.autograd.grad(c, x) for c in (cost, expected))
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("concatenated", [False, True])
@pytest.mark.parametrize("given", ["logits", "log_probs"])
def test_agrees_with_torch(reduction, dtype, concatenated, given):
    x, targets, input_lengths, target_lengths = batch(dtype)
    if concatenated:
        targets = torch.cat([row[:n] for row, n in zip(targets, target_lengths, strict=True)])
    exact = x.detach().double().requires_grad_()  # torch's own float32 is less accurate than the tolerance
    expected = F.ctc_loss(exact.log_softmax(2), targets, input_lengths, target_lengths, 0, reduction)
    mine = x if given == "logits" else x.log_softmax(2)
    loss = prnn.ctc_loss(mine, targets, input_lengths, target_lengths, 0, reduction)
    assert loss.dtype == dtype
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=0)
    weights = torch.randn_like(loss)
    (gradient,) = torch.autograd.grad((loss * weights).sum(), x)
    (expected_gradient,) = torch.autograd.grad((expected * weights.double()).sum(), exact)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("concatenated", [False, True])
def test_costs_alone_are_those_beside_a_gradient(reduction, dtype, concatenated):
    """Bit for bit, also in batches of one, whichever of the integers are int64."""
    for size in (5, 1):
        x, targets, *lengths = batch(dtype)
        x, targets, lengths = x[:, :size], targets[:size], [t[:size] for t in lengths]
        if concatenated:
            targets = torch.cat([row[:length] for row, length in zip(targets, lengths[1], strict=True)])
        expected = prnn.ctc_loss(x, targets, *lengths, reduction=reduction)
        for wide in range(8):
            integers = (t if wide >> i & 1 else t.int() for i, t in enumerate((targets, *lengths)))
            assert torch.equal(prnn.ctc_loss(x.detach(), *integers, reduction=reduction), expected)
    every_other = torch.stack([targets, targets - targets], -1)[..., 0]
    assert not every_other.is_contiguous()
    assert torch.equal(prnn.ctc_loss(x.detach(), every_other, *lengths, reduction=reduction), expected)
    with pytest.raises(ValueError, match=r"^input_lengths\[0\] is 2147483647"):
        prnn.ctc_loss(x.detach(), targets, lengths[0] + 2**32, lengths[1])


def test_gradient_with_respect_to_log_probs_is_torchs_when_they_are_taken_as_logits():
    x, *rest = batch()
    log_probs = x.detach().log_softmax(2).requires_grad_()
    gradient, expected = (torch.autograd.grad(f(log_probs, *rest), log_probs)[0] for f in (prnn.ctc_loss, F.ctc_loss))
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("from_logits", [True, False])
def test_gradcheck(from_logits):
    x, targets, input_lengths, target_lengths = batch(frames=6, size=4, classes=4, symbols=3)
    input_lengths, target_lengths = torch.tensor([6, 5, 4, 1]), torch.tensor([3, 2, 0, 1])
    assert torch.autograd.gradcheck(
        lambda x: prnn.ctc_loss(x, targets, input_lengths, target_lengths, reduction="none", from_logits=from_logits),
        x,
    )


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_sequences_without_a_path(zero_infinity):
    x, targets, _, _ = batch()
    targets[3] = 5  # repeats want a blank in between: 15 frames for 8 symbols
    input_lengths, target_lengths = torch.tensor([7, 30, 0, 14, 0]), torch.tensor([8, 8, 1, 8, 0])
    loss = prnn.ctc_loss(x, targets, input_lengths, target_lengths, 0, "none", zero_infinity)
    expected = F.ctc_loss(x.log_softmax(2), targets, input_lengths, target_lengths, 0, "none", zero_infinity)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert loss[0] == (0 if zero_infinity else float("inf"))
    assert loss[4] == 0
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    assert not gradient[:, [0, 2, 3, 4]].any()
    assert gradient[:, 1].any()
    assert torch.isfinite(gradient).all()


def test_float32_is_accurate_on_long_sequences():
    x = torch.randn(2000, 2, 40, requires_grad=True)
    targets, lengths, target_lengths = torch.randint(1, 40, (2, 400)), [2000, 1700], [400, 350]
    x64 = x.detach().double().requires_grad_()
    loss, exact = (prnn.ctc_loss(v, targets, lengths, target_lengths, reduction="none") for v in (x, x64))
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=0)
    (gradient,), (exact_gradient,) = (torch.autograd.grad(c.sum(), v) for c, v in ((loss, x), (exact, x64)))
    assert (gradient - exact_gradient).abs().max() < 1e-6 * exact_gradient.abs().max()


def test_long_targets_and_short_alphabets():
    x = torch.randn(3100, 1, 3, dtype=torch.float64)
    targets = torch.arange(1500).remainder(2).add(1).unsqueeze(0)
    expected = F.ctc_loss(x.log_softmax(2), targets, [3100], [1500], reduction="sum")
    torch.testing.assert_close(prnn.ctc_loss(x, targets, [3100], [1500], reduction="sum"), expected)


def test_padding_does_not_matter():
    x, targets, input_lengths, target_lengths = batch()
    loss = prnn.ctc_loss(x, targets, input_lengths, target_lengths, reduction="none")
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    spoiled, spoiled_targets = x.detach().clone(), targets.clone()
    for n, (t, u) in enumerate(zip(input_lengths, target_lengths, strict=True)):
        spoiled[t:, n] = float("nan")
        spoiled_targets[n, u:] = -(2**40)
    spoiled.requires_grad_()
    again = prnn.ctc_loss(spoiled, spoiled_targets, input_lengths, target_lengths, reduction="none")
    (gradient_again,) = torch.autograd.grad(again.sum(), spoiled)
    assert torch.equal(loss, again)
    assert torch.equal(gradient, gradient_again)
    for n, t in enumerate(input_lengths):
        assert not gradient[t:, n].any()


def test_order_in_the_batch_does_not_matter():
    x, *rest = batch()
    order = torch.tensor([3, 0, 4, 2, 1])
    loss = prnn.ctc_loss(x, *rest, reduction="none")
    assert torch.equal(loss[order], prnn.ctc_loss(x[:, order], *(v[order] for v in rest), reduction="none"))


def test_strides_do_not_matter():
    x, *rest = batch()
    loss = prnn.ctc_loss(x, *rest)
    (gradient,) = torch.autograd.grad(loss, x)
    for same in (
        x.detach().transpose(0, 1).contiguous().transpose(0, 1),
        x.detach().permute(2, 0, 1).contiguous().permute(1, 2, 0),
        torch.cat((x, x), 2).detach()[:, :, : x.shape[2]],
    ):
        same.requires_grad_()
        again = prnn.ctc_loss(same, *rest)
        assert torch.equal(loss, again)
        assert torch.equal(gradient, torch.autograd.grad(again, same)[0])


@pytest.mark.parametrize("wants_grad", [False, True])
def test_logits_in_memory_of_their_negatives(wants_grad):
    x, *rest = batch()
    expected = prnn.ctc_loss(x, *rest, blank=BLANK - 1)
    negated = torch._neg_view(-x.detach()).requires_grad_(wants_grad)
    found = prnn.ctc_loss(negated, *rest, blank=BLANK - 1)
    torch.testing.assert_close(found, expected.detach() if not wants_grad else expected)
    if wants_grad:
        torch.testing.assert_close(*(torch.autograd.grad(*pair)[0] for pair in ((found, negated), (expected, x))))


def test_gradient_adds_up_to_zero_over_the_classes():
    x, *rest = batch()
    (gradient,) = torch.autograd.grad(prnn.ctc_loss(x, *rest), x)
    torch.testing.assert_close(gradient.sum(2), torch.zeros_like(gradient[..., 0]), rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_finite(dtype):
    x, *rest = batch(dtype)
    x = (x.detach().sign() * 1e4).requires_grad_()
    loss = prnn.ctc_loss(x, *rest, reduction="none")
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(gradient).all()
    exact = F.ctc_loss(x.double().log_softmax(2), *rest, reduction="none")
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=1e-6)


def test_forbidden_classes():
    """-inf logits and log-probabilities: other paths count as before, and none at all is infinite."""
    x, targets, input_lengths, target_lengths = batch()
    x = x.detach()
    x[3, 0, 2] = float("-inf")
    x[:, 3, targets[3, 0]] = float("-inf")
    for from_logits in (True, False):
        given = x.clone().requires_grad_()
        loss = prnn.ctc_loss(given, targets, input_lengths, target_lengths, reduction="none", from_logits=from_logits)
        log_probs = x.log_softmax(2) if from_logits else x
        torch.testing.assert_close(
            loss, F.ctc_loss(log_probs, targets, input_lengths, target_lengths, reduction="none")
        )
        assert loss[3] == float("inf")
        (gradient,) = torch.autograd.grad(loss.sum(), given)
        assert torch.isfinite(gradient).all()


def test_nan_stays_in_its_sequence():
    x, *rest = batch()
    clean = prnn.ctc_loss(x, *rest, reduction="none")
    (clean_gradient,) = torch.autograd.grad(clean.sum(), x)
    spoiled = x.detach().clone()
    spoiled[4, 1, 3] = float("nan")
    spoiled.requires_grad_()
    loss = prnn.ctc_loss(spoiled, *rest, reduction="none")
    (gradient,) = torch.autograd.grad(loss.sum(), spoiled)
    others = [0, 2, 3, 4]
    assert loss[1].isnan()
    assert gradient[: rest[1][1], 1].isnan().all()
    assert torch.equal(loss[others], clean[others])
    assert torch.equal(gradient[:, others], clean_gradient[:, others])


def test_bitwise_the_same_for_any_number_of_threads():
    x, *rest = batch(torch.float32, frames=60)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            loss = prnn.ctc_loss(x, *rest, reduction="none")
            results.append((loss, torch.autograd.grad(loss.sum(), x)[0]))
    finally:
        torch.set_num_threads(before)
    for loss, gradient in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_single_sequence_and_plain_numbers():
    x, targets, _, _ = batch()
    single = prnn.ctc_loss(x[:, 0], targets[0], 30, torch.tensor(8))
    whole = prnn.ctc_loss(x[:, :1], targets[:1], [30], (8,), reduction="none")
    assert single.shape == ()
    assert single == whole[0] / 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32(dtype):
    x, *rest = batch(torch.float32)
    half = x.detach().to(dtype).requires_grad_()
    wide = half.detach().float().requires_grad_()
    loss, expected = prnn.ctc_loss(half, *rest), prnn.ctc_loss(wide, *rest)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    assert torch.equal(torch.autograd.grad(loss, half)[0], torch.autograd.grad(expected, wide)[0].to(dtype))
    linear = torch.nn.Linear(9, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert prnn.ctc_loss(linear(x), *rest).dtype == torch.float32


def test_module_has_torchs_signature():
    x, *rest = batch()
    mine = prnn.CTCLoss(0, "sum", True)
    assert torch.allclose(mine(x, *rest), torch.nn.CTCLoss(0, "sum", True)(x.log_softmax(2), *rest))
    assert "reduction='sum'" in repr(mine)


def test_operators_are_registered_completely():
    x, targets, _, _ = batch(torch.float32, frames=9, symbols=3)
    input_lengths = torch.tensor([9, 8, 7, 9, 9])
    args = (targets.int(), input_lengths.int(), torch.tensor([3, 2, 0, 1, 3]).int())
    numbers = (-1, *ctc_options())
    torch.library.opcheck(ops.ctc_loss, (x, *args, *numbers, True))
    torch.library.opcheck(ops.ctc_loss, (x.detach(), *args, -1, *ctc_options(zero_infinity=True), False))
    _, reserve = ops.ctc_loss(x.detach(), *args, *numbers, True)
    torch.library.opcheck(ops.ctc_loss_backward, (torch.ones(5), x.detach(), *args, reserve, *numbers))


@pytest.mark.parametrize("concatenated", [False, True])
def test_compiles_without_graph_breaks(concatenated):
    x, targets, input_lengths, target_lengths = batch()
    if concatenated:
        targets = torch.cat([row[:n] for row, n in zip(targets, target_lengths, strict=True)])
    compiled = torch.compile(prnn.ctc_loss, fullgraph=True, backend="aot_eager")
    loss, expected = (f(x * 2, targets, input_lengths, target_lengths) for f in (compiled, prnn.ctc_loss))
    assert torch.equal(loss, expected)
    assert torch.equal(*(torch.autograd.grad(c, x)[0] for c in (loss, expected)))


def test_backward_can_be_repeated_and_not_differentiated():
    x, *rest = batch()
    loss = prnn.ctc_loss(x, *rest)
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="ctc_loss can be differentiated once"):
        gradient.sum().backward()

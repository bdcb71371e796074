"""prnn.rnnt_loss: against enumeration of all paths, its layouts against each other, and what must not change it."""

import pytest
import torch
from reference import lattice

import prnn
from prnn._ops import rnnt as ops
from prnn._ops.rnnt import rnnt_options

TYPES = ["regular", "modified", "constrained", "final_blank"]
BLANK = 1
# T, V, target
SMALL = [(1, 3, []), (1, 3, [2]), (3, 2, []), (4, 3, [0]), (2, 4, [3, 0]), (4, 4, [0, 0, 2]), (3, 3, [2, 0, 2])]


def batch(dtype=torch.float64, frames=9, size=4, symbols=5, classes=7):
    """Logits (N, T, U + 1, V), targets (N, U), lengths: full, short, no targets, a single frame."""
    x = torch.randn(size, frames, symbols + 1, classes, dtype=dtype, requires_grad=True)
    targets = torch.randint(1, classes, (size, symbols))
    return x, targets, torch.tensor([frames, frames - 3, frames - 1, 1]), torch.tensor([symbols, 3, 0, 1])


def loss_and_gradient(x, *args, weights=None, **options):
    costs = prnn.rnnt_loss(x, *args, **{"blank": 0, "reduction": "none", **options})
    weighted = costs if weights is None else costs * weights
    return costs, torch.autograd.grad(weighted[torch.isfinite(weighted)].sum(), x)[0]


def pack(x, targets, frames, symbols):
    """The packed forms of padded logits and targets."""
    cells = [x[n, :t, : u + 1].reshape(-1, x.shape[-1]) for n, (t, u) in enumerate(zip(frames, symbols, strict=True))]
    return torch.cat(cells), torch.cat([row[:u] for row, u in zip(targets, symbols, strict=True)])


def gather(log_probs, targets, blank=0):
    """(N, T, U + 1, 2), log-probabilities of the blank and of the next target."""
    index = torch.full((*log_probs.shape[:3], 2), blank)
    index[:, :, :-1, 1] = targets[:, None]
    return log_probs.gather(3, index)


@pytest.mark.parametrize(("frames", "classes", "target"), SMALL)
@pytest.mark.parametrize("rnnt_type", TYPES)
@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("delay_penalty", [0.0, 0.7])
def test_cost_and_gradient_are_those_of_all_paths(frames, classes, target, rnnt_type, from_logits, delay_penalty):
    x = torch.randn(frames, len(target) + 1, classes, dtype=torch.float64, requires_grad=True)
    expected = lattice.rnnt_cost(
        x.log_softmax(2) if from_logits else x, target, BLANK, rnnt_type, delay_penalty=delay_penalty
    )
    cost = prnn.rnnt_loss(
        x.unsqueeze(0),
        torch.tensor([target], dtype=torch.int64),
        [frames],
        [len(target)],
        BLANK,
        fused_log_softmax=from_logits,
        rnnt_type=rnnt_type,
        delay_penalty=delay_penalty,
    )
    torch.testing.assert_close(cost, expected, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(cost, x)
    if torch.isinf(expected):
        assert not gradient.any()
    else:
        torch.testing.assert_close(gradient, torch.autograd.grad(expected, x)[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rnnt_type", TYPES)
@pytest.mark.parametrize("kind", ["logits", "log_probs", "gathered", "packed"])
def test_gradcheck(rnnt_type, kind):
    x, targets, frames, symbols = batch(frames=6, symbols=3, classes=4)
    frames[1::2] += rnnt_type == "final_blank"  # as many frames as symbols have no path there
    options = {"blank": 0, "reduction": "none", "rnnt_type": rnnt_type, "delay_penalty": 0.3}
    if kind == "log_probs":
        options["fused_log_softmax"] = False
    elif kind == "gathered":
        x, options["gathered"] = gather(x, targets).detach().requires_grad_(), True
    elif kind == "packed":
        x, targets = pack(x, targets, frames, symbols)
        x = x.detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: prnn.rnnt_loss(x, targets, frames, symbols, **options), x)


@pytest.mark.parametrize("rnnt_type", TYPES)
@pytest.mark.parametrize("flat_targets", [True, False])
def test_packed_is_padded(rnnt_type, flat_targets):
    x, targets, frames, symbols = batch()
    options = {"rnnt_type": rnnt_type, "clamp": 0.2, "fastemit_lambda": 0.1, "delay_penalty": 0.2}
    costs, gradient = loss_and_gradient(x, targets, frames, symbols, **options)
    packed, flat = pack(x.detach(), targets, frames, symbols)
    packed.requires_grad_()
    packed_costs, packed_gradient = loss_and_gradient(
        packed, flat if flat_targets else targets, frames, symbols, **options
    )
    assert torch.equal(costs, packed_costs)
    assert torch.equal(pack(gradient, targets, frames, symbols)[0], packed_gradient)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("average_frames", [False, True])
@pytest.mark.parametrize("layout", ["padded", "packed", "concatenated"])
def test_costs_alone_are_those_beside_a_gradient(reduction, average_frames, layout):
    """Bit for bit, also in batches of one, whichever of the integers are int64."""
    options = {"blank": 0, "reduction": reduction, "average_frames": average_frames}
    for size in (3, 1):
        x, targets, *lengths = batch()
        x, targets, lengths = x[:size], targets[:size], [t[:size] for t in lengths]
        if layout != "padded":
            x, flat = pack(x, targets, *lengths)
            targets = flat if layout == "concatenated" else targets
        expected = prnn.rnnt_loss(x, targets, *lengths, **options)
        for wide in range(8):
            integers = (t.long() if wide >> i & 1 else t.int() for i, t in enumerate((targets, *lengths)))
            assert torch.equal(prnn.rnnt_loss(x.detach(), *integers, **options), expected)
    bound = {} if layout == "padded" else {"max_frames": 2**31 - 1}
    with pytest.raises(ValueError, match=r"^logit_lengths\[0\] is 2147483647"):
        prnn.rnnt_loss(x.detach(), targets, lengths[0] + 2**32, lengths[1], **options, **bound)


def test_occupation_of_integers_of_any_type():
    x, targets, frames, symbols = batch()
    expected = prnn.rnnt_loss(x.detach(), targets.int(), frames.int(), symbols.int(), 0, return_grad=True)
    found = prnn.rnnt_loss(x.detach(), targets.long(), frames.long(), symbols.int(), 0, return_grad=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("rnnt_type", TYPES)
@pytest.mark.parametrize("fastemit_lambda", [0.0, 0.4])
def test_gathered_is_full(rnnt_type, fastemit_lambda):
    x, targets, frames, symbols = batch()
    options = {"rnnt_type": rnnt_type, "fastemit_lambda": fastemit_lambda}
    full, full_gradient = loss_and_gradient(x, targets, frames, symbols, **options)
    for given_targets in (targets, None):
        costs = prnn.rnnt_loss(
            gather(x.log_softmax(3), targets),
            given_targets,
            frames,
            symbols,
            reduction="none",
            gathered=True,
            **options,
        )
        torch.testing.assert_close(costs, full, rtol=1e-13, atol=0)
        (gradient,) = torch.autograd.grad(costs.sum(), x)
        torch.testing.assert_close(gradient, full_gradient, rtol=1e-10, atol=1e-14)


def test_log_probs_are_logits_that_are_normalised():
    x, *rest = batch()
    costs, gradient = loss_and_gradient(x, *rest)
    again = prnn.rnnt_loss(x.log_softmax(3), *rest, blank=0, reduction="none", fused_log_softmax=False)
    torch.testing.assert_close(again, costs, rtol=1e-13, atol=0)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), x)[0], gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("rnnt_type", TYPES)
def test_fastemit_scales_the_gradients_of_labels(rnnt_type):
    """The cost stays; d cost / d log-probability is (1 + lambda) times as large for labels, the same for blanks."""
    x, targets, frames, symbols = batch()
    gathered = gather(x.log_softmax(3), targets).detach().requires_grad_()
    plain, emit = (
        loss_and_gradient(gathered, targets, frames, symbols, gathered=True, fastemit_lambda=value, rnnt_type=rnnt_type)
        for value in (0.0, 0.25)
    )
    assert torch.equal(plain[0], emit[0])
    torch.testing.assert_close(emit[1], plain[1] * torch.tensor([1.0, 1.25], dtype=torch.float64), rtol=1e-13, atol=0)


def test_clamp_limits_each_element_before_the_reduction_scales_it():
    x, *rest = batch()
    weights = torch.tensor([1.0, 3.0, 0.5, 2.0], dtype=torch.float64)
    costs, gradient = loss_and_gradient(x, *rest)
    clamped_costs, clamped = loss_and_gradient(x, *rest, clamp=0.05, weights=weights)
    assert torch.equal(costs, clamped_costs)
    torch.testing.assert_close(clamped, gradient.clamp(-0.05, 0.05) * weights[:, None, None, None], rtol=1e-12, atol=0)


@pytest.mark.parametrize("average_frames", [False, True])
def test_reductions(average_frames):
    x, targets, frames, symbols = batch()
    costs = prnn.rnnt_loss(x, targets, frames, symbols, 0, reduction="none")
    if average_frames:
        costs = costs / frames
    for reduction, expected in (("none", costs), ("sum", costs.sum()), ("mean", costs.mean())):
        loss = prnn.rnnt_loss(x, targets, frames, symbols, 0, reduction=reduction, average_frames=average_frames)
        torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0)
    (gradient,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(gradient, torch.autograd.grad(costs.mean(), x)[0], rtol=1e-12, atol=1e-16)


def test_blank_is_the_last_by_default():
    x, targets, frames, symbols = batch()
    moved = torch.cat((x[..., 1:], x[..., :1]), 3)
    torch.testing.assert_close(
        prnn.rnnt_loss(moved, targets - 1, frames, symbols), prnn.rnnt_loss(x, targets, frames, symbols, blank=0)
    )


@pytest.mark.parametrize("rnnt_type", TYPES)
def test_occupation(rnnt_type):
    """return_grad: shares of the arcs, minus the gradients with respect to the gathered log-probabilities."""
    x, targets, frames, symbols = batch()
    frames[1::2] += rnnt_type == "final_blank"  # as many frames as symbols have no path there
    options = {"rnnt_type": rnnt_type, "delay_penalty": 0.2, "reduction": "none"}
    loss, (px_grad, py_grad) = prnn.rnnt_loss(x, targets, frames, symbols, 0, return_grad=True, **options)
    assert torch.equal(loss, prnn.rnnt_loss(x, targets, frames, symbols, 0, **options))
    assert px_grad.shape == (4, 5, 10 if rnnt_type == "regular" else 9)
    assert not px_grad.requires_grad
    gathered = gather(x.log_softmax(3), targets).detach().requires_grad_()
    _, shares = loss_and_gradient(gathered, targets, frames, symbols, gathered=True, **options)
    torch.testing.assert_close(px_grad[:, :, :9], -shares[:, :, :-1, 1].transpose(1, 2), rtol=1e-10, atol=1e-12)
    blanks = -shares[..., 0].transpose(1, 2)
    if rnnt_type == "constrained":  # where the blank after a label is counted with the label
        blanks[:, 1:] -= px_grad
    torch.testing.assert_close(py_grad, blanks, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(px_grad.sum((1, 2)), symbols.double())  # every path emits each target once


def test_float32_is_accurate_on_large_lattices():
    x = torch.randn(1, 2000, 401, 3, requires_grad=True)
    targets = torch.randint(1, 3, (1, 400))
    x64 = x.detach().double().requires_grad_()
    (cost, gradient), (exact, exact_gradient) = (loss_and_gradient(v, targets, [2000], [400]) for v in (x, x64))
    torch.testing.assert_close(cost.double(), exact, rtol=1e-6, atol=0)
    assert (gradient - exact_gradient).abs().max() < 1e-6 * exact_gradient.abs().max()


def test_padding_does_not_matter():
    x, targets, frames, symbols = batch()
    costs, gradient = loss_and_gradient(x, targets, frames, symbols)
    spoiled, spoiled_targets = x.detach().clone(), targets.clone()
    real = torch.zeros(x.shape[:3], dtype=torch.bool)
    for n, (t, u) in enumerate(zip(frames, symbols, strict=True)):
        real[n, :t, : u + 1] = True
        spoiled_targets[n, u:] = 2**40
    spoiled[~real] = float("nan")
    spoiled.requires_grad_()
    again, gradient_again = loss_and_gradient(spoiled, spoiled_targets, frames, symbols)
    assert torch.equal(costs, again)
    assert torch.equal(gradient, gradient_again)
    assert not gradient[~real].any()


def test_order_in_the_batch_does_not_matter():
    x, *rest = batch()
    order = torch.tensor([2, 0, 3, 1])
    costs, gradient = loss_and_gradient(x, *rest)
    moved = x.detach()[order].requires_grad_()
    again, gradient_again = loss_and_gradient(moved, *(v[order] for v in rest))
    assert torch.equal(costs[order], again)
    assert torch.equal(gradient[order], gradient_again)


def test_gradient_adds_up_to_zero_over_the_classes():
    x, *rest = batch()
    for rnnt_type in TYPES:
        _, gradient = loss_and_gradient(x, *rest, rnnt_type=rnnt_type, fastemit_lambda=0.1)
        torch.testing.assert_close(gradient.sum(3), torch.zeros_like(gradient[..., 0]), rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_finite(dtype):
    x, targets, frames, symbols = batch(dtype)
    x = (x.detach().sign() * 1e4).requires_grad_()
    costs, gradient = loss_and_gradient(x, targets, frames, symbols)
    assert torch.isfinite(costs).all()
    assert torch.isfinite(gradient).all()
    log_probs = x.detach().double().log_softmax(3)
    exact = torch.stack(
        [
            lattice.rnnt_cost(log_probs[n, :t, : u + 1], targets[n, :u].tolist(), 0)
            for n, (t, u) in enumerate(zip(frames.tolist(), symbols.tolist(), strict=True))
        ]
    )
    torch.testing.assert_close(costs.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_sequences_without_a_path(zero_infinity):
    x, targets, frames, symbols = batch()
    symbols[3] = 2  # two labels in a single frame
    costs, gradient = loss_and_gradient(x, targets, frames, symbols, rnnt_type="modified", zero_infinity=zero_infinity)
    assert costs[3] == (0 if zero_infinity else float("inf"))
    assert torch.isfinite(costs[:3]).all()
    assert not gradient[3].any()
    # A forbidden symbol gives the same costs.
    log_probs = x.detach().log_softmax(3)
    log_probs[1, :, 2, targets[1, 2]] = float("-inf")
    log_probs[0, 2, 1, 0] = float("-inf")
    log_probs.requires_grad_()
    costs, gradient = loss_and_gradient(
        log_probs, targets, frames, symbols, fused_log_softmax=False, zero_infinity=zero_infinity
    )
    assert costs[1] == (0 if zero_infinity else float("inf"))
    assert torch.isfinite(costs[0])
    assert torch.isfinite(gradient).all()
    assert not gradient[1].any()


def test_nan_stays_in_its_sequence():
    x, targets, frames, symbols = batch()
    costs, gradient = loss_and_gradient(x, targets, frames, symbols)
    spoiled = x.detach().clone()
    spoiled[1, 2, 1, 3] = float("nan")
    spoiled.requires_grad_()
    again = prnn.rnnt_loss(spoiled, targets, frames, symbols, blank=0, reduction="none")
    (gradient_again,) = torch.autograd.grad(again.sum(), spoiled)
    others = [0, 2, 3]
    assert again[1].isnan()
    assert gradient_again[1, : frames[1], : symbols[1] + 1].isnan().all()
    assert torch.equal(costs[others], again[others])
    assert torch.equal(gradient[others], gradient_again[others])


def test_bitwise_the_same_for_any_number_of_threads():
    x, *rest = batch(torch.float32)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(loss_and_gradient(x, *rest))
    finally:
        torch.set_num_threads(before)
    for costs, gradient in results[1:]:
        assert torch.equal(costs, results[0][0])
        assert torch.equal(gradient, results[0][1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32(dtype):
    x, *rest = batch(torch.float32)
    half = x.detach().to(dtype).requires_grad_()
    wide = half.detach().float().requires_grad_()
    (costs, gradient), (expected, expected_gradient) = (loss_and_gradient(v, *rest) for v in (half, wide))
    assert costs.dtype == torch.float32
    assert torch.equal(costs, expected)
    assert torch.equal(gradient, expected_gradient.to(dtype))


def test_strides_do_not_matter():
    x, *rest = batch()
    costs, gradient = loss_and_gradient(x, *rest)
    turned = x.detach().permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0).requires_grad_()
    again, gradient_again = loss_and_gradient(turned, *rest)
    assert torch.equal(costs, again)
    assert torch.equal(gradient, gradient_again)


def test_module_has_torchaudios_signature():
    x, *rest = batch()
    module = prnn.RNNTLoss(0, 0.1, "sum", True, fastemit_lambda=0.1)
    expected = prnn.rnnt_loss(x, *rest, 0, 0.1, "sum", True, fastemit_lambda=0.1)
    assert torch.equal(module(x, *rest), expected)
    assert "reduction='sum'" in repr(module)


def test_operators_are_registered_completely():
    x, targets, frames, symbols = batch(torch.float32)
    args = (targets.int(), frames.int(), symbols.int(), None)
    numbers = (-1, -1, *rnnt_options(fastemit_lambda=0.1, clamp=0.2, delay_penalty=0.3))
    torch.library.opcheck(ops.rnnt_loss, (x, *args, *numbers, True))
    _, reserve = ops.rnnt_loss(x.detach(), *args, *numbers, True)
    torch.library.opcheck(ops.rnnt_loss_backward, (torch.ones(4), x.detach(), *args, reserve, *numbers))


@pytest.mark.parametrize("option", ["delay_penalty", "fastemit_lambda", "blank_targets"])
def test_operators_name_their_options_as_python_does(option):
    """libprnn refuses what prnn.rnnt_loss refuses before, when the operator is called with it."""
    x, targets, frames, symbols = batch(torch.float32)
    bad = {"delay_penalty": float("inf"), "fastemit_lambda": -1.0, "blank_targets": False}
    targets[0, 0] = 0
    numbers = (-1, -1, *rnnt_options(**{option: bad[option]}))
    message = f"{option} is" if option != "blank_targets" else "targets of sequence 0 hold the blank, 0"
    with pytest.raises(ValueError, match=message):
        ops.rnnt_loss(x.detach(), targets.int(), frames.int(), symbols.int(), None, *numbers, True)


@pytest.mark.parametrize("packed", [False, True])
def test_compiles_without_graph_breaks(packed):
    x, targets, frames, symbols = batch()
    given = x.detach()
    if packed:
        given, targets = pack(given, targets, frames, symbols)
    given = given.clone().requires_grad_()
    compiled = torch.compile(prnn.rnnt_loss, fullgraph=True, backend="aot_eager")
    loss, expected = (f(given * 2, targets, frames, symbols, blank=0) for f in (compiled, prnn.rnnt_loss))
    assert torch.equal(loss, expected)
    assert torch.equal(*(torch.autograd.grad(c, given)[0] for c in (loss, expected)))


def test_backward_can_be_repeated_and_not_differentiated():
    x, *rest = batch()
    loss = prnn.rnnt_loss(x, *rest, blank=0)
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="rnnt_loss can be differentiated once"):
        gradient.sum().backward()

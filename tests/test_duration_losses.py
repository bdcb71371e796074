"""prnn.tdt_loss and prnn.multi_blank_rnnt_loss: against enumeration of all paths and a plain recursion, on the CPU."""

import pytest
import torch
from reference import durations as reference

import prnn
from prnn import _C
from prnn._ops import duration as ops
from prnn._ops.duration import duration_options

INF = float("inf")


class Tdt:
    """Logits with their durations behind them; the blank in the middle of the tokens."""

    def __init__(self, durations=(0, 1, 2, 3, 4), classes=6, blank=2, sigma=0.05, omega=0.0):
        self.durations, self.classes, self.blank = list(durations), classes, blank
        self.sigma, self.omega = sigma, omega
        self.width = classes + len(durations)
        self.symbols = [k for k in range(classes) if k != blank]

    def loss(self, x, *args, reduction="none", **options):
        given = {"sigma": self.sigma, "omega": self.omega, **options}
        return prnn.tdt_loss(x, *args, self.blank, self.durations, reduction, **given)

    def cost(self, x, target, cost=reference.recursive_cost):
        tokens, durations = x.split([self.classes, len(self.durations)], -1)
        value = torch.zeros((), dtype=x.dtype)
        if self.omega < 1:
            arcs = reference.tdt_arcs(tokens, durations, target, self.blank, self.durations, self.sigma)
            value = value + (1 - self.omega) * cost(arcs)
        if self.omega > 0:
            value = value + self.omega * cost(reference.rnnt_arcs(tokens, target, self.blank))
        return value

    def __repr__(self):
        return f"tdt{self.durations}s{self.sigma}o{self.omega}"


class MultiBlank:
    """The big blanks before the blank, symbols on both sides."""

    def __init__(self, big=(2, 4), classes=8, blank=4, sigma=0.05):
        self.big, self.classes, self.blank, self.sigma = list(big), classes, blank, sigma
        self.width = classes
        self.symbols = [k for k in range(classes) if not blank - len(big) <= k <= blank]

    def loss(self, x, *args, reduction="none", **options):
        return prnn.multi_blank_rnnt_loss(x, *args, self.blank, self.big, reduction, **{"sigma": self.sigma, **options})

    def cost(self, x, target, cost=reference.recursive_cost):
        return cost(reference.multi_blank_arcs(x, target, self.blank, self.big, self.sigma))

    def __repr__(self):
        return f"multi_blank{self.big}s{self.sigma}"


KINDS = [
    Tdt(),
    Tdt((1, 0), blank=0, sigma=0.0),
    Tdt((3, 1, 2), blank=5),  # no 0: at most one symbol a frame
    Tdt((0, 2), sigma=0.3),  # odd lengths have no path
    Tdt((0, 1, 2, 7), omega=0.3),
    Tdt((0, 1, 2), omega=1.0),
    MultiBlank(),
    MultiBlank((5, 2, 3), blank=7, classes=8),
    MultiBlank((), blank=0, sigma=0.0),
]
SMALL = [(1, 0), (1, 1), (2, 2), (3, 0), (4, 1), (4, 3), (5, 2)]  # T, U
every_kind = pytest.mark.parametrize("kind", KINDS, ids=repr)
both_losses = pytest.mark.parametrize("kind", [KINDS[0], KINDS[4], KINDS[6]], ids=repr)


def targets_of(kind, *shape):
    return torch.tensor(kind.symbols)[torch.randint(len(kind.symbols), shape)]


def batch(kind, dtype=torch.float64, frames=9, symbols=5):
    """Logits (N, T, U + 1, C), targets (N, U), lengths: full, short, no targets, a single frame, two."""
    x = (2 * torch.randn(5, frames, symbols + 1, kind.width, dtype=dtype)).requires_grad_()
    lengths = torch.tensor([frames, frames - 3, frames - 1, 1, 2]), torch.tensor([symbols, 3, 0, 1, 2])
    return x, targets_of(kind, 5, symbols), *lengths


def loss_and_gradient(kind, x, *args, weights=None, **options):
    costs = kind.loss(x, *args, **options)
    weighted = costs if weights is None else costs * weights
    return costs, torch.autograd.grad(weighted[torch.isfinite(weighted)].sum(), x)[0]


def reference_costs(kind, x, targets, frames, symbols):
    each = zip(x, targets.tolist(), frames.tolist(), symbols.tolist(), strict=True)
    return torch.stack([kind.cost(logits[:t, : u + 1], target[:u]) for logits, target, t, u in each])


@every_kind
@pytest.mark.parametrize(("frames", "symbols"), SMALL)
def test_cost_and_gradient_are_those_of_all_paths(kind, frames, symbols):
    x = torch.randn(frames, symbols + 1, kind.width, dtype=torch.float64, requires_grad=True)
    targets = targets_of(kind, 1, symbols)
    expected = kind.cost(x, targets[0].tolist(), reference.enumerated_cost)
    cost = kind.loss(x.unsqueeze(0), targets, [frames], [symbols])[0]
    torch.testing.assert_close(cost, expected, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(cost, x)
    if torch.isinf(expected):
        assert not gradient.any()
    else:
        torch.testing.assert_close(gradient, torch.autograd.grad(expected, x)[0], rtol=1e-10, atol=1e-12)


@every_kind
def test_recursion_of_a_larger_batch(kind):
    x, targets, frames, symbols = batch(kind, frames=23, symbols=9)
    costs, gradient = loss_and_gradient(kind, x, targets, frames, symbols)
    expected = reference_costs(kind, x, targets, frames, symbols)
    torch.testing.assert_close(costs, expected, rtol=1e-12, atol=1e-12)
    (wanted,) = torch.autograd.grad(expected[torch.isfinite(expected)].sum(), x)
    torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-12)


@every_kind
def test_gradcheck(kind):
    given = batch(kind, frames=6, symbols=3)
    real = torch.isfinite(kind.loss(*given))
    x, *rest = (part.detach()[real] for part in given)
    assert torch.autograd.gradcheck(lambda x: kind.loss(x, *rest), x.requires_grad_())


def test_without_durations_it_is_rnnt():
    """Multi-blank with no big blank, and TDT with omega = 1."""
    for kind in (KINDS[8], KINDS[5]):
        x, targets, frames, symbols = batch(kind)
        costs, gradient = loss_and_gradient(kind, x, targets, frames, symbols, fastemit_lambda=0.3)
        tokens = x.detach()[..., : kind.classes].requires_grad_()
        expected = prnn.rnnt_loss(tokens, targets, frames, symbols, kind.blank, -1, "none", fastemit_lambda=0.3)
        torch.testing.assert_close(costs, expected, rtol=1e-13, atol=0)
        (wanted,) = torch.autograd.grad(expected.sum(), tokens)
        torch.testing.assert_close(gradient[..., : kind.classes], wanted, rtol=1e-9, atol=1e-14)
        assert not gradient[..., kind.classes :].any()


def test_duration_logits_of_their_own():
    for kind in KINDS[:6]:
        x, *rest = batch(kind)
        options = {"fastemit_lambda": 0.2, "clamp": 0.1}
        costs, gradient = loss_and_gradient(kind, x, *rest, **options)
        tokens, durations = (
            part.contiguous().requires_grad_() for part in x.detach().split([kind.classes, len(kind.durations)], -1)
        )
        again = kind.loss(tokens, *rest, duration_logits=durations, **options)
        assert torch.equal(costs, again)
        parts = torch.autograd.grad(again[torch.isfinite(again)].sum(), (tokens, durations))
        assert torch.equal(gradient, torch.cat(parts, -1))
        # One of them alone may want its gradient.
        again = kind.loss(tokens.detach(), *rest, duration_logits=durations, **options)
        (alone,) = torch.autograd.grad(again[torch.isfinite(again)].sum(), durations)
        assert torch.equal(alone, parts[1])


@every_kind
def test_fastemit_scales_the_gradients_of_labels(kind):
    """The cost stays; each arc's score has its gradient, those of labels 1 + lambda times."""
    x, targets, frames, symbols = (part[:1] for part in batch(kind, frames=8))
    costs, gradient = loss_and_gradient(kind, x, targets, frames, symbols, fastemit_lambda=0.25)
    assert torch.equal(costs, kind.loss(x, targets, frames, symbols))

    def cost(arcs):  # the same value, the labels' scores with 1.25 times the gradient
        labels = {d: 1.25 * s - 0.25 * s.detach() for d, s in arcs.labels.items()}
        return reference.recursive_cost(reference.Arcs(arcs.blanks, labels))

    expected = kind.cost(x[0], targets[0].tolist(), cost)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, x)[0], rtol=1e-9, atol=1e-12)


@both_losses
def test_clamp_limits_each_element_before_the_reduction_scales_it(kind):
    x, *rest = batch(kind)
    weights = torch.tensor([1.0, 3.0, 0.5, 2.0, 1.0], dtype=torch.float64)
    costs, gradient = loss_and_gradient(kind, x, *rest)
    clamped_costs, clamped = loss_and_gradient(kind, x, *rest, clamp=0.05, weights=weights)
    assert torch.equal(costs, clamped_costs)
    expected = gradient.clamp(-0.05, 0.05) * weights[:, None, None, None]
    torch.testing.assert_close(clamped, expected, rtol=1e-12, atol=0)


@both_losses
def test_reductions(kind):
    x, *rest = batch(kind)
    costs = kind.loss(x, *rest)
    for reduction, expected in (("sum", costs.sum()), ("mean", costs.mean())):
        loss = kind.loss(x, *rest, reduction=reduction)
        torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0)
    (gradient,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(gradient, torch.autograd.grad(costs.mean(), x)[0], rtol=1e-12, atol=1e-16)


@every_kind
def test_gradients_add_up_to_zero(kind):
    """Over the tokens and over the durations of each cell, whatever FastEmit multiplies."""
    x, *rest = batch(kind)
    _, gradient = loss_and_gradient(kind, x, *rest, fastemit_lambda=0.1)
    for part in gradient.split([kind.classes, kind.width - kind.classes], -1):
        torch.testing.assert_close(part.sum(-1), torch.zeros_like(gradient[..., 0]), rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", [Tdt((0, 1, 2, 3)), MultiBlank((2, 4))], ids=repr)
def test_float32_is_accurate_on_large_lattices(kind):
    x = torch.randn(1, 1000, 201, kind.width, requires_grad=True)
    targets = targets_of(kind, 1, 200)
    x64 = x.detach().double().requires_grad_()
    (cost, gradient), (exact, exact_gradient) = (loss_and_gradient(kind, v, targets, [1000], [200]) for v in (x, x64))
    torch.testing.assert_close(cost.double(), exact, rtol=1e-6, atol=0)
    assert (gradient - exact_gradient).abs().max() < 2e-6 * exact_gradient.abs().max()


@every_kind
def test_padding_does_not_matter(kind):
    x, targets, frames, symbols = batch(kind)
    costs, gradient = loss_and_gradient(kind, x, targets, frames, symbols)
    spoiled, spoiled_targets = x.detach().clone(), targets.clone()
    real = torch.zeros(x.shape[:3], dtype=torch.bool)
    for n, (t, u) in enumerate(zip(frames, symbols, strict=True)):
        real[n, :t, : u + 1] = True
        spoiled_targets[n, u:] = 2**40
    spoiled[~real] = float("nan")
    spoiled.requires_grad_()
    again, gradient_again = loss_and_gradient(kind, spoiled, spoiled_targets, frames, symbols)
    assert torch.equal(costs, again)
    assert torch.equal(gradient, gradient_again)
    assert not gradient[~real].any()


@both_losses
def test_order_in_the_batch_does_not_matter(kind):
    x, *rest = batch(kind)
    order = torch.tensor([2, 0, 3, 1, 4])
    costs, gradient = loss_and_gradient(kind, x, *rest)
    moved = x.detach()[order].requires_grad_()
    again, gradient_again = loss_and_gradient(kind, moved, *(v[order] for v in rest))
    assert torch.equal(costs[order], again)
    assert torch.equal(gradient[order], gradient_again)


@both_losses
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_finite(kind, dtype):
    x, *rest = batch(kind, dtype)
    x = (x.detach().sign() * 1e4).requires_grad_()
    costs, gradient = loss_and_gradient(kind, x, *rest)
    assert torch.isfinite(costs[:3]).all()
    assert torch.isfinite(gradient).all()
    torch.testing.assert_close(costs.double(), reference_costs(kind, x.double(), *rest), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_sequences_without_a_path(zero_infinity):
    missing = 0 if zero_infinity else INF
    for omega in (0.0, 0.4):  # one of two costs infinite makes their mix so
        kind = Tdt((0, 2), omega=omega)
        x, targets, frames, symbols = batch(kind)
        frames = torch.tensor([8, 5, 6, 1, 2])
        costs, gradient = loss_and_gradient(kind, x, targets, frames, symbols, zero_infinity=zero_infinity)
        assert (costs[[1, 3]] == missing).all()
        assert torch.isfinite(costs[[0, 2, 4]]).all()
        assert not gradient[[1, 3]].any()
        assert gradient[0].any()
    kind = Tdt((1, 2))  # as many frames as symbols leave none for the last blank
    x, targets, _, symbols = batch(kind)
    frames = torch.tensor([5, 4, 1, 2, 2])
    costs, gradient = loss_and_gradient(kind, x, targets, frames, symbols, zero_infinity=zero_infinity)
    assert (costs[[0, 4]] == missing).all()
    assert torch.isfinite(costs[1:4]).all()
    assert not gradient[[0, 4]].any()
    # A forbidden symbol.
    for kind in (KINDS[0], KINDS[6]):
        x, targets, frames, symbols = batch(kind)
        spoiled = x.detach().clone()
        spoiled[1, :, 2, targets[1, 2]] = -INF
        spoiled[0, 2, 1, kind.blank] = -INF
        spoiled.requires_grad_()
        costs, gradient = loss_and_gradient(kind, spoiled, targets, frames, symbols, zero_infinity=zero_infinity)
        assert costs[1] == missing
        assert torch.isfinite(costs[[0, 2, 3, 4]]).all()
        assert torch.isfinite(gradient).all()
        assert not gradient[1].any()


@both_losses
def test_nan_stays_in_its_sequence(kind):
    x, targets, frames, symbols = batch(kind)
    costs, gradient = loss_and_gradient(kind, x, targets, frames, symbols)
    for k in (0, kind.width - 1):
        spoiled = x.detach().clone()
        spoiled[1, 2, 1, k] = float("nan")
        spoiled.requires_grad_()
        again = kind.loss(spoiled, targets, frames, symbols)
        (gradient_again,) = torch.autograd.grad(again.sum(), spoiled)
        others = [0, 2, 3, 4]
        assert again[1].isnan()
        assert gradient_again[1, 0, 0].isnan().all()
        assert torch.equal(costs[others], again[others])
        assert torch.equal(gradient[others], gradient_again[others])


@both_losses
def test_bitwise_the_same_for_any_number_of_threads(kind):
    x, *rest = batch(kind, torch.float32, 60, 20)
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(loss_and_gradient(kind, x, *rest))
    finally:
        torch.set_num_threads(before)
    for costs, gradient in results[1:]:
        assert torch.equal(costs, results[0][0])
        assert torch.equal(gradient, results[0][1])


@both_losses
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32(kind, dtype):
    x, *rest = batch(kind, torch.float32)
    half = x.detach().to(dtype).requires_grad_()
    wide = half.detach().float().requires_grad_()
    (costs, gradient), (expected, expected_gradient) = (loss_and_gradient(kind, v, *rest) for v in (half, wide))
    assert costs.dtype == torch.float32
    assert torch.equal(costs, expected)
    assert torch.equal(gradient, expected_gradient.to(dtype))


@both_losses
def test_strides_do_not_matter(kind):
    x, *rest = batch(kind)
    costs, gradient = loss_and_gradient(kind, x, *rest)
    turned = x.detach().permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0).requires_grad_()
    again, gradient_again = loss_and_gradient(kind, turned, *rest)
    assert torch.equal(costs, again)
    assert torch.equal(gradient, gradient_again)


def test_modules_have_nemos_arguments():
    kind = KINDS[0]
    x, *rest = batch(kind)
    module = prnn.TDTLoss(2, [0, 1, 2, 3, 4], "sum", 0.1, 0.2, 0.05, 0.1)
    expected = kind.loss(x, *rest, reduction="sum", fastemit_lambda=0.1, clamp=0.2, omega=0.1)
    assert torch.equal(module(x, *rest), expected)
    tokens, durations = x.split([6, 5], -1)
    assert torch.equal(module(tokens, *rest, durations), expected)
    assert "durations=[0, 1, 2, 3, 4], reduction='sum'" in repr(module)
    kind = KINDS[6]
    x, *rest = batch(kind)
    module = prnn.MultiBlankRNNTLoss(4, [2, 4], "sum", 0.1, 0.2, 0.05)
    assert torch.equal(module(x, *rest), kind.loss(x, *rest, reduction="sum", fastemit_lambda=0.1, clamp=0.2))
    assert "big_blank_durations=[2, 4], reduction='sum'" in repr(module)


def test_negative_blank_counts_from_the_tokens():
    kind = Tdt(blank=5)
    x, *rest = batch(kind)
    assert torch.equal(prnn.tdt_loss(x, *rest, -1, kind.durations, "none", sigma=0.05), kind.loss(x, *rest))


@pytest.mark.parametrize("own", [False, True])
def test_operators_are_registered_completely(own):
    kind = KINDS[0]
    x, *rest = batch(kind, torch.float32)
    parts = x.detach().split([6, 5], -1)
    logits, durations = (part.contiguous().requires_grad_() for part in parts) if own else (x, None)
    args = (*(v.int() for v in rest), [0, 1, 2, 3, 4])
    numbers = duration_options(type=_C.DURATION_TDT, blank=2, sigma=0.1, omega=0.1, fastemit_lambda=0.1, clamp=0.2)
    torch.library.opcheck(ops.duration_rnnt_loss, (logits, durations, *args, *numbers, True))
    given = logits.detach(), durations if durations is None else durations.detach()
    _, reserve = ops.duration_rnnt_loss(*given, *args, *numbers, True)
    inputs = (torch.ones(5), *given, *args[:3], reserve, args[3], *numbers)
    torch.library.opcheck(ops.duration_rnnt_loss_backward, inputs)


@both_losses
def test_compiles_without_graph_breaks(kind):
    x, *rest = batch(kind)
    given = x.detach().clone().requires_grad_()
    compiled = torch.compile(kind.loss, fullgraph=True, backend="aot_eager")
    loss, expected = (f(given * 2, *rest) for f in (compiled, kind.loss))
    assert torch.equal(loss, expected)
    assert torch.equal(*(torch.autograd.grad(c.sum(), given)[0] for c in (loss, expected)))


@both_losses
def test_backward_can_be_repeated_and_not_differentiated(kind):
    x, *rest = batch(kind)
    loss = kind.loss(x, *rest, reduction="sum")
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="duration_rnnt_loss can be differentiated once"):
        gradient.sum().backward()

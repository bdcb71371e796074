"""TDT and multi-blank losses on a GPU against the same in float64 on the CPU, which have their own tests."""

import math

import pytest
import torch
from test_duration_losses import KINDS, MultiBlank, Tdt, targets_of
from test_losses_cuda import TOLERANCE, assert_same, both

import prnn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

every_kind = pytest.mark.parametrize("kind", KINDS, ids=repr)
both_losses = pytest.mark.parametrize("kind", [KINDS[0], KINDS[4], KINDS[6]], ids=repr)


def batch(kind, n, t, u, dtype=torch.float32):
    x = (2 * torch.randn(n, t, u + 1, kind.width)).to(dtype)
    frames, lengths = torch.randint(max(1, t // 2), t + 1, (n,)), torch.randint(0, u + 1, (n,))
    frames[0], lengths[0] = t, u
    return x, {"targets": targets_of(kind, n, u), "logit_lengths": frames, "target_lengths": lengths}


def loss_of(kind, **more):
    return lambda x, reduction="none", **options: kind.loss(x, *options.values(), reduction=reduction, **more)


def on_gpu(options):
    return {key: value.cuda() for key, value in options.items()}


def check(kind, n, t, u, dtype=torch.float32, **more):
    x, options = batch(kind, n, t, u, dtype)
    assert_same(both(loss_of(kind, **more), x, **options), dtype)


@every_kind
@pytest.mark.parametrize("shape", [(3, 7, 4), (1, 1, 0), (4, 33, 40), (5, 3, 1)])
def test_small_equals_cpu(kind, shape):
    check(kind, *shape)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "kind",
    [
        Tdt(classes=28, blank=27),
        Tdt((0, 1, 2), classes=501, blank=0, omega=0.2),
        Tdt(classes=1025),
        MultiBlank(classes=513),
    ],
    ids=repr,
)
def test_types_and_classes_equal_cpu(kind, dtype):
    """Rows of every width and alignment."""
    check(kind, 3, 12, 6, dtype)


@both_losses
@pytest.mark.parametrize("options", [{"fastemit_lambda": 0.01}, {"clamp": 0.05}, {"zero_infinity": True}], ids=str)
def test_options_equal_cpu(kind, options):
    check(kind, 4, 12, 7, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "kind",
    [Tdt(range(16)), MultiBlank((2, 3, 4, 5, 6, 7, 8), blank=9, classes=12), Tdt((0, 1, 300)), Tdt((2, 5))],
    ids=repr,
)
def test_many_and_long_durations_equal_cpu(kind, dtype):
    check(kind, 3, 70, 30, dtype)


@pytest.mark.parametrize("kind", [Tdt((0, 1, 2), classes=3, blank=0), MultiBlank((2,), classes=4, blank=3)], ids=repr)
@pytest.mark.parametrize("shape", [(1, 5, 1100), (2, 40, 700), (1, 6, 515)])
def test_wide_lattices_equal_cpu(kind, shape):
    """Several columns a thread, with and without room for the latest steps in shared memory."""
    check(kind, *shape)


@pytest.mark.parametrize("kind", [Tdt((0, 1, 2, 3, 4)), MultiBlank((2, 4, 8), blank=7)], ids=repr)
def test_long_lattice_is_accurate(kind):
    check(kind, 1, 2000, 400)


@pytest.mark.parametrize("omega", [0.0, 0.3, 1.0])
def test_duration_logits_of_their_own(omega):
    kind = Tdt(classes=37, omega=omega)
    x, options = batch(kind, 3, 9, 5)
    results = []
    for own in (False, True):
        parts = x.split([37, 5], -1) if own else [x]
        leaves = [part.contiguous().cuda().requires_grad_() for part in parts]
        more = {"duration_logits": leaves[1]} if own else {}
        costs = kind.loss(leaves[0], *on_gpu(options).values(), **more)
        costs.sum().backward()
        results.append((costs.detach(), torch.cat([leaf.grad for leaf in leaves], -1)))
    for one, other in zip(*results, strict=True):  # differently aligned rows are added up in another order
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_addresses_that_are_not_aligned(dtype):
    """Logits that begin at any element, and so not like the gradients, which do at 16 bytes."""
    kind = Tdt(classes=37)
    x, options = batch(kind, 3, 9, 5, dtype)
    results = []
    for offset in range(4):
        storage = torch.zeros(x.numel() + offset, dtype=dtype, device="cuda")
        storage[offset:] = x.flatten().cuda()
        leaf = storage[offset:].view(x.shape).requires_grad_()
        costs = kind.loss(leaf, *on_gpu(options).values())
        results.append((costs.detach(), torch.autograd.grad(costs.sum(), leaf)[0]))
    for costs, gradient in results[1:]:
        torch.testing.assert_close(costs, results[0][0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient, results[0][1], rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-3)


@both_losses
def test_extreme_values(kind):
    x, options = batch(kind, 4, 8, 5)
    x[1] *= 1e4
    x[2, 0, 0, 0] = math.nan
    x[3, :, :, kind.symbols[0]] = -math.inf
    options["targets"][3] = kind.symbols[1]
    costs, _ = both(loss_of(kind), x, **options)[0]
    assert costs[2].isnan()
    assert costs[[0, 1, 3]].isfinite().all()
    x[2, 0, 0, 0] = 0
    assert_same(both(loss_of(kind), x, **options), torch.float32)


@both_losses
def test_nan_spreads_over_its_sequence_alone(kind):
    x, options = batch(kind, 3, 8, 5)
    options["logit_lengths"][:] = 8
    options["target_lengths"][:] = 5
    clean, spoiled = x.cuda().requires_grad_(), x.clone()
    spoiled[1, 2, 1, kind.width - 1] = math.nan
    spoiled = spoiled.cuda().requires_grad_()
    for leaf in (clean, spoiled):
        kind.loss(leaf, *on_gpu(options).values()).sum().backward()
    assert spoiled.grad[1, 0, 0, : kind.classes].isnan().all()
    assert torch.equal(spoiled.grad[[0, 2]], clean.grad[[0, 2]])


@both_losses
def test_padding_is_not_read(kind):
    x, options = batch(kind, 4, 8, 5)
    clean, spoiled = x.cuda().requires_grad_(), x.clone()
    for n in range(4):
        spoiled[n, options["logit_lengths"][n] :] = math.nan
        spoiled[n, :, options["target_lengths"][n] + 1 :] = math.nan
        options["targets"][n, options["target_lengths"][n] :] = 10**6
    spoiled = spoiled.cuda().requires_grad_()
    for leaf in (clean, spoiled):
        kind.loss(leaf, *on_gpu(options).values()).sum().backward()
    assert torch.equal(clean.grad, spoiled.grad)


@both_losses
def test_bad_sequences_cost_nan(kind):
    x, options = batch(kind, 7, 8, 5)
    options["target_lengths"][3:] = 5
    options["logit_lengths"][1], options["logit_lengths"][4] = 9, 0
    options["target_lengths"][2], options["target_lengths"][5] = -1, 6
    options["targets"][3, 0], options["targets"][6, 4] = kind.classes, kind.blank
    leaf = x.cuda().requires_grad_()
    costs = kind.loss(leaf, *on_gpu(options).values())
    costs[0].backward()
    assert costs[0].isfinite()
    assert costs[1:].isnan().all()
    assert leaf.grad[0].any()
    assert not leaf.grad[1:].any()


def test_big_blanks_are_no_symbols():
    kind = KINDS[6]
    x, options = batch(kind, 4, 8, 5)
    options["target_lengths"][:] = 5
    options["targets"][torch.arange(1, 4), torch.arange(3)] = torch.tensor([4, 3, 2])
    costs = kind.loss(x.cuda(), *on_gpu(options).values())
    assert costs.isnan().tolist() == [False, True, True, True]


@both_losses
def test_reproducible(kind):
    x, options = batch(kind, 8, 40, 20)
    first, *others = [both(loss_of(kind), x, **options)[0] for _ in range(4)]
    for again in others:
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])


@both_losses
def test_graph_capture(kind):
    x, options = batch(kind, 4, 30, 10)
    moved = {key: value.int() for key, value in on_gpu(options).items()}
    leaf = x.cuda().requires_grad_()

    def step():
        return torch.autograd.grad(kind.loss(leaf, *moved.values(), reduction="sum"), leaf)[0]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        wanted = step()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = step()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(wanted, captured)


@every_kind
def test_gradcheck_float64(kind):
    x, options = batch(kind, 3, 4, 2, torch.float64)
    real = torch.isfinite(kind.loss(x, *options.values()))
    leaf = x[real].cuda().requires_grad_()
    moved = [value[real].cuda() for value in options.values()]
    assert torch.autograd.gradcheck(lambda y: kind.loss(y, *moved), leaf, nondet_tol=0)


def test_compiles_without_graph_breaks():
    kind = KINDS[4]
    x, options = batch(kind, 3, 9, 4)
    leaf = x.cuda().requires_grad_()
    moved = on_gpu(options)
    compiled = torch.compile(prnn.tdt_loss, fullgraph=True, backend="aot_eager")
    losses = [f(leaf * 2, *moved.values(), kind.blank, kind.durations, omega=0.3) for f in (compiled, prnn.tdt_loss)]
    assert torch.equal(*losses)
    assert torch.equal(*(torch.autograd.grad(loss, leaf)[0] for loss in losses))

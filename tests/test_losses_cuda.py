"""The losses on a GPU against the same losses in float64 on the CPU, which have their own tests against enumeration."""

import math

import pytest
import torch

import prnn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
COST_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-5, torch.bfloat16: 1e-5}


def both(loss, x, **options):
    """Costs and gradients of `loss(x)` on the GPU and, from the same rounded values, in float64 on the CPU."""
    results = []
    for device, dtype in (("cuda", x.dtype), ("cpu", torch.float64)):
        leaf = x.to(device, dtype, copy=True).requires_grad_()
        moved = {
            key: value.to(device, torch.float64 if value.is_floating_point() else value.dtype)
            if isinstance(value, torch.Tensor) and device == "cpu"
            else value.to(device)
            if isinstance(value, torch.Tensor)
            else value
            for key, value in options.items()
        }
        costs = loss(leaf, reduction="none", **moved)
        weights = torch.linspace(0.5, 2.0, costs.numel(), dtype=costs.dtype, device=device)
        torch.where(costs.isfinite(), costs, 0 * costs.detach()).mul(weights).sum().backward()
        results.append((costs.detach().cpu().double(), leaf.grad.cpu().double()))
    return results


def assert_same(results, dtype):
    (costs, gradients), (wanted_costs, wanted_gradients) = results
    torch.testing.assert_close(
        costs, wanted_costs, rtol=COST_TOLERANCE[dtype], atol=COST_TOLERANCE[dtype], equal_nan=True
    )
    scale = wanted_gradients.abs().max().clamp(min=1e-30)
    torch.testing.assert_close(
        gradients / scale, wanted_gradients / scale, rtol=0, atol=TOLERANCE[dtype], equal_nan=True
    )


def rnnt_batch(n, t, u, v, dtype, seed=0, blank=0):
    generator = torch.Generator().manual_seed(seed)
    x = (2 * torch.randn(n, t, u + 1, v, generator=generator)).to(dtype)
    targets = torch.randint(0, v - 1, (n, u), generator=generator, dtype=torch.int32)
    targets = targets + (targets >= blank).int()
    frames = torch.randint(max(1, t // 2), t + 1, (n,), generator=generator, dtype=torch.int32)
    lengths = torch.randint(0, u + 1, (n,), generator=generator, dtype=torch.int32)
    frames[0], lengths[0] = t, u
    return x, {"targets": targets, "logit_lengths": frames, "target_lengths": lengths, "blank": blank}


# Short, middling and long rows, that begin at whole pieces of memory or anywhere.
ODD_SHAPES = [(3, 9, 4, 55), (2, 9, 3, 127), (3, 7, 4, 129), (2, 5, 3, 511), (2, 4, 3, 5001), (1, 3, 2, 16387)]
SHAPES = [(3, 7, 4, 5), (1, 1, 0, 3), (2, 1, 3, 28), (4, 33, 40, 28), (2, 20, 9, 501), (2, 9, 5, 5000), (1, 30, 70, 50)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_rnnt_equals_cpu(shape, dtype):
    x, options = rnnt_batch(*shape, dtype, blank=1)
    assert_same(both(prnn.rnnt_loss, x, **options), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", ODD_SHAPES)
def test_odd_rows_equal_cpu(shape, dtype):
    x, options = rnnt_batch(*shape, dtype, blank=1)
    assert_same(both(prnn.rnnt_loss, x, **options), dtype)
    frames, batch = ctc_batch(12, 3, shape[-1], 4, dtype)
    assert_same(both(prnn.ctc_loss, frames, **batch), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_odd_addresses_of_logits_and_gradients(dtype):
    """Logits that begin one element after a piece of memory, with gradients that do not, and in their own place."""
    x, options = rnnt_batch(3, 9, 4, 55, dtype, blank=1)
    wanted = both(prnn.rnnt_loss, x, **options)[1]
    moved = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    weights = torch.linspace(0.5, 2.0, 3, device="cuda")
    for inplace in (False, True):
        leaf = torch.zeros(x.numel() + 1, dtype=dtype, device="cuda").requires_grad_()
        made = leaf + torch.cat([torch.zeros(1, dtype=dtype), x.flatten()]).cuda()
        costs = prnn.rnnt_loss(made[1:].view(x.shape), **moved, reduction="none", inplace=inplace)
        (costs * weights.to(costs.dtype)).sum().backward()
        assert_same([(costs.detach().cpu().double(), leaf.grad[1:].view(x.shape).cpu().double()), wanted], dtype)


@pytest.mark.parametrize("rnnt_type", ["regular", "modified", "constrained", "final_blank"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fastemit_lambda": 0.01},
        {"clamp": 0.05},
        {"delay_penalty": 0.1},
        {"fused_log_softmax": False},
        {"zero_infinity": True},
    ],
    ids=str,
)
def test_rnnt_options_equal_cpu(rnnt_type, options):
    x, batch = rnnt_batch(4, 12, 7, 9, torch.float32, seed=3)
    if options.get("fused_log_softmax") is False:
        x = x.log_softmax(-1)
    assert_same(both(prnn.rnnt_loss, x, **batch, **options, rnnt_type=rnnt_type), torch.float32)


def test_rnnt_wide_lattice():
    x, options = rnnt_batch(1, 5, 1100, 3, torch.float32)
    assert_same(both(prnn.rnnt_loss, x, **options), torch.float32)


def test_rnnt_long_lattice_is_accurate():
    x, options = rnnt_batch(1, 2000, 400, 10, torch.float32)
    assert_same(both(prnn.rnnt_loss, x, **options), torch.float32)


def test_rnnt_gathered_and_packed():
    x, options = rnnt_batch(3, 9, 5, 6, torch.float32, seed=5)
    log_probs = x.log_softmax(-1)
    index = torch.zeros(3, 9, 6, 2, dtype=torch.int64)
    index[..., 0] = options["blank"]
    index[:, :, :-1, 1] = options["targets"].long()[:, None]
    gathered = {key: value for key, value in options.items() if key != "blank"}
    assert_same(both(prnn.rnnt_loss, log_probs.gather(-1, index), **gathered, gathered=True), torch.float32)
    rows = torch.cat(
        [x[n, : options["logit_lengths"][n], : options["target_lengths"][n] + 1].reshape(-1, 6) for n in range(3)]
    )
    assert_same(both(prnn.rnnt_loss, rows, **options), torch.float32)


def test_rows_and_targets_left_over():
    """Lengths on the host are looked at. Without, what is left over is padding, as in a graph with room to spare."""
    x, targets = torch.randn(2, 7, 4, 5, device="cuda"), torch.tensor([1, 2, 3, 4, 4], device="cuda")
    frames, symbols = [7, 6], [3, 2]
    packed = torch.cat([x[n, :t, : u + 1].reshape(-1, 5) for n, (t, u) in enumerate(zip(frames, symbols, strict=True))])
    rows, more = len(packed), torch.cat((packed, packed[:3] * torch.nan))
    for lengths in ((frames, symbols), (torch.tensor(frames), torch.tensor(symbols))):
        with pytest.raises(
            ValueError, match=f"the number of rows of logits is {rows + 3}, but the lengths make {rows}"
        ):
            prnn.rnnt_loss(more, targets, *lengths, 0)
        with pytest.raises(ValueError, match="the number of targets is 6, but target_lengths add up to 5"):
            prnn.rnnt_loss(packed, torch.cat((targets, targets[:1])), *lengths, 0)
        with pytest.raises(ValueError, match="the number of targets is 6, but target_lengths add up to 5"):
            prnn.ctc_loss(x[:, :, 0].transpose(0, 1), torch.cat((targets, targets[:1])), *lengths)
    wanted = prnn.rnnt_loss(packed, targets, frames, symbols, 0)
    more.requires_grad_()
    on_gpu = torch.tensor(frames, device="cuda"), torch.tensor(symbols, device="cuda")
    loss = prnn.rnnt_loss(more, torch.cat((targets, targets[:1])), *on_gpu, 0)
    torch.testing.assert_close(loss, wanted)
    (gradient,) = torch.autograd.grad(loss, more)
    assert gradient[:rows].any(1).all()
    assert not gradient[rows:].any()


def test_rnnt_extreme_values():
    x, options = rnnt_batch(4, 8, 5, 6, torch.float32, seed=6)
    x[1] *= 1e4
    x[2, 0, 0, 0] = math.nan
    costs, _ = both(prnn.rnnt_loss, x, **options)[0]
    assert costs[2].isnan()
    assert costs[[0, 1, 3]].isfinite().all()
    x[2, 0, 0, 0] = 0
    assert_same(both(prnn.rnnt_loss, x, **options), torch.float32)


def test_arcs_below_the_range_are_impossible():
    x, options = rnnt_batch(3, 8, 5, 6, torch.float32, seed=6)
    options["target_lengths"][:] = 5
    x[1] -= 1e9
    x[2, :, 2] = -1e30  # no way past two symbols
    x = x.log_softmax(-1).where(torch.tensor([True, False, False])[:, None, None, None], x)
    costs, gradients = both(prnn.rnnt_loss, x, **options, fused_log_softmax=False)[0]
    assert costs[0].isfinite()
    assert (costs[1:] == math.inf).all()
    assert (gradients[1:] == 0).all()
    frames, batch = ctc_batch(20, 2, 7, 3, torch.float32)
    frames[:, 1] = torch.finfo(torch.float32).min
    costs, gradients = both(prnn.ctc_loss, frames, **batch, from_logits=False)[0]
    assert costs[1] == math.inf
    assert (gradients[:, 1] == 0).all()


def test_rnnt_long_steep_lattice():
    x, options = rnnt_batch(2, 600, 90, 8, torch.float32, seed=14)
    x[0] *= 1e3
    x[1, ::7] *= 1e4
    assert_same(both(prnn.rnnt_loss, x, **options), torch.float32)


def test_rnnt_padding_is_not_read():
    x, options = rnnt_batch(4, 8, 5, 6, torch.float32, seed=7)
    leaf = x.cuda().requires_grad_()
    for n in range(4):
        with torch.no_grad():
            leaf[n, options["logit_lengths"][n] :] = math.nan
            leaf[n, :, options["target_lengths"][n] + 1 :] = math.nan
    prnn.rnnt_loss(leaf, **{k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in options.items()}).backward()
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize(("symbols", "classes"), [(5, 6), (70, 6), (40, 600)])
def test_rnnt_bad_sequences_cost_nan(symbols, classes, gathered):
    x, options = rnnt_batch(8, 8, symbols, 2 if gathered else classes, torch.float32, seed=8)
    options["target_lengths"][:] = symbols
    options["target_lengths"][1], options["logit_lengths"][1] = 0, 1
    good = {key: value[:2] if isinstance(value, torch.Tensor) else value for key, value in options.items()}
    options["logit_lengths"][2], options["logit_lengths"][3] = 9, 0
    options["target_lengths"][4] = -1
    for n, place, symbol in ((5, 0, classes), (6, symbols - 1, -1), (7, symbols // 2, 0)):
        options["targets"][n, place] = symbol
    options["targets"][1] = -5  # padding
    bad = 5 if gathered else 8  # symbols are not read
    moved = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in options.items()}
    leaf = x.cuda().requires_grad_()
    costs = prnn.rnnt_loss(leaf, **moved, reduction="none", gathered=gathered)
    costs[:2].backward(torch.tensor([0.5, 2.0]).cuda())
    wanted = both(prnn.rnnt_loss, x[:2], **good, gathered=gathered)[1]
    torch.testing.assert_close(costs[:2].cpu().double(), wanted[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(leaf.grad[:2].cpu().double(), wanted[1], rtol=1e-4, atol=1e-5)
    assert costs[2:bad].isnan().all()
    assert costs[bad:].isfinite().all()
    assert (leaf.grad[2:] == 0).all()


def test_rnnt_reproducible():
    x, options = rnnt_batch(8, 40, 20, 50, torch.float32, seed=9)
    first = both(prnn.rnnt_loss, x, **options)[0]
    for _ in range(3):
        again = both(prnn.rnnt_loss, x, **options)[0]
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])


def test_rnnt_graph_capture():
    x, options = rnnt_batch(4, 30, 10, 20, torch.float32, seed=10)
    moved = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    leaf = x.cuda().requires_grad_()

    def step():
        return torch.autograd.grad(prnn.rnnt_loss(leaf, **moved, reduction="sum"), leaf)[0]

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


def test_gradcheck_float64():
    x, options = rnnt_batch(2, 4, 3, 4, torch.float64, seed=11)
    moved = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    leaf = x.cuda().requires_grad_()
    assert torch.autograd.gradcheck(lambda y: prnn.rnnt_loss(y, **moved, reduction="none"), leaf, nondet_tol=0)


def assert_same_alignment(x, options):
    here = prnn.forced_align(x.double(), **options)
    moved = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    there = prnn.forced_align(x.cuda(), **moved)
    assert torch.equal(there.begins.cpu(), here.begins)
    assert torch.equal(there.ends.cpu(), here.ends)
    torch.testing.assert_close(there.scores.cpu().double(), here.scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rnnt_type", ["regular", "modified", "constrained", "final_blank"])
def test_rnnt_align_equals_cpu(rnnt_type):
    x, options = rnnt_batch(5, 20, 9, 12, torch.float32, seed=12)
    options["input_lengths"] = options.pop("logit_lengths")
    assert_same_alignment(x, {**options, "rnnt_type": rnnt_type})


@pytest.mark.parametrize("boundary_device", ["cpu", "cuda"])
def test_ranges_compile_without_graph_breaks(boundary_device):
    occupation = torch.rand(2, 6, 10, device="cuda"), torch.rand(2, 7, 9, device="cuda")
    boundary = torch.tensor([[0, 0, 6, 9], [0, 0, 3, 8]], device=boundary_device)
    compiled = torch.compile(prnn.get_rnnt_prune_ranges, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*occupation, boundary, 3), prnn.get_rnnt_prune_ranges(*occupation, boundary, 3))


@pytest.mark.parametrize("rnnt_type", ["regular", "modified", "constrained", "final_blank"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pruned_family_equals_cpu(rnnt_type, dtype):
    generator = torch.Generator().manual_seed(1)
    n, frames, symbols, classes = 3, 30, 11, 17
    am = torch.randn(n, frames, classes, generator=generator).to(dtype)
    lm = torch.randn(n, symbols + 1, classes, generator=generator).to(dtype)
    targets = torch.randint(1, classes, (n, symbols), generator=generator)
    boundary = torch.tensor([[0, 0, symbols, frames], [0, 0, symbols - 3, frames - 2], [0, 0, 0, frames]])
    results = []
    for device, kind in (("cuda", dtype), ("cpu", torch.float64)):
        a, b = (x.to(device, kind).requires_grad_() for x in (am, lm))
        t, limits = targets.to(device), boundary.to(device)
        simple, (px, py) = prnn.rnnt_loss_smoothed(
            b, a, t, 0, 0.2, 0.1, limits, rnnt_type=rnnt_type, reduction="none", return_grad=True
        )
        ranges = prnn.get_rnnt_prune_ranges(px.to(dtype), py.to(dtype), limits, 4)
        pruned_am, pruned_lm = prnn.do_rnnt_pruning(a, b, ranges)
        pruned = prnn.rnnt_loss_pruned(
            (pruned_am + pruned_lm).tanh(), t, ranges, 0, limits, rnnt_type=rnnt_type, reduction="none"
        )
        (simple.sum() + pruned.sum()).backward()
        results.append([simple, ranges, pruned, a.grad, b.grad])
    for there, here in zip(*results, strict=True):
        tolerance = 1e-4 if dtype == torch.float32 else 1e-9
        torch.testing.assert_close(there.detach().cpu().to(here.dtype), here.detach(), rtol=tolerance, atol=tolerance)


def ctc_batch(t, n, c, longest, dtype, seed=0, blank=0):
    generator = torch.Generator().manual_seed(seed)
    x = (2 * torch.randn(t, n, c, generator=generator)).to(dtype)
    targets = torch.randint(0, c - 1, (n, longest), generator=generator, dtype=torch.int32)
    targets = targets + (targets >= blank).int()
    frames = torch.randint(max(1, t // 2), t + 1, (n,), generator=generator, dtype=torch.int32)
    lengths = torch.randint(0, longest + 1, (n,), generator=generator, dtype=torch.int32)
    frames[0], lengths[0] = t, longest
    return x, {"targets": targets, "input_lengths": frames, "target_lengths": lengths, "blank": blank}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(12, 3, 5, 4), (1, 2, 4, 1), (60, 4, 28, 20), (30, 2, 5000, 9), (40, 2, 33, 0)])
@pytest.mark.parametrize("from_logits", [True, False])
def test_ctc_equals_cpu(shape, dtype, from_logits):
    x, options = ctc_batch(*shape, dtype)
    if not from_logits:
        x = x.float().log_softmax(-1).to(dtype)
    assert_same(both(prnn.ctc_loss, x, **options, from_logits=from_logits), dtype)


@pytest.mark.parametrize("concatenated", [False, True])
@pytest.mark.parametrize("classes", [7, 600])
def test_ctc_bad_sequences_cost_nan(concatenated, classes):
    frames, most, bad = 9, 70, 8
    torch.manual_seed(15)
    x = torch.randn(frames, bad + 3, classes)
    targets = torch.randint(1, 6, (bad + 3, most), dtype=torch.int32)
    lengths = torch.full((bad + 3,), most, dtype=torch.int32)
    input_lengths = torch.full((bad + 3,), frames, dtype=torch.int32)
    input_lengths[0], input_lengths[1], lengths[2], lengths[3] = frames + 1, -1, -1, most + 1
    for n, place, symbol in ((4, 0, classes), (5, most - 1, -1), (6, 37, 0), (7, 3, 2**31 - 1)):
        targets[n, place] = symbol
    input_lengths[7] = 0
    lengths[bad:] = torch.tensor([3, 0, 4])
    input_lengths[bad + 2] = 0
    targets[bad, 3:], targets[bad + 1] = -5, classes  # padding
    options = {"targets": targets, "input_lengths": input_lengths, "target_lengths": lengths}
    good = {key: value[bad:] for key, value in options.items()}
    wanted = both(prnn.ctc_loss, x[:, bad:], **good)
    assert_same(wanted, torch.float32)
    if concatenated:  # bad lengths count as none
        kept = lengths.where((lengths >= 0) & (lengths <= most) & (input_lengths >= 0) & (input_lengths <= frames), 0)
        options["targets"] = torch.cat([symbols[:length] for symbols, length in zip(targets, kept, strict=True)])
        options["max_target_length"] = most
    moved = {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in options.items()}
    leaf = x.cuda().requires_grad_()
    costs = prnn.ctc_loss(leaf, **moved, reduction="none")
    costs[bad : bad + 2].backward(torch.tensor([0.5, 1.25]).cuda())
    assert costs[:bad].isnan().all()
    assert (leaf.grad[:, :bad] == 0).all()
    torch.testing.assert_close(costs[bad:].cpu().double(), wanted[0][0])
    torch.testing.assert_close(leaf.grad[:, bad:].cpu().double(), wanted[0][1])


@pytest.mark.parametrize("batch", [1, 700])
def test_ctc_reductions_of_many_costs(batch):
    torch.manual_seed(16)
    x = torch.randn(4, batch, 5, device="cuda", dtype=torch.float64, requires_grad=True)
    targets = torch.randint(1, 5, (batch, 3), device="cuda", dtype=torch.int32)
    lengths = torch.randint(0, 3, (batch,), device="cuda", dtype=torch.int32)
    frames = torch.full((batch,), 4, device="cuda", dtype=torch.int32)
    wanted = prnn.ctc_loss(x, targets, frames, lengths, reduction="none").div(lengths.clamp(min=1)).mean()
    (gradients,) = torch.autograd.grad(2 * wanted, x)
    found = prnn.ctc_loss(x, targets, frames, lengths)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(2 * found, x)[0], gradients, rtol=1e-12, atol=1e-14)
    with torch.no_grad():
        assert torch.equal(prnn.ctc_loss(x, targets, frames, lengths), found)


def test_ctc_long_targets():
    x, options = ctc_batch(2600, 1, 40, 1200, torch.float32)
    assert_same(both(prnn.ctc_loss, x, **options, from_logits=True), torch.float32)


@pytest.mark.parametrize("rnnt_type", ["regular", "modified", "constrained"])
@pytest.mark.parametrize("kept", [None, 3])
@pytest.mark.parametrize("with_boundary", [False, True])
def test_pruned_symbols_that_hold_the_blank(rnnt_type, kept, with_boundary):
    symbols = torch.tensor([[2, 1, 2, 3], [2, 2, 2, 2], [0, 2, 4, 2]])
    boundary = torch.tensor([[0, 0, 4, 8], [0, 0, 4, 7], [0, 0, 3, 8]]) if with_boundary else None
    begins = torch.tensor([0, 0, 1, 1, 2, 2, 2, 2]).expand(3, -1)
    ranges = begins[:, :, None] + torch.arange(kept) if kept else torch.arange(5).expand(3, 8, -1)
    logits = torch.randn(*ranges.shape, 6, dtype=torch.float64)

    def loss(x, **options):
        if kept:
            return prnn.rnnt_loss_pruned(x, symbols.to(x.device), ranges.to(x.device), 2, **options)
        return prnn.losses.pruned.rnnt_loss(x, symbols.to(x.device), 2, **options)

    (costs, gradient), (wanted, wanted_gradient) = both(loss, logits, boundary=boundary, rnnt_type=rnnt_type)
    assert wanted.isfinite().any()
    torch.testing.assert_close(costs, wanted, rtol=1e-11, atol=0, check_device=False)
    torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-9, atol=1e-12, check_device=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_simple_losses_are_computed_in_float32(dtype):
    """From half types, and under autocast, whose products of exponentials would be in 16 bits."""
    lm, am = torch.randn(3, 5, 40, device="cuda").to(dtype), torch.randn(3, 9, 40, device="cuda").to(dtype)
    symbols = torch.randint(1, 40, (3, 4), device="cuda")
    boundary = torch.tensor([[0, 0, 4, 9], [0, 0, 2, 7], [0, 0, 4, 8]], device="cuda")
    for loss in (prnn.rnnt_loss_simple, prnn.rnnt_loss_smoothed):
        wanted = loss(lm.cpu().double(), am.cpu().double(), symbols.cpu(), 0, boundary=boundary.cpu())
        for enabled in (False, True):
            with torch.autocast("cuda", torch.float16, enabled=enabled):
                ours = loss(lm, am, symbols, 0, boundary=boundary)
            assert ours.dtype == torch.float32
            torch.testing.assert_close(ours.cpu().double(), wanted, rtol=2e-6, atol=0)


def test_padding_reaches_no_gradient_of_the_pruned_losses():
    lm, am = torch.randn(3, 5, 6, device="cuda"), torch.randn(3, 9, 6, device="cuda")
    symbols = torch.randint(1, 6, (3, 4), device="cuda")
    boundary = torch.tensor([[1, 2, 4, 9], [0, 0, 2, 7], [0, 0, 4, 8]], device="cuda")
    logits = torch.randn(3, 9, 5, 6, device="cuda")

    def results(lm, am, logits):
        leaves = [x.clone().requires_grad_() for x in (lm, am, logits)]
        simple = prnn.rnnt_loss_simple(*leaves[:2], symbols, 0, boundary)
        full = prnn.losses.pruned.rnnt_loss(leaves[2], symbols, 0, boundary)
        return simple, full, *torch.autograd.grad(simple + full, leaves)

    wanted = results(lm, am, logits)
    for n, (s0, t0, s1, t1) in enumerate(boundary.tolist()):
        am[n, :t0] = am[n, t1:] = torch.nan
        lm[n, :s0] = lm[n, s1 + 1 :] = torch.inf
        logits[n, :t0] = logits[n, t1:] = torch.nan
        logits[n, :, :s0] = logits[n, :, s1 + 1 :] = torch.nan
    for one, other in zip(results(lm, am, logits), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_ctc_zero_infinity_concatenated_and_strides():
    x, options = ctc_batch(6, 4, 7, 6, torch.float32, seed=3)
    lengths = options["target_lengths"]
    options["targets"] = torch.cat([options["targets"][n, : lengths[n]] for n in range(4)])
    for zero_infinity in (False, True):
        assert_same(both(prnn.ctc_loss, x, **options, from_logits=True, zero_infinity=zero_infinity), torch.float32)
    batch_first = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert_same(both(prnn.ctc_loss, batch_first, **options, from_logits=True), torch.float32)


def test_ctc_align_equals_cpu():
    x, options = ctc_batch(40, 5, 12, 9, torch.float32, seed=12)
    assert_same_alignment(x.transpose(0, 1).contiguous(), options)

"""Pruned RNN-T: the recursion, the simple and smoothed losses, the pruning bounds, the pruned loss."""

import pytest
import torch
from reference import lattice

import prnn
from prnn._ops import mutual_information as ops
from prnn.losses import pruned

TYPES = ["regular", "modified", "constrained", "final_blank"]
N, T, S, V = 3, 8, 4, 6


def inputs():
    """lm (N, S + 1, V), am (N, T, V), symbols, and a boundary with a full and two short sequences."""
    lm = torch.randn(N, S + 1, V, dtype=torch.float64, requires_grad=True)
    am = torch.randn(N, T, V, dtype=torch.float64, requires_grad=True)
    boundary = torch.tensor([[0, 0, S, T], [0, 0, 2, T - 2], [0, 0, S - 1, T - 1]])
    return lm, am, torch.randint(1, V, (N, S)), boundary


def added(lm, am):
    return lm.unsqueeze(1) + am.unsqueeze(2)


def recursion(px, py, boundary):
    """mutual_information_recursion, node by node."""
    modified = px.shape[2] == py.shape[2]
    scores = []
    for x, y, (s0, t0, s1, t1) in zip(px, py, boundary.tolist(), strict=True):
        p = {(s0, t0): x.new_zeros(())}
        for s in range(s0, s1 + 1):
            for t in range(t0, t1 + 1):
                ways = []
                before = t - 1 if modified else t
                if (s - 1, before) in p:
                    ways.append(p[s - 1, before] + x[s - 1, before])
                if (s, t - 1) in p:
                    ways.append(p[s, t - 1] + y[s, t - 1])
                if ways:
                    p[s, t] = torch.logsumexp(torch.stack(ways), 0)
        scores.append(p.get((s1, t1), x.new_tensor(float("-inf"))))
    return torch.stack(scores)


@pytest.mark.parametrize("modified", [False, True])
def test_recursion(modified):
    px = torch.randn(5, S, T + (not modified), dtype=torch.float64, requires_grad=True)
    py = torch.randn(5, S + 1, T, dtype=torch.float64, requires_grad=True)
    boundary = torch.tensor([[0, 0, S, T], [1, 2, S, T], [0, 0, 0, T], [2, 3, 2, 3], [1, 0, 3, 5]])
    scores, (px_grad, py_grad) = prnn.mutual_information_recursion(px, py, boundary, return_grad=True)
    expected = recursion(px, py, boundary)
    torch.testing.assert_close(scores, expected, rtol=1e-13, atol=1e-13)
    gradients = torch.autograd.grad(expected.sum(), (px, py))
    torch.testing.assert_close((px_grad, py_grad), gradients, rtol=1e-10, atol=1e-14)
    assert not px_grad.requires_grad
    weights = torch.randn(5, dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad((scores * weights).sum(), (px, py)),
        tuple(weights.reshape(-1, 1, 1) * g for g in gradients),
        rtol=1e-10,
        atol=1e-14,
    )
    everything = torch.tensor([[0, 0, S, T]] * 5)
    assert torch.equal(prnn.mutual_information_recursion(px, py), prnn.mutual_information_recursion(px, py, everything))


def test_recursion_without_symbols_or_paths():
    py = torch.randn(2, 1, 3)
    scores, (px_grad, py_grad) = prnn.mutual_information_recursion(torch.empty(2, 0, 4), py, return_grad=True)
    torch.testing.assert_close(scores, py.sum((1, 2)))
    assert px_grad.shape == (2, 0, 4)
    assert (py_grad == 1).all()
    # Four symbols in three frames, at most one a frame; and a forbidden arc that all paths need.
    px, py = torch.randn(2, 4, 3), torch.randn(2, 5, 3)
    scores, occupation = prnn.mutual_information_recursion(px, py, return_grad=True)
    assert (scores == float("-inf")).all()
    assert not any(g.any() for g in occupation)
    px = torch.randn(2, 2, 4)
    px[0, 1] = float("-inf")
    scores, (px_grad, _) = prnn.mutual_information_recursion(px, torch.randn(2, 3, 3), return_grad=True)
    assert scores[0] == float("-inf")
    assert torch.isfinite(scores[1])
    assert not px_grad[0].any()


@pytest.mark.parametrize("modified", [False, True])
def test_recursion_gradcheck(modified):
    px = torch.randn(2, 3, 5 + (not modified), dtype=torch.float64, requires_grad=True)
    py = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    boundary = torch.tensor([[0, 0, 3, 5], [1, 0, 3, 4]])
    assert torch.autograd.gradcheck(lambda px, py: prnn.mutual_information_recursion(px, py, boundary), (px, py))


def test_joint_recursion_breaks_the_score_down():
    px = [torch.randn(N, S, T + 1, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    py = [torch.randn(N, S + 1, T, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    parts = pruned.joint_mutual_information_recursion(px, py)
    total, (px_grad, py_grad) = prnn.mutual_information_recursion(sum(px), sum(py), return_grad=True)
    assert parts.shape == (3, N)
    torch.testing.assert_close(parts.sum(0), total)
    torch.testing.assert_close(parts[1], (px_grad * px[1]).sum((1, 2)) + (py_grad * py[1]).sum((1, 2)))
    torch.testing.assert_close(torch.autograd.grad(parts.sum(), px[2])[0], px_grad)


@pytest.mark.parametrize("rnnt_type", TYPES)
@pytest.mark.parametrize("delay_penalty", [0.0, 0.5])
@pytest.mark.parametrize("with_boundary", [True, False])
def test_simple_loss_is_the_full_loss_of_added_logits(rnnt_type, delay_penalty, with_boundary):
    lm, am, symbols, boundary = inputs()
    frames, counts = (boundary[:, 3], boundary[:, 2]) if with_boundary else ([T] * N, [S] * N)
    options = {"rnnt_type": rnnt_type, "delay_penalty": delay_penalty, "reduction": "none"}
    loss, occupation = prnn.rnnt_loss_simple(
        lm, am, symbols, 0, boundary if with_boundary else None, **options, return_grad=True
    )
    full, full_occupation = prnn.rnnt_loss(added(lm, am), symbols, frames, counts, blank=0, return_grad=True, **options)
    torch.testing.assert_close(loss, full, rtol=1e-12, atol=0)
    torch.testing.assert_close(occupation, full_occupation, rtol=1e-9, atol=1e-12)
    gradients, full_gradients = (torch.autograd.grad(c.sum(), (lm, am)) for c in (loss, full))
    torch.testing.assert_close(gradients, full_gradients, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rnnt_type", TYPES)
def test_smoothed_loss_interpolates_log_probabilities(rnnt_type):
    lm, am, symbols, boundary = inputs()
    lm_scale, am_scale = 0.2, 0.3
    unigram = lm.softmax(2).mean((0, 1)).log()
    alone = torch.stack([(am + unigram).log_softmax(2)] * (S + 1), 2), torch.stack([lm.log_softmax(2)] * T, 1)
    log_probs = (1 - lm_scale - am_scale) * added(lm, am).log_softmax(3) + lm_scale * alone[1] + am_scale * alone[0]
    options = {"rnnt_type": rnnt_type, "reduction": "none"}
    expected = prnn.rnnt_loss(
        log_probs, symbols, boundary[:, 3], boundary[:, 2], blank=0, fused_log_softmax=False, **options
    )
    loss = prnn.rnnt_loss_smoothed(lm, am, symbols, 0, lm_scale, am_scale, boundary, **options)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    gradients, expected_gradients = (torch.autograd.grad(c.sum(), (lm, am)) for c in (loss, expected))
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        prnn.rnnt_loss_smoothed(lm, am, symbols, 0, 0.0, 0.0, boundary, **options),
        prnn.rnnt_loss_simple(lm, am, symbols, 0, boundary, **options),
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reductions(reduction):
    lm, am, symbols, boundary = inputs()
    each = prnn.rnnt_loss_simple(lm, am, symbols, 0, boundary, reduction="none")
    loss = prnn.rnnt_loss_simple(lm, am, symbols, 0, boundary, reduction=reduction)
    torch.testing.assert_close(loss, getattr(each, reduction)())


@pytest.mark.parametrize("rnnt_type", TYPES)
@pytest.mark.parametrize("s_range", [2, 3, S + 1, 99])
def test_ranges_let_paths_through(rnnt_type, s_range):
    lm, am, symbols, boundary = inputs()
    _, occupation = prnn.rnnt_loss_simple(lm, am, symbols, 0, boundary, rnnt_type, return_grad=True)
    ranges = prnn.get_rnnt_prune_ranges(*occupation, boundary, s_range)
    kept = min(s_range, S + 1)
    assert ranges.shape == (N, T, kept)
    assert ranges.dtype == torch.int64
    begins = ranges[:, :, 0]
    assert torch.equal(ranges, begins.unsqueeze(2) + torch.arange(kept))
    assert not begins[:, 0].any()
    growth = begins.diff(dim=1)
    assert (growth >= 0).all()
    assert (growth <= (kept - 1 if rnnt_type == "regular" else 1)).all()
    for n, (_, _, count, frames) in enumerate(boundary.tolist()):
        assert begins[n, frames - 1] == max(0, count + 1 - kept)
    assert ranges.max() <= S


def prune_begins(px_grad, py_grad, symbols, frames, kept):
    """get_rnnt_prune_ranges for one sequence, by its definition."""
    positions, time = py_grad.shape
    growth = kept - 1 if px_grad.shape[1] > time else 1
    begins = []
    for t in range(time):
        held = [
            py_grad[s : s + kept, t].sum() - (px_grad[s - 1, t] if s > 0 else 0) for s in range(positions - kept + 1)
        ]
        best = int(torch.stack([torch.as_tensor(h) for h in held]).argmax())
        begins.append(best if t < frames - 1 else max(0, symbols + 1 - kept))
    begins = [min(begins[t:]) for t in range(time)]
    begins = [max(begins[j] - growth * (j - t) for j in range(t, time)) for t in range(time)]
    return [min(begin, growth * t) for t, begin in enumerate(begins)]


@pytest.mark.parametrize("modified", [False, True])
@pytest.mark.parametrize("s_range", [2, 3, 4])
def test_ranges_follow_their_definition(modified, s_range):
    """On random occupations, so that windows jump back and forth and too far."""
    px_grad = torch.rand(20, 9, 7 + (not modified), dtype=torch.float64)
    py_grad = torch.rand(20, 10, 7, dtype=torch.float64)
    boundary = torch.tensor([[0, 0, 5, 7]] * 10 + [[0, 0, 6, 6]] * 10)
    boundary[3, 2] = 9
    ranges = prnn.get_rnnt_prune_ranges(px_grad, py_grad, boundary, max(s_range, 3 if not modified else 1))
    for n, (_, _, symbols, frames) in enumerate(boundary.tolist()):
        expected = prune_begins(px_grad[n], py_grad[n], symbols, frames, ranges.shape[2])
        assert ranges[n, :, 0].tolist() == expected


def test_ranges_hold_the_most_probable_positions():
    """A path with nearly all probability, which the windows follow."""
    when = [0, 1, 1, 3, 6, 6, 6]  # symbol i is emitted in frame when[i]
    count = len(when)
    px = torch.full((1, count, T + 1), -20.0)
    py = torch.full((1, count + 1, T), -20.0)
    for i, t in enumerate(when):
        px[0, i, t] = 0
    for t in range(T):
        py[0, sum(w <= t for w in when), t] = 0
    boundary = torch.tensor([[0, 0, count, T]])
    _, occupation = prnn.mutual_information_recursion(px, py, boundary, return_grad=True)
    ranges = prnn.get_rnnt_prune_ranges(*occupation, boundary, 4)
    for t in range(T):
        passed = range(sum(w < t for w in when), sum(w <= t for w in when) + 1)
        assert set(passed) <= set(ranges[0, t].tolist()), (t, ranges[0])


def test_too_narrow_a_range_is_widened_with_a_warning():
    px = torch.randn(1, 6, 4, dtype=torch.float64)
    py = torch.randn(1, 7, 3, dtype=torch.float64)
    boundary = torch.tensor([[0, 0, 6, 3]])
    _, occupation = prnn.mutual_information_recursion(px, py, boundary, return_grad=True)
    with pytest.warns(UserWarning, match="s_range is 2; 3 are kept"):
        assert prnn.get_rnnt_prune_ranges(*occupation, boundary, 2).shape == (1, 3, 3)


def test_sequences_without_symbols_have_ranges_of_two_positions():
    occupation = torch.zeros(1, 1, 2), torch.ones(1, 2, 1)
    with pytest.warns(UserWarning, match="s_range is 1; 2 are kept"):
        ranges = prnn.get_rnnt_prune_ranges(*occupation, torch.tensor([[0, 0, 0, 1]]), 1)
    assert ranges.tolist() == [[[0, 1]]]


@pytest.mark.parametrize("rnnt_type", TYPES)
@pytest.mark.parametrize("with_grad", [False, True])
def test_pruning_to_all_positions_changes_nothing(rnnt_type, with_grad):
    lm, am, symbols, boundary = inputs()
    options = {"boundary": boundary, "rnnt_type": rnnt_type, "delay_penalty": 0.25, "reduction": "none"}
    _, occupation = prnn.rnnt_loss_simple(lm, am, symbols, 0, boundary, rnnt_type, return_grad=True)
    ranges = prnn.get_rnnt_prune_ranges(*occupation, boundary, S + 1)
    am_pruned, lm_pruned = prnn.do_rnnt_pruning(am, lm, ranges)
    loss = prnn.rnnt_loss_pruned(
        torch.tanh(am_pruned + lm_pruned), symbols, ranges, 0, return_grad=with_grad, **options
    )
    loss, occupation = loss if with_grad else (loss, None)
    full = pruned.rnnt_loss(torch.tanh(added(lm, am)), symbols, 0, return_grad=with_grad, **options)
    full, full_occupation = full if with_grad else (full, None)
    torch.testing.assert_close(loss, full, rtol=1e-12, atol=0)
    if with_grad:
        torch.testing.assert_close(occupation, full_occupation, rtol=1e-10, atol=1e-13)
    gradients, full_gradients = (torch.autograd.grad(c.sum(), (lm, am)) for c in (loss, full))
    torch.testing.assert_close(gradients, full_gradients, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("rnnt_type", TYPES)
@pytest.mark.parametrize("s_range", [2, 3])
@pytest.mark.parametrize("with_grad", [False, True])
def test_pruned_loss_is_that_of_the_paths_through_kept_positions(rnnt_type, s_range, with_grad):
    lm, am, symbols, boundary = inputs()
    _, occupation = prnn.rnnt_loss_simple(lm, am, symbols, 0, boundary, rnnt_type, return_grad=True)
    ranges = prnn.get_rnnt_prune_ranges(*occupation, boundary, s_range)
    logits = torch.randn(N, T, s_range, V, dtype=torch.float64, requires_grad=True)
    loss = prnn.rnnt_loss_pruned(
        logits, symbols, ranges, 0, boundary, rnnt_type, 0.25, reduction="none", return_grad=with_grad
    )
    loss = loss[0] if with_grad else loss
    expected = []
    for n, (_, _, count, frames) in enumerate(boundary.tolist()):
        kept = torch.zeros(T, S + 1, dtype=torch.bool).scatter(1, ranges[n], True)
        index = ranges[n].unsqueeze(2).expand(-1, -1, V)
        full = torch.zeros(T, S + 1, V, dtype=torch.float64).scatter(1, index, logits[n].log_softmax(2))
        target = symbols[n, :count].tolist()
        cells = full[:frames, : count + 1]
        expected.append(lattice.rnnt_cost(cells, target, 0, rnnt_type, delay_penalty=0.25, kept=kept))
    expected = torch.stack(expected)
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    gradient, expected_gradient = (torch.autograd.grad(c.sum(), logits)[0] for c in (loss, expected))
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-13)


def test_pruned_loss_ignores_padding():
    lm, am, symbols, boundary = inputs()
    _, occupation = prnn.rnnt_loss_simple(lm, am, symbols, 0, boundary, return_grad=True)
    ranges = prnn.get_rnnt_prune_ranges(*occupation, boundary, 3)
    logits = torch.randn(N, T, 3, V, dtype=torch.float64)
    spoiled = logits.clone()
    for n, (_, _, count, frames) in enumerate(boundary.tolist()):
        spoiled[n, frames:] = float("nan")
        spoiled[n][ranges[n] > count] = float("nan")
    spoiled.requires_grad_()
    loss = prnn.rnnt_loss_pruned(spoiled, symbols, ranges, 0, boundary)
    assert torch.equal(loss, prnn.rnnt_loss_pruned(logits, symbols, ranges, 0, boundary))
    assert torch.isfinite(torch.autograd.grad(loss, spoiled)[0]).all()


@pytest.mark.parametrize("function", ["simple", "smoothed"])
@pytest.mark.parametrize("rnnt_type", TYPES)
@pytest.mark.parametrize("filling", [float("nan"), float("inf")])
def test_padding_reaches_no_gradient(function, rnnt_type, filling):
    lm, am, symbols, boundary = inputs()
    boundary[0] = torch.tensor([1, 2, S, T])
    loss = {"simple": prnn.rnnt_loss_simple, "smoothed": prnn.rnnt_loss_smoothed}[function]

    def result():
        value = loss(lm, am, symbols, 0, boundary=boundary, rnnt_type=rnnt_type)
        return value, *torch.autograd.grad(value, (lm, am))

    wanted = result()
    with torch.no_grad():
        for n, (s0, t0, s1, t1) in enumerate(boundary.tolist()):
            am[n, :t0] = am[n, t1:] = filling
            if function == "simple":  # the smoothed loss averages over all of lm
                lm[n, :s0] = lm[n, s1 + 1 :] = filling
    for one, other in zip(result(), wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kept", [None, 3])
def test_padding_of_logits_reaches_no_gradient(kept):
    """With return_grad, where the loss is computed from scores."""
    _, _, symbols, boundary = inputs()
    boundary[0] = torch.tensor([1, 2, S, T])
    ranges = torch.zeros(N, T, 1, dtype=torch.int64) + torch.arange(S + 1)
    if kept:
        begins = torch.tensor([0, 0, 1, 1, 2, 2, 2, 2]).expand(N, -1)
        boundary[1:, 2] = S
        ranges = begins[:, :, None] + torch.arange(kept)
    logits = torch.randn(*ranges.shape, V, dtype=torch.float64).requires_grad_()

    def result():
        if kept:
            value, _ = prnn.rnnt_loss_pruned(logits, symbols, ranges, 0, boundary, return_grad=True)
        else:
            value, _ = pruned.rnnt_loss(logits, symbols, 0, boundary, return_grad=True)
        return value, *torch.autograd.grad(value, logits)

    wanted = result()
    assert wanted[0].isfinite()
    with torch.no_grad():
        for n, (s0, t0, s1, t1) in enumerate(boundary.tolist()):
            logits[n, :t0] = logits[n, t1:] = float("nan")
            logits[n][(ranges[n] < s0) | (ranges[n] > s1)] = float("nan")
    for one, other in zip(result(), wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("loss", [prnn.rnnt_loss_simple, prnn.rnnt_loss_smoothed])
def test_autocast_on_the_cpu_changes_nothing(loss):
    lm, am, symbols, boundary = inputs()
    lm, am = lm.float(), am.float()
    wanted = loss(lm, am, symbols, 0, boundary=boundary)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(loss(lm, am, symbols, 0, boundary=boundary), wanted)


@pytest.mark.parametrize("rnnt_type", TYPES)
@pytest.mark.parametrize("kept", [None, 3])
@pytest.mark.parametrize("with_boundary", [False, True])
@pytest.mark.parametrize("with_grad", [False, True])
def test_symbols_may_hold_the_blank(rnnt_type, kept, with_boundary, with_grad):
    """Its arc scores as the blank's arc of the same cell and leads to the next symbol position."""
    blank = 2
    symbols = torch.tensor([[2, 1, 2, 3], [2, 2, 2, 2], [0, 2, 4, 2]])
    boundary = torch.tensor([[0, 0, S, T], [0, 0, S, T - 1], [0, 0, S - 1, T]]) if with_boundary else None
    begins = torch.tensor([0, 0, 1, 1, 2, 2, 2, 2]).expand(N, -1)
    ranges = begins[:, :, None] + torch.arange(kept) if kept else torch.zeros(N, T, 1).long() + torch.arange(S + 1)
    logits = torch.randn(*ranges.shape, V, dtype=torch.float64).requires_grad_()
    options = {"rnnt_type": rnnt_type, "reduction": "none", "return_grad": with_grad}
    if kept:
        loss = prnn.rnnt_loss_pruned(logits, symbols, ranges, blank, boundary, **options)
    else:
        loss = pruned.rnnt_loss(logits, symbols, blank, boundary, **options)
    loss = loss[0] if with_grad else loss
    expected = []
    for n in range(N):
        _, _, count, frames = boundary[n].tolist() if with_boundary else (0, 0, S, T)
        allowed = torch.zeros(T, S + 1, dtype=torch.bool).scatter(1, ranges[n], True)
        index = ranges[n].unsqueeze(2).expand(-1, -1, V)
        full = torch.zeros(T, S + 1, V, dtype=torch.float64).scatter(1, index, logits[n].log_softmax(2))
        target = symbols[n, :count].tolist()
        expected.append(lattice.rnnt_cost(full[:frames, : count + 1], target, blank, rnnt_type, kept=allowed))
    expected = torch.stack(expected)
    assert expected.isfinite().any()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    loss, expected = (torch.where(x.isfinite(), x, 0).sum() for x in (loss, expected))
    torch.testing.assert_close(*(torch.autograd.grad(x, logits)[0] for x in (loss, expected)), rtol=1e-10, atol=1e-13)


def test_a_boundary_that_begins_later():
    """Symbols and frames before the beginning are as if they were not there."""
    lm, am, symbols, _ = inputs()
    boundary = torch.tensor([[1, 2, S, T]] * N)
    loss = prnn.rnnt_loss_simple(lm, am, symbols, 0, boundary, reduction="none")
    torch.testing.assert_close(loss, prnn.rnnt_loss_simple(lm[:, 1:], am[:, 2:], symbols[:, 1:], 0, reduction="none"))
    full = pruned.rnnt_loss(added(lm, am), symbols, 0, boundary, reduction="none")
    torch.testing.assert_close(loss, full)


def test_operators_are_registered_completely():
    px, py = torch.randn(N, S, T + 1, requires_grad=True), torch.randn(N, S + 1, T, requires_grad=True)
    boundary = torch.tensor([[0, 0, S, T]] * N, dtype=torch.int32)
    torch.library.opcheck(ops.mutual_information, (px, py, boundary, True))
    torch.library.opcheck(ops.mutual_information, (px.detach(), py.detach(), None, False))
    _, px_grad, py_grad = ops.mutual_information(px.detach(), py.detach(), boundary, True)
    torch.library.opcheck(ops.rnnt_prune_ranges, (px_grad, py_grad, boundary, 3))


def test_compiles_without_graph_breaks():
    lm, am, symbols, boundary = inputs()
    compiled = torch.compile(prnn.rnnt_loss_smoothed, fullgraph=True, backend="aot_eager")
    (loss, occupation), (expected, expected_occupation) = (
        f(lm, am, symbols, 0, boundary=boundary, return_grad=True) for f in (compiled, prnn.rnnt_loss_smoothed)
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(occupation, expected_occupation)
    gradients, expected_gradients = (torch.autograd.grad(c, (lm, am)) for c in (loss, expected))
    torch.testing.assert_close(gradients, expected_gradients)
    ranges = prnn.get_rnnt_prune_ranges(*occupation, boundary, 3)
    logits = torch.randn(N, T, 3, V, dtype=torch.float64)
    compiled = torch.compile(prnn.rnnt_loss_pruned, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        compiled(logits, symbols, ranges, 0, boundary), prnn.rnnt_loss_pruned(logits, symbols, ranges, 0, boundary)
    )


@pytest.mark.parametrize("rnnt_type", ["regular", "modified"])
def test_a_pruned_step_compiles_without_graph_breaks(rnnt_type):
    lm, am, symbols, boundary = inputs()

    def step(lm, am, symbols, boundary):
        simple, occupation = prnn.rnnt_loss_smoothed(
            lm, am, symbols, 0, boundary=boundary, rnnt_type=rnnt_type, return_grad=True
        )
        ranges = prnn.get_rnnt_prune_ranges(*occupation, boundary, 3)
        joined = torch.tanh(sum(prnn.do_rnnt_pruning(am, lm, ranges)))
        return simple + prnn.rnnt_loss_pruned(joined, symbols, ranges, 0, boundary, rnnt_type), ranges

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    for frames in (T, T + 3):
        am = torch.cat((am, am.new_zeros(N, frames - am.shape[1], V)), 1).detach().requires_grad_()
        (loss, ranges), (expected, expected_ranges) = (f(lm, am, symbols, boundary) for f in (compiled, step))
        assert torch.equal(ranges, expected_ranges)
        assert ranges.shape == (N, frames, 3)
        torch.testing.assert_close(loss, expected)
        gradients, expected_gradients = (torch.autograd.grad(c, (lm, am)) for c in (loss, expected))
        torch.testing.assert_close(gradients, expected_gradients)


def test_too_narrow_a_range_stays_when_compiled():
    """The size of the result cannot follow from values. Sequences without a path have an infinite loss."""
    px = torch.randn(2, 6, 4, dtype=torch.float64)
    py = torch.randn(2, 7, 3, dtype=torch.float64)
    boundary = torch.tensor([[0, 0, 6, 3], [0, 0, 3, 3]])
    _, occupation = prnn.mutual_information_recursion(px, py, boundary, return_grad=True)
    compiled = torch.compile(prnn.get_rnnt_prune_ranges, fullgraph=True, backend="aot_eager")
    with pytest.warns(UserWarning, match="s_range is 2; with less than 3 some sequences have no path"):
        ranges = compiled(*occupation, boundary, 2)
    assert ranges.shape == (2, 3, 2)
    assert ranges.max() <= 6
    logits, symbols = torch.randn(2, 3, 2, V), torch.ones(2, 6, dtype=torch.int64)
    loss = prnn.rnnt_loss_pruned(logits, symbols, ranges, 0, boundary, reduction="none")
    assert loss.isfinite().tolist() == [False, True]
    with pytest.warns(UserWarning, match="s_range is 2; with less than 3"):  # as the window could not move with 1
        assert torch.equal(compiled(*occupation, boundary, 1), ranges)
    exported = torch.export.export(RangesModule(), (*occupation, boundary[1:].repeat(2, 1)))
    assert exported.module()(*occupation, boundary[1:].repeat(2, 1)).shape == (2, 3, 2)


class RangesModule(torch.nn.Module):
    def forward(self, px_grad, py_grad, boundary):
        return prnn.get_rnnt_prune_ranges(px_grad, py_grad, boundary, 2)


def test_second_derivative_is_refused():
    px, py = torch.randn(N, S, T + 1, requires_grad=True), torch.randn(N, S + 1, T)
    (gradient,) = torch.autograd.grad(prnn.mutual_information_recursion(px, py).sum(), px, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        gradient.sum().backward()

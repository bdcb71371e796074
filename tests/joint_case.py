"""Shared parts of the tests of the losses with a joiner."""

import pytest
import torch

from prnn._ops import _handles

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def case(device="cpu", dtype=torch.float64, bias=True, n=3, t=7, u=4, d=5, v=6, durations=0):
    """Encoder, predictor, weight and bias; targets, frames, symbols. Class 0 is the blank."""
    generator = torch.Generator().manual_seed(1)

    def tensor(*shape):
        return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()

    rows = v + durations
    leaves = [tensor(n, t, d), tensor(n, u + 1, d), tensor(rows, d), tensor(rows) if bias else None]
    targets = torch.randint(1, v, (n, u), generator=generator)
    frames = torch.tensor([t, max(1, t - 3), 1][:n])
    symbols = torch.tensor([u, max(0, u - 2), 0][:n])
    with torch.no_grad():
        leaves[2] *= d**-0.5
    return leaves, targets.to(device), frames, symbols


def logits_of(leaves, activation="tanh"):
    encoder, predictor, weight, bias = leaves
    meeting = encoder[:, :, None] + predictor[:, None]
    active = meeting.tanh() if activation == "tanh" else meeting.relu()
    return torch.nn.functional.linear(active, weight, bias)


def gradients(loss, leaves):
    weights = torch.linspace(0.5, 1.5, loss.numel(), dtype=loss.dtype, device=loss.device).view(loss.shape)
    return torch.autograd.grad((loss * weights).sum(), [leaf for leaf in leaves if leaf is not None])


def relative_errors(ours, wanted):
    return [float((x.double() - y).norm() / y.norm()) for x, y in zip(ours, wanted, strict=True)]


# ---- Tests of both losses. loss: of leaves and (targets, frames, symbols), with options; explicit: of the logits ----

TOLERANCES = [(torch.float32, 1e-5), (torch.bfloat16, 1.5e-2), (torch.float16, 2e-3)]


def assert_padding_is_not_read(loss, leaves, targets, filling):
    frames, symbols = torch.tensor([7, 4, 2]), torch.tensor([4, 2, 1])

    def result():
        value = loss(leaves, (targets, frames, symbols))
        return value, *gradients(value, leaves)

    wanted = result()
    assert wanted[0].isfinite()
    with torch.no_grad():
        for n in range(3):
            leaves[0][n, frames[n] :] = filling
            leaves[1][n, symbols[n] + 1 :] = filling
            targets[n, symbols[n] :] = 99
    for one, other in zip(result(), wanted, strict=True):
        assert torch.equal(one, other)


def assert_close_to_float64(loss, explicit, leaves, batch, tolerance, block_elements=None, **options):
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    ours = loss(leaves, batch, reduction="none", block_elements=block_elements, **options)
    wanted = explicit(exact, batch, reduction="none", **options)
    assert torch.equal(ours.isfinite(), wanted.isfinite())
    ours, wanted = (torch.where(x.isfinite(), x, 0) for x in (ours, wanted))
    torch.testing.assert_close(ours.double(), wanted, rtol=tolerance, atol=0)
    errors = relative_errors(gradients(ours, leaves), gradients(wanted, exact))
    assert max(errors) < tolerance, errors


def take_another_row(monkeypatch):
    """That of a GPU whose products are cuBLAS's. Backward in this thread, for each has a handle of its own."""
    monkeypatch.setenv("PRNN_GPU_ROW", "A100")
    monkeypatch.setattr(_handles._handles, "of", {})
    return torch.autograd.set_multithreading_enabled(False)


def assert_bad_values_concern_their_own_sequence(loss, leaves, targets, cost, gradient):
    """On a GPU; gradient: relative and absolute tolerance."""
    frames, symbols = torch.tensor([7, 4, 4], device="cuda"), torch.tensor([4, 2, 3], device="cuda")
    wanted = loss(leaves, (targets, frames, symbols), reduction="none")
    others = torch.tensor([1.0, 0.0, 1.0], dtype=wanted.dtype, device="cuda")
    wanted_gradients = torch.autograd.grad((wanted * others).sum(), leaves)
    for name, value in (("frames", 8), ("frames", 0), ("symbols", -1), ("symbols", 5), ("targets", 6), ("targets", 0)):
        changed = {"frames": frames.clone(), "symbols": symbols.clone(), "targets": targets.clone()}
        changed[name][(1, 1) if name == "targets" else 1] = value
        ours = loss(leaves, (changed["targets"], changed["frames"], changed["symbols"]), reduction="none")
        assert ours[1].isnan()
        torch.testing.assert_close(ours[[0, 2]], wanted[[0, 2]], rtol=cost, atol=0)
        ours = torch.autograd.grad(ours, leaves, torch.ones_like(others))
        assert not ours[0][1].any()
        assert not ours[1][1].any()
        for one, other in zip(ours, wanted_gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=gradient[0], atol=gradient[1])


def assert_repeats_bitwise_and_in_a_graph(loss, leaves, targets, frames, symbols):
    batch = targets, frames.cuda(), symbols.cuda()

    def step():
        value = loss(leaves, batch, block_elements=10000, fastemit_lambda=0.1)
        return value, *torch.autograd.grad(value, leaves)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        wanted = step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = step()
        for tensor in captured:
            tensor.detach().fill_(-1)
        graph.replay()
    stream.synchronize()
    for one, other in zip(captured, wanted, strict=True):
        assert torch.equal(one, other)


def assert_autocast(loss, explicit, leaves, batch, **options):
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    with torch.autocast("cuda", torch.bfloat16):
        ours = loss(leaves, batch, **options)
    assert ours.dtype == torch.float32
    ours = gradients(ours, leaves)
    assert [x.dtype for x in ours] == [torch.float32] * 4
    assert max(relative_errors(ours, gradients(explicit(exact, batch, **options), exact))) < 2e-2


def step_memory(loss, leaves, batch):
    """MiB at the peak of a second step, beside what lies there before it."""
    loss(leaves, batch).backward()
    for leaf in leaves:
        leaf.grad = None
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loss(leaves, batch).backward()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - held) / 2**20

"""What the tests of the losses with a joiner share."""

import pytest
import torch

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

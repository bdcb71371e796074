"""The losses under torch.func: reverse mode and vmap give what a plain call gives, forward mode is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import prnn

pytestmark = pytest.mark.filterwarnings("error:There is a performance drop")  # torch's, of operators without a rule

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def losses(device: str) -> dict[str, tuple[Callable[[Tensor], Tensor], Tensor]]:
    """A loss of one tensor, and that tensor."""
    generator = torch.Generator().manual_seed(0)

    def tensor(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    targets = torch.randint(1, 6, (3, 4), generator=generator).to(device)
    frames, lengths = torch.tensor([9, 7, 8]).to(device), torch.tensor([4, 0, 2]).to(device)
    batch = targets, frames, lengths
    logits, encoder, predictor, weight = tensor(3, 9, 5, 7), tensor(3, 9, 6), tensor(3, 5, 6), tensor(7, 6)
    boundary = torch.tensor([[0, 0, 4, 9], [0, 0, 0, 7], [0, 0, 2, 8]]).to(device)
    ranges = torch.zeros(3, 9, 1, dtype=torch.int64, device=device) + torch.arange(5, device=device)
    return {
        "ctc": (lambda x: prnn.ctc_loss(x, *batch), tensor(9, 3, 7)),
        "rnnt": (lambda x: prnn.rnnt_loss(x, *batch, blank=0), logits),
        "rnnt, costs": (lambda x: prnn.rnnt_loss(x, *batch, blank=0, reduction="none").sum(), logits),
        "rnnt, in place": (lambda x: prnn.rnnt_loss(x * 2, *batch, blank=0, inplace=True), logits),
        "tdt": (lambda x: prnn.tdt_loss(x, *batch, blank=0, durations=[0, 1]), tensor(3, 9, 5, 9)),
        "multi-blank": (lambda x: prnn.multi_blank_rnnt_loss(x, *batch, 7, [2]), tensor(3, 9, 5, 8)),
        "joint, encoder": (lambda x: prnn.joint_rnnt_loss(x, predictor, weight, None, *batch, blank=0), encoder),
        "joint, weight": (lambda x: prnn.joint_rnnt_loss(encoder, predictor, x, None, *batch, blank=0), weight),
        "joint, TDT": (
            lambda x: prnn.joint_tdt_loss(encoder, predictor, x, None, *batch, blank=0, durations=[1]),
            weight,
        ),
        "smoothed": (
            lambda x: prnn.rnnt_loss_smoothed(x, encoder, targets, 0, 0.25, 0.0, boundary=boundary),
            predictor,
        ),
        "pruned": (lambda x: prnn.rnnt_loss_pruned(x, targets, ranges, 0, boundary=boundary), logits),
    }


NAMES = list(losses("cpu"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_reverse_mode(name: str, device: str) -> None:
    loss, x = losses(device)[name]
    leaf = x.clone().requires_grad_()
    value = loss(leaf)
    (wanted,) = torch.autograd.grad(value, leaf)
    gradient, found = torch.func.grad_and_value(loss)(x)
    torch.testing.assert_close(found, value)
    torch.testing.assert_close(gradient, wanted)
    found, pull = torch.func.vjp(loss, x)
    torch.testing.assert_close(found, value)
    torch.testing.assert_close(pull(3 * torch.ones_like(value))[0], 3 * wanted)
    torch.testing.assert_close(torch.func.jacrev(loss)(x), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_around_a_transform_has_its_gradient(name: str) -> None:
    loss, x = losses("cpu")[name]
    factor = torch.ones((), requires_grad=True)
    wanted = (torch.func.grad(loss)(x) * x).sum()
    torch.func.vjp(loss, x * factor)[0].backward()
    torch.testing.assert_close(factor.grad, wanted)
    outer = torch.func.grad(lambda k: torch.func.vjp(loss, x * k)[0])(torch.ones(()))
    torch.testing.assert_close(outer, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_vmap(name: str) -> None:
    loss, x = losses("cpu")[name]
    both = torch.stack((x, 2 * x))
    torch.testing.assert_close(torch.vmap(loss)(both), torch.stack([loss(x), loss(2 * x)]))
    wanted = torch.stack([torch.func.grad(loss)(x), torch.func.grad(loss)(2 * x)])
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(both), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_batched_gradients(name: str) -> None:
    loss, x = losses("cpu")[name]
    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(leaf), leaf)
    (found,) = torch.autograd.grad(loss(leaf), leaf, torch.tensor([1.0, -2.0]), is_grads_batched=True)
    torch.testing.assert_close(found, torch.stack((wanted, -2 * wanted)))


@pytest.mark.parametrize("name", NAMES)
def test_second_and_forward_derivatives_are_refused(name: str) -> None:
    loss, x = losses("cpu")[name]
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        torch.func.grad(lambda y: (torch.func.grad(loss)(y) ** 2).sum())(x)
    with pytest.raises(RuntimeError, match="has no derivative in forward mode"):
        torch.func.jvp(loss, (x,), (x,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="has no derivative in forward mode"):
        loss(torch.autograd.forward_ad.make_dual(x, x))


@pytest.mark.parametrize("name", NAMES)
def test_forward_over_reverse_mode_is_refused(name: str) -> None:
    loss, x = losses("cpu")[name]
    with pytest.raises(RuntimeError, match="has no derivative in forward mode"):
        torch.func.jvp(torch.func.grad(loss), (x,), (x,))

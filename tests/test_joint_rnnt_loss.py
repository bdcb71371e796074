"""RNN-T with its joiner against the same loss on explicit logits."""

import math

import pytest
import torch

import prnn

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


def case(device="cpu", dtype=torch.float64, bias=True, n=3, t=7, u=4, d=5, v=6):
    generator = torch.Generator().manual_seed(1)

    def tensor(*shape):
        return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()

    leaves = [tensor(n, t, d), tensor(n, u + 1, d), tensor(v, d), tensor(v) if bias else None]
    targets = torch.randint(1, v, (n, u), generator=generator)
    frames = torch.tensor([t, max(1, t - 3), 1][:n])
    symbols = torch.tensor([u, max(0, u - 2), 0][:n])
    return leaves, targets.to(device), frames, symbols


def explicit(leaves, targets, frames, symbols, activation="tanh", **options):
    encoder, predictor, weight, bias = leaves
    meeting = encoder[:, :, None] + predictor[:, None]
    active = meeting.tanh() if activation == "tanh" else meeting.relu()
    return prnn.rnnt_loss(torch.nn.functional.linear(active, weight, bias), targets, frames, symbols, 0, **options)


def gradients(loss, leaves):
    weights = torch.linspace(0.5, 1.5, loss.numel(), dtype=loss.dtype, device=loss.device).view(loss.shape)
    return torch.autograd.grad((loss * weights).sum(), [leaf for leaf in leaves if leaf is not None])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_elements", [1, 40, 200, 10**6])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation": "relu"},
        {"rnnt_type": "modified"},
        {"rnnt_type": "constrained"},
        {"fastemit_lambda": 0.1},
        {"clamp": 0.05},
        {"delay_penalty": 0.2},
    ],
    ids=str,
)
def test_equals_explicit_logits(device, block_elements, options):
    leaves, *batch = case(device)
    ours = prnn.joint_rnnt_loss(*leaves, *batch, 0, reduction="none", block_elements=block_elements, **options)
    wanted = explicit(leaves, *batch, reduction="none", **options)
    torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)
    if options.get("rnnt_type", "regular") != "regular":  # some sequences have no path: infinite costs
        ours, wanted = (torch.where(x.isfinite(), x, 0) for x in (ours, wanted))
    for one, other in zip(gradients(ours, leaves), gradients(wanted, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_lengths_on_the_device_and_no_bias(device):
    leaves, targets, frames, symbols = case(device, bias=False)
    ours = prnn.joint_rnnt_loss(*leaves, targets, frames.to(device), symbols.to(device), 0, reduction="none")
    torch.testing.assert_close(ours, explicit(leaves, targets, frames, symbols, reduction="none"))


def test_padding_is_not_read():
    leaves, targets, frames, symbols = case()
    wanted = gradients(prnn.joint_rnnt_loss(*leaves, targets, frames, symbols, 0), leaves)
    with torch.no_grad():
        for n in range(3):
            leaves[0][n, frames[n] :] = math.nan
            leaves[1][n, symbols[n] + 1 :] = math.inf
    for one, other in zip(
        gradients(prnn.joint_rnnt_loss(*leaves, targets, frames, symbols, 0), leaves), wanted, strict=True
    ):
        assert torch.equal(one, other)


def test_gradcheck():
    leaves, *batch = case(n=2, t=4, u=2, d=3, v=4)
    assert torch.autograd.gradcheck(lambda *x: prnn.joint_rnnt_loss(*x, *batch, 0, reduction="none"), leaves)


def test_dropout_is_the_same_forward_and_backward():
    leaves, *batch = case(n=2, t=4, u=2, d=3, v=4)

    def loss(*x):
        torch.manual_seed(3)
        return prnn.joint_rnnt_loss(*x, *batch, 0, reduction="none", dropout=0.4)

    assert torch.autograd.gradcheck(loss, leaves)
    dropped = prnn.joint_rnnt_loss(*leaves, *batch, 0, reduction="none", dropout=0.4)
    assert not torch.equal(dropped, loss(*leaves))


def test_operators():
    leaves, targets, frames, symbols = case(n=2, t=4, u=2, d=3, v=4)
    arguments = (*leaves, targets.int(), frames.int(), symbols.int(), torch.stack((frames, symbols)))
    options = (0, 0, 0.0, 0, 0, False, 0.0, 0.0, 0.0, 100, True)
    torch.library.opcheck(torch.ops.prnn.joint_rnnt_loss.default, (*arguments, *options))


def test_module():
    torch.manual_seed(0)
    module = prnn.JointRNNTLoss(5, 6, blank=0).double()
    leaves, *batch = case()
    wanted = explicit([*leaves[:2], module.output.weight, module.output.bias], *batch)
    torch.testing.assert_close(module(*leaves[:2], *batch), wanted)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"activation": "gelu"}, ValueError, "activation is 'gelu'"),
        ({"dropout": 1.0}, ValueError, "dropout is 1.0"),
        ({"block_elements": 0}, ValueError, "block_elements is 0"),
        ({"predictor_out": torch.zeros(3, 5, 4, dtype=torch.float64)}, ValueError, "predictor_out has the shape"),
        ({"weight": torch.zeros(6, 5)}, TypeError, "weight is of torch.float32"),
        ({"bias": torch.zeros(5, dtype=torch.float64)}, ValueError, "bias has the shape"),
        ({"targets": torch.zeros(3, 5, dtype=torch.int64)}, ValueError, "targets has the shape"),
        ({"logit_lengths": torch.tensor([8, 1, 1])}, ValueError, "is 8"),
        ({"target_lengths": torch.tensor([4, -1, 1])}, ValueError, "is -1"),
        ({"blank": 6}, ValueError, "blank is 6"),
    ],
    ids=str,
)
def test_bad_input(change, error, message):
    leaves, targets, frames, symbols = case()
    names = ("encoder_out", "predictor_out", "weight", "bias")
    arguments = dict(zip(names, leaves, strict=True))
    arguments |= {"targets": targets, "logit_lengths": frames, "target_lengths": symbols, "blank": 0}
    with pytest.raises(error, match=message):
        prnn.joint_rnnt_loss(**{**arguments, **change})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2), (torch.float16, 4e-3)])
def test_types_on_a_gpu(dtype, tolerance):
    leaves, *batch = case("cuda", dtype, n=3, t=40, u=12, d=64, v=100)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    ours = prnn.joint_rnnt_loss(*leaves, *batch, 0)
    wanted = explicit(exact, *batch)
    torch.testing.assert_close(ours.double(), wanted, rtol=tolerance, atol=0)
    for one, other in zip(gradients(ours, leaves), gradients(wanted, exact), strict=True):
        scale = other.abs().max()
        torch.testing.assert_close(one.double() / scale, other / scale, rtol=0, atol=tolerance)

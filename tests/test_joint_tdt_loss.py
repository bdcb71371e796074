"""TDT with its joiner against the same loss on explicit logits."""

import math

import pytest
import torch
from joint_case import (
    DEVICES,
    TOLERANCES,
    assert_autocast,
    assert_bad_values_concern_their_own_sequence,
    assert_close_to_float64,
    assert_padding_is_not_read,
    assert_repeats_bitwise_and_in_a_graph,
    case,
    gradients,
    logits_of,
    needs_gpu,
    step_memory,
    take_another_row,
)

import prnn
from prnn import _C
from prnn._ops.duration import duration_options
from prnn._ops.joint import joint_tdt_options

STEPS = [2, 0, 1, 4]


def tdt_case(*arguments, durations=STEPS, **sizes):
    return case(*arguments, durations=len(durations), **sizes)


def ours_of(leaves, batch, durations=STEPS, **options):
    return prnn.joint_tdt_loss(*leaves, *batch, 0, durations, **options)


def explicit(leaves, batch, activation="tanh", durations=STEPS, **options):
    return prnn.tdt_loss(logits_of(leaves, activation), *batch, 0, durations, **options)


def assert_equal(leaves, batch, block_elements=None, cost=1e-12, gradient=1e-10, **options):
    ours = ours_of(leaves, batch, reduction="none", block_elements=block_elements, **options)
    wanted = explicit(leaves, batch, reduction="none", **options)
    assert wanted.isfinite().any()
    torch.testing.assert_close(ours, wanted, rtol=cost, atol=cost)
    # Sequences of which no path reaches the end cost infinity.
    ours, wanted = (torch.where(x.isfinite(), x, 0) for x in (ours, wanted))
    for one, other in zip(gradients(ours, leaves), gradients(wanted, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=gradient, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block_elements", [1, 40, 200, 10**6])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation": "relu"},
        {"sigma": 0.05},
        {"omega": 0.3, "sigma": 0.05},
        {"omega": 1.0},
        {"fastemit_lambda": 0.1},
        {"clamp": 0.05},
        {"durations": [1]},
        {"durations": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]},
    ],
    ids=str,
)
def test_equals_explicit_logits(device, block_elements, options):
    leaves, *batch = tdt_case(device, durations=options.get("durations", STEPS))
    assert_equal(leaves, batch, block_elements, **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_reductions(device, reduction, zero_infinity):
    """The last sequence has one frame, which no blank of two frames ends."""
    leaves, *batch = tdt_case(device, durations=[0, 2])
    options = {"durations": [0, 2], "reduction": reduction, "zero_infinity": zero_infinity}
    ours, wanted = ours_of(leaves, batch, **options), explicit(leaves, batch, **options)
    assert bool(ours.isfinite().all()) == zero_infinity
    torch.testing.assert_close(ours, wanted)
    for one, other in zip(gradients(ours, leaves), gradients(wanted, leaves), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("device", DEVICES)
def test_two_heads_no_bias_lengths_on_the_device_and_another_blank(device):
    leaves, targets, frames, symbols = tdt_case(device, bias=False)
    encoder, predictor, weight, _ = leaves
    heads = [part.detach().requires_grad_() for part in weight.split([6, 4])]
    targets = targets - 1  # the blank is the last token
    ours = prnn.joint_tdt_loss(
        encoder, predictor, torch.cat(heads), None, targets, frames.to(device), symbols.to(device), -1, STEPS
    )
    wanted = prnn.tdt_loss(logits_of(leaves), targets, frames, symbols, 5, STEPS)
    torch.testing.assert_close(ours, wanted)
    found, expected = gradients(ours, heads), gradients(wanted, leaves)[2]
    torch.testing.assert_close(torch.cat(found), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("filling", [math.nan, math.inf])
def test_padding_is_not_read(device, dtype, filling):
    leaves, targets, *_ = tdt_case(device, dtype)
    assert_padding_is_not_read(ours_of, leaves, targets, filling)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradcheck(device, dropout):
    leaves, *batch = tdt_case(device, n=2, t=4, u=2, d=3, v=4)

    def loss(*x):
        torch.manual_seed(3)
        return ours_of(x, batch, reduction="none", dropout=dropout, omega=0.2)

    assert torch.autograd.gradcheck(loss, leaves)


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_is_that_of_rnnt(device):
    """Without the last rows of the output layer, and with RNN-T alone drawn."""
    leaves, *batch = tdt_case(device)
    torch.manual_seed(3)
    ours = ours_of(leaves, batch, dropout=0.4, omega=1.0)
    torch.manual_seed(3)
    rows = [*leaves[:2], leaves[2][:6], leaves[3][:6]]
    torch.testing.assert_close(ours, prnn.joint_rnnt_loss(*rows, *batch, 0, dropout=0.4))


def test_operators():
    leaves, targets, frames, symbols = tdt_case(n=2, t=4, u=2, d=3, v=4)
    arguments = (*leaves, targets.int(), frames.int(), symbols.int(), None)
    options = (0, 0.0, 100, STEPS, *duration_options(type=_C.DURATION_TDT), True)
    torch.library.opcheck(torch.ops.prnn.joint_tdt_loss_blockwise.default, (*arguments, *options))


@pytest.mark.parametrize("device", DEVICES)
def test_compiles_and_transforms(device):
    leaves, targets, frames, symbols = tdt_case(device)
    batch = targets, frames.to(device), symbols.to(device)

    def loss(*x):
        return ours_of(x, batch, reduction="sum")

    wanted = torch.autograd.grad(loss(*leaves), leaves)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    transformed = torch.func.grad(loss, argnums=(0, 1, 2, 3))
    for ours in (torch.autograd.grad(compiled(*leaves), leaves), transformed(*leaves)):
        for one, other in zip(ours, wanted, strict=True):
            torch.testing.assert_close(one, other)


def test_module():
    module = prnn.JointTDTLoss(5, 6, 0, STEPS, sigma=0.05, omega=0.1).double()
    leaves, *batch = tdt_case()
    layers = [*leaves[:2], module.output.weight, module.output.bias]
    torch.testing.assert_close(module(*leaves[:2], *batch), explicit(layers, batch, sigma=0.05, omega=0.1))
    other = prnn.JointTDTLoss(5, 6, -1, [0, 1], bias=False, device="meta", dtype=torch.float16).output
    assert (other.weight.shape, other.weight.device.type, other.weight.dtype) == ((8, 5), "meta", torch.float16)
    assert "durations=[2, 0, 1, 4]" in repr(module)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"activation": "gelu"}, ValueError, "activation is 'gelu'"),
        ({"dropout": 1.0}, ValueError, "dropout is 1.0"),
        ({"block_elements": 0}, ValueError, "block_elements is 0"),
        ({"durations": [0]}, ValueError, "durations"),
        ({"durations": list(range(10))}, ValueError, r"with 10 durations it must have more rows"),
        ({"omega": 1.5}, ValueError, "omega is 1.5"),
        ({"sigma": math.inf}, ValueError, "sigma is inf"),
        ({"reduction": "max"}, ValueError, "reduction is 'max'"),
        ({"weight": torch.zeros(10, 5)}, TypeError, "weight is of torch.float32"),
        ({"targets": torch.zeros(3, 5, dtype=torch.int64)}, ValueError, "must be U . 1, here 6"),
        ({"targets": torch.full((3, 4), 6)}, ValueError, "hold 6 at position 0; it must be 0 to 5"),
        ({"logit_lengths": torch.tensor([8, 1, 1])}, ValueError, "is 8"),
        ({"target_lengths": torch.tensor([4, -1, 1])}, ValueError, "is -1"),
        ({"blank": 6}, ValueError, "blank is 6"),
    ],
    ids=str,
)
def test_bad_input(change, error, message):
    leaves, targets, frames, symbols = tdt_case()
    names = ("encoder_out", "predictor_out", "weight", "bias")
    arguments = dict(zip(names, leaves, strict=True))
    arguments |= {"targets": targets, "logit_lengths": frames, "target_lengths": symbols, "blank": 0}
    with pytest.raises(error, match=message):
        prnn.joint_tdt_loss(**{**arguments, "durations": STEPS, **change})


# ---- On a GPU alone ----


@needs_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(
    "sizes", [{"d": 64, "v": 100}, {"d": 51, "v": 37}, {"d": 512, "v": 1030}, {"d": 64, "v": 253}], ids=str
)
@pytest.mark.parametrize("options", [{}, {"clamp": 0.01, "omega": 0.2, "sigma": 0.05, "activation": "relu"}], ids=str)
def test_types(dtype, tolerance, sizes, options):
    """The duration logits of 253 tokens lie in two blocks of columns."""
    leaves, *batch = tdt_case("cuda", dtype, n=3, t=40, u=12, **sizes)
    assert_close_to_float64(ours_of, explicit, leaves, batch, tolerance, **options)


@needs_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_types_without_hopper(dtype, tolerance, monkeypatch):
    leaves, *batch = tdt_case("cuda", dtype, n=3, t=40, u=12, d=51, v=37)
    with take_another_row(monkeypatch):
        assert_close_to_float64(ours_of, explicit, leaves, batch, tolerance, block_elements=4000)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_bad_lengths_and_symbols_concern_their_own_sequence(dtype):
    leaves, targets, *_ = tdt_case("cuda", dtype)
    gradient = 2e-2, 2e-2 if dtype == torch.bfloat16 else 1e-5
    assert_bad_values_concern_their_own_sequence(ours_of, leaves, targets, 1e-6, gradient)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_repeats_bitwise_and_in_a_graph(dtype):
    assert_repeats_bitwise_and_in_a_graph(ours_of, *tdt_case("cuda", dtype, n=3, t=40, u=12, d=64, v=100))


@needs_gpu
def test_autocast():
    leaves, *batch = tdt_case("cuda", torch.float32, n=3, t=40, u=12, d=64, v=100)
    assert_autocast(ours_of, explicit, leaves, batch, zero_infinity=True)


@needs_gpu
def test_memory_is_bounded_by_the_lattice():
    """Logits would be 8 x 150 x 41 x 8198: 807 MB. Beside the gradients."""
    leaves, *batch = tdt_case("cuda", torch.bfloat16, n=8, t=150, u=40, d=640, v=8194)
    batch[1:] = [torch.full((8,), 150), torch.full((8,), 40)]
    own = sum(leaf.numel() * leaf.element_size() for leaf in leaves) / 2**20
    assert step_memory(ours_of, leaves, batch) - own < 150


@needs_gpu
def test_operators_on_a_gpu():
    leaves, targets, frames, symbols = tdt_case("cuda", n=2, t=4, u=2, d=3, v=4)
    lengths = (frames.int().cuda(), symbols.int().cuda())
    arguments = (*leaves, targets.int(), *lengths, None, torch.stack((frames, symbols)), STEPS)
    torch.library.opcheck(torch.ops.prnn.joint_tdt_loss.default, (*arguments, *joint_tdt_options(), True))

"""The sLSTM's operator on the CPU: values and gradients beside float64, and what numbers it stands."""

import pytest
import torch
from reference import slstm as reference
from slstm_case import Case, as_stored, config_of

from prnn import _C, NotSupportedError
from prnn._ops import rnn as ops
from prnn._ops._handles import DTYPES

STACKS = {
    "one layer": reference.Stack(5, 12),
    "exponential": reference.Stack(5, 12, heads=3, sigmoid=False),
    "heads": reference.Stack(5, 60, heads=3),
    "layers": reference.Stack(7, 24, heads=2, layers=3),
    "two directions": reference.Stack(3, 20, heads=2, layers=2, directions=2),
    "gates": reference.Stack(0, 20, heads=2, layers=2, directions=2, gates_input=True),
}
TOLERANCES = {torch.float64: 1e-11, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


def compare(case: Case, used: tuple[int, ...] = (0, 1, 2)) -> None:
    expected, found = case.expected(used), case.found(used)
    tolerance = TOLERANCES[case.dtype]
    expected["cy"] = as_stored(expected["cy"], found["cy"])
    for name, wanted in expected.items():
        size = max(1.0, wanted.abs().max().item())
        torch.testing.assert_close(found[name], wanted, atol=tolerance * size, rtol=tolerance, msg=name)


@pytest.mark.parametrize("resets", [False, True], ids=["", "resets"])
@pytest.mark.parametrize("with_states", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("name", STACKS)
def test_values_and_gradients(name: str, with_states: bool, resets: bool) -> None:
    compare(Case(STACKS[name], [4, 4, 3, 3, 1, 1, 1], with_states=with_states, resets=resets))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_other_types(dtype: torch.dtype) -> None:
    compare(Case(STACKS["heads"], [5, 5, 5, 2, 2, 1], dtype, resets=True))
    compare(Case(STACKS["gates"], [5, 5, 4, 1], dtype, with_states=False))


def test_gradients_of_each_output_alone() -> None:
    """The gradients of c, n and m go through the maximum that m is."""
    for sigmoid in (True, False):
        case = Case(reference.Stack(3, 8, heads=2, sigmoid=sigmoid), [3, 3, 2])
        for used in ((0,), (1,), (2,)):
            compare(case, used)


def test_gradients_of_states_before_the_first_timestep() -> None:
    """n is 0: m is taken from the input gate, whatever it was."""
    case = Case(reference.Stack(3, 8, heads=2), [3, 3, 2])
    states = case.tensors["cx"].unflatten(0, (-1, 3))
    states[:, :2] = 0
    compare(case)
    fresh = Case(reference.Stack(3, 8, heads=2), [3, 3, 2], with_states=False)
    fresh.tensors.update({name: t for name, t in case.tensors.items() if name not in ("hx", "cx")})
    case.tensors["hx"].zero_()
    assert case.found()["y"].equal(fresh.found()["y"])


def test_some_units_have_no_state_yet() -> None:
    case = Case(reference.Stack(3, 8, heads=2, layers=2), [4, 4, 2, 1], resets=True)
    states = case.tensors["cx"].unflatten(1, (-1, 3))
    states[:, :, :2] *= torch.rand(states[:, :, :1].shape) < 0.5
    compare(case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sigmoid", [True, False])
def test_gates_of_any_size(sigmoid: bool, dtype: torch.dtype) -> None:
    """Gates of +-10,000, where exponentials overflow without m."""
    torch.manual_seed(0)
    stack = reference.Stack(0, 16, heads=2, sigmoid=sigmoid, gates_input=True)
    x = (torch.randint(-1, 2, (40, 3, 64)) * 1e4).to(dtype).requires_grad_()
    weights = [torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in reference.weight_shapes(stack)]
    y, hy, cy, _ = ops.call(x, None, None, weights, None, None, None, [], None, None, config_of(stack))
    zeros = [torch.zeros(2, 3, 8, dtype=torch.float64), torch.zeros(6, 3, 8, dtype=torch.float64)]
    sizes, doubles = [3] * 40, [weight.detach().double() for weight in weights]
    expected, *_ = reference.forward(stack, x.detach().double().flatten(0, 1), sizes, doubles, *zeros)
    torch.testing.assert_close(y.flatten(0, 1).double(), expected, atol=1e-2, rtol=1e-2)
    gradients = torch.autograd.grad((y, hy, cy), [x, *weights], [torch.ones_like(t) for t in (y, hy, cy)])
    assert all(gradient.isfinite().all() for gradient in (y, hy, cy, *gradients))


def test_ten_thousand_timesteps() -> None:
    torch.manual_seed(0)
    stack = reference.Stack(0, 4, gates_input=True)
    x = torch.randn(10_000, 1, 16, dtype=torch.float64)
    x[..., 4:8] += 8  # gates that forget next to nothing
    weights = [torch.randn(shape, dtype=torch.float64) * 0.3 for shape in reference.weight_shapes(stack)]
    zeros = [torch.zeros(1, 1, 4, dtype=torch.float64), torch.zeros(3, 1, 4, dtype=torch.float64)]
    expected = reference.forward(stack, x[:, 0], [1] * 10_000, weights, *zeros)
    arguments = (None, None, None, [], None, None, config_of(stack))
    floats = [weight.float() for weight in weights]
    found = ops.call(x.float().requires_grad_(), None, None, floats, *arguments)
    torch.testing.assert_close(found[0][:, 0].double(), expected[0], atol=1e-3, rtol=0)
    torch.testing.assert_close(found[2].double(), expected[2], atol=1e-2, rtol=1e-3)
    assert torch.autograd.grad(found[0].sum(), found[0].grad_fn.next_functions[0][0].variable)[0].isfinite().all()


def test_padding_is_not_read() -> None:
    stack = reference.Stack(5, 12, heads=2)
    torch.manual_seed(0)
    weights = [torch.randn(shape) * 0.3 for shape in reference.weight_shapes(stack)]
    x, lengths = torch.randn(6, 3, 5), torch.tensor([2, 6, 4])
    cx = torch.rand(6, 3, 6) + 1
    results = []
    for padding in (0.0, float("nan")):
        data = x.clone()
        for n, length in enumerate(lengths):
            data[length:, n] = padding
        data.requires_grad_()
        y, hy, cy, _ = ops.call(data, None, cx, weights, None, lengths, None, [], None, None, config_of(stack))
        (dx,) = torch.autograd.grad((y, hy, cy), [data], [torch.ones_like(t) for t in (y, hy, cy)])
        results.append((y, hy, cy, dx))
        with torch.no_grad():
            inference = ops.call(data, None, cx, weights, None, lengths, None, [], None, None, config_of(stack))
        assert all(a.equal(b) for a, b in zip(inference[:3], (y, hy, cy), strict=True))
    assert all(a.equal(b) and not a.isnan().any() for a, b in zip(*results, strict=True))
    alone = ops.call(x[:2, :1], None, cx[:, :1], weights, None, None, None, [], None, None, config_of(stack))
    torch.testing.assert_close(results[0][2][:, :1], alone[2])


def test_dropout_between_layers_masks_and_frozen_layers() -> None:
    stack = reference.Stack(5, 12, heads=2, layers=2)
    torch.manual_seed(0)
    weights = [torch.randn(shape, requires_grad=True) for shape in reference.weight_shapes(stack)]
    x, seed = torch.randn(6, 3, 5), torch.tensor([3, 4])
    half = config_of(stack)._replace(dropout=0.5)
    y, *_ = ops.call(x, None, None, weights, None, None, None, [], seed, None, half)
    again, *_ = ops.call(x, None, None, weights, None, None, None, [], seed, None, half)
    plain, *_ = ops.call(x, None, None, weights, None, None, None, [], None, None, config_of(stack))
    assert y.equal(again)
    assert not y.equal(plain)
    mask = torch.zeros(4, 3, 6)
    masked, *_ = ops.call(
        x, None, None, weights, None, None, None, [None, mask], None, None, config_of(stack)._replace(mask_kinds=2)
    )
    without = [w.detach() * (0 if w.shape[-2:] == (6, 6) else 1) for w in weights]
    expected, *_ = ops.call(x, None, None, without, None, None, None, [], None, None, config_of(stack))
    torch.testing.assert_close(masked, expected)
    whole = torch.autograd.grad(plain.sum(), weights)
    for weight in (weights[0], weights[1], weights[4], weights[5]):
        weight.requires_grad_(False)
    upper, *_ = ops.call(x, None, None, weights, None, None, None, [], None, None, config_of(stack))
    rest = [weights[index] for index in (2, 3, 6, 7)]
    for index, gradient in zip((2, 3, 6, 7), torch.autograd.grad(upper.sum(), rest), strict=True):
        torch.testing.assert_close(gradient, whole[index])


def test_what_it_has_not() -> None:
    stack = reference.Stack(5, 12)
    x, weights = torch.randn(2, 1, 5), [torch.zeros(shape) for shape in reference.weight_shapes(stack)]

    def call(**changes: object) -> object:
        config = config_of(stack)._replace(**changes)
        return ops.call(x, None, None, weights, None, None, None, [], None, None, config)

    with pytest.raises(ValueError, match="projSize is 3 with PRNN_SLSTM; only PRNN_LSTM has a projection"):
        call(proj_size=3)
    with pytest.raises(NotSupportedError, match="zoneoutExpectation is given with PRNN_SLSTM"):
        call(zoneout=0.5)
    with pytest.raises(ValueError, match="cells is given with PRNN_SLSTM; only PRNN_LSTM has c of every timestep"):
        call(return_cells=True)
    with pytest.raises(ValueError, match="with PRNN_GATES_INPUT it must be that of the gates, 48"):
        call(gates_input=True)
    with pytest.raises(NotSupportedError, match="PRNN_GATES_INPUT with PRNN_GRU"):
        call(mode=ops.MODES["GRU"], gates_input=True)
    with pytest.raises(ValueError, match=r"cx has shape \(1, 1, 12\); it must be \(3, 1, 12\)"):
        ops.call(x, None, torch.zeros(1, 1, 12), weights, None, None, None, [], None, None, config_of(stack))


@pytest.mark.parametrize(
    ("dtype", "hidden", "heads", "batch", "forward", "backward"),
    [
        (torch.bfloat16, 512, 4, 16, "cluster", "cluster"),
        (torch.float16, 2048, 4, 64, "cluster", "cluster"),
        (torch.float32, 512, 4, 1, "simt", "simt"),
        (torch.float32, 512, 4, 16, "mma", "mma"),
        (torch.bfloat16, 1024, 1, 16, "mma", "mma"),
        (torch.bfloat16, 1280, 1, 16, "mma-large", "mma"),
    ],
)
def test_plans(dtype: torch.dtype, hidden: int, heads: int, batch: int, forward: str, backward: str) -> None:
    """cuDNN has none of them."""
    rnn = _C.Rnn(_C.SLSTM, DTYPES[dtype], hidden, 2, 64, False, heads=heads)
    info = rnn.query_gpu("H200", batch)
    assert (info["forward_engine"], info["backward_engine"]) == (forward, backward)
    assert info["backend"] == info["inference_backend"] == _C.PERSISTENT_BACKEND
    assert info["layers_together"] == 1
    assert info["layers_reason"] == "layers of an sLSTM run one after the other"
    rnn.set_backend(_C.CUDNN_BACKEND)
    assert rnn.query_gpu("H200", batch)["reason"] == "cuDNN has no sLSTM"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_sequence_in_parts_is_the_whole(dtype: torch.dtype) -> None:
    """In 16 bits, in which m is rounded by more than c and n stand."""
    torch.manual_seed(0)
    stack = reference.Stack(0, 16, heads=2, sigmoid=False, gates_input=True)
    x = torch.randn(40, 3, 64)
    x[..., 16:32] += 2.7  # m grows beyond 100
    weights = [(torch.randn(shape) * 0.1).to(dtype) for shape in reference.weight_shapes(stack)]
    arguments = (weights, None, None, None, [], None, None, config_of(stack))
    whole, *_ = ops.call(x.to(dtype), None, None, *arguments)
    first, hy, cy, _ = ops.call(x[:39].to(dtype), None, None, *arguments)
    assert cy.unflatten(0, (-1, 3))[:, 2].max() > 90
    second, *_ = ops.call(x[39:].to(dtype), hy, cy, *arguments)
    torch.testing.assert_close(torch.cat([first, second]), whole, atol=8e-3, rtol=8e-3)

"""prnn.nn.sLSTM on the CPU: values and gradients beside its formulas in float64, what it takes and what it refuses."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from nn_slstm_case import Case, both, compare, written_out
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import prnn

CASES = [
    Case(),
    Case(forget_gate="exponential"),
    Case(steps=1, batch=1, hidden=1, inputs=1),
    Case(steps=1, batch=1, states=False),
    Case(hidden=12, heads=4, layers=2),
    Case(hidden=21, heads=3, batch=1, forget_gate="exponential"),
    Case(hidden=9, heads=1, layers=3, bias=False),
    Case(steps=20, batch=17, hidden=64, heads=4),
    Case(batch=4, lengths=(6, 1, 3, 6), layers=2, heads=2),
    Case(batch=4, lengths=(2, 2, 2, 2)),
    Case(reset=True, layers=2, heads=3),
    Case(reset=True, reset_states=True, batch=4, lengths=(6, 1, 3, 6)),
    Case(reset=True, reset_states=True, heads=2, states=False),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_its_formulas(case: Case) -> None:
    compare(case, torch.float64, 1e-10)
    compare(case, torch.float32, 2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", [Case(), Case(heads=3, layers=2), Case(batch=4, lengths=(6, 1, 3, 6))], ids=str)
def test_16_bits_are_computed_in_float32(case: Case, dtype: torch.dtype) -> None:
    # Rounded once: half a unit in the last place of the largest element, and float32's own error. A layer above, and
    # all gradients, read hidden states that were rounded; as many times as there are timesteps in their sums at most.
    ours, theirs = both(case, dtype)
    for state in "cn":  # as of the m that was rounded: c exp(m) and n exp(m) are the state
        theirs[state] = theirs[state] * torch.exp(theirs["m"] - ours["m"])
    unit = torch.finfo(dtype).eps / 2
    for name, expected in theirs.items():
        scale = expected.abs().max().clamp_min(1)
        roundings = 1 if not name.startswith("grad") and case.layers == 1 else 1 + case.steps
        assert (ours[name] - expected).abs().max() <= (roundings * unit + 2e-5) * scale, name


@pytest.mark.parametrize("forget_gate", ["sigmoid", "exponential"])
def test_gradcheck(forget_gate: str) -> None:
    case = Case(4, 2, 3, 4, layers=2, heads=2, forget_gate=forget_gate, reset=True, reset_states=True)
    module = case.module(torch.float64)
    input, options = case.arguments(torch.float64)
    names = [name for name, _ in module.named_parameters()]
    hx, reset_hx = options["hx"], options["reset_hx"]

    def run(*tensors: Any) -> tuple[torch.Tensor, ...]:
        given = {"hx": tensors[1:5], "reset": options["reset"], "reset_hx": tensors[5:9]}
        weights = dict(zip(names, tensors[9:], strict=True))
        output, states = torch.func.functional_call(module, weights, (tensors[0],), given)
        return output, *states

    assert torch.autograd.gradcheck(run, (input, *hx, *reset_hx, *module.parameters()))


@pytest.mark.parametrize("forget_gate", ["sigmoid", "exponential"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gates_of_any_size(dtype: torch.dtype, forget_gate: str) -> None:
    case = Case(steps=8, forget_gate=forget_gate, states=False)
    module = case.module(dtype)
    input, _ = case.arguments(dtype)
    input = input.detach() * 1e4
    input[3] *= -1
    input.requires_grad_()
    output, states = module(input)
    weights = {name: parameter.double() for name, parameter in module.named_parameters()}
    expected, expected_states = written_out(module, weights, input.double())
    # A gate is a sum of products of this size, whose rounding is the error of an exponent.
    gates = (input.detach().abs() @ module.weight_ih_l0.abs().t()).max().item()
    tolerance = 4 * gates * torch.finfo(dtype).eps
    for own, wanted in zip((output, *states), (expected, *expected_states), strict=True):
        assert own.isfinite().all()
        torch.testing.assert_close(own.double(), wanted, rtol=tolerance, atol=tolerance)
    (output.sum() + sum(state.sum() for state in states)).backward()
    assert all(tensor.grad.isfinite().all() for tensor in (input, *module.parameters()))


@pytest.mark.parametrize("gate", range(4), ids="ifzo")
@pytest.mark.parametrize("value", [-1e4, 1e4])
def test_one_gate_of_any_size(gate: int, value: float) -> None:
    module = Case(states=False).module(torch.float32)
    with torch.no_grad():
        module.bias_ih_l0.view(4, -1)[gate] = value
    input, _ = Case().arguments(torch.float32)
    output, states = module(input)
    assert all(found.isfinite().all() for found in (output, *states))
    (output.sum() + states[1].sum()).backward()
    assert all(tensor.grad.isfinite().all() for tensor in (input, *module.parameters()))
    assert (states[2] >= 1).all()


def test_many_timesteps() -> None:
    case = Case(steps=10_000, batch=1, hidden=4, inputs=2, states=False)
    module = case.module(torch.float32)
    input, _ = case.arguments(torch.float32)
    output, states = module(input)
    weights = {name: parameter.double() for name, parameter in module.named_parameters()}
    with torch.no_grad():
        expected, expected_states = written_out(module, weights, input.double())
    for own, wanted in zip((output, *states), (expected, *expected_states), strict=True):
        torch.testing.assert_close(own.double(), wanted, rtol=2e-5, atol=2e-5)
    output.sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in (input, *module.parameters()))


def test_first_timestep() -> None:
    module = Case().module(torch.float64)
    input, _ = Case().arguments(torch.float64)
    _, (h, c, n, m) = module(input[:1])
    gates = input[0] @ module.weight_ih_l0.t() + module.bias_ih_l0 + module.bias_hh_l0
    i, _, z, o = gates.chunk(4, -1)
    torch.testing.assert_close(m[0], i)
    torch.testing.assert_close(c[0], z.tanh())
    torch.testing.assert_close(h[0], o.sigmoid() * z.tanh())
    assert torch.equal(n, torch.ones_like(n))


def test_which_side_m_is_matters_to_c_and_not_to_h() -> None:
    module = prnn.nn.sLSTM(1, 1, forget_gate="exponential", dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.zero_()
            if name == "weight_ih_l0":
                parameter.copy_(torch.tensor([[1.0], [0.0], [0.5], [0.0]]))
    hx = [torch.full((1, 1, 1), value, dtype=torch.float64) for value in (0.0, 0.3, 1.0, 0.0)]
    gradients: list[list[float]] = [[], []]
    for i in (-1e-9, 1e-9):  # of the tie with f + m
        for index in range(2):
            x = torch.full((1, 1, 1), i, dtype=torch.float64, requires_grad=True)
            _, states = module(x, tuple(hx))
            gradients[index].append(torch.autograd.grad(states[index].sum(), x)[0].item())
    (h_below, h_above), (c_below, c_above) = gradients
    assert abs(h_below - h_above) < 1e-8
    assert abs(c_below - c_above) > 0.1


def test_chunks_are_the_whole() -> None:
    case = Case(steps=9, layers=2, heads=2, states=False)
    module = case.module(torch.float32)
    input, _ = case.arguments(torch.float32)
    whole, last = module(input)
    states, outputs = None, []
    for chunk in input.split([4, 1, 3, 1]):
        output, states = module(chunk, states)
        outputs.append(output)
    assert all(map(torch.equal, (torch.cat(outputs), *states), (whole, *last)))


def test_padding_has_no_influence() -> None:
    case = Case(batch=3, layers=2, heads=2, states=False)
    module = case.module(torch.float64)
    input, _ = case.arguments(torch.float64)
    lengths = [4, 1, 6]
    padded = input.detach().clone()
    for place, length in enumerate(lengths):
        padded[length:, place] = math.nan
    padded.requires_grad_()
    output, states = module(padded, lengths=lengths)
    (output.sum() + sum(state.sum() for state in states)).backward()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())
    for place, length in enumerate(lengths):
        own, last = module(input[:length, place])
        torch.testing.assert_close(output[:length, place], own)
        assert not output[length:, place].any()
        assert not padded.grad[length:, place].any()
        for state, wanted in zip(states, last, strict=True):
            torch.testing.assert_close(state[:, place], wanted)


def test_layouts() -> None:
    case = Case(batch=3, layers=2, heads=2)
    module = case.module(torch.float64)
    input, options = case.arguments(torch.float64)
    hx, lengths = options["hx"], torch.tensor([4, 1, 6])
    expected, last = module(input, hx, lengths=lengths)
    batch_first = copy.deepcopy(module)
    batch_first.batch_first = True
    output, states = batch_first(input.transpose(0, 1), hx, lengths=lengths)
    assert torch.equal(output.transpose(0, 1), expected)
    mask = torch.arange(6)[:, None] < lengths
    packed = pack_padded_sequence(input, lengths, enforce_sorted=False)
    for found, other in (module(packed, hx), module(input, hx, mask=mask)):
        found = pad_packed_sequence(found)[0] if not isinstance(found, torch.Tensor) else found
        assert torch.equal(found, expected)
        assert all(map(torch.equal, other, last))
    assert all(map(torch.equal, states, last))
    one, own = module(input[:, 1], tuple(state[:, 1] for state in hx))
    whole, of_all = module(input, hx)
    torch.testing.assert_close(one, whole[:, 1])
    for state, wanted in zip(own, of_all, strict=True):
        torch.testing.assert_close(state, wanted[:, 1])


def test_no_sequences() -> None:
    module = Case().module(torch.float32)
    output, states = module(torch.empty(3, 0, 5, requires_grad=True))
    assert output.shape == (3, 0, 12)
    assert [state.shape for state in states] == [(1, 0, 12)] * 4
    output.sum().backward()


def test_parameters_and_initial_values() -> None:
    module = prnn.nn.sLSTM(5, 12, 2, heads=3)
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    assert shapes["weight_ih_l0"] == (48, 5)
    assert shapes["weight_ih_l1"] == (48, 12)
    assert shapes["weight_hh_l1"] == (3, 16, 4)
    assert shapes["bias_ih_l0"] == shapes["bias_hh_l1"] == (48,)
    for layer in range(2):
        bias = getattr(module, f"bias_ih_l{layer}").view(3, 4, 4)
        torch.testing.assert_close(bias[:, 1], torch.linspace(3, 6, 4).expand(3, 4))
        assert not bias[:, [0, 2, 3]].any()
        assert not getattr(module, f"bias_hh_l{layer}").any()
    assert 0.4 < module.weight_hh_l0.abs().max() <= 0.5
    plain = prnn.nn.sLSTM(5, 12, forget_gate="exponential")
    assert plain.weight_hh_l0.shape == (48, 12)
    assert not plain.bias_ih_l0.any()
    assert len(list(prnn.nn.sLSTM(5, 12, bias=False).parameters())) == 2
    assert str(module) == "prnn.nn.sLSTM(5, 12, num_layers=2, heads=3)"
    assert str(plain) == "prnn.nn.sLSTM(5, 12, forget_gate='exponential')"


def test_copies_and_state_dicts() -> None:
    case = Case(layers=2, heads=2, forget_gate="exponential")
    module = case.module(torch.float32)
    input, options = case.arguments(torch.float32)
    expected, _ = module(input, **options)
    other = prnn.nn.sLSTM(5, 12, 2, heads=2, forget_gate="exponential")
    other.load_state_dict(module.state_dict())
    for made in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module)), module.double().float()):
        assert torch.equal(made(input, **options)[0], expected)


def test_dropout_between_layers() -> None:
    torch.manual_seed(0)
    module = prnn.nn.sLSTM(4, 8, 2, dropout=0.9)
    input = torch.randn(5, 64, 4)
    trained, evaluated = module(input)[0], module.eval()(input)[0]
    assert not torch.equal(trained, evaluated)
    with pytest.raises(ValueError, match="dropout is 1"):
        prnn.nn.sLSTM(4, 8, 2, dropout=1.0)


def test_transforms_and_compiled_functions() -> None:
    module = Case(layers=2, heads=2).module(torch.float64)
    input, options = Case(layers=2, heads=2).arguments(torch.float64)
    expected, last = module(input, options["hx"])
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    output, states = compiled(input, options["hx"])
    for own, wanted in zip((output, *states), (expected, *last), strict=True):
        torch.testing.assert_close(own, wanted)

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, weights, (x,))[0].square().sum()

    weights = {name: parameter.detach() for name, parameter in module.named_parameters()}
    each = torch.func.vmap(torch.func.grad(loss), (None, 1))(weights, input.detach().unsqueeze(2))
    for place in range(3):
        own = torch.func.grad(loss)(weights, input.detach()[:, place : place + 1])
        for name, gradient in own.items():
            torch.testing.assert_close(each[name][place], gradient)


def test_autocast() -> None:
    module = Case(heads=2).module(torch.float32)
    input, options = Case(heads=2).arguments(torch.float32)
    expected, last = module(input, options["hx"])
    with torch.autocast("cpu", torch.bfloat16):
        output, states = module(input, options["hx"])
        again, _ = module(input, states)
    assert output.dtype == states[0].dtype == again.dtype == torch.bfloat16
    assert all(state.dtype == torch.float32 for state in states[1:])
    for own, wanted in zip((output, *states), (expected, *last), strict=True):
        torch.testing.assert_close(own.float(), wanted, rtol=2**-8, atol=2**-8)


def test_explained() -> None:
    found = prnn.explain(prnn.nn.sLSTM(80, 64, 2, heads=4), 8)
    assert found.layers[0].supported
    assert "sLSTM 80 -> 64, 2 layers, 4 heads" in str(found)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"hx": torch.zeros(1, 3, 12)}, TypeError, r"hx is a Tensor; it must be the initial states \(h, c, n, m\)"),
        ({"hx": (torch.zeros(1, 3, 12),) * 2}, TypeError, "hx is a tuple of 2"),
        ({"hx": (torch.zeros(1, 2, 12),) * 4}, ValueError, r"hx\[0\] has shape \(1, 2, 12\); it must be \(1, 3, 12\)"),
        (
            {"hx": (*(torch.zeros(1, 3, 12),) * 3, torch.zeros(1, 3, 11))},
            ValueError,
            r"hx\[3\] has shape \(1, 3, 11\), but hx\[0\] has \(1, 3, 12\)",
        ),
        ({"hx": (*(torch.zeros(1, 3, 12),) * 3, torch.zeros(1, 3, 12).double())}, ValueError, r"hx\[3\] has dtype"),
        ({"hx": (torch.zeros(1, 3, 12).double(),) * 4}, ValueError, r"hx\[0\] has dtype torch.float64"),
        ({"hx": (1, 2, 3, 4)}, TypeError, r"hx\[0\] is a int; it must be a tensor"),
        ({"lengths": [0, 3, 6]}, ValueError, "lengths"),
        ({"lengths": [7, 3, 6]}, ValueError, "lengths"),
        ({"reset_hx": (torch.zeros(1, 3, 12),) * 4}, ValueError, "reset_hx is given, but reset"),
        ({"reset": torch.zeros(6, 3)}, TypeError, "reset has dtype"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    module = Case().module(torch.float32)
    with pytest.raises(kind, match=message):
        module(torch.zeros(6, 3, 5), **arguments)


def test_wrong_layouts() -> None:
    with pytest.raises(ValueError, match="forget_gate is 'exp'; it must be one of 'sigmoid', 'exponential'"):
        prnn.nn.sLSTM(4, 8, forget_gate="exp")
    with pytest.raises(ValueError, match="heads is 3"):
        prnn.nn.sLSTM(4, 8, heads=3)
    with pytest.raises(ValueError, match="input has 4 features"):
        prnn.nn.sLSTM(5, 8)(torch.zeros(2, 3, 4))

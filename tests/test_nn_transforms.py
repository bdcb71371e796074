"""The modules of prnn.nn on the meta device, and under transforms of their backward pass."""

import copy
from typing import Any

import pytest
import torch
from nn_pairs import CELLS, flat, make, make_pair
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

import prnn
from prnn._ops import rnn

META_OPTIONS: list[dict[str, Any]] = [
    {},
    {"dropout": 0.3},
    {"recurrent_dropout": 0.1},
    {"heads": 2},
    {"bidirectional": True, "batch_first": True},
]


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        *[(cell, options) for cell in ("RNN", "GRU", "LSTM") for options in META_OPTIONS],
        ("GRU", {"zoneout": 0.1}),
        ("LSTM", {"zoneout": 0.1}),
    ],
    ids=str,
)
def test_a_training_step_on_the_meta_device(cell: str, options: dict[str, Any]) -> None:
    module = make(prnn.nn, cell, 5, 6, num_layers=2, device="meta", **options)
    x = torch.randn(4, 3, 5, device="meta", requires_grad=True)
    packed = PackedSequence(torch.randn(7, 5, device="meta"), torch.tensor([3, 2, 2]))
    calls = [(x, {}), (x[:, 0], {}), (packed, {}), (x, {"lengths": [4, 2, 1, 3] if module.batch_first else [4, 2, 1]})]
    for given, keywords in calls:
        module.zero_grad()
        outputs = flat(module(given, **keywords))
        assert all(output.is_meta for output in outputs)
        outputs[0].sum().backward()
        assert all(parameter.grad.is_meta for parameter in module.parameters())
    with pytest.raises(ValueError, match=r"input has dtype torch\.float64, but the weights have torch\.float32"):
        module(x.double())


def gradients(output: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    return torch.stack([torch.autograd.grad(output, x, weight, retain_graph=True)[0] for weight in weights])


@pytest.mark.parametrize("cell", CELLS)
def test_jacrev(cell: str) -> None:
    theirs, ours = make_pair(cell, 3, 4)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    found, expected = (torch.func.jacrev(lambda x, module=module: module(x)[0])(x) for module in (ours, theirs))
    torch.testing.assert_close(found, expected)


def test_jacrev_of_the_parameters() -> None:
    theirs, ours = make_pair("GRU", 3, 4)
    x = torch.randn(5, 2, 3, dtype=torch.float64)

    def jacobian(module: torch.nn.Module) -> dict[str, Tensor]:
        parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
        return torch.func.jacrev(lambda weights: torch.func.functional_call(module, weights, (x,))[1])(parameters)

    found, expected = jacobian(ours), jacobian(theirs)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


ENSEMBLES: list[tuple[str, dict[str, Any]]] = [
    *[(cell, {}) for cell in ("RNN", "GRU", "LSTM")],
    ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 2}),
    ("GRU", {"bias": False, "batch_first": True}),
    ("GRU", {"heads": 2}),
    ("RNN", {"recurrent_dropout": 0.2}),
    ("GRU", {"zoneout": 0.2, "recurrent_dropout": 0.2}),
]


def stacked(results: list[Any]) -> list[Tensor]:
    return [torch.stack(tensors) for tensors in zip(*map(flat, results), strict=True)]


@pytest.mark.parametrize(("cell", "options"), ENSEMBLES)
def test_vmap_over_an_ensemble(cell: str, options: dict[str, Any]) -> None:
    """As each of its members alone: results, and gradients with vmap around grad, inside it, and inside autograd."""
    members = [make(prnn.nn, cell, 5, 4, dtype=torch.float64, **options).eval() for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(members)
    skeleton = copy.deepcopy(members[0]).to("meta")
    x = torch.randn(3, 6, 2, 5, dtype=torch.float64)

    def run(parameters: dict[str, Tensor], x: Tensor) -> Any:
        return torch.func.functional_call(skeleton, parameters, (x,))

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return sum(tensor.square().sum() for tensor in flat(run(parameters, x)))

    def equal(found: Any, expected: Any) -> None:
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

    alone = [member(sequences) for member, sequences in zip(members, x, strict=True)]
    equal(flat(torch.func.vmap(run)(parameters, x)), stacked(alone))
    equal(flat(torch.func.vmap(run, in_dims=(0, 2))(parameters, x.movedim(0, 2))), stacked(alone))
    equal(flat(torch.func.vmap(members[0])(x)), stacked([members[0](sequences) for sequences in x]))

    sum(tensor.square().sum() for results in alone for tensor in flat(results)).backward()
    expected = {name: torch.stack([dict(m.named_parameters())[name].grad for m in members]) for name in parameters}
    equal(torch.func.vmap(torch.func.grad(loss))(parameters, x), expected)
    equal(torch.func.grad(lambda parameters: torch.func.vmap(loss)(parameters, x).sum())(parameters), expected)
    torch.func.vmap(loss)(parameters, x).sum().backward()
    equal({name: parameter.grad for name, parameter in parameters.items()}, expected)


def test_vmap_with_lengths_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's calls with such lengths are an operator of their own."""
    monkeypatch.setattr(rnn, "_reads_host", lambda input, sizes: any(given is not None for given in sizes))
    members = [prnn.nn.GRU(5, 4, dtype=torch.float64) for _ in range(3)]
    parameters, _ = torch.func.stack_module_state(members)
    x, lengths = torch.randn(3, 6, 2, 5, dtype=torch.float64), [6, 3]

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(members[0], parameters, (x,), {"lengths": lengths})[0].square().sum()

    found = torch.func.vmap(torch.func.grad(loss))(parameters, x)
    for index, member in enumerate(members):
        loss(dict(member.named_parameters()), x[index]).backward()
        for name, parameter in member.named_parameters():
            torch.testing.assert_close(found[name][index], parameter.grad, rtol=1e-12, atol=1e-12)


def test_gradients_of_every_sequence() -> None:
    theirs, ours = make_pair("LSTM", 5, 4)
    x = torch.randn(3, 6, 2, 5, dtype=torch.float64)

    def gradients_of(module: torch.nn.Module, x: Tensor) -> dict[str, Tensor]:
        parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
        return torch.func.grad(lambda weights: torch.func.functional_call(module, weights, (x,))[0].sum())(parameters)

    found = torch.func.vmap(gradients_of, in_dims=(None, 0))(ours, x)
    for index, sequences in enumerate(x):
        for name, expected in gradients_of(theirs, sequences).items():
            torch.testing.assert_close(found[name][index], expected, msg=name)


@pytest.mark.parametrize(
    ("of_weights", "of_input", "autocast"),
    [
        (torch.bfloat16, torch.bfloat16, False),
        (torch.bfloat16, torch.bfloat16, True),
        (torch.float32, torch.bfloat16, True),
        (torch.float32, torch.float32, True),
    ],
)
@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
def test_transforms_of_16_bits_and_under_autocast(
    cell: str, of_weights: torch.dtype, of_input: torch.dtype, autocast: bool
) -> None:
    module = make(prnn.nn, cell, 5, 4, dtype=of_weights, backend="persistent")
    x = torch.randn(3, 6, 2, 5, dtype=of_input)
    parameters = dict(module.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return torch.func.functional_call(module, parameters, (x,))[0].float().square().sum()

    detached = {name: parameter.detach() for name, parameter in parameters.items()}
    found = torch.func.grad(loss)(detached, x[0])
    mapped = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(detached, x)
    grads = torch.autograd.grad(loss(parameters, x[0]), list(parameters.values()))
    for name, expected in zip(parameters, grads, strict=True):
        assert torch.equal(found[name], expected), name
        assert torch.equal(mapped[name][0], expected), name


def test_vmap_over_lengths_and_resets() -> None:
    module = prnn.nn.GRU(5, 4, dtype=torch.float64)
    x, reset = torch.randn(3, 6, 2, 5, dtype=torch.float64), torch.rand(3, 6, 2) < 0.3
    lengths = torch.tensor([[6, 2], [1, 5], [3, 3]])

    def run(x: Tensor, lengths: Tensor, reset: Tensor) -> Any:
        return module(x, lengths=lengths, reset=reset)

    found = torch.func.vmap(run)(x, lengths, reset)
    torch.testing.assert_close(flat(found), stacked(list(map(run, x, lengths, reset))), rtol=1e-12, atol=1e-12)


def test_vmap_draws_masks_as_it_is_told() -> None:
    module, x = prnn.nn.LSTM(5, 8, num_layers=2, dropout=0.5), torch.randn(6, 2, 5).expand(3, 6, 2, 5)
    same = torch.func.vmap(module, randomness="same")(x)[0]
    different = torch.func.vmap(module, randomness="different")(x)[0]
    assert torch.equal(same[0], same[1])
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(module)(x)


def test_vmap_over_nothing() -> None:
    with pytest.raises(ValueError, match="dimension of size 0"):
        torch.func.vmap(prnn.nn.GRU(3, 4))(torch.randn(0, 5, 2, 3))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("module", [prnn.nn.LSTM(3, 4), prnn.nn.LayerNormLSTM(3, 4)])
def test_batched_gradients_are_refused(module: torch.nn.Module) -> None:
    """As by torch's layers on a GPU; torch.func has them (torch.vmap of torch.func.vjp)."""
    x = torch.randn(5, 2, 3, requires_grad=True)
    output = module(x)[0]
    weights = torch.randn(3, *output.shape)
    with pytest.raises(RuntimeError, match=r"Batching rule not implemented for prnn::"):
        torch.autograd.grad(output, x, weights, is_grads_batched=True, retain_graph=True)
    _, pullback = torch.func.vjp(lambda x: module(x)[0], x.detach())
    (found,) = torch.func.vmap(pullback)(weights)
    torch.testing.assert_close(found, gradients(output, x, weights))


@pytest.mark.parametrize("module", [prnn.nn.LSTM(3, 4), prnn.nn.GRU(3, 4), prnn.nn.LayerNormLSTM(3, 4)])
def test_forward_over_reverse_mode_is_refused(module: torch.nn.Module) -> None:
    x = torch.randn(5, 2, 3)

    def loss(x: Tensor) -> Tensor:
        output: Tensor = module(x)[0]
        return output.sum()

    with pytest.raises(RuntimeError, match="no derivative in forward mode"):
        torch.func.jvp(torch.func.grad(loss), (x,), (x,))


@pytest.mark.parametrize(("cell", "autocast"), [("GRU", False), ("LSTM", True)])
def test_transforms_in_a_compiled_function(cell: str, autocast: bool) -> None:
    module = make(prnn.nn, cell, 5, 4, backend="persistent")
    x = torch.randn(3, 6, 2, 5)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return torch.func.functional_call(module, parameters, (x,))[0].float().square().sum()

    def both(parameters: dict[str, Tensor], x: Tensor) -> Any:
        single = torch.func.grad(loss)(parameters, x[0])
        return single, torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(None, 0))(parameters, x)

    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    torch._dynamo.reset()
    found = torch.compile(both, backend="aot_eager", fullgraph=True)(parameters, x)
    torch.testing.assert_close(found, both(parameters, x))


@pytest.mark.parametrize("loss", [False, True])
def test_a_compiled_gradient_of_a_model_that_trains(loss: bool) -> None:
    """The gradient could be differentiated by the parameters, and torch.compile traces that derivative, too."""
    layer, linear = prnn.nn.GRU(3, 4), torch.nn.Linear(3, 5)
    x, targets, lengths = torch.randn(6, 2, 3), torch.ones(2, 2, dtype=torch.int64), torch.tensor([6, 5])

    def value(x: Tensor) -> Tensor:
        if loss:
            return prnn.ctc_loss(linear(x), targets, lengths, torch.tensor([2, 2]))
        return layer(x)[0].square().sum()

    torch._dynamo.reset()
    found = torch.compile(torch.func.grad(value), backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(found, torch.func.grad(value)(x))
    with pytest.raises(prnn.NotSupportedError, match="differentiated once"):
        found.sum().backward()

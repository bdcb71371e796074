"""prnn.nn.RNN, GRU and LSTM against torch.nn's: outputs and every gradient, and what a module must live through."""

import copy
import gc
import io
import itertools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nn_pairs import CELLS, assert_same, compare, flat, make, make_pair, make_states, train_step
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import prnn

# input_size, hidden_size, options
SHAPES: list[tuple[int, int, dict[str, Any]]] = [
    (3, 5, {}),
    (1, 1, {}),
    (4, 16, {"bias": False}),
    (5, 7, {"bidirectional": True}),
    (3, 4, {"num_layers": 3}),
    (6, 9, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    (2, 33, {"num_layers": 2, "bidirectional": True, "bias": False}),
]
PROJECTIONS: list[tuple[int, int, dict[str, Any]]] = [
    (3, 6, {"proj_size": 2}),
    (3, 5, {"proj_size": 4, "num_layers": 2, "bidirectional": True}),
    (3, 5, {"proj_size": 1, "num_layers": 2, "bias": False, "batch_first": True}),
]
GRID = [(cell, *shape) for cell, shape in itertools.product(CELLS, SHAPES)] + [("LSTM", *p) for p in PROJECTIONS]


def data(module: torch.nn.Module, steps: int, batch: int | None) -> torch.Tensor:
    shape = (steps, module.input_size) if batch is None else (steps, batch, module.input_size)
    if module.batch_first and batch is not None:
        shape = (batch, steps, module.input_size)
    return torch.randn(shape, dtype=next(module.parameters()).dtype, requires_grad=True)


@pytest.mark.parametrize(("cell", "input_size", "hidden_size", "options"), GRID)
@pytest.mark.parametrize(("steps", "batch"), [(6, 3), (1, 1), (2, 9), (4, None)])
def test_equals_torch(
    cell: str, input_size: int, hidden_size: int, options: dict[str, Any], steps: int, batch: int | None
) -> None:
    theirs, ours = make_pair(cell, input_size, hidden_size, **options)
    compare(theirs, ours, data(theirs, steps, batch))
    compare(theirs, ours, data(theirs, steps, batch), make_states(theirs, batch))


@pytest.mark.parametrize("cell", CELLS)
def test_equals_torch_in_float32(cell: str) -> None:
    theirs, ours = make_pair(cell, 20, 40, num_layers=2, bidirectional=True, dtype=torch.float32)
    compare(theirs, ours, data(theirs, 12, 5), make_states(theirs, 5))


@pytest.mark.parametrize("cell", CELLS)
def test_long_and_wide(cell: str) -> None:
    theirs, ours = make_pair(cell, 10, 130)
    compare(theirs, ours, data(theirs, 150, 18), make_states(theirs, 18))


@pytest.mark.parametrize("cell", CELLS)
def test_results_look_like_torchs(cell: str) -> None:
    for batch_first in (False, True):
        theirs, ours = make_pair(cell, 3, 4, num_layers=2, batch_first=batch_first)
        for batch in (2, None):
            x = data(theirs, 5, batch)
            for mine, reference in zip(flat(ours(x)), flat(theirs(x)), strict=True):
                assert (mine.shape, mine.stride(), mine.dtype) == (reference.shape, reference.stride(), reference.dtype)
    assert type(ours(x)) is type(theirs(x))


@pytest.mark.parametrize("cell", CELLS)
def test_non_contiguous_arguments(cell: str) -> None:
    theirs, ours = make_pair(cell, 3, 4, num_layers=2)
    x = torch.randn(3, 2, 10, dtype=torch.float64, requires_grad=True).permute(2, 1, 0)[::2]
    states = [state.detach().mT.contiguous().mT for state in flat(make_states(theirs, 2))]
    outputs, expected = (m(x, tuple(states) if cell == "LSTM" else states[0]) for m in (ours, theirs))
    torch.testing.assert_close(flat(outputs), flat(expected), rtol=1e-10, atol=1e-10)
    expanded = torch.randn(1, 1, 3, dtype=torch.float64).expand(5, 2, 3)
    torch.testing.assert_close(flat(ours(expanded)), flat(theirs(expanded)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cell", CELLS)
def test_arguments_in_memory_of_their_negatives(cell: str) -> None:
    """As the imaginary part of a complex conjugate lies."""
    theirs, ours = make_pair(cell, 3, 4)
    conjugate = torch.randn(1, 1, 3, dtype=torch.complex128).conj()
    assert conjugate.imag.is_neg()
    states = [torch._neg_view(state.detach()).requires_grad_() for state in flat(make_states(theirs, 2))]
    for x in (torch._neg_view(torch.randn(5, 2, 3, dtype=torch.float64)), conjugate.imag.expand(5, 2, 3)):
        for _ in range(2):  # the second call looks at less
            compare(theirs, ours, x, tuple(states) if cell == "LSTM" else states[0])
    x, gradient = torch.randn(5, 2, 3, dtype=torch.float64), torch._neg_view(torch.randn(5, 2, 4, dtype=torch.float64))
    found, expected = (torch.autograd.grad(m(x)[0], list(m.parameters()), gradient) for m in (ours, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_of_any_subset(cell: str) -> None:
    theirs, ours = make_pair(cell, 3, 4, num_layers=2)
    names = [name for name, _ in ours.named_parameters()]
    for wanted in ([], names[:1], names[3:5], names):
        for module in (theirs, ours):
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(name in wanted)
        for input_wanted, states_wanted in itertools.product((False, True), repeat=2):
            if wanted or input_wanted or states_wanted:
                x = data(theirs, 4, 2).detach().requires_grad_(input_wanted)
                compare(theirs, ours, x, make_states(theirs, 2, requires_grad=states_wanted))


@pytest.mark.parametrize("has_run", [False, True])
def test_gradients_of_few_weights_keep_no_memory_of_others(has_run: bool) -> None:
    lstm = prnn.nn.LSTM(64, 64, num_layers=2)
    for name, parameter in lstm.named_parameters():
        parameter.requires_grad_(name.startswith("bias"))
    output, _ = lstm(torch.randn(3, 2, 64))
    if has_run:  # a second pass through a graph, which takes another way
        output.sum().backward(retain_graph=True)
        lstm.zero_grad()
    output.sum().backward()
    for name, parameter in lstm.named_parameters():
        assert (parameter.grad is None) == name.startswith("weight")
        if parameter.grad is not None:
            assert parameter.grad.untyped_storage().nbytes() == parameter.nbytes


@pytest.mark.parametrize("output", range(3))
def test_gradient_from_one_output_alone(output: int) -> None:
    theirs, ours = make_pair("LSTM", 3, 4, num_layers=2, bidirectional=True)
    x, states = data(theirs, 4, 2), make_states(theirs, 2)
    grads = []
    for module in (ours, theirs):
        leaves = [x, *states, *module.parameters()]
        grads.append(torch.autograd.grad(flat(module(x, states))[output].sum(), leaves))
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.parametrize("cell", CELLS)
def test_no_initial_states_are_zeros_for_cudnn(cell: str, options: dict[str, Any]) -> None:
    """The one place where the backends' calls differ: on a CPU, its implementation serves them."""
    theirs, ours = make_pair(cell, 3, 4, **options)
    asked = make(prnn.nn, cell, 3, 4, backend="cudnn", dtype=torch.float64, **options)
    asked.load_state_dict(ours.state_dict())
    x = data(theirs, 5, 2)
    expected, found = (torch.autograd.grad(m(x)[0].sum(), [x, *m.parameters()]) for m in (theirs, asked))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_gradcheck() -> None:
    module = prnn.nn.LSTM(2, 3, bidirectional=True, proj_size=2, dtype=torch.float64)
    x, states = data(module, 3, 2), make_states(module, 2)
    parameters = dict(module.named_parameters())

    def function(*leaves: torch.Tensor) -> list[torch.Tensor]:
        replaced = dict(zip(parameters, leaves[3:], strict=True))
        return flat(torch.func.functional_call(module, replaced, (leaves[0], leaves[1:3])))

    assert torch.autograd.gradcheck(function, (x, *states, *parameters.values()))


def test_second_backward_through_one_graph() -> None:
    module = prnn.nn.GRU(3, 4, num_layers=2, bidirectional=True, dtype=torch.float64)
    output, _ = module(data(module, 5, 2))
    grads = [torch.autograd.grad(output.sum(), list(module.parameters()), retain_graph=True) for _ in range(2)]
    torch.testing.assert_close(*grads, rtol=0, atol=0)


@pytest.mark.parametrize("offset", [16, 40])
def test_saved_tensors_may_come_back_at_other_addresses(offset: int) -> None:
    """As from NumPy, whose arrays are aligned to 16 bytes."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        room = torch.empty(tensor.nbytes + 128, dtype=torch.uint8)
        begin = -room.data_ptr() % 64 + offset
        return room[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)

    module = prnn.nn.LSTM(5, 7, num_layers=2)
    x = torch.randn(4, 3, 5)
    module(x)[0].square().sum().backward()
    expected = [parameter.grad for parameter in module.parameters()]
    module.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach().clone(), moved):
        module(x)[0].square().sum().backward()
    for parameter, gradient in zip(module.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_module_used_twice_in_one_graph() -> None:
    theirs, ours = make_pair("LSTM", 4, 4)

    def twice(module: torch.nn.Module) -> Any:
        return lambda x, states: module(*module(x, states))

    x, states = data(theirs, 3, 2), make_states(theirs, 2)
    expected = train_step(twice(theirs), dict(theirs.named_parameters()), x, states)
    assert_same(train_step(twice(ours), dict(ours.named_parameters()), x, states), expected)


def test_runs_are_bitwise_equal() -> None:
    module = prnn.nn.LSTM(8, 48, num_layers=2, bidirectional=True)
    x = data(module, 20, 6)
    first, second = (train_step(module, dict(module.named_parameters()), x) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_inference_equals_training_and_keeps_no_graph() -> None:
    module = prnn.nn.LSTM(3, 17, num_layers=2, dtype=torch.float64)
    x = data(module, 6, 3)
    expected = flat(module(x))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            outputs = flat(module(x))
        assert not any(tensor.requires_grad for tensor in outputs)
        torch.testing.assert_close(outputs, [tensor.detach() for tensor in expected], rtol=1e-12, atol=1e-12)


def test_second_derivative_is_refused() -> None:
    module = prnn.nn.GRU(3, 4)
    x = data(module, 5, 2)
    (grad,) = torch.autograd.grad(module(x)[0].sum(), x, create_graph=True)
    with pytest.raises(prnn.NotSupportedError, match=r"alone: detach the gradient, or .*convert_back"):
        grad.sum().backward()


@pytest.mark.parametrize("cell", CELLS)
def test_a_model_converted_back_has_second_derivatives(cell: str) -> None:
    module = prnn.convert_back(make(prnn.nn, cell, 3, 4))
    x = torch.randn(5, 2, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(module(x)[0].sum(), x, create_graph=True)
    assert grad.requires_grad
    grad.square().sum().backward()
    assert module.weight_hh_l0.grad.count_nonzero() > 0


@pytest.mark.parametrize("cell", CELLS)
def test_empty_batch(cell: str) -> None:
    theirs, ours = make_pair(cell, 3, 4, num_layers=2, bidirectional=True)
    compare(theirs, ours, data(theirs, 5, 0))
    compare(theirs, ours, data(theirs, 5, 0), make_states(theirs, 0))


# Dropout


def test_dropout_acts_in_training_mode_alone() -> None:
    theirs, ours = make_pair("LSTM", 3, 16, num_layers=3, dropout=0.5)
    x = data(theirs, 6, 4)
    theirs.eval(), ours.eval()
    compare(theirs, ours, x)
    with torch.no_grad():
        without, _ = ours(x)
        ours.train()
        first, second = ours(x)[0], ours(x)[0]
    assert not torch.equal(first, without)
    assert not torch.equal(first, second)


def test_dropout_follows_torchs_seed() -> None:
    module = prnn.nn.GRU(3, 16, num_layers=2, dropout=0.3)
    x = data(module, 6, 4)

    def outputs() -> list[torch.Tensor]:
        torch.manual_seed(7)
        return [module(x)[0], module(x)[0]]

    first, again = outputs(), outputs()
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])


def test_dropout_zeroes_the_share_it_says() -> None:
    # relu(1 x + 0) in both layers: the output is the number of elements that dropout left, scaled.
    hidden, p = 64, 0.25
    module = prnn.nn.RNN(1, hidden, num_layers=2, nonlinearity="relu", bias=False, dropout=p)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.fill_(1.0 if "ih" in name else 0.0)
    output, _ = module(torch.ones(50, 20, 1))
    kept = output[..., 0] * (1 - p)
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-3)
    # 64000 draws: the standard deviation of the share is 0.0017.
    assert abs(kept.mean().item() / hidden - (1 - p)) < 0.01
    assert kept.unique().numel() > 5


def test_gradients_use_the_masks_of_forward() -> None:
    module = prnn.nn.LSTM(2, 3, num_layers=3, dropout=0.4, dtype=torch.float64)
    x = data(module, 3, 2)

    def function(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return module(x)[0]

    assert torch.autograd.gradcheck(function, (x, *module.parameters()))


def test_checkpointing_repeats_the_masks() -> None:
    module = prnn.nn.LSTM(3, 8, num_layers=2, dropout=0.5, dtype=torch.float64)
    x = data(module, 5, 2)
    grads = []
    for run in (module, lambda x: checkpoint(module, x, use_reentrant=False)):
        torch.manual_seed(5)
        grads.append(torch.autograd.grad(run(x)[0].sum(), [x, *module.parameters()]))
    torch.testing.assert_close(*grads, rtol=0, atol=0)


# The life of a module


def lies_in_one_buffer(module: torch.nn.Module) -> bool:
    parameters = [getattr(module, name) for name in module._packed_names]
    ends = [parameter.data_ptr() + parameter.nbytes for parameter in parameters]
    return [parameter.data_ptr() for parameter in parameters[1:]] == ends[:-1]


def saved_size(value: Any) -> int:
    stored = io.BytesIO()
    torch.save(value, stored)
    return len(stored.getvalue())


def test_saving_a_parameter_does_not_save_the_others() -> None:
    theirs, ours = make_pair("LSTM", 64, 64, num_layers=3)
    assert lies_in_one_buffer(ours)
    assert saved_size(ours.bias_hh_l0) == saved_size(theirs.bias_hh_l0)
    assert saved_size(ours.weight_hh_l1.detach()) == saved_size(theirs.weight_hh_l1.detach())
    assert saved_size(ours.state_dict()) == saved_size(theirs.state_dict())
    assert saved_size(ours) < 1.1 * saved_size(theirs)


def test_a_parameter_outlives_its_module() -> None:
    module = prnn.nn.LSTM(64, 64)
    weight, expected = module.weight_hh_l0, module.weight_hh_l0.detach().clone()
    del module
    gc.collect()
    others = [torch.full((64 * 64 * 8 + 512,), 3.0) for _ in range(8)]  # would take the memory
    assert torch.equal(weight, expected)
    del others


def test_parameters_shared_between_processes_stay_so() -> None:
    module = prnn.nn.GRU(3, 4, num_layers=2)
    x = data(module, 5, 2)
    expected = module(x)[0]
    module.share_memory()
    module.flatten_parameters()
    assert all(parameter.is_shared() for parameter in module.parameters())
    assert torch.equal(module(x)[0], expected)
    module(x)[0].sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize("bias", [True, False])
def test_parameters_stay_in_one_buffer(bias: bool) -> None:
    module = prnn.nn.LSTM(3, 4, num_layers=2, bidirectional=True, bias=bias)
    assert lies_in_one_buffer(module)
    module.load_state_dict(torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True, bias=bias).state_dict())
    assert lies_in_one_buffer(module)
    before = copy.deepcopy(module.state_dict())
    assert lies_in_one_buffer(module.double())
    assert lies_in_one_buffer(copy.deepcopy(module))
    torch.testing.assert_close(module.float().state_dict(), before, rtol=0, atol=0)
    torch.optim.SGD(module.parameters(), 0.1).step()
    module.flatten_parameters()
    assert lies_in_one_buffer(module)


@pytest.mark.parametrize("cell", CELLS)
def test_load_state_dict_writes_to_parameters_where_they_are(cell: str) -> None:
    module = make(prnn.nn, cell, 3, 4, num_layers=2)
    loaded = copy.deepcopy(module.state_dict())
    vector = torch.zeros(sum(parameter.numel() for parameter in module.parameters()))  # an optimizer's, or a search's
    pieces = vector.split([parameter.numel() for parameter in module.parameters()])
    for parameter, piece in zip(module.parameters(), pieces, strict=True):
        parameter.data = piece.view(parameter.shape)
    module.load_state_dict(loaded)
    torch.testing.assert_close(vector, torch.cat([value.reshape(-1) for value in loaded.values()]), rtol=0, atol=0)
    vector.zero_()
    assert module(torch.randn(5, 2, 3))[0].count_nonzero() == 0


@pytest.mark.parametrize("bias", [True, False])
def test_load_state_dict_assigns_the_tensors_that_it_is_given(bias: bool) -> None:
    learner = prnn.nn.GRU(3, 4, num_layers=2, bias=bias)
    actor = prnn.nn.GRU(3, 4, num_layers=2, bias=bias, device="meta")
    actor.load_state_dict(learner.state_dict(), assign=True)
    x = data(learner, 5, 2)
    for scale in (1.0, 0.5):
        with torch.no_grad():
            for parameter in learner.parameters():
                parameter.mul_(scale)
        torch.testing.assert_close(actor(x)[0], learner(x)[0], rtol=0, atol=0)
    expected = actor(x)[0]
    actor.flatten_parameters()
    assert lies_in_one_buffer(actor)
    torch.testing.assert_close(actor(x)[0], expected, rtol=0, atol=0)


@pytest.mark.parametrize("bias", [True, False])
def test_parameters_moved_under_inference_mode_can_be_trained(bias: bool) -> None:
    module = prnn.nn.LSTM(3, 4, bias=bias)
    module.weight_hh_l0 = torch.nn.Parameter(torch.randn(16, 4))
    with torch.inference_mode():
        module.load_state_dict(module.state_dict())
        inferred, _ = module(torch.ones(5, 2, 3))
        frozen = prnn.nn.LSTM(3, 4, bias=bias)
    assert all(parameter.is_inference() for parameter in frozen.parameters())
    assert not any(parameter.is_inference() for parameter in module.parameters())
    output, _ = module(torch.ones(5, 2, 3))
    assert torch.equal(output, inferred)
    output.sum().backward()
    assert module.weight_hh_l0.grad.any()


def test_parameters_keep_their_identity_under_to() -> None:
    module = prnn.nn.GRU(3, 4, bias=False)
    before = list(module.parameters())
    module.double().to("cpu")
    assert all(mine is old for mine, old in zip(module.parameters(), before, strict=True))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bias", [True, False])
def test_copy_and_pickle(cell: str, bias: bool) -> None:
    module = make(prnn.nn, cell, 3, 4, num_layers=2, bias=bias, backend="persistent")
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    x = data(module, 4, 2)
    for other in (copy.deepcopy(module), torch.load(stored, weights_only=False)):
        assert lies_in_one_buffer(other)
        assert repr(other) == repr(module)
        compare(module, other, x)
        with torch.no_grad():
            next(other.parameters()).add_(1)
        assert not torch.equal(other(x)[0], module(x)[0])


def test_tied_weights() -> None:
    theirs, ours = make_pair("GRU", 4, 4, num_layers=2)
    for module in (theirs, ours):
        module.weight_hh_l1 = module.weight_hh_l0
        module.double()
    assert ours.weight_hh_l1 is ours.weight_hh_l0
    compare(theirs, ours, data(theirs, 4, 2))
    other = prnn.nn.GRU(4, 4, num_layers=2, dtype=torch.float64)
    other.weight_ih_l1 = ours.weight_ih_l1
    other.double()
    compare(theirs, ours, data(theirs, 4, 2))
    assert other.weight_ih_l1 is ours.weight_ih_l1


def test_parametrized_weights() -> None:
    theirs, ours = make_pair("LSTM", 3, 4)
    for module in (theirs, ours):
        torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    compare(theirs, ours, data(theirs, 4, 2))
    torch.nn.utils.parametrize.remove_parametrizations(ours, "weight_hh_l0")
    ours.double()
    assert lies_in_one_buffer(ours)


def test_functional_call_and_meta_device() -> None:
    module = prnn.nn.LSTM(3, 4, device="meta")
    other = prnn.nn.LSTM(3, 4)
    x = data(other, 4, 2)
    output = torch.func.functional_call(module, dict(other.named_parameters()), (x,))
    assert torch.equal(output[0], other(x)[0])
    assert lies_in_one_buffer(module.to_empty(device="cpu"))


def test_initialisation_is_torchs() -> None:
    for bias in (True, False):
        torch.manual_seed(3)
        theirs = torch.nn.LSTM(3, 5, num_layers=2, bidirectional=True, bias=bias)
        torch.manual_seed(3)
        ours = prnn.nn.LSTM(3, 5, num_layers=2, bidirectional=True, bias=bias)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)


def test_text() -> None:
    options: dict[str, Any] = {"num_layers": 2, "bias": False, "batch_first": True, "dropout": 0.1, "proj_size": 2}
    assert repr(prnn.nn.LSTM(3, 4, **options)) == "prnn.nn." + repr(torch.nn.LSTM(3, 4, **options))
    assert repr(prnn.nn.GRU(3, 4, backend="cudnn")) == "prnn.nn.GRU(3, 4, backend='cudnn')"
    assert repr(prnn.nn.LayerNormLSTM(3, 4)) == "prnn.nn.LayerNormLSTM(3, 4)"

    class Own(prnn.nn.LSTM):
        pass

    assert repr(Own(3, 4)) == "Own(3, 4)"


def test_positional_arguments_are_torchs() -> None:
    rnn = prnn.nn.RNN(3, 4, 2, "relu", False, True, 0.5, True)
    assert rnn.extra_repr() == torch.nn.RNN(3, 4, 2, "relu", False, True, 0.5, True).extra_repr()
    assert rnn.nonlinearity == "relu"
    positional = (3, 4, 2, False, True, 0.5, True, 2)
    assert prnn.nn.LSTM(*positional).extra_repr() == torch.nn.LSTM(*positional).extra_repr()


def frames_of(function: Callable[[], object]) -> int:
    """Calls of functions, Python's and C's, that a call of this one makes."""
    count = 0

    def on_event(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("bias", [True, False])
def test_flattening_what_is_flat_costs_little(bias: bool) -> None:
    module = prnn.nn.LSTM(8, 16, 4, bias=bias, bidirectional=True)
    assert frames_of(module.flatten_parameters) < 16
    places = [parameter.data_ptr() for parameter in module.parameters()]
    module.weight_hh_l1.data = module.weight_hh_l1.data.clone()
    module.flatten_parameters()
    assert [parameter.data_ptr() for parameter in module.parameters()] != places
    assert frames_of(module.flatten_parameters) < 16
    module.weight_hh_l1 = torch.nn.Parameter(module.weight_hh_l1.detach().clone())
    module.flatten_parameters()
    first = module.weight_ih_l0
    assert module.weight_hh_l0.data_ptr() == first.data_ptr() + first.nbytes
    assert module.weight_ih_l0_reverse.data_ptr() == module.weight_hh_l0.data_ptr() + module.weight_hh_l0.nbytes


def test_replaced_parameters_are_let_go() -> None:
    module = prnn.nn.GRU(3, 4)
    module.flatten_parameters()
    gone = weakref.ref(module.weight_hh_l0)
    module.weight_hh_l0 = torch.nn.Parameter(torch.zeros(12, 4))
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM", "LayerNormLSTM"])
def test_whole_modules_load_with_their_class_alone_allowed(cell: str) -> None:
    module, x = getattr(prnn.nn, cell)(3, 4), torch.randn(5, 2, 3)
    module(x)
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    with torch.serialization.safe_globals([type(module)]):
        other = torch.load(stored, weights_only=True)
    assert torch.equal(other(x)[0], module(x)[0])


@pytest.mark.parametrize("is_converted", [False, True])
@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM", "LayerNormLSTM"])
def test_layers_made_inside_of_a_transform(cell: str, is_converted: bool) -> None:
    if is_converted and cell == "LayerNormLSTM":
        return

    def loss(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        module = prnn.convert(getattr(torch.nn, cell)(3, 4)) if is_converted else getattr(prnn.nn, cell)(3, 4)
        return module(x)[0].square().sum()

    x = torch.randn(5, 2, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(torch.func.grad(loss)(x.detach()), expected)
    torch.testing.assert_close(torch.func.vmap(loss, randomness="same")(x.detach()[None])[0], loss(x).detach())


def test_training_loop_follows_torchs() -> None:
    theirs, ours = make_pair("LSTM", 5, 12, num_layers=2)
    x, target = torch.randn(10, 4, 5, dtype=torch.float64), torch.randn(10, 4, 12, dtype=torch.float64)
    losses: dict[torch.nn.Module, list[float]] = {}
    for module in (theirs, ours):
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            loss = (module(x)[0] - target).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.01)
            optimizer.step()
            losses.setdefault(module, []).append(loss.item())
    assert losses[ours] == pytest.approx(losses[theirs], rel=1e-9)
    assert losses[ours][-1] < losses[ours][0]
    assert lies_in_one_buffer(ours)

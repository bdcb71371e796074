"""Which calls prnn.nn's modules hand to torch's operator on a GPU: here with an operator, a stream and tensors of the
CPU in their place."""

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from module_changes import CHANGES, change_flat_weights
from nn_pairs import CELLS, make, make_states
from torch import Tensor

import prnn
from prnn import _calls, _torch_on_cuda
from prnn._calls import ModuleCalls
from prnn._ops import _layer
from prnn._ops._layer import BACKENDS, MODES, Config
from prnn._own_parameters import own_parameters
from prnn._torch_on_cuda import TorchsCalls, torchs_calls

OPERATORS: dict[int, Callable[..., Any]] = {
    MODES["RNN_TANH"]: torch.rnn_tanh,
    MODES["RNN_RELU"]: torch.rnn_relu,
    MODES["GRU"]: torch.gru,
    MODES["LSTM"]: torch.lstm,
}


class Machine:
    """The machine that calls look at, and the calls that came to the operator: with gradients or not."""

    def __init__(self) -> None:
        self.calls: list[bool] = []
        self.stream, self.is_capturing, self.is_benchmark, self.is_enabled = 0, False, False, True

    def operator(
        self,
        input: Tensor,
        weights: list[Tensor],
        stride: int,
        together: Tensor,
        hx: Tensor,
        cx: Tensor | None,
        mode: int,
        hidden: int,
        projection: int,
        layers: int,
        batch_first: bool,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_sizes: list[int],
        dropout_state: None,
    ) -> tuple[Tensor, ...]:
        self.calls.append(train)
        assert (projection, dropout, batch_sizes, dropout_state) == (0, 0.0, [], None)
        assert hx.shape[-1] == hidden
        matrices = [w.reshape(-1) for w in weights if w.dim() > 1]
        packed = torch.cat([*matrices, *(w for w in weights if w.dim() == 1)]).detach()
        assert torch.equal(packed, together[: len(packed)])
        assert not together[len(packed) :].any()  # biases that are not there
        state = hx if cx is None else (hx, cx)
        flags = (stride == 4, layers, 0.0, train, bidirectional, batch_first)
        output, *states = OPERATORS[mode](input, state, weights, *flags)
        return (output, *(states if cx is not None else (states[0], input.new_empty(0))), input, input)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    cuda, takes = torch.device("cuda"), _layer._takes_torchs
    monkeypatch.setattr(_layer, "_takes_torchs", lambda *arguments: takes(*arguments[:3], cuda))
    monkeypatch.setattr(_layer._local, "layers", {})
    monkeypatch.setattr(ModuleCalls, "of", lambda module: None)
    monkeypatch.setattr(_torch_on_cuda, "_cudnn_rnn", found.operator)
    monkeypatch.setattr(
        _torch_on_cuda, "_together", lambda weights, count: torch.cat([w.detach().flatten() for w in weights])
    )
    monkeypatch.setattr(_torch_on_cuda, "_current_stream", lambda index: found.stream)
    for place in (_calls, _torch_on_cuda):
        monkeypatch.setattr(place, "_is_capturing", lambda: found.is_capturing)
        monkeypatch.setattr(place, "is_benchmark", lambda: found.is_benchmark)
    monkeypatch.setattr(_calls, "_current_gpu", lambda: -1)
    monkeypatch.setattr(_torch_on_cuda, "_is_enabled", lambda: found.is_enabled)
    monkeypatch.setattr(_torch_on_cuda, "allows_tf32_rnn", lambda: False)
    return found


def config_of(module: Any) -> Config:
    sizes = (module.hidden_size, 0, module.num_layers, module.bidirectional, 0.0)
    return Config(MODES[module.mode], *sizes, BACKENDS[module.backend])


def make_ready(module: Any, x: Tensor) -> TorchsCalls:
    """As a first call on a GPU leaves it."""
    parameters = own_parameters(module)
    assert parameters is not None
    made = ModuleCalls(module, module._packed_weights())
    made.is_gpu = True
    made.torchs = torchs_calls(module, parameters, x, made.weights, made.config)
    vars(module)["_calls"] = made
    assert made.torchs is not None
    return made.torchs


def small(cell: str = "GRU", **options: Any) -> Any:
    torch.manual_seed(1)
    return make(prnn.nn, cell, 6, 8, dtype=torch.float64, backend="cudnn", **options)


def flat(results: Any) -> list[Tensor]:
    output, states = results
    return [output, *(states if isinstance(states, tuple) else (states,))]


@pytest.mark.parametrize("has_states", [False, True])
@pytest.mark.parametrize("options", [{}, {"bias": False, "batch_first": True}], ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_training_steps(cell: str, options: dict[str, Any], has_states: bool, machine: Machine) -> None:
    module, again = small(cell, **options), small(cell, **options)
    x = torch.randn(5, 3, 6, dtype=torch.float64, requires_grad=True)
    states = make_states(module, 3 if not options else 5) if has_states else None
    make_ready(module, x)
    for _ in range(2):
        found, expected = flat(module(x, states)), flat(again(x, states))
        for ours, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, wanted)
        leaves = [x, *(flat((x, states))[1:] if has_states else [])]
        ours = torch.autograd.grad(found[0].sum(), [*leaves, *module.parameters()])
        wanted = torch.autograd.grad(expected[0].sum(), [*leaves, *again.parameters()])
        for a, b in zip(ours, wanted, strict=True):
            torch.testing.assert_close(a, b)
    assert machine.calls == ([] if cell == "LSTM" else [True] * 2)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("options", [{}, {"num_layers": 3, "bidirectional": True}], ids=str)
def test_inference(cell: str, options: dict[str, Any], machine: Machine) -> None:
    module, again = small(cell, **options), small(cell, **options)
    x, states = torch.randn(5, 3, 6, dtype=torch.float64), make_states(module, 3)
    make_ready(module, x)
    with torch.no_grad():
        for given in (None, states, None):
            for ours, wanted in zip(flat(module(x, given)), flat(again(x, given)), strict=True):
                torch.testing.assert_close(ours, wanted)
                assert not ours.requires_grad
    assert machine.calls == [False] * 3


def test_the_library_is_made_ready_once_a_size(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = small(), torch.randn(5, 3, 6, dtype=torch.float64)
    made: list[tuple[bool, int]] = []
    monkeypatch.setattr(
        _torch_on_cuda.kernels,
        "run_once",
        lambda data, weights, config, training: made.append((training, threading.get_ident())),
    )
    calls, here = make_ready(module, x), threading.get_ident()
    for _ in range(2):
        module(x)[0].sum().backward()
        assert made == [(True, here)]  # its backward pass is of this thread, too
    with torch.no_grad():
        module(x)
        module(x[:3])
        module(x)
    assert made == [(True, here), (False, here), (False, here)]
    run_in_thread(lambda: module(x))
    assert len(made) == 4
    assert made[-1][1] != here
    assert len(calls.zeros) == 4
    assert len({zeros.data_ptr() for zeros in calls.zeros.values()}) == 1
    machine.stream = 7  # where these zeros may not be filled yet
    module(x)
    assert len({zeros.data_ptr() for zeros in calls.zeros.values()}) == 2
    assert machine.calls == [True, True, False, False, False, True, True]


def run_in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_the_thread_of_a_backward_pass_is_made_ready(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = small(), torch.randn(5, 3, 6, dtype=torch.float64)
    made: list[int] = []
    monkeypatch.setattr(_torch_on_cuda.kernels, "run_once", lambda *arguments: made.append(threading.get_ident()))
    make_ready(module, x)
    for _ in range(2):
        output = module(x)[0]
        run_in_thread(output.sum().backward)
        assert len(made) == 2
    assert made[0] == threading.get_ident() != made[1]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("has_states", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_one_sequence(cell: str, has_states: bool, batch_first: bool, machine: Machine) -> None:
    module, again = (small(cell, batch_first=batch_first).requires_grad_(False) for _ in range(2))
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    states = None
    if has_states:
        pair = [torch.randn(1, 8, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        states = tuple(pair) if cell == "LSTM" else pair[0]
    make_ready(module, x)
    leaves = [x, *(flat((x, states))[1:] if has_states else [])]
    for _ in range(2):
        found, expected = flat(module(x, states)), flat(again(x, states))
        torch.testing.assert_close(found, expected)
        total = [sum(result.sum() for result in results) for results in (found, expected)]
        torch.testing.assert_close(*(torch.autograd.grad(one, leaves) for one in total))
    assert machine.calls == [True] * 2


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_gradients_of_no_weight(cell: str, options: dict[str, Any], machine: Machine) -> None:
    """A frozen layer: and the same one when it trains."""
    module, again = small(cell, **options).requires_grad_(False), small(cell, **options)
    x = torch.randn(5, 3, 6, dtype=torch.float64, requires_grad=True)
    make_ready(module, x)
    for trains in (False, True, False):
        module.requires_grad_(trains)
        ours, wanted = (torch.autograd.grad(one(x)[0].sum(), x)[0] for one in (module, again))
        torch.testing.assert_close(ours, wanted)
    assert machine.calls == [True] * (2 if cell == "LSTM" or options else 3)


def test_a_gradient_of_states_alone(machine: Machine) -> None:
    module, x = small().requires_grad_(False), torch.randn(5, 3, 6, dtype=torch.float64)
    make_ready(module, x)
    hx = torch.randn(1, 3, 8, dtype=torch.float64, requires_grad=True)
    module(x, hx)[0].sum().backward()
    assert hx.grad is not None
    assert machine.calls == [True]


def test_calls_that_are_the_librarys(machine: Machine) -> None:
    module, x = small(), torch.randn(5, 3, 6, dtype=torch.float64)
    make_ready(module, x)
    transposed = torch.randn(1, 8, 3, dtype=torch.float64).transpose(1, 2)
    module(x, transposed)
    module(x, lengths=[5, 2, 1])
    module(x, reset=torch.zeros(5, 3, dtype=torch.bool))
    module(x[:, 0], torch.randn(1, 16, dtype=torch.float64)[:, ::2])
    module(torch.randn(129, 1, 6, dtype=torch.float64))
    module(torch.randn(2, 65, 6, dtype=torch.float64))
    module(x[:, :0])
    module(torch.nn.utils.rnn.pack_sequence([x[:, 0]]))
    for name in ("is_capturing", "is_benchmark", "is_enabled"):
        before = getattr(machine, name)
        setattr(machine, name, not before)
        module(x)
        setattr(machine, name, before)
    torch.func.vmap(lambda some: module(some)[0])(torch.stack([x, x]))
    with torch.autocast("cpu"):
        module(x)
    nested = torch.nested.nested_tensor([x[0], x[1]])
    bad = ((x.float(), ValueError), (x[..., :5], ValueError), (x.to_sparse(), TypeError), (nested, TypeError))
    for argument, error in bad:
        with pytest.raises(error):
            module(argument)
    for state in (x, torch.zeros(1, 3, 8), torch.zeros(1, 2, 8).double(), torch.zeros(1, 8).double()):
        with pytest.raises(ValueError, match="hx has"):
            module(x, state)
    for state in (torch.zeros(1, 3, 8).double(), torch.zeros(1, 8), torch.zeros(1, 7).double(), x.detach()[0, 0, 0]):
        with pytest.raises(ValueError, match="hx has"):
            module(x[:, 0], state)
    with pytest.raises(TypeError, match="hx is"):
        module(x[:, 0], [1])
    with pytest.raises(ValueError, match="reset_hx is given"):
        module(x, reset_hx=torch.zeros(1, 3, 8).double())
    with pytest.raises(ValueError, match="0 timesteps"):
        module(x[:0])
    assert not machine.calls
    module(x)
    assert machine.calls == [True]


def test_a_resident_layers_sizes_are_looked_up_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = small(), torch.randn(5, 3, 6, dtype=torch.float64)
    calls = make_ready(module, x)
    asked: list[int] = []

    def find(self: Any, handle: object, steps: int, batch: int, *, training: bool, trains: bool) -> bool:
        asked.append(steps)
        return False

    monkeypatch.setattr(_layer.Layer, "has_torchs_call", find)
    for _ in range(3):
        module(x)
    assert asked == [5]
    assert len(calls.librarys) == 1
    assert not machine.calls


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_module_is_looked_at_again(change: Callable[[Any], None], machine: Machine) -> None:
    module, x = small(), torch.randn(5, 3, 6, dtype=torch.float64)
    make_ready(module, x)
    change(module)
    module(x)
    assert not machine.calls
    assert vars(module).get("_calls") is None


def test_another_type_at_the_same_place(machine: Machine) -> None:
    module, x = small().requires_grad_(False), torch.randn(5, 3, 6, dtype=torch.float64)
    make_ready(module, x)
    module(x)
    module.weight_hh_l0.data = module.weight_hh_l0.data.view(torch.int64)
    with pytest.raises(ValueError, match="a weight has dtype"):
        module(x)
    assert machine.calls == [False]


def test_replaced_flat_weights_are_not_the_modules(machine: Machine) -> None:
    module = small()
    change_flat_weights(module)
    assert ModuleCalls(module, module._packed_weights()).own is None


def test_values_of_parameters_may_change(machine: Machine) -> None:
    module, x = small(), torch.randn(5, 3, 6, dtype=torch.float64)
    make_ready(module, x)
    module._calls.torchs.first[2].mul_(2)  # on a GPU it is their memory
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2)
    other = small()
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(module(x)[0], other(x)[0])
    assert machine.calls == [True]


def test_training_and_evaluation(machine: Machine) -> None:
    """The attribute `training` is one of the module's, too."""
    module, x = small(), torch.randn(5, 3, 6, dtype=torch.float64)
    for step in (module.eval, module.train):
        step()
        assert module._calls is None
        make_ready(module, x)
        module(x)[0].sum().backward()
    module.requires_grad_(False)
    assert not module(x)[0].requires_grad
    assert machine.calls == [True, True, False]


def test_copies_and_pickles_have_none(machine: Machine) -> None:
    module, x = small(), torch.randn(5, 3, 6, dtype=torch.float64)
    make_ready(module, x)
    for other in (copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert "_calls" not in vars(other)
        other(x)
    assert not machine.calls
    prnn.convert_back(module)
    assert "_calls" not in vars(module)


def test_parameters_that_are_flat_stay_where_they_are(machine: Machine) -> None:
    module, x = small(), torch.randn(5, 3, 6, dtype=torch.float64)
    make_ready(module, x)
    module.flatten_parameters()
    module(x)
    assert machine.calls == [True]


def test_parameters_that_lie_so_by_chance_are_packed_anew(machine: Machine) -> None:
    module, x = small(), torch.randn(5, 3, 6, dtype=torch.float64)
    memory, place = torch.cat([w.detach().flatten() for w in module._packed_weights()]), 0
    for weight in module._packed_weights():
        weight.data = memory[place : place + weight.numel()].view(weight.shape)
        place += weight.numel()
    module.flatten_parameters()
    assert module.weight_ih_l0.data_ptr() != memory.data_ptr()
    make_ready(module, x)
    module(x)
    assert machine.calls == [True]


def test_moved_parameters_are_packed_anew(machine: Machine) -> None:
    module, x = small(), torch.randn(5, 3, 6, dtype=torch.float64)
    make_ready(module, x)
    module.float()
    assert module._calls is None


def test_inference_before_training(machine: Machine) -> None:
    module, x = small(), torch.randn(5, 3, 6, dtype=torch.float64)
    with torch.inference_mode():
        make_ready(module, x)
        module(x)
    module(x)[0].sum().backward()
    assert machine.calls == [False, True]


def test_memory_that_is_not_the_modules(machine: Machine) -> None:
    """Parameters that happen to lie one after the other, as FSDP may have them."""
    module, x = small(bias=False), torch.randn(5, 3, 6, dtype=torch.float64)
    memory = torch.cat([w.detach().flatten() for w in module._packed_weights()])
    for name, place in (("weight_ih_l0", 0), ("weight_hh_l0", 24 * 6)):
        given = getattr(module, name)
        given.data = memory[place : place + given.numel()].view(given.shape)
    vars(module)["_zero_biases"] = memory[24 * 14 :]
    assert _torch_on_cuda.kernels.lie_packed(
        module._packed_weights(), _layer.layer(config_of(module), x.dtype, 6, x.device), x
    )
    weights = module._packed_weights()
    assert ModuleCalls(module, weights).places is not None
    assert torchs_calls(module, list(module.parameters()), x, weights, config_of(module)) is None

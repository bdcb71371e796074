"""Layer's queries of the library and its answers: backends and sizes of calls."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import prnn
from prnn import _C
from prnn._ops import _call, _layer, _measured
from prnn._ops._call import Call
from prnn._ops._handles import handle
from prnn._ops._layer import BACKENDS, MODES, Config, Layer
from prnn._ops.rnn import call

CPU = torch.device("cpu")
BEST = Config(MODES["LSTM"], 4, 0, 1, False, 0.0, BACKENDS["best"])


class Answers:
    """In the place of a descriptor on a GPU: cuDNN is faster from 16 sequences on, from 8 in tf32, and the resident
    kernels do not serve more than 64."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.math = _C.DEFAULT_MATH

    def set_math(self, math: int) -> None:
        self.math = math

    def query(self, handle: object, batch_sizes: Sequence[int]) -> dict[str, Any]:
        batch = batch_sizes[0]
        self.asked.append((batch, self.math))
        backend = "cudnn" if batch >= (8 if self.math == _C.TF32_MATH else 16) else "persistent"
        reason = "too many" if batch > 64 else "cuDNN is faster" if backend == "cudnn" else ""
        backends = {"backend": BACKENDS[backend], "inference_backend": BACKENDS[backend]}
        return {"supported": batch <= 64, "reason": reason, **backends}


def on_a_gpu(dtype: torch.dtype, config: Config = BEST, input_size: int = 3) -> Layer:
    made = Layer(config, dtype, input_size, CPU)
    made._has_choice, made.has_tf32, made.rnn = True, dtype == torch.float32, Answers()
    return made


@pytest.fixture
def layer(monkeypatch: pytest.MonkeyPatch) -> Layer:
    monkeypatch.setattr(_layer, "_told", set())
    return on_a_gpu(torch.float32)


def warnings_of(layer: Layer, *batches: int) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in batches:
            layer.estimate(_C.Handle.cpu(), [batch, batch], training=True)
    return [str(warning.message) for warning in caught]


def test_a_later_batch_that_is_not_served_is_announced(layer: Layer) -> None:
    assert warnings_of(layer, 4, 8) == []
    assert warnings_of(layer, 4, 65) == ["prnn: not the persistent kernels: too many"]


def test_a_reason_is_announced_once(layer: Layer) -> None:
    assert len(warnings_of(layer, 65, 66, 65, 4, 128)) == 1
    assert warnings_of(on_a_gpu(torch.float32), 65) == []


def test_a_faster_backend_is_no_reason_to_warn(layer: Layer) -> None:
    assert warnings_of(layer, 16, 32, 64) == []


def test_a_batch_size_is_looked_up_once(layer: Layer) -> None:
    warnings_of(layer, 32, 4, 32, 4, 4)
    assert layer.rnn.asked == [(32, _C.DEFAULT_MATH), (4, _C.DEFAULT_MATH)]


def test_a_training_step_is_chosen_for_the_precision_of_its_forward_pass(
    layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backward pass takes the chosen configuration: torch's switch may have another position by then."""
    for allowed, backends in ((True, ("persistent", "cudnn", "cudnn")), (False, ("persistent", "persistent", "cudnn"))):
        monkeypatch.setattr(_layer, "allows_tf32_rnn", lambda allowed=allowed: allowed)
        layer.follow_precision()
        for batch, backend in zip((4, 8, 16), backends, strict=True):
            chosen = layer.estimate(_C.Handle.cpu(), [batch] * 3, training=True)
            assert chosen == BEST._replace(backend=BACKENDS[backend])


def test_operators_train_whatever_the_switch_for_tf32(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As their backward pass, which has nothing but the arguments to go by."""
    double = on_a_gpu(torch.float64)
    for allowed in (True, False):
        monkeypatch.setattr(_layer, "allows_tf32_rnn", lambda allowed=allowed: allowed)
        for stack, training, backend in (
            (layer, True, "cudnn"),
            (layer, False, "cudnn" if allowed else "persistent"),
            (double, True, "persistent"),
        ):
            served = _call.operators_layer(stack, _C.Sequences([8]), training)
            assert served.config == BEST._replace(backend=BACKENDS[backend])
            assert stack.rnn.math == (_C.TF32_MATH if allowed and stack is layer else _C.DEFAULT_MATH)


def test_what_nothing_serves_is_not_chosen(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the error has the reasons of both."""
    answer = {"supported": False, "reason": "double", "backend": BACKENDS["persistent"]}
    answer["inference_backend"] = answer["backend"]
    monkeypatch.setattr(layer.rnn, "query", lambda handle, batch_sizes: answer)
    for training in (True, False):
        assert layer.estimate(_C.Handle.cpu(), [4] * 3, training=training) == BEST


def eager(layer: Layer, batch: int, steps: int, training: bool = True) -> str:
    """The backend of an eager call, and in parentheses the one that the call runs, too, so that a capture finds it."""
    names, ran = {number: name for name, number in BACKENDS.items()}, []
    layer.device = CPU
    sequences = _C.Sequences([batch] * steps)
    config = _call._ready_config(layer, sequences, ran.append, training)
    return names[config.backend] + "".join(f" ({names[captured.backend]})" for captured in ran)


def test_small_layers_are_resident_in_calls_of_their_own(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    for training in (True, False):
        assert eager(layer, 32, 8, training) == "persistent (cudnn)"
        assert eager(layer, 4, 8, training) == "persistent"
        assert eager(layer, 32, 9, training) == "cudnn"
    with pytest.warns(UserWarning, match="too many"):
        assert eager(layer, 65, 8) == "cudnn"
    assert eager(layer, 65, 8, training=False) == "cudnn"
    assert eager(on_a_gpu(torch.float16), 32, 8) == "cudnn"
    assert eager(on_a_gpu(torch.float32, BEST._replace(num_layers=2)), 32, 8) == "cudnn"
    assert eager(on_a_gpu(torch.float32, BEST._replace(hidden_size=260)), 32, 8) == "cudnn"
    assert eager(on_a_gpu(torch.float32, input_size=260), 32, 8) == "cudnn"
    rnn = on_a_gpu(torch.float32, BEST._replace(mode=MODES["RNN_TANH"]))
    assert [eager(rnn, 32, 3), eager(rnn, 32, 3, training=False)] == ["persistent (cudnn)", "cudnn"]
    assert eager(rnn, 32, 2, training=False) == "persistent (cudnn)"
    capturing = True
    assert eager(layer, 32, 8) == "cudnn"
    assert eager(layer, 32, 7, training=False) == "cudnn"


def test_a_reason_is_announced_by_a_call_of_its_own(layer: Layer) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            layer.eager_config(_C.Handle.cpu(), [65] * 3, training=False)
    assert [str(warning.message) for warning in caught] == ["prnn: not the persistent kernels: too many"]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The backends that were timed: cuDNN takes half the time of the resident kernels."""
    found: list[int] = []

    def replay_time(call: Callable[[], int]) -> float:
        found.append(call())
        return 1.0 if found[-1] == BACKENDS["cudnn"] else 2.0

    monkeypatch.setattr(_measured, "_choices", {})
    monkeypatch.setattr(_measured, "replay_time", replay_time)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return found


def measured(layer: Layer, batch: int, steps: int = 3, training: bool = True) -> int:
    config = layer.measured_config(_C.Handle.cpu(), [batch] * steps, lambda config: config.backend, training=training)
    return config.backend


@pytest.mark.parametrize("training", [True, False])
def test_the_first_call_of_a_size_measures(layer: Layer, timed: list[int], training: bool) -> None:
    for batch, steps, count in ((4, 3, 2), (4, 3, 2), (5, 3, 4), (4, 4, 6), (4, 256, 8), (4, 1000, 8)):
        assert measured(layer, batch, steps, training) == BACKENDS["cudnn"]
        assert len(timed) == count
    assert set(timed) == {BACKENDS["persistent"], BACKENDS["cudnn"]}


def test_what_was_measured_stays(layer: Layer, timed: list[int]) -> None:
    """For all layers of a configuration; a training step and inference are measured apart."""
    assert measured(layer, 5) == measured(on_a_gpu(torch.float32), 5) == BACKENDS["cudnn"]
    assert len(timed) == 2
    assert measured(layer, 5, training=False) == BACKENDS["cudnn"]
    assert len(timed) == 4


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_measured_where_one_backend_alone_serves(layer: Layer, timed: list[int], training: bool) -> None:
    measured(layer, 65, training=training)
    layer.has_options = True
    measured(layer, 4, training=training)
    on_the_cpu = Layer(BEST, torch.float32, 3, CPU)
    assert measured(on_the_cpu, 4, training=training) == BACKENDS["best"]
    assert timed == []


@pytest.mark.parametrize("lengths", [None, [2, 4, 1]])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_measured_step_is_one_of_the_calls_data(
    timed: list[int], lengths: list[int] | None, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, as on a GPU: with states and without, in training and in inference. An operator measures nothing."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(_measured, "replay_time", lambda call: float(call() is None))
    calls = []
    real = Call.backward
    monkeypatch.setattr(Call, "backward", lambda *given: calls.append(given[3][0].shape) or real(*given))
    module = prnn.nn.LSTM(3, 37, 2, dropout=dropout)
    config = BEST._replace(hidden_size=37, num_layers=2, dropout=dropout)
    for backend in BACKENDS.values():  # "best" is the thread's layer for the configuration
        stack = _layer.layer(config._replace(backend=backend), torch.float32, 3, CPU)
        monkeypatch.setattr(stack, "_has_choice", backend == BACKENDS["best"])
    x, rows = torch.randn(4, 3, 3, requires_grad=True), 12 if lengths is None else sum(lengths)
    given = None if lengths is None else torch.tensor(lengths)
    for states in (None, (torch.zeros(2, 3, 37), torch.zeros(2, 3, 37))):
        _measured._choices.clear()
        calls.clear()
        vars(module).pop("_calls", None)
        module(x, states, lengths=given)[0].sum().backward()
        assert calls == [(rows, 3), (rows, 3), (4, 3, 3)]
    assert set(_measured._choices.values()) == {BACKENDS["persistent"]}
    with torch.no_grad():
        module(x, lengths=given)
        count = len(_measured._choices)
        run = torch.compile(module, backend="aot_eager")
        run(x[:2], lengths=None if given is None else given.clamp(max=2))
    assert len(_measured._choices) == count


@pytest.mark.parametrize("error", [prnn.NotSupportedError("no cuDNN"), torch.OutOfMemoryError("full")])
def test_the_estimate_stays_where_nothing_can_be_timed(
    layer: Layer, timed: list[int], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert measured(layer, 7, training=False) == BACKENDS["persistent"]
        assert measured(layer, 8) == BACKENDS["persistent"]
    assert timed == []
    assert measured(layer, 7, training=False) == BACKENDS["cudnn"]  # the next call measures

    def fail(call: object) -> float:
        timed.append(-1)
        raise error

    monkeypatch.setattr(_measured, "replay_time", fail)
    for _ in range(2):
        assert measured(layer, 9) == BACKENDS["persistent"]
        assert measured(layer, 9, training=False) == BACKENDS["persistent"]
    assert timed[2:] == [-1, -1]


def bytes_kept(
    x: torch.Tensor, lengths: torch.Tensor | None, is_operator: bool, monkeypatch: pytest.MonkeyPatch
) -> int:
    module, kept = prnn.nn.LSTM(3, 4, 2), []
    forward = Call.forward
    monkeypatch.setattr(Call, "forward", lambda *given: (results := forward(*given), kept.append(results[3]))[0])
    if is_operator:
        config = Config(MODES["LSTM"], 4, 0, 2, False, 0.0, BACKENDS["best"])
        call(x, None, None, module._packed_weights(), None, lengths, None, (), None, None, config)
    else:
        module(x, lengths=lengths)
    monkeypatch.undo()
    return kept[0].numel()


@pytest.mark.parametrize(("lengths", "sizes"), [(None, [3] * 5), ([2, 5, 3], [3, 3, 2, 1, 1])])
def test_the_reserve_space_is_what_the_library_asks_for(
    lengths: list[int] | None, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, rnn = torch.randn(5, 3, 3), _C.Rnn(_C.LSTM, _C.FLOAT, 4, 2, 3, False)
    given = None if lengths is None else torch.tensor(lengths)
    needed = rnn.temp_space_sizes(_C.Handle.cpu(), True, sizes)[1]
    assert bytes_kept(x, given, False, monkeypatch) == needed
    assert bytes_kept(x, given, True, monkeypatch) > needed  # an expression of T and N


@pytest.mark.parametrize("lengths", [None, [2, 4, 1]])
def test_sizes_of_a_forward_pass_are_not_those_of_an_earlier_gradient_of_c(lengths: list[int] | None) -> None:
    """That of c of every timestep has kernels of its own, whose workspace may be smaller."""
    module = prnn.nn.LSTM(3, 5)
    rnn = _layer.layer(BEST._replace(hidden_size=5, return_cells=True), torch.float32, 3, CPU).rnn
    sequences = _C.Sequences(lengths, 4) if lengths else _C.Sequences.even(4, 3)
    expected = [rnn.spaces(handle(CPU), training, sequences) for training in (False, True)]
    module(torch.randn(4, 3, 3), lengths=lengths, return_cells=True)[2].sum().backward()
    assert [rnn.spaces(handle(CPU), training, sequences) for training in (False, True)] == expected
    rnn.set_extras(0, 1, 1)
    with_gradient = rnn.temp_space_sizes(handle(CPU), True, sequences)[0]
    rnn.set_extras(0, 1, 0)
    packed = rnn.backward_space(handle(CPU), sequences, True, True) - with_gradient
    assert (packed > 0) == (lengths is not None)


def test_a_layer_made_for_fake_tensors_serves_real_ones() -> None:
    weights = prnn.nn.GRU(3, 19)._packed_weights()
    rest = (None, None, None, (), None, None, BEST._replace(mode=MODES["GRU"], hidden_size=19))
    x = torch.zeros(2, 1, 3)
    with torch.no_grad():
        with FakeTensorMode() as mode:
            call(mode.from_tensor(x), None, None, [mode.from_tensor(weight) for weight in weights], *rest)
        assert {type(result) for result in call(x, None, None, weights, *rest)} == {torch.Tensor}


def test_a_small_workspace_on_the_cpu_is_kept() -> None:
    stack = Layer(BEST, torch.float32, 3, CPU)
    input = torch.empty(1, 1, 3)
    first = stack.workspace(1000, input)
    assert stack.workspace(600, input) is first
    larger = stack.workspace(2000, input)
    assert larger.numel() == 2000
    assert stack.workspace(1000, input) is larger
    assert stack.workspace(_layer._KEPT_WORKSPACE + 1, input).numel() == _layer._KEPT_WORKSPACE + 1
    assert stack.workspace(2000, input) is larger


def test_outputs_without_elements_are_not_outputs_of_a_graph() -> None:
    module = prnn.nn.RNN(3, 4)
    output, hy, cy, cells = call(
        torch.randn(2, 1, 3), None, None, module._packed_weights(), None, None, None, (), None, None, _config_of(module)
    )
    assert [tensor.requires_grad for tensor in (output, hy, cy, cells)] == [True, True, False, False]
    assert cy.numel() == cells.numel() == 0


def _config_of(module: prnn.nn.RNN) -> Config:
    return Config(MODES[module.mode], module.hidden_size, 0, 1, False, 0.0, BACKENDS["best"])

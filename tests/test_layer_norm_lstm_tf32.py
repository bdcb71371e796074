"""torch's switch for tf32 in recurrent layers, as LayerNormLSTM reads it. What it does on a GPU:
test_layer_norm_lstm_tf32_cuda.py."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import prnn
from prnn import _C
from prnn._ops import _call, _layer, layer_norm_lstm_input


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Returns whether each call of the library was allowed tf32. Layers on the CPU follow the switch, too."""
    found: list[bool] = []
    make, layer_of = _layer.Layer.__init__, layer_norm_lstm_input._layer_of

    def make_following(stack: _layer.Layer, *given: Any) -> None:
        make(stack, *given)
        stack.has_tf32 = stack.dtype == torch.float32

    def noted(stack: _layer.Layer) -> None:
        found.append(stack.math == _C.TF32_MATH)

    def noted_run(run: Callable[..., Any]) -> Callable[..., Any]:
        def noted_call(call: _call.Call, *given: Any) -> Any:
            results = run(call, *given)
            noted(call.stack)
            return results

        return noted_call

    def noted_products(x: torch.Tensor) -> _layer.Layer:
        stack = layer_of(x)
        noted(stack)
        return stack

    monkeypatch.setattr(_layer, "_local", _layer._ThreadState())
    monkeypatch.setattr(_layer.Layer, "__init__", make_following)
    for name in ("forward", "backward"):
        monkeypatch.setattr(_call.Call, name, noted_run(getattr(_call.Call, name)))
    monkeypatch.setattr(layer_norm_lstm_input, "_layer_of", noted_products)
    return found


def run(module: Callable[..., Any], dtype: torch.dtype, first: bool, second: bool) -> list[torch.Tensor]:
    """Output and the input's gradient, with the switch in one position forward and in another backward."""
    x = torch.linspace(-1, 1, 5 * 2 * 3, dtype=dtype).view(5, 2, 3).requires_grad_()
    torch.backends.cudnn.allow_tf32 = first
    output = module(x)[0]
    torch.backends.cudnn.allow_tf32 = second
    output.sum().backward()
    assert x.grad is not None
    return [output.detach(), x.grad]


@pytest.mark.parametrize("is_compiled", [False, True])
def test_each_call_reads_torchs_switch(is_compiled: bool, allowed: list[bool]) -> None:
    """Which has no effect on the CPU. A compiled module is not compiled again."""
    module = prnn.nn.LayerNormLSTM(3, 4)
    run_module = torch.compile(module, fullgraph=True, backend="aot_eager") if is_compiled else module
    expected = run(run_module, torch.float32, False, False)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for first, second in ((True, True), (False, True), (True, False)):
            allowed.clear()
            found = run(run_module, torch.float32, first, second)
            assert allowed == [first, first, second, second]  # of the input's products and of the recurrence
            assert all(map(torch.equal, found, expected))


def test_only_float32_may_be_rounded(allowed: list[bool]) -> None:
    run(prnn.nn.LayerNormLSTM(3, 4, dtype=torch.float64), torch.float64, True, True)
    assert allowed == [False, False]


def test_the_newer_switch(allowed: list[bool]) -> None:
    rnn = getattr(torch.backends.cudnn, "rnn", None)
    if rnn is None:
        pytest.skip("torch has no torch.backends.cudnn.rnn.fp32_precision before 2.9")
    module, x = prnn.nn.LayerNormLSTM(3, 4), torch.randn(5, 2, 3)
    before = rnn.fp32_precision
    try:
        for precision in ("tf32", "ieee"):
            rnn.fp32_precision = precision
            module(x)
    finally:
        rnn.fp32_precision = before
    assert allowed == [True, True, False, False]

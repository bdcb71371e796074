"""The products of the input of a LayerNormLSTM: the C API on the CPU, and the operator, which layers use on a GPU, too
(test_layer_norm_lstm_tf32_cuda.py)."""

import ctypes
from typing import Any

import capi
import pytest
import torch
from layer_norm_lstm_c_case import CCase
from torch.nn import functional

import prnn
from prnn._ops import layer_norm_lstm_input as operators

NAMES = ("InputForward", "InputBackward")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("steps", "batch", "hidden"), [(1, 1, 1), (4, 3, 6), (9, 7, 40)])
def test_c_api_agrees_with_torch(steps: int, batch: int, hidden: int, dtype: torch.dtype) -> None:
    case = CCase(dtype, steps, batch, hidden)
    input, weight = (case.data[name].clone().requires_grad_() for name in ("input", "weight"))
    expected = functional.linear(input, weight)
    expected.backward(case.data["dx"])
    case.check("InputForward")
    torch.testing.assert_close(case.data["x"], expected.detach())
    for wanted in (("dInput", "dWeight"), ("dInput",), ("dWeight",), ()):
        for name in ("dInput", "dWeight"):
            case.data[name].fill_(torch.nan)
        case.check("InputBackward", **{name: None for name in ("dInput", "dWeight") if name not in wanted})
        for name, leaf in (("dInput", input), ("dWeight", weight)):
            torch.testing.assert_close(
                case.data[name], leaf.grad if name in wanted else torch.full_like(leaf, torch.nan), equal_nan=True
            )


BAD: list[tuple[dict[str, Any], str]] = [
    ({"inputSize": 0}, "inputSize is 0; it must be 1 to 2147483647"),
    ({"inputSize": -3}, "inputSize is -3; it must be 1 to 2147483647"),
    ({"inputSize": 2**31}, "inputSize is 2147483648; it must be 1 to 2147483647"),
    ({"input": None}, "input is NULL"),
    ({"weight": None}, "weight is NULL"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
@pytest.mark.parametrize("name", NAMES)
def test_bad_arguments(name: str, changes: dict[str, Any], message: str) -> None:
    case = CCase()
    check_refused(case, name, changes, message)


@pytest.mark.parametrize("name", NAMES)
def test_bad_sizes_and_objects(name: str) -> None:
    case = CCase()
    check_refused(case, name, {"rows": 0}, "rows is 0; it must be at least 1")
    text = f"rows is {2**62} with inputSize 5: more memory than can be addressed"
    check_refused(case, name, {"rows": 2**62}, text)
    assert case.call(name, handle=None) == capi.NOT_INITIALIZED
    check_refused(case, name, {"rnnDesc": None}, "rnnDesc is NULL")
    check_refused(case, name, {"dx" if name == "InputBackward" else "x": None}, f"{'d' * (len(name) > 12)}x is NULL")
    layer = dict(hiddenSize=6, numLayers=1, dropoutDesc=None, inputMode=0, direction=0, mode=2, dataType=0)
    capi.check("SetRNNDescriptor", rnnDesc=case.rnn.pointer, **layer)
    check_refused(case, name, {}, "rnnDesc has input matrices; it must have PRNN_GATES_INPUT")


@pytest.mark.parametrize("name", NAMES)
def test_arrays_that_are_not_aligned(name: str) -> None:
    case = CCase(torch.float64)
    odd = torch.zeros(2**12, dtype=torch.uint8)[2:]
    for field in ("input", "weight", "x", "dx", "dInput", "dWeight"):
        if field in capi.FUNCTIONS[f"prnnRNNGates{name}"].parameters:
            text = f"{field} is at address {odd.data_ptr():#x}; it must be aligned to 8 bytes"
            check_refused(case, name, {field: ctypes.c_void_p(odd.data_ptr())}, text)


def check_refused(case: CCase, name: str, changes: dict[str, Any], message: str) -> None:
    before = [tensor.clone() for tensor in case.outputs()[:-1]]
    assert case.call(name, **changes) == capi.BAD_PARAM
    assert capi.message(case.handle.pointer) == message
    assert all(torch.equal(a, b) for a, b in zip(case.outputs(), before, strict=False))


def arguments(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 2, 5, dtype=dtype).requires_grad_(), torch.randn(8, 5, dtype=dtype).requires_grad_()


def test_operator() -> None:
    input, weight = arguments()
    torch.library.opcheck(torch.ops.prnn.layer_norm_lstm_input.default, (input, weight))
    assert torch.autograd.gradcheck(operators._call, (input, weight))
    x = operators._call(input.transpose(0, 1), weight)  # not contiguous
    torch.testing.assert_close(x, functional.linear(input.transpose(0, 1), weight))
    for leaf in (input, weight):
        frozen = [tensor.detach() if tensor is not leaf else tensor for tensor in (input, weight)]
        (found,) = torch.autograd.grad(operators._call(*frozen).sin().sum(), leaf)
        (expected,) = torch.autograd.grad(functional.linear(input, weight).sin().sum(), leaf)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_layers_with_it(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they run on a GPU in float32."""
    modules = [prnn.nn.LayerNormLSTM(5, 6, 2, normalize="products", bidirectional=True)]
    modules.append(prnn.nn.LayerNormLSTM(5, 6))
    for module in modules:
        input = torch.randn(4, 3, 5, requires_grad=True)
        parameters = [input, *module.parameters()]
        results = []
        for is_own in (False, True):
            with monkeypatch.context() as patch:
                patch.setattr(operators, "_wants_own", lambda _, is_own=is_own: is_own)
                run = torch.compile(module, fullgraph=True, backend="aot_eager") if is_compiled else module
                output = run(input)[0]
                results.append([output, *torch.autograd.grad(output.sin().sum(), parameters)])
                torch._dynamo.reset()
        torch.testing.assert_close(*results)


def test_no_sequences() -> None:
    input, weight = torch.randn(3, 0, 5, requires_grad=True), torch.randn(8, 5, requires_grad=True)
    x = operators._call(input, weight)
    assert x.shape == (3, 0, 8)
    gradients = torch.autograd.grad(x.sum(), (input, weight))
    assert gradients[0].shape == input.shape
    assert torch.equal(gradients[1], torch.zeros_like(weight))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(8, 4), r"weight_ih has shape \(8, 4\); it must be \(4 \* hidden_size, 5\)"),
        (torch.ones(6, 5), r"weight_ih has shape \(6, 5\); it must be \(4 \* hidden_size, 5\)"),
        (torch.ones(40), r"weight_ih has shape \(40,\); it must be \(4 \* hidden_size, 5\)"),
        (torch.ones(8, 5).double(), "weight_ih is torch.float64 on cpu, but input is torch.float32 on cpu"),
        (torch.ones(8, 5, device="meta"), "weight_ih is torch.float32 on meta, but input is torch.float32 on cpu"),
    ],
)
def test_bad_weights(weight: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        operators._kernel(torch.ones(3, 2, 5), weight)


@pytest.mark.filterwarnings("error:There is a performance drop")  # torch's, of operators without a rule for vmap
def test_transforms() -> None:
    input, weights = torch.randn(3, 2, 5), torch.randn(4, 8, 5)
    found = torch.func.vmap(operators._call, (None, 0))(input, weights)
    torch.testing.assert_close(found, torch.stack([functional.linear(input, weight) for weight in weights]))
    gradient = torch.func.grad(lambda weight: operators._call(input, weight).sin().sum())(weights[0])
    expected = torch.func.grad(lambda weight: functional.linear(input, weight).sin().sum())(weights[0])
    torch.testing.assert_close(gradient, expected)
    of_each = torch.func.vmap(torch.func.grad(lambda weight: operators._call(input, weight).sin().sum()))(weights)
    torch.testing.assert_close(of_each[0], expected)

"""The recurrence of an LSTM with layer normalisation or without as a torch operator: schema, fake kernel, autograd.

layer_norm_lstm(*arrays, *numbers, keep) -> (y, cy, reserve); include/persistent_rnn.h has the formulas, at
prnnSetRNNNormalization. The
arrays are contiguous, of one type (lengths: int32), on one device; gains and biases are None where `normalize` is
"none". `reserve` is what the backward operator needs, as bytes; it is empty where `keep` is False.
"""

from typing import Any

import torch
from torch import Tensor

from prnn import _C
from prnn._errors import NotSupportedError
from prnn._ops._handles import DTYPES, device_of, handle, is_unproven
from prnn._ops._layer import remembered
from prnn._ops._operator import differentiate, operator, refuse_onnx, with_own_node, without_dispatch
from prnn._ops._precision import allows_tf32_rnn

__all__ = ["NORMALIZE", "call_layer_norm_lstm", "layer_key", "layer_norm_lstm_plan"]

NORMALIZE = {"gates": _C.NORMALIZE_GATES, "products": _C.NORMALIZE_PRODUCTS, "none": _C.NORMALIZE_NONE}

_ARRAYS = (
    "Tensor x, Tensor? h0, Tensor? c0, Tensor recurrent, Tensor? gate_gain, Tensor? gate_bias, Tensor? cell_gain, "
    "Tensor? cell_bias, Tensor? zoneout_mask, Tensor? recurrent_mask, Tensor? lengths"
)
_ARRAY_COUNT = 11
_NAMES = (
    *("h0", "c0", "recurrent", "gate_gain", "gate_bias", "cell_gain", "cell_bias"),
    *("zoneout_mask", "recurrent_mask"),
)
_NUMBERS = "int normalize, bool reverse, float epsilon, float zoneout"


def layer_key(x: Tensor, zoneout_mask: Tensor | None, recurrent_mask: Tensor | None, *numbers: Any) -> tuple[Any, ...]:
    """The arguments of _C.LayerNormLstm, which wants to know of masks whether there are any."""
    steps, batch, width = x.shape
    # torch's switch at the time of the call, which the backward pass reads anew, as prnn.nn's other layers do.
    tf32 = x.dtype is torch.float32 and allows_tf32_rnn()
    normalize, *others = numbers
    has_masks = (zoneout_mask is not None, recurrent_mask is not None)
    return (DTYPES[x.dtype], normalize, steps, batch, width // 4, *others, *has_masks, tf32)


def _prepare(arrays: tuple[Tensor | None, ...], numbers: tuple[Any, ...], training: bool) -> _C.LayerNormLstmCall:
    """The library's call for arrays of these sizes, on the current GPU or the CPU."""
    x = arrays[0]
    assert x is not None
    key = layer_key(x, *arrays[8:10], *numbers)
    library = handle(x.device)  # which follows torch's stream
    return remembered((*key, training, x.device), lambda: _C.LayerNormLstm(*key).prepare(library, training))


def _checked_addresses(arrays: tuple[Tensor | None, ...]) -> list[int]:
    """The arrays' addresses. Parameters may have been replaced, or converted one by one."""
    x = arrays[0]
    assert x is not None
    steps, batch, width = x.shape
    dtype, device, hidden = x.dtype, x.device, width // 4
    states, gates, cells = (batch, hidden), (width,), (hidden,)
    shapes = (states, states, (width, hidden), gates, gates, cells, cells, (steps, *states), states)
    addresses = [x.data_ptr()]
    for name, array, shape in zip(_NAMES, arrays[1:], shapes, strict=False):
        if array is None:
            addresses.append(0)
            continue
        if array.shape != shape:
            raise ValueError(f"{name} has shape {tuple(array.shape)}; it must be {shape}")
        if array.dtype is not dtype or array.device != device:
            raise ValueError(f"{name} is {array.dtype} on {array.device}, but x is {x.dtype} on {x.device}")
        addresses.append(array.data_ptr())
    lengths = arrays[-1]
    return [*addresses, 0 if lengths is None else lengths.data_ptr()]


# Timesteps of a comparison with the CPU.
_FEW_STEPS = 5


def _require_agreement(arrays: tuple[Tensor | None, ...], numbers: tuple[Any, ...]) -> None:
    """On a GPU that nobody has run, the kernels of a size are compared with the CPU's before its first call.

    Raises:
        NotSupportedError: they differ.
    """
    from prnn._ops._twin import TF32_TOLERANCE, TOLERANCE, compare, few_threads, verdict

    x = arrays[0]
    assert x is not None
    steps, (batch, hidden) = min(_FEW_STEPS, x.size(0)), (x.size(1), x.size(2) // 4)
    tf32 = x.dtype is torch.float32 and allows_tf32_rnn()
    # Twice that of layers without: of sums over a layer's units.
    tolerance = 2 * (TF32_TOLERANCE if tf32 else TOLERANCE.get(x.dtype, TOLERANCE[torch.float32]))

    def results(device: torch.device, dtype: torch.dtype, drawn: tuple[Tensor | None, ...]) -> dict[str, Tensor]:
        made = tuple(
            None if value is None else value.to(device, dtype if value.is_floating_point() else value.dtype)
            for value in drawn
        )
        *given, dy, dcy = made
        assert dy is not None
        y, cy, reserve = _forward(*given, *numbers, True, is_compared=True)
        gradients = _backward_kernel(dy, dcy, *given, y, reserve, *numbers)
        named = {f"d{name}": value for name, value in zip(("x", *_NAMES), gradients, strict=False)}
        return {"y": y, "cy": cy} | {name: value for name, value in named.items() if value.numel() > 0}

    def differences() -> list[Any]:
        with torch.no_grad():
            drawn = _draw(arrays, steps, batch, hidden)
            found = results(x.device, x.dtype, drawn)
            with few_threads():
                wide = torch.float64 if x.dtype is torch.float64 else torch.float32
                wanted = results(torch.device("cpu"), wide, drawn)
            return [compare(found, wanted, tolerance)]

    kinds = [array is not None for array in arrays]
    problem = f"layer norm LSTM {numbers}, {x.dtype}, {steps} x {batch} x {hidden}, arrays {kinds}, tf32 {tf32}"
    if sentence := verdict(x.device, problem, "of an LSTM with layer normalisation or masks", differences):
        raise NotSupportedError(sentence)


def _draw(arrays: tuple[Tensor | None, ...], steps: int, batch: int, hidden: int) -> tuple[Tensor | None, ...]:
    """Random arrays like the given ones, of fewer timesteps, with gradients of y and cy behind them; on the CPU."""
    generator = torch.Generator().manual_seed(hidden)
    x = arrays[0]
    assert x is not None

    def draw(name: str, array: Tensor) -> Tensor:
        shape = (steps, *array.shape[1:]) if name in ("x", "zoneout_mask", "dy") else tuple(array.shape)
        made = torch.empty(shape, dtype=torch.float32, device="cpu").uniform_(-1, 1, generator=generator)
        if name == "lengths":
            return ((made + 1) / 2 * steps).ceil().to(array.dtype)
        if name == "recurrent":
            made *= hidden**-0.5
        elif name.endswith("mask"):
            made = (made > 0).float()
        elif name.endswith("gain"):
            made = 1 + made / 4
        return made.to(array.dtype)

    names = ("x", *_NAMES, "lengths", "dy", "dcy")
    given = (*arrays, x.new_empty(1, batch, hidden), x.new_empty(batch, hidden))
    return tuple(None if array is None else draw(name, array) for name, array in zip(names, given, strict=True))


def _forward(*inputs: Any, reserve: Tensor | None = None, is_compared: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """is_compared: the call is one of _require_agreement()."""
    arrays, numbers, keep = inputs[:_ARRAY_COUNT], inputs[_ARRAY_COUNT:-1], inputs[-1]
    x = arrays[0]
    if not is_compared and is_unproven(x.device) and x.size(1) > 0:
        _require_agreement(arrays, numbers)
    steps, batch, width = x.shape
    y, cy = x.new_empty(steps, batch, width // 4), x.new_empty(batch, width // 4)
    addresses = _checked_addresses(arrays)
    if batch == 0:
        return y, cy, x.new_empty(0, dtype=torch.uint8) if reserve is None else reserve
    with device_of(x):
        call = _prepare(arrays, numbers, keep)
        if reserve is None:
            reserve = x.new_empty(call.reserve_size, dtype=torch.uint8)
        workspace = x.new_empty(call.workspace_size, dtype=torch.uint8)
        spaces = (workspace.data_ptr(), reserve.data_ptr() if keep else 0, reserve.numel())
        call.forward(addresses, y.data_ptr(), cy.data_ptr(), *spaces)
    return y, cy, reserve


def _kernel(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    # All bytes of an operator's outputs must be reproducible, and padding is not written.
    return _forward(*inputs, reserve=_reserve(inputs[0], inputs[-1]).zero_())


def _reserve(x: Tensor, keep: bool) -> Tensor:
    """At least what libprnn wants on any device, from shapes alone, which a compiler may only know as symbols."""
    steps, batch, width = x.shape
    size = steps * batch * (6 * (width // 4) * x.element_size() + 32) + 512
    return x.new_empty(size if keep else 0, dtype=torch.uint8)


def _fake(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    refuse_onnx()
    x = inputs[0]
    steps, batch, width = x.shape
    return x.new_empty(steps, batch, width // 4), x.new_empty(batch, width // 4), _reserve(x, inputs[-1])


def _new_gradients(arrays: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """Makes the gradients of x, h0, c0 and the parameters; empty for one that is None."""
    x = arrays[0]
    assert x is not None
    gradients = [x.new_empty(0) if array is None else torch.empty_like(array) for array in arrays[:8]]
    return tuple(gradients)


def _backward_kernel(dy: Tensor, dcy: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    arrays, (y, reserve), numbers = rest[:_ARRAY_COUNT], rest[_ARRAY_COUNT : _ARRAY_COUNT + 2], rest[_ARRAY_COUNT + 2 :]
    x = arrays[0]
    dy = dy.contiguous()
    dcy = None if dcy is None else dcy.contiguous()
    gradients = _new_gradients(arrays)
    if y.numel() == 0:
        return tuple(gradient.zero_() for gradient in gradients)
    results = (y.data_ptr(), dy.data_ptr(), 0 if dcy is None else dcy.data_ptr())
    wanted = [gradient.data_ptr() if gradient.numel() else 0 for gradient in gradients]
    with device_of(x):
        call = _prepare(arrays, numbers, True)
        workspace = x.new_empty(call.workspace_size, dtype=torch.uint8)
        spaces = (workspace.data_ptr(), reserve.data_ptr(), reserve.numel())
        call.backward(_checked_addresses(arrays), *results, wanted, *spaces)
    return gradients


def _backward_fake(dy: Tensor, dcy: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    return _new_gradients(rest[:_ARRAY_COUNT])


layer_norm_lstm = operator(
    f"layer_norm_lstm({_ARRAYS}, {_NUMBERS}, bool keep) -> (Tensor y, Tensor cy, Tensor reserve)", _kernel, _fake
)
layer_norm_lstm_backward = operator(
    f"layer_norm_lstm_backward(Tensor dy, Tensor? dcy, {_ARRAYS}, Tensor y, Tensor reserve, {_NUMBERS}) -> "
    "(Tensor dx, Tensor dh0, Tensor dc0, Tensor d_recurrent, Tensor d_gate_gain, Tensor d_gate_bias, "
    "Tensor d_cell_gain, Tensor d_cell_bias)",
    _backward_kernel,
    _backward_fake,
)
_backward = without_dispatch(layer_norm_lstm_backward, 2)


def _setup(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor, Tensor]) -> None:
    y, _, reserve = outputs
    ctx.numbers = inputs[_ARRAY_COUNT:-1]
    ctx.mark_non_differentiable(reserve)
    ctx.save_for_backward(*inputs[:_ARRAY_COUNT], y, reserve)


def _gradients(ctx: Any, dy: Tensor | None, dcy: Tensor | None, _: Tensor | None = None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    if dy is None:
        dy = torch.zeros_like(saved[_ARRAY_COUNT])
    results = _backward(dy, dcy, *saved, *ctx.numbers)
    wanted = ctx.needs_input_grad
    gradients = [gradient if want else None for gradient, want in zip(results, wanted, strict=False)]
    return (*gradients, *(None,) * (len(wanted) - len(gradients)))


differentiate(layer_norm_lstm, _setup, _gradients, layer_norm_lstm_backward)
call_layer_norm_lstm = with_own_node(layer_norm_lstm, _forward, _setup, _gradients)


def layer_norm_lstm_plan(
    device: torch.device, gpu: str | None, dtype: torch.dtype, normalize: str, batch: int, hidden: int
) -> tuple[str, str, int, int]:
    """The engines that run such a layer's forward and backward pass on the device, or on a GPU of the table: "cpu",
    "steps", "cluster" or "grid"; the copies of the weights, and the blocks (on a CPU threads) of each."""
    x = torch.empty(1, batch, 4 * hidden, dtype=dtype, device="meta")
    layer = _C.LayerNormLstm(*layer_key(x, None, None, NORMALIZE[normalize], False, 1e-5, 0.0))
    *plan, reason = layer.query(handle(device), gpu)
    if reason:
        raise NotSupportedError(reason)
    forward, backward, replicas, blocks = plan
    return forward, backward, replicas, blocks

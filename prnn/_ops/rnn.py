"""torch.ops.prnn.rnn and rnn_backward: a stack of recurrent layers as one operator.

Sizes as in persistent_rnn.h: T timesteps, N sequences, I input size, H hidden size, P state size (the projection's,
else H), L layers, D directions.

rnn(input, hx, cx, weights, batch_sizes, lengths, seed, max_batch, *config, train) -> (output, hy, cy, reserve)
    input: (T, N, I), or packed (sum of batch_sizes, I).
    hx: (L D, N, P) or None for zeros.  cx: (L D, N, H) or None; LSTM only.
    weights: tensors whose elements, one tensor after the other, are the packed weights of persistent_rnn.h. Nothing is
        copied where they already lie so in memory.
    batch_sizes: for packed input, (T,) integers on the CPU, non-increasing; max_batch is then its first entry.
    lengths: for input (T, N, I), (N,) integers from 1 to T in any order, or None where all are T.
    seed: (2,) int64 on the device of input, wanted where dropout > 0: the masks follow from it, from the value that it
        has when the layers run.
    config: mode, hidden_size, proj_size, num_layers, bidirectional, dropout, backend. mode and backend are the C API's
        numbers; dropout is that of this call, 0 outside training.
    train: whether reserve is filled for rnn_backward. Autograd sets it where a gradient is wanted.
    output: (T, N, D P), zero beyond each length, or (sum of batch_sizes, D P).  hy, cy: as hx, cx; cy has no elements
        unless the mode is LSTM.  reserve: bytes, opaque, empty without train and dropout.
Tensors are of one device and one dtype, float32 or float64 on the CPU.

The operators are defined with torch.library.Library and not with custom_op, whose wrappers cost more than a step of a
small layer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from prnn._errors import NotSupportedError
from prnn._ops._autocast import rnn_on_cpu, rnn_on_cuda
from prnn._ops._handles import device_of, handle
from prnn._ops._layer import BACKENDS, MODES, Config, Layer, layer
from prnn._ops._operator import _PLAIN as PLAIN
from prnn._ops._operator import _apply_of as apply_of
from prnn._ops._operator import _undisturbed as undisturbed
from prnn._ops._steps import steps_of

__all__ = ["BACKENDS", "MODES", "Config", "call", "rnn", "rnn_backward"]

_CONFIG = "int mode, int hidden_size, int proj_size, int num_layers, bool bidirectional, float dropout, int backend"
_SEQUENCES = "Tensor? batch_sizes, Tensor? lengths"

_library = torch.library.Library("prnn", "FRAGMENT")
_library.define(
    f"rnn(Tensor input, Tensor? hx, Tensor? cx, Tensor[] weights, {_SEQUENCES}, Tensor? seed, SymInt? max_batch, "
    f"{_CONFIG}, bool train) -> (Tensor output, Tensor hy, Tensor cy, Tensor reserve)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "rnn_backward(Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, Tensor input, Tensor? hx, Tensor? cx, "
    f"Tensor[] weights, {_SEQUENCES}, Tensor output, Tensor reserve, {_CONFIG}, bool[] wanted) -> "
    "(Tensor grad_input, Tensor grad_hx, Tensor grad_cx, Tensor grad_weights)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
rnn: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = torch.ops.prnn.rnn.default
rnn_backward: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = torch.ops.prnn.rnn_backward.default


def _require(
    tensor: Tensor, name: str, shape: tuple[int, ...], input: Tensor, dtype: torch.dtype | None = None
) -> None:
    """Of the dtype of input, unless another is given."""
    if tensor.dtype != (dtype or input.dtype):
        wanted = f"it must have {dtype}" if dtype else f"but input has {input.dtype}"
        raise ValueError(f"{name} has dtype {tensor.dtype}, {wanted}")
    if tensor.device != input.device:
        raise ValueError(f"{name} is on {tensor.device}, but input is on {input.device}")
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}")


def _require_one_device(input: Tensor, **others: Tensor | Sequence[Tensor] | None) -> None:
    """For fake kernels: the dispatcher calls them for one tensor on the meta device, and takes their outputs, which are
    on the device of input, for results."""
    for name, value in others.items():
        for tensor in [value] if isinstance(value, Tensor) else value or []:
            if (tensor.device.type == "meta") != (input.device.type == "meta"):
                raise ValueError(f"{name} is on {tensor.device}, but input is on {input.device}")


def _require_states(
    hx: Tensor | None, cx: Tensor | None, stack: Layer, batch: int, input: Tensor, names: tuple[str, str] = ("hx", "cx")
) -> None:
    if hx is not None:
        _require(hx, names[0], (stack.states, batch, stack.state_size), input)
    if cx is not None:
        if not stack.is_lstm:
            raise ValueError(f"{names[1]} is given, but only an LSTM has a cell state")
        _require(cx, names[1], (stack.states, batch, stack.hidden_size), input)


def _packed_weights(weights: Sequence[Tensor], stack: Layer, input: Tensor) -> Tensor:
    """A tensor at whose address the packed weights begin: the first of `weights` if they lie one after the other, and
    aligned as cuDNN's kernels want it."""
    if not weights:
        raise ValueError("weights is empty")
    dtype, device, itemsize = input.dtype, input.device, input.itemsize
    first = address = weights[0].data_ptr()
    in_place = first % 16 == 0
    for weight in weights:
        if weight.dtype != dtype or weight.device != device:
            raise ValueError(f"a weight has dtype {weight.dtype} on {weight.device}, but input has {dtype} on {device}")
        in_place = in_place and weight.data_ptr() == address and weight.is_contiguous()
        address += weight.numel() * itemsize
    count = (address - first) // itemsize
    if count != stack.params_size:
        raise ValueError(
            f"weights hold {count} elements; the layer has {stack.params_size} for inputs of size {input.size(-1)}"
        )
    return weights[0] if in_place else torch.cat([weight.reshape(-1) for weight in weights])


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _no_bytes(input: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=input.device)


def _new_reserve(stack: Layer, input: Tensor, batch_sizes: Tensor | None, batch: int) -> Tensor:
    if batch_sizes is None:
        rows = input.size(0) * input.size(1)
    else:
        rows = batch_sizes.size(0) * batch if stack.reserves_padding else input.size(0)
    size = stack.reserve_size(rows, batch)
    return torch.empty(size, dtype=torch.uint8, device=input.device)


def _rnn(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    seed: Tensor | None,
    max_batch: int | None,
    *config_and_train: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    config, train = Config(*config_and_train[:-1]), config_and_train[-1]
    y, hy, cy, reserve = _forward(input, hx, cx, weights, batch_sizes, lengths, seed, config, train)
    return y, hy, cy, _no_bytes(input) if reserve is None else reserve


def _forward(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    seed: Tensor | None,
    config: Config,
    train: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """rnn's results, but None for a reserve space without elements."""
    stack = layer(config, input.dtype, input.size(-1), input.device)
    steps = steps_of(input, batch_sizes, lengths)
    batch = steps.batch
    _require_states(hx, cx, stack, batch, input)
    output_shape = (*input.shape[:-1], stack.output_size)
    with_reserve = train or config.dropout > 0
    with device_of(input):
        packed_weights = _packed_weights(weights, stack, input)
        hy = input.new_empty(stack.states, batch, stack.state_size)
        cy = input.new_empty((stack.states, batch, stack.hidden_size) if stack.is_lstm else 0)
        reserve = _new_reserve(stack, input, batch_sizes, batch) if with_reserve else None
        if batch == 0:
            return input.new_empty(output_shape), hy, cy, reserve
        x, hx, cx = steps.pack(input), steps.sort(hx), steps.sort(cx)
        y = steps.new_packed(output_shape, input)
        library = handle(input.device)
        stack.tell_backend(library, batch)
        stack.follow_precision()
        workspace = stack.workspace(library, steps.sizes)
        if config.dropout > 0:
            if seed is None:
                raise ValueError(f"seed is None; dropout {config.dropout} wants one")
            _require(seed, "seed", (2,), input, torch.int64)
            stack.seed_dropout(library, seed)
        stack.rnn.forward(
            library,
            steps.sizes,
            x.data_ptr(),
            _address(hx),
            _address(cx),
            packed_weights.data_ptr(),
            y.data_ptr(),
            hy.data_ptr(),
            cy.data_ptr() if stack.is_lstm else 0,
            workspace.data_ptr(),
            workspace.numel(),
            _address(reserve),
            0 if reserve is None else reserve.numel(),
        )
        return steps.unpack(y, output_shape), steps.unsort(hy), steps.unsort(cy), reserve


def _rnn_backward(
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    output: Tensor,
    reserve: Tensor,
    *config_and_wanted: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    config, wanted = Config(*config_and_wanted[:-1]), config_and_wanted[-1]
    stack = layer(config, input.dtype, input.size(-1), input.device)
    output_shape, batch = (*input.shape[:-1], stack.output_size), steps_of(input, batch_sizes, lengths).batch
    _require(output, "output", output_shape, input)
    if grad_output is not None:
        _require(grad_output, "grad_output", output_shape, input)
    _require_states(hx, cx, stack, batch, input)
    _require_states(grad_hy, grad_cy, stack, batch, input, ("grad_hy", "grad_cy"))
    gradients = (grad_output, grad_hy, grad_cy)
    if stack.spends_reserve:
        reserve = reserve.clone()  # of which the schema says that it is not written to
    results = _backward(gradients, input, hx, cx, weights, batch_sizes, lengths, output, reserve, config, wanted)
    grad_input, grad_hx, grad_cx, grad_weights = (input.new_empty(0) if g is None else g for g in results)
    return grad_input, grad_hx, grad_cx, grad_weights


def _backward(
    gradients: tuple[Tensor | None, Tensor | None, Tensor | None],
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    output: Tensor,
    reserve: Tensor,
    config: Config,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """rnn_backward's results, but None for what is not wanted. The shapes have been checked."""
    grad_output, grad_hy, grad_cy = gradients
    stack = layer(config, input.dtype, input.size(-1), input.device)
    steps = steps_of(input, batch_sizes, lengths)
    with device_of(input):
        packed_weights = _packed_weights(weights, stack, input)
        x, y, hx, cx = steps.pack(input), steps.pack(output), steps.sort(hx), steps.sort(cx)
        dy = torch.zeros_like(y) if grad_output is None else steps.pack(grad_output)
        dhy, dcy = steps.sort(grad_hy), steps.sort(grad_cy)
        dx = steps.new_packed(input.shape, input) if wanted[0] else None
        dhx = input.new_empty(stack.states, steps.batch, stack.state_size) if wanted[1] else None
        dcx = input.new_empty(stack.states, steps.batch, stack.hidden_size) if wanted[2] else None
        dw = input.new_zeros(stack.params_size) if wanted[3] else None
        if steps.batch > 0:
            library = handle(input.device)
            stack.follow_precision()
            workspace = stack.workspace(library, steps.sizes)
            memory = (workspace.data_ptr(), workspace.numel(), reserve.data_ptr(), reserve.numel())
            stack.rnn.backward_data(
                library,
                steps.sizes,
                y.data_ptr(),
                dy.data_ptr(),
                _address(dhy),
                _address(dcy),
                packed_weights.data_ptr(),
                _address(hx),
                _address(cx),
                _address(dx),
                _address(dhx),
                _address(dcx),
                *memory,
            )
            if dw is not None:
                stack.rnn.backward_weights(
                    library, steps.sizes, x.data_ptr(), _address(hx), y.data_ptr(), dw.data_ptr(), *memory
                )
        dx = None if dx is None else steps.unpack(dx, input.shape)
        dhx, dcx = (None if state is None else steps.unsort(state) for state in (dhx, dcx))
        return dx, dhx, dcx, dw


def _rnn_fake(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    seed: Tensor | None,
    max_batch: int | None,
    *config_and_train: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _require_one_device(input, hx=hx, cx=cx, weights=weights, batch_sizes=batch_sizes, lengths=lengths, seed=seed)
    config, train = Config(*config_and_train[:-1]), config_and_train[-1]
    stack = layer(config, input.dtype, int(input.size(-1)), input.device)
    batch: Any
    if batch_sizes is None:
        batch = input.size(1)
    elif hx is not None:
        batch = hx.size(1)
    else:
        batch = max_batch
    return (
        input.new_empty(*input.shape[:-1], stack.output_size),
        input.new_empty(stack.states, batch, stack.state_size),
        input.new_empty((stack.states, batch, stack.hidden_size) if stack.is_lstm else 0),
        _new_reserve(stack, input, batch_sizes, batch) if train or config.dropout > 0 else _no_bytes(input),
    )


def _rnn_backward_fake(
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    output: Tensor,
    reserve: Tensor,
    *config_and_wanted: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gradients = {"grad_output": grad_output, "grad_hy": grad_hy, "grad_cy": grad_cy}
    _require_one_device(
        input, **gradients, hx=hx, cx=cx, weights=weights, batch_sizes=batch_sizes, lengths=lengths, output=output
    )
    config, wanted = Config(*config_and_wanted[:-1]), config_and_wanted[-1]
    stack = layer(config, input.dtype, int(input.size(-1)), input.device)
    return (
        input.new_empty(input.shape if wanted[0] else 0),
        input.new_empty(hx.shape if wanted[1] and hx is not None else 0),
        input.new_empty(cx.shape if wanted[2] and cx is not None else 0),
        input.new_empty(stack.params_size if wanted[3] else 0),
    )


# Inputs of the Functions below: input, hx, cx, batch_sizes, lengths, seed, max_batch, config, and then each of the
# weights, for a Function differentiates direct arguments alone.


def _run(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    input, hx, cx, batch_sizes, lengths, seed, max_batch, config, *weights = inputs
    with torch._C._AutoDispatchBelowAutograd():
        return rnn(input, hx, cx, weights, batch_sizes, lengths, seed, max_batch, *config, True)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    input, hx, cx, batch_sizes, lengths, seed, max_batch, config, *weights = inputs
    y, _, cy, reserve = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*((reserve,) if config[0] == MODES["LSTM"] else (reserve, cy)))
    ctx.save_for_backward(input, hx, cx, batch_sizes, lengths, seed, y, reserve, *weights)
    ctx.config, ctx.max_batch = Config(*config), max_batch
    ctx.is_reserve_spent = False


class _RnnFunction(torch.autograd.Function):
    """rnn with its gradients."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        output = _run(*inputs)
        _keep(ctx, inputs, output)
        return output

    @staticmethod
    def backward(
        ctx: Any, grad_output: Tensor | None, grad_hy: Tensor | None, grad_cy: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        input, hx, cx, batch_sizes, lengths, seed, output, reserve, *weights = ctx.saved_tensors
        needs, config = ctx.needs_input_grad, ctx.config
        needs_weights = needs[8:]
        wanted = [*needs[:3], any(needs_weights)]
        if ctx.is_reserve_spent:  # with retain_graph=True
            reserve = _run(input, hx, cx, batch_sizes, lengths, seed, ctx.max_batch, config, *weights)[3]
        ctx.is_reserve_spent = layer(config, input.dtype, int(input.size(-1)), input.device).spends_reserve
        gradients, data = (grad_output, grad_hy, grad_cy), (input, hx, cx)
        rest = (batch_sizes, lengths, output, reserve)
        results: tuple[Tensor | None, ...]
        # With a graph of the gradients (create_graph=True) the operator refuses.
        if not torch.is_grad_enabled() and _is_direct((*gradients, *data, *weights)):
            results = _backward(gradients, *data, weights, *rest, config, wanted)
        elif _in_functorch():
            results = _rnn_backward_function(len(weights), *gradients, *data, *rest, *config, wanted, *weights)
        else:
            results = rnn_backward(*gradients, *data, weights, *rest, *config, wanted)
        *of_data, of_weights = (grad if want else None for grad, want in zip(results, wanted, strict=True))
        grads: list[Tensor | None] = [None] * len(weights)
        if of_weights is not None:
            place = 0
            for index, weight in enumerate(weights):
                if needs_weights[index]:
                    # One view: split() and view() would be two.
                    strides = (weight.size(1), 1) if weight.dim() == 2 else (1,)
                    grads[index] = of_weights.as_strided(weight.shape, strides, place)
                place += weight.numel()
        return *of_data, None, None, None, None, None, *grads


class _RnnFunctionOfKernels(_RnnFunction):
    """The same without the dispatcher: see _is_direct."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        input, hx, cx, batch_sizes, lengths, seed, _, config, *weights = inputs
        y, hy, cy, reserve = _forward(input, hx, cx, weights, batch_sizes, lengths, seed, config, True)
        assert reserve is not None
        _keep(ctx, inputs, (y, hy, cy, reserve))
        return y, hy, cy, reserve


class _RnnFunctionInFunctorch(_RnnFunction):
    """The same in the form that torch.func wants, and which costs a call more than a small layer does."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return _run(*inputs)

    setup_context = staticmethod(_keep)


class _RnnBackwardFunction(torch.autograd.Function):
    """rnn_backward where its results might be differentiated, which is refused. Arguments: the number of weights, then
    rnn_backward's, but the weights last."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        count = arguments[0]
        with torch._C._AutoDispatchBelowAutograd():
            return rnn_backward(*arguments[1:7], list(arguments[-count:]), *arguments[7:-count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise NotSupportedError(
            "a gradient of prnn's recurrent layers was differentiated once more; they have first derivatives alone"
        )


_rnn_function: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = _RnnFunction.apply
_rnn_function_of_kernels: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = apply_of(_RnnFunctionOfKernels)
_rnn_function_in_functorch: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = _RnnFunctionInFunctorch.apply
_rnn_backward_function: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = _RnnBackwardFunction.apply


def _in_functorch() -> bool:
    """Whether a torch.func transform runs. It knows what to do with a Function where that is called, and not inside an
    operator."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def _is_direct(tensors: Sequence[Tensor | None]) -> bool:
    """Whether nothing can tell a call of the operator from one of its kernel, which costs a fraction of it: plain
    tensors with memory that nobody traces, transforms or casts."""
    return (
        undisturbed()
        and all(tensor is None or (type(tensor) in PLAIN and not tensor.is_meta) for tensor in tensors)
        and not torch._C._is_any_autocast_enabled()
    )


def _wants_grad(tensors: Sequence[Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _rnn_autograd(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    seed: Tensor | None,
    max_batch: int | None,
    *config_and_train: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Forward-mode derivatives go the same way, for a Function without jvp refuses them.
    if _wants_grad((input, hx, cx, *weights)) or torch.autograd.forward_ad._current_level >= 0:
        config = config_and_train[:-1]
        return _rnn_function(input, hx, cx, batch_sizes, lengths, seed, max_batch, config, *weights)
    with torch._C._AutoDispatchBelowAutograd():
        return rnn(input, hx, cx, weights, batch_sizes, lengths, seed, max_batch, *config_and_train)


def call(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    seed: Tensor | None,
    max_batch: int | None,
    config: Config,
) -> tuple[Tensor, Tensor, Tensor]:
    """rnn for whoever wants its results and not its reserve space: (output, hy, cy)."""
    tensors = (input, hx, cx, *weights)
    results: tuple[Any, ...]
    if _is_direct(tensors):
        if _wants_grad(tensors):
            results = _rnn_function_of_kernels(input, hx, cx, batch_sizes, lengths, seed, max_batch, config, *weights)
        else:
            results = _forward(input, hx, cx, weights, batch_sizes, lengths, seed, config, False)
    elif _in_functorch():
        results = _rnn_function_in_functorch(input, hx, cx, batch_sizes, lengths, seed, max_batch, config, *weights)
    else:
        results = rnn(input, hx, cx, weights, batch_sizes, lengths, seed, max_batch, *config, False)
    output, hy, cy = results[:3]
    return output, hy, cy


def _rnn_backward_autograd(*arguments: Any) -> tuple[Tensor, ...]:
    weights = arguments[6]
    if _wants_grad((*arguments[:6], *weights)):
        return _rnn_backward_function(len(weights), *arguments[:6], *arguments[7:], *weights)
    with torch._C._AutoDispatchBelowAutograd():
        return rnn_backward(*arguments)


for _key in ("CPU", "CUDA"):
    _library.impl("rnn", _rnn, _key)
    _library.impl("rnn_backward", _rnn_backward, _key)
_library.impl("rnn", _rnn_autograd, "Autograd")
_library.impl("rnn_backward", _rnn_backward_autograd, "Autograd")
_library.impl("rnn", rnn_on_cpu, "AutocastCPU")
_library.impl("rnn", rnn_on_cuda, "AutocastCUDA")
torch.library.register_fake("prnn::rnn", _rnn_fake, lib=_library)
torch.library.register_fake("prnn::rnn_backward", _rnn_backward_fake, lib=_library)

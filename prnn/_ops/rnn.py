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
    seed: (1,) integers on the CPU, wanted where dropout > 0: the masks follow from it.
    config: mode, hidden_size, proj_size, num_layers, bidirectional, dropout, backend. mode and backend are the C API's
        numbers; dropout is that of this call, 0 outside training.
    train: whether reserve is filled for rnn_backward. Autograd sets it where a gradient is wanted.
    output: (T, N, D P), zero beyond each length, or (sum of batch_sizes, D P).  hy, cy: as hx, cx; cy has no elements
        unless the mode is LSTM.  reserve: bytes, opaque, empty without train and dropout.
Tensors are of one device and one dtype, float32 or float64 on the CPU.

The operators are defined with torch.library.Library and not with custom_op, whose wrappers cost more than a step of a
small layer.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prnn._errors import NotSupportedError
from prnn._ops._layer import BACKENDS, MODES, Config, Layer, handle, layer

__all__ = ["BACKENDS", "MODES", "rnn", "rnn_backward"]

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


class _Steps(NamedTuple):
    """The sequences of a call as the C API takes them: B_t for each timestep, and how padded data gets there."""

    sizes: list[int]
    rows: Tensor | None = None  # of the packed data, in padded data seen as (T N, ...); None: the data is packed
    order: Tensor | None = None  # sequences from long to short
    inverse: Tensor | None = None

    @property
    def batch(self) -> int:
        return self.sizes[0] if self.sizes else 0

    def pack(self, padded: Tensor) -> Tensor:
        if self.rows is None:
            return padded.contiguous()
        return padded.reshape(-1, padded.size(-1)).index_select(0, self.rows)

    def unpack(self, packed: Tensor, like: Tensor) -> Tensor:
        """`packed` in the shape of `like`, but for the last dimension."""
        shape = (*like.shape[:-1], packed.size(-1))
        if self.rows is None:
            return packed.view(shape)
        padded = packed.new_zeros(like.shape[:-1].numel(), packed.size(-1))
        return padded.index_copy_(0, self.rows, packed).view(shape)

    def sort(self, state: Tensor | None) -> Tensor | None:
        if state is None or self.order is None:
            return None if state is None else state.contiguous()
        return state.index_select(1, self.order)

    def unsort(self, state: Tensor) -> Tensor:
        return state if self.inverse is None or state.dim() < 3 else state.index_select(1, self.inverse)


def _steps(input: Tensor, batch_sizes: Tensor | None, lengths: Tensor | None) -> _Steps:
    if input.dim() == 3 and batch_sizes is None:
        steps, batch = input.shape[:2]
        if steps == 0:
            raise ValueError(f"input has no timesteps (shape {tuple(input.shape)}); at least one is wanted")
        return _Steps([batch] * steps) if lengths is None else _steps_of_lengths(steps, batch, lengths, input.device)
    if input.dim() != 2 or batch_sizes is None or lengths is not None:
        raise ValueError(
            f"input has {input.dim()} dimensions; it must have 3, or 2 with batch_sizes and without lengths"
        )
    sizes = batch_sizes.tolist()
    if any(later > earlier for earlier, later in itertools.pairwise(sizes)) or (sizes and sizes[-1] < 1):
        raise ValueError("batch_sizes must be at least 1 and must not grow from a timestep to the next")
    if sum(sizes) != input.size(0) or not sizes:
        raise ValueError(f"batch_sizes add up to {sum(sizes)}, but the packed input has {input.size(0)} rows")
    return _Steps(sizes)


def _steps_of_lengths(steps: int, batch: int, lengths: Tensor, device: torch.device) -> _Steps:
    if lengths.shape != (batch,) or lengths.is_floating_point():
        raise ValueError(
            f"lengths has shape {tuple(lengths.shape)} and dtype {lengths.dtype}; wanted are {batch} integers"
        )
    lengths = lengths.to("cpu", torch.int64)
    for index, length in enumerate(lengths.tolist()):
        if not 1 <= length <= steps:
            raise ValueError(f"lengths[{index}] is {length}; it must lie between 1 and the {steps} timesteps of input")
    in_order, order = lengths.sort(descending=True, stable=True)
    active = torch.arange(steps).unsqueeze(1) < in_order  # (T, N), sequences from long to short
    sizes = active.sum(1)
    time, place = active.nonzero(as_tuple=True)
    rows = (time * batch + order[place]).to(device)
    return _Steps(sizes[sizes > 0].tolist(), rows, order.to(device), order.argsort().to(device))


def _require(tensor: Tensor | None, name: str, shape: tuple[int, ...], input: Tensor) -> None:
    if tensor is None:
        return
    if tensor.dtype != input.dtype:
        raise ValueError(f"{name} has dtype {tensor.dtype}, but input has {input.dtype}")
    if tensor.device != input.device:
        raise ValueError(f"{name} is on {tensor.device}, but input is on {input.device}")
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}")


def _state_shapes(config: Config, batch: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    count = config.num_layers * config.directions
    return (count, batch, config.state_size), (count, batch, config.hidden_size)


def _require_states(
    hx: Tensor | None, cx: Tensor | None, config: Config, batch: int, input: Tensor, names: str = "hx cx"
) -> None:
    hx_name, cx_name = names.split()
    hx_shape, cx_shape = _state_shapes(config, batch)
    if cx is not None and not config.is_lstm:
        raise ValueError(f"{cx_name} is given, but only an LSTM has a cell state")
    _require(hx, hx_name, hx_shape, input)
    _require(cx, cx_name, cx_shape, input)


def _packed_weights(weights: Sequence[Tensor], config: Config, input: Tensor) -> Tensor:
    """A tensor at whose address the packed weights begin: the first of `weights` if they lie one after the other."""
    if not weights:
        raise ValueError("weights is empty")
    dtype, device = input.dtype, input.device
    address = weights[0].data_ptr()
    in_place = True
    count = 0
    for weight in weights:
        if weight.dtype != dtype or weight.device != device:
            raise ValueError(f"a weight has dtype {weight.dtype} on {weight.device}, but input has {dtype} on {device}")
        in_place = in_place and weight.data_ptr() == address and weight.is_contiguous()
        elements = weight.numel()
        address += elements * weight.itemsize
        count += elements
    expected = config.params_size(input.size(-1))
    if count != expected:
        raise ValueError(f"weights hold {count} elements; the layer has {expected} for inputs of size {input.size(-1)}")
    return weights[0] if in_place else torch.cat([weight.reshape(-1) for weight in weights])


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _new_reserve(stack: Layer, input: Tensor, batch_sizes: Tensor | None, batch: int) -> Tensor:
    if batch_sizes is None:
        rows, steps = input.size(0) * input.size(1), input.size(0)
    else:
        rows, steps = input.size(0), batch_sizes.size(0)
    return input.new_empty(stack.reserve_size(rows, steps, batch), dtype=torch.uint8)


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
    steps = _steps(input, batch_sizes, lengths)
    _require_states(hx, cx, config, steps.batch, input)
    hy_shape, cy_shape = _state_shapes(config, steps.batch)
    hy = input.new_empty(hy_shape)
    cy = input.new_empty(cy_shape if config.is_lstm else 0)
    with_reserve = train or config.dropout > 0
    with torch.cuda.device_of(input):
        stack = layer(config, input.dtype, input.size(-1), input.device)
        packed_weights = _packed_weights(weights, config, input)
        if with_reserve:
            reserve = _new_reserve(stack, input, batch_sizes, steps.batch)
        else:
            reserve = input.new_empty(0, dtype=torch.uint8)
        if steps.batch == 0:
            return input.new_empty(*input.shape[:-1], config.output_size), hy, cy, reserve
        x, hx, cx = steps.pack(input), steps.sort(hx), steps.sort(cx)
        y = x.new_empty(sum(steps.sizes), config.output_size)
        library = handle(input.device)
        workspace = stack.workspace(library, steps.sizes)
        if config.dropout > 0:
            if seed is None:
                raise ValueError(f"seed is None; dropout {config.dropout} wants one")
            stack.seed_dropout(library, int(seed))
        stack.rnn.forward(
            library,
            steps.sizes,
            x.data_ptr(),
            _address(hx),
            _address(cx),
            packed_weights.data_ptr(),
            y.data_ptr(),
            hy.data_ptr(),
            cy.data_ptr() if config.is_lstm else 0,
            workspace.data_ptr(),
            workspace.numel(),
            reserve.data_ptr() if with_reserve else 0,
            reserve.numel(),
        )
    return steps.unpack(y, input), steps.unsort(hy), steps.unsort(cy), reserve


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
    steps = _steps(input, batch_sizes, lengths)
    output_shape = (*input.shape[:-1], config.output_size)
    _require(output, "output", output_shape, input)
    _require(grad_output, "grad_output", output_shape, input)
    _require_states(hx, cx, config, steps.batch, input)
    _require_states(grad_hy, grad_cy, config, steps.batch, input, "grad_hy grad_cy")
    hx_shape, cx_shape = _state_shapes(config, steps.batch)
    with torch.cuda.device_of(input):
        stack = layer(config, input.dtype, input.size(-1), input.device)
        packed_weights = _packed_weights(weights, config, input)
        x, y, hx, cx = steps.pack(input), steps.pack(output), steps.sort(hx), steps.sort(cx)
        dy = torch.zeros_like(y) if grad_output is None else steps.pack(grad_output)
        dhy, dcy = steps.sort(grad_hy), steps.sort(grad_cy)
        dx = x.new_empty(x.shape if wanted[0] else 0)
        dhx = x.new_empty(hx_shape if wanted[1] else 0)
        dcx = x.new_empty(cx_shape if wanted[2] else 0)
        dw = x.new_zeros(config.params_size(input.size(-1)) if wanted[3] else 0)
        if steps.batch > 0:
            library = handle(input.device)
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
                dx.data_ptr() if wanted[0] else 0,
                dhx.data_ptr() if wanted[1] else 0,
                dcx.data_ptr() if wanted[2] else 0,
                *memory,
            )
            if wanted[3]:
                stack.rnn.backward_weights(
                    library, steps.sizes, x.data_ptr(), _address(hx), y.data_ptr(), dw.data_ptr(), *memory
                )
    return steps.unpack(dx, input) if wanted[0] else dx, steps.unsort(dhx), steps.unsort(dcx), dw


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
    config, train = Config(*config_and_train[:-1]), config_and_train[-1]
    batch: Any
    if batch_sizes is None:
        batch = input.size(1)
    elif hx is not None:
        batch = hx.size(1)
    else:
        batch = max_batch
    hy_shape, cy_shape = _state_shapes(config, batch)
    if train or config.dropout > 0:
        stack = layer(config, input.dtype, int(input.size(-1)), input.device)
        reserve = _new_reserve(stack, input, batch_sizes, batch)
    else:
        reserve = input.new_empty(0, dtype=torch.uint8)
    return (
        input.new_empty(*input.shape[:-1], config.output_size),
        input.new_empty(hy_shape),
        input.new_empty(cy_shape if config.is_lstm else 0),
        reserve,
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
    config, wanted = Config(*config_and_wanted[:-1]), config_and_wanted[-1]
    return (
        input.new_empty(input.shape if wanted[0] else 0),
        input.new_empty(hx.shape if wanted[1] and hx is not None else 0),
        input.new_empty(cx.shape if wanted[2] and cx is not None else 0),
        input.new_empty(config.params_size(input.size(-1)) if wanted[3] else 0),
    )


class _RnnFunction(torch.autograd.Function):
    """rnn with its gradients. The weights come last, for a Function differentiates direct arguments alone."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        hx: Tensor | None,
        cx: Tensor | None,
        batch_sizes: Tensor | None,
        lengths: Tensor | None,
        seed: Tensor | None,
        max_batch: int | None,
        config: tuple[Any, ...],
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            output, hy, cy, reserve = rnn(
                input, hx, cx, list(weights), batch_sizes, lengths, seed, max_batch, *config, True
            )
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(reserve)
        if config[0] != MODES["LSTM"]:
            ctx.mark_non_differentiable(cy)
        ctx.save_for_backward(input, hx, cx, batch_sizes, lengths, output, reserve, *weights)
        ctx.config = config
        return output, hy, cy, reserve

    @staticmethod
    def backward(
        ctx: Any, grad_output: Tensor | None, grad_hy: Tensor | None, grad_cy: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        input, hx, cx, batch_sizes, lengths, output, reserve, *weights = ctx.saved_tensors
        needs = ctx.needs_input_grad
        needs_weights = needs[8:]
        wanted = [*needs[:3], any(needs_weights)]
        grad_input, grad_hx, grad_cx, grad_weights = rnn_backward(
            grad_output,
            grad_hy,
            grad_cy,
            input,
            hx,
            cx,
            weights,
            batch_sizes,
            lengths,
            output,
            reserve,
            *ctx.config,
            wanted,
        )
        grads: list[Tensor | None] = [None] * len(weights)
        if wanted[3]:
            pieces = grad_weights.split([weight.numel() for weight in weights])
            for index, (weight, piece) in enumerate(zip(weights, pieces, strict=True)):
                if needs_weights[index]:
                    grads[index] = piece.view(weight.shape)
        states = (grad_hx if wanted[1] else None, grad_cx if wanted[2] else None)
        return grad_input if wanted[0] else None, *states, None, None, None, None, None, *grads


class _NoSecondDerivative(torch.autograd.Function):
    """Passes `count` gradients on, as functions of the sources that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, count: int, *grads_and_sources: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(None if grad is None else grad.view_as(grad) for grad in grads_and_sources[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise NotSupportedError(
            "a gradient of prnn's recurrent layers was differentiated once more; they have first derivatives alone"
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
    if _wants_grad((input, hx, cx, *weights)):
        config = config_and_train[:-1]
        apply: Callable[..., Any] = _RnnFunction.apply
        return apply(input, hx, cx, batch_sizes, lengths, seed, max_batch, config, *weights)
    with torch._C._AutoDispatchBelowAutograd():
        return rnn(input, hx, cx, weights, batch_sizes, lengths, seed, max_batch, *config_and_train)


def _rnn_backward_autograd(*args: Any) -> tuple[Tensor, ...]:
    with torch._C._AutoDispatchBelowAutograd():
        grads = rnn_backward(*args)
    sources = (*args[:6], *args[6], args[9])
    apply: Callable[..., Any] = _NoSecondDerivative.apply
    return apply(len(grads), *grads, *sources) if _wants_grad(sources) else grads


def _cast(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return tensor if tensor is None or tensor.dtype == torch.float64 else tensor.to(dtype)


def _rnn_autocast_cuda(
    input: Tensor, hx: Tensor | None, cx: Tensor | None, weights: Sequence[Tensor], *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype = torch.get_autocast_dtype("cuda")
    with torch.autocast("cuda", enabled=False):
        return rnn(_cast(input, dtype), _cast(hx, dtype), _cast(cx, dtype), [_cast(w, dtype) for w in weights], *rest)


def _rnn_autocast_cpu(
    input: Tensor, hx: Tensor | None, cx: Tensor | None, weights: Sequence[Tensor], *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes in float32 and returns the dtypes that torch's own layers return: the autocast dtype from an RNN, that
    of hx (of the input, without hx) from an LSTM or GRU."""
    mode = rest[4]
    if input.dtype == torch.float64:
        dtype = torch.float64
    elif mode in (MODES["RNN_RELU"], MODES["RNN_TANH"]):
        dtype = torch.get_autocast_dtype("cpu")
    else:
        dtype = (input if hx is None else hx).dtype
    float32 = torch.float32
    with torch.autocast("cpu", enabled=False):
        *outputs, reserve = rnn(
            _cast(input, float32), _cast(hx, float32), _cast(cx, float32), [_cast(w, float32) for w in weights], *rest
        )
        output, hy, cy = (tensor.to(dtype) for tensor in outputs)
        return output, hy, cy, reserve


for _key in ("CPU", "CUDA"):
    _library.impl("rnn", _rnn, _key)
    _library.impl("rnn_backward", _rnn_backward, _key)
_library.impl("rnn", _rnn_autograd, "Autograd")
_library.impl("rnn_backward", _rnn_backward_autograd, "Autograd")
_library.impl("rnn", _rnn_autocast_cpu, "AutocastCPU")
_library.impl("rnn", _rnn_autocast_cuda, "AutocastCUDA")
torch.library.register_fake("prnn::rnn", _rnn_fake, lib=_library)
torch.library.register_fake("prnn::rnn_backward", _rnn_backward_fake, lib=_library)

"""The recurrent layers' operator under autocast.

It casts a stack's weights with torch.ops.prnn.cast_weights(weights, dtype), which gives one tensor of `dtype` with the
elements of `weights`, which are of another, one tensor after the other. One cast and one gradient for all of them: one
for each costs more launches than the layers do.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from prnn._compiler import assume_constant_result
from prnn._ops._layer import MODES, Config
from prnn._ops._operator import apply_at_each_level
from prnn._ops._torch_private import below_autograd, storage_at
from prnn._ops._vmap import register_vmap

_library = torch.library.Library("prnn", "FRAGMENT")
_library.define("cast_weights(Tensor[] weights, ScalarType dtype) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
_cast_weights_op: Callable[[Sequence[Tensor], torch.dtype], Tensor] = torch.ops.prnn.cast_weights.default


def cast_weights(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """One tensor of `dtype` with the elements of all weights."""
    return _cast_weights_op(weights, dtype)


def _cast_weights(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    first = weights[0]
    address = first.data_ptr()
    for weight in weights:
        if weight.data_ptr() != address or not weight.is_contiguous():
            return torch.cat([weight.reshape(-1) for weight in weights]).to(dtype)
        address += weight.numel() * weight.itemsize
    # They lie together, but each in a storage of its own.
    size = address - first.data_ptr()
    storage = storage_at(first.data_ptr(), first.device, size)
    together = first.new_empty(0).set_(storage, 0, (size // first.itemsize,))  # type: ignore[call-overload]
    return cast(Tensor, together.to(dtype))


def _cast_weights_fake(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return weights[0].new_empty(sum(weight.numel() for weight in weights), dtype=dtype)


class _CastWeightsFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> Tensor:
        ctx.dtype = weights[0].dtype
        ctx.shapes = [weight.shape for weight in weights]
        with below_autograd():
            return _cast_weights_op(weights, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pieces = grad.to(ctx.dtype).split([shape.numel() for shape in ctx.shapes])
        wanted = ctx.needs_input_grad[1:]
        return None, *(
            piece.view(shape) if want else None for piece, shape, want in zip(pieces, ctx.shapes, wanted, strict=True)
        )


_cast_weights_function: Callable[..., Tensor] = apply_at_each_level(_CastWeightsFunction)


def _cast_weights_autograd(weights: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
        return _cast_weights_function(dtype, *weights)
    with below_autograd():
        return _cast_weights_op(weights, dtype)


for _key in ("CPU", "CUDA"):
    _library.impl("cast_weights", _cast_weights, _key)
_library.impl("cast_weights", _cast_weights_autograd, "Autograd")
register_vmap(_cast_weights_op, _library)
torch.library.register_fake("prnn::cast_weights", _cast_weights_fake, lib=_library)


def cast_to(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return tensor if tensor is None or tensor.dtype == torch.float64 else tensor.to(dtype)


def cast_all_to(weights: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor | None]:
    kinds = {(weight.dtype, weight.device) for weight in weights}
    if len(kinds) != 1 or weights[0].dtype in (dtype, torch.float64):
        return [cast_to(weight, dtype) for weight in weights]
    return [cast_weights(weights, dtype)]


def rnn_on_cuda(
    run: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor]],
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype = torch.get_autocast_dtype("cuda")
    with torch.autocast("cuda", enabled=False):
        return run(cast_to(input, dtype), cast_to(hx, dtype), cast_to(cx, dtype), cast_all_to(weights, dtype), *rest)


@functools.cache
def _find_onednn_types() -> tuple[bool, bool, bool]:
    """Whether there is oneDNN, and whether it takes bfloat16 and float16."""
    if not torch.backends.mkldnn.is_available():
        return False, False, False
    bfloat16, float16 = torch.ops.mkldnn._is_mkldnn_bf16_supported(), torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return True, bool(bfloat16), bool(float16)


@assume_constant_result  # which torch.compile cannot trace
def _onednn_types() -> tuple[bool, bool, bool]:
    return _find_onednn_types()


def _onednn_takes_lstm(input: Tensor) -> bool:
    """Whether torch.nn.LSTM leaves a padded input to oneDNN."""
    is_there, bfloat16, float16 = _onednn_types()
    if not is_there or not torch.backends.mkldnn.enabled or input.numel() == 0:
        return False
    if input.dtype == torch.bfloat16:
        return bfloat16
    if input.dtype == torch.float16:
        return float16 and not torch.is_grad_enabled()
    return input.dtype == torch.float32


def autocast_cpu_dtypes(
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    is_even: bool,
    mode: int,
    proj_size: int = 0,
) -> tuple[torch.dtype, torch.dtype]:
    """The types of output and hy, and of cy, as torch's own layers have them under CPU autocast: there the products are
    of the autocast dtype, and the cell promotes their sums with the state before. Of an sLSTM, which torch has not, the
    autocast dtype, and float32 for c, n and m. is_even: all sequences have one length."""
    dtype = torch.get_autocast_dtype("cpu")
    if input.dtype == torch.float64:
        return torch.float64, torch.float64
    if mode in (MODES["RNN_RELU"], MODES["RNN_TANH"]):
        return dtype, dtype
    if mode in (MODES["sLSTM"], MODES["sLSTM_EXP"]):
        return dtype, torch.float32
    if mode == MODES["GRU"]:
        state = torch.promote_types(dtype, (input if hx is None else hx).dtype)
        return state, state
    if mode == MODES["LSTM"] and is_even and proj_size == 0 and _onednn_takes_lstm(input):
        return dtype, dtype
    cell = torch.promote_types(dtype, (input if cx is None else cx).dtype)
    return dtype if proj_size > 0 else cell, cell


def are_even(lengths: Tensor | None) -> bool:
    """Whether sequences of these lengths, or these batch sizes, have one length. A trace has no values: it takes them
    to differ."""
    if lengths is None:
        return True
    if torch.compiler.is_compiling() or type(lengths) is not Tensor or lengths.device.type != "cpu":
        return False
    return bool((lengths == lengths[0]).all())


def rnn_on_cpu(
    run: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor]],
    input: Tensor,
    hx: Tensor | None,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Computes in float32 and returns the dtypes that torch's own layers return."""
    config = Config(*rest[6:-1])
    is_even = are_even(rest[0]) and are_even(rest[1])
    dtype, cell_dtype = autocast_cpu_dtypes(input, hx, cx, is_even, config.mode, config.proj_size)
    float32 = torch.float32
    with torch.autocast("cpu", enabled=False):
        output, hy, cy, reserve, cells = run(
            cast_to(input, float32), cast_to(hx, float32), cast_to(cx, float32), cast_all_to(weights, float32), *rest
        )
        return output.to(dtype), hy.to(dtype), cy.to(cell_dtype), reserve, cells.to(cell_dtype)

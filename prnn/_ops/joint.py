"""RNN-T with its joiner on a GPU as torch operators; prnn/losses/joint.py checks arguments and calls them.

call_joint_rnnt_loss takes and returns what the operator joint_rnnt_loss does, with less to do on the way there.
"""

from collections.abc import Callable
from operator import mul
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._handles import DTYPES, device_of, handle
from prnn._ops._loss import Options, _Chosen, _run
from prnn._ops._operator import differentiate, operator, with_own_node, without_dispatch
from prnn._ops._precision import allows_tf32_matmul
from prnn._ops.rnnt import _RNNT_NAMES


def _in_range(lengths: list[int], most: int) -> list[int]:
    """The lengths, 0 to `most`; mostly they are."""
    return lengths if min(lengths) >= 0 and max(lengths) <= most else [min(max(0, x), most) for x in lengths]


joint_options = _Chosen(_C.JOINT_RNNT_LOSS_FIELDS, "activation")


class _Inputs(NamedTuple):
    """The arguments that both operators have. extents: (2, N) on the CPU, frames and symbols of each sequence that are
    computed, as far as they are in range. kept: R with range_begins (N, T)."""

    encoder: Tensor
    predictor: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    frames: Tensor
    symbols: Tensor
    range_begins: Tensor | None
    seed: Tensor | None
    extents: Tensor
    kept: int
    chosen: tuple[Any, ...]

    @staticmethod
    def of(arguments: tuple[Any, ...]) -> "_Inputs":
        return _Inputs._make((*arguments[: _TENSORS + 1], arguments[_TENSORS + 1 : _COUNT]))

    def options(self) -> Options:
        batch, longest, size = self.encoder.shape
        most, cells = self.predictor.shape[1] - 1, 0
        if self.range_begins is None:
            frames, symbols = self.extents.tolist()
            frames = _in_range(frames, longest)
            cells = max(1, sum(map(mul, frames, _in_range(symbols, most))) + sum(frames))
        return (
            DTYPES[self.encoder.dtype],
            batch,
            longest,
            most,
            cells,
            self.kept if self.range_begins is not None else 0,
            size,
            self.weight.shape[0],
            allows_tf32_matmul(),
            *self.chosen,
        )

    def pointers(self) -> list[int]:
        return [0 if tensor is None else tensor.data_ptr() for tensor in self[:9]]

    def reserve_size(self) -> int:
        """At least what libprnn wants, from shapes alone, which a compiler may only know as symbols."""
        batch, frames = self.encoder.shape[:2]
        width = self.predictor.shape[1] if self.range_begins is None else self.kept
        size = max(4, self.encoder.element_size()) * batch * frames * width * 3 + 24 * batch
        return (size + 511) // 256 * 256


_TENSORS = _Inputs._fields.index("kept")
_COUNT = _TENSORS + 1 + joint_options.count  # of the arguments


def _real(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _workspace(library: _C.Handle, options: Options, device: torch.device) -> Tensor:
    size = _run(_C.joint_rnnt_loss_workspace_size, _RNNT_NAMES, library, options)
    return torch.empty(size, dtype=torch.uint8, device=device)


def _forward(*arguments: Any, new_reserve: Callable[..., Tensor] = torch.empty) -> tuple[Tensor, Tensor]:
    """Costs (N,), and what the backward operator needs as bytes, empty unless `keep`."""
    inputs, keep = _Inputs.of(arguments), arguments[-1]
    options, encoder = inputs.options(), inputs.encoder
    costs = encoder.new_empty(encoder.shape[0], dtype=_real(encoder.dtype))
    reserve = new_reserve(inputs.reserve_size() if keep else 0, dtype=torch.uint8, device=encoder.device)
    with device_of(encoder):
        library = handle(encoder.device)
        workspace = _workspace(library, options, encoder.device)
        _run(
            _C.joint_rnnt_loss_forward,
            _RNNT_NAMES,
            library,
            options,
            *inputs.pointers(),
            costs.data_ptr(),
            workspace.data_ptr(),
            workspace.numel(),
            reserve.data_ptr() if keep else 0,
            reserve.numel(),
        )
    return costs, reserve


def _joint_rnnt_loss(*arguments: Any) -> tuple[Tensor, Tensor]:
    # Zeros, because an operator's outputs must be reproducible in all their bytes, and padding is not written.
    return _forward(*arguments, new_reserve=torch.zeros)


def _joint_rnnt_loss_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    inputs, keep = _Inputs.of(arguments), arguments[-1]
    encoder = inputs.encoder
    return (
        encoder.new_empty(encoder.shape[0], dtype=_real(encoder.dtype)),
        encoder.new_empty(inputs.reserve_size() if keep else 0, dtype=torch.uint8),
    )


def _joint_rnnt_loss_backward_fake(
    cost_gradients: Tensor, reserve: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of encoder, predictor, weight and bias (empty without one), not filled."""
    encoder, predictor, weight, bias = arguments[:4]
    return (
        torch.empty_like(encoder),
        torch.empty_like(predictor),
        torch.empty_like(weight),
        weight.new_empty(0, dtype=_real(weight.dtype)) if bias is None else torch.empty_like(bias),
    )


def _joint_rnnt_loss_backward(
    cost_gradients: Tensor, reserve: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = _Inputs.of(arguments)
    options = inputs.options()
    cost_gradients = cost_gradients.contiguous()
    gradients = _joint_rnnt_loss_backward_fake(cost_gradients, reserve, *arguments)
    with device_of(inputs.encoder):
        library = handle(inputs.encoder.device)
        workspace = _workspace(library, options, inputs.encoder.device)
        _run(
            _C.joint_rnnt_loss_backward,
            _RNNT_NAMES,
            library,
            options,
            *inputs.pointers(),
            cost_gradients.data_ptr(),
            *(gradient.data_ptr() for gradient in gradients[:3]),
            0 if inputs.bias is None else gradients[3].data_ptr(),
            workspace.data_ptr(),
            workspace.numel(),
            reserve.data_ptr(),
            reserve.numel(),
        )
    return gradients


_INPUTS = (
    "Tensor encoder, Tensor predictor, Tensor weight, Tensor? bias, Tensor targets, Tensor frames, Tensor symbols, "
    f"Tensor? range_begins, Tensor? seed, Tensor extents, int kept, {joint_options.schema}"
)
joint_rnnt_loss = operator(
    f"joint_rnnt_loss({_INPUTS}, bool keep) -> (Tensor costs, Tensor reserve)",
    _joint_rnnt_loss,
    _joint_rnnt_loss_fake,
)
joint_rnnt_loss_backward = operator(
    f"joint_rnnt_loss_backward(Tensor cost_gradients, Tensor reserve, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
    _joint_rnnt_loss_backward,
    _joint_rnnt_loss_backward_fake,
)


_call_backward = without_dispatch(joint_rnnt_loss_backward, 1)


def _setup(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
    ctx.options, ctx.keep = inputs[_TENSORS:_COUNT], inputs[-1]
    ctx.save_for_backward(outputs[1], *inputs[:_TENSORS])


def _gradients(ctx: Any, cost_gradients: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    if not ctx.keep:
        raise RuntimeError("prnn::joint_rnnt_loss was called with keep=False; its gradient needs keep=True")
    gradients = _call_backward(cost_gradients, *ctx.saved_tensors, *ctx.options)
    bias_gradients = gradients[3] if gradients[3].numel() > 0 else None
    return *gradients[:3], bias_gradients, *(None,) * (_COUNT + 1 - 4)


differentiate(joint_rnnt_loss, _setup, _gradients, joint_rnnt_loss_backward)
call_joint_rnnt_loss = with_own_node(joint_rnnt_loss, _forward, _setup, _gradients)

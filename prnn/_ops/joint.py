"""RNN-T with its joiner on a GPU as torch operators; prnn/losses/joint.py checks arguments and calls them."""

from typing import Any

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._handles import DTYPES, device_of, handle
from prnn._ops._operator import differentiate, operator


def _real(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _reserve_size(encoder: Tensor, predictor: Tensor, range_begins: Tensor | None, kept: int) -> int:
    """At least what libprnn wants, from shapes alone, which a compiler may only know as symbols."""
    width = predictor.shape[1] if range_begins is None else kept
    size = max(4, encoder.element_size()) * encoder.shape[0] * encoder.shape[1] * width * 3 + 24 * encoder.shape[0]
    return (size + 511) // 256 * 256


def _options(
    encoder: Tensor,
    predictor: Tensor,
    weight: Tensor,
    range_begins: Tensor | None,
    extents: Tensor,
    kept: int,
    blank: int,
    activation: int,
    dropout: float,
    rnnt_type: int,
    fastemit_lambda: float,
    clamp: float,
    delay_penalty: float,
    chunk_cells: int,
) -> _C.JointRnntLossOptions:
    options = _C.JointRnntLossOptions()
    options.dtype, options.activation, options.type = DTYPES[encoder.dtype], activation, rnnt_type
    options.batch, options.max_frames, options.joiner_size = encoder.shape
    options.max_targets, options.classes, options.blank = predictor.shape[1] - 1, weight.shape[0], blank
    if range_begins is None:
        options.rows = max(1, int((extents[0] * (extents[1] + 1)).sum()))
    else:
        options.prune_range = kept
    options.dropout, options.fastemit_lambda = dropout, fastemit_lambda
    options.clamp, options.delay_penalty = clamp, delay_penalty
    options.chunk_cells = chunk_cells
    options.allow_tf32 = torch.get_float32_matmul_precision() != "highest"
    return options


def _joint_rnnt_loss(
    encoder: Tensor,
    predictor: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    frames: Tensor,
    symbols: Tensor,
    range_begins: Tensor | None,
    seed: Tensor | None,
    extents: Tensor,
    kept: int,
    blank: int,
    activation: int,
    dropout: float,
    rnnt_type: int,
    fastemit_lambda: float,
    clamp: float,
    delay_penalty: float,
    chunk_cells: int,
    zero_infinity: bool,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """Costs (N,), and what the backward operator needs as bytes, empty unless `keep`. extents: (2, N) on the CPU,
    frames and symbols of each sequence that are computed. kept: R with range_begins (N, T)."""
    options = _options(
        encoder,
        predictor,
        weight,
        range_begins,
        extents,
        kept,
        blank,
        activation,
        dropout,
        rnnt_type,
        fastemit_lambda,
        clamp,
        delay_penalty,
        chunk_cells,
    )
    options.zero_infinity = zero_infinity
    costs = encoder.new_empty(encoder.shape[0], dtype=_real(encoder.dtype))
    size = _reserve_size(encoder, predictor, range_begins, kept) if keep else 0
    # Zeros, because an operator's outputs must be reproducible in all their bytes, and padding is not written.
    reserve = torch.zeros(size, dtype=torch.uint8, device=encoder.device)
    with device_of(encoder):
        library = handle(encoder.device)
        bytes_wanted = _C.joint_rnnt_loss_workspace_size(library, options)
        workspace = torch.empty(bytes_wanted, dtype=torch.uint8, device=encoder.device)
        _C.joint_rnnt_loss_forward(
            library,
            options,
            encoder.data_ptr(),
            predictor.data_ptr(),
            weight.data_ptr(),
            _pointer(bias),
            targets.data_ptr(),
            frames.data_ptr(),
            symbols.data_ptr(),
            _pointer(range_begins),
            _pointer(seed),
            costs.data_ptr(),
            workspace.data_ptr(),
            workspace.numel(),
            reserve.data_ptr() if keep else 0,
            reserve.numel(),
        )
    return costs, reserve


def _joint_rnnt_loss_fake(
    encoder: Tensor,
    predictor: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    frames: Tensor,
    symbols: Tensor,
    range_begins: Tensor | None,
    seed: Tensor | None,
    extents: Tensor,
    kept: int,
    *rest: Any,
) -> tuple[Tensor, Tensor]:
    size = _reserve_size(encoder, predictor, range_begins, kept) if rest[-1] else 0
    return (
        encoder.new_empty(encoder.shape[0], dtype=_real(encoder.dtype)),
        encoder.new_empty(size, dtype=torch.uint8),
    )


def _joint_rnnt_loss_backward(
    cost_gradients: Tensor,
    reserve: Tensor,
    encoder: Tensor,
    predictor: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    frames: Tensor,
    symbols: Tensor,
    range_begins: Tensor | None,
    seed: Tensor | None,
    extents: Tensor,
    kept: int,
    blank: int,
    activation: int,
    dropout: float,
    rnnt_type: int,
    fastemit_lambda: float,
    clamp: float,
    delay_penalty: float,
    chunk_cells: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of encoder, predictor, weight and bias (empty without one)."""
    options = _options(
        encoder,
        predictor,
        weight,
        range_begins,
        extents,
        kept,
        blank,
        activation,
        dropout,
        rnnt_type,
        fastemit_lambda,
        clamp,
        delay_penalty,
        chunk_cells,
    )
    cost_gradients = cost_gradients.contiguous()
    encoder_gradients, predictor_gradients = torch.empty_like(encoder), torch.empty_like(predictor)
    weight_gradients = torch.empty_like(weight)
    bias_gradients = weight.new_empty(0, dtype=_real(weight.dtype)) if bias is None else torch.empty_like(bias)
    with device_of(encoder):
        library = handle(encoder.device)
        bytes_wanted = _C.joint_rnnt_loss_workspace_size(library, options)
        workspace = torch.empty(bytes_wanted, dtype=torch.uint8, device=encoder.device)
        _C.joint_rnnt_loss_backward(
            library,
            options,
            encoder.data_ptr(),
            predictor.data_ptr(),
            weight.data_ptr(),
            _pointer(bias),
            targets.data_ptr(),
            frames.data_ptr(),
            symbols.data_ptr(),
            _pointer(range_begins),
            _pointer(seed),
            cost_gradients.data_ptr(),
            encoder_gradients.data_ptr(),
            predictor_gradients.data_ptr(),
            weight_gradients.data_ptr(),
            0 if bias is None else bias_gradients.data_ptr(),
            workspace.data_ptr(),
            workspace.numel(),
            reserve.data_ptr(),
            reserve.numel(),
        )
    return encoder_gradients, predictor_gradients, weight_gradients, bias_gradients


def _joint_rnnt_loss_backward_fake(
    cost_gradients: Tensor,
    reserve: Tensor,
    encoder: Tensor,
    predictor: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(encoder),
        torch.empty_like(predictor),
        torch.empty_like(weight),
        weight.new_empty(0, dtype=_real(weight.dtype)) if bias is None else torch.empty_like(bias),
    )


_INPUTS = (
    "Tensor encoder, Tensor predictor, Tensor weight, Tensor? bias, Tensor targets, Tensor frames, Tensor symbols, "
    "Tensor? range_begins, Tensor? seed, Tensor extents, int kept, int blank, int activation, float dropout, "
    "int rnnt_type, float fastemit_lambda, float clamp, float delay_penalty, int chunk_cells"
)
joint_rnnt_loss = operator(
    f"joint_rnnt_loss({_INPUTS}, bool zero_infinity, bool keep) -> (Tensor costs, Tensor reserve)",
    _joint_rnnt_loss,
    _joint_rnnt_loss_fake,
)
joint_rnnt_loss_backward = operator(
    f"joint_rnnt_loss_backward(Tensor cost_gradients, Tensor reserve, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
    _joint_rnnt_loss_backward,
    _joint_rnnt_loss_backward_fake,
)


def _setup(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
    ctx.options, ctx.keep = inputs[10:19], inputs[20]
    ctx.save_for_backward(outputs[1], *inputs[:10])


def _gradients(ctx: Any, cost_gradients: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    if not ctx.keep:
        raise RuntimeError("prnn::joint_rnnt_loss was called with keep=False; its gradient needs keep=True")
    gradients = joint_rnnt_loss_backward(cost_gradients, *ctx.saved_tensors, *ctx.options)
    bias_gradients = gradients[3] if gradients[3].numel() > 0 else None
    return *gradients[:3], bias_gradients, *(None,) * 17


differentiate(joint_rnnt_loss, _setup, _gradients, joint_rnnt_loss_backward)

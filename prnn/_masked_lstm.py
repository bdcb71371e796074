"""prnn.nn.LSTM with zoneout or recurrent dropout."""

from __future__ import annotations  # torch 2.6 does not compile a nested function annotated with a union

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from prnn._errors import NotSupportedError
from prnn._layer_arguments import call_dtypes, check_not_empty, is_autocast
from prnn._lstm_layers import lengths_on_device, run_layer, run_layers
from prnn._ops._autocast import autocast_cpu_dtypes
from prnn._ops._handles import DTYPES
from prnn._ops._layer import MODES
from prnn._ops.layer_norm_lstm import layer_norm_lstm_plan
from prnn._ops.layer_norm_lstm_input import input_products
from prnn._state_masks import given

__all__ = ["run_masked_lstm"]


def _require_served(module: Any, input: Tensor, batch: int, reset: Tensor | None, return_cells: bool) -> None:
    if reset is not None:
        raise NotSupportedError(f"reset is given, {given(module)}: such a layer takes no resets")
    if return_cells:
        raise NotSupportedError(f"return_cells is True, {given(module)}: such a layer returns the last c alone")
    if input.dtype not in DTYPES:
        raise TypeError(f"input has dtype {input.dtype}; recurrent layers take float32, float64, float16 and bfloat16")
    if not input.is_cuda or module.backend == "best":
        return
    if module.backend == "cudnn":
        raise NotSupportedError(f"backend is 'cudnn', {given(module)}, which cuDNN does not have")
    engine, *_ = layer_norm_lstm_plan(input.device, None, input.dtype, "none", max(batch, 1), module.hidden_size)
    if engine == "steps":
        raise NotSupportedError(
            f"backend is 'persistent', {given(module)}: resident kernels with masks serve no {batch} sequences of "
            f"{module.hidden_size} units in {input.dtype}"
        )


def run_masked_lstm(
    module: Any,
    input: Tensor,
    states: Sequence[Tensor | None],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    return_cells: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As _Recurrent._call(): input (T, N, I), or a PackedSequence's rows and batch_sizes; states h and c."""
    if batch_sizes is not None:
        input, lengths = pad_packed_sequence(PackedSequence(input, batch_sizes))
    check_not_empty(input)
    weights = {name: getattr(module, name) for group in module._all_weights for name in group}
    dtype, result_dtype = call_dtypes(input, weights["weight_ih_l0"])
    cell_dtype, (h0, c0) = result_dtype, states
    if dtype == torch.float32 and not input.is_cuda and is_autocast(input):
        result_dtype, cell_dtype = autocast_cpu_dtypes(input, h0, c0, batch_sizes, lengths, MODES["LSTM"])
    with torch.autocast(input.device.type, enabled=False) if is_autocast(input) else nullcontext():
        input = input.to(dtype)
        _require_served(module, input, input.size(1), reset, return_cells)
        hx = tuple(None if state is None else state.to(dtype) for state in states)
        weights = {name: weight.to(dtype) for name, weight in weights.items()}
        on_device = None if lengths is None else lengths_on_device(lengths, input)
        directions = 2 if module.bidirectional else 1

        def run(
            input: Tensor, states: tuple[Tensor | None, Tensor | None], layer: int, direction: int
        ) -> tuple[Tensor, Tensor]:
            weight_ih, weight_hh, *biases = (weights[n] for n in module._all_weights[layer * directions + direction])
            return run_layer(
                input_products(input, weight_ih, biases[0] + biases[1] if biases else None),
                states,
                weight_hh,
                (None,) * 4,
                on_device,
                normalize="none",
                reverse=direction == 1,
                zoneout=module.zoneout,
                recurrent_dropout=module.recurrent_dropout,
                training=module.training,
            )

        dropout = module.dropout if module.training else 0.0
        output, hy, cy = run_layers(input, hx, on_device, module.num_layers, directions, dropout, run)  # type: ignore[arg-type]
    if batch_sizes is not None:
        output = pack_padded_sequence(output, lengths).data  # type: ignore[arg-type]
    output, hy = output.to(result_dtype), hy.to(result_dtype)
    return output, hy, cy.to(cell_dtype), output.new_empty(0)

"""prnn.nn.LSTM with zoneout or recurrent dropout where no kernel of plain layers serves it: in float64 on a GPU, and
layers and batches that are large."""

from __future__ import annotations  # torch 2.6 does not compile a nested function annotated with a union

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from prnn._errors import NotSupportedError
from prnn._layer_arguments import call_dtypes, check_not_empty, is_autocast
from prnn._lstm_layers import Masks, lengths_on_device, masks_of, run_layer, run_layers, run_with_resets
from prnn._ops._autocast import are_even, autocast_cpu_dtypes
from prnn._ops._handles import DTYPES
from prnn._ops._layer import MODES
from prnn._ops.layer_norm_lstm import layer_norm_lstm_plan
from prnn._ops.layer_norm_lstm_input import input_products
from prnn._state_masks import given

__all__ = ["run_masked_lstm"]


def _require_served(module: Any, input: Tensor, return_cells: bool) -> None:
    if return_cells:
        raise NotSupportedError(
            f"return_cells is True, {given(module)}: the kernels that serve such a layer here return the last c alone"
        )
    if input.dtype not in DTYPES:
        raise TypeError(f"input has dtype {input.dtype}; recurrent layers take float32, float64, float16 and bfloat16")
    if input.is_cuda and module.backend == "cudnn":
        raise NotSupportedError(f"backend is 'cudnn', {given(module)}, which cuDNN does not have")


def _require_resident(module: Any, input: Tensor) -> None:
    """Where the backend says so. input: (T, N, I)."""
    if not input.is_cuda or module.backend != "persistent":
        return
    batch, units = input.size(1), module.hidden_size // module.heads
    forward, backward, *_ = layer_norm_lstm_plan(input.device, None, input.dtype, "none", max(batch, 1), units)
    if "steps" in (forward, backward):
        raise NotSupportedError(
            f"backend is 'persistent', {given(module)}: resident kernels with masks serve no {batch} sequences of "
            f"{units} units in {input.dtype}"
        )


def _run_stack(
    module: Any,
    weights: dict[str, Tensor],
    input: Tensor,
    hx: tuple[Tensor | None, Tensor | None],
    lengths: Tensor | None,
    masks: Masks,
) -> tuple[Tensor, Tensor, Tensor]:
    """All layers; arguments and results as run_layers()'s. masks: of draw_masks(), zoneout's (T, N, L D H)."""
    _require_resident(module, input)
    directions, heads = 2 if module.bidirectional else 1, module.heads

    def of_heads(tensor: Tensor | None) -> Sequence[Tensor | None]:
        return (None,) * heads if tensor is None else tensor.chunk(heads, -1)

    def run(
        input: Tensor, states: tuple[Tensor | None, Tensor | None], layer: int, direction: int
    ) -> tuple[Tensor, Tensor]:
        index = layer * directions + direction
        weight_ih, weight_hh, *biases = (weights[name] for name in module._all_weights[index])
        x = input_products(input, weight_ih, biases[0] + biases[1] if biases else None)
        own = masks_of(masks, index, module.hidden_size, x.dtype)

        def run_head(
            x: Tensor, recurrent: Tensor, states: tuple[Tensor | None, Tensor | None], masks: Masks
        ) -> tuple[Tensor, Tensor]:
            return run_layer(
                x,
                states,
                recurrent,
                (None,) * 4,
                lengths,
                masks,
                normalize="none",
                reverse=direction == 1,
                zoneout=0.0 if module.training else module.zoneout,
            )

        if heads == 1:
            return run_head(x, weight_hh, states, own)
        own_states, own_masks = (zip(*map(of_heads, pair), strict=True) for pair in (states, own))
        results = map(run_head, x.chunk(heads, -1), weight_hh.unbind(), own_states, own_masks)
        y, cy = zip(*results, strict=True)
        return torch.cat(y, -1), torch.cat(cy, -1)

    dropout = module.dropout if module.training else 0.0
    return run_layers(input, hx, lengths, module.num_layers, directions, dropout, run)


def run_masked_lstm(
    module: Any,
    input: Tensor,
    states: Sequence[Tensor | None],
    batch_sizes: Tensor | None,
    lengths: Tensor | None,
    reset: Tensor | None,
    masks: Sequence[Tensor | None],
    return_cells: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As Recurrent._call(): input (T, N, I), or a PackedSequence's rows and batch_sizes; states h and c, and those of
    reset_hx; masks of draw_masks()."""
    zoneout, recurrent = masks or (None, None)
    if batch_sizes is not None:
        if reset is not None:
            reset, _ = pad_packed_sequence(PackedSequence(reset, batch_sizes))
        if zoneout is not None:
            zoneout, _ = pad_packed_sequence(PackedSequence(zoneout, batch_sizes))
        input, lengths = pad_packed_sequence(PackedSequence(input, batch_sizes))
    check_not_empty(input)
    weights = {name: getattr(module, name) for group in module._all_weights for name in group}
    dtype, result_dtype = call_dtypes(input, weights["weight_ih_l0"])
    cell_dtype, (h0, c0) = result_dtype, states[:2]
    if dtype == torch.float32 and not input.is_cuda and is_autocast(input):
        is_even = are_even(batch_sizes) and are_even(lengths)
        result_dtype, cell_dtype = autocast_cpu_dtypes(input, h0, c0, is_even, MODES["LSTM"])
    with torch.autocast(input.device.type, enabled=False) if is_autocast(input) else nullcontext():
        input = input.to(dtype)
        _require_served(module, input, return_cells)
        hx = [None if state is None else state.to(dtype) for state in states]
        weights = {name: weight.to(dtype) for name, weight in weights.items()}
        on_device = None if lengths is None else lengths_on_device(lengths, input)
        run = partial(_run_stack, module, weights)
        output, hy, cy = run_with_resets(
            run, input, hx, on_device, (zoneout, recurrent), reset, 2 if module.bidirectional else 1
        )
    if batch_sizes is not None:
        output = pack_padded_sequence(output, lengths).data  # type: ignore[arg-type]
    output, hy = output.to(result_dtype), hy.to(result_dtype)
    return output, hy, cy.to(cell_dtype), output.new_empty(0)

"""Recurrent layers under autocast: the type that a call computes in, and those of its results."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from prnn._compiler import assume_constant_result
from prnn._ops._layer import MODES

__all__ = ["Casts", "are_even", "cast_to", "cast_weights", "casts_of"]


class Casts(NamedTuple):
    """The types of a call under autocast, which leaves tensors of float64 as they are."""

    computed: torch.dtype  # of all that the kernels are given
    output: torch.dtype  # of output and hy
    cells: torch.dtype  # of cy and cells

    def results(
        self, output: Tensor, hy: Tensor, cy: Tensor | None, cells: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """A call's results in their types."""
        dtype = self.cells
        cy, cells = None if cy is None else cy.to(dtype), None if cells is None else cells.to(dtype)
        return output.to(self.output), hy.to(self.output), cy, cells


def casts_of(
    input: Tensor, hx: Tensor | None, cx: Tensor | None, is_even: bool, mode: int, proj_size: int = 0
) -> Casts:
    """The types of a call under autocast. On a GPU all are autocast's. The CPU computes in float32, and the results
    have the types that torch's own layers give them there: the products are of the autocast dtype, and the cell
    promotes their sums with the state before. Of an sLSTM, which torch has not, they are the autocast dtype, and
    float32 for c, n and m.

    is_even: all sequences have one length."""
    if not input.is_cpu:
        dtype = torch.get_autocast_dtype(input.device.type)
        return Casts(dtype, dtype, dtype)
    dtype, computed = torch.get_autocast_dtype("cpu"), torch.float32
    if input.dtype == torch.float64:
        return Casts(computed, torch.float64, torch.float64)
    if mode in (MODES["RNN_RELU"], MODES["RNN_TANH"]):
        return Casts(computed, dtype, dtype)
    if mode in (MODES["sLSTM"], MODES["sLSTM_EXP"]):
        return Casts(computed, dtype, torch.float32)
    if mode == MODES["GRU"]:
        state = torch.promote_types(dtype, (input if hx is None else hx).dtype)
        return Casts(computed, state, state)
    if mode == MODES["LSTM"] and is_even and proj_size == 0 and torch.backends.mkldnn.enabled and input.numel() > 0:
        is_trained_half = input.dtype == torch.float16 and torch.is_grad_enabled()
        takes = _onednn_takes if torch.compiler.is_compiling() else _find_onednn_takes
        if not is_trained_half and takes(input.dtype):  # torch.nn.LSTM leaves a padded input to it
            return Casts(computed, dtype, dtype)
    cell = torch.promote_types(dtype, (input if cx is None else cx).dtype)
    return Casts(computed, dtype if proj_size > 0 else cell, cell)


@functools.cache
def _find_onednn_takes(dtype: torch.dtype) -> bool:
    if dtype == torch.float32 or not torch.backends.mkldnn.is_available():
        return torch.backends.mkldnn.is_available()
    x = torch.zeros(1, 1, 1, device="cpu", dtype=torch.float32)
    weights = [torch.zeros(shape, device="cpu", dtype=torch.float32) for shape in ((4, 1), (4, 1), (4,), (4,))]
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        output: Tensor = torch.lstm(x.to(dtype), (x, x), weights, True, 1, 0.0, False, False, False)[0]
    return output.dtype == dtype  # else it is the states'


@assume_constant_result  # which torch.compile cannot trace
def _onednn_takes(dtype: torch.dtype) -> bool:
    """Whether there is a oneDNN that takes LSTMs of an input of this type."""
    return _find_onednn_takes(dtype)


def are_even(lengths: Tensor | None) -> bool:
    """Whether sequences of these lengths, or these batch sizes, have one length. A trace has no values: it takes them
    to differ."""
    if lengths is None:
        return True
    if torch.compiler.is_compiling() or type(lengths) is not Tensor or lengths.device.type != "cpu":
        return False
    return bool((lengths == lengths[0]).all())


def cast_to(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return tensor if tensor is None or tensor.dtype == torch.float64 else tensor.to(dtype)


def cast_weights(weights: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """One tensor of `dtype` with the elements of all weights, one tensor after the other; the weights where they have
    that type, or are not to be cast together."""
    dtypes = {weight.dtype for weight in weights}
    if dtypes == {dtype} or torch.float64 in dtypes or len({weight.device for weight in weights}) > 1:
        return list(weights)
    # Each is cast before: under autocast cat() refuses some types.
    return [torch.cat([weight.reshape(-1).to(dtype) for weight in weights])]

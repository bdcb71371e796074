"""zoneout= and recurrent_dropout=, what layers with either share; and the masks of prnn.nn.LSTM, GRU and RNN."""

from __future__ import annotations  # torch 2.6 does not compile a nested function annotated with a union

from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from prnn._ops._layer import BACKENDS, Config
from prnn._ops._precision import allows_tf32_rnn
from prnn._ops._segments import computed_dtype, resets_in_kernels

__all__ = [
    "are_in_kernels",
    "are_kernels_faster",
    "check_masks",
    "check_probability",
    "draw_masks",
    "given",
    "mask_configuration",
    "uses_masks",
]


def check_probability(value: object, name: str) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):  # NumPy's are, too
        raise TypeError(f"{name} is {value!r}; it must be a number")
    if not 0 <= float(value) < 1:
        raise ValueError(f"{name} is {value}; it must be at least 0 and less than 1")


def check_masks(zoneout: float, recurrent_dropout: float, proj_size: int) -> None:
    """The constructor's arguments."""
    for name, value in (("zoneout", zoneout), ("recurrent_dropout", recurrent_dropout)):
        check_probability(value, name)
        if value > 0 and proj_size > 0:
            raise ValueError(f"{name} is {value}, but proj_size is {proj_size}: a projected LSTM has none")


def uses_masks(module: Any) -> bool:
    """Whether a call of the prnn.nn.LSTM, GRU or RNN is other than torch.nn's."""
    return module.zoneout > 0 or (module.training and module.recurrent_dropout > 0)


def given(module: Any) -> str:
    """For messages alone: torch.compile may hold the number as a symbol."""
    name = "zoneout" if module.zoneout > 0 else "recurrent_dropout"
    return f"but {name} is {getattr(module, name)}"


def mask_configuration(module: Any) -> tuple[float, int]:
    """The operator's `zoneout` and `mask_kinds`."""
    if not module.training:
        return float(module.zoneout), 0
    # Branches, no sums of bools: torch.compile may hold the probabilities as symbols, and torch 2.6 adds none.
    return 0.0, (1 if module.zoneout > 0 else 0) + (2 if module.recurrent_dropout > 0 else 0)


def are_kernels_faster(units: int, batch: int, dtype: torch.dtype, trains: bool) -> bool:
    """Whether the kernels of plain LSTMs were faster with masks than those on the input of gates, of whose timesteps a
    large batch's are matrix products. Measured on an H200: docs/layer_norm_lstm.md."""
    size = batch * units
    if dtype != torch.float32:
        return size <= (196608 if units <= 512 else 73728)
    if units <= 256:
        return size <= 262144 if allows_tf32_rnn() else batch == 1 and units > 128
    if trains and 1 < batch <= 16 and units <= 1024:  # the backward pass of others is in clusters, or on the whole GPU
        return False
    if allows_tf32_rnn():
        return size <= 40960
    return size < 49152 if trains else size <= 65536


def are_in_kernels(
    config: Config,
    input: Tensor,
    batch: int,
    lengths: object,
    weights: Sequence[Tensor],
) -> bool:
    """Whether the kernels of plain LSTMs serve one with masks. They alone know resets, heads and c of every timestep;
    lengths on a GPU the others read without the host. A compiled function does not ask the library for its plans."""
    if not input.is_cuda:
        return True
    dtype = computed_dtype(input)
    if dtype == torch.float64 or config.backend == BACKENDS["cudnn"] or torch.compiler.is_compiling():
        return False
    needs = config.has_reset or config.return_cells or config.heads > 1
    if not needs and isinstance(lengths, Tensor) and lengths.is_cuda:
        return False
    trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (input, *weights))
    if not (needs or are_kernels_faster(config.hidden_size, batch, dtype, trains)):
        return False
    return resets_in_kernels(config, input, batch)


def draw_masks(module: Any, input: Tensor, batch: int) -> tuple[Tensor | None, Tensor | None]:
    """The operator's masks of zoneout and the recurrence in training, those of a layer without heads. input: (T, N, I),
    or a PackedSequence's rows. They are ones with a probability, else zeros."""
    zoneout = recurrent = None
    if not module.training:
        return zoneout, recurrent
    states = module.num_layers * (2 if module.bidirectional else 1)
    # The masks expand one element: under vmap they are what its randomness= says, whatever it maps over.
    if module.zoneout > 0:
        some = torch.empty((), dtype=torch.bool, device=input.device)
        zoneout = some.expand(*input.shape[:-1], states * module.hidden_size).bernoulli(module.zoneout)
    if module.recurrent_dropout > 0:
        kept = 1 - module.recurrent_dropout
        some = torch.empty((), dtype=input.dtype, device=input.device)
        recurrent = some.expand(states, batch, module.hidden_size).bernoulli(kept).div_(kept)
    return zoneout, recurrent

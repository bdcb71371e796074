"""zoneout= and recurrent_dropout=, what layers with either share; and the masks of prnn.nn.LSTM, GRU and RNN."""

from __future__ import annotations  # torch 2.6 does not compile a nested function annotated with a union

from numbers import Real
from typing import Any

import torch
from torch import Tensor

__all__ = ["check_masks", "check_probability", "draw_masks", "mask_configuration"]


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


def mask_configuration(module: Any) -> tuple[float, int]:
    """The operator's `zoneout` and `mask_kinds`."""
    if not module.training:
        return float(module.zoneout), 0
    # Branches, no sums of bools: torch.compile may hold the probabilities as symbols, and torch 2.6 adds none.
    return 0.0, (1 if module.zoneout > 0 else 0) + (2 if module.recurrent_dropout > 0 else 0)


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

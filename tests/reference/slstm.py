"""sLSTM (Beck et al. 2024, arXiv:2405.04517) in torch operations written out, with the zero-state rule of xlstm's
kernels: where n is 0, m' is i."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Results(NamedTuple):
    """States of all timesteps, (T, N, H), and the last ones of each sequence, (N, H), in the order h, c, n, m."""

    all: list[Tensor]
    last: list[Tensor]


def step(gates: Tensor, states: list[Tensor], forget_gate: str) -> list[Tensor]:
    """gates: (N, 4, H), i, f, z, o."""
    _, c, n, m = states
    i, f, z, o = gates.unbind(1)
    kept = m + (functional.logsigmoid(f) if forget_gate == "sigmoid" else f)
    new_m = torch.where(n == 0, i, torch.maximum(i, kept))
    # Where n is 0, c is 0 too, in states that a call returns: what f' is there has no influence.
    forget = torch.exp(torch.clamp(kept - new_m, max=0))
    new = torch.exp(i - new_m)
    new_c, new_n = forget * c + new * z.tanh(), forget * n + new
    return [o.sigmoid() * new_c / new_n, new_c, new_n, new_m]


def slstm(
    x: Tensor,
    states: list[Tensor] | None,
    recurrent: Tensor,
    *,
    forget_gate: str = "sigmoid",
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reset_states: list[Tensor] | None = None,
) -> Results:
    """One layer.

    Args:
        x: (T, N, 4 H), W x + b, head after head, gates i, f, z, o within each.
        states: h, c, n, m, (N, H); None is zeros, as are reset_states.
        recurrent: (heads, 4 H / heads, H / heads).
        lengths: (N,), 0 to T.
        reset: (T, N), bool.
    """
    steps, batch, width = x.shape
    heads, hidden = recurrent.size(0), width // 4
    zeros = [x.new_zeros(batch, hidden)] * 4
    states = zeros if states is None else states
    anew = zeros if reset_states is None else reset_states
    outputs: list[list[Tensor]] = []
    for t in range(steps):
        runs = None if lengths is None else (t < lengths)[:, None]
        if reset is not None:
            begins = reset[t][:, None] if runs is None else reset[t][:, None] & runs
            states = [torch.where(begins, new, old) for new, old in zip(anew, states, strict=True)]
        h = states[0].view(batch, heads, -1)
        gates = x[t].view(batch, heads, -1) + torch.einsum("nhp,hgp->nhg", h, recurrent)
        gates = gates.view(batch, heads, 4, -1).transpose(1, 2).reshape(batch, 4, hidden)
        new = step(gates, states, forget_gate)
        if runs is not None:
            new = [torch.where(runs, value, old) for value, old in zip(new, states, strict=True)]
        states = new
        outputs.append(new)
    return Results([torch.stack(values) for values in zip(*outputs, strict=True)], states)

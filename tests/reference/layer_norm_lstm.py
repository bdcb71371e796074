"""An LSTM with layer normalisation or without in torch operations written out, by the formulas of
include/persistent_rnn.h, and torchaudio's module by its own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def rounded_to_tf32(values: Tensor) -> Tensor:
    """Floats, of any type, with 10 bits of mantissa: to the nearest, halves away from zero."""
    bits = values.float().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).to(values.dtype)


class Tf32Product(torch.autograd.Function):
    """h R' and its gradients, each a product of factors rounded to tf32."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, recurrent: Tensor) -> Tensor:
        factors = rounded_to_tf32(h), rounded_to_tf32(recurrent)
        ctx.save_for_backward(*factors)
        return factors[0] @ factors[1].t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        h, recurrent = ctx.saved_tensors
        rounded = rounded_to_tf32(gradient)
        return rounded @ recurrent, rounded.t() @ h


def layer_norm_lstm(
    x: Tensor,
    h: Tensor | None,
    c: Tensor | None,
    recurrent: Tensor,
    gate_gain: Tensor | None,
    gate_bias: Tensor | None,
    cell_gain: Tensor | None,
    cell_bias: Tensor | None,
    zoneout_mask: Tensor | None = None,
    recurrent_mask: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    normalize: str = "gates",
    reverse: bool = False,
    epsilon: float = 1e-5,
    zoneout: float = 0.0,
    multiply: Callable[[Tensor, Tensor], Tensor] = functional.linear,
) -> tuple[Tensor, Tensor]:
    """y (T, N, H) and the last c; x (T, N, 4 H)."""
    steps, batch, width = x.shape
    hidden = width // 4
    h = x.new_zeros(batch, hidden) if h is None else h
    c = x.new_zeros(batch, hidden) if c is None else c
    outputs: list[Tensor] = [x] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        masked = h if recurrent_mask is None else recurrent_mask * h
        product = multiply(masked, recurrent)
        if normalize == "none":
            gates = x[t] + product
        elif normalize == "gates":
            gates = functional.layer_norm(x[t] + product, (width,), gate_gain, gate_bias, epsilon)
        else:
            gates = functional.layer_norm(product, (width,), gate_gain, gate_bias, epsilon) + x[t]
        i, f, g, o = gates.chunk(4, -1)
        new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        v = new_c if normalize == "none" else functional.layer_norm(new_c, (hidden,), cell_gain, cell_bias, epsilon)
        new_c = v if normalize == "gates" else new_c
        new = o.sigmoid() * v.tanh()
        new = new + (zoneout if zoneout_mask is None else zoneout_mask[t]) * (h - new)
        runs = torch.full((batch, 1), True) if lengths is None else (t < lengths)[:, None]
        runs = runs.to(x.device)
        h, c = torch.where(runs, new, h), torch.where(runs, new_c, c)
        outputs[t] = h
    return torch.stack(outputs), c


class TorchaudioLSTM(torch.nn.Module):
    """torchaudio.models.rnnt._CustomLSTM with layer norm, with its parameters' names."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.x2g = torch.nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.p2g = torch.nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.c_norm = torch.nn.LayerNorm(hidden_size)
        self.g_norm = torch.nn.LayerNorm(4 * hidden_size)

    def forward(self, input: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        outputs = []
        for x in self.x2g(input):
            i, f, g, o = self.g_norm(x + self.p2g(h)).chunk(4, 1)
            c = self.c_norm(f.sigmoid() * c + i.sigmoid() * g.tanh())
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs), h, c

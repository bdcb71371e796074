"""prnn.nn.LayerNormLSTM, and prnn.nn.LSTM and GRU with zoneout and recurrent dropout, beside torch operations written
out, a Python loop over the timesteps, and beside torch.nn.LSTM or GRU, which have neither: `prnn bench rnn
--layer-norm`.

Microseconds per timestep, forward without gradients / training step with the gradients of input and parameters, all
replayed from a CUDA graph. Ratios are the time of torch's operations over prnn's. Input size = hidden size. Torch's
operations run over 64 timesteps at most, since a graph of them is slow to record. normalize "none": LSTM, and "gru":
GRU, with masks drawn in each replay, in both columns. --dtype float32: true float32 in all columns; tf32: tf32 in all.
"""

from collections.abc import Sequence
from itertools import product

import torch
from torch.nn import functional

import prnn
from prnn.bench.timing import per_step, time_module


class WrittenOut(torch.nn.Module):
    """The same layer in torch's operations, with its parameters."""

    def __init__(self, module: prnn.nn.LayerNormLSTM) -> None:
        super().__init__()
        self.module = module

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        p = {name.removesuffix("_l0"): value for name, value in self.module.named_parameters()}
        hidden, of_sum = self.module.hidden_size, self.module.normalize == "gates"
        x = functional.linear(input, p["weight_ih"])
        if not of_sum:
            x = functional.layer_norm(x, x.shape[-1:], p["norm_input_weight"])
        gain = p["norm_gates_weight" if of_sum else "norm_hidden_weight"]
        bias = p["norm_gates_bias" if of_sum else "bias"]
        h = c = input.new_zeros(input.size(1), hidden)
        outputs = []
        for t in range(input.size(0)):
            recurrent = functional.linear(h, p["weight_hh"])
            gates = functional.layer_norm(x[t] + recurrent if of_sum else recurrent, x.shape[-1:], gain, bias)
            i, f, g, o = (gates if of_sum else gates + x[t]).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            v = functional.layer_norm(c, (hidden,), p["norm_cell_weight"], p["norm_cell_bias"])
            c = v if of_sum else c
            h = o.sigmoid() * v.tanh()
            outputs.append(h)
        return torch.stack(outputs), c


class MaskedWrittenOut(torch.nn.Module):
    """An LSTM with zoneout and recurrent dropout in torch's operations, with its parameters."""

    def __init__(self, module: prnn.nn.LSTM) -> None:
        super().__init__()
        self.module = module

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        m = self.module
        x = functional.linear(input, m.weight_ih_l0, m.bias_ih_l0 + m.bias_hh_l0)
        h = c = input.new_zeros(input.size(1), m.hidden_size)
        keeps = torch.rand(input.size(0), *h.shape, device=input.device) < m.zoneout
        mask = functional.dropout(torch.ones_like(h), m.recurrent_dropout)
        outputs = []
        for t in range(input.size(0)):
            i, f, g, o = torch.addmm(x[t], h * mask, m.weight_hh_l0.t()).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = torch.where(keeps[t], h, o.sigmoid() * c.tanh())
            outputs.append(h)
        return torch.stack(outputs), c


class MaskedGRUWrittenOut(torch.nn.Module):
    """The same of a GRU."""

    def __init__(self, module: prnn.nn.GRU) -> None:
        super().__init__()
        self.module = module

    def forward(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        m = self.module
        x = functional.linear(input, m.weight_ih_l0, m.bias_ih_l0)
        h = input.new_zeros(input.size(1), m.hidden_size)
        keeps = torch.rand(input.size(0), *h.shape, device=input.device) < m.zoneout
        mask = functional.dropout(torch.ones_like(h), m.recurrent_dropout)
        outputs = []
        for t in range(input.size(0)):
            recurrent = torch.addmm(m.bias_hh_l0, h * mask, m.weight_hh_l0.t())
            (r, z, n), (hr, hz, hn) = x[t].chunk(3, -1), recurrent.chunk(3, -1)
            candidate = torch.tanh(n + (r + hr).sigmoid() * hn)
            h = torch.where(keeps[t], h, torch.lerp(candidate, h, (z + hz).sigmoid()))
            outputs.append(h)
        return torch.stack(outputs), h


def _layers(normalize: str, hidden: int, dtype: torch.dtype) -> tuple[torch.nn.Module, torch.nn.Module]:
    """prnn's and torch's operations."""
    if normalize == "none":
        masked = prnn.nn.LSTM(hidden, hidden, zoneout=0.1, recurrent_dropout=0.1, device="cuda", dtype=dtype)
        return masked, MaskedWrittenOut(masked)
    if normalize == "gru":
        gru = prnn.nn.GRU(hidden, hidden, zoneout=0.1, recurrent_dropout=0.1, device="cuda", dtype=dtype)
        return gru, MaskedGRUWrittenOut(gru)
    module = prnn.nn.LayerNormLSTM(hidden, hidden, normalize=normalize, device="cuda", dtype=dtype)
    return module, WrittenOut(module)


def compare(dtype: torch.dtype, sizes: Sequence[int], batches: Sequence[int], steps: int, repeats: int) -> None:
    print("| normalize | H | N | engine | prnn | torch operations | ratio | torch.nn |")
    print("|---|---|---|---|---|---|---|---|")
    for normalize, hidden, batch in product(("gates", "products", "none", "gru"), sizes, batches):
        if normalize == "products" and hidden != 512:
            continue
        module, written_out = _layers(normalize, hidden, dtype)
        x = torch.randn(steps, batch, hidden, device="cuda", dtype=dtype, requires_grad=True)
        dy = torch.randn_like(x)
        engine = prnn.explain(module, batch).layers[0].forward
        ours = time_module(module, x, dy, repeats)
        written_steps = min(steps, 64)
        part = x[:written_steps].detach().requires_grad_()
        theirs = time_module(written_out, part, dy[:written_steps], repeats)
        torch_layer = torch.nn.GRU if normalize == "gru" else torch.nn.LSTM
        plain = time_module(torch_layer(hidden, hidden, device="cuda", dtype=dtype), x, dy, repeats)
        ratio = " / ".join(f"{a / written_steps / (b / steps):.1f}" for a, b in zip(theirs, ours, strict=True))
        columns = [normalize, str(hidden), str(batch), engine, per_step(ours, steps), per_step(theirs, written_steps)]
        print(f"| {' | '.join([*columns, ratio, per_step(plain, steps)])} |", flush=True)

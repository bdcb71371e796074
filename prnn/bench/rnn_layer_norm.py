"""prnn.nn.LayerNormLSTM beside torch operations written out, a Python loop over the timesteps:
`prnn bench rnn --layer-norm`.

Microseconds per timestep of 256, forward (inference) / training step with the gradients of input and parameters, eager
and replayed from a CUDA graph. Ratios are the rival's time over prnn's. Input size = hidden size.
"""

from collections.abc import Callable
from itertools import product

import torch
from torch.nn import functional

import prnn
from prnn._ops.layer_norm_lstm import layer_norm_lstm_plan
from prnn.bench.rnn_gpu import per_step, time_calls, time_graph

BATCHES = (1, 8, 32, 64)
SIZES = {torch.bfloat16: (128, 256, 512, 1024), torch.float32: (128, 256, 512, 1024)}


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


def calls(module: torch.nn.Module, x: torch.Tensor) -> tuple[Callable[[], None], Callable[[], None]]:
    dy = torch.randn_like(x)

    def forward() -> None:
        with torch.no_grad():
            module(x)

    def train() -> None:
        for tensor in (x, *module.parameters()):
            tensor.grad = None
        module(x)[0].backward(dy)

    return forward, train


def compare(steps: int, repeats: int) -> None:
    print("| normalize | type | H | N | engine | prnn | replayed | torch | replayed | ratio | ratio replayed |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for (dtype, sizes), normalize in product(SIZES.items(), ("gates", "products")):
        for hidden, batch in product(sizes, BATCHES):
            if normalize == "products" and hidden != 512:
                continue
            module = prnn.nn.LayerNormLSTM(hidden, hidden, normalize=normalize, device="cuda", dtype=dtype)
            x = torch.randn(steps, batch, hidden, device="cuda", dtype=dtype, requires_grad=True)
            engine, *_ = layer_norm_lstm_plan(x.device, None, dtype, normalize, batch, hidden)
            ours, theirs = calls(module, x), calls(WrittenOut(module), x)
            for call in (*ours, *theirs):
                call()
            mine = [[time(call, repeats) for call in ours] for time in (time_calls, time_graph)]
            rival = [[time(call, 2) for call in theirs] for time in (time_calls, time_graph)]
            columns = [normalize, str(dtype).removeprefix("torch."), str(hidden), str(batch), engine]
            columns += [per_step((times[0], times[1]), steps) for times in (*mine, *rival)]
            for times, own in zip(rival, mine, strict=True):
                columns.append(" / ".join(f"{a / b:.1f}" for a, b in zip(times, own, strict=True)))
            print(f"| {' | '.join(columns)} |", flush=True)

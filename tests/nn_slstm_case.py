"""prnn.nn.sLSTM beside the reference in float64: a module's layers written out, and what tests compare."""

import copy
from typing import Any, NamedTuple

import torch
from reference import slstm as reference
from torch import Tensor

import prnn


class Results(NamedTuple):
    """States of all timesteps, (T, N, H), and the last ones of each sequence, (N, H), in the order h, c, n, m."""

    all: list[Tensor]
    last: list[Tensor]


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
    stack = reference.Stack(0, hidden, heads, sigmoid=forget_gate == "sigmoid")
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
        by_gate = gates.view(batch, heads, 4, -1).permute(2, 0, 1, 3).flatten(2)
        new_h, new_cells = reference.step(stack, by_gate, torch.stack(states[1:]))
        new = [new_h, *new_cells]
        if runs is not None:
            new = [torch.where(runs, value, old) for value, old in zip(new, states, strict=True)]
        states = new
        outputs.append(new)
    return Results([torch.stack(values) for values in zip(*outputs, strict=True)], states)


def gates_of(module: Any, layer: int, input: Tensor, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """W x + b + b', (T, N, 4 H), and R as (heads, 4 H / heads, H / heads)."""
    weight_ih, weight_hh = weights[f"weight_ih_l{layer}"], weights[f"weight_hh_l{layer}"]
    x = input @ weight_ih.t()
    if module.bias:
        x = x + weights[f"bias_ih_l{layer}"] + weights[f"bias_hh_l{layer}"]
    return x, weight_hh.reshape(module.heads, -1, module.hidden_size // module.heads)


def written_out(
    module: Any,
    weights: dict[str, Tensor],
    input: Tensor,
    hx: Any = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    reset_hx: Any = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Results of the module's evaluation with these weights. input: (T, N, I)."""
    last = []
    for layer in range(module.num_layers):
        x, recurrent = gates_of(module, layer, input, weights)
        states, anew = ([s[layer] for s in given] if given is not None else None for given in (hx, reset_hx))
        options = {"forget_gate": module.forget_gate, "lengths": lengths, "reset": reset, "reset_states": anew}
        found = slstm(x, states, recurrent, **options)
        input = found.all[0]
        if lengths is not None:
            padding = torch.arange(input.size(0))[:, None] >= lengths
            input = input.masked_fill(padding[:, :, None], 0)
        last.append(found.last)
    return input, tuple(torch.stack(states) for states in zip(*last, strict=True))


class Case(NamedTuple):
    steps: int = 6
    batch: int = 3
    inputs: int = 5
    hidden: int = 12
    layers: int = 1
    heads: int = 1
    forget_gate: str = "sigmoid"
    bias: bool = True
    states: bool = True
    lengths: tuple[int, ...] | None = None
    reset: bool = False
    reset_states: bool = False
    scale: float = 1.0  # of the weights

    def module(self, dtype: torch.dtype) -> prnn.nn.sLSTM:
        torch.manual_seed(1)
        options = {"heads": self.heads, "forget_gate": self.forget_gate, "bias": self.bias}
        module = prnn.nn.sLSTM(self.inputs, self.hidden, self.layers, dtype=torch.float64, **options)
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.5 * self.scale)
        return module.to(dtype)

    def arguments(self, dtype: torch.dtype) -> tuple[Tensor, dict[str, Any]]:
        """Input and forward's keywords, of random values that dtype holds."""
        generator = torch.Generator().manual_seed(2)

        def normal(*shape: int) -> Tensor:
            values = torch.randn(shape, generator=generator, dtype=torch.float64)
            return values.to(dtype).requires_grad_()

        def states() -> tuple[Tensor, ...]:
            shape = (self.layers, self.batch, self.hidden)
            h, c, n, m = (normal(*shape) for _ in range(4))
            n = (n.detach().abs() + 1).to(dtype).requires_grad_()  # as a call leaves it
            return h, c, n, m

        input = normal(self.steps, self.batch, self.inputs)
        options: dict[str, Any] = {"hx": states() if self.states else None}
        if self.lengths is not None:
            options["lengths"] = torch.tensor(self.lengths)
        if self.reset:
            options["reset"] = torch.rand(self.steps, self.batch, generator=generator) < 0.3
            options["reset"][0, 0] = True
            options["reset_hx"] = states() if self.reset_states else None
        return input, options


def train_step(
    run: Any, weights: dict[str, Tensor], input: Tensor, options: dict[str, Any], of_cells: bool = True
) -> dict[str, Tensor]:
    """Results, and the gradients of a fixed function of all of them, or of output and h alone, in float64."""
    leaves = {"input": input, **weights}
    for name in ("hx", "reset_hx"):
        for letter, state in zip("hcnm", options.get(name) or (), strict=False):
            leaves[f"{name} {letter}"] = state
    output, states = run(input, **options)
    found = {"output": output, **dict(zip("hcnm", states, strict=True))}
    generator = torch.Generator().manual_seed(3)
    # Quarters, which every type holds exactly.
    factors = [torch.randint(-8, 9, value.shape, generator=generator).to(value) / 4 for value in found.values()]
    count = len(factors) if of_cells else 2
    loss: Any = sum((factor * value).sum() for factor, value in zip(factors[:count], found.values(), strict=False))
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    found |= {f"grad of {name}": value for name, value in zip(leaves, gradients, strict=True)}
    return {name: value.detach().double().cpu() for name, value in found.items() if value is not None}


def both(
    case: Case, dtype: torch.dtype, device: str = "cpu", of_cells: bool = True
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The module's training step in dtype, and the reference's in float64 on the same values. of_cells: of
    train_step()."""
    module = case.module(dtype)
    input, options = case.arguments(dtype)
    moved = copy.deepcopy(module).to(device)
    ours = train_step(moved, dict(moved.named_parameters()), on(input, device), on(options, device), of_cells)

    def exact(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(exact, value))
        is_real = isinstance(value, Tensor) and value.is_floating_point()
        return value.detach().double().requires_grad_() if is_real else value

    weights = {name: exact(parameter) for name, parameter in module.named_parameters()}
    exact_options = {name: exact(value) for name, value in options.items()}
    theirs = train_step(
        lambda *a, **o: written_out(module, weights, *a, **o), weights, exact(input), exact_options, of_cells
    )
    return ours, theirs


def on(value: Any, device: str) -> Any:
    """Tensors, those of tuples and of dictionaries, on a device; leaves stay leaves."""
    if isinstance(value, dict):
        return {name: on(item, device) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(on(item, device) for item in value)
    return value.detach().to(device).requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def compare(case: Case, dtype: torch.dtype, tolerance: float) -> None:
    """Each result within `tolerance` of the largest element of the reference's, at least of 1."""
    ours, theirs = both(case, dtype)
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        assert ours[name].shape == expected.shape, name
        error = ((ours[name] - expected).abs().max() / expected.abs().max().clamp_min(1)).item()
        assert error <= tolerance, f"{name} is off by {error:.2e} in {case}"

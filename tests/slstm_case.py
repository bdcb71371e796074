<<<<<<< HEAD
"""prnn.nn.sLSTM beside the reference in float64: a module's layers written out, and what tests compare."""

from typing import Any, NamedTuple
=======
"""A call of an sLSTM through the operator, beside its float64 reference (reference/slstm.py)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
>>>>>>> slstm

import torch
from reference import slstm as reference
from torch import Tensor

<<<<<<< HEAD
import prnn


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
    """What the module's evaluation is with these weights. input: (T, N, I)."""
    last = []
    for layer in range(module.num_layers):
        x, recurrent = gates_of(module, layer, input, weights)
        states, anew = ([s[layer] for s in given] if given is not None else None for given in (hx, reset_hx))
        options = {"forget_gate": module.forget_gate, "lengths": lengths, "reset": reset, "reset_states": anew}
        found = reference.slstm(x, states, recurrent, **options)
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


def train_step(run: Any, weights: dict[str, Tensor], input: Tensor, options: dict[str, Any]) -> dict[str, Tensor]:
    """Results, and the gradients of a fixed function of all of them, in float64."""
    leaves = {"input": input, **weights}
    for name in ("hx", "reset_hx"):
        for letter, state in zip("hcnm", options.get(name) or (), strict=False):
            leaves[f"{name} {letter}"] = state
    output, states = run(input, **options)
    found = {"output": output, **dict(zip("hcnm", states, strict=True))}
    generator = torch.Generator().manual_seed(3)
    # Quarters, which every type holds exactly.
    factors = [torch.randint(-8, 9, value.shape, generator=generator).to(value) / 4 for value in found.values()]
    loss = sum((factor * value).sum() for factor, value in zip(factors, found.values(), strict=True))
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    found |= {f"grad of {name}": value for name, value in zip(leaves, gradients, strict=True)}
    return {name: value.detach().double() for name, value in found.items() if value is not None}


def both(case: Case, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The module's training step in dtype, and the reference's in float64 on the same values."""
    module = case.module(dtype)
    input, options = case.arguments(dtype)
    ours = train_step(module, dict(module.named_parameters()), input, options)

    def exact(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(exact, value))
        is_real = isinstance(value, Tensor) and value.is_floating_point()
        return value.detach().double().requires_grad_() if is_real else value

    weights = {name: exact(parameter) for name, parameter in module.named_parameters()}
    exact_options = {name: exact(value) for name, value in options.items()}
    theirs = train_step(lambda *a, **o: written_out(module, weights, *a, **o), weights, exact(input), exact_options)
    return ours, theirs


def compare(case: Case, dtype: torch.dtype, tolerance: float) -> None:
    """Each result within `tolerance` of the largest element of the reference's, at least of 1."""
    ours, theirs = both(case, dtype)
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        assert ours[name].shape == expected.shape, name
        error = ((ours[name] - expected).abs().max() / expected.abs().max().clamp_min(1)).item()
        assert error <= tolerance, f"{name} is off by {error:.2e} in {case}"
=======
from prnn._ops import rnn as ops
from prnn._ops._layer import BACKENDS, MODES


def as_stored(expected: Tensor, found: Tensor) -> Tensor:
    """The expected c, n and m, c and n as of the m that was found: c e^m and n e^m are the state."""
    expected = expected.clone()
    states, m = expected.unflatten(0, (-1, 3)), found.unflatten(0, (-1, 3))[:, 2:]
    states[:, :2] *= torch.exp(states[:, 2:] - m.clamp(-700, 700))
    return expected


def config_of(stack: reference.Stack, backend: str = "best", **changes: object) -> ops.Config:
    mode = MODES["sLSTM" if stack.sigmoid else "sLSTM_EXP"]
    bidirectional = stack.directions == 2
    config = ops.Config(mode, stack.hidden, 0, stack.layers, bidirectional, 0.0, BACKENDS[backend], heads=stack.heads)
    return config._replace(gates_input=stack.gates_input, **changes)


@dataclass
class Case:
    """Random data. with_states: n at least 1, as of sequences that go on; resets: some rows start anew."""

    stack: reference.Stack
    batch_sizes: list[int]
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    with_states: bool = True
    resets: bool = False
    scale: float = 1.0
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(17)

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64) * scale

        stack, rows, batch = self.stack, sum(self.batch_sizes), self.batch_sizes[0]
        count = stack.layers * stack.recurrences
        self.tensors = {"x": draw(rows, stack.input_size, scale=self.scale)}
        for number, shape in enumerate(reference.weight_shapes(stack)):
            self.tensors[f"w{number}"] = draw(*shape, scale=shape[-1] ** -0.5)
        copies = (2,) if self.resets else ()
        hx, cx = draw(*copies, count, batch, stack.head), draw(*copies, count, 3, batch, stack.head)
        cx[..., 1, :, :] = cx[..., 1, :, :].abs() + 1
        if self.with_states:
            self.tensors.update(hx=hx, cx=cx.flatten(-4, -3))
        self.tensors = {name: self._rounded(tensor) for name, tensor in self.tensors.items()}
        self.reset = torch.rand(rows, generator=generator) < 0.2 if self.resets else None
        outputs = [(rows, stack.directions * stack.hidden), hx.shape[-3:], (3 * count, batch, stack.head)]
        self.gradients = [self._rounded(draw(*shape)) for shape in outputs]

    def _rounded(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype).double()

    def _run(self, leaves: dict[str, Tensor], outputs: Sequence[Tensor], used: Sequence[int]) -> dict[str, Tensor]:
        names = ("y", "hy", "cy")
        found = [outputs[index] for index in used]
        given = [self.gradients[index].to(found[0]) for index in used]
        gradients = torch.autograd.grad(found, list(leaves.values()), given)
        results = {name: output.detach() for name, output in zip(names, outputs, strict=True)}
        results.update({f"d{name}": gradient for name, gradient in zip(leaves, gradients, strict=True)})
        return {name: tensor.double().cpu() for name, tensor in results.items()}

    def expected(self, used: Sequence[int] = (0, 1, 2)) -> dict[str, Tensor]:
        """Outputs and gradients in float64. used: which of y, hy and cy have gradients."""
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in self.tensors.items()}
        weights = [tensor for name, tensor in leaves.items() if name.startswith("w")]
        count, batch = self.stack.layers * self.stack.recurrences, self.batch_sizes[0]
        states = [leaves.get("hx"), leaves.get("cx")]
        shapes = [(count, batch, self.stack.head), (3 * count, batch, self.stack.head)]
        zeros = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
        hx, cx = (zero if state is None else state for state, zero in zip(states, zeros, strict=True))
        reset_states = None
        if self.resets and self.with_states:
            (hx, h1), (cx, c1) = hx, cx
            reset_states = (h1, c1)
        outputs = reference.forward(
            self.stack, leaves["x"], self.batch_sizes, weights, hx, cx, self.reset, reset_states
        )
        return self._run(leaves, outputs, used)

    def found(self, used: Sequence[int] = (0, 1, 2), backend: str = "best") -> dict[str, Tensor]:
        """The same of the operator, in the case's type."""
        leaves = {
            name: tensor.to(self.device, self.dtype, copy=True).requires_grad_()
            for name, tensor in self.tensors.items()
        }
        weights = [tensor for name, tensor in leaves.items() if name.startswith("w")]
        config = config_of(self.stack, backend, has_reset=self.resets)
        reset = None if self.reset is None else self.reset.to(self.device)
        y, hy, cy, _ = ops.call(
            leaves["x"],
            leaves.get("hx"),
            leaves.get("cx"),
            weights,
            torch.tensor(self.batch_sizes),
            None,
            reset,
            [],
            None,
            self.batch_sizes[0],
            config,
        )
        return self._run(leaves, (y, hy, cy), used)
>>>>>>> slstm

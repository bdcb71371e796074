"""A call of an sLSTM through the operator, beside its float64 reference (reference/slstm.py)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from reference import slstm as reference
from torch import Tensor

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
    """Random data. with_states: n at least 1, as of sequences that go on; resets: some rows start anew.

    smooth: the gradients of the last c, n and m are those of a function of c e^m and n e^m. Others depend on which side
    of a maximum each m was, which in products of 16 bits is another one wherever the two are nearly the same."""

    stack: reference.Stack
    batch_sizes: list[int]
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    with_states: bool = True
    resets: bool = False
    scale: float = 1.0
    smooth: bool = False
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

    def _smooth(self, cy: Tensor) -> None:
        states, gradients = (tensor.unflatten(0, (-1, 3)) for tensor in (cy.detach(), self.gradients[2]))
        gradients[:, 2] = self._rounded((gradients * states)[:, :2].sum(1))

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
        if self.smooth:
            self._smooth(outputs[2])
        return self._run(leaves, outputs, used)

    def found(self, used: Sequence[int] = (0, 1, 2), backend: str = "best") -> dict[str, Tensor]:
        """Outputs and gradients of the operator, in the case's type."""
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

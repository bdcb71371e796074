"""The sLSTM (Beck et al. 2024, arXiv:2405.04517) step by step in float64, with the order of operations of the package
xlstm: gradients come from autograd, through the maximum that m is."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

STATES = 3  # of a unit beside h: c, n and m


@dataclass(frozen=True)
class Stack:
    """hidden: of all heads. gates_input: the input of the first layer is (rows, directions, 4, hidden)."""

    input: int
    hidden: int
    heads: int = 1
    layers: int = 1
    directions: int = 1
    sigmoid: bool = True
    gates_input: bool = False

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def recurrences(self) -> int:
        """The recurrences of a layer: heads of each direction."""
        return self.directions * self.heads

    @property
    def input_size(self) -> int:
        return 4 * self.directions * self.hidden if self.gates_input else self.input


def weight_shapes(stack: Stack) -> list[tuple[int, ...]]:
    """The shapes of the packed weights, in their order: the matrices of all directions, then their biases."""
    matrices: list[tuple[int, ...]] = []
    for layer in range(stack.layers):
        width = stack.input if layer == 0 else stack.directions * stack.hidden
        for _ in range(stack.directions):
            if layer > 0 or not stack.gates_input:
                matrices.append((stack.heads, 4, stack.head, width))
            matrices.append((stack.heads, 4, stack.head, stack.head))
    return matrices + [(stack.heads, 4, stack.head)] * (2 * stack.layers * stack.directions)


def step(stack: Stack, gates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """gates (4, B, K, head), and the state (3, B, K, head), to h and the next state."""
    i, f, z, o = gates
    c, n, m = state
    kept = m + (logsigmoid(f) if stack.sigmoid else f)
    m_new = torch.where(n == 0, i, torch.maximum(i, kept))
    in_gate, forget = torch.exp(i - m_new), torch.exp((kept - m_new).clamp(max=0))
    c_new, n_new = forget * c + in_gate * torch.tanh(z), forget * n + in_gate
    return torch.sigmoid(o) * c_new / n_new, torch.stack([c_new, n_new, m_new])


def forward(
    stack: Stack,
    x: Tensor,
    batch_sizes: Sequence[int],
    weights: Sequence[Tensor],
    hx: Tensor,
    cx: Tensor,
    reset: Tensor | None = None,
    reset_states: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs of packed x (rows, input), y (rows, directions * hidden), hy (L D K, N, head) and cy (3 L D K, N, head).

    weights: of weight_shapes(). hx, cx: like hy and cy. reset (rows,): where a sequence starts anew, from reset_states,
    which are like (hx, cx), or from zeros."""
    matrices, biases = list(weights), weights[-2 * stack.layers * stack.directions :]
    batch, last_h, last_c = batch_sizes[0], [], []

    def states(given: tuple[Tensor, Tensor], at: int) -> tuple[Tensor, Tensor]:
        """The states of a direction, h (N, K, head) and c, n and m (3, N, K, head)."""
        own = slice(at * stack.heads, (at + 1) * stack.heads)
        c = given[1].unflatten(0, (-1, STATES))[own]
        return given[0][own].transpose(0, 1), c.permute(1, 2, 0, 3)

    anew = reset_states or (torch.zeros_like(hx), torch.zeros_like(cx))
    for layer in range(stack.layers):
        outputs = []
        for direction in range(stack.directions):
            at = layer * stack.directions + direction
            has_input = layer > 0 or not stack.gates_input
            if has_input:
                wx = torch.einsum("ri,kghi->rgkh", x, matrices.pop(0))
            else:
                wx = x.view(-1, stack.directions, 4, stack.heads, stack.head)[:, direction]
            recurrent = matrices.pop(0)
            wx = wx + (biases[2 * at] + biases[2 * at + 1]).transpose(0, 1)
            (h, c), (h1, c1) = states((hx, cx), at), states(anew, at)
            steps = wx.split(list(batch_sizes))
            resets = None if reset is None else reset.split(list(batch_sizes))
            found: list[Tensor] = [h] * len(steps)
            for t in reversed(range(len(steps))) if direction == 1 else range(len(steps)):
                later, size = t + direction, len(steps[t])
                if resets is not None and later < len(steps):
                    lost = torch.zeros(batch, 1, 1, dtype=torch.bool, device=x.device)
                    lost[: len(steps[later]), 0, 0] = resets[later].bool()
                    h, c = torch.where(lost, h1, h), torch.where(lost, c1, c)
                gates = steps[t] + torch.einsum("bkj,kghj->bgkh", h[:size], recurrent)
                new_h, new_c = step(stack, gates.transpose(0, 1), c[:, :size])
                found[t] = new_h.flatten(1)
                h, c = torch.cat([new_h, h[size:]]), torch.cat([new_c, c[:, size:]], 1)
            outputs.append(torch.cat(found))
            last_h.append(h.transpose(0, 1))
            last_c.append(c.permute(2, 0, 1, 3).flatten(0, 1))
        x = torch.cat(outputs, 1)
    return x, torch.cat(last_h), torch.cat(last_c)

"""Recurrent layers written out step by step in float64: every cell, direction, projection and variable length.

Gradients come from torch's autograd. The packed weights are laid out as include/persistent_rnn.h says, worked out here
on its own and not taken from the library.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

RNN_RELU, RNN_TANH, LSTM, GRU = range(4)
GATES = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 4, GRU: 3}


@dataclass(frozen=True)
class Stack:
    """A stack of layers. projection 0: none."""

    mode: int
    input: int
    hidden: int
    layers: int = 1
    directions: int = 1
    skip_input: bool = False
    projection: int = 0

    @property
    def gates(self) -> int:
        return GATES[self.mode]

    @property
    def state(self) -> int:
        """Size of h."""
        return self.projection or self.hidden

    def layer_input(self, layer: int) -> int:
        return self.input if layer == 0 else self.directions * self.state


@dataclass
class LayerWeights:
    """One direction of one layer. Matrices {gates, hidden, columns}, biases {gates, hidden}; None where absent."""

    input: Tensor | None
    recurrent: Tensor
    projection: Tensor | None
    input_bias: Tensor
    recurrent_bias: Tensor


def matrix_shapes(stack: Stack, layer: int) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the matrices of one direction of a layer, in their order in the packed weights."""
    shapes = []
    if layer > 0 or not stack.skip_input:
        shapes.append(("input", (stack.gates, stack.hidden, stack.layer_input(layer))))
    shapes.append(("recurrent", (stack.gates, stack.hidden, stack.state)))
    if stack.projection:
        shapes.append(("projection", (stack.projection, stack.hidden)))
    return shapes


def split_weights(stack: Stack, w: Tensor) -> list[list[LayerWeights]]:
    """Views of the packed weights, [layer][direction]."""
    position = 0

    def take(shape: tuple[int, ...]) -> Tensor:
        nonlocal position
        size = torch.Size(shape).numel()
        position += size
        return w[position - size : position].view(shape)

    places = [(layer, direction) for layer in range(stack.layers) for direction in range(stack.directions)]
    matrices = {place: {name: take(shape) for name, shape in matrix_shapes(stack, place[0])} for place in places}
    biases = {place: [take((stack.gates, stack.hidden)) for _ in range(2)] for place in places}
    assert position == w.numel(), f"{w.numel()} weights given, the stack has {position}"
    return [
        [
            LayerWeights(
                matrices[layer, direction].get("input"),
                matrices[layer, direction]["recurrent"],
                matrices[layer, direction].get("projection"),
                *biases[layer, direction],
            )
            for direction in range(stack.directions)
        ]
        for layer in range(stack.layers)
    ]


def params_size(stack: Stack) -> int:
    matrices = sum(
        torch.Size(shape).numel() for layer in range(stack.layers) for _, shape in matrix_shapes(stack, layer)
    )
    return stack.directions * (matrices + stack.layers * 2 * stack.gates * stack.hidden)


@dataclass(frozen=True)
class Masks:
    """prnnRNNMasks_t: recurrent {layers * directions, N, hidden}; zoneout {rows, layers * directions, hidden}."""

    recurrent: Tensor | None = None
    zoneout: Tensor | None = None
    expectation: float = 0.0


def step(
    stack: Stack, weights: LayerWeights, x: Tensor, h: Tensor, c: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One timestep of a batch: x {B, in}, h {B, state}, c {B, hidden} to the next h and c. mask: of h in products."""
    if weights.input is None:
        wx = [x + bias for bias in weights.input_bias]
    else:
        wx = [x @ matrix.T + bias for matrix, bias in zip(weights.input, weights.input_bias, strict=True)]
    read = h if mask is None else mask * h
    rh = [read @ matrix.T + bias for matrix, bias in zip(weights.recurrent, weights.recurrent_bias, strict=True)]
    if stack.mode == RNN_RELU:
        return torch.relu(wx[0] + rh[0]), c
    if stack.mode == RNN_TANH:
        return torch.tanh(wx[0] + rh[0]), c
    if stack.mode == GRU:
        reset = torch.sigmoid(wx[0] + rh[0])
        update = torch.sigmoid(wx[1] + rh[1])
        new = torch.tanh(wx[2] + reset * rh[2])
        return (1 - update) * new + update * h, c
    in_gate, forget = torch.sigmoid(wx[0] + rh[0]), torch.sigmoid(wx[1] + rh[1])
    new, out_gate = torch.tanh(wx[2] + rh[2]), torch.sigmoid(wx[3] + rh[3])
    c = forget * c + in_gate * new
    h = out_gate * torch.tanh(c)
    return (h if weights.projection is None else h @ weights.projection.T), c


def run_direction(
    stack: Stack,
    weights: LayerWeights,
    steps: Sequence[Tensor],
    h0: Tensor,
    c0: Tensor,
    reverse: bool,
    resets: Sequence[Tensor] | None = None,
    reset_states: tuple[Tensor, Tensor] | None = None,
    mask: Tensor | None = None,
    zoneout: Sequence[Tensor] | None = None,
    expectation: float = 0.0,
) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor]:
    """All timesteps of one direction: h and c of every timestep, and each sequence's last h and c.

    mask, zoneout, expectation: of Masks, those of this direction, zoneout by timesteps.

    resets: bool, {B_t} of each timestep. True: what comes before the timestep and what begins with it know nothing of
    each other, in both directions; either side begins with reset_states, h and c like h0 and c0, or zeros.
    """
    h1, c1 = (torch.zeros_like(h0), torch.zeros_like(c0)) if reset_states is None else reset_states
    h, c = h0, c0
    outputs, cells = [h0] * len(steps), [c0] * len(steps)
    for t in reversed(range(len(steps))) if reverse else range(len(steps)):
        batch = len(steps[t])  # the sequences that are at least t + 1 long
        later = t + 1 if reverse else t  # of the two timesteps between which the state goes
        if resets is not None and later < len(steps):
            lost = torch.zeros(len(h), 1, dtype=torch.bool, device=h.device)
            lost[: len(steps[later]), 0] = resets[later].bool()
            h, c = torch.where(lost, h1, h), torch.where(lost, c1, c)
        new_h, new_c = step(stack, weights, steps[t], h[:batch], c[:batch], None if mask is None else mask[:batch])
        if zoneout is not None:
            new_h = torch.where(zoneout[t].bool(), h[:batch], new_h)
        new_h = torch.lerp(new_h, h[:batch], expectation) if expectation > 0 else new_h
        outputs[t], cells[t] = new_h, new_c
        h, c = torch.cat([new_h, h[batch:]]), torch.cat([new_c, c[batch:]])
    return outputs, cells, h, c


def forward(
    stack: Stack,
    x: Tensor,
    batch_sizes: Sequence[int],
    w: Tensor,
    hx: Tensor | None = None,
    cx: Tensor | None = None,
    dropout: Callable[[int, Tensor], Tensor] | None = None,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs {rows, directions * state}, last h {layers * directions, N, state} and last c {..., hidden}.

    x {rows, input} is packed by batch_sizes, and so is reset {rows}, see run_direction(). `dropout(layer, inputs)` is
    applied to the packed inputs of every layer above the first.
    """
    return forward_with_cells(stack, x, batch_sizes, w, hx, cx, dropout, reset)[:3]


def forward_with_cells(
    stack: Stack,
    x: Tensor,
    batch_sizes: Sequence[int],
    w: Tensor,
    hx: Tensor | None = None,
    cx: Tensor | None = None,
    dropout: Callable[[int, Tensor], Tensor] | None = None,
    reset: Tensor | None = None,
    reset_states: tuple[Tensor, Tensor] | None = None,
    masks: Masks | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """forward()'s results, and c of the last layer {rows, directions * hidden}. reset_states: as (hx, cx)."""
    cells = (stack.layers * stack.directions, batch_sizes[0])
    hx = x.new_zeros(*cells, stack.state) if hx is None else hx
    cx = x.new_zeros(*cells, stack.hidden) if cx is None else cx
    masks = masks or Masks()
    last_h, last_c = [], []
    layer_weights = split_weights(stack, w)
    for layer in range(stack.layers):
        if layer > 0 and dropout is not None:
            x = dropout(layer, x)
        steps = x.split(list(batch_sizes))
        resets = None if reset is None else reset.split(list(batch_sizes))
        by_direction, cells_by_direction = [], []
        for direction in range(stack.directions):
            index = layer * stack.directions + direction
            anew = None if reset_states is None else (reset_states[0][index], reset_states[1][index])
            zoned = None if masks.zoneout is None else masks.zoneout[:, index].split(list(batch_sizes))
            outputs, cells, h, c = run_direction(
                stack,
                layer_weights[layer][direction],
                steps,
                hx[index],
                cx[index],
                direction == 1,
                resets,
                anew,
                None if masks.recurrent is None else masks.recurrent[index].to(x),
                zoned,
                masks.expectation,
            )
            by_direction.append(torch.cat(outputs))
            cells_by_direction.append(torch.cat(cells))
            last_h.append(h)
            last_c.append(c)
        x = torch.cat(by_direction, dim=1)
    return x, torch.stack(last_h), torch.stack(last_c), torch.cat(cells_by_direction, dim=1)


@dataclass
class Results:
    """Everything that a training step computes, by the C API's names."""

    y: Tensor
    hy: Tensor
    cy: Tensor
    dx: Tensor
    dhx: Tensor
    dcx: Tensor
    dw: Tensor
    cells: Tensor
    dreset_hx: Tensor
    dreset_cx: Tensor


def train_step(
    stack: Stack,
    x: Tensor,
    batch_sizes: Sequence[int],
    w: Tensor,
    hx: Tensor,
    cx: Tensor,
    dy: Tensor,
    dhy: Tensor,
    dcy: Tensor,
    dropout: Callable[[int, Tensor], Tensor] | None = None,
    reset: Tensor | None = None,
    dcells: Tensor | None = None,
    reset_hx: Tensor | None = None,
    reset_cx: Tensor | None = None,
    masks: Masks | None = None,
) -> Results:
    """Forward and both gradients in float64, whatever the type of the arguments."""
    reset_hx, reset_cx = (
        torch.zeros_like(state) if given is None else given for given, state in ((reset_hx, hx), (reset_cx, cx))
    )
    leaves = [tensor.detach().double().requires_grad_() for tensor in (x, w, hx, cx, reset_hx, reset_cx)]
    y, hy, cy, cells = forward_with_cells(
        stack, leaves[0], batch_sizes, *leaves[1:4], dropout, reset, (leaves[4], leaves[5]), masks
    )
    loss = (y * dy.double()).sum() + (hy * dhy.double()).sum()
    if stack.mode == LSTM:
        loss = loss + (cy * dcy.double()).sum()
    if dcells is not None:
        loss = loss + (cells * dcells.double()).sum()
    dx, dw, dhx, dcx, *of_resets = (
        torch.zeros_like(leaf) if grad is None else grad
        for leaf, grad in zip(leaves, torch.autograd.grad(loss, leaves, allow_unused=True), strict=True)
    )
    return Results(y.detach(), hy.detach(), cy.detach(), dx, dhx, dcx, dw, cells.detach(), *of_resets)

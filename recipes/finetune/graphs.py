"""CUDA graphs of an encoder's layers, forward and backward. Without them the host, which launches some 4,000 kernels in
a step of a large encoder, takes longer for it than the GPU.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from prnn.transducer.capture import captured

_MOST_SHAPES = 16


class _Shape:
    """The graphs of all layers for batches of one shape.

    Args:
        layers: the layers.
        hidden: (N, T, D), the input of a layer.
        mask, positions: its other inputs, the same of all layers of an encoder's call.
    """

    def __init__(self, layers: GraphedLayers, hidden: Tensor, mask: Tensor | None, positions: Tensor) -> None:
        self.mask = None if mask is None else mask.clone()
        self.positions = positions.clone()
        self._copied: tuple[Tensor | None, Tensor] = mask, positions
        self.inputs = [torch.empty_like(hidden).requires_grad_() for _ in layers.modules]
        self.gradient, self.input_gradient = torch.empty_like(hidden), torch.empty_like(hidden)
        # Each layer's graph before any backward one: activations stay in place until the backward pass has read them.
        forward = [self._captured(layers, partial(self._forward, layers, index)) for index in range(len(self.inputs))]
        outputs = [output for _, output in forward]
        self.forward = [graph for graph, _ in forward]
        self.outputs = [output.detach() for output in outputs]
        self.backward = {
            index: self._captured(layers, partial(self._backward, layers, index, outputs.pop()))[0]
            for index in reversed(range(len(self.inputs)))
        }

    def _captured(self, layers: GraphedLayers, call: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
        # Without autocast's copies of weights, which live no longer than its context.
        dtype, enabled = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
        with torch.autocast("cuda", dtype, enabled, cache_enabled=False):
            return captured(call, self.gradient.device, layers.memory)

    def _forward(self, layers: GraphedLayers, index: int) -> Tensor:
        given = {"attention_mask": self.mask, "position_embeddings": self.positions}
        output: Tensor = layers.ordinary[index](self.inputs[index], **given)
        return output

    def _backward(self, layers: GraphedLayers, index: int, output: Tensor) -> None:
        wanted = [self.inputs[index], *layers.weights[index]]
        first, *others = torch.autograd.grad(output, wanted, self.gradient, materialize_grads=True)
        self.input_gradient.copy_(first)
        torch._foreach_copy_(layers.gradients[index], others)

    def copy_inputs(self, index: int, hidden: Tensor, mask: Tensor | None, positions: Tensor) -> None:
        self.inputs[index].detach().copy_(hidden)
        if self._copied[0] is mask and self._copied[1] is positions:
            return
        if self.mask is not None and mask is not None:
            self.mask.copy_(mask)
        self.positions.copy_(positions)
        self._copied = mask, positions


class _Replay(torch.autograd.Function):
    """The call of a layer: hidden and its result are (N, T, D). Weights are arguments so that they get gradients."""

    @staticmethod
    def forward(context: Any, layers: GraphedLayers, shape: _Shape, index: int, hidden: Tensor, *_: Tensor) -> Tensor:
        context.call = layers, shape, index
        shape.forward[index].replay()
        return shape.outputs[index].detach()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        layers, shape, index = context.call
        for weight, own in zip(layers.weights[index], layers.gradients[index], strict=True):
            if weight.grad is not None and weight.grad.data_ptr() == own.data_ptr():
                weight.grad = weight.grad.clone()  # of an earlier batch, to which this one's is added
        shape.gradient.copy_(gradients[0])
        shape.backward[index].replay()
        own = [gradient.detach() for gradient in layers.gradients[index]]
        return None, None, None, shape.input_gradient.clone(), *own


class GraphedLayers:
    """Replaces the forward pass of an encoder's layers in training by CUDA graphs, one for each layer and shape of a
    batch. The first batch of a shape runs without graphs, the second one is captured; beyond 16 shapes batches run
    without graphs.

    Activations of all shapes share their memory, so do the weights' gradients of all shapes: the backward pass of a
    batch has to come before the forward pass of the next one.

    Args:
        encoder: of Parakeet; `layers` are its layers.
    """

    def __init__(self, encoder: Any) -> None:
        self.modules: list[nn.Module] = list(encoder.layers)
        self.ordinary = [layer.forward for layer in self.modules]
        self.weights: list[list[Tensor]] = []
        self.gradients: list[list[Tensor]] = []
        self.memory: Any = None
        self._shapes: dict[Any, _Shape | Tensor] = {}  # after the first batch of a shape, its positions
        for index, layer in enumerate(self.modules):
            layer.forward = partial(self._call, index)

    def _call(
        self,
        index: int,
        hidden: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        layer, mask, positions = self.modules[index], attention_mask, position_embeddings
        shape = None
        if layer.training and torch.is_grad_enabled() and hidden.is_cuda and positions is not None and not options:
            if getattr(layer, "gradient_checkpointing", False):
                raise ValueError("gradient_checkpointing is on; CUDA graphs of layers keep all activations")
            shape = self._shape(hidden, mask, positions)
        if shape is None or positions is None:
            result: Tensor = self.ordinary[index](hidden, attention_mask=mask, position_embeddings=positions, **options)
            return result
        shape.copy_inputs(index, hidden, mask, positions)
        weights = self.weights[index]
        replayed: Tensor = _Replay.apply(self, shape, index, hidden, *weights)  # type: ignore[no-untyped-call]
        return replayed

    def _shape(self, hidden: Tensor, mask: Tensor | None, positions: Tensor) -> _Shape | None:
        """Returns the graphs of a batch, None for one without."""
        autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        key = hidden.shape, hidden.dtype, mask is None, positions.shape, positions.dtype, autocast
        found = self._shapes.get(key)
        if found is None and len(self._shapes) < _MOST_SHAPES:
            self._shapes[key] = positions
        if found is None or found is positions:
            return None
        if isinstance(found, _Shape):
            return found
        if self.memory is None:
            self.memory = torch.cuda.graph_pool_handle()
            self.weights = [[w for w in layer.parameters() if w.requires_grad] for layer in self.modules]
            self.gradients = [[torch.empty_like(weight) for weight in weights] for weights in self.weights]
        self._shapes[key] = shape = _Shape(self, hidden, mask, positions)
        return shape

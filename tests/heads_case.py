"""Layers with heads= beside torch's layers with the same recurrent weights, written as whole matrices with zeros."""

import torch

GATES = {"LSTM": 4, "GRU": 3}


def cell_of(layer: torch.nn.RNNBase) -> str:
    return layer.mode.partition("_")[0]


def whole_layer(layer: torch.nn.RNNBase) -> torch.nn.RNNBase:
    """torch.nn's layer, in float64 on the CPU, that computes what a prnn.nn layer with heads does."""
    name = cell_of(layer)
    options = {"nonlinearity": layer.nonlinearity} if name == "RNN" else {}
    whole = getattr(torch.nn, name)(
        layer.input_size,
        layer.hidden_size,
        layer.num_layers,
        bias=layer.bias,
        batch_first=layer.batch_first,
        bidirectional=layer.bidirectional,
        dtype=torch.float64,
        **options,
    )
    with torch.no_grad():
        for parameter, own in parameters_of_heads(layer, whole):
            parameter.copy_(own)
    return whole


def gates_first(layer: torch.nn.RNNBase, name: str, value: torch.Tensor) -> torch.Tensor:
    """A parameter of a layer with heads, or its gradient, in the shape and order that torch has for a whole layer: gate
    after gate, and the blocks of the recurrent weights on the diagonal."""
    heads, gates = layer.heads, GATES.get(cell_of(layer), 1)
    size = layer.hidden_size // heads
    value = value.detach().double().cpu()
    if not name.startswith("weight_hh"):
        return value.view(heads, gates, size, -1).transpose(0, 1).reshape(value.shape)
    blocks = value.view(heads, gates, size, size).transpose(0, 1)
    return torch.cat([torch.block_diag(*gate) for gate in blocks])


def parameters_of_heads(layer: torch.nn.RNNBase, whole: torch.nn.RNNBase) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each parameter of the whole layer, and its value by the layer with heads."""
    own = dict(layer.named_parameters())
    return [(parameter, gates_first(layer, name, own[name])) for name, parameter in whole.named_parameters()]


def gradients_of_heads(
    layer: torch.nn.RNNBase, whole: torch.nn.RNNBase
) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """(name, gradient of the layer with heads, gradient of the whole layer), both whole; the latter is zero where the
    layer with heads has no weights."""
    own = dict(layer.named_parameters())
    results = []
    for name, parameter in whole.named_parameters():
        assert parameter.grad is not None
        assert own[name].grad is not None
        expected = parameter.grad.cpu().clone()
        if name.startswith("weight_hh"):
            expected *= gates_first(layer, name, torch.ones_like(own[name]))
        results.append((name, gates_first(layer, name, own[name].grad), expected))
    return results

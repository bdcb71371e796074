"""Another package's prediction and joint networks as prnn's predictor and joiner, which share their parameters."""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from prnn.transducer import Joiner, RecurrentPredictor

ACTIVATIONS: dict[type, str] = {nn.ReLU: "relu", nn.Tanh: "tanh"}


class Layers(NamedTuple):
    """Layers of a transducer: embedding of the symbols, LSTM, projection of its outputs, and what follows the sum with
    the projected frames."""

    embedding: nn.Embedding
    lstm: nn.LSTM
    projection: nn.Linear
    activation: nn.Module
    head: nn.Linear

    def can_search(self) -> bool:
        """Whether `parts_of` takes them: types, and no parametrisation or hooks that would be passed over."""
        linear = type(self.projection) is nn.Linear and type(self.head) is nn.Linear
        lstm = type(self.lstm) is nn.LSTM and self.lstm.proj_size == 0 and not self.lstm.bidirectional
        return linear and lstm and self.lstm.bias and type(self.activation) in ACTIVATIONS


class Parts(NamedTuple):
    """The model as prnn.transducer_search takes it. Its frames are projected already."""

    predictor: RecurrentPredictor
    joiner: Joiner


# By the LSTM, which the parts do not hold.
_made: WeakKeyDictionary[nn.Module, tuple[tuple[int, ...], Parts]] = WeakKeyDictionary()


def parts_of(layers: Layers, classes: int, blank: int) -> Parts:
    """Predictor and joiner with these layers' parameters, kept while the layers have the same ones. The joiner's first
    layer is the identity and adds the bias of the predictor's projection.

    Args:
        layers: with `can_search()`.
        classes: symbols, blank included; further rows of the output layer are durations.
        blank: index of the blank.
    """
    embedding, lstm, projection, activation, head = layers
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    signature = (*map(id, parameters), *(hash((p.dtype, p.device)) for p in parameters), classes, blank)
    if lstm in _made and _made[lstm][0] == signature:
        return _made[lstm][1]
    size = projection.out_features
    with torch.device("meta"):
        hidden, count = lstm.hidden_size, lstm.num_layers
        predictor = RecurrentPredictor(embedding.num_embeddings, lstm.input_size, hidden, count, blank=blank)
        joiner = Joiner(size, hidden, size, classes, ACTIVATIONS[type(activation)], head.out_features - classes)
    for name, parameter in lstm.named_parameters():
        setattr(predictor.rnn, name, parameter)
    predictor.embedding, joiner.output = embedding, head
    joiner.predictor_proj.weight = projection.weight
    identity = torch.eye(size, dtype=projection.weight.dtype, device=projection.weight.device)
    joiner.encoder_proj.weight = nn.Parameter(identity, requires_grad=False)
    joiner.encoder_proj.bias = projection.bias
    parts = Parts(predictor.eval(), joiner.eval())
    _made[lstm] = signature, parts
    return parts

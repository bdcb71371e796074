"""The description of a transducer that a checkpoint carries."""

from __future__ import annotations

import dataclasses
from typing import Any

from prnn.transducer.checks import require_at_least, require_choice, require_durations, require_number

CELLS = ("lstm", "gru")
PREDICTORS = ("lstm", "gru", "stateless")
ACTIVATIONS = ("tanh", "relu")
LOSSES = ("full", "pruned", "tdt")


@dataclasses.dataclass(frozen=True)
class TransducerConfig:
    """Sizes and options from which `Transducer.from_config` builds a model. JSON carries it both ways:
    `TransducerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config`.

    Attributes:
        vocab_size: number of output symbols V, blank included.
        blank: index of the blank, in [0, V).
        feature_dim: size F of a feature frame.
        frame_stack: how many neighbouring frames the encoder sees at once.
        frame_stride: input frames per encoder frame, at most frame_stack; None means frame_stack.
        encoder_cell: "lstm" or "gru".
        encoder_layers: number of unidirectional layers.
        encoder_hidden: hidden size of each.
        encoder_projection: size of the recurrent projection (proj_size) of LSTM layers; 0 is none.
        predictor: "lstm", "gru" or "stateless".
        predictor_embedding: size of a symbol's embedding ("lstm", "gru").
        predictor_hidden: hidden size of the predictor, which is the output size of a "stateless" one.
        predictor_layers: number of layers ("lstm", "gru").
        predictor_context: how many last symbols a "stateless" predictor sees.
        joiner_dim: size of the space in which encoder and predictor meet.
        joiner_activation: "tanh" or "relu".
        dropout: probability of dropping, between layers and after encoder and predictor, in training.
        loss: "full" is the exact transducer loss, "pruned" that of k2 (Kuang et al. 2022), "tdt" that of a
            token-and-duration transducer (Xu et al. 2023), whose joiner predicts how many frames to go on, too.
        ctc_weight: weight of an auxiliary CTC loss on the encoder; 0 is none.
        fastemit: FastEmit's lambda (Yu et al. 2021), "full" and "tdt" only; 0 is none.
        prune_range: symbols kept per frame by the pruned loss.
        simple_weight: weight of the simple loss that finds the pruning bounds.
        durations: the encoder frames that each duration of a "tdt" model stands for: 1 to 16 different ones, none
            negative and one positive. A list becomes a tuple.
        sigma: logit under-normalisation of the "tdt" loss, see `prnn.tdt_loss`.
        omega: share of the RNN-T loss of the symbols alone in the "tdt" loss, 0 to 1, see `prnn.tdt_loss`.

    Raises:
        ValueError, TypeError: naming the attribute and its value.
    """

    vocab_size: int
    blank: int = 0
    feature_dim: int = 80
    frame_stack: int = 4
    frame_stride: int | None = None
    encoder_cell: str = "lstm"
    encoder_layers: int = 3
    encoder_hidden: int = 320
    encoder_projection: int = 0
    predictor: str = "lstm"
    predictor_embedding: int = 128
    predictor_hidden: int = 256
    predictor_layers: int = 1
    predictor_context: int = 2
    joiner_dim: int = 256
    joiner_activation: str = "tanh"
    dropout: float = 0.0
    loss: str = "full"
    ctc_weight: float = 0.0
    fastemit: float = 0.0
    prune_range: int = 5
    simple_weight: float = 0.5
    durations: tuple[int, ...] = (0, 1, 2, 3, 4)
    sigma: float = 0.05
    omega: float = 0.1

    def __post_init__(self) -> None:
        require_at_least("vocab_size", self.vocab_size, 2)
        require_at_least("blank", self.blank, 0)
        if self.blank >= self.vocab_size:
            raise ValueError(f"blank is {self.blank}; it must be below vocab_size, {self.vocab_size}")
        for name in ("feature_dim", "frame_stack", "encoder_layers", "encoder_hidden", "predictor_embedding",
                     "predictor_hidden", "predictor_layers", "predictor_context", "joiner_dim"):  # fmt: skip
            require_at_least(name, getattr(self, name), 1)
        if self.frame_stride is not None:
            require_at_least("frame_stride", self.frame_stride, 1)
            if self.frame_stride > self.frame_stack:
                raise ValueError(
                    f"frame_stride is {self.frame_stride}; it must be at most frame_stack, {self.frame_stack}"
                )
        require_at_least("encoder_projection", self.encoder_projection, 0)
        require_at_least("prune_range", self.prune_range, 2)
        require_choice("encoder_cell", self.encoder_cell, CELLS)
        require_choice("predictor", self.predictor, PREDICTORS)
        require_choice("joiner_activation", self.joiner_activation, ACTIVATIONS)
        require_choice("loss", self.loss, LOSSES)
        require_number("dropout", self.dropout, below_one=True)
        for name in ("ctc_weight", "fastemit", "simple_weight", "sigma", "omega"):
            require_number(name, getattr(self, name), below_one=False)
        if self.omega > 1:
            raise ValueError(f"omega is {self.omega}; it must be in [0, 1]")
        if isinstance(self.durations, list):  # JSON has no tuples
            object.__setattr__(self, "durations", tuple(self.durations))
        require_durations(self.durations)
        if self.encoder_projection and self.encoder_cell != "lstm":
            raise ValueError(f"encoder_projection is {self.encoder_projection}; only an lstm encoder has one")
        if self.encoder_projection >= self.encoder_hidden:
            most = f"it must be below encoder_hidden, {self.encoder_hidden}"
            raise ValueError(f"encoder_projection is {self.encoder_projection}; {most}")
        if self.fastemit and self.loss == "pruned":
            raise ValueError(f"fastemit is {self.fastemit}; the {self.loss} loss does not have it")

    def to_dict(self) -> dict[str, Any]:
        """The attributes as a dictionary of JSON's types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TransducerConfig:
        """The config that `to_dict` described. Attributes left out have their defaults.

        Raises:
            ValueError: an unknown or missing attribute, by name, or a value that is not accepted.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(f"unknown transducer option {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        if "vocab_size" not in values:
            raise ValueError("vocab_size is missing from the transducer's options")
        return cls(**values)

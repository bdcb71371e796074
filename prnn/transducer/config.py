"""The description of a transducer that a checkpoint carries."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any, Literal, get_args

from prnn._fields import Within, check_fields, from_plain, shown

EncoderCell = Literal["lstm", "gru", "rnn", "layer_norm_lstm"]
Norm = Literal["none", "before", "after"]
PredictorKind = Literal["lstm", "gru", "stateless"]
Activation = Literal["tanh", "relu"]
Loss = Literal["full", "pruned", "tdt"]
ENCODER_CELLS: tuple[str, ...] = get_args(EncoderCell)
NORMS: tuple[str, ...] = get_args(Norm)
CELLS = ("lstm", "gru")  # of a predictor
ACTIVATIONS: tuple[str, ...] = get_args(Activation)
LOSSES: tuple[str, ...] = get_args(Loss)

Size = Annotated[int, Within(1, 2**20)]
Count = Annotated[int, Within(1, 1000)]
Weight = Annotated[float, Within(0, 1e6)]


def require_durations(durations: object) -> None:
    """Raise TypeError unless `durations` is a tuple of ints, ValueError unless they are 1 to 16 different ones, none
    negative or above a million, and one positive."""
    if not isinstance(durations, tuple) or not all(type(duration) is int for duration in durations):
        raise TypeError(f"durations is {durations!r}; it must be a tuple of ints")
    different = len(set(durations)) == len(durations) <= 16
    if not (different and durations and min(durations) >= 0 and 0 < max(durations) <= 10**6):
        accepted = "1 to 16 different numbers of frames, none negative or above 1000000, and one positive"
        raise ValueError(f"durations is {durations}; it must have {accepted}")


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
        encoder_cell: "lstm", "gru", "rnn" (of tanh) or "layer_norm_lstm" (`prnn.nn.LayerNormLSTM`).
        encoder_layers: number of unidirectional layers.
        encoder_hidden: hidden size of each.
        encoder_projection: size of the recurrent projection (proj_size) of LSTM layers; 0 is none.
        encoder_residual: whether the input of each layer but the first is added to its output, and the input of each
            feed-forward module.
        encoder_norm: "before" normalises the inputs of all layers but the first and of feed-forward modules, and the
            encoder's output; "after" the outputs of layers and modules, residuals included (Ba et al. 2016).
        encoder_feedforward: width of a feed-forward module after each layer, as in icefall's LSTM encoder; 0 is none.
        encoder_zoneout: probability with which an element of h stays as it was, in training; none with a projection,
            and an rnn has none.
        encoder_recurrent_dropout: probability of dropout of h on its way into the recurrent weights, one mask for all
            timesteps, in training; none with a projection.
        encoder_class: "package.module:Class", a class of one's own in the place of prnn's encoder, with a class method
            from_config(config); nothing is imported by this name but by `prnn train` and others whose command line has
            it, too. null is prnn's encoder.
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

    vocab_size: Annotated[int, Within(2, 2**24)]
    blank: Annotated[int, Within(0)] = 0
    feature_dim: Size = 80
    frame_stack: Count = 4
    frame_stride: Annotated[int | None, Within(1)] = None
    encoder_cell: EncoderCell = "lstm"
    encoder_layers: Count = 3
    encoder_hidden: Size = 320
    encoder_projection: Annotated[int, Within(0)] = 0
    encoder_residual: bool = False
    encoder_norm: Norm = "none"
    encoder_feedforward: Annotated[int, Within(0, 2**20)] = 0
    encoder_zoneout: Annotated[float, Within(0, 1, below=True)] = 0.0
    encoder_recurrent_dropout: Annotated[float, Within(0, 1, below=True)] = 0.0
    encoder_class: str | None = None
    predictor: PredictorKind = "lstm"
    predictor_embedding: Size = 128
    predictor_hidden: Size = 256
    predictor_layers: Count = 1
    predictor_context: Count = 2
    joiner_dim: Size = 256
    joiner_activation: Activation = "tanh"
    dropout: Annotated[float, Within(0, 1, below=True)] = 0.0
    loss: Loss = "full"
    ctc_weight: Weight = 0.0
    fastemit: Weight = 0.0
    prune_range: Annotated[int, Within(2, 2**20)] = 5
    simple_weight: Weight = 0.5
    durations: tuple[int, ...] = (0, 1, 2, 3, 4)
    sigma: Weight = 0.05
    omega: Annotated[float, Within(0, 1)] = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.durations, list):  # JSON has no tuples
            object.__setattr__(self, "durations", tuple(self.durations))
        check_fields(self)
        require_durations(self.durations)
        if self.blank >= self.vocab_size:
            raise ValueError(f"blank is {self.blank}; it must be below vocab_size, {self.vocab_size}")
        if self.frame_stride is not None and self.frame_stride > self.frame_stack:
            raise ValueError(f"frame_stride is {self.frame_stride}; it must be at most frame_stack, {self.frame_stack}")
        if self.encoder_class is not None and not re.fullmatch(r"[\w.]{1,200}:\w{1,200}", self.encoder_class):
            raise ValueError(f"encoder_class is {shown(self.encoder_class)}; it must be 'package.module:Class'")
        if self.encoder_projection and self.encoder_cell != "lstm":
            raise ValueError(f"encoder_projection is {self.encoder_projection}; only an lstm encoder has one")
        if self.encoder_projection >= self.encoder_hidden:
            most = f"it must be below encoder_hidden, {self.encoder_hidden}"
            raise ValueError(f"encoder_projection is {self.encoder_projection}; {most}")
        for name in ("encoder_zoneout", "encoder_recurrent_dropout"):
            if self.encoder_projection and getattr(self, name):
                others = f"encoder_projection is {self.encoder_projection}: a projected LSTM has none"
                raise ValueError(f"{name} is {getattr(self, name)}, but {others}")
        if self.encoder_zoneout and self.encoder_cell == "rnn":
            raise ValueError(f"encoder_zoneout is {self.encoder_zoneout}, but encoder_cell is 'rnn', which has none")
        if self.fastemit and self.loss == "pruned":
            raise ValueError(f"fastemit is {self.fastemit}; the {self.loss} loss does not have it")

    def to_dict(self) -> dict[str, Any]:
        """The attributes as a dictionary of JSON's types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TransducerConfig:
        """The config that `to_dict` described. Attributes left out have their defaults.

        Raises:
            ValueError, TypeError: an unknown or missing attribute, by name, or a value that is not accepted.
        """
        return from_plain(cls, values, "transducer")

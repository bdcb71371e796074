"""The transducer's own streaming encoder: unidirectional recurrent layers over stacked frames."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from prnn.transducer.checks import require_at_least, require_choice
from prnn.transducer.config import ENCODER_CELLS, NORMS, TransducerConfig
from prnn.transducer.recurrent import RecurrentBlocks, recurrent, run_recurrent, with_cell_state
from prnn.transducer.stacking import StackingEncoder, State


class Encoder(StackingEncoder):
    """A `StackingEncoder` of unidirectional recurrent layers.

    Args:
        feature_dim: size F of an input frame.
        hidden_size: hidden size of each layer.
        num_layers: number of layers.
        cell: "lstm", "gru", "rnn" (of tanh) or "layer_norm_lstm".
        frame_stack: how many frames are seen at once.
        frame_stride: input frames per encoder frame, at most frame_stack; None means frame_stack.
        proj_size: size of an LSTM's recurrent projection, which then is output_dim; 0 is none.
        dropout: probability of dropping, between layers and on the output, in training; with residuals, norms or
            feed-forward modules on what layers and modules compute, before residuals are added.
        residual: adds the input of each layer but the first to its output, and of each feed-forward module.
        norm: layer normalisation, "none", "before" layers (but the first) and feed-forward modules and at the output,
            or "after" them.
        feedforward: width of a feed-forward module after each layer; 0 is none.
        zoneout, recurrent_dropout: of the layers, as in prnn.nn; none with proj_size.

    Raises:
        ValueError, TypeError: naming the argument and its value.
    """

    def __init__(
        self,
        feature_dim: int,
        hidden_size: int,
        num_layers: int,
        cell: str = "lstm",
        frame_stack: int = 1,
        frame_stride: int | None = None,
        proj_size: int = 0,
        dropout: float = 0.0,
        residual: bool = False,
        norm: str = "none",
        feedforward: int = 0,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:
        require_choice("cell", cell, ENCODER_CELLS)
        require_choice("norm", norm, NORMS)
        require_at_least("num_layers", num_layers, 1)
        require_at_least("feedforward", feedforward, 0)
        if proj_size and cell != "lstm":
            raise ValueError(f"proj_size is {proj_size}; only an lstm encoder has one")
        super().__init__(feature_dim, proj_size or hidden_size, frame_stack, frame_stride)
        self.cell = cell
        size = frame_stack * feature_dim
        masks = {"zoneout": zoneout, "recurrent_dropout": recurrent_dropout}
        self.rnn: Any  # its layers have num_layers and hidden_size
        in_blocks = residual or norm != "none" or feedforward > 0
        if in_blocks:
            self.rnn = RecurrentBlocks(
                cell, size, hidden_size, num_layers, proj_size, residual, norm, feedforward, dropout, **masks
            )
        else:
            self.rnn = recurrent(cell, size, hidden_size, num_layers, proj_size, dropout, **masks)
        self.dropout = nn.Dropout(0.0 if in_blocks else dropout)

    @classmethod
    def from_config(cls, config: TransducerConfig) -> Encoder:
        """The encoder that a config describes."""
        return cls(
            config.feature_dim,
            config.encoder_hidden,
            config.encoder_layers,
            config.encoder_cell,
            config.frame_stack,
            config.frame_stride,
            config.encoder_projection,
            config.dropout,
            config.encoder_residual,
            config.encoder_norm,
            config.encoder_feedforward,
            config.encoder_zoneout,
            config.encoder_recurrent_dropout,
        )

    def initial_layers(self, batch: int) -> State:
        """Zeros (batch, layers, size): h, and c of an LSTM."""
        zeros = self.feature_mean.new_zeros
        hidden: State = (zeros(batch, self.rnn.num_layers, self.output_dim),)
        if with_cell_state(self.cell):
            hidden += (zeros(batch, self.rnn.num_layers, self.rnn.hidden_size),)
        return hidden

    def layers(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """Runs the recurrent layers; arguments and results are those of `StackingEncoder.layers`."""
        layers_first = None if state is None else tuple(s.transpose(0, 1).contiguous() for s in state)
        out, after = run_recurrent(self.rnn, x, layers_first, lengths)
        return self.dropout(out), tuple(s.transpose(0, 1) for s in after)

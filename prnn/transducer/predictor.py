"""Predictors: what the transducer knows of the symbols it has emitted.

A predictor is a module with `output_dim`, `forward` for training and, for decoding, `initial_state` and `step`, whose
state is a tuple of tensors with the batch first, so that hypotheses are picked, copied and dropped by indexing.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

import prnn.nn
from prnn._options_text import options_text
from prnn.transducer.checks import require_at_least, require_choice
from prnn.transducer.config import CELLS, TransducerConfig

State = tuple[Tensor, ...]


class Predictor(Protocol):
    """The interface that `Transducer` wants of a predictor."""

    output_dim: int

    def __call__(self, targets: Tensor) -> Tensor:
        """Targets (N, U), int64, to outputs (N, U + 1, output_dim); output u has seen targets[:, :u]."""
        ...

    def initial_state(self, batch: int) -> State:
        """The state before any symbol; every tensor has `batch` rows."""
        ...

    def step(self, symbols: Tensor, state: State) -> tuple[Tensor, State]:
        """Symbols (B,), int64, and the state before them to outputs (B, output_dim) and the state after them."""
        ...


class RecurrentPredictor(nn.Module):
    """An embedding followed by LSTM or GRU layers (Graves 2012). The blank's embedding stands for the start.

    Args:
        vocab_size: number of symbols V, blank included.
        embedding_dim: size of a symbol's embedding.
        hidden_size: hidden size, which is output_dim.
        num_layers: number of layers.
        cell: "lstm" or "gru".
        blank: index of the blank.
        dropout: probability of dropping, on embeddings, between layers and on the output, in training.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_dim: int,
        hidden_size: int,
        num_layers: int = 1,
        cell: str = "lstm",
        blank: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_choice("cell", cell, CELLS)
        require_at_least("num_layers", num_layers, 1)
        self.cell = cell
        self.output_dim = hidden_size
        self.blank = blank
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        layer = prnn.nn.LSTM if cell == "lstm" else prnn.nn.GRU
        self.rnn = layer(
            embedding_dim, hidden_size, num_layers, batch_first=True, dropout=dropout if num_layers > 1 else 0.0
        )
        self.dropout = nn.Dropout(dropout)

    def extra_repr(self) -> str:
        return options_text(self)

    def forward(self, targets: Tensor) -> Tensor:
        """Targets (N, U), int64, to outputs (N, U + 1, output_dim)."""
        history = torch.cat([targets.new_full((targets.shape[0], 1), self.blank), targets], dim=1)
        out, _ = self.rnn(self.dropout(self.embedding(history)))
        dropped: Tensor = self.dropout(out)
        return dropped

    def initial_state(self, batch: int) -> State:
        """Zero states, (batch, layers, hidden) each: h, and c of an LSTM."""
        weight = self.embedding.weight
        zeros = weight.new_zeros(batch, self.rnn.num_layers, self.rnn.hidden_size)
        return (zeros, zeros.clone()) if self.cell == "lstm" else (zeros,)

    def step(self, symbols: Tensor, state: State) -> tuple[Tensor, State]:
        """Symbols (B,) and the state before them to outputs (B, output_dim) and the state after them."""
        layers_first = tuple(s.transpose(0, 1).contiguous() for s in state)
        hidden = layers_first if len(layers_first) == 2 else layers_first[0]
        out, after = self.rnn(self.embedding(symbols)[:, None], hidden)
        after = after if isinstance(after, tuple) else (after,)
        return out[:, 0], tuple(s.transpose(0, 1) for s in after)


class StatelessPredictor(nn.Module):
    """The sum of embeddings of the last `context` symbols, one table per position (Ghodsi et al. 2020, "RNN-Transducer
    with stateless prediction network", with more than one symbol of context). Blanks stand before the start.

    Args:
        vocab_size: number of symbols V, blank included.
        output_dim: size of the output.
        context: how many last symbols count.
        blank: index of the blank.
        dropout: probability of dropping on the output, in training.
    """

    def __init__(
        self, vocab_size: int, output_dim: int, context: int = 2, blank: int = 0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        require_at_least("context", context, 1)
        self.output_dim = output_dim
        self.blank = blank
        self.context = context
        self.embeddings = nn.ModuleList(nn.Embedding(vocab_size, output_dim) for _ in range(context))
        self.dropout = nn.Dropout(dropout)

    def extra_repr(self) -> str:
        return options_text(self)

    def forward(self, targets: Tensor) -> Tensor:
        """Targets (N, U), int64, to outputs (N, U + 1, output_dim)."""
        history = torch.cat([targets.new_full((targets.shape[0], self.context), self.blank), targets], dim=1)
        summed: Tensor = self.dropout(self.sum_embeddings(history.unfold(1, self.context, 1)))
        return summed

    def sum_embeddings(self, contexts: Tensor) -> Tensor:
        """Contexts (..., context), oldest symbol first, to (..., output_dim)."""
        total: Tensor = self.embeddings[0](contexts[..., 0])
        for position in range(1, self.context):
            total = total + self.embeddings[position](contexts[..., position])
        return total

    def initial_state(self, batch: int) -> State:
        """The last symbols, (batch, context), int64, oldest first."""
        device = next(self.parameters()).device
        return (torch.full((batch, self.context), self.blank, dtype=torch.int64, device=device),)

    def step(self, symbols: Tensor, state: State) -> tuple[Tensor, State]:
        """Symbols (B,) and the state before them to outputs (B, output_dim) and the state after them."""
        contexts = torch.cat([state[0][:, 1:], symbols[:, None]], dim=1)
        return self.sum_embeddings(contexts), (contexts,)


def build_predictor(config: TransducerConfig) -> RecurrentPredictor | StatelessPredictor:
    """The predictor that a config describes."""
    if config.predictor == "stateless":
        return StatelessPredictor(
            config.vocab_size, config.predictor_hidden, config.predictor_context, config.blank, config.dropout
        )
    return RecurrentPredictor(
        config.vocab_size,
        config.predictor_embedding,
        config.predictor_hidden,
        config.predictor_layers,
        config.predictor,
        config.blank,
        config.dropout,
    )

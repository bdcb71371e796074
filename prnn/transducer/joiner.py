"""The joiner: where encoder and predictor meet."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from prnn._options_text import options_text
from prnn.transducer.checks import require_at_least, require_choice
from prnn.transducer.config import ACTIVATIONS

_ROWS = 16


def row_stable_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """`layer(x)`, its rows padded to a multiple of 16.

    A matrix library picks its kernel by the number of rows, and another kernel rounds differently. With whole groups of
    16 rows, a row's result does not depend on how many other rows came with it, so that decoding in chunks or in
    another batch takes the same decisions (docs/transducer.md says where this was measured to hold bit for bit).

    Args:
        x: (..., in_features).

    Returns:
        (..., out_features).
    """
    rows = x.reshape(-1, x.shape[-1])
    count = rows.shape[0]
    padded = functional.pad(rows, (0, 0, 0, -count % _ROWS))
    return functional.linear(padded, layer.weight, layer.bias)[:count].reshape(*x.shape[:-1], layer.out_features)


class Joiner(nn.Module):
    """logits[n, t, u] = W activation(encoder_proj(enc[n, t]) + predictor_proj(pred[n, u])) + b (Graves et al. 2013).

    Args:
        encoder_dim: size of an encoder frame.
        predictor_dim: size of a predictor output.
        joiner_dim: size J of the common space.
        vocab_size: number of symbols V, blank included.
        activation: "tanh" or "relu".
        durations: number D of durations of a token-and-duration transducer, whose logits follow those of the symbols
            (Xu et al. 2023); 0 for others.

    Raises:
        ValueError, TypeError: naming the argument and its value.
    """

    def __init__(
        self,
        encoder_dim: int,
        predictor_dim: int,
        joiner_dim: int,
        vocab_size: int,
        activation: str = "tanh",
        durations: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("encoder_dim", encoder_dim), ("predictor_dim", predictor_dim), ("joiner_dim", joiner_dim)):
            require_at_least(name, value, 1)
        require_at_least("vocab_size", vocab_size, 2)
        require_at_least("durations", durations, 0)
        require_choice("activation", activation, ACTIVATIONS)
        self.activation = activation
        self.vocab_size = vocab_size
        self.durations = durations
        self.encoder_proj = nn.Linear(encoder_dim, joiner_dim)
        self.predictor_proj = nn.Linear(predictor_dim, joiner_dim, bias=False)
        self.output = nn.Linear(joiner_dim, vocab_size + durations)

    def extra_repr(self) -> str:
        return options_text(self)

    def activate(self, x: Tensor) -> Tensor:
        """The activation, elementwise."""
        return torch.tanh(x) if self.activation == "tanh" else torch.relu(x)

    def forward(self, encoder_out: Tensor, predictor_out: Tensor) -> Tensor:
        """The logits of every lattice cell.

        Args:
            encoder_out: (N, T, encoder_dim).
            predictor_out: (N, U + 1, predictor_dim).

        Returns:
            (N, T, U + 1, V + D).
        """
        meeting = self.encoder_proj(encoder_out)[:, :, None] + self.predictor_proj(predictor_out)[:, None]
        logits: Tensor = self.output(self.activate(meeting))
        return logits

    # Decoding projects an encoder frame once, a predictor output once per symbol, and scores their sums.

    def project_encoder(self, encoder_out: Tensor) -> Tensor:
        """(..., encoder_dim) to (..., J)."""
        return row_stable_linear(encoder_out, self.encoder_proj)

    def project_predictor(self, predictor_out: Tensor) -> Tensor:
        """(..., predictor_dim) to (..., J)."""
        return row_stable_linear(predictor_out, self.predictor_proj)

    def log_probs(self, encoder_projection: Tensor, predictor_projection: Tensor) -> Tensor:
        """Log-probabilities (..., V) of the symbols, float64, of two projections whose shapes (..., J) broadcast."""
        return self.all_log_probs(encoder_projection, predictor_projection)[0]

    def all_log_probs(self, encoder_projection: Tensor, predictor_projection: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and those of the durations (..., D), which have a softmax of their own."""
        logits = row_stable_linear(self.activate(encoder_projection + predictor_projection), self.output)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        symbols, durations = logits.split([self.vocab_size, self.durations], dim=-1)
        return torch.log_softmax(symbols, dim=-1).double(), torch.log_softmax(durations, dim=-1).double()

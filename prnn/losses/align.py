"""Best paths: when each symbol was emitted."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from prnn import _C
from prnn._ops.ctc import ctc_align, ctc_options
from prnn._ops.rnnt import rnnt_align, rnnt_options
from prnn.losses import _checks
from prnn.losses.rnnt import batch_arguments, input_kind

Lengths = Tensor | Sequence[int] | int


class Alignment(NamedTuple):
    """The most probable path of each sequence, and when it emits each symbol."""

    scores: Tensor
    """(N,), log-probability of the path; minus infinity where there is none."""
    begins: Tensor
    """(N, L) int64, the frame in which symbol i begins; -1 in padding and where there is no path."""
    ends: Tensor
    """(N, L) int64, the frame after its last; begins + 1 for RNN-T. -1 as begins."""
    token_scores: Tensor
    """(N, L), log-probability of the symbol, averaged over its frames; 0 in padding and where there is no path."""


@torch.no_grad()
def forced_align(
    activations: Tensor,
    targets: Tensor,
    input_lengths: Lengths | None = None,
    target_lengths: Lengths | None = None,
    blank: int | None = None,
    *,
    from_logits: bool = True,
    rnnt_type: str = "regular",
    delay_penalty: float = 0.0,
) -> Alignment:
    """The most probable path that gives the targets, for CTC or RNN-T by the number of dimensions.

    Args:
        activations: (N, T, V) for CTC, (N, T, L + 1, V) for RNN-T. float32, float64, or half types, which are computed
            in float32.
        targets: (N, L) symbols, 0 to V - 1 but not the blank, padded with anything.
        input_lengths: (N,) frames of each sequence; None means all T.
        target_lengths: (N,) symbols of each sequence; None means all L.
        blank: index of the blank; negative counts from V. None means that of the loss: 0 for CTC, -1 for RNN-T.
        from_logits: whether a log-softmax is applied over V; if not, activations are log-probabilities.
        rnnt_type, delay_penalty: as for `prnn.rnnt_loss`; for RNN-T alone.

    Returns:
        An `Alignment`. Of several best paths, always the same one.

    Raises:
        TypeError, ValueError: as the losses.
    """
    x = _checks.activations(activations, "activations", {3: "(N, T, V)", 4: "(N, T, L + 1, V)"})
    batch, frames, classes = x.shape[0], x.shape[1], x.shape[-1]
    symbols = _checks.integers(targets, "targets", x.device)
    if symbols.dim() != 2 or symbols.shape[0] != batch:
        raise ValueError(f"targets has the shape {tuple(symbols.shape)}; it must be ({batch}, L)")
    _checks.choice(rnnt_type, "rnnt_type", _checks.RNNT_TYPES)
    if blank is None:
        blank = 0 if x.dim() == 3 else -1
    blank = _checks.blank_index(blank, classes)
    if input_lengths is None:
        input_lengths = torch.full((batch,), frames, dtype=torch.int32, device=x.device)
    if target_lengths is None:
        target_lengths = torch.full((batch,), symbols.shape[1], dtype=torch.int32, device=x.device)
    input_lengths = _checks.lengths(input_lengths, "input_lengths", batch, x.device)
    from_logits = _checks.flag(from_logits, "from_logits")
    delay_penalty = _checks.number(delay_penalty, "delay_penalty")
    if x.dim() == 3:
        return _ctc(
            x.contiguous(),
            symbols,
            input_lengths,
            _checks.lengths(target_lengths, "target_lengths", batch, x.device),
            blank,
            from_logits,
        )
    symbols, logit_lengths, lengths = batch_arguments(
        x, symbols, input_lengths, target_lengths, names=("activations", "input_lengths")
    )
    scores, begins = rnnt_align(
        x.contiguous(),
        symbols,
        logit_lengths,
        lengths,
        *rnnt_options(
            input=input_kind(x, from_logits, False),
            rnnt_type=_checks.RNNT_TYPES.index(rnnt_type),
            blank=blank,
            delay_penalty=delay_penalty,
        ),
    )
    begins = begins.long()
    emitted = begins >= 0
    sequences = torch.arange(batch, device=x.device).unsqueeze(1)
    cells = x[sequences, begins.clamp(min=0), torch.arange(symbols.shape[1], device=x.device)]  # (N, L, V)
    cells = cells.log_softmax(2) if from_logits else cells
    token_scores = cells.gather(2, _index(symbols, classes).unsqueeze(2)).squeeze(2)
    return Alignment(scores, begins, torch.where(emitted, begins + 1, -1), token_scores.masked_fill(~emitted, 0))


def _index(symbols: Tensor, classes: int) -> Tensor:
    """Symbols with which one can index, whatever the padding holds."""
    return symbols.long().clamp(0, classes - 1)


def _ctc(
    x: Tensor, symbols: Tensor, lengths: Tensor, target_lengths: Tensor, blank: int, from_logits: bool
) -> Alignment:
    options = ctc_options(input=_C.LOSS_LOGITS if from_logits else _C.LOSS_LOG_PROBS, blank=blank)
    scores, begins, ends = ctc_align(x.transpose(0, 1), symbols, lengths, target_lengths, *options)
    begins, ends = begins.long(), ends.long()
    emitted = begins >= 0
    log_probs = x.log_softmax(2) if from_logits else x
    by_symbol = log_probs.gather(2, _index(symbols, x.shape[2])[:, None, :].expand(-1, x.shape[1], -1))  # (N, T, L)
    time = torch.arange(x.shape[1], device=x.device)[None, :, None]
    inside = (time >= begins[:, None]) & (time < ends[:, None])
    total = torch.where(inside, by_symbol, 0).sum(1)
    return Alignment(scores, begins, ends, total / torch.where(emitted, ends - begins, 1))

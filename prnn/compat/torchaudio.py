"""torchaudio's RNN-T loss and forced alignment: `from prnn.compat import torchaudio`.

`torchaudio.functional.rnnt_loss`, `torchaudio.functional.forced_align` and `torchaudio.transforms.RNNTLoss` under these
very names. Results have the dtype of the input, half types too. All three can be scripted; the program that loads them
must import prnn. Beyond the original: float64, bfloat16, half types on the CPU, batches for `forced_align`.
"""

from types import SimpleNamespace

import torch
from torch import Tensor, nn

import prnn
from prnn import _C
from prnn._options_text import options_text

__all__ = ["RNNTLoss", "forced_align", "functional", "rnnt_loss", "transforms"]


def rnnt_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = -1,
    clamp: float = -1.0,
    reduction: str = "mean",
    fused_log_softmax: bool = True,
) -> Tensor:
    """`prnn.rnnt_loss`, in the dtype of logits."""
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        loss = _scripted_rnnt_loss(
            logits, targets, logit_lengths, target_lengths, blank, clamp, reduction, fused_log_softmax
        )
    else:
        loss = prnn.rnnt_loss(
            logits, targets, logit_lengths, target_lengths, blank, clamp, reduction, fused_log_softmax
        )
    return loss.to(logits.dtype)


def _computable(activations: Tensor) -> Tensor:
    """Contiguous, and float32 in place of half types on the CPU."""
    half = activations.dtype == torch.float16 or activations.dtype == torch.bfloat16
    return (activations.float() if half and not activations.is_cuda else activations).contiguous()


def _integers(values: Tensor, beside: Tensor) -> Tensor:
    return values.to(beside.device, torch.int32).contiguous()


def _scripted_rnnt_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    clamp: float,
    reduction: str,
    fused_log_softmax: bool,
    kinds: tuple[int, int] = (_C.LOSS_LOGITS, _C.LOSS_LOG_PROBS),
) -> Tensor:
    """The operator, in what TorchScript knows; the library checks all values."""
    if reduction != "none" and reduction != "mean" and reduction != "sum":
        raise ValueError("reduction must be one of 'none', 'mean', 'sum'")
    logits = _computable(logits)
    costs = torch.ops.prnn.rnnt_loss(
        logits,
        _integers(targets, logits),
        _integers(logit_lengths, logits),
        _integers(target_lengths, logits),
        None,
        max_frames=-1,
        max_targets=-1,
        input=kinds[0] if fused_log_softmax else kinds[1],
        rnnt_type=0,  # regular
        blank=blank + logits.size(3) if blank < 0 else blank,
        blank_targets=False,
        zero_infinity=False,
        fastemit_lambda=0.0,
        clamp=clamp,
        delay_penalty=0.0,
        keep=True,
    )[0]
    if reduction == "mean":
        return costs.mean()
    return costs.sum() if reduction == "sum" else costs


class RNNTLoss(nn.Module):
    """`rnnt_loss` as a module."""

    def __init__(
        self, blank: int = -1, clamp: float = -1.0, reduction: str = "mean", fused_log_softmax: bool = True
    ) -> None:
        super().__init__()
        self.blank = blank
        self.clamp = float(clamp)
        self.reduction = reduction
        self.fused_log_softmax = fused_log_softmax

    def extra_repr(self) -> str:
        return options_text(self)

    def forward(self, logits: Tensor, targets: Tensor, logit_lengths: Tensor, target_lengths: Tensor) -> Tensor:
        return rnnt_loss(
            logits,
            targets,
            logit_lengths,
            target_lengths,
            self.blank,
            self.clamp,
            self.reduction,
            self.fused_log_softmax,
        )


def forced_align(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | None = None,
    target_lengths: Tensor | None = None,
    blank: int = 0,
) -> tuple[Tensor, Tensor]:
    """The most probable CTC path of the targets; `prnn.forced_align` says when each symbol is emitted instead.

    Args:
        log_probs: (N, T, C).
        targets: (N, L), without blanks.
        input_lengths, target_lengths: (N,); None means all T, all L.
        blank: index of the blank.

    Returns:
        The class of each frame, (N, T), dtype of targets, blank beyond a sequence's length; and its log-probability,
        (N, T), 0 there.

    Raises:
        RuntimeError: a sequence has no path: as many frames as targets, and one more between equal ones, are needed.
        ValueError: an argument is wrong.
    """
    if blank < 0:
        raise ValueError(f"blank is {blank}; it must be 0 to {log_probs.size(2) - 1}")
    if torch.jit.is_scripting():  # type: ignore[attr-defined]
        total, begins, ends = _scripted_align(log_probs, targets, input_lengths, target_lengths, blank)
    else:
        total, begins, ends, _ = prnn.forced_align(
            log_probs, targets, input_lengths, target_lengths, blank, from_logits=False
        )
    if bool(torch.isneginf(total).any()):
        sequence = int(torch.isneginf(total).nonzero()[0].item())
        raise RuntimeError(f"targets length is too long for CTC: sequence {sequence} has too few frames for a path")
    batch, frames = log_probs.size(0), log_probs.size(1)
    time = torch.arange(frames, device=log_probs.device).expand(batch, frames).contiguous()
    paths = torch.full((batch, frames), blank, dtype=targets.dtype, device=log_probs.device)
    if targets.size(1) > 0:
        begins = begins.masked_fill(begins < 0, frames)  # padding comes last
        symbol = torch.searchsorted(begins, time, right=True) - 1  # the last that has begun
        inside = (symbol >= 0) & (time < ends.gather(1, symbol.clamp(min=0)))
        paths = torch.where(inside, targets.to(paths.device).gather(1, symbol.clamp(min=0)), paths)
    scores = log_probs.gather(2, paths.long().unsqueeze(2)).squeeze(2)
    if input_lengths is not None:
        scores = scores.masked_fill(time >= input_lengths.to(time.device).unsqueeze(1), 0)
    return paths, scores


def _scripted_align(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | None,
    target_lengths: Tensor | None,
    blank: int,
    kind: int = _C.LOSS_LOG_PROBS,
) -> tuple[Tensor, Tensor, Tensor]:
    if input_lengths is None:
        input_lengths = torch.full((log_probs.size(0),), log_probs.size(1), device=log_probs.device)
    if target_lengths is None:
        target_lengths = torch.full((targets.size(0),), targets.size(1), device=targets.device)
    log_probs = _computable(log_probs)
    total, begins, ends = torch.ops.prnn.ctc_align(
        log_probs.transpose(0, 1),
        _integers(targets, log_probs),
        _integers(input_lengths, log_probs),
        _integers(target_lengths, log_probs),
        input=kind,
        blank=blank,
        zero_infinity=False,
    )
    return total, begins.long(), ends.long()


functional = SimpleNamespace(rnnt_loss=rnnt_loss, forced_align=forced_align)
transforms = SimpleNamespace(RNNTLoss=RNNTLoss)

"""The transducer losses of a batch, from encoder and predictor outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prnn.losses import (
    get_rnnt_prune_ranges,
    joint_rnnt_loss,
    joint_tdt_loss,
    rnnt_loss,
    rnnt_loss_smoothed,
    tdt_loss,
)
from prnn.transducer.joiner import Joiner

# On a CPU, logits up to this number (16 MB in float32) are sooner made whole than block by block, twice.
_MOST_LOGITS = 2**22


def _holds_logits(joiner: Joiner, encoder_out: Tensor, predictor_out: Tensor) -> bool:
    cells = encoder_out.shape[0] * encoder_out.shape[1] * predictor_out.shape[1]
    return not encoder_out.is_cuda and cells * joiner.output.out_features <= _MOST_LOGITS


def joiner_loss(
    joiner: Joiner,
    encoder_out: Tensor,
    lengths: Tensor,
    predictor_out: Tensor,
    targets: Tensor,
    target_lengths: Tensor,
    blank: int,
    fastemit: float,
    ranges: Tensor | None = None,
) -> Tensor:
    """The exact loss over all lattice cells, or over those of `ranges`, the mean over utterances, a scalar.

    The N x T x (U + 1) x V logits are held only if they are few and on a CPU; else `prnn.joint_rnnt_loss` computes the
    same without them.

    Args:
        joiner: of the model.
        encoder_out: (N, T, D).
        lengths: (N,) int64, real frames of each utterance; these and target_lengths better on the CPU, see
            `prnn.joint_rnnt_loss`.
        predictor_out: (N, U + 1, P).
        targets: (N, U) int64, valid symbols in the padding, too.
        target_lengths: (N,) int64.
        blank: index of the blank.
        fastemit: FastEmit's lambda.
        ranges: (N, T, R) int64, the cells of each frame that paths may go through; None is all.
    """
    if ranges is not None or not _holds_logits(joiner, encoder_out, predictor_out):
        return joint_rnnt_loss(
            joiner.encoder_proj(encoder_out),
            joiner.predictor_proj(predictor_out),
            joiner.output.weight,
            joiner.output.bias,
            targets,
            lengths,
            target_lengths,
            blank=blank,
            activation=joiner.activation,
            fastemit_lambda=fastemit,
            ranges=ranges,
        )
    logits = joiner(encoder_out, predictor_out)
    loss: Tensor = rnnt_loss(logits, targets, lengths, target_lengths, blank=blank, fastemit_lambda=fastemit)
    return loss


def duration_loss(
    joiner: Joiner,
    encoder_out: Tensor,
    lengths: Tensor,
    predictor_out: Tensor,
    targets: Tensor,
    target_lengths: Tensor,
    blank: int,
    fastemit: float,
    durations: tuple[int, ...],
    sigma: float,
    omega: float,
) -> Tensor:
    """The loss of a token-and-duration transducer, the mean over utterances, a scalar: `prnn.joint_tdt_loss`, or
    `prnn.tdt_loss` of the N x T x (U + 1) x (V + D) logits if they are few, on a CPU.

    Args:
        durations: (D) frames that each duration logit stands for.
        sigma: logit under-normalisation.
        omega: share of the RNN-T loss of the symbols alone.

    The other arguments are those of `joiner_loss`.
    """
    batch = targets, lengths, target_lengths, blank, durations
    if _holds_logits(joiner, encoder_out, predictor_out):
        logits = joiner(encoder_out, predictor_out)
        return tdt_loss(logits, *batch, fastemit_lambda=fastemit, sigma=sigma, omega=omega)
    return joint_tdt_loss(
        joiner.encoder_proj(encoder_out),
        joiner.predictor_proj(predictor_out),
        joiner.output.weight,
        joiner.output.bias,
        *batch,
        fastemit_lambda=fastemit,
        sigma=sigma,
        omega=omega,
        activation=joiner.activation,
    )


class SimpleJoiner(nn.Module):
    """A joiner that merely adds the logits of encoder and of predictor, whose loss needs no N x T x U x V tensor and
    tells which symbols are probable at which frame (Kuang et al. 2022).

    Args:
        encoder_dim: size of an encoder frame.
        predictor_dim: size of a predictor output.
        vocab_size: number of symbols V, blank included.
    """

    def __init__(self, encoder_dim: int, predictor_dim: int, vocab_size: int) -> None:
        super().__init__()
        self.encoder_output = nn.Linear(encoder_dim, vocab_size)
        self.predictor_output = nn.Linear(predictor_dim, vocab_size)

    def loss_and_ranges(
        self,
        encoder_out: Tensor,
        lengths: Tensor,
        predictor_out: Tensor,
        targets: Tensor,
        target_lengths: Tensor,
        blank: int,
        prune_range: int,
    ) -> tuple[Tensor, Tensor]:
        """The simple loss, the mean over utterances, and the ranges (N, T, R) of `joiner_loss`, R prune_range where
        there are as many positions, and more where fewer would leave no path.

        The other arguments are those of `joiner_loss`.
        """
        zeros = torch.zeros_like(lengths)
        boundary = torch.stack([zeros, zeros, target_lengths.to(lengths), lengths], dim=1)
        loss, (px_grad, py_grad) = rnnt_loss_smoothed(
            lm=self.predictor_output(predictor_out),
            am=self.encoder_output(encoder_out),
            symbols=targets,
            termination_symbol=blank,
            lm_only_scale=0.25,
            am_only_scale=0.0,
            boundary=boundary,
            reduction="mean",
            return_grad=True,
        )
        return loss, get_rnnt_prune_ranges(px_grad, py_grad, boundary, prune_range)

"""TDT from encoder and predictor outputs, without the N x T x U x (V + D) logits."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from prnn import _C
from prnn._ops import duration as lattice_ops
from prnn._ops import joint as ops
from prnn._ops import joint_blockwise as blockwise
from prnn.losses import _checks
from prnn.losses._module import LossModule
from prnn.losses.joint import ACTIVATIONS, Lengths, checked_dropout, checked_joiner


def joint_tdt_loss(
    encoder_out: Tensor,
    predictor_out: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    blank: int,
    durations: Sequence[int],
    reduction: str = "mean",
    fastemit_lambda: float = 0.0,
    clamp: float = -1.0,
    sigma: float = 0.0,
    omega: float = 0.0,
    *,
    activation: str = "tanh",
    dropout: float = 0.0,
    zero_infinity: bool = False,
    block_elements: int | None = None,
) -> Tensor:
    """TDT loss of the logits W act(encoder_out[n, t] + predictor_out[n, u]) + b, exactly, in bounded memory.

    The first V logits are those of the tokens, the last D those of the durations. They are made a chunk of lattice
    cells at a time, as those of `prnn.joint_rnnt_loss`, and are never held together. Costs and gradients are those of
    `prnn.tdt_loss` on the explicit logits; on a Hopper GPU gradients leave out cells with a share below 2^-30 of the
    paths. Can be differentiated once. docs/joint_rnnt_loss.md has the arithmetic.

    Args:
        encoder_out: (N, T, J). dtypes and devices as for `prnn.joint_rnnt_loss`.
        predictor_out: (N, U + 1, J).
        weight: (V + D, J), of the output layer. Two heads are given as torch.cat((tokens.weight, durations.weight)).
        bias: (V + D,), or None.
        targets: (N, U) symbols, integers from 0 to V - 1 but not the blank, padded with anything.
        logit_lengths: (N,), frames T_n of each sequence, 1 to T; on CPU and GPU as for `prnn.joint_rnnt_loss`.
        target_lengths: (N,), symbols U_n of each sequence, 0 to U.
        blank: index of the blank; negative counts from V, so that -1 is the last token.
        durations, reduction, fastemit_lambda, clamp, sigma, omega, zero_infinity: as for `prnn.tdt_loss`.
        activation: "tanh" or "relu".
        dropout: as for `prnn.joint_rnnt_loss`.
        block_elements: logits in memory at a time; None means 7/8 of 2^25 on a GPU and, on the CPU, at most 2^20, of
            cells whose activations have at most 2^19 elements.

    Returns:
        The loss, float32 (float64 for float64): (N,) for "none", else ().

    Raises:
        TypeError: an argument of another type or dtype.
        ValueError: shapes that disagree, a value out of range. The message has the value.
    """
    joiner = checked_joiner(encoder_out, predictor_out, weight, bias, activation, dropout, block_elements)
    steps = _checks.durations(durations, "durations")
    classes = joiner.layers.weight.shape[0] - len(steps)
    if classes < 1:
        raise ValueError(
            f"weight has the shape {tuple(joiner.layers.weight.shape)}; with {len(steps)} durations it must have more "
            f"rows"
        )
    _checks.choice(reduction, "reduction", _checks.REDUCTIONS)
    symbols, lengths, extents = joiner.batch(targets, logit_lengths, target_lengths)
    lattice = {
        "blank": _checks.blank_index(blank, classes),
        "sigma": _checks.number(sigma, "sigma"),
        "omega": _checks.number(omega, "omega", 0.0, 1.0),
        "fastemit_lambda": _checks.number(fastemit_lambda, "fastemit_lambda", 0.0),
        "clamp": _checks.clamp_limit(clamp),
        "zero_infinity": _checks.flag(zero_infinity, "zero_infinity"),
    }
    arrays = *joiner.tensors(), symbols, *lengths, joiner.seed()
    keep = joiner.wants_gradient()
    if symbols.device.type == "cpu":
        options = lattice_ops.duration_options(type=_C.DURATION_TDT, **lattice)
        costs = blockwise.joint_tdt_loss_blockwise(*arrays, *joiner.block_options(), steps, *options, keep)[0]
    else:
        options = ops.joint_tdt_options(**joiner.chunk_options(), **lattice)
        costs = ops.call_joint_tdt_loss(*arrays, extents, steps, *options, keep)[0]
    return _checks.reduce(costs, reduction)


class JointTDTLoss(LossModule):
    """The output layer of a joiner together with its TDT loss: `joint_tdt_loss` with the weights in it.

    Args:
        joiner_dim: J, of what encoder and predictor give.
        vocab_size: V, with the blank; the output layer has a row for each duration besides.
        blank, durations, reduction, fastemit_lambda, clamp, sigma, omega and the keywords: as for `joint_tdt_loss`;
            dropout works in training mode alone.
        bias, device, dtype: of the output layer, as torch.nn.Linear's.
    """

    def __init__(
        self,
        joiner_dim: int,
        vocab_size: int,
        blank: int,
        durations: Sequence[int],
        reduction: str = "mean",
        fastemit_lambda: float = 0.0,
        clamp: float = -1.0,
        sigma: float = 0.0,
        omega: float = 0.0,
        *,
        bias: bool = True,
        activation: str = "tanh",
        dropout: float = 0.0,
        zero_infinity: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        joiner_dim = _checks.integer(joiner_dim, "joiner_dim", 1, 2**31 - 1)
        vocab_size = _checks.integer(vocab_size, "vocab_size", 1, 2**31 - 1)
        _checks.blank_index(blank, vocab_size)
        self.vocab_size = vocab_size
        self.durations = _checks.durations(durations, "durations")
        rows = vocab_size + len(self.durations)
        self.output = nn.Linear(joiner_dim, rows, _checks.flag(bias, "bias"), device, dtype)
        self.blank, self.clamp, self.dropout = blank, clamp, checked_dropout(dropout)
        self.reduction = _checks.choice(reduction, "reduction", _checks.REDUCTIONS)
        self.activation = _checks.choice(activation, "activation", ACTIVATIONS)
        self.fastemit_lambda, self.sigma, self.omega = fastemit_lambda, sigma, omega
        self.zero_infinity = zero_infinity

    def forward(
        self,
        encoder_out: Tensor,
        predictor_out: Tensor,
        targets: Tensor,
        logit_lengths: Lengths,
        target_lengths: Lengths,
    ) -> Tensor:
        """The loss of encoder_out (N, T, J) and predictor_out (N, U + 1, J); see `joint_tdt_loss`."""
        return joint_tdt_loss(
            encoder_out,
            predictor_out,
            self.output.weight,
            self.output.bias,
            targets,
            logit_lengths,
            target_lengths,
            self.blank,
            self.durations,
            self.reduction,
            self.fastemit_lambda,
            self.clamp,
            self.sigma,
            self.omega,
            activation=self.activation,
            dropout=self.dropout if self.training else 0.0,
            zero_infinity=self.zero_infinity,
        )

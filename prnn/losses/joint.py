"""RNN-T from encoder and predictor outputs, without the N x T x U x V logits."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from prnn import _C
from prnn._ops import joint as ops
from prnn._ops import joint_blockwise as blockwise
from prnn._ops import rnnt as lattice_ops
from prnn._ops._dropout import draw_seed
from prnn.losses import _checks
from prnn.losses._module import LossModule

Lengths = Tensor | Sequence[int] | int
ACTIVATIONS = ("tanh", "relu")
_MOST_CELLS = 2**31 - 64  # of a chunk


def joint_rnnt_loss(
    encoder_out: Tensor,
    predictor_out: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = -1,
    clamp: float = -1.0,
    reduction: str = "mean",
    *,
    activation: str = "tanh",
    dropout: float = 0.0,
    fastemit_lambda: float = 0.0,
    delay_penalty: float = 0.0,
    rnnt_type: str = "regular",
    zero_infinity: bool = False,
    ranges: Tensor | None = None,
    block_elements: int | None = None,
) -> Tensor:
    """RNN-T loss of the logits W act(encoder_out[n, t] + predictor_out[n, u]) + b, exactly, in bounded memory.

    The logits are made a chunk of lattice cells at a time, forward and again backward, and are never held together:
    what stays in memory grows with N T U and not with V. Costs and gradients are those of `prnn.rnnt_loss` on the
    explicit logits; on a Hopper GPU gradients leave out cells with a share below 2^-30 of the paths. With
    `ranges` only the cells within them count, as in `prnn.rnnt_loss_pruned`. Can be differentiated once.
    docs/joint_rnnt_loss.md has the arithmetic.

    Args:
        encoder_out: (N, T, D). float32 or float64; on a GPU also half types, whose products are summed in float32, and
            under autocast it becomes one of them. Half types on the CPU are computed in float32. Products of float32
            are made in TF32 where torch allows that for matrix products (torch.backends.cuda.matmul).
        predictor_out: (N, U + 1, D).
        weight: (V, D), of the output layer.
        bias: (V,), or None.
        targets: (N, U) symbols, integers from 0 to V - 1 but not the blank, padded with anything.
        logit_lengths: (N,), frames T_n of each sequence, 1 to T. With both lengths on the CPU only real cells are
            computed; with lengths on a GPU, which are not copied to the host, padding is computed too, without effect.
        target_lengths: (N,), symbols U_n of each sequence, 0 to U.
        blank: index of the blank; negative counts from V. The default is the last, as for rnnt_loss.
        clamp: as for `prnn.rnnt_loss`: limits the gradients with respect to the logits.
        reduction: "none", "sum", or "mean" over the batch.
        activation: "tanh" or "relu".
        dropout: probability with which an element of the activation becomes zero, the others growing by
            1 / (1 - dropout). Drawn from torch's default generator of the device, and the same forward and backward.
        fastemit_lambda, delay_penalty, rnnt_type, zero_infinity: as for `prnn.rnnt_loss`.
        ranges: (N, T, R) integers from `prnn.get_rnnt_prune_ranges`: the R symbol positions, one after the other, to
            which frame t of sequence n is limited. The first of each frame counts; they must not decrease. None: all.
        block_elements: logits in memory at a time; None means 2^25 on a GPU, 2^26 of 16 bits, and, on the CPU, at most
            2^20, of cells whose activations have at most 2^19 elements. Not read on the CPU with ranges, whose logits
            are held.

    Returns:
        The loss, float32 (float64 for float64): (N,) for "none", else ().

    Raises:
        TypeError: an argument of another type or dtype.
        ValueError: shapes that disagree, a value out of range. The message has the value.
    """
    joiner = checked_joiner(encoder_out, predictor_out, weight, bias, activation, dropout, block_elements)
    encoder_out, predictor_out, weight, bias = joiner.layers
    batch, frames, _ = encoder_out.shape
    width, classes, device = predictor_out.shape[1], weight.shape[0], encoder_out.device
    _checks.choice(reduction, "reduction", _checks.REDUCTIONS)
    _checks.choice(rnnt_type, "rnnt_type", _checks.RNNT_TYPES)
    blank = _checks.blank_index(blank, classes)
    symbols, lengths, extents = joiner.batch(targets, logit_lengths, target_lengths)
    begins, kept = _checked_ranges(ranges, batch, frames, width, device)
    lattice = {
        "rnnt_type": _checks.RNNT_TYPES.index(rnnt_type),
        "blank": blank,
        "zero_infinity": _checks.flag(zero_infinity, "zero_infinity"),
        "fastemit_lambda": _checks.number(fastemit_lambda, "fastemit_lambda", 0.0),
        "clamp": _checks.clamp_limit(clamp),
        "delay_penalty": _checks.number(delay_penalty, "delay_penalty"),
    }
    keep = joiner.wants_gradient()
    if device.type == "cpu" and begins is not None:
        with torch.autocast("cpu", enabled=False):
            inputs = (
                blockwise.without_padding(encoder_out, lengths[0]),
                blockwise.without_padding(predictor_out, lengths[1] + 1),
            )
            logits = _pruned_logits(*inputs, weight, bias, begins, kept, activation, joiner.dropout)
        costs, _ = lattice_ops.rnnt_loss(
            logits,
            symbols,
            *lengths,
            begins,
            -1,
            -1,
            *lattice_ops.rnnt_options(input=_C.LOSS_LOGITS, **lattice),
            keep,
        )
        return _checks.reduce(costs, reduction)
    if device.type == "cpu":
        costs, _, _ = blockwise.joint_rnnt_loss_blockwise(
            *joiner.tensors(),
            symbols,
            *lengths,
            joiner.seed(),
            *joiner.block_options(),
            *lattice_ops.rnnt_options(input=_C.LOSS_LOGITS, **lattice),
            keep,
        )
    else:
        costs, _ = ops.call_joint_rnnt_loss(
            *joiner.tensors(),
            symbols,
            *lengths,
            begins,
            joiner.seed(),
            extents,
            kept,
            *ops.joint_options(**joiner.chunk_options(), **lattice),
            keep,
        )
    return _checks.reduce(costs, reduction)


class Joiner(NamedTuple):
    """A joiner's checked tensors and options, as a loss is given them."""

    layers: "_Layers"
    activation: int
    dropout: float
    block_elements: int | None

    def batch(
        self, targets: object, logit_lengths: object, target_lengths: object
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """targets (N, U), and the lengths as _lengths gives them."""
        encoder_out, predictor_out = self.layers.encoder_out, self.layers.predictor_out
        batch, frames, _ = encoder_out.shape
        width, device = predictor_out.shape[1], encoder_out.device
        symbols = _checks.integers(targets, "targets", device)
        if symbols.dim() != 2 or symbols.shape[0] != batch:
            raise ValueError(
                f"targets has the shape {tuple(symbols.shape)}; it must be ({batch}, U), with U {width - 1}"
            )
        if symbols.shape[1] != width - 1:
            raise ValueError(
                f"predictor_out has the shape {tuple(predictor_out.shape)} and targets {tuple(symbols.shape)}; the "
                f"second size of predictor_out must be U + 1, here {symbols.shape[1] + 1}"
            )
        return symbols, *_lengths(logit_lengths, target_lengths, batch, frames, width - 1, device)

    def wants_gradient(self) -> bool:
        return any(_checks.wants_gradient(x) for x in self.layers if x is not None)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The layers as the operators of their device take them."""
        encoder_out, predictor_out, weight, bias = self.layers
        if bias is not None and encoder_out.device.type != "cpu":
            bias = bias.to(torch.float64 if encoder_out.dtype == torch.float64 else torch.float32).contiguous()
        return encoder_out.contiguous(), predictor_out.contiguous(), weight.contiguous(), bias

    def seed(self) -> Tensor | None:
        return draw_seed(self.layers.encoder_out.device) if self.dropout > 0 else None

    def block_options(self) -> tuple[int, float, int]:
        """Activation, dropout and block elements, as the operators of the CPU take them. By default the activation of a
        block fits a CPU's caches, and has work for some threads."""
        rows, size = self.layers.weight.shape
        default = min(2**20, max(1, 2**19 // size) * rows)
        return self.activation, self.dropout, default if self.block_elements is None else self.block_elements

    def chunk_options(self) -> dict[str, int | float]:
        """Activation, dropout and cells of a chunk, as the operators of a GPU take them."""
        cells = 0
        if self.block_elements is not None:
            cells = min(max(1, self.block_elements // self.layers.weight.shape[0]), _MOST_CELLS)
        return {"activation": self.activation, "dropout": self.dropout, "chunk_cells": cells}


def checked_joiner(
    encoder_out: object,
    predictor_out: object,
    weight: object,
    bias: object,
    activation: str,
    dropout: object,
    block_elements: object,
) -> Joiner:
    layers = _checked_layers(encoder_out, predictor_out, weight, bias)
    _checks.choice(activation, "activation", ACTIVATIONS)
    if block_elements is not None:
        block_elements = _checks.integer(block_elements, "block_elements", 1, 2**63 - 1)
    return Joiner(layers, ACTIVATIONS.index(activation), checked_dropout(dropout), block_elements)


def checked_dropout(dropout: object) -> float:
    result = _checks.number(dropout, "dropout")
    if not 0 <= result < 1:
        raise ValueError(f"dropout is {dropout}; it must be at least 0 and below 1")
    return result


def _checked_ranges(
    ranges: object, batch: int, frames: int, width: int, device: torch.device
) -> tuple[Tensor | None, int]:
    """The first symbol position of each frame, (N, T), and how many there are."""
    if ranges is None:
        return None, 0
    positions = _checks.integers(ranges, "ranges", device)
    if positions.dim() != 3 or positions.shape[:2] != (batch, frames) or not 1 <= positions.shape[2] <= width:
        raise ValueError(
            f"ranges has the shape {tuple(positions.shape)}; it must be ({batch}, {frames}, R) with R from 1 to {width}"
        )
    return positions[:, :, 0].contiguous(), positions.shape[2]


def _pruned_logits(
    encoder_out: Tensor,
    predictor_out: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    begins: Tensor,
    kept: int,
    activation: str,
    dropout: float,
) -> Tensor:
    """(N, T, R, V). Positions past the last, which no path goes through, repeat it."""
    positions = (
        (begins[:, :, None] + torch.arange(kept, device=begins.device)).clamp(0, predictor_out.shape[1] - 1).long()
    )
    rows = positions.flatten(1)[:, :, None].expand(-1, -1, predictor_out.shape[2])
    meeting = encoder_out[:, :, None] + predictor_out.gather(1, rows).view(*positions.shape, -1)
    active = torch.dropout(meeting.tanh() if activation == "tanh" else meeting.relu(), dropout, True)
    return nn.functional.linear(active, weight, bias)


class _Layers(NamedTuple):
    encoder_out: Tensor
    predictor_out: Tensor
    weight: Tensor
    bias: Tensor | None


def _checked_layers(encoder_out: object, predictor_out: object, weight: object, bias: object) -> _Layers:
    encoder = _checks.activations(encoder_out, "encoder_out", {3: "(N, T, D)"})
    predictor = _checks.activations(predictor_out, "predictor_out", {3: "(N, U + 1, D)"})
    matrix = _checks.activations(weight, "weight", {2: "(V, D)"})
    vector = None if bias is None else _checks.activations(bias, "bias", {1: "(V,)"})
    batch, _, size = encoder.shape
    for name, value, wanted in (
        ("predictor_out", predictor, (batch, predictor.shape[1], size)),
        ("weight", matrix, (matrix.shape[0], size)),
        ("bias", vector, (matrix.shape[0],)),
    ):
        if value is None:
            continue
        if value.shape != wanted:
            raise ValueError(
                f"{name} has the shape {tuple(value.shape)}; with encoder_out {tuple(encoder.shape)} and weight "
                f"{tuple(matrix.shape)} it must be {wanted}"
            )
        if value.device != encoder.device:
            raise ValueError(f"{name} is on {value.device}; encoder_out is on {encoder.device}")
    device = encoder.device.type
    if device == "cuda" and torch.is_autocast_enabled(device) and encoder.dtype != torch.float64:
        half = torch.get_autocast_dtype(device)
        encoder, predictor, matrix = (x.to(half) for x in (encoder, predictor, matrix))
    for name, value in (("predictor_out", predictor), ("weight", matrix)):
        if value.dtype != encoder.dtype:
            raise TypeError(f"{name} is of {value.dtype}; encoder_out is of {encoder.dtype}")
    if vector is not None and device == "cpu":  # of any real type, as on a GPU
        vector = vector.to(encoder.dtype)
    return _Layers(encoder, predictor, matrix, vector)


def _lengths(
    logit_lengths: object, target_lengths: object, batch: int, frames: int, symbols: int, device: torch.device
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Both lengths on the device, and, (2, N) on the CPU, how many frames and symbols of each sequence are computed,
    at least. Out-of-range lengths are left to the lattice, which refuses them."""
    values = ((logit_lengths, "logit_lengths", frames), (target_lengths, "target_lengths", symbols))
    on_host = [not isinstance(value, Tensor) or value.device.type == "cpu" for value, _, _ in values]
    if all(on_host) and device.type != "meta":
        host = torch.device("cpu")
        rows = torch.stack([_checks.lengths(value, name, batch, host) for value, name, _ in values])
        return rows.to(device, non_blocking=True).unbind(), rows  # one transfer of both
    lengths = tuple(_checks.lengths(value, name, batch, device) for value, name, _ in values)
    bounds = [
        _checks.lengths(value, name, batch, torch.device("cpu"))
        if host
        else torch.full((batch,), most, dtype=torch.int32, device="cpu")
        for (value, name, most), host in zip(values, on_host, strict=True)
    ]
    return lengths, torch.stack(bounds)


class JointRNNTLoss(LossModule):
    """The output layer of a joiner together with its RNN-T loss: `joint_rnnt_loss` with the weights in it.

    Args:
        joiner_dim: D, of what encoder and predictor give.
        vocab_size: V, with the blank.
        blank, clamp, reduction and the keywords: as for `joint_rnnt_loss`; dropout works in training mode alone.
        bias, device, dtype: of the output layer, as torch.nn.Linear's.
    """

    def __init__(
        self,
        joiner_dim: int,
        vocab_size: int,
        blank: int = -1,
        clamp: float = -1.0,
        reduction: str = "mean",
        *,
        bias: bool = True,
        activation: str = "tanh",
        dropout: float = 0.0,
        fastemit_lambda: float = 0.0,
        delay_penalty: float = 0.0,
        rnnt_type: str = "regular",
        zero_infinity: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        joiner_dim = _checks.integer(joiner_dim, "joiner_dim", 1, 2**31 - 1)
        vocab_size = _checks.integer(vocab_size, "vocab_size", 1, 2**31 - 1)
        _checks.blank_index(blank, vocab_size)
        self.output = nn.Linear(joiner_dim, vocab_size, _checks.flag(bias, "bias"), device, dtype)
        self.blank, self.clamp, self.dropout = blank, clamp, checked_dropout(dropout)
        self.reduction = _checks.choice(reduction, "reduction", _checks.REDUCTIONS)
        self.activation = _checks.choice(activation, "activation", ACTIVATIONS)
        self.rnnt_type = _checks.choice(rnnt_type, "rnnt_type", _checks.RNNT_TYPES)
        self.fastemit_lambda, self.delay_penalty = fastemit_lambda, delay_penalty
        self.zero_infinity = zero_infinity

    def forward(
        self,
        encoder_out: Tensor,
        predictor_out: Tensor,
        targets: Tensor,
        logit_lengths: Lengths,
        target_lengths: Lengths,
        *,
        ranges: Tensor | None = None,
    ) -> Tensor:
        """The loss of encoder_out (N, T, D) and predictor_out (N, U + 1, D); see `joint_rnnt_loss`."""
        return joint_rnnt_loss(
            encoder_out,
            predictor_out,
            self.output.weight,
            self.output.bias,
            targets,
            logit_lengths,
            target_lengths,
            self.blank,
            self.clamp,
            self.reduction,
            activation=self.activation,
            dropout=self.dropout if self.training else 0.0,
            fastemit_lambda=self.fastemit_lambda,
            delay_penalty=self.delay_penalty,
            rnnt_type=self.rnnt_type,
            zero_infinity=self.zero_infinity,
            ranges=ranges,
        )

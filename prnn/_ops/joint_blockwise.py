"""RNN-T and TDT with their joiner as torch operators, for the CPU; prnn/losses/ calls them. They check the values of
lengths and targets, before anything is computed.

The lattice is cut into blocks. Forward, each block's logits give the log-probabilities of the blank, of the next target
and of TDT's durations in every cell, which the loss's recursion turns into costs and into the probabilities ("shares")
with which a path takes each of them. Backward, each block's logits are made again, and the shares make their gradients.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prnn import _C
from prnn._ops import duration, rnnt
from prnn._ops._operator import differentiate, operator


def without_padding(x: Tensor, lengths: Tensor) -> Tensor:
    """x (N, T, D) with zeros from frame lengths[n] on. A product of a NaN or infinity that padding may hold with a
    gradient of zero would be NaN."""
    padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
    return x.masked_fill(padding[:, :, None], 0)


def _require_lengths(lengths: list[int], name: str, least: int, most: int) -> None:
    for n, length in enumerate(lengths):
        if not least <= length <= most:
            raise ValueError(f"{name}[{n}] is {length}; it must be {least} to {most}")


def _require_targets(targets: Tensor, lengths: Tensor, classes: int, blank: int) -> None:
    """As libprnn checks those of prnn.rnnt_loss."""
    own = torch.arange(targets.shape[1], device=lengths.device) < lengths[:, None]
    for n, i in (own & ((targets < 0) | (targets >= classes) | (targets == blank))).nonzero().tolist():
        symbol = int(targets[n, i])
        found = f"the blank, {symbol}, at position {i}" if symbol == blank else f"{symbol} at position {i}"
        accepted = "" if symbol == blank else f"; it must be 0 to {classes - 1}"
        raise ValueError(f"targets of sequence {n} hold {found}{accepted}")


class _Block(NamedTuple):
    """Sequences, frames and symbol positions that are computed together."""

    number: int
    sequences: slice
    frames: slice
    width: int

    @property
    def cells(self) -> tuple[slice, slice, slice]:
        return self.sequences, self.frames, slice(0, self.width)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.sequences.stop - self.sequences.start, self.frames.stop - self.frames.start, self.width


def _tanh_(x: Tensor) -> Tensor:
    """tanh, in place; of float32 and float64 to about the spacing of numbers near 1, since torch's sigmoid takes a
    fifth of the time of its tanh."""
    if x.dtype.itemsize < 4:
        return x.tanh_()
    return x.mul_(2).sigmoid_().mul_(2).sub_(1)


class _Joiner(NamedTuple):
    """Encoder and predictor outputs without what padding holds, and the output layer."""

    encoder: Tensor
    predictor: Tensor
    weight: Tensor
    bias: Tensor | None
    activation: int
    dropout: float
    seed: int  # not read without dropout

    @staticmethod
    def make(
        encoder: Tensor,
        predictor: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        frames: Tensor,
        symbols: Tensor,
        activation: int,
        dropout: float,
        seed: Tensor | None,
    ) -> "_Joiner":
        kept = None if bias is None else bias.to(torch.promote_types(bias.dtype, torch.float32))
        inputs = without_padding(encoder, frames), without_padding(predictor, symbols + 1)
        return _Joiner(*inputs, weight, kept, activation, dropout, 0 if seed is None else int(seed))

    def activations(self, block: _Block) -> tuple[Tensor, Tensor | None]:
        """act(encoder + predictor) of a block, (cells, D), after dropout, and the factors of the dropout."""
        meeting = (
            self.encoder[block.sequences, block.frames, None] + self.predictor[block.sequences, None, : block.width]
        ).flatten(0, 2)
        active = _tanh_(meeting) if self.activation == 0 else meeting.relu_()
        if self.dropout == 0:
            return active, None
        generator = torch.Generator(active.device).manual_seed(self.seed + block.number)
        kept = torch.rand(active.shape, generator=generator, device=active.device) >= self.dropout
        factors = kept.to(active.dtype) / (1 - self.dropout)
        return active * factors, factors

    def logits(self, active: Tensor) -> Tensor:
        """(cells, V), float32 for half types."""
        result = active @ self.weight.t()
        return result if self.bias is None else result.add_(self.bias)

    def through_activation(self, gradients: Tensor, active: Tensor, factors: Tensor | None) -> Tensor:
        """Gradients (cells, D) with respect to what the activation is applied to, from those with respect to
        `activations`, which may be overwritten."""
        if factors is not None:
            gradients = gradients.mul_(factors)
            active = torch.where(factors > 0, active * (1 - self.dropout), 0)
        if self.activation == 0:
            return torch.ops.aten.tanh_backward(gradients, active)
        return torch.ops.aten.threshold_backward(gradients, active, 0)


def _labels(targets: Tensor, block: _Block, classes: int) -> Tensor:
    """(b, width): the next target of each symbol position, something valid in padding and after the last."""
    labels = torch.nn.functional.pad(targets[block.sequences].long(), (0, 1))[:, : block.width]
    return labels.clamp(0, classes - 1)


def _blocks(frames: list[int], symbols: list[int], cells: int) -> Iterator[_Block]:
    """Cuts the lattices into blocks of about `cells` cells: several short sequences, or frames of a long one."""
    number, begin = 0, 0
    while begin < len(frames):
        end, longest, widest = begin + 1, frames[begin], symbols[begin] + 1
        while end < len(frames):
            next_longest, next_widest = max(longest, frames[end]), max(widest, symbols[end] + 1)
            if (end + 1 - begin) * next_longest * next_widest > cells:
                break
            end, longest, widest = end + 1, next_longest, next_widest
        step = max(1, cells // ((end - begin) * widest))
        for first in range(0, longest, step):
            yield _Block(number, slice(begin, end), slice(first, min(first + step, longest)), widest)
            number += 1
        begin = end


def _block_cells(block_elements: int, classes: int) -> int:
    return max(1, block_elements // classes)


_TENSORS = (
    "Tensor encoder, Tensor predictor, Tensor weight, Tensor? bias, Tensor targets, Tensor frames, Tensor symbols, "
    "Tensor? seed"
)


def _softmaxes(durations: int) -> int:
    return 2 if durations > 0 else 1


class _Blockwise:
    """A loss as two operators. They take the tensors of _TENSORS; activation, dropout and block_elements; and the
    loss's own options, of which `find` tells blank, clamp and the number of duration logits, which follow the tokens'.
    costs_of(scores, targets, frames, symbols, keep, *options): costs (N,) of the log-probabilities of blank, label and
    durations, (N, T, U + 1, 2 + D), and their shares unless keep is False.
    """

    def __init__(
        self,
        name: str,
        options: str,
        find: Callable[..., tuple[int, float, int]],
        costs_of: Callable[..., tuple[Tensor, Tensor | None]],
    ) -> None:
        numbers = f"int activation, float dropout, int block_elements, {options}"
        self.name, self.find, self.costs_of = name, find, costs_of
        self.operator = operator(
            f"{name}({_TENSORS}, {numbers}, bool keep) -> (Tensor, Tensor, Tensor)", self._forward, self._forward_fake
        )
        self.backward = operator(
            f"{name}_backward(Tensor cost_gradients, {_TENSORS}, Tensor normalisers, Tensor shares, {numbers}) -> "
            "(Tensor, Tensor, Tensor, Tensor)",
            self._backward,
            _backward_fake,
        )
        differentiate(self.operator, self._setup, self._gradients, self.backward)

    def _forward(
        self,
        encoder: Tensor,
        predictor: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        frames: Tensor,
        symbols: Tensor,
        seed: Tensor | None,
        activation: int,
        dropout: float,
        block_elements: int,
        *rest: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Costs (N,), the log-normalisers of tokens and of durations (N, T, U + 1, 1 or 2) and the shares (N, T, U + 1,
        2 + D); the last two are empty unless `keep`."""
        options, keep = rest[:-1], rest[-1]
        blank, _, durations = self.find(*options)
        batch, longest, _ = encoder.shape
        width, rows = predictor.shape[1], weight.shape[0]
        classes = rows - durations
        lengths = frames.tolist(), symbols.tolist()
        _require_lengths(lengths[0], "logit_lengths", 1, longest)
        _require_lengths(lengths[1], "target_lengths", 0, width - 1)
        _require_targets(targets, symbols, classes, blank)
        with torch.autocast(encoder.device.type, enabled=False):
            joiner = _Joiner.make(encoder, predictor, weight, bias, frames, symbols, activation, dropout, seed)
            real = torch.promote_types(encoder.dtype, torch.float32)
            cells = (batch, longest, width)
            scores = encoder.new_zeros((*cells, 2 + durations), dtype=real)
            normalisers = encoder.new_zeros((*cells, _softmaxes(durations)) if keep else 0, dtype=real)
            for block in _blocks(*lengths, _block_cells(block_elements, rows)):
                logits = joiner.logits(joiner.activations(block)[0]).view(*block.shape, rows)
                where = block.cells
                parts = logits.split([classes, durations], -1)
                tokens = parts[0]
                labels = _labels(targets, block, classes)[:, None, :, None].expand(-1, block.shape[1], -1, 1)
                part = scores[where]
                found = [x.logsumexp(-1) for x in parts if x.shape[-1] > 0]
                part[..., 0] = tokens[..., blank] - found[0]
                part[..., 1] = tokens.gather(3, labels).squeeze(3) - found[0]
                if durations > 0:
                    part[..., 2:] = parts[1] - found[1][..., None]
                if keep:
                    normalisers[where] = torch.stack(found, -1)
            costs, shares = self.costs_of(scores, targets, frames, symbols, keep, *options)
        return costs, normalisers, scores.new_empty(0) if shares is None else shares

    def _forward_fake(self, encoder: Tensor, predictor: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        options, keep = rest[9:-1], rest[-1]
        durations = self.find(*options)[2]
        cells = (encoder.shape[0], encoder.shape[1], predictor.shape[1])
        real = torch.promote_types(encoder.dtype, torch.float32)
        return (
            encoder.new_empty(encoder.shape[0], dtype=real),
            encoder.new_empty((*cells, _softmaxes(durations)) if keep else 0, dtype=real),
            encoder.new_empty((*cells, 2 + durations) if keep else 0, dtype=real),
        )

    def _backward(
        self,
        cost_gradients: Tensor,
        encoder: Tensor,
        predictor: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        frames: Tensor,
        symbols: Tensor,
        seed: Tensor | None,
        normalisers: Tensor,
        shares: Tensor,
        activation: int,
        dropout: float,
        block_elements: int,
        *options: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of encoder, predictor, weight and bias (empty without one)."""
        blank, clamp, durations = self.find(*options)
        with torch.autocast(encoder.device.type, enabled=False):
            joiner = _Joiner.make(encoder, predictor, weight, bias, frames, symbols, activation, dropout, seed)
            rows, real = weight.shape[0], normalisers.dtype
            classes = rows - durations
            lengths = frames.tolist(), symbols.tolist()
            encoder_gradients = torch.zeros_like(encoder)
            predictor_gradients = torch.zeros_like(predictor, dtype=real)
            weight_gradients = torch.zeros_like(weight, dtype=real)
            bias_gradients = torch.zeros(0 if bias is None else rows, dtype=real, device=weight.device)
            for block in _blocks(*lengths, _block_cells(block_elements, rows)):
                active, factors = joiner.activations(block)
                share = shares[block.cells]
                # d cost / d logits = softmax (sum of the shares) - shares, for the tokens and for the durations
                gradients = joiner.logits(active).view(*block.shape, rows)
                parts = gradients.split([classes, durations], -1)
                for i, own in enumerate(share.split([2, durations], -1)[: _softmaxes(durations)]):
                    total = own.sum(-1, keepdim=True)
                    parts[i].sub_(normalisers[block.cells][..., i : i + 1]).exp_().mul_(total)
                labels = _labels(targets, block, classes)[:, None, :, None].expand(-1, block.shape[1], -1, 1)
                gradients[..., blank] -= share[..., 0]
                gradients.scatter_add_(3, labels, -share[..., 1:2])
                parts[1].sub_(share[..., 2:])
                if clamp > 0:
                    gradients.clamp_(-clamp, clamp)
                gradients.mul_(cost_gradients[block.sequences, None, None, None])
                gradients = gradients.flatten(0, 2)
                if bias is not None:
                    bias_gradients += gradients.sum(0)
                gradients = gradients.to(encoder.dtype)
                weight_gradients += gradients.t() @ active
                meeting = joiner.through_activation(gradients @ weight, active, factors).view(*block.shape, -1)
                encoder_gradients[block.sequences, block.frames] = meeting.sum(2).to(encoder.dtype)
                predictor_gradients[block.sequences, : block.width] += meeting.sum(1)
            return (
                encoder_gradients,
                predictor_gradients.to(predictor.dtype),
                weight_gradients.to(weight.dtype),
                bias_gradients if bias is None else bias_gradients.to(bias.dtype),
            )

    @staticmethod
    def _setup(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.numbers, ctx.keep = inputs[8:-1], inputs[-1]
        ctx.save_for_backward(*inputs[:8], *outputs[1:])

    def _gradients(self, ctx: Any, cost_gradients: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.keep:
            raise RuntimeError(f"prnn::{self.name} was called with keep=False; its gradient needs keep=True")
        gradients = self.backward(cost_gradients, *ctx.saved_tensors, *ctx.numbers)
        bias_gradients = gradients[3] if gradients[3].numel() > 0 else None
        return *gradients[:3], bias_gradients, *(None,) * (5 + len(ctx.numbers))


def _backward_fake(
    cost_gradients: Tensor, encoder: Tensor, predictor: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    normalisers = rest[4]
    return (
        torch.empty_like(encoder),
        torch.empty_like(predictor),
        torch.empty_like(weight),
        normalisers.new_empty(0) if bias is None else torch.empty_like(bias),
    )


def _find_rnnt(*options: Any) -> tuple[int, float, int]:
    named = rnnt.rnnt_options.named(options)
    return named["blank"], named["clamp"], 0


# Options of the recursions over gathered log-probabilities; clamp is applied later, to the gradients of the logits.
_GATHERED = {"input": _C.LOSS_GATHERED, "blank": 0, "clamp": 0.0}


def _rnnt_costs(
    scores: Tensor, targets: Tensor, frames: Tensor, symbols: Tensor, keep: bool, *options: Any
) -> tuple[Tensor, Tensor | None]:
    gathered = rnnt.rnnt_options(**{**rnnt.rnnt_options.named(options), **_GATHERED})
    arrays = scores, targets, frames, symbols, None
    costs, reserve = rnnt.rnnt_loss(*arrays, -1, -1, *gathered, keep)
    if not keep:
        return costs, None
    return costs, rnnt.rnnt_loss_backward(torch.ones_like(costs), *arrays, reserve, -1, -1, *gathered).neg_()


def _find_tdt(durations: list[int], *options: Any) -> tuple[int, float, int]:
    named = duration.duration_options.named(options)
    return named["blank"], named["clamp"], len(durations)


def _tdt_costs(
    scores: Tensor, targets: Tensor, frames: Tensor, symbols: Tensor, keep: bool, durations: list[int], *options: Any
) -> tuple[Tensor, Tensor | None]:
    gathered = duration.duration_options(**{**duration.duration_options.named(options), **_GATHERED})
    arrays = scores, None, targets, frames, symbols
    costs, reserve = duration.duration_rnnt_loss(*arrays, durations, *gathered, keep)
    if not keep:
        return costs, None
    shares, _ = duration.duration_rnnt_loss_backward(torch.ones_like(costs), *arrays, reserve, durations, *gathered)
    return costs, shares.neg_()


_rnnt = _Blockwise("joint_rnnt_loss_blockwise", rnnt.rnnt_options.schema, _find_rnnt, _rnnt_costs)
joint_rnnt_loss_blockwise, joint_rnnt_loss_blockwise_backward = _rnnt.operator, _rnnt.backward

_tdt = _Blockwise(
    "joint_tdt_loss_blockwise", f"int[] durations, {duration.duration_options.schema}", _find_tdt, _tdt_costs
)
joint_tdt_loss_blockwise, joint_tdt_loss_blockwise_backward = _tdt.operator, _tdt.backward

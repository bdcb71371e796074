"""RNN-T with its joiner as torch operators, for the CPU; prnn/losses/joint.py calls them. They check the values of
lengths and targets, before anything is computed.

The lattice is cut into blocks. Forward, each block's logits give the log-probabilities of the blank and of the next
target in every cell, which the RNN-T recursion turns into costs and into the probabilities ("shares") with which a path
takes a cell's arcs. Backward, each block's logits are made again, and the shares make their gradients.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prnn import _C
from prnn._ops import rnnt
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
    def shape(self) -> tuple[int, int, int]:
        return self.sequences.stop - self.sequences.start, self.frames.stop - self.frames.start, self.width


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
        )
        active = torch.tanh(meeting) if self.activation == 0 else torch.relu(meeting)
        active = active.flatten(0, 2)
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

    def slope(self, active: Tensor, factors: Tensor | None) -> Tensor:
        """The derivative of the activation, with the dropout's factors."""
        if factors is None:
            return 1 - active * active if self.activation == 0 else (active > 0).to(active.dtype)
        if self.activation == 1:
            return (active > 0).to(active.dtype) * factors
        before = torch.where(factors > 0, active * (1 - self.dropout), 0)
        return (1 - before * before) * factors


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


def _joint_rnnt_loss_blockwise(
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
    """rest: rnnt.rnnt_options, and `keep`. Costs (N,), the log-normalisers (N, T, U + 1) and the shares of blank and
    label (N, T, U + 1, 2); the last two are empty unless `keep`."""
    options, keep = rnnt.rnnt_options.named(rest[:-1]), rest[-1]
    blank = options["blank"]
    batch, longest, _ = encoder.shape
    width, classes = predictor.shape[1], weight.shape[0]
    lengths = frames.tolist(), symbols.tolist()
    _require_lengths(lengths[0], "logit_lengths", 1, longest)
    _require_lengths(lengths[1], "target_lengths", 0, width - 1)
    _require_targets(targets, symbols, classes, blank)
    with torch.autocast(encoder.device.type, enabled=False):
        joiner = _Joiner.make(encoder, predictor, weight, bias, frames, symbols, activation, dropout, seed)
        real = torch.promote_types(encoder.dtype, torch.float32)
        scores = torch.zeros((batch, longest, width, 2), dtype=real, device=encoder.device)
        normalisers = torch.zeros((batch, longest, width) if keep else 0, dtype=real, device=encoder.device)
        for block in _blocks(*lengths, _block_cells(block_elements, classes)):
            logits = joiner.logits(joiner.activations(block)[0])
            normaliser = logits.logsumexp(1).view(block.shape)
            logits = logits.view(*block.shape, classes)
            labels = _labels(targets, block, classes)[:, None, :, None].expand(-1, block.shape[1], -1, 1)
            part = scores[block.sequences, block.frames, : block.width]
            part[..., 0] = logits[..., blank] - normaliser
            part[..., 1] = logits.gather(3, labels).squeeze(3) - normaliser
            if keep:
                normalisers[block.sequences, block.frames, : block.width] = normaliser
        # The clamp is for the gradients of the logits.
        gathered = rnnt.rnnt_options(**{**options, "input": _C.LOSS_GATHERED, "blank": 0, "clamp": 0.0})
        arrays = scores, targets, frames, symbols, None
        costs, reserve = rnnt.rnnt_loss(*arrays, -1, -1, *gathered, keep)
        if not keep:
            return costs, normalisers, scores.new_empty(0)
        shares = rnnt.rnnt_loss_backward(torch.ones_like(costs), *arrays, reserve, -1, -1, *gathered)
        return costs, normalisers, shares.neg_()


def _joint_rnnt_loss_blockwise_fake(encoder: Tensor, predictor: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    keep = rest[-1]
    cells = (encoder.shape[0], encoder.shape[1], predictor.shape[1])
    real = torch.promote_types(encoder.dtype, torch.float32)
    return (
        encoder.new_empty(encoder.shape[0], dtype=real),
        encoder.new_empty(cells if keep else 0, dtype=real),
        encoder.new_empty((*cells, 2) if keep else 0, dtype=real),
    )


def _joint_rnnt_loss_blockwise_backward(
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
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of encoder, predictor, weight and bias (empty without one)."""
    options = rnnt.rnnt_options.named(rest)
    blank, clamp = options["blank"], options["clamp"]
    with torch.autocast(encoder.device.type, enabled=False):
        joiner = _Joiner.make(encoder, predictor, weight, bias, frames, symbols, activation, dropout, seed)
        classes, real = weight.shape[0], normalisers.dtype
        lengths = frames.tolist(), symbols.tolist()
        encoder_gradients = torch.zeros_like(encoder)
        predictor_gradients = torch.zeros_like(predictor, dtype=real)
        weight_gradients = torch.zeros_like(weight, dtype=real)
        bias_gradients = torch.zeros(0 if bias is None else classes, dtype=real, device=weight.device)
        for block in _blocks(*lengths, _block_cells(block_elements, classes)):
            active, factors = joiner.activations(block)
            where = (block.sequences, block.frames, slice(0, block.width))
            share = shares[where]
            both = share.sum(-1)
            # d cost / d logits = softmax (b + l) - [blank] b - [label] l
            gradients = joiner.logits(active).view(*block.shape, classes)
            gradients.sub_(normalisers[where][..., None]).exp_().mul_(both[..., None])
            labels = _labels(targets, block, classes)[:, None, :, None].expand(-1, block.shape[1], -1, 1)
            gradients[..., blank] -= share[..., 0]
            gradients.scatter_add_(3, labels, -share[..., 1:])
            if clamp > 0:
                gradients.clamp_(-clamp, clamp)
            gradients.mul_(cost_gradients[block.sequences, None, None, None])
            gradients = gradients.flatten(0, 2)
            if bias is not None:
                bias_gradients += gradients.sum(0)
            gradients = gradients.to(encoder.dtype)
            weight_gradients += gradients.t() @ active
            meeting = (gradients @ weight).mul_(joiner.slope(active, factors)).view(*block.shape, -1)
            encoder_gradients[block.sequences, block.frames] = meeting.sum(2).to(encoder.dtype)
            predictor_gradients[block.sequences, : block.width] += meeting.sum(1)
        return (
            encoder_gradients,
            predictor_gradients.to(predictor.dtype),
            weight_gradients.to(weight.dtype),
            bias_gradients if bias is None else bias_gradients.to(bias.dtype),
        )


def _joint_rnnt_loss_blockwise_backward_fake(
    cost_gradients: Tensor, encoder: Tensor, predictor: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    normalisers = rest[4]
    return (
        torch.empty_like(encoder),
        torch.empty_like(predictor),
        torch.empty_like(weight),
        normalisers.new_empty(0) if bias is None else torch.empty_like(bias),
    )


_TENSORS = (
    "Tensor encoder, Tensor predictor, Tensor weight, Tensor? bias, Tensor targets, Tensor frames, Tensor symbols, "
    "Tensor? seed"
)
_NUMBERS = f"int activation, float dropout, int block_elements, {rnnt.rnnt_options.schema}"
joint_rnnt_loss_blockwise = operator(
    f"joint_rnnt_loss_blockwise({_TENSORS}, {_NUMBERS}, bool keep) -> (Tensor, Tensor, Tensor)",
    _joint_rnnt_loss_blockwise,
    _joint_rnnt_loss_blockwise_fake,
)
joint_rnnt_loss_blockwise_backward = operator(
    f"joint_rnnt_loss_blockwise_backward(Tensor cost_gradients, {_TENSORS}, Tensor normalisers, Tensor shares, "
    f"{_NUMBERS}) -> (Tensor, Tensor, Tensor, Tensor)",
    _joint_rnnt_loss_blockwise_backward,
    _joint_rnnt_loss_blockwise_backward_fake,
)


def _setup(ctx: Any, inputs: tuple[Any, ...], outputs: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.numbers, ctx.keep = inputs[8:-1], inputs[-1]
    ctx.save_for_backward(*inputs[:8], *outputs[1:])


def _gradients(ctx: Any, cost_gradients: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    if not ctx.keep:
        raise RuntimeError("prnn::joint_rnnt_loss_blockwise was called with keep=False; its gradient needs keep=True")
    gradients = joint_rnnt_loss_blockwise_backward(cost_gradients, *ctx.saved_tensors, *ctx.numbers)
    bias_gradients = gradients[3] if gradients[3].numel() > 0 else None
    return *gradients[:3], bias_gradients, *(None,) * (5 + len(ctx.numbers))


differentiate(joint_rnnt_loss_blockwise, _setup, _gradients, joint_rnnt_loss_blockwise_backward)

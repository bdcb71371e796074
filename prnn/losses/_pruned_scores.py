"""Scores of the arcs of pruned RNN-T's lattices: of the joiner that adds, smoothed or not, and of a joiner's logits,
full or pruned. Each returns px (N, S, T) and py (N, S + 1, T), for `lattice_scores`, in float32 or float64.

`limits` are the boundary (N, 4), or None. Padding is what lies outside. It may hold anything: a NaN or infinity there
times a gradient of zero would be a NaN in the gradients of what is inside.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def _full_precision(x: Tensor) -> Tensor:
    """Half types, which only a GPU's tensors still have, as float32, in which losses are computed."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _outside(begins: Tensor, ends: Tensor, count: int) -> Tensor:
    """(N, count), the positions before begins[n] and from ends[n] on."""
    positions = torch.arange(count, device=begins.device)
    return (positions < begins[:, None]) | (positions >= ends[:, None])


def _without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """For products of exponentials, of whose sums the logarithm is taken."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def _log_sum(lm: Tensor, am: Tensor) -> Tensor:
    """(N, S + 1, T): log of the sum over V of exp(lm + am), as a matrix product of exponentials."""
    lm_max, am_max = lm.detach().amax(2, keepdim=True), am.detach().amax(2, keepdim=True)
    with _without_autocast(lm):
        product = (lm - lm_max).exp() @ (am - am_max).exp().transpose(1, 2)
    return (product + torch.finfo(product.dtype).tiny).log() + lm_max + am_max.transpose(1, 2)


def _added_scores(lm: Tensor, am: Tensor, symbols: Tensor, blank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The symbols' and the blank's share of lm and am: (N, S, 1), (N, S, T), (N, S + 1, 1), (N, 1, T)."""
    frames = am.shape[1]
    symbol_lm = lm[:, :-1].gather(2, symbols.unsqueeze(2))
    symbol_am = am.transpose(1, 2).gather(1, symbols.unsqueeze(2).expand(-1, -1, frames))
    return symbol_lm, symbol_am, lm[:, :, blank].unsqueeze(2), am[:, :, blank].unsqueeze(1)


def _frames_inside(am: Tensor, limits: Tensor | None) -> Tensor:
    """am (N, T, V) with zeros in padding."""
    if limits is None:
        return am
    return am.masked_fill(_outside(limits[:, 1], limits[:, 3], am.shape[1])[:, :, None], 0)


def _positions_inside(lm: Tensor, limits: Tensor | None) -> Tensor:
    """lm (N, S + 1, V) likewise."""
    if limits is None:
        return lm
    return lm.masked_fill(_outside(limits[:, 0], limits[:, 2] + 1, lm.shape[1])[:, :, None], 0)


def _simple_scores(lm: Tensor, am: Tensor, symbols: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    symbol_lm, symbol_am, blank_lm, blank_am = _added_scores(lm, am, symbols, blank)
    normalisers = _log_sum(lm, am)
    return symbol_am + symbol_lm - normalisers[:, :-1], blank_am + blank_lm - normalisers


def simple_scores(lm: Tensor, am: Tensor, symbols: Tensor, blank: int, limits: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the scores of lm (N, S + 1, V) + am (N, T, V)."""
    lm, am = _full_precision(lm), _full_precision(am)
    return _simple_scores(_positions_inside(lm, limits), _frames_inside(am, limits), symbols, blank)


def smoothed_scores(
    lm: Tensor,
    am: Tensor,
    symbols: Tensor,
    blank: int,
    lm_only_scale: float,
    am_only_scale: float,
    limits: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Returns the scores interpolated with those of lm alone and of am alone."""
    lm, am = _full_precision(lm), _frames_inside(_full_precision(am), limits)
    symbol_lm, symbol_am, blank_lm, blank_am = _added_scores(lm, am, symbols, blank)
    lm_norms = lm.logsumexp(2, keepdim=True)  # (N, S + 1, 1)
    # The average of lm's distributions over batch and positions stands in for lm in the am-only part.
    unigram = (lm - lm_norms).exp().mean((0, 1)) + torch.finfo(lm.dtype).tiny  # (V,)
    am_max = am.detach().amax(2, keepdim=True)
    with _without_autocast(am):
        am_norms = (((am - am_max).exp() @ unigram.unsqueeze(1)).log() + am_max).transpose(1, 2)  # (N, 1, T)
    log_unigram = unigram.log()
    both = 1.0 - lm_only_scale - am_only_scale
    px, py = _simple_scores(lm, am, symbols, blank)
    px = both * px + lm_only_scale * (symbol_lm - lm_norms[:, :-1])
    px = px + am_only_scale * (symbol_am + log_unigram[symbols].unsqueeze(2) - am_norms)
    py = both * py + lm_only_scale * (blank_lm - lm_norms)
    py = py + am_only_scale * (blank_am + log_unigram[blank] - am_norms)
    return px, py


def _normalisers(logits: Tensor, positions: Tensor, limits: Tensor | None) -> Tensor:
    """Returns the scores of each cell of logits (N, T, R, V), whose positions are (N or 1, T or 1, R); anything in
    padding, where logits may be NaN, with which a gradient of zero must not be multiplied."""
    if limits is not None:
        frames = _outside(limits[:, 1], limits[:, 3], logits.shape[1])[:, :, None]
        rows = (positions < limits[:, 0, None, None]) | (positions > limits[:, 2, None, None])
        logits = logits.masked_fill((frames | rows)[..., None], 0)
    return logits.logsumexp(3)


def joint_scores(logits: Tensor, symbols: Tensor, blank: int, limits: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores (N, S, T) and (N, S + 1, T) of logits (N, T, S + 1, V)."""
    logits = _full_precision(logits)
    normalisers = _normalisers(logits, torch.arange(logits.shape[2], device=logits.device)[None, None], limits)
    index = symbols[:, None, :, None].expand(-1, logits.shape[1], -1, 1)
    px = logits[:, :, :-1].gather(3, index).squeeze(3) - normalisers[:, :, :-1]
    py = logits[..., blank] - normalisers
    return px.transpose(1, 2), py.transpose(1, 2)


def pruned_scores(
    logits: Tensor, symbols: Tensor, ranges: Tensor, blank: int, limits: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Returns the scores of logits (N, T, R, V), minus infinity where pruned."""
    logits = _full_precision(logits)
    batch, frames, kept, _ = logits.shape
    count = symbols.shape[1]
    normalisers = _normalisers(logits, ranges, limits)
    padded = torch.nn.functional.pad(symbols, (0, 1), value=blank)  # after the last symbol there is none: any will do
    index = padded.gather(1, ranges.reshape(batch, -1)).reshape(batch, frames, kept, 1)
    labels = logits.gather(3, index).squeeze(3) - normalisers
    blanks = logits[..., blank] - normalisers
    full = logits.new_full((batch, frames, count + 1), float("-inf"))
    px = full.scatter(2, ranges, labels)[:, :, :count]
    py = full.scatter(2, ranges, blanks)
    return px.transpose(1, 2), py.transpose(1, 2)

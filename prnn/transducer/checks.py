"""Checks of arguments, whose messages name the argument and its value."""

from __future__ import annotations

import torch
from torch import Tensor

from prnn._errors import NotSupportedError


def require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")


_INT_MAX = 2**31 - 1


def require_at_least(name: str, value: object, least: int) -> None:
    """Raise TypeError unless `value` is an int, ValueError unless it is at least `least` and at most 2^31 - 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; it must be an int")
    if value < least:
        raise ValueError(f"{name} is {value}; it must be at least {least}")
    if value > _INT_MAX:
        raise ValueError(f"{name} is {value}; it must be at most {_INT_MAX}")


def require_number(name: str, value: object, below_one: bool) -> None:
    """Raise TypeError unless `value` is a number, ValueError unless it is at least 0 and, if asked, below 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; it must be a number")
    if not (value >= 0.0 and (value < 1.0 or not below_one)):
        raise ValueError(f"{name} is {value}; it must be " + ("in [0, 1)" if below_one else "at least 0"))


def kind(value: object) -> str:
    """Describes a value, for a message."""
    return f"a tensor of {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def holds_integers(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def check_lengths(name: str, lengths: Tensor, batch: int, least: int, most: int) -> Tensor:
    """The lengths as int64; TypeError or ValueError unless they are (batch,) integers of [least, most]."""
    if not isinstance(lengths, Tensor) or not holds_integers(lengths):
        raise TypeError(f"{name} is {kind(lengths)}; it must be a tensor of integers")
    if lengths.shape != (batch,):
        raise ValueError(f"{name} has shape {tuple(lengths.shape)}; it must be ({batch},)")
    wrong = ((lengths < least) | (lengths > most)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(f"{name}[{row}] is {int(lengths[row])}; it must be in [{least}, {most}]")
    return lengths.long()


def check_features(
    name: str, features: Tensor, size: int, lengths_name: str, lengths: Tensor | None, least: int
) -> Tensor:
    """The lengths as int64 on the device that they came on, all T if None; TypeError or ValueError unless `features` is
    (N, T, size) floats."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        raise TypeError(f"{name} is {kind(features)}; it must be a tensor of floats")
    if features.dim() != 3 or features.shape[0] == 0 or features.shape[2] != size:
        raise ValueError(f"{name} has shape {tuple(features.shape)}; it must be (N, T, {size}), N at least 1")
    batch, frames, _ = features.shape
    if lengths is None:
        return torch.full((batch,), frames, dtype=torch.int64, device="cpu")
    return check_lengths(lengths_name, lengths, batch, least, frames)


def check_samples(name: str, samples: Tensor, lengths_name: str, lengths: Tensor | None) -> Tensor:
    """The lengths as int64 on the device that they came on, all S if None; TypeError or ValueError unless `samples` is
    (N, S) floats."""
    if not isinstance(samples, Tensor) or not samples.is_floating_point():
        raise TypeError(f"{name} is {kind(samples)}; it must be a tensor of floats from -1 to 1")
    if samples.dim() != 2 or samples.shape[0] == 0:
        raise ValueError(
            f"{name} has shape {tuple(samples.shape)}; it must be (N, S), N at least 1, for the pool has an fbank"
        )
    batch, count = samples.shape
    if lengths is None:
        return torch.full((batch,), count, dtype=torch.int64, device="cpu")
    return check_lengths(lengths_name, lengths, batch, 0, count)


def require_searchable(name: str, tensor: Tensor, device: torch.device) -> None:
    """Raise NotSupportedError if the tensor or the model, which is on `device`, is on the meta device, ValueError if
    they are on different ones."""
    for owner, own in ((name, tensor.device), ("the model", device)):
        if own.type == "meta":
            raise NotSupportedError(f"{owner} is on the meta device, where tensors have no values; a search takes them")
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}; it must be on {device}, as the model is")


def check_targets(targets: Tensor, lengths: Tensor, batch: int, vocab_size: int, blank: int) -> tuple[Tensor, Tensor]:
    """Targets and lengths as int64 on the devices that they came on, some symbol in the padding; TypeError or
    ValueError unless they are (batch, U) and (batch,) integers, the symbols in the vocabulary and not the blank."""
    if not isinstance(targets, Tensor) or not holds_integers(targets):
        raise TypeError(f"targets is {kind(targets)}; it must be a tensor of integers")
    if targets.dim() != 2 or targets.shape[0] != batch:
        raise ValueError(f"targets has shape {tuple(targets.shape)}; it must be ({batch}, U)")
    lengths = check_lengths("target_lengths", lengths, batch, 0, targets.shape[1])
    real = torch.arange(targets.shape[1], device=targets.device) < lengths.to(targets.device)[:, None]
    symbols = targets.long()
    wrong = (real & ((symbols < 0) | (symbols >= vocab_size) | (symbols == blank))).nonzero()
    if len(wrong):
        row, place = wrong[0].tolist()
        raise ValueError(
            f"targets[{row}, {place}] is {int(symbols[row, place])}; "
            f"it must be in [0, {vocab_size}) and not the blank, {blank}"
        )
    return symbols.masked_fill(~real, 1 if blank == 0 else 0), lengths

"""Shared parts of the losses' operators: memory, errors, names. prnn/losses/ checks arguments and calls the operators.

Every operator takes tensors that prnn/losses/ has brought into shape: activations whose last dimension is contiguous,
int32 symbols and lengths, all on one device. Values are checked by libprnn. `reserve` is what a forward operator keeps
for its backward one, as bytes; it is empty where `keep` is False. `max_frames` and `max_targets` bound the lengths
where no shape does, in packed activations and concatenated targets; -1: look at the lengths where that costs nothing,
and else take as many as there are in all.

A call_ctc_loss or call_rnnt_loss takes a reduction and what the operator of the loss takes, the tensors and the rest in
a tuple each, and returns the reduced costs, with less to do on the way there; those with _inplace write the gradients
where the activations are, if nobody traces or transforms the call.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prnn._ops._handles import device_of, handle, is_elsewhere, require_proven
from prnn._ops._reduction import Reduction, Weights, weights_of

_BYTE, _INT64, _FLOAT64 = torch.uint8, torch.int64, torch.float64  # each look-up takes time


Options = tuple[Any, ...]  # of a loss: the values of an options struct in the order of python/losses.cc


class _Chosen:
    """The fields of an options struct that a caller chooses, which are the last ones, from `first` on. Operators take
    them as `schema` says; a new one needs a field in python/losses.cc and nothing in prnn/_ops/."""

    def __init__(self, fields: tuple[tuple[str, str], ...], first: str) -> None:
        names = [name for name, _ in fields]
        chosen = fields[names.index(first) :]
        self.schema = ", ".join(f"{kind} {name}" for name, kind in chosen)
        self.count = len(chosen)
        zeros = {"int": 0, "float": 0.0, "bool": False}
        self._zeros = {name: zeros[kind] for name, kind in chosen}

    def __call__(self, **values: Any) -> tuple[Any, ...]:
        """These values in the struct's order, and zeros for all others."""
        result = tuple({**self._zeros, **values}.values())
        assert len(result) == self.count, f"{values.keys() - self._zeros.keys()} are no options"
        return result

    def named(self, values: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self._zeros, values, strict=True))


def _workspace(size: int, like: Tensor) -> Tensor:
    return like.new_empty(size, dtype=_BYTE)


def _reserve(size: int, like: Tensor) -> Tensor:
    # An operator's outputs must be reproducible in all their bytes, and padding is not written.
    return like.new_zeros(size, dtype=torch.uint8)


# Bytes of workspace and reserve space that are one piece of memory, for each takes time. It is held until the backward
# pass, where a reserve space alone would do.
_SMALL = 2**25


class _Calls(NamedTuple):
    """The calls of libprnn that make up a loss. They take a handle, options, and addresses. kernels: the name under
    which prnn._selftest compares them."""

    kernels: str

    sizes: Callable[..., tuple[int, int]]
    forward: Callable[..., None]
    backward: Callable[..., None]


# The arguments of a loss's backward kernel besides tensors: options, and the weights of the reduction.
_Needs = tuple[Options, Weights | None]


def _run_forward(
    calls: _Calls,
    names: dict[str, str],
    options: Options,
    activations: Tensor,
    inputs: tuple[int, ...],
    batch: int,
    keep: bool,
    reduction: Reduction | None,
    reserve: Tensor | None,
) -> tuple[Tensor, Tensor, _Needs]:
    """The costs of a batch, or what the reduction makes of them, and the reserve space, `reserve` if given."""
    if is_elsewhere(activations):  # a `with` around the rest takes time, too
        with device_of(activations):
            return _run_forward(calls, names, options, activations, inputs, batch, keep, reduction, reserve)
    device = activations.device
    dtype = torch.float64 if activations.dtype is torch.float64 else torch.float32
    weights = None if reduction is None else weights_of(reduction)
    library = handle(device)
    require_proven(calls.kernels, device, activations.dtype)
    try:
        size, reserve_size = calls.sizes(library, options)
        if not keep:
            reserve_size = 0
        room = 0 if weights is None else 8 * batch  # for the costs, behind the workspace
        if reserve is None and (not keep or reserve_size + size <= _SMALL):
            workspace = reserve = activations.new_empty(reserve_size + size + room, dtype=_BYTE)
            begin = reserve.data_ptr()
            workspace_at = begin + reserve_size
        else:
            workspace = activations.new_empty(size + room, dtype=_BYTE)
            workspace_at = workspace.data_ptr()
            if reserve is None:
                reserve = activations.new_empty(reserve_size, dtype=_BYTE)
            begin = reserve.data_ptr()
        spaces = workspace_at, size, begin if keep else 0, reserve_size
        if reduction is None:
            result = activations.new_empty(batch, dtype=dtype)
        else:  # new_empty(()) takes half as long again
            result = torch.empty_strided((), (), dtype=dtype, device=device)
        if weights is None:
            calls.forward(library, options, *inputs, result.data_ptr(), *spaces, 1.0, 0, 0)
        else:
            costs_at = workspace_at + size
            calls.forward(library, options, *inputs, costs_at, *spaces, *weights, result.data_ptr())
    except ValueError as error:
        raise _in_python(error, names) from None
    return result, reserve, (options, weights)


def _costs_cpu(
    call: Callable[..., None],
    names: dict[str, str],
    options: Options,
    tensors: Sequence[Tensor],
    batch: int,
    reduction: Reduction | None,
) -> Tensor:
    """As _run_forward of activations, targets and the lengths of frames and targets, which may be int64, where a kernel
    may be called, the data are on the CPU and no gradient is wanted."""
    activations, targets, frame_lengths, target_lengths = tensors
    device = activations.device
    dtype = _FLOAT64 if activations.dtype is _FLOAT64 else torch.float32
    weights = None if reduction is None else weights_of(reduction)
    if reduction is None:
        result = activations.new_empty(batch, dtype=dtype)
    else:
        result = torch.empty_strided((), (), dtype=dtype, device=device)
    try:
        call(
            handle(device),
            options,
            activations.data_ptr(),
            targets.data_ptr(),
            frame_lengths.data_ptr(),
            target_lengths.data_ptr(),
            targets.dtype is _INT64,
            frame_lengths.dtype is _INT64,
            target_lengths.dtype is _INT64,
            result.data_ptr(),
            weights is not None,
            *(weights or (1.0, 0)),
        )
    except ValueError as error:
        raise _in_python(error, names) from None
    return result


def _run_backward(
    calls: _Calls,
    names: dict[str, str],
    needs: _Needs,
    activations: Tensor,
    inputs_and_gradients: tuple[int, ...],
    gradient: Tensor,
    reserve: Tensor,
) -> None:
    """gradient: of the costs, or of the loss if there was a reduction."""
    if is_elsewhere(activations):
        with device_of(activations):
            return _run_backward(calls, names, needs, activations, inputs_and_gradients, gradient, reserve)
    options, weights = needs
    if weights is None:
        gradient, reduced = gradient.contiguous(), (1.0, 0, False)
    else:
        reduced = *weights, True
    space = gradient.data_ptr(), reserve.data_ptr(), reserve.numel()
    try:
        calls.backward(handle(activations.device), options, *inputs_and_gradients, *space, *reduced)
    except ValueError as error:
        raise _in_python(error, names) from None


def _bound(lengths: Tensor, given: int, total: int) -> int:
    """No less than the largest valid length, of at most `total`."""
    if given >= 0:
        return min(given, total)
    return max(0, min(total, int(lengths.max()))) if lengths.device.type == "cpu" else total


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _space(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel()


def _new_costs(activations: Tensor, batch: int) -> Tensor:
    dtype = torch.float64 if activations.dtype == torch.float64 else torch.float32
    return activations.new_empty(batch, dtype=dtype)


def _blocks(size: int) -> int:
    return (size + 255) // 256 * 256


def _run(function: Callable[..., Any], names: dict[str, str], *arguments: Any) -> Any:
    """Calls a function of libprnn; what it says of bad arguments names them as Python does."""
    try:
        return function(*arguments)
    except ValueError as error:
        raise _in_python(error, names) from None


def _in_python(error: ValueError, names: dict[str, str]) -> ValueError:
    """libprnn's message with the names that Python has for arguments: those in `names`, and else snake case."""

    def named(word: re.Match[str]) -> str:
        name = word[0]
        return names.get(name) or (re.sub("(?<=[a-z])[A-Z]", r"_\g<0>", name).lower() if name[0].islower() else name)

    return ValueError(re.sub(r"\w+", named, str(error)))


def _gradients_for(activations: Tensor, inplace: bool) -> Tensor:
    """Where gradients go: as the activations lie, which is without gaps, or the activations themselves. Whoever still
    needs those for another derivative is told by torch, for they count as modified."""
    if not inplace:
        return torch.empty_like(activations)
    torch.autograd.graph.increment_version(activations)
    return activations.detach()


_SHARED_NAMES = {
    "maxTargets": "max_target_length",
    "targetElements": "the number of targets",
    "fastEmitLambda": "fastemit_lambda",
}

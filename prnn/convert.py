"""Swaps torch.nn's recurrent layers for prnn's inside a model, and back."""

import warnings
from typing import Any, TypeVar

import torch

from prnn import nn
from prnn._ops._handles import DTYPES
from prnn._ops.rnn import BACKENDS
from prnn._recurrent import DERIVED

__all__ = ["convert", "convert_back"]

Model = TypeVar("Model", bound=torch.nn.Module)
Classes = dict[type[torch.nn.Module], type[torch.nn.Module]]

_TO_PRNN: Classes = {torch.nn.RNN: nn.RNN, torch.nn.GRU: nn.GRU, torch.nn.LSTM: nn.LSTM}
_MASKS = ("zoneout", "recurrent_dropout")
_TO_TORCH: Classes = {nn.LSTMCell: torch.nn.LSTMCell} | {ours: theirs for theirs, ours in _TO_PRNN.items()}


def _swappable(model: object, classes: Classes) -> list[Any]:
    """The modules whose class is a key of `classes`, each once; says what it leaves."""
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"model is a {type(model).__name__}; it must be a torch.nn.Module that is not scripted")
    found: list[Any] = []
    for name, module in model.named_modules():
        if type(module) in classes:
            found.append(module)
        elif any(isinstance(module, swapped) for swapped in classes):
            where = f"{name!r}" if name else "the model"
            if torch.nn.utils.parametrize.is_parametrized(module):
                raise ValueError(f"{where} carries parametrizations; remove them before, and register them again after")
            warnings.warn(f"{where} is left as it is: {type(module).__qualname__} is a subclass", stacklevel=3)
    return found


def convert(model: Model, *, backend: str = "best") -> Model:
    """Makes every torch.nn.RNN, GRU and LSTM inside a model a prnn.nn one, in place.

    The modules stay the same objects with the same parameters: references, hooks, optimizers and shared modules go on
    working, as do dtype, device and training mode. The parameters move into one buffer a module. Modules of a subclass
    are left, with a warning, for only their author knows what they change.

    Args:
        model: any module, also a recurrent layer itself.
        backend: as prnn.nn.LSTM's.

    Returns:
        model, whose repr names the layers that prnn computes: prnn.nn.LSTM(80, 512). Warns where it has no recurrent
        layers.

    Raises:
        TypeError: model is not a module, or is scripted.
        ValueError: a layer that prnn.nn cannot stand in for (parametrised, complex, or dropout of 1); then nothing is
            changed.
    """
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; it must be one of {', '.join(map(repr, BACKENDS))}")
    found = _swappable(model, _TO_PRNN)
    if not found and not any(isinstance(module, torch.nn.RNNBase) for module in model.modules()):
        warnings.warn("model has no torch.nn.RNN, GRU or LSTM: nothing is converted", stacklevel=2)
    for module in found:
        if module.dropout == 1:
            raise ValueError(f"{module} has dropout 1.0; it must be less than 1")
        if (dtype := next(module.parameters()).dtype) not in DTYPES:
            raise ValueError(f"{module} has weights of {dtype}; they must be of {', '.join(map(str, DTYPES))}")
    for module in found:
        module.__class__ = _TO_PRNN[type(module)]
        module.backend = backend
        module._init_flat_weights()
    return model


def convert_back(model: Model) -> Model:
    """Makes every prnn.nn.RNN, GRU, LSTM and LSTMCell inside a model a torch.nn one, in place: for torch.export,
    TorchScript and whatever else knows torch's own modules alone. The inverse of convert(), with the same promises.

    Returns:
        model.

    Raises:
        TypeError, ValueError: as convert().
    """
    found = _swappable(model, _TO_TORCH)
    for module in found:
        if getattr(module, "heads", 1) > 1:
            raise ValueError(f"{module} has heads, which torch.nn's layers have not")
        for name in _MASKS:
            if getattr(module, name, 0) > 0:
                raise ValueError(f"{module} has {name}, which torch.nn's layers have not")
    for module in found:
        module.__class__ = _TO_TORCH[type(module)]
        for name in ("backend", "forget_bias", "heads", *_MASKS, *DERIVED):
            vars(module).pop(name, None)
        if isinstance(module, torch.nn.RNNBase):
            module._init_flat_weights()
    return model

"""The parameters of a module whose eager calls remember them (_calls.py)."""

from typing import Any

import torch
from torch.nn.parameter import Parameter

__all__ = ["OwnParameters", "own_parameters"]


class OwnParameters:
    """A module's parameters as its first call found them. Each check that a call makes takes time."""

    def __init__(self, module: Any, parameters: list[Parameter], dtype: torch.dtype) -> None:
        self.parameters, self._dtype = parameters, dtype
        self._flat = module._flat_weights  # which subclasses with DropConnect write to
        self._known = [
            (name, parameter, parameter.data_ptr(), parameter.shape)
            for name, parameter in zip(module._flat_weights_names, parameters, strict=True)
        ]

    def want_grad(self, module: Any) -> bool | None:
        """Whether a parameter wants a gradient. None where the module has other parameters, or has them elsewhere: the
        module then forgets its calls."""
        parameters, dtype = module._parameters, self._dtype
        wanted = False
        for (name, parameter, address, shape), flat in zip(self._known, self._flat, strict=True):
            if (
                parameters.get(name) is not parameter
                or flat is not parameter
                or parameter.data_ptr() != address
                or parameter.dtype is not dtype
                or parameter.shape != shape
                or not parameter.is_contiguous()
            ):
                vars(module).pop("_calls", None)
                return None
            wanted = wanted or parameter.requires_grad
        return wanted


def own_parameters(module: Any) -> list[Parameter] | None:
    """A module's parameters in torch's order; None where the module does not tell which weights it has (subclasses of
    Parameter, or other tensors in the list of flat weights), or memory holds their negatives."""
    found = []
    for name, flat in zip(module._flat_weights_names, module._flat_weights, strict=True):
        parameter = module._parameters.get(name)
        if parameter is not flat or type(parameter) is not Parameter or parameter.is_neg():
            return None
        found.append(parameter)
    return found

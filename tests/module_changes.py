"""Changes of a module of one layer, after which calls may not go by what they remember of it."""

from typing import Any

import torch

__all__ = ["CHANGES", "change_flat_weights"]


def change_attribute(module: Any) -> None:
    module.backend = "persistent"


def change_mode(module: Any) -> None:
    module.train()


def change_parameter(module: Any) -> None:
    module.weight_hh_l0 = torch.nn.Parameter(module.weight_hh_l0.detach() * 2)


def change_parameter_unseen(module: Any) -> None:
    module._parameters["bias_ih_l0"] = torch.nn.Parameter(module.bias_ih_l0.detach() * 2)


def change_flat_weights(module: Any) -> None:
    module._flat_weights[1] = module.weight_hh_l0 * 2


def change_data(module: Any) -> None:
    module.weight_hh_l0.data = module.weight_hh_l0.data * 2


def change_order(module: Any) -> None:
    weight = module.weight_hh_l0
    weight.data = weight.data.view(weight.size(1), weight.size(0)).t()


def parametrize(module: Any) -> None:
    torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")


CHANGES = [
    change_attribute,
    change_mode,
    change_parameter,
    change_parameter_unseen,
    change_flat_weights,
    change_data,
    change_order,
    parametrize,
]

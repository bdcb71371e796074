"""Models whose encoder is a class of the user's: `prnn train --encoder-class package.module:Class`.

A checkpoint has the name of such a class, which nothing imports unless the user gives a name, too.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from torch import nn

from prnn.transducer import Transducer, TransducerConfig

from .errors import InputError

_WANTED = (
    "from_config", "output_dim", "feature_dim", "frame_stride", "forward", "initial_state", "step", "finish",
    "set_normalization", "feature_mean",
)  # fmt: skip


def import_class(name: str) -> Any:
    """Imports a class by "package.module:Class", from the working directory, too.

    Raises:
        InputError: there is no such module or class; whatever else happens in the module, with its name.
    """
    module_name, _, class_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # of code that is not prnn's
        raise InputError(f"encoder_class is {name}: importing {module_name} failed: {error!r}") from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type) or not issubclass(found, nn.Module) or not hasattr(found, "from_config"):
        wanted = "a torch.nn.Module with a class method from_config(config)"
        raise InputError(f"encoder_class is {name}; it must be {wanted}")
    return found


def build_model(config: TransducerConfig, encoder_class: str | None = None) -> Transducer:
    """The model that a config describes, with random weights.

    Args:
        config: of the model.
        encoder_class: the class of its encoder, by name, if it is not prnn's own: the user's word that it may run.

    Raises:
        InputError: the config names a class and the user does not, or the other way round; or the class is none of an
            encoder.
    """
    if (config.encoder_class is None) != (encoder_class is None):
        if encoder_class is None:
            raise InputError(
                f"its encoder is {config.encoder_class}, which is not prnn's: to import and run that class, say so by "
                f"--encoder-class {config.encoder_class}"
            )
        raise InputError(f"--encoder-class is {encoder_class}, but its encoder is prnn's own")
    if encoder_class is None:
        return Transducer.from_config(config)
    encoder = import_class(encoder_class).from_config(config)
    missing = [name for name in _WANTED if not hasattr(encoder, name)]
    if missing:
        raise InputError(f"encoder_class is {encoder_class}; what it makes of a config has no {', '.join(missing)}")
    return Transducer.from_config(config, encoder)

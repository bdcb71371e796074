"""Shared parts of the losses' modules: a repr with their options; torch.compile takes them, torch.jit.script does not,
and is told to say so."""

import inspect
from collections.abc import Iterable

from torch import nn

from prnn._errors import NotSupportedError
from prnn._options_text import options_text

_CANNOT = (
    "cannot be compiled by torch.jit.script; torch.compile takes it, and prnn.compat.torchaudio has an RNN-T loss and "
    "an alignment that can be scripted"
)
_MARK = "__script_unsupported"  # what torch.jit.script looks for on a function


class LossModule(nn.Module):
    """A module that torch.compile takes and torch.jit.script does not."""

    def __prepare_scriptable__(self) -> nn.Module:
        """Refuses: torch.jit.script asks a module for this before it compiles it."""
        raise NotSupportedError(f"prnn's {type(self).__name__} {_CANNOT}")

    def extra_repr(self) -> str:
        return options_text(self)


def refuse_scripting(losses: Iterable[object]) -> None:
    """Refuses functions too, also where a scripted function calls them. Other objects among `losses` are left alone."""
    for loss in losses:
        if inspect.isfunction(loss):
            setattr(loss, _MARK, f"prnn's {loss.__name__} {_CANNOT}")

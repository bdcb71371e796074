"""What prnn's recurrent layers share as modules: their name, and what they say to exporters that do not take them."""

from typing import Any

from torch import nn

from prnn._errors import NotSupportedError


class NotScriptable(nn.Module):
    """A base of modules that torch.compile and torch.export take, and TorchScript and torch.onnx.export do not."""

    def __prepare_scriptable__(self) -> nn.Module:
        """What torch.jit.script asks a module for before it compiles it."""
        raise self._refusal("torch.jit.script")

    def _slow_forward(self, *args: Any, **kwargs: Any) -> Any:
        """What a module is called by while torch.jit.trace records."""
        raise self._refusal("torch.jit.trace (by which torch.onnx.export with dynamo=False works)")

    def _refusal(self, caller: str) -> NotSupportedError:
        return NotSupportedError(
            f"prnn.nn.{type(self).__name__} cannot be recorded by {caller}; prnn.convert_back(model) makes torch.nn's "
            "layers of prnn.nn.RNN, GRU and LSTM, which can; torch.compile and torch.export take prnn's own"
        )

    def _get_name(self) -> str:
        """The name in a repr, which tells the layers of a converted model from torch.nn's."""
        kind = type(self)
        return f"prnn.nn.{kind.__name__}" if kind.__module__.startswith("prnn.") else kind.__name__

"""The base class of all layers of prnn.nn: forward() makes a prepared eager call, or one that is checked in full."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from prnn._calls import ModuleCalls
from prnn._checked_call import run_checked
from prnn._errors import NotSupportedError
from prnn._ops._torch_private import is_undisturbed

__all__ = ["CalledModule", "Sequences", "States"]

Sequences = TypeVar("Sequences", Tensor, PackedSequence)
States = tuple[Tensor | None, ...]


class CalledModule(torch.nn.Module):
    """The base of prnn.nn's layers: a module keeps what its eager calls of each size need. torch.compile and
    torch.export take it, TorchScript and torch.onnx.export do not."""

    _calls: ModuleCalls | None = None

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # type: ignore[no-untyped-call]
        state.pop("_calls", None)
        return state

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__.pop("_calls", None)
        super().__setattr__(name, value)

    def _run(
        self,
        input: Any,
        states: States,
        lengths: Tensor | Sequence[int] | None,
        reset: Tensor | None,
        names: Sequence[str],
        return_cells: bool = False,
    ) -> Any:
        """Output, hy, cy and cells, in forward()'s layout. states: hx, cx, and those of reset_hx; names: theirs, as the
        caller gave them."""
        if is_undisturbed():
            calls = self._calls
            if calls is None:
                results = self._make_calls_and_run(input, states, lengths, reset, return_cells)
            else:
                results = calls.run(self, input, states, lengths, reset, return_cells)
            if results is not None:
                return results
        return run_checked(self, input, states, lengths, reset, names, return_cells)

    def _make_calls_and_run(self, *arguments: Any) -> Any:
        calls = self.__dict__["_calls"] = ModuleCalls.of(self)
        return None if calls is None else calls.run(self, *arguments)

    def __prepare_scriptable__(self) -> torch.nn.Module:
        """torch.jit.script asks a module for these before it compiles it."""
        raise self._refusal("torch.jit.script")

    def _slow_forward(self, *args: Any, **kwargs: Any) -> Any:
        """torch.jit.trace calls a module by this while it records."""
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

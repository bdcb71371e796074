"""The way of a recurrent module's forward() to its calls: eager ones, or those of traces and of wrong arguments."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from prnn._calls import ModuleCalls
from prnn._checked_call import run_checked
from prnn._ops._torch_private import is_undisturbed
from prnn._scripting import NotScriptable

__all__ = ["CalledModule", "States"]

States = tuple[Tensor | None, ...]


class CalledModule(NotScriptable):
    """A base of recurrent modules, which keep what their eager calls of each size need."""

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

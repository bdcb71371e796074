"""The base class of all layers of prnn.nn: a call's arguments are checked here, once, whatever runs it then."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from prnn import _C
from prnn._calls import ModuleCalls
from prnn._errors import NotSupportedError
from prnn._layer_arguments import (
    check_not_empty,
    check_reset,
    check_tensor,
    checked_lengths,
    checked_states,
    is_cast_to,
    state_shapes,
)
from prnn._ops._call import NO_OPTIONS
from prnn._ops._torch_private import is_undisturbed
from prnn._options import compute, configuration_of, in_layout_of_input, run_operator
from prnn._torch_on_cpu import run_torchs

__all__ = ["CalledModule", "Sequences", "States"]

Sequences = TypeVar("Sequences", Tensor, PackedSequence)
States = tuple[Tensor | None, ...]

_NONE: Any = None  # of variables that hold many things

# Functions that every call uses, by names of this module: each look-up of an attribute takes time.
_is_autocast, _is_grad_enabled = torch.is_autocast_enabled, torch.is_grad_enabled
_bfloat16 = torch.bfloat16
_current_gpu, _is_capturing = torch.cuda.current_device, torch.cuda.is_current_stream_capturing


class CalledModule(torch.nn.Module):
    """The base of prnn.nn's layers: a module keeps what its eager calls of each size need. torch.compile and
    torch.export take it, TorchScript and torch.onnx.export do not."""

    _calls: ModuleCalls | None = None
    _packed_weights: Callable[[], list[Tensor]]  # of a subclass

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # type: ignore[no-untyped-call]
        state.pop("_calls", None)
        return state

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__.pop("_calls", None)
        super().__setattr__(name, value)

    def _run(
        self, input: Any, states: States, lengths: Any, reset: Any, names: Sequence[str], return_cells: bool = False
    ) -> Any:
        """Output, hy, cy and cells, without elements where there are none, in forward()'s layout.

        Checks forward()'s arguments, brings them in the operator's layout, and runs the call: a plain one as was
        prepared for its size, others (traces, transforms, tensors that are not plain) by the operator. states: hx, cx,
        and those of reset_hx; names: theirs, as the caller gave them."""
        calls = (self._calls or self._make_calls()) if is_undisturbed() else None
        if calls is not None and calls.is_gpu and _current_gpu() != calls.index:
            with torch.cuda.device(calls.device):
                return self._run(input, states, lengths, reset, names, return_cells)
        batch_sizes = order = back = sequences = _NONE
        is_packed, is_time_second, is_single = isinstance(input, PackedSequence), False, False
        if is_packed:
            input, batch_sizes, order, back = input
        hx, cx, reset_hx, reset_cx = states
        has_states = not (hx is cx is reset_hx is reset_cx is None)
        tensors = (input, reset, *states) if has_states or reset is not None else (input,)
        plain: Any = None if calls is None or input is None else calls.of_plain(self, tensors)
        if plain is None:
            for value, name in zip(tensors, ("input", "reset", *names)[: len(tensors)], strict=True):
                if value is not None or name == "input":
                    check_tensor(value, name)
            plain = None, self._packed_weights(), False
        calls, weights, wants_grad = plain
        shape = input.shape
        if calls is not None and 0 in shape:
            calls = None  # nothing is prepared for calls without elements
        if is_packed:
            if lengths is not None:
                raise ValueError("lengths is given, but input is a PackedSequence, which has its own")
            check_not_empty(batch_sizes)
            if calls is not None:
                sequences = _C.Sequences.of_sizes(batch_sizes.tolist(), shape[0]) if len(shape) == 2 else None
                if sequences is None or (order is not None and order.size(0) != sequences.batch):
                    calls = sequences = None  # the operator says what is wrong
            batch = int(batch_sizes[0]) if sequences is None else sequences.batch
            batch = batch if order is None else order.size(0)
        elif len(shape) == 3:
            steps, batch, _ = shape
            if self.batch_first:
                steps, batch, is_time_second = batch, steps, True
        elif len(shape) != 2:
            found = f"input has {len(shape)} dimensions (shape {tuple(shape)})"
            raise ValueError(f"{found}; it must have 3, or 2 if unbatched")
        elif lengths is not None:
            raise ValueError("lengths is given, but input has 2 dimensions: one sequence, which is as long as it is")
        else:
            batch, is_single = 1, True
        if shape[-1] != self.input_size:
            raise ValueError(f"input has {shape[-1]} features (shape {tuple(shape)}); input_size is {self.input_size}")
        of_weights = weights[0] if calls is None else calls
        dtype = of_weights.dtype
        if input.dtype != dtype and not is_cast_to(input, dtype):
            found = f"input has dtype {input.dtype}, but the weights have {dtype}; convert"
            if not input.is_floating_point() and not input.is_complex():
                raise ValueError(f"{found} it with .to({dtype})")
            raise ValueError(f"{found} one with .to({dtype}) or the other with .to({input.dtype})")
        if input.device != of_weights.device:
            raise ValueError(f"input is on {input.device}, but the weights are on {of_weights.device}")

        if reset is not None:
            check_reset(reset, input)
        elif reset_hx is not None or reset_cx is not None:
            raise ValueError("reset_hx is given, but reset, which says where it is wanted, is None")
        if has_states:
            shapes = state_shapes(self) if calls is None else calls.state_shapes
            states = checked_states(states, names, shapes, None if is_single else batch, order, input)
        if is_single:
            input, reset = input.unsqueeze(1), None if reset is None else reset.unsqueeze(1)
        elif is_time_second:
            input, reset = input.transpose(0, 1), None if reset is None else reset.transpose(0, 1)
        if lengths is not None:
            if calls is not None:
                values = lengths
                if type(lengths) is Tensor:  # normalised layers read those on a GPU there
                    is_read = lengths.is_cpu or (lengths.is_cuda and not (calls.is_normalized or _is_capturing()))
                    values = lengths.tolist() if is_read else None
                sequences = _C.Sequences.of_lengths(values, steps, batch)
            if sequences is None:
                lengths = checked_lengths(lengths, batch, input)

        results = None
        if calls is None:
            run, training, is_cast = run_operator, False, False
            if reset is not None and reset.numel() == 0:
                reset, states = None, (*states[:2], None, None)
            config = configuration_of(self, return_cells, reset is not None)
        else:
            run, training, is_cast = calls.run, wants_grad and _is_grad_enabled(), _is_autocast(calls.device_type)
            config = calls.config
            if reset is not None or return_cells:
                config = config._replace(has_reset=reset is not None, return_cells=return_cells)
            elif lengths is None and calls.takes_torchs and (is_cast or dtype is _bfloat16):
                results = run_torchs(self, input, states[0], states[1], weights, batch_sizes, training)
        layout = (batch_sizes, lengths, batch, sequences, training, is_cast)
        if calls is not None and calls.is_bare and reset is None and results is None:
            results = calls.run(input, states[0], states[1], weights, layout, NO_OPTIONS, config)
        elif results is None:
            results = compute(self, config, input, states, weights, layout, reset, run)
        if is_packed or is_time_second or is_single:
            return in_layout_of_input(results, (batch_sizes, order, back) if is_packed else None, is_time_second)
        return results

    def _make_calls(self) -> ModuleCalls | None:
        calls = self.__dict__["_calls"] = ModuleCalls.of(self)
        return calls

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

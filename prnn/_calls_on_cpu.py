"""Eager calls on the CPU without what only other calls need.

Of a layer of few units and timesteps the host's part is most of a call. These calls look at what may have changed since
the first of them, and hand the tensors to the library, or to torch's operator where that is the faster one."""

import itertools
from collections.abc import Sequence
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from prnn._ops import _rnn_kernels as kernels
from prnn._ops._handles import handle
from prnn._ops._layer import Config, layer
from prnn._ops._operator import _PLAIN, _undisturbed
from prnn._ops._steps import steps_of
from prnn._ops.rnn import PlainCall, call_plainly
from prnn._own_parameters import OwnParameters, own_parameters
from prnn._torch_on_cpu import is_faster, run_operator, takes_torchs

__all__ = ["CallsOnCpu", "calls_on_cpu"]

# Each look-up takes time.
_is_autocast: Any = torch._C._is_any_autocast_enabled
_is_grad_enabled, _strided = torch.is_grad_enabled, torch.strided


class CallsOnCpu:
    """A module's calls in one thread: with an input (T, N, I), or (N, T, I) with batch_first, or (T, I), and states,
    without lengths, resets, masks and dropout. To be made anew when an attribute or a parameter of the module
    changes."""

    is_any = True

    def __init__(
        self, module: Any, parameters: list[Parameter], input: Tensor, weights: Sequence[Tensor], config: Config
    ) -> None:
        self.stack = stack = layer(config, input.dtype, input.size(-1), input.device)
        self.library, self.thread = handle(input.device), get_ident()
        self.dtype, self.input_size, self.batch_first = input.dtype, input.size(-1), module.batch_first
        self.takes_torchs = input.dtype == torch.bfloat16 and takes_torchs(module)
        self.state_shapes = [(stack.states, size) for size in (stack.state_size, stack.hidden_size)]
        self.weights = list(weights)
        self.addresses = [weight.data_ptr() for weight in weights]
        places = itertools.accumulate((weight.numel() for weight in weights), initial=0)
        self.layouts = [(weight.shape, weight.stride(), place) for weight, place in zip(weights, places, strict=False)]
        self.own = OwnParameters(module, parameters, input.dtype)

    def run(self, module: Any, input: Any, states: Sequence[Tensor | None]) -> Any:
        """Output, hy, cy, without elements but for an LSTM, and no cells; None for any other call, and where arguments
        are wrong. states: hx, cx, and those of a reset."""
        if type(input) not in _PLAIN or input.dtype is not self.dtype or not input.is_cpu or input.is_neg():
            return None
        if get_ident() != self.thread or input.layout is not _strided or input.is_nested:
            return None
        if _is_autocast() or not _undisturbed():
            return None
        shape = input.shape
        is_batched = len(shape) == 3
        if not 2 <= len(shape) <= 3 or shape[-1] != self.input_size or 0 in shape:
            return None
        hx, cx, reset_hx, reset_cx = states
        if reset_hx is not None or reset_cx is not None or (cx is not None and not self.stack.is_lstm):
            return None
        if not is_batched:
            input = input.unsqueeze(1)
        elif self.batch_first:
            input = input.transpose(0, 1)
        wants_grad = self.own.want_grad(module)
        if wants_grad is None:
            return None
        wants_grad = wants_grad or input.requires_grad
        steps, batch = input.shape[:2]
        for state, (count, size) in zip((hx, cx), self.state_shapes, strict=True):
            if state is not None:
                if not self._is_state(state, (count, batch, size) if is_batched else (count, size)):
                    return None
                wants_grad = wants_grad or state.requires_grad
        if not is_batched:
            hx, cx = (None if state is None else state.unsqueeze(1) for state in (hx, cx))
        wants_grad = wants_grad and _is_grad_enabled()
        if self.takes_torchs and is_faster(module, False, wants_grad, steps, batch):
            output, hy, cy, cells = run_operator(module, input, hx, cx, module._flat_weights, None)
        else:
            sizes = steps_of(input, None, None).sizes
            call = PlainCall(self.stack, self.library, sizes, self.thread, self.addresses, self.layouts)
            output, hy, cy, cells = call_plainly(call, input, hx, cx, self.weights, wants_grad)
        if not is_batched:
            return output.squeeze(1), hy.squeeze(1), cy.squeeze(1) if self.stack.is_lstm else cy, cells
        return output.transpose(0, 1) if self.batch_first else output, hy, cy, cells

    def _is_state(self, state: Tensor, shape: tuple[int, ...]) -> bool:
        return (
            type(state) in _PLAIN
            and not state.is_nested
            and not state.is_neg()
            and state.shape == shape
            and state.dtype is self.dtype
            and state.is_cpu
            and state.layout is _strided
        )


def calls_on_cpu(module: Any, input: Tensor, weights: Sequence[Tensor], config: Config) -> CallsOnCpu | None:
    """Of a module that is called with this input; None where its calls are others."""
    if config.dropout > 0 or config.heads > 1 or not _undisturbed() or _is_autocast() or type(input) is not Tensor:
        return None
    parameters = own_parameters(module)
    if parameters is None:
        return None
    stack = layer(config, input.dtype, input.size(-1), input.device)
    return CallsOnCpu(module, parameters, input, weights, config) if kernels.lie_packed(weights, stack, input) else None

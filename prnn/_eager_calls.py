"""Eager calls of a layer without resets, masks, heads and dropout: the short way from a module to the library.

The host's time is most of a call of a layer of few units and timesteps. These calls check only what may have changed
since the first of them, and hand the tensors to the library, or to torch's operator where that is the faster one. One
table of the module, EagerCalls.calls, has what serves the calls of each size."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter
from torch.nn.utils.rnn import PackedSequence

from prnn._C import Sequences
from prnn._ops import _rnn_kernels as kernels
from prnn._ops._handles import DTYPES, this_thread
from prnn._ops._layer import EXACT_STEPS, Config, layer
from prnn._ops._measured import is_benchmark
from prnn._ops._operator import _PLAIN, _undisturbed
from prnn._ops._precision import allows_tf32_rnn
from prnn._ops._steps import even_sequences, sequences_of_batch_sizes, sequences_of_lengths
from prnn._ops.rnn import PlainCall, call_plainly, without_frozen_layers
from prnn._own_parameters import OwnParameters, own_parameters
from prnn._state_masks import configuration, uses_masks
from prnn._torch_on_cpu import is_faster, run_operator, takes_torchs
from prnn._torch_on_cuda import torchs_calls

__all__ = ["CallsOnCpu", "CallsOnCuda", "EagerCalls", "eager_calls"]

_MOST_SIZES = 256  # entries of a module's table before it starts anew

# Functions that every call uses, by names of this module: each look-up of an attribute takes time.
_is_autocast: Any = torch._C._is_any_autocast_enabled
_is_grad_enabled, _strided = torch.is_grad_enabled, torch.strided
# torch's builds without CUDA have neither of the two.
_is_capturing: Any = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)
_current_gpu: Any = getattr(torch._C, "_cuda_getDevice", None)

Results = tuple[Tensor, Tensor, Tensor, Tensor]
Data = tuple[Tensor, Tensor | None, Tensor | None]
Size = tuple[object, ...]


class EagerCalls:
    """A module's calls with an input (T, N, I), or (N, T, I) with batch_first, with or without lengths, or (T, I), or a
    PackedSequence, and states, without resets, masks and dropout. To be made anew when an attribute or a parameter of
    the module changes."""

    def __init__(
        self, module: Any, parameters: list[Parameter], input: Tensor, weights: Sequence[Tensor], config: Config
    ) -> None:
        stack = layer(config, input.dtype, input.size(-1), input.device)
        self.is_any = kernels.lie_packed(weights, stack, input)
        self.config, self.dtype, self.device, self.index = config, input.dtype, input.device, input.get_device()
        self.is_cpu, self.is_lstm, self.is_stack = input.is_cpu, stack.is_lstm, config.num_layers > 1
        self.has_tf32 = input.is_cuda and input.dtype == torch.float32
        self.input_size, self.batch_first = input.size(-1), module.batch_first
        self.state_shapes = [(stack.states, size) for size in (stack.state_size, stack.hidden_size)]
        self.weights = list(weights)
        self.addresses = [weight.data_ptr() for weight in weights]
        places = itertools.accumulate((weight.numel() for weight in weights), initial=0)
        self.layouts = [(weight.shape, weight.stride(), place) for weight, place in zip(weights, places, strict=False)]
        self.own = OwnParameters(module, parameters, input.dtype)
        self.calls: dict[Size, PlainCall] = {}  # by _compute()'s size

    def run(self, module: Any, input: Any, states: Sequence[Tensor | None], lengths: object) -> Any:
        """Output, hy, cy, without elements but for an LSTM, and no cells; None for any other call, and where arguments
        are wrong. states: hx, cx, and those of a reset. lengths: forward()'s argument."""
        if type(input) is PackedSequence:
            return self._run_packed(module, input, states) if lengths is None else None
        if not self._is_ours(input) or _is_autocast() or not _undisturbed():
            return None
        shape = input.shape
        is_batched = len(shape) == 3
        if not 2 <= len(shape) <= 3 or shape[-1] != self.input_size or 0 in shape:
            return None
        if not is_batched:
            input = input.unsqueeze(1)
        elif self.batch_first:
            input = input.transpose(0, 1)
        steps, batch, _ = input.shape
        sequences = None
        if lengths is not None:
            if not is_batched or (sequences := sequences_of_lengths(lengths, steps, batch)) is None:
                return None
            if not sequences.is_padded:
                sequences = None
        training = self._trains(module, input, states, batch if is_batched else None)
        if training is None:
            return None
        hx, cx = states[:2]
        if not is_batched and (hx is not None or cx is not None):
            hx, cx = (None if state is None else state.unsqueeze(1) for state in (hx, cx))
        output, hy, cy, cells = self._compute(module, input, hx, cx, training, sequences, lengths is None)
        if not is_batched:
            return output.squeeze(1), hy.squeeze(1), cy.squeeze(1) if self.is_lstm else cy, cells
        return output.transpose(0, 1) if self.batch_first else output, hy, cy, cells

    def _run_packed(self, module: Any, input: PackedSequence, states: Sequence[Tensor | None]) -> Any:
        data, batch_sizes, order, back = input
        if not self._is_ours(data) or data.dim() != 2 or data.size(1) != self.input_size or 0 in data.shape:
            return None
        if _is_autocast() or not _undisturbed():
            return None
        sequences = sequences_of_batch_sizes(batch_sizes, data.size(0))
        if sequences is None or (order is not None and order.size(0) != sequences.batch):
            return None
        training = self._trains(module, data, states, sequences.batch)
        if training is None:
            return None
        hx, cx = states[:2]
        if order is not None and (hx is not None or cx is not None):
            hx, cx = (None if state is None else state.index_select(1, order) for state in (hx, cx))
        output, hy, cy, cells = self._compute(module, data, hx, cx, training, sequences, False)
        if back is not None:
            hy = hy.index_select(1, back)
            cy = cy.index_select(1, back) if self.is_lstm else cy
        return PackedSequence(output, batch_sizes, order, back), hy, cy, cells

    def _trains(self, module: Any, input: Tensor, states: Sequence[Tensor | None], batch: int | None) -> bool | None:
        """Whether a gradient is wanted; None where states or parameters are not what these calls have. batch: number of
        sequences; None: an unbatched one."""
        hx, cx, reset_hx, reset_cx = states
        if reset_hx is not None or reset_cx is not None or (cx is not None and not self.is_lstm):
            return None
        wants_grad = self.own.want_grad(module)
        if wants_grad is None:
            return None
        wants_grad = wants_grad or input.requires_grad
        if hx is not None or cx is not None:
            for state, (count, size) in zip((hx, cx), self.state_shapes, strict=True):
                if state is not None:
                    shape = (count, size) if batch is None else (count, batch, size)
                    if not self._is_ours(state) or state.shape != shape:
                        return None
                    wants_grad = wants_grad or state.requires_grad
        return wants_grad and _is_grad_enabled()

    def _is_ours(self, tensor: Any) -> bool:
        """Whether it has the type, the dtype and the device of this layer's."""
        return (
            type(tensor) in _PLAIN
            and tensor.dtype is self.dtype
            and tensor.is_cpu is self.is_cpu
            and tensor.get_device() == self.index
            and tensor.layout is _strided
            and not tensor.is_nested
            and not tensor.is_neg()
        )

    def _compute(
        self,
        module: Any,
        input: Tensor,
        hx: Tensor | None,
        cx: Tensor | None,
        training: bool,
        sequences: Sequences | None,
        is_torchs: bool,
    ) -> Results:
        """The call, of arguments that have been checked. sequences: None where all are as long as the input.
        is_torchs: torch's operators have such calls."""
        config = self.config
        if training and self.is_stack:
            config = without_frozen_layers(input, hx, cx, self.weights, config)
        # What serves a call depends on these, and the library's objects are a thread's.
        if sequences is None:
            steps, batch, _ = input.shape
            last = batch
        else:
            steps, batch, last = len(sequences), sequences.batch, sequences[-1]
            if last < batch and steps > EXACT_STEPS:
                last = 0
            if last == batch:  # all as long, but shorter than the input
                steps = -steps
        tf32 = self.has_tf32 and allows_tf32_rnn()
        size = (steps, batch, last, training, config.frozen_layers, tf32, is_benchmark(), this_thread.token)
        call = self.calls.get(size)
        if call is None:
            if len(self.calls) >= _MOST_SIZES:
                self.calls.clear()
            first = even_sequences(steps, batch) if sequences is None else sequences
            call = self.calls[size] = self._find(config, first, (input, hx, cx), training)
        return call_plainly(call, sequences or call.sequences, input, hx, cx, self.weights, training)

    def _find(self, given: Config, sequences: Sequences, data: Data, training: bool) -> PlainCall:
        """What serves calls of a size in this thread. data: input, packed or (T, N, I), hx and cx."""
        stack = layer(given, self.dtype, self.input_size, self.device)
        stack.follow_precision()
        with torch.no_grad():
            config = kernels.config_of_call(stack, sequences, data, self.weights, None, training)
        served = stack.served_by(config)
        return PlainCall(served, this_thread.token, self.addresses, self.layouts, given, set(), sequences)


class CallsOnCpu(EagerCalls):
    """Calls on the CPU; in bfloat16 torch's operator runs the calls that it serves faster."""

    def __init__(self, module: Any, *rest: Any) -> None:
        super().__init__(module, *rest)
        self.takes_torchs = self.dtype == torch.bfloat16 and takes_torchs(module)
        if self.takes_torchs:
            self._compute = self._compute_half  # type: ignore[method-assign]

    def _compute_half(
        self, module: Any, input: Tensor, hx: Any, cx: Any, training: bool, sequences: Sequences | None, is_torchs: bool
    ) -> Results:
        if is_torchs and is_faster(module, False, training, *input.shape[:2]):
            return run_operator(module, input, hx, cx, module._flat_weights, None)
        return EagerCalls._compute(self, module, input, hx, cx, training, sequences, is_torchs)

    def _run_packed(self, module: Any, input: PackedSequence, states: Sequence[Tensor | None]) -> Any:
        return None if self.takes_torchs else super()._run_packed(module, input, states)


class CallsOnCuda(EagerCalls):
    """Calls on a GPU. Calls that TorchsCalls serves are torch's operator's; calls that are captured go the long way."""

    def __init__(self, module: Any, *rest: Any) -> None:
        super().__init__(module, *rest)
        self.torchs = torchs_calls(module, *rest) if self.is_any else None

    def run(self, module: Any, input: Any, states: Sequence[Tensor | None], lengths: object) -> Any:
        torchs = self.torchs
        trains = _is_grad_enabled() and self.own.parameters[0].requires_grad
        if lengths is None and torchs is not None and (torchs.takes[1] or not trains):
            results = torchs.run(module, input, states)
            if results is not None:
                return results
        if _current_gpu() != self.index or _is_capturing():
            return None
        return super().run(module, input, states, lengths)


def eager_calls(module: Any, input: Any) -> EagerCalls | None:
    """The short calls of a module that is called with this input; None where such a call goes the long way."""
    data = input.data if type(input) is PackedSequence else input
    dropout = module.dropout if module.training and module.num_layers > 1 else 0.0
    if dropout > 0 or module.heads > 1 or uses_masks(module) or type(data) is not Tensor or data.is_nested:
        return None
    if not _undisturbed() or _is_autocast() or data.dim() < 2 or data.size(-1) != module.input_size:
        return None
    parameters = own_parameters(module)
    if parameters is None or not (data.is_cpu or data.is_cuda) or data.dtype not in DTYPES:
        return None
    first = parameters[0]
    if any(p.dtype != data.dtype or p.device != data.device for p in parameters) or first.is_meta:
        return None
    weights, config = module._packed_weights(), configuration(module, module.mode, 0.0)
    return (CallsOnCpu if data.is_cpu else CallsOnCuda)(module, parameters, data, weights, config)

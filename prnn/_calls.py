"""Eager calls of a module: from forward()'s arguments to what was prepared for calls of their size.

The host's time is most of a call of a layer of few units and timesteps. So a call checks its arguments by themselves
alone, and looks up the rest in one table of the module, ModuleCalls.calls."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from prnn import _options
from prnn._C import Sequences
from prnn._layer_arguments import checked_lengths
from prnn._ops._autocast import cast_weights, casts_of
from prnn._ops._call import NO_OPTIONS, Call, Data, Options, lie_packed, pack_weights, prepare
from prnn._ops._dropout import draw_seed
from prnn._ops._handles import DTYPES, this_thread
from prnn._ops._layer import EXACT_STEPS, Config, layer, without_frozen_layers
from prnn._ops._measured import is_benchmark
from prnn._ops._operator import PLAIN
from prnn._ops._precision import allows_tf32_rnn
from prnn._ops._rnn_function import EagerCall, Places, apply, cast_call
from prnn._ops._sequences import sequences_of
from prnn._own_parameters import OwnParameters
from prnn._torch_on_cpu import run_torchs, takes_torchs

__all__ = ["ModuleCalls"]

_MOST_SIZES = 256  # entries of a module's table before it starts anew

# Functions that every call uses, by names of this module: each look-up of an attribute takes time.
_is_autocast, _is_grad_enabled = torch.is_autocast_enabled, torch.is_grad_enabled
_current_gpu, _is_capturing = torch.cuda.current_device, torch.cuda.is_current_stream_capturing
_strided, _bool, _float64, _bfloat16 = torch.strided, torch.bool, torch.float64, torch.bfloat16

Results = tuple[Tensor, Tensor, Tensor, Tensor]
States = Sequence[Tensor | None]


class ModuleCalls:
    """The calls of a module, to be made anew when an attribute or a parameter of it changes."""

    def __init__(self, module: Any, weights: Sequence[Tensor]) -> None:
        first = weights[0]
        self.dtype, self.device, self.index = first.dtype, first.device, first.get_device()
        self.is_cpu, self.is_gpu = first.is_cpu, first.is_cuda
        self.device_type, self.has_tf32 = first.device.type, first.is_cuda and first.dtype == torch.float32
        self.config = config = _options.configuration_of(module)
        cell_states = _options.CELL_STATES.get(module.mode, 0)
        self.has_cells = cell_states > 0
        self.is_normalized = module.normalize != "none"  # of which the library's prepared calls know nothing
        # A call that may have dropout, resets and cells of every timestep, and no other options.
        self.is_plain = config.heads == 1 and config.zoneout == 0 and config.mask_kinds == 0 and not self.is_normalized
        self.nothing = first.new_empty(0)
        self.input_size, self.batch_first = module.input_size, module.batch_first
        states = config.num_layers * (2 if config.bidirectional else 1)
        shapes = (states, config.proj_size or config.hidden_size), (cell_states * states, config.hidden_size)
        self.state_shapes = [*shapes, *shapes]
        # Calls in bfloat16 on the CPU that torch's operator may serve.
        self.takes_torchs = self.is_cpu and takes_torchs(module)
        self.weights, self.places = list(weights), None
        self.own = OwnParameters.of(module, self.dtype, self._are_mine)
        self.calls: dict[tuple[object, ...], Call] = {}  # by _run()'s key
        if self.own is not None and not self.is_normalized:
            stack = layer(config, self.dtype, self.input_size, self.device)
            input = first.new_empty(0, self.input_size)
            if lie_packed(self.weights, stack, input):
                self.places = Places(self.weights)

    @staticmethod
    def of(module: Any) -> "ModuleCalls | None":
        """The calls of a module; None of one on another device than a CPU or GPU, or with tensors of other classes."""
        weights = module._packed_weights()
        first = weights[0]
        if not (first.is_cpu or first.is_cuda) or type(first) not in PLAIN or first.dtype not in DTYPES:
            return None
        return ModuleCalls(module, weights)

    def run(
        self, module: Any, input: Any, states: States, lengths: Any, reset: Tensor | None, return_cells: bool
    ) -> Any:
        """Output, hy, cy and cells, without elements where there are none, in forward()'s layout. None where arguments
        are wrong, or their tensors not plain ones. states: hx, cx, and those of reset_hx."""
        if self.is_gpu and _current_gpu() != self.index:
            with torch.cuda.device(self.device):
                return self.run(module, input, states, lengths, reset, return_cells)
        own = self.own
        if own is not None:
            weights = self.weights
            wants_grad = own.want_grad(module)
            if wants_grad is None:
                return module._make_calls_and_run(input, states, lengths, reset, return_cells)
        else:
            weights, wants_grad = module._packed_weights(), False
            for weight in weights:
                wants_grad = wants_grad or weight.requires_grad
            if not self._are_mine(weights) or any(weight.dtype is not self.dtype for weight in weights):
                vars(module).pop("_calls", None)
                return None
        is_cast = _is_autocast(self.device_type)

        batch_sizes: Any = None
        max_batch: int | None = None
        order = back = sequences = None
        is_packed = type(input) is PackedSequence
        if is_packed:
            input, batch_sizes, order, back = input
        if type(input) not in PLAIN or input.get_device() != self.index or input.is_cpu is not self.is_cpu:
            return None
        if input.layout is not _strided or input.is_nested or input.is_neg():
            return None
        if input.dtype is not self.dtype and not (is_cast and self._is_castable(input)):
            return None
        shape, wants_grad = input.shape, wants_grad or input.requires_grad
        if len(shape) < 2 or shape[-1] != self.input_size or 0 in shape:
            return None
        is_time_second = False
        if reset is not None:
            if type(reset) not in PLAIN or reset.dtype is not _bool or reset.shape != shape[:-1]:
                return None
            if reset.get_device() != self.index or reset.layout is not _strided or reset.is_meta:
                return None
        elif states[2] is not None or states[3] is not None:
            return None
        if is_packed:
            if len(shape) != 2 or lengths is not None:
                return None
            sequences = Sequences.of_sizes(batch_sizes.tolist(), shape[0])
            if sequences is None or (order is not None and order.size(0) != sequences.batch):
                return None
            batch = max_batch = sequences.batch
            own_shape: tuple[int, ...] = (batch,)
        elif len(shape) == 3:
            is_time_second = self.batch_first
            steps, batch, _ = shape
            if is_time_second:
                steps, batch = batch, steps
                input, reset = input.transpose(0, 1), None if reset is None else reset.transpose(0, 1)
            own_shape = (batch,)
            if lengths is not None:
                is_tensor = type(lengths) is Tensor
                if is_tensor and lengths.is_cuda and not self.is_plain:
                    lengths = checked_lengths(lengths, batch, input)  # kernels may serve the call that read them there
                elif is_tensor and (lengths.is_meta or (lengths.is_cuda and _is_capturing())):
                    return None
                else:
                    values = lengths.tolist() if is_tensor else lengths
                    if (sequences := Sequences.of_lengths(values, steps, batch)) is None:
                        return None
        elif len(shape) == 2 and lengths is None:
            input, reset, batch = input.unsqueeze(1), None if reset is None else reset.unsqueeze(1), 1
            own_shape = ()
        else:
            return None
        hx, cx = states[:2]
        if hx is not None or cx is not None or reset is not None:
            if not self._are_mine(states):
                return None
            checked = []
            for state, (count, size) in zip(states, self.state_shapes, strict=True):
                if state is not None:
                    if state.shape != (count, *own_shape, size):
                        return None
                    if state.dtype is not input.dtype and not (is_cast and self._is_castable(state)):
                        return None
                    wants_grad = wants_grad or state.requires_grad
                    if not own_shape:
                        state = state.unsqueeze(1)
                    elif order is not None:
                        state = state.index_select(1, order)
                checked.append(state)
            hx, cx, *_ = states = checked
            if cx is not None and not self.has_cells:
                return None
        training = wants_grad and _is_grad_enabled()

        is_torchs = self.takes_torchs and (is_cast or self.dtype is _bfloat16)
        is_torchs = is_torchs and reset is None and lengths is None and not return_cells
        if is_torchs and (torchs := run_torchs(module, input, hx, cx, weights, batch_sizes, training)):
            results = torchs
        else:
            config = self.config
            if reset is not None or return_cells:
                config = config._replace(has_reset=reset is not None, return_cells=return_cells)
            layout = (batch_sizes, lengths, max_batch, sequences, training, is_cast)
            if self.is_plain and (reset is None or self.is_cpu or _options.resets_in_kernels(config, input, batch)):
                options = NO_OPTIONS
                if reset is not None or config.dropout > 0:
                    options = (reset, None, None, draw_seed(self.device, 2) if config.dropout > 0 else None, None)
                    if states[2] is not None or states[3] is not None:
                        hx, cx = _options.with_reset_states(states)
                results = self._run(input, hx, cx, weights, layout, options, config)
            else:
                results = _options.compute(module, config, input, states, weights, layout, reset, self._run)
        if is_packed or is_time_second or not own_shape:
            packed = (batch_sizes, order, back) if is_packed else None
            return _options.in_layout_of_input(results, packed, is_time_second)
        return results

    def _are_mine(self, tensors: Sequence[Any]) -> bool:
        """Whether all, but for None, are plain tensors that hold their values, on the module's device."""
        for tensor in tensors:
            if tensor is not None and (
                type(tensor) not in PLAIN
                or tensor.get_device() != self.index
                or tensor.is_cpu is not self.is_cpu
                or tensor.layout is not _strided
                or tensor.is_nested
                or tensor.is_neg()
            ):
                return False
        return True

    def _is_castable(self, tensor: Tensor) -> bool:
        """Whether autocast makes the tensor one of the type of the weights."""
        return self.dtype is not _float64 and tensor.dtype in DTYPES and tensor.dtype is not _float64

    def _run(
        self,
        input: Tensor,
        hx: Tensor | None,
        cx: Tensor | None,
        weights: Sequence[Tensor],
        layout: _options.Layout,
        options: Options,
        config: Config,
    ) -> Results:
        """The call, of arguments that have been checked, as compute() takes it."""
        batch_sizes, lengths, _, sequences, training, is_cast = layout
        if config.heads > 1:
            hx, cx, recurrent = _options.by_head(config, hx, cx, options[2])
            options = options if recurrent is None else (*options[:2], recurrent, *options[3:])
        if sequences is None and (batch_sizes is not None or lengths is not None):
            sequences = sequences_of(input, batch_sizes, lengths)
        dtype, casts, places = input.dtype, None, self.places if weights is self.weights else None
        if sequences is None:
            steps, batch, _ = input.shape
            last, is_padded = batch, False
        else:
            steps, batch, last, is_padded = sequences.shape
        if is_cast and self.dtype is not _float64:
            is_even = last == batch
            casts = casts_of(input, hx, cx, is_even, config.mode, config.proj_size)
            dtype = casts.computed
        frozen, keeps_reserve = 0, training
        if training:
            if config.num_layers > 1 and not weights[0].requires_grad:
                frozen = without_frozen_layers((input, hx, cx), weights, config).frozen_layers
        elif config.dropout > 0 or config.return_cells:
            keeps_reserve = True
            if self.is_cpu:  # no backward pass will want the reserve space
                frozen = config.num_layers - config.return_cells
        # The key of the prepared calls: backends depend on it, and the library's objects belong to a thread.
        if last < batch and steps > EXACT_STEPS:
            last = 0
        if last == batch and is_padded:  # all as long, but shorter than the input
            steps = -steps
        has_options = config.has_reset + 2 * config.return_cells + 4 * config.gates_input + 8 * config.reverse
        on_gpu = None if not self.is_gpu else (self.has_tf32 and allows_tf32_rnn(), is_benchmark(), _is_capturing())
        size = (steps, batch, last, keeps_reserve, frozen, has_options, dtype, on_gpu, this_thread.token)
        call = self.calls.get(size)
        if call is None:
            if frozen > 0:
                config = config._replace(frozen_layers=frozen)
            given = (input, hx, cx), weights
            call = self._prepare(size, config, given, sequences, options[3], keeps_reserve, dtype)
        if sequences is None:
            sequences = call.sequences
        if training:
            eager = EagerCall(call, sequences, places, casts)
            output, hy, cy, cells = apply(input, hx, cx, (eager, options), *weights)
        else:
            data = (input, hx, cx)
            packed: Any = None
            if casts is not None:
                data, packed = cast_call(casts, data, weights, places)
            if packed is None:
                packed = weights[0] if places is not None else pack_weights(weights, call.stack, data[0])
            output, hy, cy, _, cells = call.forward(sequences, data, packed, options)
            if casts is not None:
                output, hy, cy, cells = casts.results(output, hy, cy, cells)  # type: ignore[arg-type]
        if cy is None or cells is None:
            cy, cells = self.nothing if cy is None else cy, self.nothing if cells is None else cells
            hy = self.nothing if hy is None else hy
        if config.heads > 1:
            hy, cy = _options.by_layer(config, hy, cy)
        return output, hy, cy, cells

    def _prepare(
        self,
        size: tuple[object, ...],
        config: Config,
        given: tuple[Data, Sequence[Tensor]],
        sequences: Sequences | None,
        seed: Tensor | None,
        training: bool,
        dtype: torch.dtype,
    ) -> Call:
        """given: the data and the weights of the first call of the size; dtype: that it computes in."""
        (input, hx, cx), weights = given
        if sequences is None:
            sequences = Sequences.even(*input.shape[:2])
        stack = layer(config, dtype, input.size(-1), self.device)
        data = input.to(dtype), None if hx is None else hx.to(dtype), None if cx is None else cx.to(dtype)
        call = prepare(stack, sequences, data, cast_weights(weights, dtype), seed, training)
        if len(self.calls) >= _MOST_SIZES:
            self.calls.clear()
        self.calls[size] = call
        return call

"""Prepared calls of a module: eager ones, of plain tensors that nobody traces or transforms.

The host's time is most of a call of a layer of few units and timesteps. So a call asks whether it is plain, and looks
up the rest in one table of the module, ModuleCalls.calls."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from prnn import _options
from prnn._C import Sequences
from prnn._layer_arguments import state_shapes
from prnn._ops._autocast import cast_weights, casts_of
from prnn._ops._call import Call, Data, Options, lie_packed, pack_weights, prepare
from prnn._ops._handles import DTYPES, this_thread
from prnn._ops._layer import EXACT_STEPS, Config, layer, without_frozen_layers
from prnn._ops._measured import is_benchmark
from prnn._ops._operator import PLAIN
from prnn._ops._precision import allows_tf32_rnn
from prnn._ops._rnn_function import EagerCall, Places, apply, cast_call
from prnn._ops._sequences import sequences_of
from prnn._torch_on_cpu import takes_torchs

__all__ = ["ModuleCalls"]

_MOST_SIZES = 256  # entries of a module's table before it starts anew

# Functions that every call uses, by names of this module: each look-up of an attribute takes time.
_is_capturing = torch.cuda.is_current_stream_capturing
_strided, _float64 = torch.strided, torch.float64

Results = tuple[Tensor, Tensor, Tensor, Tensor]


class ModuleCalls:
    """The calls of a module, to be made anew when an attribute or a parameter of it changes."""

    def __init__(self, module: Any, weights: Sequence[Tensor]) -> None:
        first = weights[0]
        self.dtype, self.device, self.index = first.dtype, first.device, first.get_device()
        self.is_cpu, self.is_gpu = first.is_cpu, first.is_cuda
        self.device_type, self.has_tf32 = first.device.type, first.is_cuda and first.dtype == torch.float32
        self.config = config = _options.configuration_of(module)
        self.is_normalized = module.normalize != "none"  # of which the library's prepared calls know nothing
        # Calls without resets, in which compute() would find nothing to do.
        self.is_bare = config.dropout == 0 and config.mask_kinds == 0 and not self.is_normalized
        self.state_shapes = state_shapes(module)
        self.nothing = first.new_empty(0)
        # Calls in bfloat16 on the CPU that torch's operator may serve.
        self.takes_torchs = self.is_cpu and takes_torchs(module)
        self.weights, self.places = list(weights), None
        self._flat = module._flat_weights  # which subclasses with DropConnect write to
        self._known = self._known_parameters(module)
        self.calls: dict[tuple[object, ...], Call] = {}  # by run()'s key
        if self._known is not None and not self.is_normalized:
            stack = layer(config, self.dtype, module.input_size, self.device)
            if lie_packed(self.weights, stack, first.new_empty(0, module.input_size)):
                self.places = Places(self.weights)

    @staticmethod
    def of(module: Any) -> "ModuleCalls | None":
        """The calls of a module; None of one on another device than a CPU or GPU, or with tensors of other classes."""
        weights = module._packed_weights()
        first = weights[0]
        if not (first.is_cpu or first.is_cuda) or type(first) not in PLAIN or first.dtype not in DTYPES:
            return None
        return ModuleCalls(module, weights)

    def _known_parameters(self, module: Any) -> "list[tuple[str, Parameter, int, torch.Size]] | None":
        """Name, parameter, address and shape of each weight. None where the module does not tell which weights it has
        (subclasses of Parameter, or other tensors in the list of flat weights), or where they are not all of the type,
        whole, and on the device."""
        found = []
        for name, flat in zip(module._flat_weights_names, self._flat, strict=True):
            if module._parameters.get(name) is not flat or type(flat) is not Parameter or flat.layout is not _strided:
                return None
            if flat.is_nested or flat.is_neg() or flat.device != self.device or flat.dtype is not self.dtype:
                return None
            if not flat.is_contiguous():
                return None
            found.append((name, flat, flat.data_ptr(), flat.shape))
        return found

    def of_plain(self, module: Any, tensors: Sequence[Any]) -> "tuple[ModuleCalls, Sequence[Tensor], bool] | None":
        """Whether a call is plain: of tensors of torch's own classes that hold their values. Then the module's calls,
        which are others once a parameter has changed, its weights, and whether something wants a gradient.

        tensors: the arguments, some of which may be None, and others no tensors. torch.compile cannot trace this."""
        wants_grad = False
        if self._known is not None:
            weights, parameters, dtype = self.weights, module._parameters, self.dtype
            for (name, parameter, address, shape), flat in zip(self._known, self._flat, strict=True):
                if (
                    parameters.get(name) is not parameter
                    or flat is not parameter
                    or parameter.data_ptr() != address
                    or parameter.dtype is not dtype
                    or parameter.shape != shape
                    or not parameter.is_contiguous()
                ):
                    calls = module._make_calls()
                    return None if calls is None else calls.of_plain(module, tensors)
                wants_grad = wants_grad or parameter.requires_grad
        else:
            weights = module._packed_weights()
            if any(weight.dtype is not self.dtype or weight.device != self.device for weight in weights):
                vars(module).pop("_calls", None)
                return None
            tensors = (*weights, *tensors)
        for tensor in tensors:
            if tensor is not None:
                if type(tensor) not in PLAIN or tensor.layout is not _strided or tensor.is_nested:
                    return None
                if tensor.is_neg():
                    return None
                wants_grad = wants_grad or tensor.requires_grad
        return self, weights, wants_grad

    def run(
        self,
        input: Tensor,
        hx: Tensor | None,
        cx: Tensor | None,
        weights: Sequence[Tensor],
        layout: _options.Layout,
        options: Options,
        config: Config,
    ) -> Results:
        """A plain call, of arguments that have been checked: a Run of compute()."""
        batch_sizes, lengths, _, sequences, training, is_cast = layout
        if config.heads > 1:
            hx, cx, recurrent = _options.by_head(config, hx, cx, options[2])
            options = options if recurrent is None else (*options[:2], recurrent, *options[3:])
        if sequences is None and (batch_sizes is not None or lengths is not None):
            sequences = sequences_of(input, batch_sizes, lengths)
        dtype, casts = input.dtype, None
        places = self.places if weights is self.weights else None
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
        has_options = 0
        if config is not self.config:
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

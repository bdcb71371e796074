"""Eager calls of small layers on a GPU that cuDNN serves, by torch's operator.

prnn's library has cuDNN run the same kernels, but such a call is as long as the host takes for it: torch's operator
takes less, and its node of autograd is not one of Python. Captured calls, which take the host no time, stay the
library's, which has fewer kernels there."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from prnn._ops import _call as kernels
from prnn._ops._handles import device_of, handle, this_thread
from prnn._ops._layer import Config, layer
from prnn._ops._measured import is_benchmark
from prnn._ops._precision import allows_tf32_rnn
from prnn._ops._torch_private import cuda_current_stream as _current_stream
from prnn._ops._torch_private import cudnn_enabled as _is_enabled
from prnn._ops._torch_private import cudnn_rnn as _cudnn_rnn
from prnn._ops._torch_private import is_undisturbed
from prnn._own_parameters import OwnParameters

__all__ = ["TorchsCalls", "torchs_calls"]

# Timesteps and sequences beyond which a call is as long as its kernels.
_MOST_STEPS, _MOST_BATCH = 128, 64

_MOST_SIZES = 256  # that are remembered

# Each look-up takes time.
_is_autocast = torch.is_autocast_enabled
_is_grad_enabled, _is_capturing = torch.is_grad_enabled, torch.cuda.is_current_stream_capturing
_strided = torch.strided


Size = tuple[int, int, bool, bool, bool, int, object]


class TorchsCalls:
    """The calls of a module that torch's operator runs: with an input (T, N, I), or (N, T, I) with batch_first, or
    (T, I), and states, without lengths, resets and masks. To be made anew when an attribute or a parameter of the
    module changes.

    Whatever is looked at in every call takes time, so that a size that has been found once is found at once."""

    def __init__(
        self, module: Any, parameters: list[Parameter], input: Tensor, weights: Sequence[Tensor], config: Config
    ) -> None:
        self.stack = stack = layer(config, input.dtype, input.size(-1), input.device)
        self.takes = stack.takes_torchs
        self.config, self.dtype, self.device, self.index = config, input.dtype, input.device, input.get_device()
        self.input_size, self.time = input.size(-1), 1 if module.batch_first else 0
        self.own = OwnParameters(module, parameters, input.dtype)
        self.packed = list(weights)
        with torch.inference_mode(False):  # calls with gradients cannot keep what is made in it
            together = _together(weights, stack.params_size)
        self.first = (parameters, len(parameters) // stack.states, together)
        rest = (config.hidden_size, 0, config.num_layers, module.batch_first, 0.0)  # no projection, no dropout
        self.last: dict[bool, tuple[Any, ...]] = {
            training: (config.mode, *rest, training, config.bidirectional, [], None) for training in (False, True)
        }
        self.nothing = input.new_empty(0)
        # Zeros for states that are not given, of sizes that are torch's (timesteps, sequences, whether there are
        # gradients, those of weights and tf32, stream and thread): filled once, in the stream whose calls have them.
        # And sizes that are not (timesteps, sequences, whether there is tf32, gradients are enabled, the first weight
        # wants one).
        self.zeros: dict[Size, Tensor] = {}
        self.librarys: set[tuple[int, int, bool, bool, bool]] = set()

    def run_if_faster(self, module: Any, input: Any, states: Sequence[Tensor | None]) -> Any:
        """run() where torch's operator serves the layer as it is: with trained weights, or without."""
        trains = _is_grad_enabled() and self.own.parameters[0].requires_grad
        return self.run(module, input, states) if self.takes[1] or not trains else None

    def run(self, module: Any, input: Any, states: Sequence[Tensor | None]) -> Any:
        """Output, hy, cy, without elements but for an LSTM, and no cells; None where the call is the library's, which
        also says what is wrong with arguments. states: hx, cx, and those of a reset."""
        if type(input) is not Tensor or input.is_nested or input.dtype is not self.dtype or not is_undisturbed():
            return None
        shape = input.shape
        if len(shape) == 2:
            return self._run_one(module, input, states)
        if len(shape) != 3 or shape[2] != self.input_size:
            return None
        steps, batch = shape[self.time], shape[1 - self.time]
        tf32, is_grad_enabled = allows_tf32_rnn(), _is_grad_enabled()
        size = (steps, batch, tf32, is_grad_enabled, self.own.parameters[0].requires_grad)
        if (
            size in self.librarys
            or input.device != self.device
            or input.layout is not _strided
            or states[2] is not None
            or states[3] is not None
            or _is_autocast(self.device.type)
            or is_benchmark()
            or not _is_enabled()
            or _is_capturing()
        ):
            return None
        trains = self.own.want_grad(module)
        if trains is None:
            return None
        wants_grad = trains or input.requires_grad
        hx, cx, is_lstm = states[0], states[1], self.stack.is_lstm
        for state in (hx, cx):
            if state is not None:
                if not self._is_state(state, batch):
                    return None
                wants_grad = wants_grad or state.requires_grad
        training, trains = wants_grad and is_grad_enabled, trains and is_grad_enabled
        key = (steps, batch, training, trains, tf32, _current_stream(self.index), this_thread.token)
        zeros = self.zeros.get(key)
        is_first = zeros is None
        if zeros is None:
            zeros = self._zeros(key, input, hx, cx)
            if zeros is None:
                if len(self.librarys) >= _MOST_SIZES:
                    self.librarys.clear()
                self.librarys.add(size)
                return None
        output, hy, cy, _, _ = _cudnn_rnn(
            input,
            *self.first,
            zeros if hx is None else hx,
            (zeros if cx is None else cx) if is_lstm else None,
            *self.last[training],
        )
        if is_first and training:
            output.grad_fn.register_prehook(lambda _: self._make_ready(input, hx, cx, trains))
        return output, hy, cy, self.nothing

    def _run_one(self, module: Any, input: Tensor, states: Sequence[Tensor | None]) -> Any:
        """run() of one sequence, (T, I), and states (L D, H)."""
        if any(state is not None and (type(state) is not Tensor or state.dim() != 2) for state in states):
            return None
        batch = 1 - self.time
        batched = [None if state is None else state.unsqueeze(1) for state in states]
        results = self.run(module, input.unsqueeze(batch), batched)
        if results is None:
            return None
        output, hy, cy, nothing = results
        return output.squeeze(batch), hy.squeeze(1), cy.squeeze(1) if self.stack.is_lstm else cy, nothing

    def _is_state(self, state: Tensor, batch: int) -> bool:
        return (
            type(state) is Tensor
            and not state.is_nested
            and state.shape == (self.stack.states, batch, self.config.hidden_size)
            and state.dtype is self.dtype
            and state.device == self.device
            and state.layout is _strided
            and state.is_contiguous()
        )

    def _zeros(self, key: Size, input: Tensor, hx: Tensor | None, cx: Tensor | None) -> Tensor | None:
        """Returns zeros of a size that torch serves, and remembers the size."""
        steps, batch, training, trains, *_ = key
        if not self.takes[trains] or not (0 < steps <= _MOST_STEPS and 0 < batch <= _MOST_BATCH):
            return None
        if not self._is_cudnns(input, hx, cx, training, trains):
            return None
        if len(self.zeros) >= _MOST_SIZES:
            self.zeros.clear()
        known = list(self.zeros.items())  # to which another thread may add
        like = next((zeros for other, zeros in known if other[1] == batch and other[5] == key[5]), None)
        if like is None:
            with torch.inference_mode(False):
                like = input.new_zeros(self.stack.states, batch, self.config.hidden_size)
        self.zeros[key] = like
        return like

    def _is_cudnns(self, input: Tensor, hx: Tensor | None, cx: Tensor | None, training: bool, trains: bool) -> bool:
        """Whether cuDNN serves the call. In the first of its size in this thread the library runs it, too, so that what
        it has there is ready when a call is captured."""
        stack = layer(self.config, self.dtype, self.input_size, self.device)  # this thread's
        x = input.transpose(0, 1) if self.time else input
        with device_of(input):
            stack.follow_precision()
            steps, batch, _ = x.shape
            serves = stack.has_torchs_call(handle(self.device), steps, batch, training=training, trains=trains)
            if serves and stack.is_first("torch", steps, batch, training, trains):
                kernels.run_once((x, hx, cx), self.packed, self.config, training)
        return serves

    def _make_ready(self, input: Tensor, hx: Tensor | None, cx: Tensor | None, trains: bool) -> None:
        """Makes ready the thread of a backward pass, which has a library handle of its own."""
        self._is_cudnns(input, hx, cx, True, trains)


def torchs_calls(
    module: Any, parameters: list[Parameter], input: Tensor, weights: Sequence[Tensor], config: Config
) -> TorchsCalls | None:
    """Returns the packed weights of a module whose weights lie together; None where there are none.

    The parameters are those that the module has packed: what owns its memory otherwise may lose it before a backward
    pass, as FSDP's do, of which torch's node would not know."""
    if any(parameter.untyped_storage().resizable() for parameter in parameters):
        return None
    if True not in layer(config, input.dtype, input.size(-1), input.device).takes_torchs:
        return None
    return TorchsCalls(module, parameters, input, weights, config)


class _Memory:
    """The memory of packed weights, which it keeps alive: each has a storage of its own."""

    def __init__(self, weights: Sequence[Tensor], count: int) -> None:
        self.weights = [weight.detach() for weight in weights]
        kind = {torch.float32: "<f4", torch.float64: "<f8"}[weights[0].dtype]
        place = (weights[0].data_ptr(), False)
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": kind, "data": place, "version": 3}


def _together(weights: Sequence[Tensor], count: int) -> Tensor:
    """Packed weights that lie one after the other as one tensor, on their GPU."""
    return torch.as_tensor(_Memory(weights, count), device=weights[0].device)

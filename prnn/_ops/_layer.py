"""Library objects behind the recurrent operators: one descriptor a configuration, device and thread."""

import ctypes
import threading
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._handles import DTYPES, handle

MODES = {"RNN_RELU": _C.RNN_RELU, "RNN_TANH": _C.RNN_TANH, "LSTM": _C.LSTM, "GRU": _C.GRU}
BACKENDS = {"persistent": _C.PERSISTENT_BACKEND, "cudnn": _C.CUDNN_BACKEND, "best": _C.BEST_BACKEND}

# A descriptor a configuration is kept; beyond this many the cache starts anew (a search over dropout values, say).
_CACHE_LIMIT = 256

_ROWS = 64  # a multiple of the elements of every type in a cache line, to which the CPU's reserve space is aligned


class Config(NamedTuple):
    """What describes a stack of layers, in the order of the operators' schemas. mode and backend are numbers."""

    mode: int
    hidden_size: int
    proj_size: int
    num_layers: int
    bidirectional: bool
    dropout: float
    backend: int


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.layers: dict[tuple[Config, torch.dtype, int, torch.device], Layer] = {}


_local = _ThreadState()
_told: set[str] = set()


class Layer:
    """A stack of layers on one device: the C descriptor and torch memory for what a call needs besides its tensors."""

    def __init__(self, config: Config, dtype: torch.dtype, input_size: int, device: torch.device) -> None:
        if dtype not in DTYPES:
            raise TypeError(f"input has dtype {dtype}; recurrent layers take float32, float64, float16 and bfloat16")
        self.config = config
        self.device = device
        directions = 2 if config.bidirectional else 1
        self.is_lstm = config.mode == MODES["LSTM"]
        self.hidden_size = config.hidden_size
        self.state_size = config.proj_size or config.hidden_size  # of h
        self.output_size = directions * self.state_size
        self.states = directions * config.num_layers
        self.rnn = _C.Rnn(
            config.mode,
            DTYPES[dtype],
            config.hidden_size,
            config.num_layers,
            input_size,
            config.bidirectional,
            False,
            config.proj_size,
            config.dropout,
        )
        self.params_size: int = self.rnn.params_size()  # elements of the packed weights
        if device.type == "cuda":
            self.rnn.set_backend(config.backend)
        self._is_told = device.type != "cuda" or config.backend != BACKENDS["best"]
        self._states: Any = None  # of the last call's dropout; the C descriptor points to it
        if config.dropout > 0 and device.type == "cpu":
            # Not a tensor, for a fake kernel may be the first to want this layer's sizes.
            self._states = ctypes.create_string_buffer(handle(device).dropout_states_size())
            self.seed_dropout(handle(device), 0)
        self._reserve = self._linear_reserve() if device.type == "cpu" else None

    def seed_dropout(self, handle: "_C.Handle", seed: int) -> None:
        """Starts the random numbers of one call's dropout masks."""
        size = handle.dropout_states_size()
        if self.device.type == "cpu":
            address = ctypes.addressof(self._states)
        else:  # memory of this call's own: the call before may still run on another stream
            self._states = torch.empty(size, dtype=torch.uint8, device=self.device)
            address = self._states.data_ptr()
        self.rnn.set_dropout(handle, self.config.dropout, address, size, seed & 0xFFFFFFFFFFFFFFFF)

    def tell_backend(self, handle: "_C.Handle", batch: int) -> None:
        """Warns, once a reason, when backend="best" settles for something other than the resident kernels."""
        if self._is_told:
            return
        self._is_told = True
        reason = self.rnn.query(handle, batch)["reason"]
        if reason and reason not in _told:
            _told.add(reason)
            warnings.warn(f"prnn: not the persistent kernels: {reason}", stacklevel=3)

    def _linear_reserve(self) -> tuple[int, int]:
        """Bytes of the reserve space: (constant, for each _ROWS packed rows). On the CPU it grows with the rows alone,
        and evenly from one multiple of _ROWS to the next."""
        once, twice = (self.rnn.reserve_size(handle(self.device), [_ROWS] * steps) for steps in (1, 2))
        return 2 * once - twice, twice - once

    def reserve_size(self, rows: int, steps: int, batch: int) -> int:
        """Bytes of reserve space for any `steps` timesteps of at most `batch` sequences, at most `rows` rows in all.

        On the CPU an expression of these sizes, which fake kernels can form of symbols."""
        if self._reserve is None:
            return self.rnn.reserve_size(handle(self.device), [int(batch)] * int(steps)) if batch > 0 else 0
        constant, growth = self._reserve
        return constant + growth * ((rows + _ROWS - 1) // _ROWS)

    def workspace(self, handle: "_C.Handle", batch_sizes: Sequence[int]) -> Tensor:
        size = self.rnn.workspace_size(handle, batch_sizes)
        return torch.empty(size, dtype=torch.uint8, device=self.device)


def layer(config: Config, dtype: torch.dtype, input_size: int, device: torch.device) -> Layer:
    """The calling thread's Layer for a configuration."""
    key = (config, dtype, input_size, device)
    found = _local.layers.get(key)
    if found is None:
        if len(_local.layers) >= _CACHE_LIMIT:
            _local.layers.clear()
        found = _local.layers[key] = Layer(config, dtype, input_size, device)
    return found

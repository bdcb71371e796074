"""Library objects behind the recurrent operators: one descriptor a configuration, device and thread."""

import threading
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from prnn import _C
from prnn._ops._handles import DTYPES, handle
from prnn._ops._precision import allows_tf32_rnn

MODES = {"RNN_RELU": _C.RNN_RELU, "RNN_TANH": _C.RNN_TANH, "LSTM": _C.LSTM, "GRU": _C.GRU}
BACKENDS = {"persistent": _C.PERSISTENT_BACKEND, "cudnn": _C.CUDNN_BACKEND, "best": _C.BEST_BACKEND}

# A descriptor a configuration is kept; beyond this many the cache starts anew (a search over dropout values, say).
_CACHE_LIMIT = 256

# So many elements of any type fill whole cache lines, to which arrays in the reserve space are aligned at most.
_UNIT = 64


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
        self._may_settle = device.type == "cuda" and config.backend == BACKENDS["best"]
        self._asked: set[int] = set()  # batch sizes of which tell_backend() knows what runs
        self._has_tf32 = device.type == "cuda" and dtype == torch.float32
        self._math = _C.DEFAULT_MATH
        self._states: Tensor | None = None  # of the last call's dropout; the C descriptor points to it
        if config.dropout > 0:
            self.rnn.set_dropout(handle(device), config.dropout, 0, 0, 0)
        # cuDNN's reserve space has room for every sequence in every timestep, ours for those that are there. cuDNN's
        # backward pass leaves gradients where the gates were, so that it can run once; ours can run again.
        self.reserves_padding = self.spends_reserve = device.type == "cuda" and self._may_run_on_cudnn()
        self._reserve = self._linear_reserve()

    def seed_dropout(self, handle: "_C.Handle", seed: Tensor) -> None:
        """Has one call's dropout masks follow from the seed, (2,) int64 on the device."""
        # Memory of this call's own: the library counts in it, and on a GPU the call before may still run.
        states = seed.clone(memory_format=torch.contiguous_format)
        self.rnn.restore_dropout(handle, self.config.dropout, states.data_ptr(), states.nbytes)
        self._states = states

    def tell_backend(self, handle: "_C.Handle", batch: int) -> None:
        """Warns, once a reason, when backend="best" settles for something other than the resident kernels."""
        if not self._may_settle or batch in self._asked:
            return
        self._asked.add(batch)
        reason = self.rnn.query(handle, batch)["reason"]
        if reason and reason not in _told:
            _told.add(reason)
            warnings.warn(f"prnn: not the persistent kernels: {reason}", stacklevel=3)

    def follow_precision(self) -> None:
        """Lets float32 products on a GPU be rounded to tf32 where torch lets those of its own recurrent layers."""
        if not self._has_tf32:
            return
        math = _C.TF32_MATH if allows_tf32_rnn() else _C.DEFAULT_MATH
        if math != self._math:
            self.rnn.set_math(math)
            self._math = math

    def _may_run_on_cudnn(self) -> bool:
        """Whether cuDNN serves some batch: it may be the better one for large batches alone."""
        library = handle(self.device)
        return any(self.rnn.query(library, batch)["backend"] == BACKENDS["cudnn"] for batch in (1, _UNIT))

    def _linear_reserve(self) -> tuple[int, int, int]:
        """Bytes of the reserve space: (constant, for each _UNIT rows of packed data, for each _UNIT sequences).

        It grows with these alone, and evenly from one multiple of _UNIT to the next."""
        sizes = ([_UNIT], [_UNIT, _UNIT], [2 * _UNIT])
        one, two_steps, two_batches = (self.rnn.reserve_size(handle(self.device), batch) for batch in sizes)
        by_rows, by_batch = two_steps - one, two_batches - two_steps
        return one - by_rows - by_batch, by_rows, by_batch

    def reserve_size(self, rows: int, batch: int) -> int:
        """Bytes that are enough for at most `rows` rows of packed data and `batch` sequences.

        An expression, so that a fake kernel can form it of symbols; an upper bound for the same reason. The library
        checks that it is one."""
        constant, by_rows, by_batch = self._reserve
        return constant + by_rows * ((rows + _UNIT - 1) // _UNIT) + by_batch * ((batch + _UNIT - 1) // _UNIT)

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

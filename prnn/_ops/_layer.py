"""Library objects behind the recurrent operators: one descriptor a configuration, device and thread."""

import bisect
import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from prnn import _C
from prnn._errors import NotSupportedError
from prnn._modes import MODES as MODES
from prnn._ops import _measured
from prnn._ops._handles import DTYPES, handle
from prnn._ops._precision import allows_tf32_rnn

BACKENDS = {"persistent": _C.PERSISTENT_BACKEND, "cudnn": _C.CUDNN_BACKEND, "best": _C.BEST_BACKEND}

# Descriptors of configurations, and sizes of calls, that are kept; beyond this many a cache starts anew.
_CACHE_LIMIT = 256

# Bytes of a workspace that a layer on the CPU keeps for its next call, which then has no memory to allocate.
_KEPT_WORKSPACE = 2**16

# One layer of at most so many timesteps, sequences and units in float32 has the resident kernels in a call of its own,
# also where cuDNN's are faster: those take the host some 30 us longer than they save the GPU
# (docs/resident_kernels_measured.md). RNNs, whose timesteps take cuDNN the least, in inference with fewer timesteps.
_EAGER_STEPS, _EAGER_BATCH, _EAGER_WIDTH = 8, 64, 256
EXACT_STEPS = _EAGER_STEPS  # of more, the sequences of the last timestep do not matter: whether there are fewer does
_EAGER_RNN_STEPS = 2

# So many elements of any type fill whole cache lines, to which arrays in the reserve space are aligned at most.
_UNIT = 64


Sizes = Sequence[int] | _C.Sequences  # sequences in each timestep

# Timesteps that stand for those of the call, sequences, whether their number changes, precision.
SizeKey = tuple[int, int, bool, int]


class Config(NamedTuple):
    """The description of a stack of layers, in the order of the operators' schemas. mode and backend are numbers."""

    mode: int
    hidden_size: int
    proj_size: int
    num_layers: int
    bidirectional: bool
    dropout: float
    backend: int
    return_cells: bool = False
    has_reset: bool = False
    heads: int = 1
    zoneout: float = 0.0
    mask_kinds: int = 0
    frozen_layers: int = 0
    gates_input: bool = False
    reverse: bool = False
    normalize: int = _C.NORMALIZE_NONE
    epsilon: float = 0.0


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.layers: dict[tuple[Any, ...], Any] = {}


_local = _ThreadState()
_told: set[str] = set()


class Layer:
    """A stack of layers on one device: the C descriptor and torch memory for what a call needs besides its tensors."""

    def __init__(self, config: Config, dtype: torch.dtype, input_size: int, device: torch.device) -> None:
        if dtype not in DTYPES:
            raise TypeError(f"input has dtype {dtype}; recurrent layers take float32, float64, float16 and bfloat16")
        self.config = config
        self.dtype = dtype
        self.input_size = input_size
        self.device = device
        directions = 2 if config.bidirectional else 1
        self.is_lstm = config.mode == MODES["LSTM"]
        self.takes_gates = self.is_lstm and config.gates_input
        is_slstm = config.mode in (MODES["sLSTM"], MODES["sLSTM_EXP"])
        self.rnn = _C.Rnn(
            *(
                config.mode,
                DTYPES[dtype],
                config.hidden_size,
                config.num_layers,
                input_size,
                config.bidirectional,
                False,
            ),
            *(config.proj_size, config.dropout, config.heads, config.gates_input, config.reverse),
            *(config.normalize, config.epsilon),
        )
        self.hidden_size = config.hidden_size // config.heads
        self.state_size = config.proj_size or self.hidden_size  # of h
        self.output_size = directions * config.heads * self.state_size
        self.cells_size = directions * config.hidden_size
        self.states = directions * config.heads * config.num_layers
        self.cell_states = self.states * (3 if is_slstm else int(self.is_lstm))  # of c, or of c, n and m
        self.params_size: int = self.rnn.params_size()  # elements of the packed weights
        self.gates_shapes: list[tuple[int, ...]] = []  # of the weights of a layer that takes gates
        if self.takes_gates:
            gates, cells = (4 * self.hidden_size,), (self.hidden_size,)
            norm = [gates, gates, cells, cells] if config.normalize != _C.NORMALIZE_NONE else []
            self.gates_shapes = [(*gates, *cells), *norm]
            self.params_size = sum(map(prod, self.gates_shapes))
        # Elements at which the matrices of a stack's layers begin, and behind all of these their biases.
        offsets = (
            [self.rnn.layer_offsets(each, 0) for each in range(config.num_layers)] if config.num_layers > 1 else []
        )
        self._firsts = [matrix for matrix, *_ in offsets] + [bias for *_, bias, _ in offsets]
        if device.type == "cuda":
            self.rnn.set_backend(config.backend)
        # The CPU's handle, which is this thread's, as the layer is; a GPU's follows torch's stream in each call.
        self.library = handle(device) if device.type == "cpu" else None
        self.sets_gradients = device.type == "cpu" or self.takes_gates  # others of weights are added to what is there
        if device.type == "cpu":
            self.rnn.set_wgrad_mode(_C.WGRAD_MODE_SET)
        if config.frozen_layers > 0:
            self.rnn.set_frozen_layers(config.frozen_layers)
        self.kept_workspace: Tensor | None = None
        self._is_gated = config.mode in (MODES["LSTM"], MODES["GRU"])
        self._has_choice = device.type == "cuda" and config.backend == BACKENDS["best"]
        self._has_choice &= not (is_slstm or self.takes_gates)
        self.is_small = config.num_layers == 1 and not config.bidirectional and config.proj_size == 0
        self.is_small &= dtype == torch.float32 and max(config.hidden_size, input_size) <= _EAGER_WIDTH
        self._plans: dict[SizeKey, dict[str, Any]] = {}
        self._bounds: tuple[int, int, int, bool] | None = None
        self.has_tf32 = device.type == "cuda" and dtype == torch.float32
        self.math = _C.DEFAULT_MATH
        if config.dropout > 0:
            self.rnn.set_dropout(self._handle_of_sizes(), config.dropout, 0, 0, 0)
        self.has_options = config.return_cells or config.has_reset or config.mask_kinds > 0 or config.zoneout > 0
        self.has_options |= self.takes_gates
        if self.has_options:  # queries ask whether they are NULL; each call has its own
            self.rnn.set_extras(int(config.has_reset), int(config.return_cells), 0)
            self.rnn.set_masks(config.mask_kinds & 2, config.mask_kinds & 1, config.zoneout)

    def workspace(self, size: int, input: Tensor) -> Tensor:
        """Memory of `size` bytes for one call. None at all, and a little on the CPU, where a call is over when it
        returns, is kept: a layer is one thread's."""
        kept = self.kept_workspace
        if kept is not None and kept.numel() >= size:
            return kept
        made = input.new_empty(size, dtype=torch.uint8)
        if size == 0 or (size <= _KEPT_WORKSPACE and input.is_cpu):
            self.kept_workspace = made
        return made

    def frozen_layers(self, weights: Sequence[Tensor]) -> int:
        """The number of the lowest layers that have no weight that wants a gradient, where some layer has one; else 0.
        weights: as the operators take them."""
        layers, firsts = self.config.num_layers, self._firsts
        lowest, begin = layers, 0
        for weight in weights:
            end = begin + int(weight.numel())
            if weight.requires_grad:
                parts = range(bisect.bisect(firsts, begin) - 1, bisect.bisect_left(firsts, end))
                lowest = min(lowest, *(part % layers for part in parts))
            begin = end
        return lowest % layers

    def _handle_of_sizes(self) -> "_C.Handle":
        """The device's handle; the CPU's for the meta device, which nothing runs on."""
        return handle(torch.device("cpu") if self.device.type == "meta" else self.device)

    def seed_dropout(self, handle: "_C.Handle", states: Tensor) -> None:
        """Has the next call's dropout masks follow from `states`, (2,) int64 on the device, in which the library counts
        that call: memory of its own, which lives until the call returns."""
        self.rnn.restore_dropout(handle, self.config.dropout, states.data_ptr(), states.nbytes)

    def _size_key(self, sequences: Sizes, math: int | None) -> SizeKey:
        batch = sequences[0]
        math = self.math if math is None else math
        return _C.canonical_length(len(sequences)), batch, batch != sequences[-1], math

    def plan(self, handle: "_C.Handle", sequences: Sizes, math: int | None = None) -> dict[str, Any]:
        """Returns what runs for these sequences: the library's answer to prnnQueryRNNSequence, for the precision of the
        last call or another."""
        found = self._plans.get(key := self._size_key(sequences, math))
        if found is None:
            _make_room(self._plans)
            steps, batch, _, math = key
            before = self.math
            self._set_math(math)
            found = self._plans[key] = self.rnn.query(handle, [*[batch] * (steps - 1), sequences[-1]])
            self._set_math(before)
        return found

    def with_backend(self, backend: int) -> Config:
        """The configuration with a backend."""
        return self.config if backend == self.config.backend else self.config._replace(backend=backend)

    def estimate(self, handle: "_C.Handle", sequences: Sizes, *, training: bool, math: int | None = None) -> Config:
        """The configuration with the backend that the library estimates to be faster in the place of "best", for the
        precision of the last call or another. A training step has it by name: its backward pass has to take the same,
        whose reserve space it reads, also where torch's switch for tf32 is another one by then. Warns, once a reason,
        when the resident kernels do not serve a layer that cuDNN may."""
        if not self._has_choice:
            return self.config
        plan = self.plan(handle, sequences, math)
        backend, reason = plan["backend" if training else "inference_backend"], plan["reason"]
        if not plan["supported"] and self.is_served_by_cudnn() and reason not in _told:
            _told.add(reason)
            warnings.warn(f"prnn: not the persistent kernels: {reason}", stacklevel=3)
        if not plan["supported"] and backend == BACKENDS["persistent"]:
            return self.config  # no backend serves it, and the library's error has the reasons of both
        return self.with_backend(backend)

    def eager_config(self, handle: "_C.Handle", sequences: Sizes, *, training: bool) -> tuple[Config, Config]:
        """The configurations of an eager call, which may be one of inference, and of the same call in a CUDA graph. An
        eager call of a small layer has the resident kernels."""
        captured = self.estimate(handle, sequences, training=training)
        most_steps = _EAGER_STEPS if training or self._is_gated else _EAGER_RNN_STEPS
        serves = self._has_choice and self.is_small and len(sequences) <= most_steps and sequences[0] <= _EAGER_BATCH
        serves = serves and self.plan(handle, sequences)["supported"]
        return self.with_backend(BACKENDS["persistent"]) if serves else captured, captured

    def measured_config(
        self, handle: "_C.Handle", sequences: Sizes, run: Callable[[Config], object], *, training: bool
    ) -> Config:
        """The configuration of an eager call with torch.backends.cudnn.benchmark: where both backends serve it,
        run(configuration), a step, is timed with each in the first call of its size."""
        config = self.estimate(handle, sequences, training=training)
        if not (self.is_served_by_cudnn() and self.plan(handle, sequences)["supported"]):
            return config
        key = (self.config, self.dtype, self.input_size, self.device, self._size_key(sequences, None), training)
        both = [self.with_backend(BACKENDS[name]) for name in ("persistent", "cudnn")]
        calls = {each.backend: functools.partial(run, each) for each in both}
        return self.with_backend(_measured.faster_of(key, calls, config.backend))

    def is_served_by_cudnn(self) -> bool:
        """Whether cuDNN may serve the layer in place of the resident kernels: it has no heads, resets, cells of every
        timestep and masks."""
        return self._has_choice and self.config.heads == 1 and not self.has_options

    def spends_reserve(self, handle: "_C.Handle", sequences: Sizes, reserve_size: int) -> bool:
        """Whether the backward pass leaves gradients where the gates were, so that it can run once: always cuDNN's, and
        the other kernels' where the reserve space is too small for both."""
        return self.config.backend == BACKENDS["cudnn"] or reserve_size < self.rnn.reserve_size(handle, sequences)

    def follow_precision(self) -> None:
        """Lets float32 products on a GPU be rounded to tf32 where torch lets those of its own recurrent layers."""
        if not self.has_tf32:
            return
        self._set_math(_C.TF32_MATH if allows_tf32_rnn() else _C.DEFAULT_MATH)

    def _set_math(self, math: int) -> None:
        if math != self.math:
            self.rnn.set_math(math)
            self.math = math

    def reserve_bound(self, rows: int, steps: int, batch: int) -> int:
        """Bytes that are enough for the reserve space of `batch` sequences with `rows` timesteps in all, at most
        `steps` each.

        For operators, which may be traced: an expression of symbols, so that one graph serves all sizes."""
        if self.takes_gates:  # of which arrays are aligned one by one
            return rows * (6 * self.hidden_size * self.dtype.itemsize + 32) + 512
        if self._bounds is None:
            self._bounds = self._find_bounds()
        constant, by_rows, by_batch, pads = self._bounds
        rows, batch = ((count + _UNIT - 1) // _UNIT for count in (steps * batch if pads else rows, batch))
        return constant + by_rows * rows + by_batch * batch

    def _find_bounds(self) -> tuple[int, int, int, bool]:
        """Bytes of the reserve space: (constant, for each _UNIT rows, for each _UNIT sequences), the most of the
        backends that may run; and whether one of them, cuDNN, has rows for every sequence in every timestep. Each grows
        evenly from one multiple of _UNIT to the next."""
        library, wanted = self._handle_of_sizes(), self.config.backend
        cudnn, found = BACKENDS["cudnn"], []
        for backend in (BACKENDS["persistent"], cudnn) if self._has_choice else (wanted,):
            self.rnn.set_backend(backend)
            with suppress(NotSupportedError):
                sizes = ([_UNIT], [_UNIT, _UNIT], [2 * _UNIT])
                one, two_steps, two_batches = (self.rnn.reserve_size(library, batch) for batch in sizes)
                steps, batches = two_steps - one, two_batches - two_steps
                found.append((one - steps - batches, steps, batches, backend == cudnn and self.device.type == "cuda"))
        self.rnn.set_backend(wanted)
        if not found:
            self.rnn.reserve_size(library, [_UNIT])  # raises the library's error
        constants, by_rows, by_batch, pads = zip(*found, strict=True)
        return max(constants), max(by_rows), max(by_batch), any(pads)


def _make_room(cache: dict[Any, Any]) -> None:
    if len(cache) >= _CACHE_LIMIT:
        cache.clear()


def layer(config: Config, dtype: torch.dtype, input_size: int, device: torch.device) -> Layer:
    """The calling thread's Layer for a configuration."""
    key = (config, dtype, input_size, device)
    found: Layer | None = _local.layers.get(key)
    if found is None:
        _make_room(_local.layers)
        found = _local.layers[key] = Layer(config, dtype, input_size, device)
    return found


def without_frozen_layers(data: Sequence[Tensor | None], weights: Sequence[Tensor], config: Config) -> Config:
    """The configuration of a call with a gradient, with the number of its lowest layers that have none. data: input, hx
    and cx."""
    if config.num_layers == 1 or weights[0].requires_grad:
        return config
    if any(tensor is not None and tensor.requires_grad for tensor in data):
        return config
    input = data[0]
    assert input is not None
    frozen = layer(config, input.dtype, int(input.size(-1)), input.device).frozen_layers(weights)
    return config._replace(frozen_layers=frozen) if frozen > 0 else config

"""Recurrent layers with torch.nn's interface, computed by prnn: RNN, GRU and LSTM.

Constructor, parameter names, gate order, initialisation, forward arguments and results are those of torch.nn's modules
of the same names, so that a state_dict goes both ways. What they add: the keyword ``lengths`` of forward, and
``backend``, which says what may serve the layer on a GPU.

Sizes in the docstrings: T timesteps, N sequences, I input_size, H hidden_size, P the size of a state (proj_size if one
is set, else H), L num_layers, D directions (1 or 2).
"""

from collections.abc import Sequence
from operator import index
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.parameter import Parameter
from torch.nn.utils.rnn import PackedSequence
from torch.utils.dlpack import from_dlpack

from prnn._layer_norm_lstm import LayerNormLSTM
from prnn._ops._dropout import draw_seed
from prnn._ops.rnn import BACKENDS, MODES, Config, call

__all__ = ["GRU", "LSTM", "RNN", "LayerNormLSTM"]

Sequences = TypeVar("Sequences", Tensor, PackedSequence)


def _check_tensor(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a tensor")


def _integers(lengths: Sequence[int]) -> list[int]:
    """Of Python's or NumPy's integers."""
    try:
        values = list(lengths)
        if not any(isinstance(value, bool) for value in values):
            return [index(value) for value in values]
    except TypeError:
        pass
    raise TypeError(f"lengths is {lengths!r}; it must hold integers")


def _with_own_storage(view: Tensor) -> Tensor:
    """The same memory, which it keeps alive, as a storage that ends where the view does."""
    if view.device.type == "cuda":
        with torch.cuda.device(view.device):  # DLPack exports tensors of the current GPU alone
            return from_dlpack(view)
    return from_dlpack(view) if view.device.type == "cpu" else view


class _Recurrent(torch.nn.RNNBase):
    """What RNN, GRU and LSTM share: parameters kept in one packed buffer, and the way from torch's data layouts to the
    operator prnn::rnn. torch.nn.RNNBase makes, names and initialises the parameters."""

    backend: str

    def __init__(self, mode: str, *args: Any, backend: str = "best", **kwargs: Any) -> None:
        if not isinstance(backend, str) or backend not in BACKENDS:
            raise ValueError(f"backend is {backend!r}; it must be one of {', '.join(map(repr, BACKENDS))}")
        super().__init__(mode, *args, **kwargs)
        if self.dropout == 1:
            raise ValueError("dropout is 1.0; it must be at least 0 and less than 1")
        self.backend = backend

    # Parameters

    def _init_flat_weights(self) -> None:
        # torch calls this once the parameters have been made, and again after .to() and its like.
        names = [name for group in self._all_weights for name in group]
        is_bias = [name.startswith("bias") for name in names]
        # The order of the packed weights: matrices, then biases; by layer and direction within each.
        self._packed_names = [n for n, bias in zip(names, is_bias, strict=True) if not bias]
        self._packed_names += [n for n, bias in zip(names, is_bias, strict=True) if bias]
        self._zero_biases: Tensor | None = None
        super()._init_flat_weights()

    def flatten_parameters(self) -> None:
        """Moves the parameters into one buffer, one after the other in the order of the packed weights, so that a call
        hands them over without a copy. Each has a storage of its own there, so that saving one does not save all.

        Done by the constructor, by .to() and its like, by load_state_dict, and after copying and unpickling. Parameters
        that are not plain (shared between two names or with other processes, parametrised, on the meta device) stay as
        they are, and each call then copies them."""
        parameters = [self._parameters.get(name) for name in self._packed_names]
        plain = [p for p in parameters if type(p) is Parameter and type(p.data) is Tensor]
        first = plain[0] if len(plain) == len(parameters) else None
        if first is None or any(p.dtype != first.dtype or p.device != first.device for p in plain):
            return
        if first.device.type == "meta" or len({id(p) for p in plain}) < len(plain):
            return
        if first.device.type == "cpu" and any(p.is_shared() for p in plain):
            return
        sizes = [p.numel() for p in plain]
        biases = self._missing_biases()
        with torch.no_grad():
            address = first.data_ptr()
            for parameter, size in zip(plain, sizes, strict=True):
                if parameter.data_ptr() != address or not parameter.is_contiguous():
                    break
                address += size * parameter.element_size()
            else:
                if biases == 0 or (self._zero_biases is not None and self._zero_biases.data_ptr() == address):
                    return
            flat = first.new_zeros(sum(sizes) + biases)
            *views, zero_biases = flat.split([*sizes, biases])
            for parameter, view in zip(plain, views, strict=True):
                view.copy_(parameter.reshape(-1))
                parameter.data = _with_own_storage(view).view(parameter.shape)
            self._zero_biases = zero_biases if biases else None

    def _missing_biases(self) -> int:
        """Elements of the bias part of the packed weights that bias=False leaves to zeros."""
        if self.bias:
            return 0
        gates = {"LSTM": 4, "GRU": 3}.get(self.mode, 1)
        return 2 * gates * self.hidden_size * len(self._all_weights)

    def _packed_weights(self) -> list[Tensor]:
        parameters: dict[str, Any] = self._parameters  # where getattr() looks last; a parametrised weight is elsewhere
        weights = [parameters[name] if name in parameters else getattr(self, name) for name in self._packed_names]
        if not self.bias:
            zeros = self._zero_biases
            if zeros is None or zeros.dtype != weights[0].dtype or zeros.device != weights[0].device:
                zeros = weights[0].new_zeros(self._missing_biases())
            weights.append(zeros)
        return weights

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._init_flat_weights()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        state["_zero_biases"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._init_flat_weights()

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.backend == "best" else f"{text}, backend={self.backend!r}"

    # Forward

    def _check(self, input: Tensor, weight: Tensor) -> None:
        if input.size(-1) != self.input_size:
            raise ValueError(
                f"input has {input.size(-1)} features (shape {tuple(input.shape)}); input_size is {self.input_size}"
            )
        if not input.is_floating_point() and not input.is_complex():
            raise ValueError(
                f"input has dtype {input.dtype}, but the weights have {weight.dtype}; convert it with "
                f".to({weight.dtype})"
            )
        if input.dtype != weight.dtype and not torch.is_autocast_enabled(input.device.type):
            raise ValueError(
                f"input has dtype {input.dtype}, but the weights have {weight.dtype}; "
                f"convert one with .to({weight.dtype}) or the other with .to({input.dtype})"
            )
        if input.device != weight.device:
            raise ValueError(f"input is on {input.device}, but the weights are on {weight.device}")

    def _state(self, state: Tensor | None, name: str, size: int, batch: int | None, input: Tensor) -> Tensor | None:
        """The state as (L D, N, size), after a check against shape, device and dtype; batch None is unbatched."""
        if state is None:
            return None
        _check_tensor(state, name)
        count = self.num_layers * (2 if self.bidirectional else 1)
        expected = (count, size) if batch is None else (count, batch, size)
        if state.shape != expected:
            raise ValueError(f"{name} has shape {tuple(state.shape)}; it must be {expected}")
        if state.device != input.device:
            raise ValueError(f"{name} is on {state.device}, but input is on {input.device}")
        if state.dtype != input.dtype and not torch.is_autocast_enabled(input.device.type):
            raise ValueError(f"{name} has dtype {state.dtype}, but input has {input.dtype}")
        return state.unsqueeze(1) if batch is None else state

    def _lengths(self, lengths: Tensor | Sequence[int], batch: int, input: Tensor) -> Tensor:
        if not isinstance(lengths, Tensor):
            values = _integers(lengths)
            for place, value in enumerate(values):
                if not -(2**63) <= value < 2**63:  # of which there is no tensor
                    raise ValueError(f"lengths[{place}] is {value}; it must lie between 1 and the timesteps of input")
            lengths = torch.tensor(values, dtype=torch.int64)
        if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
            raise TypeError(f"lengths has dtype {lengths.dtype}; it must hold integers")
        if lengths.shape != (batch,):
            raise ValueError(f"lengths has shape {tuple(lengths.shape)}; it must be ({batch},), one for each sequence")
        if lengths.is_meta and not input.is_meta:
            raise ValueError(f"lengths is on {lengths.device}, but input is on {input.device}")
        return lengths

    def _run(
        self,
        input: Sequences,
        hx: Tensor | None,
        cx: Tensor | None,
        lengths: Tensor | Sequence[int] | None,
        names: tuple[str, str],
    ) -> tuple[Sequences, Tensor, Tensor]:
        weights = self._packed_weights()
        if isinstance(input, PackedSequence):
            if lengths is not None:
                raise ValueError("lengths is given, but input is a PackedSequence, which has its own")
            data, batch_sizes, sorted_indices, unsorted_indices = input
            self._check(data, weights[0])
            batch = int(batch_sizes[0]) if sorted_indices is None else sorted_indices.size(0)
            hx, cx = self._states(hx, cx, batch, names, data)
            if sorted_indices is not None:
                hx = None if hx is None else hx.index_select(1, sorted_indices)
                cx = None if cx is None else cx.index_select(1, sorted_indices)
            output, hy, cy = self._call(data, hx, cx, weights, batch_sizes, None, batch)
            if unsorted_indices is not None:
                hy = hy.index_select(1, unsorted_indices)
                cy = cy.index_select(1, unsorted_indices) if self.mode == "LSTM" else cy
            return PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices), hy, cy

        _check_tensor(input, "input")
        if input.dim() not in (2, 3):
            raise ValueError(
                f"input has {input.dim()} dimensions (shape {tuple(input.shape)}); it must have 3, or 2 if unbatched"
            )
        self._check(input, weights[0])
        if input.dim() == 2:
            if lengths is not None:
                raise ValueError(
                    "lengths is given, but input has 2 dimensions: one sequence, which is as long as it is"
                )
            hx, cx = self._states(hx, cx, None, names, input)
            output, hy, cy = self._call(input.unsqueeze(1), hx, cx, weights, None, None, None)
            return output.squeeze(1), hy.squeeze(1), cy.squeeze(1) if self.mode == "LSTM" else cy
        if self.batch_first:
            input = input.transpose(0, 1)
        batch = input.size(1)
        hx, cx = self._states(hx, cx, batch, names, input)
        if lengths is not None:
            lengths = self._lengths(lengths, batch, input)
        output, hy, cy = self._call(input, hx, cx, weights, None, lengths, None)
        return output.transpose(0, 1) if self.batch_first else output, hy, cy

    def _states(
        self, hx: Tensor | None, cx: Tensor | None, batch: int | None, names: tuple[str, str], input: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        hx = self._state(hx, names[0], self.proj_size or self.hidden_size, batch, input)
        return hx, self._state(cx, names[1], self.hidden_size, batch, input)

    def _call(
        self,
        input: Tensor,
        hx: Tensor | None,
        cx: Tensor | None,
        weights: list[Tensor],
        batch_sizes: Tensor | None,
        lengths: Tensor | None,
        max_batch: int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dropout = self.dropout if self.training and self.num_layers > 1 else 0.0
        seed = draw_seed(input.device, 2) if dropout > 0 else None
        config = Config(
            MODES[self.mode],
            self.hidden_size,
            self.proj_size,
            self.num_layers,
            self.bidirectional,
            dropout,
            BACKENDS[self.backend],
        )
        return call(input, hx, cx, weights, batch_sizes, lengths, seed, max_batch, config)


class _SingleState(_Recurrent):
    """RNN and GRU: one state."""

    def forward(
        self, input: Sequences, hx: Tensor | None = None, *, lengths: Tensor | Sequence[int] | None = None
    ) -> tuple[Sequences, Tensor]:
        """Runs the layers over a batch of sequences.

        Args:
            input: (T, N, I), or (N, T, I) with batch_first, or (T, I) for one sequence, or a PackedSequence.
            hx: initial state (L D, N, H), (L D, H) for one sequence; None is zeros.
            lengths: length of each of the N sequences of a padded input, 1 to T, in any order; a tensor of integers
                (one on the GPU is copied to the host, which waits for it), a sequence of int or a NumPy array.

        Returns:
            output: (T, N, D H) in the layout of input; zero beyond each length. A PackedSequence for one.
            hy: each sequence's own last state, in the shape of hx.

        Raises:
            TypeError, ValueError: an argument of a wrong type, shape, dtype or device; the message has its value.
            prnn.NotSupportedError: what the backend does not serve (float16 on the CPU, say).
        """
        output, hy, _ = self._run(input, hx, None, lengths, ("hx", ""))
        return output, hy


class RNN(_SingleState):
    """Elman RNN, h' = f(W x + b + R h + b'), as torch.nn.RNN.

    Args:
        input_size, hidden_size, num_layers, nonlinearity, bias, batch_first, dropout, bidirectional, device, dtype: as
            torch.nn.RNN's; nonlinearity is "tanh" or "relu"; dropout, less than 1, acts between layers in training.
        backend: what may run on a GPU: "persistent" (the resident kernels, or NotSupportedError), "cudnn", or "best",
            which takes the faster one, and warns once where the resident kernels do not serve the layer.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        backend: str = "best",
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity is {nonlinearity!r}; it must be 'tanh' or 'relu'")
        mode = f"RNN_{nonlinearity.upper()}"
        layout = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        super().__init__(mode, *layout, device=device, dtype=dtype, backend=backend)
        self.nonlinearity = nonlinearity


class GRU(_SingleState):
    """Gated recurrent unit, gates r, z, n, with the reset gate after the recurrent product, as torch.nn.GRU.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as
            torch.nn.GRU's; dropout, less than 1, acts between layers in training.
        backend: as RNN's.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        backend: str = "best",
    ) -> None:
        layout = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        super().__init__("GRU", *layout, device=device, dtype=dtype, backend=backend)


class LSTM(_Recurrent):
    """Long short-term memory, gates i, f, g, o, optionally with a recurrent projection, as torch.nn.LSTM.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype: as
            torch.nn.LSTM's; dropout, less than 1, acts between layers in training.
        backend: as RNN's.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        backend: str = "best",
    ) -> None:
        layout = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        super().__init__("LSTM", *layout, device=device, dtype=dtype, backend=backend)

    def forward(
        self,
        input: Sequences,
        hx: tuple[Tensor, Tensor] | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
    ) -> tuple[Sequences, tuple[Tensor, Tensor]]:
        """Runs the layers over a batch of sequences.

        Args:
            input: (T, N, I), or (N, T, I) with batch_first, or (T, I) for one sequence, or a PackedSequence.
            hx: initial states h (L D, N, P) and c (L D, N, H), without N for one sequence; None is zeros.
            lengths: length of each of the N sequences of a padded input, 1 to T, in any order; a tensor of integers
                (one on the GPU is copied to the host, which waits for it), a sequence of int or a NumPy array.

        Returns:
            output: (T, N, D P) in the layout of input; zero beyond each length. A PackedSequence for one.
            (hy, cy): each sequence's own last states, in the shapes of hx.

        Raises:
            TypeError, ValueError: an argument of a wrong type, shape, dtype or device; the message has its value.
            prnn.NotSupportedError: what the backend does not serve (float16 on the CPU, say).
        """
        h, c = None, None
        if hx is not None:
            if not isinstance(hx, (tuple, list)) or len(hx) != 2:
                raise TypeError(f"hx is a {type(hx).__name__}; it must be the pair (h, c) of initial states")
            h, c = hx
        output, hy, cy = self._run(input, h, c, lengths, ("hx[0]", "hx[1]"))
        return output, (hy, cy)

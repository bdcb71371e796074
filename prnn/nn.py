"""Recurrent layers with torch.nn's interface, computed by prnn: RNN, GRU and LSTM; and torch.nn's cells.

Constructor, parameter names, gate order, initialisation, forward arguments and results are those of torch.nn's modules
of the same names, so that a state_dict goes both ways. What they add: the keyword ``lengths`` of forward, and
``backend``, which says what may serve the layer on a GPU.

Sizes in the docstrings: T timesteps, N sequences, I input_size, H hidden_size, P the size of a state (proj_size if one
is set, else H), L num_layers, D directions (1 or 2).
"""

from collections.abc import Sequence
from operator import is_, itemgetter
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor
from torch.nn.parameter import Parameter
from torch.nn.utils.rnn import PackedSequence
from torch.utils.dlpack import from_dlpack

from prnn._calls import ModuleCalls
from prnn._cells import GRUCell, LSTMCell, RNNCell, check_forget_bias, fill_forget_bias
from prnn._checked_call import run_checked
from prnn._layer_arguments import check_flag, check_heads, check_layout, check_pair, lengths_of_mask
from prnn._layer_norm_lstm import LayerNormLSTM
from prnn._ops import _flops  # noqa: F401  # which registers the operators' formulas
from prnn._ops._layer import BACKENDS
from prnn._ops._torch_private import in_functorch, is_undisturbed
from prnn._scripting import NotScriptable
from prnn._state_masks import check_masks

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "LayerNormLSTM", "RNNCell"]

_GATES = {"LSTM": 4, "GRU": 3}  # else 1

_MISSING = object()
# Each look-up takes time.
_is_compiling = torch.compiler.is_compiling
_address_of, _is_contiguous = Tensor.data_ptr, Tensor.is_contiguous

# Attributes of a layer that _init_flat_weights() and calls make of the others; pickles do not have them.
_DERIVED = ("_packed_names", "_packed_of_flat", "_matrix_shapes", "_zero_biases", "_flattened", "_calls")

Sequences = TypeVar("Sequences", Tensor, PackedSequence)
States = tuple[Tensor | None, ...]


def _with_own_storage(view: Tensor) -> Tensor:
    """The same memory, which it keeps alive, as a storage that ends where the view does."""
    if view.device.type == "cuda":
        with torch.cuda.device(view.device):  # DLPack exports tensors of the current GPU alone
            return from_dlpack(view)
    return from_dlpack(view) if view.device.type == "cpu" else view


def _has_own_storage(tensor: Tensor) -> bool:
    """Whether it is what _with_own_storage() returns."""
    return tensor.device.type not in ("cuda", "cpu") or not tensor.untyped_storage().resizable()


class _Recurrent(NotScriptable, torch.nn.RNNBase):
    """What RNN, GRU and LSTM share: parameters kept in one packed buffer, and the way from torch's data layouts to the
    operator prnn::rnn. torch.nn.RNNBase makes, names and initialises the parameters."""

    backend: str
    normalize = "none"  # of which LayerNormLSTM has others
    heads = 1  # of modules that convert() or an older pickle made, as the next two
    zoneout = 0.0
    recurrent_dropout = 0.0
    _calls: ModuleCalls | None = None

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        *args: Any,
        backend: str = "best",
        heads: int = 1,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        if not isinstance(backend, str) or backend not in BACKENDS:
            raise ValueError(f"backend is {backend!r}; it must be one of {', '.join(map(repr, BACKENDS))}")
        check_layout(input_size, hidden_size, *args, **kwargs)
        check_heads(heads, hidden_size)
        self.heads = heads  # before the parameters are made: _init_flat_weights() gives them their shapes
        super().__init__(mode, input_size, hidden_size, *args, **kwargs)
        if heads > 1 and self.proj_size > 0:
            raise ValueError(f"proj_size is {self.proj_size}, but heads is {heads}: heads have no projection")
        check_masks(zoneout, recurrent_dropout, self.proj_size)
        self.backend = backend
        self.zoneout = float(zoneout)
        self.recurrent_dropout = float(recurrent_dropout)

    # Parameters

    def _init_flat_weights(self) -> None:
        # torch calls this once the parameters have been made, and again after .to() and its like.
        self._split_recurrent_weights()
        names = [name for group in self._all_weights for name in group]
        is_bias = [name.startswith("bias") for name in names]
        # The order of the packed weights: matrices, then biases; by layer and direction within each.
        self._packed_names = [n for n, bias in zip(names, is_bias, strict=True) if not bias]
        self._packed_names += [n for n, bias in zip(names, is_bias, strict=True) if bias]
        self._packed_of_flat = itemgetter(*map(names.index, self._packed_names))  # of torch's _flat_weights
        self._matrix_shapes = self._shapes_of_matrices()
        self._zero_biases: Tensor | None = None
        self._flattened: tuple[list[Parameter], list[int]] | None = None
        super()._init_flat_weights()

    def _shapes_of_matrices(self) -> list[tuple[int, ...]]:
        """In the order of _packed_names."""
        directions, heads = 2 if self.bidirectional else 1, self.heads
        rows, state = _GATES.get(self.mode, 1) * self.hidden_size, self.proj_size or self.hidden_size
        recurrent = (rows, state) if heads == 1 else (heads, rows // heads, state // heads)
        projection = [(state, self.hidden_size)] if self.proj_size > 0 else []
        shapes: list[tuple[int, ...]] = []
        for layer in range(self.num_layers):
            width = directions * state if layer > 0 else self.input_size
            shapes += [(rows, width), recurrent, *projection] * directions
        return shapes

    def _split_recurrent_weights(self) -> None:
        """Gives weight_hh, which torch makes whole, a block for each head: (heads, G H / heads, H / heads)."""
        if self.heads == 1:
            return
        shape = (self.heads, -1, self.hidden_size // self.heads)
        for group in self._all_weights:
            whole = self._parameters.get(group[1])
            if whole is not None and whole.dim() == 2:
                self._parameters[group[1]] = Parameter(whole.detach()[:, : shape[2]].clone().view(shape))

    def reset_parameters(self) -> None:
        if self.heads == 1:
            super().reset_parameters()
            return
        bound = (self.heads / self.hidden_size) ** 0.5  # as those of layers of H / heads units
        for weight in self.parameters():
            torch.nn.init.uniform_(weight, -bound, bound)

    def flatten_parameters(self) -> None:
        """Moves the parameters into one buffer, one after the other in the order of the packed weights, so that a call
        hands them over without a copy. Each has a storage of its own there, so that saving one does not save all.

        Done by the constructor, by .to() and its like, and after copying and unpickling; not by load_state_dict, which
        writes to parameters where they are, and with assign=True makes them those that it is given. Parameters that are
        not plain (shared between two names or with other processes, parametrised, on the meta device) stay as they are,
        and so do all inside of a transform of torch.func; each call then copies them."""
        if self._is_flattened() or in_functorch():
            return
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
        # What is made under torch.inference_mode cannot be trained, which parameters made before can.
        inference = torch.is_inference_mode_enabled() and first.is_inference()
        with torch.inference_mode(inference), torch.no_grad():
            address = first.data_ptr()
            for parameter, size in zip(plain, sizes, strict=True):
                if parameter.data_ptr() != address or not parameter.is_contiguous() or not _has_own_storage(parameter):
                    break  # to lie so by chance is not to stay so
                address += size * parameter.element_size()
            else:
                if biases == 0 or (self._zero_biases is not None and self._zero_biases.data_ptr() == address):
                    self.__dict__["_flattened"] = (plain, list(map(_address_of, plain)))
                    return
            flat = first.new_zeros(sum(sizes) + biases)
            *views, zero_biases = flat.split([*sizes, biases])
            for parameter, view in zip(plain, views, strict=True):
                view.copy_(parameter.reshape(-1))
                parameter.data = _with_own_storage(view).view(parameter.shape)
            self._zero_biases = zero_biases if biases else None
            self.__dict__["_flattened"] = (plain, list(map(_address_of, plain)))

    def _is_flattened(self) -> bool:
        """Whether flatten_parameters() has left the parameters where they are: libraries ask before every call, so that
        this compares in C."""
        if self._flattened is None:
            return False
        parameters, addresses = self._flattened
        return (
            all(map(is_, map(self._parameters.get, self._packed_names), parameters))
            and list(map(_address_of, parameters)) == addresses
            and all(map(_is_contiguous, parameters))
            and _has_own_storage(parameters[0])  # others' memory may lie there by chance, once the first is free
        )

    def _missing_biases(self) -> int:
        """Elements of the bias part of the packed weights that bias=False leaves to zeros."""
        if self.bias:
            return 0
        return 2 * _GATES.get(self.mode, 1) * self.hidden_size * len(self._all_weights)

    def _packed_weights(self) -> list[Tensor]:
        parameters: dict[str, Any] = self._parameters  # where getattr() looks last; a parametrised weight is elsewhere
        names = self._packed_names
        weights: list[Any] = [
            parameters[name] if name in parameters else getattr(self, name, _MISSING) for name in names
        ]
        # Compared in C, for a loop takes as long as the rest. Compiled functions take the weights by name.
        if not _is_compiling() and not all(map(is_, weights, self._packed_of_flat(self._flat_weights))):
            weights = self._replaced_weights(weights)
        for place, shape in enumerate(self._matrix_shapes):  # before the biases, of which the order is plain
            if weights[place].shape != shape:
                name, found = self._packed_names[place], tuple(weights[place].shape)
                raise ValueError(f"{name} has shape {found}; it must be {shape}")
        if not self.bias:
            zeros = self._zero_biases
            if zeros is None or zeros.dtype != weights[0].dtype or zeros.device != weights[0].device:
                zeros = weights[0].new_zeros(self._missing_biases())
            weights.append(zeros)
        return weights

    def _replaced_weights(self, weights: Sequence[Any]) -> list[Tensor]:
        """What a call takes where _flat_weights has other tensors than the attributes. `weights` are those of the
        attributes, in their packed order, _MISSING for one that is missing. torch's layers take what is in
        _flat_weights (a subclass with DropConnect puts it there), unless an attribute is another tensor than when torch
        filled the list: then those of the attributes."""
        references = self._packed_of_flat(self._flat_weight_refs)
        pairs = zip(weights, references, strict=True)
        if all(weight is _MISSING or reference is None or reference() is weight for weight, reference in pairs):
            weights = self._packed_of_flat(self._flat_weights)
        named = zip(self._packed_names, weights, strict=True)  # getattr() says which is missing
        return [getattr(self, name) if weight is None or weight is _MISSING else weight for name, weight in named]

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        for name in _DERIVED:
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._init_flat_weights()

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__.pop("_calls", None)
        if isinstance(value, Tensor):
            self.__dict__["_flattened"] = None  # which would keep the parameter before in memory
        super().__setattr__(name, value)

    def extra_repr(self) -> str:
        text = super().extra_repr()
        if self.heads > 1:
            text += f", heads={self.heads}"
        for name in ("zoneout", "recurrent_dropout"):
            text += f", {name}={value}" if (value := getattr(self, name)) > 0 else ""
        return text if self.backend == "best" else f"{text}, backend={self.backend!r}"

    # Forward

    def _run(
        self,
        input: Sequences,
        states: States,
        lengths: Tensor | Sequence[int] | None,
        reset: Tensor | None,
        names: Sequence[str],
        return_cells: bool = False,
    ) -> tuple[Sequences, Tensor, Tensor, Sequences]:
        """states: hx, cx, and those of reset_hx; names: theirs, as the caller gave them."""
        if is_undisturbed():
            calls = self._calls
            if calls is None:
                results = self._make_calls_and_run(input, states, lengths, reset, return_cells)
            else:
                results = calls.run(self, input, states, lengths, reset, return_cells)
            if results is not None:
                return results
        return run_checked(self, input, states, lengths, reset, names, return_cells)

    def _make_calls_and_run(self, *arguments: Any) -> Any:
        calls = self.__dict__["_calls"] = ModuleCalls.of(self)
        return None if calls is None else calls.run(self, *arguments)


class _SingleState(_Recurrent):
    """RNN and GRU: one state."""

    def forward(
        self,
        input: Sequences,
        hx: Tensor | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        reset: Tensor | None = None,
        reset_hx: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Sequences, Tensor]:
        """Runs the layers over a batch of sequences.

        Args:
            input: (T, N, I), or (N, T, I) with batch_first, or (T, I) for one sequence, or a PackedSequence.
            hx: initial state (L D, N, H), (L D, H) for one sequence; None is zeros.
            lengths: length of each of the N sequences of a padded input, 1 to T, in any order; a tensor of integers
                (one on the GPU is copied to the host, which waits for it), a sequence of int or a NumPy array.
            reset: bool, in the shape of input without its features: where a sequence starts anew. The state before
                that timestep is reset_hx, also in the first one, whatever hx; in the reverse direction, where no state
                goes from that timestep to the one before, it is the one of the latter.
            reset_hx: as hx, the states of sequences that start anew; None is zeros.
            mask: lengths in another form, TorchRL's: bool, in the shape of input without its features, True in the
                first timesteps of each sequence. On a GPU the host waits for it.

        Returns:
            output: (T, N, D H) in the layout of input; zero beyond each length. A PackedSequence for one.
            hy: each sequence's own last state, in the shape of hx.

        Raises:
            TypeError, ValueError: an argument of a wrong type, shape, dtype or device; the message has its value.
            prnn.NotSupportedError: what the backend does not serve (float64 with backend="persistent" on a GPU, say).
        """
        if mask is not None:
            lengths = lengths_of_mask(mask, lengths, input, self.batch_first)
        states = (hx, None, reset_hx, None)
        output, hy, _, _ = self._run(input, states, lengths, reset, ("hx", "", "reset_hx", ""))
        return output, hy

    forward.__qualname__ = "forward"  # in Python's TypeErrors, which would name this class


class RNN(_SingleState):
    """Elman RNN, h' = f(W x + b + R h + b'), as torch.nn.RNN.

    Args:
        input_size, hidden_size, num_layers, nonlinearity, bias, batch_first, dropout, bidirectional, device, dtype: as
            torch.nn.RNN's; nonlinearity is "tanh" or "relu"; dropout, less than 1, acts between layers in training.
        backend: what may run on a GPU: "persistent" (the resident kernels, or NotSupportedError), "cudnn", or "best",
            which takes the faster one, and warns once where the resident kernels do not serve the layer. On the CPU
            prnn's kernels run, and with "best" and "cudnn", in 16 bits, torch's operators where they are faster.
        heads: blocks of the recurrent weights, which are block-diagonal: each of H / heads units has its own and sees
            the whole input, but not the others' states. weight_hh is (heads, G H / heads, H / heads), with G gates,
            and the rows of weight_ih and of the biases are head after head, gates within each.
        zoneout: as GRU's, of "tanh" alone: such a layer is computed as a GRU whose reset gate is 1 and whose update
            gate is the mask, with three times the arithmetic.
        recurrent_dropout: probability of dropout of h on its way into weight_hh in training, less than 1; one mask for
            all timesteps of a call (Gal and Ghahramani 2016), whatever reset starts anew, for each layer and direction.
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
        heads: int = 1,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity is {nonlinearity!r}; it must be 'tanh' or 'relu'")
        mode = f"RNN_{nonlinearity.upper()}"
        layout = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        masks: dict[str, Any] = {"zoneout": zoneout, "recurrent_dropout": recurrent_dropout}
        super().__init__(mode, *layout, device=device, dtype=dtype, backend=backend, heads=heads, **masks)
        if zoneout > 0 and nonlinearity == "relu":
            raise ValueError(f"zoneout is {zoneout}, but nonlinearity is 'relu': zoneout is of tanh alone")
        self.nonlinearity = nonlinearity


class GRU(_SingleState):
    """Gated recurrent unit, gates r, z, n, with the reset gate after the recurrent product, as torch.nn.GRU.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype: as
            torch.nn.GRU's; dropout, less than 1, acts between layers in training.
        backend, heads, recurrent_dropout: as RNN's. What recurrent dropout leaves out is what weight_hh reads; the
            z * h_{t-1} of the new state is whole.
        zoneout: probability p, less than 1, with which an element of h keeps its value of the timestep before in
            training (Krueger et al. 2017); in evaluation h_t is p h_{t-1} + (1 - p) h_t.
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
        heads: int = 1,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:
        layout = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        masks: dict[str, Any] = {"zoneout": zoneout, "recurrent_dropout": recurrent_dropout}
        super().__init__("GRU", *layout, device=device, dtype=dtype, backend=backend, heads=heads, **masks)


class LSTM(_Recurrent):
    """Long short-term memory, gates i, f, g, o, optionally with a recurrent projection, as torch.nn.LSTM.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device, dtype: as
            torch.nn.LSTM's; dropout, less than 1, acts between layers in training.
        backend, heads: as RNN's; with heads there is no projection.
        forget_bias: what the forget gates' biases (bias_ih + bias_hh) are at first (Jozefowicz et al. 2015 take 1);
            None: random, as torch's.
        zoneout: probability z, less than 1, with which an element of h keeps its value of the timestep before in
            training (Krueger et al. 2017); in evaluation h_t is z h_{t-1} + (1 - z) h_t. c is not zoned out.
        recurrent_dropout: probability of dropout of h on its way into weight_hh in training, less than 1; one mask for
            all timesteps of a call (Gal and Ghahramani 2016), whatever reset starts anew, for each layer and direction.

    With zoneout or recurrent_dropout there is no projection. On a GPU, layers with either in float64, and too large to
    stay resident, have no return_cells, and their host waits for reset.
    """

    forget_bias: float | None = None

    # For subclasses whose forward is like torch's: RNNBase has those of a single state.
    get_expected_cell_size = torch.nn.LSTM.get_expected_cell_size
    check_forward_args = torch.nn.LSTM.check_forward_args  # type: ignore[assignment]
    permute_hidden = torch.nn.LSTM.permute_hidden  # type: ignore[assignment]

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
        forget_bias: float | None = None,
        heads: int = 1,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:
        check_forget_bias(forget_bias, bias)
        layout = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        masks: dict[str, Any] = {"zoneout": zoneout, "recurrent_dropout": recurrent_dropout}
        super().__init__("LSTM", *layout, device=device, dtype=dtype, backend=backend, heads=heads, **masks)
        self.forget_bias = forget_bias
        self._fill_forget_bias()

    def _fill_forget_bias(self) -> None:
        if self.forget_bias is not None:
            names = [group[2:4] for group in self._all_weights]  # matrices, biases, projection
            biases = [(getattr(self, ih), getattr(self, hh)) for ih, hh in names]
            fill_forget_bias(self.forget_bias, biases, self.heads)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._fill_forget_bias()

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.forget_bias is None else f"{text}, forget_bias={self.forget_bias}"

    @overload
    def forward(
        self,
        input: Sequences,
        hx: tuple[Tensor, Tensor] | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        reset: Tensor | None = None,
        reset_hx: tuple[Tensor, Tensor] | None = None,
        return_cells: Literal[False] = False,
        mask: Tensor | None = None,
    ) -> tuple[Sequences, tuple[Tensor, Tensor]]: ...

    @overload
    def forward(
        self,
        input: Sequences,
        hx: tuple[Tensor, Tensor] | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        reset: Tensor | None = None,
        reset_hx: tuple[Tensor, Tensor] | None = None,
        return_cells: Literal[True],
        mask: Tensor | None = None,
    ) -> tuple[Sequences, tuple[Tensor, Tensor], Sequences]: ...

    def forward(
        self,
        input: Sequences,
        hx: tuple[Tensor, Tensor] | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        reset: Tensor | None = None,
        reset_hx: tuple[Tensor, Tensor] | None = None,
        return_cells: bool = False,
        mask: Tensor | None = None,
    ) -> tuple[Sequences, tuple[Tensor, Tensor]] | tuple[Sequences, tuple[Tensor, Tensor], Sequences]:
        """Runs the layers over a batch of sequences.

        Args:
            input: (T, N, I), or (N, T, I) with batch_first, or (T, I) for one sequence, or a PackedSequence.
            hx: initial states h (L D, N, P) and c (L D, N, H), without N for one sequence; None is zeros.
            lengths: length of each of the N sequences of a padded input, 1 to T, in any order; a tensor of integers
                (one on the GPU is copied to the host, which waits for it), a sequence of int or a NumPy array.
            reset: bool, in the shape of input without its features: where a sequence starts anew. The state before
                that timestep is reset_hx, also in the first one, whatever hx; in the reverse direction, where no state
                goes from that timestep to the one before, it is the one of the latter.
            reset_hx: as hx, the states of sequences that start anew; None is zeros.
            return_cells: whether c of every timestep of the last layer is returned, too.
            mask: lengths in another form, TorchRL's: bool, in the shape of input without its features, True in the
                first timesteps of each sequence. On a GPU the host waits for it.

        Returns:
            output: (T, N, D P) in the layout of input; zero beyond each length. A PackedSequence for one.
            (hy, cy): each sequence's own last states, in the shapes of hx.
            cells, with return_cells: (T, N, D H), in the layout of output and differentiable, too.

        Raises:
            TypeError, ValueError: an argument of a wrong type, shape, dtype or device; the message has its value.
            prnn.NotSupportedError: what the backend does not serve (float64 with backend="persistent" on a GPU, say).
        """
        if type(return_cells) is not bool:
            check_flag(return_cells, "return_cells")
        if mask is not None:
            lengths = lengths_of_mask(mask, lengths, input, self.batch_first)
        states: States = (None, None, None, None)
        if hx is not None or reset_hx is not None:
            check_pair(hx, "hx")
            check_pair(reset_hx, "reset_hx")
            states = (*(hx or (None, None)), *(reset_hx or (None, None)))
        names = ("hx[0]", "hx[1]", "reset_hx[0]", "reset_hx[1]")
        output, hy, cy, cells = self._run(input, states, lengths, reset, names, return_cells)
        return (output, (hy, cy), cells) if return_cells else (output, (hy, cy))

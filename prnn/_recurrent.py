"""The base class of prnn.nn.RNN, GRU, LSTM and sLSTM: parameters in one packed buffer, and the way to the operator."""

from collections.abc import Sequence
from operator import is_, itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter
from torch.utils.dlpack import from_dlpack

from prnn._called_module import CalledModule, Sequences, States
from prnn._layer_arguments import check_heads, check_layout
from prnn._modes import GATES
from prnn._ops._layer import BACKENDS
from prnn._ops._torch_private import in_functorch
from prnn._state_masks import check_masks

__all__ = ["DERIVED", "Recurrent", "Sequences", "States"]

_MISSING = object()
# Each look-up takes time.
_is_compiling = torch.compiler.is_compiling
_address_of, _is_contiguous = Tensor.data_ptr, Tensor.is_contiguous

# Attributes of a layer that _init_flat_weights() and calls make of the others; pickles do not have them.
DERIVED = ("_packed_names", "_packed_of_flat", "_matrix_shapes", "_zero_biases", "_flattened", "_calls")


def _with_own_storage(view: Tensor) -> Tensor:
    """A tensor of the view's memory, which it keeps alive, with a storage that ends where the view does."""
    if view.device.type == "cuda":
        with torch.cuda.device(view.device):  # DLPack exports tensors of the current GPU alone
            return from_dlpack(view)
    return from_dlpack(view) if view.device.type == "cpu" else view


def _has_own_storage(tensor: Tensor) -> bool:
    """Whether it is what _with_own_storage() returns."""
    return tensor.device.type not in ("cuda", "cpu") or not tensor.untyped_storage().resizable()


class Recurrent(CalledModule, torch.nn.RNNBase):
    """The base class of RNN, GRU, LSTM and sLSTM: keeps parameters in one packed buffer, and takes torch's data layouts
    to the operator prnn::rnn. torch.nn.RNNBase makes, names and initialises the parameters."""

    backend: str
    normalize = "none"  # of which LayerNormLSTM has others
    heads = 1  # of modules that convert() or an older pickle made, as the next two
    zoneout = 0.0
    recurrent_dropout = 0.0

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
        rows, state = GATES[self.mode] * self.hidden_size, self.proj_size or self.hidden_size
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
        # Tensors that torch.inference_mode makes cannot be trained; parameters made before it can.
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
        return 2 * GATES[self.mode] * self.hidden_size * len(self._all_weights)

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
        """The weights of a call where _flat_weights has other tensors than the attributes. `weights` are those of the
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
        state: dict[str, Any] = super().__getstate__()
        for name in DERIVED:
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._init_flat_weights()

    def __setattr__(self, name: str, value: Any) -> None:
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

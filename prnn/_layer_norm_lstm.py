"""prnn.nn.LayerNormLSTM."""

from __future__ import annotations  # torch 2.6 does not compile a nested function annotated with a union

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.parameter import Parameter
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from prnn._cells import check_forget_bias
from prnn._layer_arguments import (
    call_dtypes,
    check_dtype,
    check_flag,
    check_not_empty,
    check_pair,
    check_reset,
    check_size,
    check_tensor,
    is_autocast,
)
from prnn._lstm_layers import Masks, lengths_on_device, masks_of, run_layer, run_layers, run_with_resets
from prnn._ops._handles import DTYPES
from prnn._ops.layer_norm_lstm_input import input_products
from prnn._scripting import NotScriptable
from prnn._state_masks import check_probability, draw_masks

__all__ = ["LayerNormLSTM"]

Sequences = TypeVar("Sequences", Tensor, PackedSequence)

# Parameters of torchaudio's layer, and the ones that they are here.
_TORCHAUDIO = {
    "x2g.weight": "weight_ih_l0",
    "p2g.weight": "weight_hh_l0",
    "g_norm.weight": "norm_gates_weight_l0",
    "g_norm.bias": "norm_gates_bias_l0",
    "c_norm.weight": "norm_cell_weight_l0",
    "c_norm.bias": "norm_cell_bias_l0",
}


class LayerNormLSTM(NotScriptable):
    r"""LSTM with layer normalisation (Ba, Kiros and Hinton 2016), zoneout and recurrent dropout.

    With LN over all 4H gates and over the H elements of the cell state, ``*`` by element, gates in the order i, f, g,
    o, and the layer's parameters in full names:

    ``normalize="gates"``, torchaudio's (the cell state is carried on as it was normalised)::

        i, f, g, o = norm_gates_weight * LN(weight_ih x_t + weight_hh h) + norm_gates_bias
        c_t = norm_cell_weight * LN(sigma(f) * c + sigma(i) * tanh(g)) + norm_cell_bias
        h_t = sigma(o) * tanh(c_t)

    ``normalize="products"``, the paper's and haste's::

        i, f, g, o = norm_input_weight * LN(weight_ih x_t) + norm_hidden_weight * LN(weight_hh h) + bias
        c_t = sigma(f) * c + sigma(i) * tanh(g)
        h_t = sigma(o) * tanh(norm_cell_weight * LN(c_t) + norm_cell_bias)

    Parameters of layer k end in ``_l{k}``, of the reverse direction in ``_l{k}_reverse``. A state_dict of torchaudio's
    ``_CustomLSTM`` with layer norm (``x2g.weight``, ``p2g.weight``, ``g_norm.*``, ``c_norm.*``) loads into a single
    layer with ``normalize="gates"``.

    Args:
        input_size, hidden_size, num_layers, batch_first, bidirectional, device, dtype: as torch.nn.LSTM's.
        normalize: "gates" or "products", as above.
        dropout: probability of dropout between layers in training, less than 1.
        zoneout: probability z, less than 1, with which an element of h keeps its value of the timestep before in
            training (Krueger et al. 2017); in evaluation h_t is z h_{t-1} + (1 - z) h_t.
        recurrent_dropout: probability of dropout of h on its way into weight_hh, less than 1; one mask for all
            timesteps of a call (Gal and Ghahramani 2016), whatever reset starts anew, for each layer and direction.
        forget_bias: initial bias of the forget gate.
        eps: added to the variances; more than 0.

    float16 and bfloat16 on the CPU are computed in float32, with weights that each call converts, and the results
    rounded once. Under ``torch.autocast`` the results have its type, on the CPU also computed in float32.

    Masks are drawn by torch's generator of the device: each replay of a CUDA graph has masks of its own.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        normalize: str = "gates",
        batch_first: bool = False,
        bidirectional: bool = False,
        dropout: float = 0.0,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
        forget_bias: float = 0.0,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name in ("input_size", "hidden_size", "num_layers"):
            check_size(locals()[name], name)
        for name in ("batch_first", "bidirectional"):
            check_flag(locals()[name], name)
        for name in ("dropout", "zoneout", "recurrent_dropout"):
            check_probability(locals()[name], name)
        if normalize not in ("gates", "products"):
            raise ValueError(f"normalize is {normalize!r}; it must be one of 'gates', 'products'")
        if not isinstance(eps, (int, float)) or isinstance(eps, bool):
            raise TypeError(f"eps is {eps!r}; it must be a number")
        if not torch.finfo(torch.float32).tiny <= eps < float("inf"):
            raise ValueError(f"eps is {eps}; it must be a positive normal number of float32")
        if forget_bias is None:  # torch's default for other layers
            raise ValueError("forget_bias is None; it must be a finite number")
        check_forget_bias(forget_bias, True)
        check_dtype(dtype)
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.normalize = normalize
        self.batch_first = batch_first
        self.bidirectional = bidirectional
        self.dropout = float(dropout)
        self.zoneout = float(zoneout)
        self.recurrent_dropout = float(recurrent_dropout)
        self.forget_bias = float(forget_bias)
        self.eps = float(eps)
        gates = (4 * hidden_size,)
        for kind, layer, name in self._names():
            width = input_size if layer == 0 else hidden_size * self._directions
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (*gates, width), "weight_hh": (*gates, hidden_size)}
            shapes |= {"norm_cell_weight": (hidden_size,), "norm_cell_bias": (hidden_size,)}
            parameter = Parameter(torch.empty(shapes.get(kind, gates), device=device, dtype=dtype))
            self.register_parameter(name, parameter)
        self.reset_parameters()

    def _names(self) -> Iterator[tuple[str, int, str]]:
        """Kind, layer and full name of each weight, which is a parameter unless it is parametrised or pruned."""
        of_gates = ["norm_gates_weight", "norm_gates_bias"]
        if self.normalize == "products":
            of_gates = ["norm_input_weight", "norm_hidden_weight", "bias"]
        kinds = ["weight_ih", "weight_hh", *of_gates, "norm_cell_weight", "norm_cell_bias"]
        for layer in range(self.num_layers):
            for direction in range(self._directions):
                for kind in kinds:
                    yield kind, layer, self._full_name(kind, layer, direction)

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _state_count(self) -> int:
        return self.num_layers * self._directions

    @staticmethod
    def _full_name(name: str, layer: int, direction: int) -> str:
        return f"{name}_l{layer}{'_reverse' if direction else ''}"

    def reset_parameters(self) -> None:
        """Matrices uniform in +-1 / sqrt(hidden_size), gains 1, biases 0 but for the forget gate's."""
        bound = self.hidden_size**-0.5
        with torch.no_grad():
            for kind, _, name in self._names():
                parameter = self._parameters.get(name)
                if parameter is None:
                    continue
                if kind in ("weight_ih", "weight_hh"):
                    parameter.uniform_(-bound, bound)
                elif kind.endswith("_weight"):
                    parameter.fill_(1)
                else:
                    parameter.zero_()
                    if kind in ("norm_gates_bias", "bias"):
                        parameter[self.hidden_size : 2 * self.hidden_size] = float(self.forget_bias)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}x2g.weight" in state_dict:
            self._rename_torchaudio(state_dict, prefix, args[-1])
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _rename_torchaudio(self, state_dict: dict[str, Any], prefix: str, errors: list[str]) -> None:
        if self.normalize != "gates" or self.num_layers > 1 or self.bidirectional or f"{prefix}x2g.bias" in state_dict:
            errors.append(
                f"{prefix}x2g.weight is of torchaudio's LSTM, which a single layer of one direction with "
                'normalize="gates" loads if it has layer norm'
            )
            return
        for name, ours in _TORCHAUDIO.items():
            if f"{prefix}{name}" in state_dict:
                state_dict[f"{prefix}{ours}"] = state_dict.pop(f"{prefix}{name}")

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        defaults = {"num_layers": 1, "normalize": "gates", "batch_first": False, "bidirectional": False}
        defaults |= {"dropout": 0.0, "zoneout": 0.0, "recurrent_dropout": 0.0, "forget_bias": 0.0, "eps": 1e-5}
        for name, default in defaults.items():
            value = getattr(self, name)
            text += f", {name}={value!r}" if value != default else ""
        return text

    def forward(
        self,
        input: Sequences,
        hx: tuple[Tensor, Tensor] | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        reset: Tensor | None = None,
        reset_hx: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Sequences, tuple[Tensor, Tensor]]:
        """Runs the layers over a batch of sequences.

        Args:
            input: (T, N, I), or (N, T, I) with batch_first, or (T, I) for one sequence, or a PackedSequence.
            hx: initial states (h, c), each (L D, N, H), (L D, H) for one sequence; None is zeros. L layers, D
                directions, H hidden_size.
            lengths: length of each of the N sequences of a padded input, 1 to T, in any order; a tensor of integers or
                a sequence of int. One on the GPU is not looked at by the host: lengths beyond T count as T.
            reset: bool, in the shape of input without its features: where a sequence starts anew. The state before
                that timestep is reset_hx, also in the first one, whatever hx; in the reverse direction, where no state
                goes from that timestep to the one before, it is the one of the latter. On a GPU the host waits for the
                flags, unless there is one timestep.
            reset_hx: as hx, the states of sequences that start anew; None is zeros.

        Returns:
            output: (T, N, D H) in the layout of input; zero beyond each length. A PackedSequence for one.
            (h, c): each sequence's last states, in the shape of hx.

        Raises:
            TypeError, ValueError: an argument of a wrong type, shape, dtype or device; the message has its value.
        """
        if isinstance(input, PackedSequence):
            if lengths is not None:
                raise ValueError("lengths is given, but input is a PackedSequence, which has its own")
            return self._forward_packed(input, hx, reset, reset_hx)
        check_tensor(input, "input")
        weights: dict[str, Tensor] = {name: getattr(self, name) for _, _, name in self._names()}
        first = weights["weight_ih_l0"]
        computed, dtype = call_dtypes(input, first)
        if not is_autocast(input):
            for name, weight in weights.items():
                if weight.dtype != first.dtype:
                    raise ValueError(f"{name} has dtype {weight.dtype}, but weight_ih_l0 has {first.dtype}")
            self._check_input(input, first.dtype)
            return self._forward(input, hx, weights, lengths, computed, dtype, reset, reset_hx)
        if input.is_floating_point():
            input = input.to(computed)

        def cast(states: Any) -> Any:
            if not isinstance(states, (tuple, list)):
                return states
            return tuple(x.to(computed) if isinstance(x, Tensor) else x for x in states)

        hx, reset_hx = cast(hx), cast(reset_hx)
        self._check_input(input, computed)
        with torch.autocast(input.device.type, enabled=False):
            return self._forward(input, hx, weights, lengths, computed, dtype, reset, reset_hx)

    def _forward_packed(
        self,
        input: PackedSequence,
        hx: tuple[Tensor, Tensor] | None,
        reset: Tensor | None,
        reset_hx: tuple[Tensor, Tensor] | None,
    ) -> tuple[PackedSequence, tuple[Tensor, Tensor]]:
        data, batch_sizes, sorted_indices, unsorted_indices = input
        check_not_empty(batch_sizes)
        padded, lengths = pad_packed_sequence(PackedSequence(data, batch_sizes), self.batch_first)
        if reset is not None:
            check_reset(reset, data)
            reset, _ = pad_packed_sequence(PackedSequence(reset, batch_sizes), self.batch_first)

        def sort(states: tuple[Tensor, Tensor] | None, name: str) -> tuple[Tensor, Tensor] | None:
            if states is None or sorted_indices is None:
                return states
            self._check_states(states, (self._state_count, lengths.numel(), self.hidden_size), data, name)
            return states[0].index_select(1, sorted_indices), states[1].index_select(1, sorted_indices)

        hx, reset_hx = sort(hx, "hx"), sort(reset_hx, "reset_hx")
        output, (h, c) = self.forward(padded, hx, lengths=lengths, reset=reset, reset_hx=reset_hx)
        packed = pack_padded_sequence(output, lengths, self.batch_first)
        if unsorted_indices is not None:
            h, c = h.index_select(1, unsorted_indices), c.index_select(1, unsorted_indices)
        return PackedSequence(packed.data, batch_sizes, sorted_indices, unsorted_indices), (h, c)

    def _check_input(self, input: Tensor, dtype: torch.dtype) -> None:
        if input.dim() not in (2, 3):
            raise ValueError(
                f"input has {input.dim()} dimensions (shape {tuple(input.shape)}); it must have 3, or 2 if unbatched"
            )
        if input.size(-1) != self.input_size:
            raise ValueError(
                f"input has {input.size(-1)} features (shape {tuple(input.shape)}); input_size is {self.input_size}"
            )
        check_not_empty(input, 1 if self.batch_first and input.dim() == 3 else 0)
        device = self.weight_ih_l0.device
        if input.device != device:
            raise ValueError(f"input is on {input.device}, but the weights are on {device}")
        if dtype not in DTYPES:
            raise TypeError(f"the weights have dtype {dtype}; it must be one of {', '.join(map(str, DTYPES))}")
        if input.dtype != dtype:
            raise ValueError(
                f"input has dtype {input.dtype}, but the weights have {dtype}; convert one with .to({dtype}) or the "
                f"other with .to({input.dtype})"
            )

    @staticmethod
    def _check_states(
        states: tuple[Tensor, Tensor], expected: tuple[int, ...], input: Tensor, argument: str = "hx"
    ) -> None:
        check_pair(states, argument)
        for name, state in zip(("h", "c"), states, strict=True):
            check_tensor(state, f"{name} of {argument}")
            if state.shape != expected:
                raise ValueError(f"{name} of {argument} has shape {tuple(state.shape)}; it must be {expected}")
            if state.device != input.device:
                raise ValueError(f"{name} of {argument} is on {state.device}, but input is on {input.device}")

    def _states(
        self, states: tuple[Tensor, Tensor] | None, batch: int, is_batched: bool, input: Tensor, argument: str
    ) -> tuple[Tensor | None, Tensor | None]:
        """h and c, (L D, N, H)."""
        if states is None:
            return None, None
        count = self._state_count
        expected = (count, batch, self.hidden_size) if is_batched else (count, self.hidden_size)
        self._check_states(states, expected, input, argument)
        for name, state in zip(("h", "c"), states, strict=True):
            if state.dtype != input.dtype:
                raise ValueError(f"{name} of {argument} has dtype {state.dtype}, but input has {input.dtype}")
        h, c = (state.reshape(count, batch, self.hidden_size) for state in states)
        return h, c

    def _forward(
        self,
        input: Tensor,
        hx: tuple[Tensor, Tensor] | None,
        weights: Mapping[str, Tensor],
        lengths: Tensor | Sequence[int] | None,
        computed: torch.dtype,
        dtype: torch.dtype,
        reset: Tensor | None,
        reset_hx: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """computed: the type of the computation; dtype: of the results."""
        if reset is not None:
            check_reset(reset, input)
        elif reset_hx is not None:
            raise ValueError("reset_hx is given, but reset, which says where it is wanted, is None")
        is_batched = input.dim() == 3
        if not is_batched:
            input, reset = input.unsqueeze(1), None if reset is None else reset.unsqueeze(1)
        elif self.batch_first:
            input, reset = input.transpose(0, 1), None if reset is None else reset.transpose(0, 1)
        batch = input.size(1)
        given = [
            *self._states(hx, batch, is_batched, input, "hx"),
            *self._states(reset_hx, batch, is_batched, input, "reset_hx"),
        ]
        states = [None if state is None else state.to(computed) for state in given]
        if batch == 0:
            reset = None
        input, weights = input.to(computed), {name: weight.to(computed) for name, weight in weights.items()}
        if lengths is not None:
            if not is_batched:
                raise ValueError(
                    "lengths is given, but input has 2 dimensions: one sequence, which is as long as it is"
                )
            lengths = lengths_on_device(lengths, input)

        def run_stack(
            input: Tensor, states: tuple[Tensor | None, Tensor | None], lengths: Tensor | None, masks: Masks
        ) -> tuple[Tensor, Tensor, Tensor]:
            def run(
                input: Tensor, states: tuple[Tensor | None, Tensor | None], layer: int, direction: int
            ) -> tuple[Tensor, Tensor]:
                return self._run_layer(input, states, lengths, masks, weights, layer, direction)

            dropout = self.dropout if self.training else 0.0
            return run_layers(input, states, lengths, self.num_layers, self._directions, dropout, run)

        zoneout, recurrent = draw_masks(self, input, batch) or (None, None)
        results = run_with_resets(run_stack, input, states, lengths, (zoneout, recurrent), reset, self._directions)
        output, h_n, c_n = (result.to(dtype) for result in results)
        if not is_batched:
            return output.squeeze(1), (h_n.squeeze(1), c_n.squeeze(1))
        return output.transpose(0, 1) if self.batch_first else output, (h_n, c_n)

    def _run_layer(
        self,
        input: Tensor,
        states: tuple[Tensor | None, Tensor | None],
        lengths: Tensor | None,
        masks: Masks,
        weights: Mapping[str, Tensor],
        layer: int,
        direction: int,
    ) -> tuple[Tensor, Tensor]:
        def weight(name: str) -> Tensor:
            return weights[self._full_name(name, layer, direction)]

        x = input_products(input, weight("weight_ih"))
        gate_names = ("norm_gates_weight", "norm_gates_bias")
        if self.normalize == "products":
            x = functional.layer_norm(x, (x.size(-1),), weight("norm_input_weight"), eps=self.eps)
            gate_names = ("norm_hidden_weight", "bias")
        norm = [weight(name) for name in (*gate_names, "norm_cell_weight", "norm_cell_bias")]
        return run_layer(
            x,
            states,
            weight("weight_hh"),
            norm,
            lengths,
            masks_of(masks, layer * self._directions + direction, self.hidden_size, x.dtype),
            normalize=self.normalize,
            reverse=direction == 1,
            zoneout=0.0 if self.training else self.zoneout,
            eps=self.eps,
        )

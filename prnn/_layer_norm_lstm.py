"""prnn.nn.LayerNormLSTM."""

from __future__ import annotations  # torch 2.6 does not compile a nested function annotated with a union

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from prnn._called_module import CalledModule, Sequences, States
from prnn._cells import check_forget_bias
from prnn._layer_arguments import check_layout, check_tensor, is_autocast, states_of
from prnn._ops._handles import DTYPES
from prnn._state_masks import check_masks

__all__ = ["LayerNormLSTM"]

# Parameters of torchaudio's layer, and the ones that they are here.
_TORCHAUDIO = {
    "x2g.weight": "weight_ih_l0",
    "p2g.weight": "weight_hh_l0",
    "g_norm.weight": "norm_gates_weight_l0",
    "g_norm.bias": "norm_gates_bias_l0",
    "c_norm.weight": "norm_cell_weight_l0",
    "c_norm.bias": "norm_cell_bias_l0",
}


class LayerNormLSTM(CalledModule):
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

    # Calls read these attributes of every layer.
    mode, proj_size, heads, backend = "LSTM", 0, 1, "best"

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
        check_layout(input_size, hidden_size, num_layers, True, batch_first, dropout, bidirectional, dtype=dtype)
        check_masks(zoneout, recurrent_dropout, 0)
        if normalize not in ("gates", "products"):
            raise ValueError(f"normalize is {normalize!r}; it must be one of 'gates', 'products'")
        if not isinstance(eps, (int, float)) or isinstance(eps, bool):
            raise TypeError(f"eps is {eps!r}; it must be a number")
        if not torch.finfo(torch.float32).tiny <= eps < float("inf"):
            raise ValueError(f"eps is {eps}; it must be a positive normal number of float32")
        if forget_bias is None:  # torch's default for other layers
            raise ValueError("forget_bias is None; it must be a finite number")
        check_forget_bias(forget_bias, True)
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
            width = input_size if layer == 0 else hidden_size * (2 if bidirectional else 1)
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
            for end in ("", "_reverse") if self.bidirectional else ("",):
                for kind in kinds:
                    yield kind, layer, f"{kind}_l{layer}{end}"

    def _packed_weights(self) -> list[Tensor]:
        """The weights of all layers and directions, in the order of _names()."""
        names = self._flat_weights_names
        weights: list[Tensor] = [getattr(self, name) for name in names]
        first = weights[0]
        if not is_autocast(first):
            if first.dtype not in DTYPES:
                raise TypeError(
                    f"the weights have dtype {first.dtype}; it must be one of {', '.join(map(str, DTYPES))}"
                )
            for name, weight in zip(names, weights, strict=True):
                if weight.dtype != first.dtype:
                    raise ValueError(f"{name} has dtype {weight.dtype}, but weight_ih_l0 has {first.dtype}")
        return weights

    @property
    def _flat_weights_names(self) -> list[str]:
        return [name for _, _, name in self._names()]

    @property
    def _flat_weights(self) -> list[Parameter | None]:
        return [self._parameters.get(name) for name in self._flat_weights_names]

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
        names = ("h of hx", "c of hx", "h of reset_hx", "c of reset_hx")
        states: States = (None, None, None, None)
        if hx is not None or reset_hx is not None:
            states = (*states_of(hx, "hx"), *states_of(reset_hx, "reset_hx"))
            for name, state, pair in zip(names, states, (hx, hx, reset_hx, reset_hx), strict=True):
                if pair is not None and state is None:
                    check_tensor(state, name)
        output, h, c, _ = self._run(input, states, lengths, reset, names)
        return output, (h, c)

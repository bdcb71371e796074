"""Recurrent layers with torch.nn's interface, computed by prnn: RNN, GRU and LSTM; torch.nn's cells;
LayerNormLSTM and sLSTM.

Constructor, parameter names, gate order, initialisation, forward arguments and results are those of torch.nn's modules
of the same names, so that a state_dict goes both ways. What they add: the keyword ``lengths`` of forward, and
``backend``, which says what may serve the layer on a GPU.

Sizes in the docstrings: T timesteps, N sequences, I input_size, H hidden_size, P the size of a state (proj_size if one
is set, else H), L num_layers, D directions (1 or 2).
"""

from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor

from prnn._cells import GRUCell, LSTMCell, RNNCell, check_forget_bias, fill_forget_bias
from prnn._layer_arguments import check_flag, lengths_of_mask, states_of
from prnn._layer_norm_lstm import LayerNormLSTM
from prnn._ops import _flops  # noqa: F401  # which registers the operators' formulas
from prnn._recurrent import Recurrent, Sequences, States
from prnn._slstm import sLSTM

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "LayerNormLSTM", "RNNCell", "sLSTM"]


class _SingleState(Recurrent):
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
        recurrent_dropout: float = 0.0,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity is {nonlinearity!r}; it must be 'tanh' or 'relu'")
        mode = f"RNN_{nonlinearity.upper()}"
        layout = (input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        options: dict[str, Any] = {"heads": heads, "recurrent_dropout": recurrent_dropout}
        super().__init__(mode, *layout, device=device, dtype=dtype, backend=backend, **options)
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


class LSTM(Recurrent):
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

    With zoneout or recurrent_dropout there is no projection, and on a GPU the resident kernels alone serve the layer:
    float64, and layers that are too large for them, raise prnn.NotSupportedError.
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
            states = (*states_of(hx, "hx"), *states_of(reset_hx, "reset_hx"))
        names = ("hx[0]", "hx[1]", "reset_hx[0]", "reset_hx[1]")
        output, hy, cy, cells = self._run(input, states, lengths, reset, names, return_cells)
        return (output, (hy, cy), cells) if return_cells else (output, (hy, cy))

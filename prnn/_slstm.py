"""prnn.nn.sLSTM, and the recurrence of one of its layers on gate inputs that a caller has."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from prnn._layer_arguments import check_size, check_tensor, lengths_of_mask, states_of
from prnn._ops._layer import BACKENDS, MODES, Config
from prnn._ops.rnn import call
from prnn._recurrent import Recurrent, Sequences

__all__ = ["FORGET_GATES", "run_gates", "sLSTM"]

FORGET_GATES = {"sigmoid": "sLSTM", "exponential": "sLSTM_EXP"}

States = tuple[Tensor, Tensor, Tensor, Tensor]

# Initial biases of a head's sigmoid forget gates, from the first unit to the last.
_FIRST_FORGET_BIAS, _LAST_FORGET_BIAS = 3.0, 6.0


class sLSTM(Recurrent):  # noqa: N801  # the field's name
    r"""sLSTM, the scalar-memory LSTM with exponential gates of xLSTM (Beck et al. 2024, arXiv:2405.04517).

    For each unit, with the gates' inputs i, f, z, o = W x + b + R h + b', sigma the logistic function and log f' =
    log sigma(f), or f with ``forget_gate="exponential"``::

        m_t = max(log f' + m_{t-1}, i)                                the stabiliser
        c_t = exp(log f' + m_{t-1} - m_t) c_{t-1} + exp(i - m_t) tanh(z)
        n_t = exp(log f' + m_{t-1} - m_t) n_{t-1} + exp(i - m_t)      the normaliser
        h_t = sigma(o) c_t / n_t

    A unit whose n is 0, as in the zero state, has had no input yet: there m_t is i, as in xlstm's kernels. No exponent
    is positive, so that nothing overflows, and n is at least 1 from the first timestep on.

    Parameters are those of prnn.nn.LSTM with the gates in the order i, f, z, o: weight_ih_l{k} (4 H, I), with heads its
    rows head after head, gates within each; weight_hh_l{k} (4 H, H), or (heads, 4 H / heads, H / heads); bias_ih_l{k}
    and bias_hh_l{k} (4 H,).

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, device, dtype: as torch.nn.LSTM's; dropout,
            less than 1, acts between layers in training.
        heads: blocks of the recurrent weights, which are block-diagonal, as prnn.nn.LSTM's. xlstm's num_heads.
        forget_gate: "sigmoid" or "exponential".

    Initial values are prnn.nn.LSTM's, but for the biases: those of the sigmoid forget gates grow from 3 to 6 over the
    units of each head, as xlstm's bias_init="small_init" has them, and all others are 0.

    On a GPU the resident kernels run; what they do not serve raises prnn.NotSupportedError. float64 runs on the CPU
    alone. In 16 bits c, n and m are carried in float32 within a call and rounded at its end.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        heads: int = 1,
        forget_gate: str = "sigmoid",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(forget_gate, str) or forget_gate not in FORGET_GATES:
            raise ValueError(f"forget_gate is {forget_gate!r}; it must be one of {', '.join(map(repr, FORGET_GATES))}")
        self.forget_gate = forget_gate  # before the parameters are made: reset_parameters() reads it
        layout = (input_size, hidden_size, num_layers, bias, batch_first, dropout)
        # torch.nn.RNNBase makes the parameters of an LSTM, which are an sLSTM's, too.
        super().__init__("LSTM", *layout, device=device, dtype=dtype, backend="persistent", heads=heads)
        self.mode = FORGET_GATES[forget_gate]

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if not self.bias:
            return
        with torch.no_grad():
            for group in self._all_weights:
                bias_ih, bias_hh = (self._parameters[name] for name in group[2:4])
                assert bias_ih is not None
                assert bias_hh is not None
                bias_ih.zero_(), bias_hh.zero_()
                if self.forget_gate == "sigmoid":
                    units = self.hidden_size // self.heads
                    values = torch.linspace(_FIRST_FORGET_BIAS, _LAST_FORGET_BIAS, units)
                    bias_ih.view(self.heads, 4, units)[:, 1] = values.to(bias_ih)

    def extra_repr(self) -> str:
        text = super().extra_repr().replace(", backend='persistent'", "")
        return text if self.forget_gate == "sigmoid" else f"{text}, forget_gate={self.forget_gate!r}"

    def forward(
        self,
        input: Sequences,
        hx: States | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        reset: Tensor | None = None,
        reset_hx: States | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Sequences, States]:
        """Runs the layers over a batch of sequences.

        Args:
            input: (T, N, I), or (N, T, I) with batch_first, or (T, I) for one sequence, or a PackedSequence.
            hx: initial states h, c, n and m, (L, N, H) each, (L, H) for one sequence; None is zeros.
            lengths: length of each of the N sequences of a padded input, 1 to T, in any order; a tensor of integers
                (one on the GPU is copied to the host, which waits for it), a sequence of int or a NumPy array.
            reset: bool, in the shape of input without its features: where a sequence starts anew. The state before
                that timestep is reset_hx, also in the first one, whatever hx.
            reset_hx: as hx, the states of sequences that start anew; None is zeros.
            mask: lengths in another form, TorchRL's: bool, in the shape of input without its features, True in the
                first timesteps of each sequence. On a GPU the host waits for it.

        Returns:
            output: (T, N, H) in the layout of input; zero beyond each length. A PackedSequence for one.
            (h, c, n, m): each sequence's own last states, in the shapes of hx.

        Raises:
            TypeError, ValueError: an argument of a wrong type, shape, dtype or device; the message has its value.
            prnn.NotSupportedError: what the kernels do not serve (float64 on a GPU, say).
        """
        if mask is not None:
            lengths = lengths_of_mask(mask, lengths, input, self.batch_first)
        states = (*_pair(hx, "hx"), *_pair(reset_hx, "reset_hx"))
        names = ("hx[0]", "hx[1:]", "reset_hx[0]", "reset_hx[1:]")
        output, h, cells, _ = self._run(input, states, lengths, reset, names)
        c, n, m = cells.unflatten(0, (-1, 3)).unbind(1)
        return output, (h, c, n, m)


def _pair(states: Any, name: str) -> tuple[Tensor | None, Tensor | None]:
    """h, and c, n and m as the layers take them: (3 L, N, H), those of each layer one after the other."""
    if states is None:
        return None, None
    h, *cells = states_of(states, name, "the initial states (h, c, n, m)", 4)
    for place, state in enumerate(states):
        check_tensor(state, f"{name}[{place}]")
        if state.shape != h.shape:
            raise ValueError(f"{name}[{place}] has shape {tuple(state.shape)}, but {name}[0] has {tuple(h.shape)}")
        if state.dtype != states[min(place, 1)].dtype or state.device != h.device:
            found = f"{name}[{place}] has dtype {state.dtype} on {state.device}"
            raise ValueError(f"{found}, but {name}[1] has {states[1].dtype} on {h.device}")
    return h, torch.stack(cells, 1).flatten(0, 1) if h.dim() > 1 else torch.stack(cells)


def run_gates(
    gates: Tensor,
    recurrent: Tensor,
    bias: Tensor,
    states: Sequence[Tensor] | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, States]:
    """One layer with a sigmoid forget gate on the gates' inputs, for those who have their own products.

    Args:
        gates: W x, (T, N, 4, heads, D), gates i, f, z, o.
        recurrent: (heads, 4, D, D): the gates' rows of the heads.
        bias: (heads, 4, D), of any dtype: what gates' has no digits for is added, too.
        states: h, c, n and m, (N, heads D) each; None is zeros.
        lengths: (N,) integers, 1 to T.

    All of one device, all but the bias of one dtype.

    Returns:
        output: (T, N, heads D).
        (h, c, n, m): (N, heads D) each.
    """
    steps, batch, _, heads, units = gates.shape
    check_size(steps, "timesteps")
    hidden = heads * units
    config = Config(
        *(MODES["sLSTM"], hidden, 0, 1, False, 0.0, BACKENDS["persistent"]),
        heads=heads,
        gates_input=True,
    )
    hx = cx = None
    if states is not None:
        h, *cells = (state.reshape(batch, heads, units).transpose(0, 1) for state in states)
        hx, cx = h, torch.stack(cells, 1).flatten(0, 1)
    # The layer adds two biases, in float32: of one with more digits, the rounded one and the rest.
    rounded = bias.to(gates.dtype)
    rest = (bias - rounded).detach().to(gates.dtype)
    weights = [recurrent, rounded, rest]
    sequences = (None, lengths, None, (), None, None)
    output, hy, cy, _ = call(gates.reshape(steps, batch, 4 * hidden), hx, cx, weights, *sequences, config)
    last = (hy, *cy.unflatten(0, (heads, 3)).unbind(1))
    h, c, n, m = (state.transpose(0, 1).reshape(batch, hidden) for state in last)
    return output, (h, c, n, m)

"""One step of a layer: torch.nn's cells. Their own functions take less time than a layer's call over one timestep."""

import math
from collections.abc import Iterable
from numbers import Real

import torch
from torch import Tensor

GRUCell = torch.nn.GRUCell
RNNCell = torch.nn.RNNCell


def check_forget_bias(forget_bias: float | None, bias: bool) -> None:
    if forget_bias is None:
        return
    if isinstance(forget_bias, bool) or not isinstance(forget_bias, Real) or not math.isfinite(forget_bias):
        raise ValueError(f"forget_bias is {forget_bias!r}; it must be a finite number, or None for torch's default")
    if not bias:
        raise ValueError(f"forget_bias is {forget_bias}, but bias is False: the gates have none")


def fill_forget_bias(forget_bias: float, biases: Iterable[tuple[Tensor, Tensor]], heads: int = 1) -> None:
    """Sets the forget gate's part of each (bias_ih, bias_hh), (4 H,), of each head's gates i, f, g, o: their sum is
    forget_bias."""
    with torch.no_grad():
        for bias_ih, bias_hh in biases:
            bias_ih.view(heads, 4, -1)[:, 1].fill_(float(forget_bias))
            bias_hh.view(heads, 4, -1)[:, 1].zero_()


class LSTMCell(torch.nn.LSTMCell):
    """One step of an LSTM, as torch.nn.LSTMCell.

    Args:
        input_size, hidden_size, bias, device, dtype: as torch.nn.LSTMCell's.
        forget_bias: as prnn.nn.LSTM's.
    """

    forget_bias: float | None = None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        forget_bias: float | None = None,
    ) -> None:
        check_forget_bias(forget_bias, bias)
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.forget_bias = forget_bias
        self._fill_forget_bias()

    def _fill_forget_bias(self) -> None:
        if self.forget_bias is not None:
            fill_forget_bias(self.forget_bias, [(self.bias_ih, self.bias_hh)])

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._fill_forget_bias()

    def extra_repr(self) -> str:
        text = super().extra_repr()
        return text if self.forget_bias is None else f"{text}, forget_bias={self.forget_bias}"

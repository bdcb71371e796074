"""Shared by the sLSTM cells of xlstm and TiRex: their parameters' layouts and the recurrence on gate inputs."""

from typing import Any

import torch
from torch import Tensor, nn

from prnn._slstm import run_gates

GATES = 4


class Cell(nn.Module):
    """Parameters `_recurrent_kernel_` and `_bias_` in one of xlstm's two layouts, in which a cell saves them; it loads
    both.

    "cuda": kernel (heads, D, 4 D) and bias (heads 4 D,); "vanilla": kernel (heads, 4 D, D) and bias (4 heads D,).
    """

    _recurrent_kernel_: nn.Parameter
    _bias_: nn.Parameter

    def __init__(
        self,
        config: Any,
        heads: int,
        hidden: int,
        is_vanilla: bool,
        dtypes: tuple[torch.dtype | None, torch.dtype | None] = (None, None),
    ) -> None:
        """dtypes: of kernel and bias."""
        super().__init__()
        if heads < 1 or hidden < 1 or hidden % heads != 0:
            raise ValueError(f"num_heads is {heads}; it must divide the hidden size, {hidden}")
        self.config, self.heads, self.units, self.is_vanilla = config, heads, hidden // heads, is_vanilla
        shape = (heads, GATES * self.units, self.units) if is_vanilla else (heads, self.units, GATES * self.units)
        self._recurrent_kernel_ = nn.Parameter(torch.empty(shape, dtype=dtypes[0]))
        self._bias_ = nn.Parameter(torch.empty(GATES * hidden, dtype=dtypes[1]))

    @property
    def recurrent_kernel(self) -> Tensor:
        """The kernel as (heads, D, 4, D): from unit, gate, to unit. A view."""
        if self.is_vanilla:
            return self._recurrent_kernel_.unflatten(1, (GATES, -1)).permute(0, 3, 1, 2)
        return self._recurrent_kernel_.unflatten(2, (GATES, -1))

    @property
    def bias(self) -> Tensor:
        """The bias as (heads, 4, D), a view."""
        if self.is_vanilla:
            return self._bias_.view(GATES, self.heads, self.units).transpose(0, 1)
        return self._bias_.view(self.heads, GATES, self.units)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        kernel, bias = (state_dict.get(f"{prefix}{name}") for name in ("_recurrent_kernel_", "_bias_"))
        heads, units = self.heads, self.units
        other = (heads, units, GATES * units) if self.is_vanilla else (heads, GATES * units, units)
        if kernel is not None and kernel.shape == other:
            # The other layout's kernel transposed; its bias, with heads and gates the other way round.
            state_dict[f"{prefix}_recurrent_kernel_"] = kernel.transpose(1, 2)
            if bias is not None and bias.shape == self._bias_.shape:
                order = (heads, GATES) if self.is_vanilla else (GATES, heads)
                state_dict[f"{prefix}_bias_"] = bias.view(*order, units).transpose(0, 1).reshape(-1)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _run(
        self, gates: Tensor, state: Tensor | None, dtype: torch.dtype, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Output (S, B, H) and the last states (4, B, H), of `dtype`, in which they are computed.

        gates: (S, B, 4, heads, D); state: (4, B, H)."""
        if state is not None:
            shape = (GATES, gates.size(1), self.heads * self.units)
            if state.shape != shape:
                raise ValueError(f"state has shape {tuple(state.shape)}; it must be {shape}")
        with torch.autocast(gates.device.type, enabled=False):
            kernel = self.recurrent_kernel.permute(0, 2, 3, 1).to(dtype)
            states = None if state is None else state.to(dtype).unbind()
            output, last = run_gates(gates.to(dtype), kernel, self.bias, states, lengths)
        return output, torch.stack(last)

    def __repr__(self) -> str:
        return f"prnn.{type(self).__name__}(hidden_size={self.heads * self.units}, num_heads={self.heads})"

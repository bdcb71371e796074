"""xlstm's sLSTM cell: `prnn.compat.install("xlstm")`, or `from prnn.compat.xlstm import sLSTMCell`.

`install` puts `sLSTMCell` in the place of xlstm's, so that `sLSTMLayer`, `sLSTMBlock`, `xLSTMBlockStack` and
`xLSTMLMModel` that are made later have it, with the same configurations and state dicts. Nothing is compiled; a
configuration with backend="cuda" runs on the CPU, too.
"""

from typing import Any

import torch
from torch import Tensor, nn

from prnn import NotSupportedError
from prnn.compat._slstm_cells import GATES, Cell

__all__ = ["sLSTMCell"]

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

# Options that xlstm's own kernels ignore, or clip in ways that gradients would not show.
_UNSUPPORTED = {"gradient_recurrent_cut": False, "gradient_recurrent_clipval": None, "forward_clipval": None}


class sLSTMCell(Cell):  # noqa: N801  # xlstm's name
    """The recurrence of xlstm's sLSTM: the gates' inputs in, hidden states out.

    A configuration with backend="cuda" computes in its `dtype_w` (bfloat16 by default), one with "vanilla" in the type
    of the input; c, n and m are carried in float32. The state dict is the one that xlstm's cell of the same backend
    has; of the other backend, it loads too.

    Args:
        config: xlstm's `sLSTMCellConfig` or `sLSTMLayerConfig`, with function="slstm".
        skip_backend_init: taken for xlstm's sake; there is no backend to build.

    Raises:
        ValueError: a field of the configuration has a value that xlstm does not know, or num_heads does not divide
            hidden_size.
        prnn.NotSupportedError: function="lstm", or one of the options that clip or cut gradients.
    """

    def __init__(self, config: Any, skip_backend_init: bool = False) -> None:
        if config.function != "slstm":
            raise NotSupportedError(f"function is {config.function!r}; prnn's cell has 'slstm' alone")
        for name, default in _UNSUPPORTED.items():
            if getattr(config, name) != default:
                raise NotSupportedError(f"{name} is {getattr(config, name)!r}; prnn's cell takes {default!r} alone")
        known: dict[str, tuple[str, ...]] = {"backend": ("cuda", "vanilla"), "input_shape": ("BSGNH", "SBGNH")}
        known["output_shape"] = ("BNSH", "SBH", "BSH", "SBNH")
        known["recurrent_weight_init"] = ("zeros", "standard")
        known["bias_init"] = ("powerlaw_blockdependent", "small_init", "zeros", "standard")
        for name, values in known.items():
            if getattr(config, name) not in values:
                text = ", ".join(map(repr, values))
                raise ValueError(f"{name} is {getattr(config, name)!r}; it must be one of {text}")
        is_mixed = config.enable_automatic_mixed_precision
        dtypes = (None, None) if is_mixed else (_DTYPES[config.dtype_r], _DTYPES[config.dtype_b])
        super().__init__(config, config.num_heads, config.hidden_size, config.backend == "vanilla", dtypes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """xlstm's initial values, by `recurrent_weight_init` and `bias_init` of the configuration."""
        config, units = self.config, self.units
        bound = config.hidden_size**-0.5
        with torch.no_grad():
            if config.recurrent_weight_init == "zeros":
                nn.init.zeros_(self._recurrent_kernel_)
            else:
                nn.init.uniform_(self._recurrent_kernel_, -bound, bound)
            if config.bias_init == "standard":
                nn.init.uniform_(self._bias_, -bound, bound)
                return
            nn.init.zeros_(self._bias_)
            of_forget_gates = self.bias[:, 1]
            if config.bias_init == "small_init":
                of_forget_gates.copy_(torch.linspace(3.0, 6.0, units))
            elif config.bias_init == "powerlaw_blockdependent":
                depth = config._block_idx / (config._num_blocks - 1) if config._num_blocks > 1 else 0.0
                places = torch.arange(units) / max(units - 1, 1)
                of_forget_gates.copy_(5.0 - 12.0 * places ** (0.3 + 1.3 * depth))

    def forward(
        self, input: Tensor, state: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The hidden states of all timesteps and the last states.

        Args:
            input: W x, (B, S, 4 H), or (S, B, 4 H) with input_shape="SBGNH": gates i, f, z, o, heads within each.
            state: (4, B, H): h, c, n, m; None is zeros.
            lengths: (B,) integers, 1 to S; xlstm's cell ignores them. The output is zero beyond them.

        Returns:
            output: (B, heads, S, D), or as output_shape says.
            state: (4, B, H), of each sequence's own last timestep.
            Both of the input's type, under autocast of the one that they are computed in.
        """
        config = self.config
        hidden = GATES * config.hidden_size
        if input.dim() != 3 or input.size(-1) != hidden:
            raise ValueError(f"input has shape {tuple(input.shape)}; it must have 3 dimensions, the last of {hidden}")
        gates = input.unflatten(2, (GATES, self.heads, self.units))
        if config.input_shape == "BSGNH":
            gates = gates.transpose(0, 1)
        dtype = _DTYPES[config.dtype_w] if config.backend == "cuda" else input.dtype
        output, last = self._run(gates, state, dtype, lengths)
        if not torch.is_autocast_enabled(input.device.type):
            output, last = output.to(input.dtype), last.to(input.dtype)
        by_head = output.unflatten(2, (self.heads, self.units))
        shapes = {"SBH": output, "BSH": output.transpose(0, 1), "SBNH": by_head, "BNSH": by_head.permute(1, 2, 0, 3)}
        return shapes[config.output_shape], last

    def step(self, input: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """forward() of one timestep. It returns the new state; xlstm's returns the one that it is given."""
        return self.forward(input, state)


TRIGGERS = ("xlstm.blocks.slstm.cell", "xlstm.blocks.slstm.layer")


def replace(module: Any) -> list[str]:
    """Replaces the cell in one of TRIGGERS; the names of what was not prnn's already."""
    if module.sLSTMCell is sLSTMCell:
        return []
    module.sLSTMCell = sLSTMCell
    return [f"{module.__name__}.sLSTMCell"]

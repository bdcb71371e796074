"""TiRex's sLSTM cell: `prnn.compat.install("tirex")` before a model is loaded, or `from prnn.compat.tirex import
sLSTMCell`.

Models that are made later have the cell, with the same checkpoints and for both values of TiRex's `backend`; xlstm need
not be installed, and nothing is compiled.
"""

from typing import Any

import torch
from torch import Tensor

from prnn.compat._slstm_cells import GATES, Cell

__all__ = ["sLSTMCell"]


class sLSTMCell(Cell):  # noqa: N801  # TiRex's name
    """The recurrence of TiRex's sLSTM.

    On a GPU it computes in bfloat16, as the original, with c, n and m in float32; on the CPU in the type of the input,
    where the original rounds the gates' inputs, the kernel and, after every timestep, the states to bfloat16. The
    original takes log sigma(min(f, 15)), which differs by 3e-7 at most.

    Args:
        config: TiRex's `sLSTMBlockConfig`.
        backend: "torch" or "cuda"; prnn's kernels run on the device of the input in both cases.
    """

    def __init__(self, config: Any, backend: str) -> None:
        if backend not in ("torch", "cuda"):
            raise ValueError(f"backend is {backend!r}; it must be 'torch' or 'cuda'")
        super().__init__(config, config.num_heads, config.embedding_dim, is_vanilla=False)
        self.backend = backend

    def forward(self, input: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The hidden states of all timesteps, (B, heads, S, D), and the last states, (4, B, H), of the input's type.

        Args:
            input: W x, (B, S, 4 H): gates i, f, z, o, heads within each.
            state: (4, B, H): h, c, n, m; None is zeros.
        """
        hidden = GATES * self.config.embedding_dim
        if input.dim() != 3 or input.size(-1) != hidden:
            raise ValueError(f"input has shape {tuple(input.shape)}; it must have 3 dimensions, the last of {hidden}")
        gates = input.unflatten(2, (GATES, self.heads, self.units)).transpose(0, 1)
        dtype = input.dtype if input.device.type == "cpu" else torch.bfloat16
        output, last = self._run(gates, state, dtype)
        by_head = output.unflatten(2, (self.heads, self.units)).permute(1, 2, 0, 3)
        return by_head.to(input.dtype), last.to(input.dtype)


TRIGGERS = ("tirex.models.slstm.cell", "tirex.models.slstm.layer")


def replace(module: Any) -> list[str]:
    """Replaces the cell in one of TRIGGERS; the names of what was not prnn's already."""
    if module.sLSTMCell is sLSTMCell:
        return []
    module.sLSTMCell = sLSTMCell
    return [f"{module.__name__}.sLSTMCell"]

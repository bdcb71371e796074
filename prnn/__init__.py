"""Recurrent layers whose weights stay on the chip, CTC and RNN-T losses, and a streaming transducer."""

import torch  # noqa: F401  # before prnn._C, so that both share torch's OpenMP threads

from prnn._C import __version__

__all__ = ["__version__"]

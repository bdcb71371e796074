"""Recurrent layers whose weights stay on the chip, CTC and RNN-T losses, and a streaming transducer."""

import torch  # noqa: F401  # before prnn._C, so that both share torch's OpenMP threads

from prnn import nn
from prnn._C import __version__
from prnn._errors import NotSupportedError
from prnn.convert import convert, convert_back

__all__ = ["NotSupportedError", "__version__", "convert", "convert_back", "nn"]

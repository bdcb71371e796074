"""torch's switches for float32 products on a GPU.

Each has an older name (allow_tf32, torch.set_float32_matmul_precision) and, since torch 2.9, a newer one
(fp32_precision), set for one kind of product, for cuDNN, or for everything. Once a newer one has been set, reading an
older one can raise; the newer ones always answer for both."""

from typing import Any

import torch

__all__ = ["allows_tf32_matmul", "allows_tf32_rnn"]


# A look-up through torch.backends, the only one that torch.compile can trace, takes microseconds in every call.
_is_compiling = torch.compiler.is_compiling
_rnn: Any = getattr(torch.backends.cudnn, "rnn", None)
_has_newer = hasattr(_rnn, "fp32_precision")  # since torch 2.9


def allows_tf32_matmul() -> bool:
    """Whether torch makes float32 matrix products on a GPU in tf32 (torch.backends.cuda.matmul; by default not)."""
    matmul: Any = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        return bool(matmul.allow_tf32)
    return bool(matmul.fp32_precision == "tf32")


def allows_tf32_rnn() -> bool:
    """Whether torch has cuDNN make the products of float32 recurrent layers in tf32 (torch.backends.cudnn.rnn; by
    default it has)."""
    if _has_newer and not _is_compiling():
        return bool(_rnn.fp32_precision == "tf32")
    cudnn: Any = torch.backends.cudnn
    if not hasattr(cudnn, "rnn"):
        return bool(cudnn.allow_tf32)
    return bool(cudnn.rnn.fp32_precision == "tf32")

"""torch's switches for float32 products on a GPU.

Each has an older name (allow_tf32, torch.set_float32_matmul_precision) and, since torch 2.9, a newer one
(fp32_precision), set for one kind of product, for cuDNN, or for everything. Once a newer one has been set, reading an
older one can raise; the newer ones always answer for both."""

from typing import Any

import torch

from prnn._ops._torch_private import fp32_precision as _fp32_precision

__all__ = ["allows_tf32_matmul", "allows_tf32_rnn"]


# A look-up through torch.backends, the only one that torch.compile can trace, takes microseconds in every call.
_is_compiling = torch.compiler.is_compiling


def allows_tf32_matmul() -> bool:
    """Whether torch makes float32 matrix products on a GPU in tf32 (torch.backends.cuda.matmul; by default not)."""
    matmul: Any = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        return bool(matmul.allow_tf32)
    return bool(matmul.fp32_precision == "tf32")


def allows_tf32_rnn() -> bool:
    """Whether torch has cuDNN make the products of float32 recurrent layers in tf32 (torch.backends.cudnn.rnn; by
    default it has)."""
    if _fp32_precision is not None and not _is_compiling():
        return bool(_fp32_precision("cuda", "rnn") == "tf32")
    cudnn: Any = torch.backends.cudnn
    if not hasattr(cudnn, "rnn"):
        return bool(cudnn.allow_tf32)
    return bool(cudnn.rnn.fp32_precision == "tf32")

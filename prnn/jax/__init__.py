"""prnn for JAX: recurrent layers as functions that jax compiles and differentiates.

Their kernels are libprnn's, on the CPU and on NVIDIA GPUs; torch is not imported."""

try:
    import jax  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError("prnn.jax needs jax: pip install jax, or jax[cuda12] for a GPU") from error

from prnn._C import NotSupportedError
from prnn.jax.layers import gru, init_params, lstm, rnn

__all__ = ["NotSupportedError", "gru", "init_params", "lstm", "rnn"]

"""prnn for JAX: recurrent layers, losses and greedy search as functions that jax compiles and differentiates.

Their kernels are libprnn's, on the CPU and on NVIDIA GPUs; torch is not imported."""

try:
    import jax  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError("prnn.jax needs jax: pip install jax, or jax[cuda12] for a GPU") from error

from prnn._C import NotSupportedError
from prnn.jax.layers import gru, init_params, lstm, rnn
from prnn.jax.losses import ctc_loss, joint_rnnt_loss, joint_tdt_loss, rnnt_loss, tdt_loss
from prnn.jax.search import Found, greedy_search

__all__ = [
    "Found",
    "NotSupportedError",
    "ctc_loss",
    "greedy_search",
    "gru",
    "init_params",
    "joint_rnnt_loss",
    "joint_tdt_loss",
    "lstm",
    "rnn",
    "rnnt_loss",
    "tdt_loss",
]

"""Every name of torch that prnn's layers and losses use and torch does not document, and why.

A public function that does the same is slower or is missing: the host's time is most of a small call. A version of
torch that renames one of these fails here, when prnn is imported; those that builds of torch without CUDA lack are
None."""

from typing import Any

import torch
from torch._compile import _disable_dynamo as disable_dynamo  # torch.compiler.disable imports torch._dynamo: a second
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

__all__ = [
    "assert_async",
    "below_autograd",
    "cuda_current_stream",
    "disable_dynamo",
    "enable_single_level_autograd_function",
    "forward_mode_is_on",
    "in_functorch",
    "is_batched",
    "is_undisturbed",
    "set_forward_mode",
]

# Operators below autograd: an operator's derivative calls the operator itself.
below_autograd: Any = torch._C._AutoDispatchBelowAutograd

# Observers of a call besides its caller: dispatch modes (fake tensors), transforms of torch.func, torch.jit.trace.
in_functorch: Any = torch._C._are_functorch_transforms_active  # which torch.compile knows, from torch 2.6 on
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack
_is_compiling: Any = torch.compiler.is_compiling
_is_jit_trace: Any = torch.jit.is_tracing  # type: ignore[attr-defined]


def is_undisturbed() -> bool:
    """Whether there is no torch.compile, fake tensor or other dispatch mode, functorch transform, dual level of
    forward-mode derivatives or jit trace."""
    return not (
        _is_compiling() or _dispatch_modes() or in_functorch() or forward_ad._current_level >= 0 or _is_jit_trace()
    )


# torch.autograd.grad(is_grads_batched=True) has batched tensors of its own, without memory.
is_batched: Any = torch._C._functorch.is_legacy_batchedtensor

# Forward-mode derivatives, inside of which a Function of reverse mode has to see its level.
set_forward_mode: Any = forward_ad._set_fwd_grad_enabled


def forward_mode_is_on() -> bool:
    """Whether a dual level of forward-mode derivatives is entered."""
    return forward_ad._current_level >= 0


# torch.cuda.current_stream() makes an object, which takes ten times as long.
cuda_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)

# A check of values in a compiled function that does not wait for them.
assert_async: Any = torch._assert_async

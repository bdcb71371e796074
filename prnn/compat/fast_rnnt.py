"""fast_rnnt 1.3: `from prnn.compat import fast_rnnt`.

The functions are those of prnn.losses.pruned. Where they take rnnt_type, they also take the keyword that earlier
versions have in its place: modified=True is rnnt_type="modified".
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from prnn import _C
from prnn._errors import NotSupportedError
from prnn.losses import pruned
from prnn.losses._module import refuse_scripting
from prnn.losses.pruned import (
    do_rnnt_pruning,
    get_rnnt_prune_ranges,
    joint_mutual_information_recursion,
    mutual_information_recursion,
)

__all__ = [
    "do_rnnt_pruning",
    "get_rnnt_logprobs",
    "get_rnnt_logprobs_joint",
    "get_rnnt_logprobs_pruned",
    "get_rnnt_logprobs_smoothed",
    "get_rnnt_prune_ranges",
    "joint_mutual_information_recursion",
    "mutual_information_recursion",
    "rnnt_loss",
    "rnnt_loss_pruned",
    "rnnt_loss_simple",
    "rnnt_loss_smoothed",
    "with_cuda",
]

Function = TypeVar("Function", bound=Callable[..., Any])


def takes_modified(function: Function) -> Function:
    """`function`, which also takes modified=True for rnnt_type="modified"."""

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        if options.pop("modified", False):
            options["rnnt_type"] = "modified"
        return function(*args, **options)

    return cast(Function, wrapped)


get_rnnt_logprobs = takes_modified(pruned.get_rnnt_logprobs)
get_rnnt_logprobs_joint = takes_modified(pruned.get_rnnt_logprobs_joint)
get_rnnt_logprobs_pruned = takes_modified(pruned.get_rnnt_logprobs_pruned)
get_rnnt_logprobs_smoothed = takes_modified(pruned.get_rnnt_logprobs_smoothed)
rnnt_loss = takes_modified(pruned.rnnt_loss)
rnnt_loss_pruned = takes_modified(pruned.rnnt_loss_pruned)
rnnt_loss_simple = takes_modified(pruned.rnnt_loss_simple)
rnnt_loss_smoothed = takes_modified(pruned.rnnt_loss_smoothed)


def with_cuda() -> bool:
    """Whether prnn was built with CUDA."""
    try:
        _C.Handle.cuda()
    except NotSupportedError:
        return False
    except RuntimeError:  # built with CUDA, but there is no GPU
        return True
    return True


refuse_scripting(globals()[name] for name in __all__)

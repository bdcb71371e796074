"""fast_rnnt 1.3: `from prnn.compat import fast_rnnt`. The functions are those of prnn.losses.pruned."""

from prnn import _C
from prnn._errors import NotSupportedError
from prnn.losses.pruned import (
    do_rnnt_pruning,
    get_rnnt_logprobs,
    get_rnnt_logprobs_joint,
    get_rnnt_logprobs_pruned,
    get_rnnt_logprobs_smoothed,
    get_rnnt_prune_ranges,
    joint_mutual_information_recursion,
    mutual_information_recursion,
    rnnt_loss,
    rnnt_loss_pruned,
    rnnt_loss_simple,
    rnnt_loss_smoothed,
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


def with_cuda() -> bool:
    """Whether prnn was built with CUDA."""
    try:
        _C.Handle.cuda()
    except NotSupportedError:
        return False
    except RuntimeError:  # built with CUDA, but there is no GPU
        return True
    return True

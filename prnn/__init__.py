"""Recurrent layers whose weights stay on the chip, CTC and RNN-T losses, and a streaming transducer."""

from typing import TYPE_CHECKING

from prnn._startup import needs_torch

if needs_torch():
    import torch  # noqa: F401  # before prnn._C, so that both share torch's OpenMP threads

    from prnn import nn
    from prnn._errors import NotSupportedError
    from prnn.convert import convert, convert_back
    from prnn.explain import explain
    from prnn.losses import (
        CTCLoss,
        JointRNNTLoss,
        JointTDTLoss,
        MultiBlankRNNTLoss,
        RNNTLoss,
        TDTLoss,
        ctc_loss,
        do_rnnt_pruning,
        forced_align,
        get_rnnt_prune_ranges,
        joint_rnnt_loss,
        joint_tdt_loss,
        multi_blank_rnnt_loss,
        mutual_information_recursion,
        rnnt_loss,
        rnnt_loss_pruned,
        rnnt_loss_simple,
        rnnt_loss_smoothed,
        tdt_loss,
    )
    from prnn.transducer import Hypothesis, Transducer, TransducerConfig, transducer_search
elif not TYPE_CHECKING:

    def __getattr__(name):
        """Brings torch and all that needs it, at the first use after `import prnn.jax`."""
        import importlib
        import sys

        if name == "nn":  # which modules of this package import
            return importlib.import_module("prnn.nn")
        if name in __all__:
            importlib.reload(sys.modules[__name__])
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


from prnn._C import __version__

__all__ = [
    "CTCLoss",
    "Hypothesis",
    "JointRNNTLoss",
    "JointTDTLoss",
    "MultiBlankRNNTLoss",
    "NotSupportedError",
    "RNNTLoss",
    "TDTLoss",
    "Transducer",
    "TransducerConfig",
    "__version__",
    "convert",
    "convert_back",
    "ctc_loss",
    "do_rnnt_pruning",
    "explain",
    "forced_align",
    "get_rnnt_prune_ranges",
    "joint_rnnt_loss",
    "joint_tdt_loss",
    "multi_blank_rnnt_loss",
    "mutual_information_recursion",
    "nn",
    "rnnt_loss",
    "rnnt_loss_pruned",
    "rnnt_loss_simple",
    "rnnt_loss_smoothed",
    "tdt_loss",
    "transducer_search",
]

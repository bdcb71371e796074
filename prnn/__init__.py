"""Recurrent layers whose weights stay on the chip, CTC and RNN-T losses, and a streaming transducer."""

from typing import TYPE_CHECKING

from prnn._startup import needs_torch

if "__all__" in globals() or needs_torch():  # the former: _Package loads it again
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
    import importlib
    import sys
    import types

    class _Package(types.ModuleType):
        """This package where torch comes at the first use of what needs it, after `import prnn.jax`."""

        def __getattr__(self, name):
            if name == "nn":  # which modules of this package import
                return importlib.import_module("prnn.nn")
            if name in __all__:
                importlib.reload(self)
                if name in vars(self):
                    return vars(self)[name]
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if name in ("convert", "explain") and isinstance(value, types.ModuleType):
                importlib.reload(self)  # its function of that name takes the module's place

    sys.modules[__name__].__class__ = _Package

from prnn._C import __version__

if not TYPE_CHECKING:

    def __getattr__(name):
        """Imports a package that not every program needs at its first use, so that `import prnn` is enough for it."""
        import importlib
        import sys

        if name in ("asr", "compat", "jax"):
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])


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

"""CTC, RNN-T, TDT and multi-blank transducer losses, pruned RNN-T, and forced alignment."""

from prnn.losses._module import refuse_scripting
from prnn.losses.align import Alignment, forced_align
from prnn.losses.ctc import CTCLoss, ctc_loss
from prnn.losses.joint import JointRNNTLoss, joint_rnnt_loss
from prnn.losses.joint_tdt import JointTDTLoss, joint_tdt_loss
from prnn.losses.multi_blank import MultiBlankRNNTLoss, multi_blank_rnnt_loss
from prnn.losses.pruned import (
    do_rnnt_pruning,
    get_rnnt_prune_ranges,
    rnnt_loss_pruned,
    rnnt_loss_simple,
    rnnt_loss_smoothed,
)
from prnn.losses.recursion import joint_mutual_information_recursion, mutual_information_recursion
from prnn.losses.rnnt import RNNTLoss, rnnt_loss
from prnn.losses.tdt import TDTLoss, tdt_loss

__all__ = [
    "Alignment",
    "CTCLoss",
    "JointRNNTLoss",
    "JointTDTLoss",
    "MultiBlankRNNTLoss",
    "RNNTLoss",
    "TDTLoss",
    "ctc_loss",
    "do_rnnt_pruning",
    "forced_align",
    "get_rnnt_prune_ranges",
    "joint_mutual_information_recursion",
    "joint_rnnt_loss",
    "joint_tdt_loss",
    "multi_blank_rnnt_loss",
    "mutual_information_recursion",
    "rnnt_loss",
    "rnnt_loss_pruned",
    "rnnt_loss_simple",
    "rnnt_loss_smoothed",
    "tdt_loss",
]

refuse_scripting(globals()[name] for name in __all__)

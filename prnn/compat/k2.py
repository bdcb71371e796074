"""k2's RNN-T and CTC losses: `from prnn.compat import k2`.

The RNN-T functions are those of prnn.losses.pruned, with k2's argument order and its HAT option, and the keyword
`modified` of earlier versions as in prnn.compat.fast_rnnt. The CTC loss takes the graphs of label sequences that this
module makes (`ctc_graph`, or `compose` of `ctc_topo` and `linear_fsa`), not general graphs, and sums over all paths:
output_beam has no effect. The blank of CTC is 0.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import prnn
from prnn._errors import NotSupportedError
from prnn.compat.fast_rnnt import (
    get_rnnt_logprobs,
    get_rnnt_logprobs_pruned,
    get_rnnt_logprobs_smoothed,
    rnnt_loss,
    rnnt_loss_simple,
    rnnt_loss_smoothed,
    takes_modified,
)
from prnn.compat.fast_rnnt import with_cuda as _with_cuda
from prnn.losses import pruned
from prnn.losses._module import LossModule, refuse_scripting
from prnn.losses.pruned import (
    do_rnnt_pruning,
    get_rnnt_prune_ranges,
    joint_mutual_information_recursion,
    mutual_information_recursion,
)

__all__ = [
    "CtcLoss",
    "DenseFsaVec",
    "compose",
    "ctc_graph",
    "ctc_loss",
    "ctc_topo",
    "do_rnnt_pruning",
    "get_hat_logprobs_pruned",
    "get_rnnt_logprobs",
    "get_rnnt_logprobs_joint",
    "get_rnnt_logprobs_pruned",
    "get_rnnt_logprobs_smoothed",
    "get_rnnt_prune_ranges",
    "joint_mutual_information_recursion",
    "linear_fsa",
    "mutual_information_recursion",
    "rnnt_loss",
    "rnnt_loss_pruned",
    "rnnt_loss_simple",
    "rnnt_loss_smoothed",
]


def __getattr__(name: str) -> bool:
    if name == "with_cuda":
        return _with_cuda()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# ---- RNN-T ----


@takes_modified
def get_rnnt_logprobs_joint(
    logits: Tensor,
    symbols: Tensor,
    termination_symbol: int,
    rnnt_type: str = "regular",
    boundary: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """px and py of full logits (N, T, S + 1, V); `prnn.losses.pruned.get_rnnt_logprobs_joint`."""
    return pruned.get_rnnt_logprobs_joint(logits, symbols, termination_symbol, boundary, rnnt_type)


def _softmax_logits(logits: Tensor, termination_symbol: int) -> Tensor:
    """Logits whose softmax is HAT's distribution (Variani et al. 2020, arXiv:2003.07705): the blank has the probability
    sigmoid(logits[..., 0]), the others share the rest by a softmax of their own."""
    if termination_symbol != 0:
        raise ValueError(f"termination_symbol is {termination_symbol}; with HAT it must be 0")
    blank = logits[..., :1] + logits[..., 1:].logsumexp(-1, keepdim=True)
    return torch.cat((blank, logits[..., 1:]), -1)


@takes_modified
def get_hat_logprobs_pruned(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: str = "regular",
) -> tuple[Tensor, Tensor]:
    """`get_rnnt_logprobs_pruned` with the blank as HAT has it; termination_symbol must be 0."""
    logits = _softmax_logits(logits, termination_symbol)
    return pruned.get_rnnt_logprobs_pruned(logits, symbols, ranges, termination_symbol, boundary, rnnt_type)


@takes_modified
def rnnt_loss_pruned(
    logits: Tensor,
    symbols: Tensor,
    ranges: Tensor,
    termination_symbol: int,
    boundary: Tensor | None = None,
    rnnt_type: str = "regular",
    delay_penalty: float = 0.0,
    reduction: str = "mean",
    use_hat_loss: bool = False,
) -> Tensor:
    """`prnn.losses.pruned.rnnt_loss_pruned`; use_hat_loss: the blank has the probability sigmoid(logits[..., 0]), and
    termination_symbol must be 0."""
    if use_hat_loss:
        logits = _softmax_logits(logits, termination_symbol)
    loss = pruned.rnnt_loss_pruned(
        logits, symbols, ranges, termination_symbol, boundary, rnnt_type, delay_penalty, reduction
    )
    assert isinstance(loss, Tensor)  # return_grad is False
    return loss


# ---- CTC ----


class CtcGraph(NamedTuple):
    """The label sequences whose CTC graphs these are."""

    symbols: list[list[int]]

    def to(self, device: Any) -> "CtcGraph":
        return self


def ctc_graph(symbols: Any, modified: bool = False, device: Any = None) -> CtcGraph:
    """Graphs of label sequences.

    Args:
        symbols: a list of lists of labels, or what gives one by tolist().
        modified: True, which makes the blank between equal labels optional, is not supported.
        device: without effect.
    """
    if modified:
        raise NotSupportedError("modified is True; prnn's CTC loss wants a blank between equal labels")
    sequences = symbols.tolist() if hasattr(symbols, "tolist") else symbols
    return CtcGraph([[int(label) for label in sequence] for sequence in sequences])


class CtcTopology(NamedTuple):
    """The first argument of `compose`."""

    max_token: int


def ctc_topo(max_token: int, modified: bool = False, device: Any = None) -> CtcTopology:
    """The CTC topology of labels up to max_token, for `compose`; modified as for `ctc_graph`."""
    if modified:
        raise NotSupportedError("modified is True; prnn's CTC loss wants a blank between equal labels")
    return CtcTopology(max_token)


def linear_fsa(labels: Any, device: Any = None) -> CtcGraph:
    """A label sequence, or a list of them, for `compose`."""
    sequences = labels.tolist() if hasattr(labels, "tolist") else labels
    nested = len(sequences) > 0 and isinstance(sequences[0], Sequence)
    return ctc_graph(sequences if nested else [sequences])


def compose(a_fsa: CtcTopology, b_fsa: CtcGraph) -> CtcGraph:
    """The graphs of `linear_fsa` under a topology of `ctc_topo`; nothing else is composed."""
    if not isinstance(a_fsa, CtcTopology) or not isinstance(b_fsa, CtcGraph):
        raise NotSupportedError(
            f"a_fsa is a {type(a_fsa).__name__} and b_fsa a {type(b_fsa).__name__}; "
            "prnn.compat.k2 composes what its ctc_topo and linear_fsa give, in this order"
        )
    largest = max((label for sequence in b_fsa.symbols for label in sequence), default=0)
    if largest > a_fsa.max_token:
        raise ValueError(f"b_fsa has the label {largest}; the topology's largest is {a_fsa.max_token}")
    return b_fsa


class DenseFsaVec:
    """Log-probabilities of segments, as `ctc_loss` takes them.

    Args:
        log_probs: (N, T, C).
        supervision_segments: (S, 3) int32 on the CPU: sequence, first frame, number of frames.
        allow_truncate: by how many frames a segment may go beyond T; it is cut off there.
    """

    def __init__(self, log_probs: Tensor, supervision_segments: Tensor, allow_truncate: int = 0) -> None:
        if log_probs.dim() != 3:
            raise ValueError(f"log_probs has the shape {tuple(log_probs.shape)}; it must be (N, T, C)")
        if supervision_segments.dim() != 2 or supervision_segments.shape[1] != 3:
            shape = tuple(supervision_segments.shape)
            raise ValueError(f"supervision_segments has the shape {shape}; it must be (S, 3)")
        batch, frames, _ = log_probs.shape
        for sequence, begin, count in supervision_segments.tolist():
            if not 0 <= sequence < batch:
                raise ValueError(f"supervision_segments has sequence {sequence}; it must be 0 to {batch - 1}")
            if not 0 <= begin < frames or count < 0 or begin + count > frames + allow_truncate:
                raise ValueError(
                    f"supervision_segments has frames {begin} to {begin + count}; log_probs has {frames}, and "
                    f"allow_truncate is {allow_truncate}"
                )
        self.log_probs = log_probs
        self.segments = supervision_segments.long().cpu()

    @property
    def duration(self) -> Tensor:
        """(S,) int32 on the CPU, frames of each segment."""
        room = self.log_probs.shape[1] - self.segments[:, 1]
        return torch.minimum(self.segments[:, 2], room).int()

    def to(self, device: Any) -> "DenseFsaVec":
        moved = object.__new__(DenseFsaVec)
        moved.log_probs, moved.segments = self.log_probs.to(device), self.segments
        return moved

    def rows(self) -> Tensor:
        """(S, T, C): frame t of segment s, for t up to its duration."""
        sequences, begins, _ = self.segments.unbind(1)
        batch, frames, _ = self.log_probs.shape
        if not begins.any() and torch.equal(sequences, torch.arange(batch, device=sequences.device)):
            return self.log_probs
        time = (begins[:, None] + torch.arange(frames, device=begins.device)).clamp(max=frames - 1)
        device = self.log_probs.device
        return self.log_probs[sequences[:, None].to(device), time.to(device)]


class CtcLoss(LossModule):
    """`ctc_loss` as a module."""

    def __init__(self, output_beam: float, reduction: str = "sum", use_double_scores: bool = True) -> None:
        super().__init__()
        if reduction not in ("none", "mean", "sum"):
            raise ValueError(f"reduction is {reduction!r}; it must be one of 'none', 'mean', 'sum'")
        self.output_beam = output_beam
        self.reduction = reduction
        self.use_double_scores = use_double_scores

    def forward(
        self,
        decoding_graph: CtcGraph,
        dense_fsa_vec: DenseFsaVec,
        delay_penalty: float = 0.0,
        target_lengths: Tensor | None = None,
    ) -> Tensor:
        if not isinstance(decoding_graph, CtcGraph) or not isinstance(dense_fsa_vec, DenseFsaVec):
            raise NotSupportedError(
                f"decoding_graph is a {type(decoding_graph).__name__} and dense_fsa_vec a "
                f"{type(dense_fsa_vec).__name__}; prnn.compat.k2 takes label sequences from its ctc_graph, and its "
                "DenseFsaVec, not general graphs"
            )
        if delay_penalty > 0:
            raise NotSupportedError(f"delay_penalty is {delay_penalty}; prnn's CTC loss has none")
        if self.reduction == "mean" and target_lengths is None:
            raise ValueError("target_lengths is None; reduction 'mean' divides by it")
        symbols = decoding_graph.symbols
        if len(symbols) != len(dense_fsa_vec.segments):
            raise ValueError(
                f"decoding_graph has {len(symbols)} sequences and dense_fsa_vec {len(dense_fsa_vec.segments)} "
                "segments; they must be as many"
            )
        costs = prnn.ctc_loss(
            dense_fsa_vec.rows().transpose(0, 1),
            torch.tensor([label for sequence in symbols for label in sequence], dtype=torch.int32, device="cpu"),
            dense_fsa_vec.duration,
            torch.tensor([len(sequence) for sequence in symbols], dtype=torch.int32, device="cpu"),
            reduction="none",
            from_logits=False,
        ).float()
        if self.reduction == "mean":
            assert target_lengths is not None
            return (costs / target_lengths.to(costs.device)).mean()
        return costs.sum() if self.reduction == "sum" else costs


def ctc_loss(
    decoding_graph: CtcGraph,
    dense_fsa_vec: DenseFsaVec,
    output_beam: float = 10,
    delay_penalty: float = 0.0,
    reduction: str = "sum",
    use_double_scores: bool = True,
    target_lengths: Tensor | None = None,
) -> Tensor:
    """CTC loss of log-probabilities, which are taken as they are; blank 0.

    Args:
        decoding_graph: S label sequences; see the module.
        dense_fsa_vec: S segments.
        output_beam, use_double_scores: without effect; all paths are summed, in double.
        delay_penalty: must be 0.
        reduction: "sum"; "none"; "mean" over the batch of each cost divided by its target length.
        target_lengths: (S,), for "mean".

    Returns:
        (S,) or () float32.
    """
    return CtcLoss(output_beam, reduction, use_double_scores)(
        decoding_graph, dense_fsa_vec, delay_penalty, target_lengths
    )


refuse_scripting(globals()[name] for name in __all__)

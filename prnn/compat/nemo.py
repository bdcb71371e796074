"""NeMo's RNN-T, multi-blank and TDT losses: `from prnn.compat import nemo`, or `prnn.compat.install("nemo")`.

`RNNTLossNumba`, `MultiblankRNNTLossNumba` and `TDTLossNumba` of nemo.collections.asr.parts.numba.rnnt_loss, and
`rnnt_loss`, `multiblank_rnnt_loss` and `tdt_loss` of its rnnt_pytorch. As there, logits in; reduced losses have the
shape (1,); FastEmit multiplies the cost, too, by 1 + lambda, though not its gradient once more; omega is drawn for
every batch, with Python's `random`. Beyond the original: all of them on the CPU, float64 and bfloat16. One difference:
NeMo clamps on the CPU after the reduction's factor; prnn before it, as NeMo on a GPU.

After `prnn.compat.install("nemo")` NeMo's loss names "default", "warprnnt_numba", "multiblank_rnnt" and "tdt" mean
these, and there is the name "prnn" for the first. The fused joint (`fuse_loss_wer`) computes RNN-T and, on a CPU, TDT
losses of the whole batch from the joint's inputs (`prnn.joint_rnnt_loss`, `prnn.joint_tdt_loss`), and the batched
greedy searches of these models are `prnn.transducer_search`.
"""

import functools
import importlib
import random
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import prnn
from prnn.compat._methods import replace_method
from prnn.compat._names import names
from prnn.compat._nemo_joint import fuses_loss, searches
from prnn.compat._results import with_gradient_of
from prnn.losses._module import LossModule, refuse_scripting

__all__ = [
    "MultiblankRNNTLossNumba",
    "RNNTLossNumba",
    "TDTLossNumba",
    "multiblank_rnnt_loss",
    "rnnt_loss",
    "tdt_loss",
]


_names = names(logits="acts", targets="labels", logit_lengths="act_lens", target_lengths="label_lens")


def _reduced(
    loss: Callable[[str], Tensor], dtype: torch.dtype, reduction: str | None, fastemit_lambda: float
) -> Tensor:
    """Costs (N,) or their reduction (1,), with FastEmit's factor in the value alone. `loss` takes a reduction."""
    if reduction not in ("none", "mean", "sum", None):
        raise ValueError(f"reduction is {reduction!r}; it must be one of 'none', 'mean', 'sum' or None")
    if fastemit_lambda == 0 and reduction in ("mean", "sum"):
        return loss(reduction).to(dtype).reshape(1)
    costs = loss("none").to(dtype)
    if fastemit_lambda != 0:
        costs = with_gradient_of((1 + fastemit_lambda) * costs, costs)
    if reduction == "mean":
        return costs.mean().reshape(1)
    return costs.sum().reshape(1) if reduction == "sum" else costs


@_names
def rnnt_loss(
    acts: Tensor,
    labels: Tensor,
    act_lens: Tensor,
    label_lens: Tensor,
    blank: int = 0,
    reduction: str | None = "mean",
    fastemit_lambda: float = 0.0,
    clamp: float = 0.0,
) -> Tensor:
    """RNN-T loss of logits.

    Args:
        acts: (N, T, U, V).
        labels: (N, U - 1).
        act_lens, label_lens: (N,).
        blank: index of the blank.
        reduction: "none" or None, "sum", or "mean" over the batch.
        fastemit_lambda: FastEmit; cost and gradients of labels are multiplied by 1 + fastemit_lambda.
        clamp: > 0: the gradient's elements are limited to [-clamp, clamp].

    Returns:
        (N,) or (1,) float32.
    """

    def loss(reduction: str) -> Tensor:
        return prnn.rnnt_loss(
            acts, labels, act_lens, label_lens, blank, clamp, reduction, fastemit_lambda=fastemit_lambda
        )

    return _reduced(loss, torch.float32, reduction, fastemit_lambda)


@_names
def _multiblank_rnnt_loss(
    acts: Tensor,
    labels: Tensor,
    act_lens: Tensor,
    label_lens: Tensor,
    blank: int,
    big_blank_durations: Sequence[int],
    reduction: str | None,
    fastemit_lambda: float,
    clamp: float,
    sigma: float,
) -> Tensor:
    def loss(reduction: str) -> Tensor:
        return prnn.multi_blank_rnnt_loss(
            acts,
            labels,
            act_lens,
            label_lens,
            blank,
            list(big_blank_durations),
            reduction,
            fastemit_lambda,
            clamp,
            sigma,
        )

    return _reduced(loss, acts.dtype, reduction, fastemit_lambda)


def multiblank_rnnt_loss(
    acts: Tensor,
    labels: Tensor,
    act_lens: Tensor,
    label_lens: Tensor,
    blank: int,
    big_blank_durations: Sequence[int] = (),
    reduction: str | None = "mean",
    fastemit_lambda: float = 0.0,
    clamp: float = 0.0,
) -> Tensor:
    """Multi-blank loss of logits (N, T, U, V), in the dtype of these; `prnn.multi_blank_rnnt_loss` without sigma.
    NeMo's function raises a TypeError whatever it is given."""
    return _multiblank_rnnt_loss(
        acts, labels, act_lens, label_lens, blank, big_blank_durations, reduction, fastemit_lambda, clamp, 0.0
    )


@_names
def _tdt_loss(
    acts: Tensor,
    labels: Tensor,
    act_lens: Tensor,
    label_lens: Tensor,
    blank: int,
    durations: Sequence[int],
    reduction: str | None,
    fastemit_lambda: float,
    clamp: float,
    sigma: float,
    omega: float,
) -> Tensor:
    steps = list(durations)
    batch = (labels, act_lens, label_lens, blank, steps)

    def loss(reduction: str) -> Tensor:
        if fastemit_lambda == 0 and clamp == 0:
            return prnn.tdt_loss(acts, *batch, reduction, sigma=sigma, omega=omega)
        tokens, duration_logits = acts.split([acts.shape[-1] - len(steps), len(steps)], dim=-1)
        costs = prnn.tdt_loss(
            tokens, *batch, reduction, fastemit_lambda, clamp, sigma, omega, duration_logits=duration_logits.detach()
        )
        plain = prnn.tdt_loss(
            tokens.detach(), *batch, reduction, sigma=sigma, omega=omega, duration_logits=duration_logits
        )
        return with_gradient_of(costs, costs + plain)

    return _reduced(loss, acts.dtype, reduction, fastemit_lambda)


def tdt_loss(
    acts: Tensor,
    labels: Tensor,
    act_lens: Tensor,
    label_lens: Tensor,
    blank: int,
    durations: Sequence[int] = (),
    reduction: str | None = "mean",
    fastemit_lambda: float = 0.0,
    clamp: float = 0.0,
) -> Tensor:
    """TDT loss of logits (N, T, U, V + D), in the dtype of these, as of `TDTLossNumba` without sigma and omega.
    NeMo's function raises a TypeError whatever it is given."""
    return _tdt_loss(acts, labels, act_lens, label_lens, blank, durations, reduction, fastemit_lambda, clamp, 0.0, 0.0)


class RNNTLossNumba(LossModule):
    """`rnnt_loss` as a module."""

    def __init__(
        self, blank: int = 0, reduction: str | None = "mean", fastemit_lambda: float = 0.0, clamp: float = -1
    ) -> None:
        super().__init__()
        self.blank = blank
        self.fastemit_lambda = fastemit_lambda
        self.clamp = float(clamp) if clamp > 0 else 0.0
        self.reduction = reduction

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        return rnnt_loss(
            acts, labels, act_lens, label_lens, self.blank, self.reduction, self.fastemit_lambda, self.clamp
        )


class MultiblankRNNTLossNumba(LossModule):
    """Multi-blank loss of logits (N, T, U, V), in the dtype of these; `prnn.multi_blank_rnnt_loss`."""

    def __init__(
        self,
        blank: int,
        big_blank_durations: Sequence[int],
        reduction: str | None = "mean",
        fastemit_lambda: float = 0.0,
        clamp: float = -1,
        sigma: float = 0.0,
    ) -> None:
        super().__init__()
        self.blank = blank
        self.big_blank_durations = big_blank_durations
        self.fastemit_lambda = fastemit_lambda
        self.clamp = float(clamp) if clamp > 0 else 0.0
        self.reduction = reduction
        self.sigma = sigma

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        options = self.reduction, self.fastemit_lambda, self.clamp, self.sigma
        return _multiblank_rnnt_loss(acts, labels, act_lens, label_lens, self.blank, self.big_blank_durations, *options)


class TDTLossNumba(LossModule):
    """TDT loss of logits (N, T, U, V + D), in the dtype of these; `prnn.tdt_loss`.

    As in NeMo, FastEmit and clamp act on the gradients of the V token logits alone; with either, the loss is computed
    twice."""

    def __init__(
        self,
        blank: int,
        durations: Sequence[int] | None = None,
        reduction: str | None = "mean",
        fastemit_lambda: float = 0.0,
        clamp: float = -1,
        sigma: float = 0.0,
        omega: float = 0.0,
    ) -> None:
        super().__init__()
        self.blank = blank
        self.durations = durations if durations is not None else []
        self.fastemit_lambda = fastemit_lambda
        self.clamp = float(clamp) if clamp > 0 else 0.0
        self.reduction = reduction
        self.sigma = sigma
        self.omega = omega

    def forward(self, acts: Tensor, labels: Tensor, act_lens: Tensor, label_lens: Tensor) -> Tensor:
        drawn = float(random.uniform(0, 1) < self.omega)
        options = self.reduction, self.fastemit_lambda, self.clamp, self.sigma, drawn
        return _tdt_loss(acts, labels, act_lens, label_lens, self.blank, self.durations, *options)


# ---- What install() puts into NeMo ----

_LOSSES = "nemo.collections.asr.losses.rnnt"
_JOINT = "nemo.collections.asr.modules.rnnt"
_LOOPING = "nemo.collections.asr.parts.submodules.transducer_decoding"
_COMPUTERS = {
    f"{_LOOPING}.rnnt_label_looping": "GreedyBatchedRNNTLabelLoopingComputer",
    f"{_LOOPING}.tdt_label_looping": "GreedyBatchedTDTLabelLoopingComputer",
}
# Modules after whose import replace() has something to do. Not every version of NeMo has all of them.
TRIGGERS = (_LOSSES, _JOINT, *_COMPUTERS)


def replace(module: ModuleType) -> list[str]:
    """Replaces what one of TRIGGERS has; the names of what was not prnn's already."""
    if module.__name__ == _LOSSES:
        return _replace_losses(module)
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = searches
    owner, method = _COMPUTERS.get(module.__name__, ""), "__call__"
    if module.__name__ == _JOINT:
        owner, method, wrap = "RNNTJoint", "forward", functools.partial(fuses_loss, costs_of=_joint_costs)
    if hasattr(module, owner) and replace_method(getattr(module, owner), method, wrap):
        return [f"{module.__name__}.{owner}.{method}"]
    return []


def _replace_losses(losses: Any) -> list[str]:
    numba: Any = importlib.import_module("nemo.collections.asr.parts.numba.rnnt_loss")
    original_losses: Any = importlib.import_module(f"{numba.__name__}.rnnt_pytorch")
    resolver, original = losses.RNNT_LOSS_RESOLVER, losses.resolve_rnnt_loss
    if "prnn" in resolver:
        return []

    def resolve_rnnt_loss(loss_name: str, blank_idx: int, loss_kwargs: dict[str, Any] | None = None) -> nn.Module:
        if loss_name != "prnn":
            return original(loss_name, blank_idx, loss_kwargs)
        return RNNTLossNumba(blank_idx, "none", **(loss_kwargs or {}))

    own = {name: globals()[name] for name in __all__}
    modules = {name: value for name, value in own.items() if isinstance(value, type)}
    replaced = []
    for module, values in ((losses, modules), (numba, modules), (original_losses, own)):
        for name, value in values.items():
            setattr(module, name, value)
            replaced.append(f"{module.__name__}.{name}")
    losses.resolve_rnnt_loss = resolve_rnnt_loss
    for name in ("warprnnt_numba", "multiblank_rnnt", "tdt"):
        resolver[name].is_available = True
        resolver[name].min_version = None  # of numba, which is not used
    resolver["prnn"] = type(resolver["tdt"])(loss_name="prnn", lib_name="prnn", is_available=True, force_float32=False)
    return [*replaced, f"{losses.__name__}.resolve_rnnt_loss"]


def _joint_costs(loss: Any) -> Callable[..., Tensor] | None:
    """The costs (N,) of one of these losses from the joint's inputs, as prnn.joint_rnnt_loss and prnn.joint_tdt_loss
    take them. None where there are none: multi-blank, whose softmax is over its blanks, too; clamp, which limits the
    gradients of what the joint gives, log-probabilities on a CPU; FastEmit of TDT, which leaves the durations out."""
    if type(loss) is RNNTLossNumba and loss.clamp == 0:

        def rnnt_costs(*inputs: Any, **options: Any) -> Tensor:
            joint: Callable[..., Tensor] = prnn.joint_rnnt_loss
            lattice = {"blank": loss.blank, "fastemit_lambda": loss.fastemit_lambda}

            def costs(reduction: str) -> Tensor:
                return joint(*inputs, reduction=reduction, **lattice, **options)

            return _reduced(costs, torch.float32, None, loss.fastemit_lambda)

        return rnnt_costs
    if type(loss) is TDTLossNumba and loss.clamp == loss.fastemit_lambda == 0:

        def tdt_costs(*inputs: Any, **options: Any) -> Tensor:
            joint: Callable[..., Tensor] = prnn.joint_tdt_loss
            lattice = {"blank": loss.blank, "durations": list(loss.durations), "sigma": loss.sigma}
            drawn = float(random.uniform(0, 1) < loss.omega)
            return joint(*inputs, reduction="none", omega=drawn, **lattice, **options)

        return tdt_costs
    return None


refuse_scripting(globals()[name] for name in __all__)

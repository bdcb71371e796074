"""Transformers' RNN-T and TDT losses, and its transducers' training without logits: `from prnn.compat import
transformers`, or `prnn.compat.install("transformers")`.

`rnnt_loss` and `ParakeetForRNNTLoss` of transformers.loss.loss_rnnt, `tdt_loss` and `ParakeetForTDTLoss` of
transformers.loss.loss_tdt: the same arguments, reductions and defaults. As there the result is float32, and what lies
beyond a sequence's lengths is not read. Beyond the original: half types are not copied to float32, torchaudio is not
needed, and a sequence without a path has zero gradients in place of NaN.

After `prnn.compat.install("transformers")` these are what `model.loss_function` of ParakeetForRNNT and ParakeetForTDT
calls, and NemotronAsrStreamingForRNNT and Nemotron3_5AsrForRNNT, which come without one, have
`NemotronForRNNTLoss`. In training mode the forward pass of the four with labels computes the loss from the joiner's
inputs (`prnn.joint_rnnt_loss`, `prnn.joint_tdt_loss`) and its output has `logits` None; `output_logits=True`, a loss
function of the user's own, a joiner with another activation or adapters on it, torch.compile of the whole model and
evaluation mode have the ordinary path, with logits. `generate()` of the four, given features and their mask alone (and
`max_new_tokens`, `do_sample=False`, `num_beams=1`, and Nemotron's `num_lookahead_tokens` and `prompt_ids`), searches by
`prnn.transducer_search`.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import prnn
from prnn.compat._methods import replace_method
from prnn.compat._names import names
from prnn.compat._parts import ACTIVATIONS
from prnn.compat._transformers_search import generates

__all__ = ["NemotronForRNNTLoss", "ParakeetForRNNTLoss", "ParakeetForTDTLoss", "rnnt_loss", "tdt_loss"]

_REDUCTIONS = ("mean_volume", "mean_batch", "mean", "sum", "none")


class _Joiner:
    """In the place of a joiner's logits: what it adds up, encoder (N, T, J) and predictor (N, U + 1, J)."""

    def __init__(self, joint: Any, encoder: Tensor, predictor: Tensor) -> None:
        self.joint, self.encoder, self.predictor = joint, encoder, predictor

    def squeeze(self, dim: int) -> "_Joiner":
        return self

    def __getitem__(self, index: tuple[Any, ...]) -> "_Joiner":
        if index[0] is Ellipsis:  # the logits of tokens or of durations, which the loss tells apart itself
            return self
        return _Joiner(self.joint, self.encoder[index], self.predictor)

    def costs(self, loss: Callable[..., Tensor], *batch: Any, **options: Any) -> Tensor:
        """Costs by a prnn.joint_..._loss, computed within a call of the joiner, which FSDP's hooks need."""

        def run(encoder: Tensor, predictor: Tensor) -> Tensor:
            weight, bias = self.joint.head.weight, self.joint.head.bias
            activation = ACTIVATIONS[type(self.joint.activation)]
            inputs = encoder.to(weight.dtype), predictor.to(weight.dtype), weight, bias
            return loss(*inputs, *batch, reduction="none", activation=activation, **options)

        found: Tensor = self.joint(self.predictor, self.encoder, loss=run)
        return found


_names = names(targets="labels", target_lengths="label_lengths", blank="blank_token_id")


def _reduced(costs: Tensor, target_lengths: Tensor, reduction: str) -> Tensor:
    costs = costs.float()
    lengths = target_lengths.to(costs)
    if reduction == "mean_volume":
        return costs.sum() / lengths.sum()
    if reduction == "mean":
        return (costs / lengths).mean()
    if reduction == "mean_batch":
        return costs.mean()
    return costs.sum() if reduction == "sum" else costs


def _require_reduction(reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(f'Invalid reduction mode "{reduction}". Expected one of {", ".join(map(repr, _REDUCTIONS))}.')


@names(blank="blank_token_id")
def rnnt_loss(
    logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank_token_id: int,
    reduction: str = "mean_volume",
) -> Tensor:
    """RNN-T loss of logits.

    Args:
        logits: (N, T, U + 1, V).
        targets: (N, U).
        logit_lengths, target_lengths: (N,).
        blank_token_id: index of the blank.
        reduction: "mean_volume", the sum of the costs over that of target_lengths; "mean_batch", over N; "mean", the
            mean of each cost over its target length; "sum"; "none".

    Returns:
        () float32, (N,) for "none".
    """
    _require_reduction(reduction)
    if isinstance(logits, _Joiner):
        costs = logits.costs(prnn.joint_rnnt_loss, targets, logit_lengths, target_lengths, blank_token_id)
    else:
        costs = prnn.rnnt_loss(logits, targets, logit_lengths, target_lengths, blank_token_id, reduction="none")
    return _reduced(costs, target_lengths, reduction)


@names(blank="blank_token_id", logits="token_logits")
def tdt_loss(
    token_logits: Tensor,
    duration_logits: Tensor,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    blank_token_id: int,
    durations: Sequence[int],
    sigma: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """TDT loss of logits.

    Args:
        token_logits: (N, T, U + 1, V). Where it and duration_logits are the two parts of one tensor (N, T, U + 1,
            V + D), as of Transformers' joiner, neither is copied.
        duration_logits: (N, T, U + 1, D).
        targets, logit_lengths, target_lengths, blank_token_id, reduction: as for `rnnt_loss`.
        durations, sigma: as for `prnn.tdt_loss`.

    Returns:
        () float32, (N,) for "none".
    """
    _require_reduction(reduction)
    batch = targets, logit_lengths, target_lengths, blank_token_id, list(durations)
    if isinstance(token_logits, _Joiner):
        costs = token_logits.costs(prnn.joint_tdt_loss, *batch, sigma=sigma)
    else:
        joined = _joined(token_logits, duration_logits)
        logits, apart = (token_logits, duration_logits) if joined is None else (joined, None)
        costs = prnn.tdt_loss(logits, *batch, reduction="none", sigma=sigma, duration_logits=apart)
    return _reduced(costs, target_lengths, reduction)


def _joined(tokens: Tensor, durations: Tensor) -> Tensor | None:
    """The tensor that the two are the parts of, if they are all of one."""
    base = None if torch.compiler.is_compiling() else tokens._base
    if base is None or durations._base is not base or tokens.shape[:-1] != durations.shape[:-1]:
        return None
    shape = (*tokens.shape[:-1], tokens.shape[-1] + durations.shape[-1])
    begin = tokens.storage_offset()
    if not base.is_contiguous() or base.numel() != tokens.numel() + durations.numel() or base.storage_offset() != begin:
        return None
    whole = base.view(shape)
    is_first = tokens.stride() == durations.stride() == whole.stride()
    return whole if is_first and durations.storage_offset() == begin + tokens.shape[-1] else None


@_names
def ParakeetForRNNTLoss(  # noqa: N802  # as Transformers names them
    logits: Tensor,
    labels: Tensor,
    logit_lengths: Tensor,
    label_lengths: Tensor,
    blank_token_id: int,
    reduction: str = "mean_volume",
    **kwargs: Any,
) -> Tensor:
    """`rnnt_loss` with the names of `model.loss_function`, which gives further keywords, of no effect here."""
    return rnnt_loss(logits, labels, logit_lengths, label_lengths, blank_token_id, reduction)


@_names
def ParakeetForTDTLoss(  # noqa: N802  # as Transformers names them
    token_logits: Tensor,
    duration_logits: Tensor,
    labels: Tensor,
    logit_lengths: Tensor,
    label_lengths: Tensor,
    blank_token_id: int,
    durations: Sequence[int],
    sigma: float = 0.0,
    reduction: str = "mean",
    **kwargs: Any,
) -> Tensor:
    """`tdt_loss` with the names of `model.loss_function`, which gives further keywords, of no effect here."""
    return tdt_loss(
        token_logits,
        duration_logits,
        labels,
        logit_lengths,
        label_lengths,
        blank_token_id,
        durations,
        sigma,
        reduction,
    )


def NemotronForRNNTLoss(  # noqa: N802  # as Transformers names them
    logits: Tensor,
    labels: Tensor,
    encoder_outputs: Any,
    *,
    blank_token_id: int,
    pad_token_id: int | None,
    reduction: str = "mean_volume",
) -> Tensor:
    """`rnnt_loss` as the forward pass of Nemotron's transducers calls their loss function.

    Args:
        logits: (N, T, U + 1, V).
        labels: (N, U), padded with pad_token_id or blank_token_id.
        encoder_outputs: its attention_mask (N, T) tells the real frames; None: all.
        blank_token_id, pad_token_id: of the model's configuration.
        reduction: as for `rnnt_loss`.
    """
    lengths = (labels != blank_token_id).logical_and(labels != (-1 if pad_token_id is None else pad_token_id)).sum(-1)
    mask = encoder_outputs.attention_mask
    if mask is None:
        frames = (logits.encoder if isinstance(logits, _Joiner) else logits).shape[1]
        mask = labels.new_ones(labels.shape[0], frames)
    return rnnt_loss(logits, labels, mask.sum(-1), lengths, blank_token_id, reduction)


# ---- What install() puts into Transformers ----


def _is_plain(layer: nn.Module) -> bool:
    """A linear layer whose call is its product and nothing more."""
    hooked = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or "forward" in vars(layer)
    return type(layer) is nn.Linear and not hooked


def _joint_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    """The joiner's forward pass, which in a fused one of its model computes no logits."""

    @functools.wraps(original)
    def forward(
        self: nn.Module,
        decoder_hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> Any:
        if loss is not None:
            return loss(encoder_hidden_states, decoder_hidden_states)
        if "_prnn_is_fused" not in vars(self):
            return original(self, decoder_hidden_states, encoder_hidden_states)
        return _Joiner(self, encoder_hidden_states.squeeze(2), decoder_hidden_states.squeeze(1))

    return forward


def _model_forward(original: Callable[..., Any], loss: Callable[..., Any]) -> Callable[..., Any]:
    """The model's forward pass, fused in training with labels. loss: the loss function with which it can be."""
    signature = inspect.signature(original)

    def fuses(model: nn.Module, given: dict[str, Any], output_logits: bool | None) -> bool:
        if given.get("labels") is None or output_logits or not model.training or torch.compiler.is_compiling():
            return False
        if given.get("decoder_cache") is not None or given.get("use_decoder_cache"):
            return False
        joint: Any = model.joint
        own = model.loss_function
        return getattr(own, "func", own) is loss and type(joint.activation) in ACTIVATIONS and _is_plain(joint.head)

    @functools.wraps(original)
    def forward(
        self: Any, *args: Any, output_logits: bool | None = None, return_dict: bool | None = None, **kwargs: Any
    ) -> Any:
        given = signature.bind_partial(self, *args, **kwargs).arguments
        given = {**given, **given.pop("kwargs", {})}
        if given.get("labels") is not None and loss is NemotronForRNNTLoss and not hasattr(self, "_loss_function"):
            config = self.config
            self._loss_function = functools.partial(
                NemotronForRNNTLoss, blank_token_id=config.blank_token_id, pad_token_id=config.pad_token_id
            )
        if not fuses(self, given, output_logits):
            return original(self, *args, return_dict=return_dict, **kwargs)
        self.joint._prnn_is_fused = True
        try:
            output = original(self, *args, return_dict=True, **kwargs)
        finally:
            del self.joint._prnn_is_fused
        output = type(output)(**{**output, "logits": None})
        as_dict = self.config.return_dict if return_dict is None else return_dict
        return output if as_dict else output.to_tuple()

    return forward


# The replacements, by the module that has the original: losses, the class of a joiner, and models with their loss
# functions. Not every version of Transformers has all of them.
_LOSSES: dict[str, tuple[Callable[..., Any], ...]] = {
    "transformers.loss.loss_rnnt": (rnnt_loss, ParakeetForRNNTLoss),
    "transformers.loss.loss_tdt": (tdt_loss, ParakeetForTDTLoss),
    "transformers.loss.loss_utils": (ParakeetForRNNTLoss, ParakeetForTDTLoss),
}
_MODELS: dict[str, tuple[str, dict[str, Callable[..., Any]]]] = {
    "transformers.models.parakeet.modeling_parakeet": (
        "ParakeetRNNTJointNetwork",
        {"ParakeetForRNNT": ParakeetForRNNTLoss, "ParakeetForTDT": ParakeetForTDTLoss},
    ),
    "transformers.models.nemotron_asr_streaming.modeling_nemotron_asr_streaming": (
        "NemotronAsrStreamingRNNTJointNetwork",
        {"NemotronAsrStreamingForRNNT": NemotronForRNNTLoss},
    ),
    "transformers.models.nemotron3_5_asr.modeling_nemotron3_5_asr": (
        "Nemotron3_5AsrRNNTJointNetwork",
        {"Nemotron3_5AsrForRNNT": NemotronForRNNTLoss},
    ),
}
# Arguments of `generate` that the encoder takes.
_ENCODER_OPTIONS = {
    "NemotronAsrStreamingForRNNT": frozenset({"num_lookahead_tokens"}),
    "Nemotron3_5AsrForRNNT": frozenset({"num_lookahead_tokens", "prompt_ids"}),
}
# Modules after whose import replace() has something to do.
TRIGGERS = (*_LOSSES, *_MODELS)


def replace(module: ModuleType) -> list[str]:
    """Replaces what one of TRIGGERS has; the names of what was not prnn's already."""
    replaced = []
    for function in _LOSSES.get(module.__name__, ()):
        name = function.__name__
        if getattr(module, name, function) is not function:
            setattr(module, name, function)
            replaced.append(f"{module.__name__}.{name}")
        mapping = getattr(module, "LOSS_MAPPING", {})
        if name.removesuffix("Loss") in mapping:
            mapping[name.removesuffix("Loss")] = function
    joint, models = _MODELS.get(module.__name__, ("", {}))
    if not hasattr(module, joint):
        return replaced
    replace_method(getattr(module, joint), "forward", _joint_forward)
    for name, loss in models.items():
        if not hasattr(module, name):
            continue
        model = getattr(module, name)
        if replace_method(model, "forward", functools.partial(_model_forward, loss=loss)):
            replaced.append(f"transformers.{name}.forward")
        generate = functools.partial(generates, encoder_options=_ENCODER_OPTIONS.get(name, frozenset()))
        if hasattr(model, "generate") and replace_method(model, "generate", generate):
            replaced.append(f"transformers.{name}.generate")
    return replaced

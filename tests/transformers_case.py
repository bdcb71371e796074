"""In the place of Transformers, for tests of prnn.compat.transformers: modules of its names, with losses that refuse to
be called and models whose forward pass has the same calls."""

import dataclasses
import functools
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY, BLANK, PAD, DURATIONS, SIZE = 7, 6, 5, [0, 1, 2], 4
PARAKEET = "transformers.models.parakeet.modeling_parakeet"
NEMOTRON = "transformers.models.nemotron_asr_streaming.modeling_nemotron_asr_streaming"


class Output(dict):
    """As ModelOutput: fields as keys and attributes; a tuple of those that are not None."""

    def __init__(self, **fields: Any) -> None:
        super().__init__({name: value for name, value in fields.items() if value is not None})
        self.__dict__.update(fields)

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())


def refuse(*_: Any, **__: Any) -> Tensor:
    raise AssertionError("the package's own loss was called")


class Joint(nn.Module):
    def __init__(self, rows: int, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation
        self.head = nn.Linear(SIZE, rows)

    def forward(self, decoder_hidden_states: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        logits: Tensor = self.head(self.activation(encoder_hidden_states + decoder_hidden_states))
        return logits


def can_return_tuple(forward: Any) -> Any:
    @functools.wraps(forward)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        passed = kwargs.pop("return_dict", None)
        output = forward(self, *args, **kwargs)
        return output if (self.config.return_dict if passed is None else passed) else output.to_tuple()

    return wrapper


class Model(nn.Module):
    mapping: dict[str, Any]
    rows = VOCABULARY

    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            vocab_size=VOCABULARY, blank_token_id=BLANK, pad_token_id=PAD, durations=DURATIONS, return_dict=True
        )
        self.decoder = nn.Embedding(VOCABULARY, SIZE)
        self.joint = self.joint_class(self.rows, activation or nn.ReLU())

    @property
    def loss_function(self) -> Any:
        return getattr(self, "_loss_function", None) or self.mapping.get(type(self).__name__, refuse)

    def logits(self, encoder: Tensor, ids: Tensor) -> Any:
        return self.joint(
            encoder_hidden_states=encoder[:, :, None, :], decoder_hidden_states=self.decoder(ids)[:, None, :, :]
        ).squeeze(2)


def make(names: tuple[str, ...] = (PARAKEET, NEMOTRON)) -> dict[str, ModuleType]:
    """The modules of a package with these models."""
    mapping = {"ParakeetForRNNT": refuse, "ParakeetForTDT": refuse, "Other": refuse}
    modules = {
        "transformers.loss.loss_rnnt": {"rnnt_loss": refuse, "ParakeetForRNNTLoss": refuse},
        "transformers.loss.loss_tdt": {"tdt_loss": refuse, "ParakeetForTDTLoss": refuse},
        "transformers.loss.loss_utils": {
            "ParakeetForRNNTLoss": refuse,
            "ParakeetForTDTLoss": refuse,
            "LOSS_MAPPING": mapping,
        },
    }
    if PARAKEET in names:
        modules[PARAKEET] = _parakeet(mapping)
    if NEMOTRON in names:
        modules[NEMOTRON] = _nemotron(mapping)
    made = {}
    for name, attributes in modules.items():
        made[name] = ModuleType(name)
        vars(made[name]).update(attributes)
    return made


def _parakeet(losses: dict[str, Any]) -> dict[str, Any]:
    class ParakeetRNNTJointNetwork(Joint):
        pass

    class ParakeetForRNNT(Model):
        mapping = losses
        joint_class = ParakeetRNNTJointNetwork

        @can_return_tuple
        def forward(
            self,
            encoder: Tensor,
            mask: Tensor,
            decoder_input_ids: Tensor,
            labels: Tensor | None = None,
            **kwargs: Any,
        ) -> Output:
            logits, loss = self.logits(encoder, decoder_input_ids), None
            if labels is not None:
                lengths = mask.sum(-1)
                loss = self.loss_function(
                    logits=logits[:, : int(lengths.max())],
                    labels=labels,
                    logit_lengths=lengths,
                    label_lengths=(labels != self.config.blank_token_id).sum(-1),
                    blank_token_id=self.config.blank_token_id,
                    **kwargs,
                )
            return Output(loss=loss, logits=logits, pooler_output=encoder)

    class ParakeetForTDT(ParakeetForRNNT):
        rows = VOCABULARY + len(DURATIONS)

        @can_return_tuple
        def forward(
            self,
            encoder: Tensor,
            mask: Tensor,
            decoder_input_ids: Tensor,
            labels: Tensor | None = None,
            **kwargs: Any,
        ) -> Output:
            logits, loss = self.logits(encoder, decoder_input_ids), None
            if labels is not None:
                loss = self.loss_function(
                    token_logits=logits[..., : self.config.vocab_size],
                    duration_logits=logits[..., self.config.vocab_size :],
                    labels=labels,
                    logit_lengths=mask.sum(-1),
                    label_lengths=(labels != self.config.pad_token_id).sum(-1),
                    blank_token_id=self.config.blank_token_id,
                    durations=self.config.durations,
                    **kwargs,
                )
            return Output(loss=loss, logits=logits, pooler_output=encoder)

    return {kind.__name__: kind for kind in (ParakeetRNNTJointNetwork, ParakeetForRNNT, ParakeetForTDT)}


def _nemotron(losses: dict[str, Any]) -> dict[str, Any]:
    class NemotronAsrStreamingRNNTJointNetwork(Joint):
        pass

    class NemotronAsrStreamingForRNNT(Model):
        mapping = losses
        joint_class = NemotronAsrStreamingRNNTJointNetwork

        @can_return_tuple
        def forward(
            self,
            encoder: Tensor,
            mask: Tensor | None,
            decoder_input_ids: Tensor,
            labels: Tensor | None = None,
            **kwargs: Any,
        ) -> Output:
            logits, loss = self.logits(encoder, decoder_input_ids), None
            if labels is not None:
                outputs = SimpleNamespace(attention_mask=mask)
                loss = self.loss_function(logits=logits, labels=labels, encoder_outputs=outputs)
            return Output(loss=loss, logits=logits, pooler_output=encoder)

    return {kind.__name__: kind for kind in (NemotronAsrStreamingRNNTJointNetwork, NemotronAsrStreamingForRNNT)}


@dataclasses.dataclass
class Batch:
    encoder: Tensor
    mask: Tensor
    labels: Tensor  # padded with `padding`
    frames: list[int]
    symbols: list[int]

    @staticmethod
    def make(padding: int) -> "Batch":
        generator = torch.Generator().manual_seed(2)
        frames, symbols = [6, 4, 5], [3, 1, 2]
        mask = torch.arange(7) < torch.tensor(frames)[:, None]
        labels = torch.randint(0, PAD, (3, 3), generator=generator)
        labels[torch.arange(3) >= torch.tensor(symbols)[:, None]] = padding
        return Batch(torch.randn(3, 7, SIZE, generator=generator), mask.long(), labels, frames, symbols)

    def arguments(self) -> dict[str, Tensor]:
        ids = torch.nn.functional.pad(self.labels, (1, 0), value=BLANK)
        return {"encoder": self.encoder, "mask": self.mask, "decoder_input_ids": ids, "labels": self.labels}

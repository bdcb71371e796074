"""Weights of a checkpoint as the beginning of another training, on other data and with other symbols."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prnn.transducer import Transducer, TransducerConfig

from .checkpoint import damage_reported, load_recogniser_parts, parts, read_checkpoint
from .errors import InputError
from .feature_config import FeatureConfig
from .tokenizer import Tokenizer

# Parts of a model with a row for each symbol, and those of them that not every model has.
_BY_SYMBOL = ("predictor.embedding", "joiner.output.", "ctc_output.", "simple_joiner.")
_OPTIONAL = ("ctc_output.", "simple_joiner.")


def options_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a checkpoint's model and of its features.

    Raises:
        InputError: as `read_checkpoint`, or what the checkpoint says does not fit together.
    """
    checkpoint = read_checkpoint(path)
    with damage_reported(path):
        config, features, _ = parts(checkpoint)
    return config.to_dict(), asdict(features)


def _differing(new: dict[str, Any], old: dict[str, Any]) -> str:
    """The options that are not the same, with their values."""
    names = [name for name in new if name not in ("vocab_size", "blank") and new[name] != old[name]]
    return ", ".join(f"{name} is {new[name]}, there {old[name]}" for name in names)


def _labels(config: TransducerConfig, tokenizer: Tokenizer) -> list[object]:
    """The label of each row of the joiner's output: symbols, and the durations of a tdt model."""
    return [*tokenizer.symbols, *(config.durations if config.loss == "tdt" else ())]


def begin_from(
    path: Path, model: Transducer, features: FeatureConfig, tokenizer: Tokenizer, encoder_class: str | None = None
) -> str:
    """Gives a model the weights of a checkpoint: all of the encoder, with the features' mean and standard deviation; of
    predictor, joiner and CTC layer, the rows of symbols that both have and all that does not go by symbols. Rows of
    other symbols stay as they are, and so do a CTC layer and a simple joiner that the checkpoint does not have.

    Args:
        path: of the checkpoint.
        model: new, with a config.
        features: of the model.
        tokenizer: of the model.
        encoder_class: as for `build_model`.

    Returns:
        A sentence on what was taken.

    Raises:
        InputError: as `load_recogniser_parts`; or the checkpoint's features or the shapes of its weights are others.
    """
    other, other_features, other_tokenizer = load_recogniser_parts(path, encoder_class)
    assert model.config is not None
    assert other.config is not None
    if features != other_features:
        raise InputError(f"{path}: of other features: {_differing(asdict(features), asdict(other_features))}")
    here, there = _labels(model.config, tokenizer), _labels(other.config, other_tokenizer)
    rows = {label: row for row, label in enumerate(there)}
    pairs = torch.tensor([(row, rows[label]) for row, label in enumerate(here) if label in rows]).T

    def refuse(what: str) -> InputError:
        options = _differing(model.config.to_dict(), other.config.to_dict())  # type: ignore[union-attr]
        return InputError(f"{path}: of a model of other shapes ({options}): {what}")

    found, wanted = other.state_dict(), model.state_dict()
    for name in sorted(found.keys() ^ wanted.keys()):
        if not name.startswith(_OPTIONAL):
            raise refuse(f"{name} is {'missing there' if name in wanted else 'there alone'}")
    for name in sorted(wanted.keys() & found.keys()):
        new, old = wanted[name], found[name]
        by_symbol = name.startswith(_BY_SYMBOL)
        if new.shape[by_symbol:] != old.shape[by_symbol:]:
            raise refuse(f"{name} has shape {tuple(new.shape)}, there {tuple(old.shape)}")
        wanted[name] = _with_rows(new, old, pairs) if by_symbol else old
    model.load_state_dict(wanted)
    shared = len(set(tokenizer.symbols[1:]) & set(other_tokenizer.symbols[1:]))
    return f"begins with {path}: its encoder, and its weights of {shared} of {len(tokenizer) - 1} symbols"


def _with_rows(new: Tensor, old: Tensor, pairs: Tensor) -> Tensor:
    """A copy of the new rows with those of (new, old) pairs taken from the old ones, as far as both go."""
    both = pairs[:, (pairs[0] < len(new)) & (pairs[1] < len(old))]
    return new.index_copy(0, both[0], old[both[1]])

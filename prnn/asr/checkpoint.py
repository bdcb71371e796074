"""Checkpoints: what a trained recogniser needs besides its weights, saved with them, and read back safely."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from prnn import __version__
from prnn.transducer import Transducer, TransducerConfig

from .errors import InputError
from .features import FeatureConfig
from .tokenizer import CharTokenizer

FORMAT = 1
_KEY = "prnn"
_PREFIX = "model."


def describe(config: TransducerConfig, features: FeatureConfig, tokenizer: CharTokenizer) -> dict[str, Any]:
    """What a checkpoint says of the recogniser under the key ``prnn``, in plain types."""
    return {
        "format": FORMAT,
        "version": __version__,
        "model": config.to_dict(),
        "features": asdict(features),
        "characters": list(tokenizer.characters),
    }


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Reads a checkpoint of ``prnn train`` without running any code that it may hold.

    Raises:
        InputError: missing, not a checkpoint, not one of prnn's, or of another format.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever the bytes of some other file make torch's reader stumble over
        raise InputError(f"{path}: not a checkpoint, or a damaged one") from error
    description = checkpoint.get(_KEY) if isinstance(checkpoint, dict) else None
    if not isinstance(description, dict) or "format" not in description:
        raise InputError(f"{path}: a torch file, but not a checkpoint of prnn train")
    if description["format"] != FORMAT:
        writer = description.get("version", "an unknown version")
        raise InputError(
            f"{path}: a checkpoint of format {description['format']}, written by prnn {writer}; "
            f"prnn {__version__} reads format {FORMAT}"
        )
    return checkpoint


def load_recogniser_parts(path: str | Path) -> tuple[Transducer, FeatureConfig, CharTokenizer]:
    """Returns the model, in eval mode, and what goes with it, from a checkpoint.

    Raises:
        InputError: as :func:`read_checkpoint`, or the contents do not fit together.
    """
    checkpoint = read_checkpoint(path)
    description = checkpoint[_KEY]
    try:
        features = FeatureConfig(**description["features"])
        tokenizer = CharTokenizer(description["characters"])
        model = Transducer.from_config(TransducerConfig.from_dict(description["model"]))
        weights = {
            name.removeprefix(_PREFIX): tensor
            for name, tensor in checkpoint["state_dict"].items()
            if name.startswith(_PREFIX)
        }
        model.load_state_dict(weights)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InputError(f"{path}: a damaged checkpoint ({' '.join(str(error).split())[:200]})") from error
    return model.eval(), features, tokenizer

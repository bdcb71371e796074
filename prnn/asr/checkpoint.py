"""Checkpoints: what a trained recogniser needs besides its weights, saved with them, and read back safely."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from prnn import __version__
from prnn._fields import from_plain, shown
from prnn.transducer import Transducer, TransducerConfig

from .errors import InputError
from .feature_config import FeatureConfig
from .own_encoder import build_model
from .tokenizer import Tokenizer, tokenizer_from_state
from .word_times import NO_DELAYS, WordDelays, delays_of

FORMAT = 1
_KEY = "prnn"
_PREFIX = "model."


def describe(
    config: TransducerConfig, features: FeatureConfig, tokenizer: Tokenizer, delays: WordDelays = NO_DELAYS
) -> dict[str, Any]:
    """Describes the recogniser in plain types, for a checkpoint's key ``prnn``."""
    return {
        "format": FORMAT,
        "version": __version__,
        "model": config.to_dict(),
        "features": asdict(features),
        "word_delays": list(delays),
    } | tokenizer.state()


def _require_whole(path: Path) -> None:
    """Raises InputError if a checkpoint's data are not those that were saved. torch.load does not look at the checksums
    that torch.save has put beside them."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        kinds = {member.compress_type for member in members}
        if kinds != {zipfile.ZIP_STORED} or sum(member.file_size for member in members) > path.stat().st_size:
            raise zipfile.BadZipFile("torch.save compresses nothing")
        damaged = archive.testzip()
    if damaged is not None:
        raise InputError(
            f"{path}: a damaged checkpoint ({shown(damaged, str)} has another checksum than when it was saved)"
        )


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Reads a checkpoint of ``prnn train`` without running any code that it may hold.

    Raises:
        InputError: missing, not a checkpoint, not one of prnn's, or of another format.
    """
    path = Path(path)
    if path.is_dir():
        best = path / "model.ckpt"
        raise InputError(f"{path}: a folder, not a checkpoint" + (f"; it has one, {best}" if best.is_file() else ""))
    if not path.is_file():
        raise InputError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    try:
        _require_whole(path)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:  # whatever the bytes of some other file make torch's reader stumble over
        raise InputError(f"{path}: not a checkpoint, or a damaged one") from error
    description = checkpoint.get(_KEY) if isinstance(checkpoint, dict) else None
    if not isinstance(description, dict) or "format" not in description:
        raise InputError(f"{path}: a torch file, but not a checkpoint of prnn train")
    if type(description["format"]) is not int or description["format"] != FORMAT:
        writer = shown(description.get("version", "an unknown version"), str)
        raise InputError(
            f"{path}: a checkpoint of format {shown(description['format'])}, written by prnn {writer}; "
            f"prnn {__version__} reads format {FORMAT}"
        )
    return checkpoint


@contextmanager
def damage_reported(path: Path) -> Iterator[None]:
    """Turns what the contents of a checkpoint make stumble into an InputError."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = f"{shown(str(error.args[0]))} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{path}: a damaged checkpoint ({' '.join(reason.split())[:300]})") from error


def mapping(values: Any, key: str) -> dict[str, Any]:
    """The mapping that a mapping holds under a key; LookupError or TypeError unless there is one."""
    found = values[key]
    if not isinstance(found, dict):
        raise TypeError(f"{key} is {shown(found)}; it must be a mapping")
    return found


def require_tensor(name: str, tensor: object, expected: Tensor) -> None:
    """Raises unless a tensor of a checkpoint has the shape and dtype of another, an element in the file for each of its
    own, and finite ones."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
        raise TypeError(f"{name} is {shown(type(tensor).__name__, str)}; it must be a dense tensor")
    if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)} and {tensor.dtype}; "
            f"it must have {tuple(expected.shape)} and {expected.dtype}"
        )
    if not tensor.is_contiguous() or tensor.device.type == "meta":
        raise ValueError(f"{name} does not have its elements one after the other")
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{name} has elements that are not finite numbers")


def parts(checkpoint: dict[str, Any]) -> tuple[TransducerConfig, FeatureConfig, Tokenizer]:
    """The description of the recogniser in a checkpoint; ValueError or TypeError unless its parts fit together."""
    description = checkpoint[_KEY]
    config = TransducerConfig.from_dict(description["model"])
    # A checkpoint without high_freq was trained on mel bins up to half the sample rate.
    features = from_plain(FeatureConfig, {"high_freq": 0.0} | mapping(description, "features"), "features")
    tokenizer = tokenizer_from_state(description)
    for name, value, expected in (
        ("feature_dim", config.feature_dim, features.num_mel_bins),
        ("vocab_size", config.vocab_size, len(tokenizer)),
        ("blank", config.blank, tokenizer.blank),
    ):
        if value != expected:
            raise ValueError(f"{name} is {value}; its features and tokenizer make it {expected}")
    return config, features, tokenizer


def weights(state_dict: dict[str, Any], model: Transducer) -> dict[str, Tensor]:
    """The model's state_dict; ValueError or TypeError unless it is as the model's own."""
    expected = model.state_dict()
    found = {
        name.removeprefix(_PREFIX): tensor
        for name, tensor in state_dict.items()
        if isinstance(name, str) and name.startswith(_PREFIX)
    }
    for name in sorted(expected.keys() ^ found.keys()):
        raise ValueError(f"{shown(name)} is {'missing' if name in expected else 'not of this model'}")
    for name, tensor in found.items():
        require_tensor(name, tensor, expected[name])
    return found


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Puts the checkpoint's name before the message of an InputError."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


class _NoInitialValues(TorchFunctionMode):
    """Leaves tensors on the meta device as torch.nn.init finds them: torch's normal_ of one imports torch._dynamo,
    which takes most of a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            tensor = kwargs["tensor"] if "tensor" in kwargs else args[0]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


def load_recogniser_parts(
    path: str | Path, encoder_class: str | None = None
) -> tuple[Transducer, FeatureConfig, Tokenizer]:
    """Returns the model, in eval mode, and what goes with it, from a checkpoint.

    Args:
        path: of the checkpoint.
        encoder_class: as for `build_model`.

    Raises:
        InputError: as :func:`read_checkpoint`, or the contents do not fit together.
    """
    return load_recogniser(path, encoder_class)[:3]


def load_recogniser(
    path: str | Path, encoder_class: str | None = None
) -> tuple[Transducer, FeatureConfig, Tokenizer, WordDelays]:
    """As `load_recogniser_parts`, with how late the model emits words."""
    path = Path(path)
    checkpoint = read_checkpoint(path)
    with damage_reported(path):
        config, features, tokenizer = parts(checkpoint)
        delays = delays_of(checkpoint[_KEY])
        # Sizes that the weights do not have must not take memory. A class of the user's may compute buffers.
        with torch.device("cpu" if encoder_class else "meta"), _NoInitialValues(), _named(path):
            model = build_model(config, encoder_class).float()  # whatever torch's default type
        state_dict = weights(mapping(checkpoint, "state_dict"), model)
        model = model if encoder_class else model.to_empty(device="cpu")
        model.load_state_dict(state_dict)
    return model.eval(), features, tokenizer, delays


def require_same_kind(name: str, value: Any, expected: Any) -> None:
    """Raises TypeError unless nested dictionaries have the keys and types of others, such as Lightning's own."""
    if type(value) is not type(expected):
        raise TypeError(f"{name} is {shown(value)}; it must be of type {type(expected).__name__}")
    if isinstance(expected, dict):
        for key, item in expected.items():
            require_same_kind(f"{name}.{key}", value.get(key), item)

"""The options of ``prnn train``, for jsonargparse.

Those of the command line and of a configuration file are the fields of `TrainingOptions`, `TransducerConfig`,
`FeatureConfig` and `Augmentation`, with the ranges and the descriptions that these give them.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin

import yaml
from jsonargparse import ArgumentParser

from prnn._fields import field_docs, from_plain, option, shown
from prnn._suggestion import suggestion
from prnn.transducer import TransducerConfig

from .augment import Augmentation
from .feature_config import FeatureConfig
from .options import TrainingOptions

_DESCRIPTION = """
Train a streaming transducer on the recordings of a manifest: one JSON object a line with audio_filepath (relative to
the manifest, or absolute), duration in seconds, and text; or Lhotse's cuts (*.jsonl.gz), or a folder of Lhotse Shar.
WAV, FLAC, MP3, Ogg and others that libsndfile reads, at any sample rate. An interrupted training goes on when the same
command runs again. OUTPUT/model.ckpt is the best model so far, for prnn transcribe; tensorboard --logdir OUTPUT shows
the curves. A configuration file has the options without their dashes; --print_config prints one that is complete.
Options that follow --config change what it says.
"""

# The fields of TrainingOptions that hold no options of their own, as --help groups them.
SECTIONS: dict[str, tuple[str, ...]] = {
    "what": ("manifest", "also", "valid", "tokenizer", "init", "output", "channel", "epochs", "steps", "seed"),
    "batches": (
        "batch_size",
        "batch_seconds",
        "min_duration",
        "max_duration",
        "accumulate",
        "workers",
        "cache_gb",
        "features_on",
    ),
    "optimisation": ("lr", "warmup", "weight_decay", "beta1", "beta2", "eps", "clip", "ema", "average", "average_of"),
    "running": (
        "precision",
        "accelerator",
        "devices",
        "num_nodes",
        "checkpoint_every",
        "valid_every",
        "log_every",
        "pictures",
    ),
}
NESTED: dict[str, type] = {"model": TransducerConfig, "features": FeatureConfig, "augmentation": Augmentation}
DERIVED = ("vocab_size", "blank", "feature_dim")  # of the model: tokenizer and features make them

# Defaults of prnn train that differ from TransducerConfig's. A predictor_embedding of null is predictor_hidden.
_MODEL_DEFAULTS: dict[str, object] = {
    "frame_stack": 8,
    "frame_stride": 4,
    "encoder_cell": "layer_norm_lstm",
    "encoder_layers": 4,
    "encoder_hidden": 512,
    "predictor": "stateless",
    "predictor_hidden": 256,
    "joiner_dim": 256,
    "dropout": 0.2,
    "ctc_weight": 0.3,
}
_LR_OF_OTHER_CELLS = 1e-3  # plain LSTMs learn next to nothing at 2e-3
_SHORT = {
    "accelerator": "--device",
    "model.encoder_cell": "--cell",
    "model.encoder_class": "--encoder-class",
    "model.encoder_layers": "--layers",
    "model.encoder_hidden": "--hidden",
    "model.frame_stack": "--frame-stack",
    "model.frame_stride": "--frame-stride",
    "model.predictor": "--predictor",
    "model.predictor_hidden": "--predictor-hidden",
    "model.joiner_dim": "--joiner",
    "model.dropout": "--dropout",
    "model.loss": "--loss",
    "model.ctc_weight": "--ctc-weight",
    "augmentation.gain_db": "--gain-db",
    "augmentation.frequency_width": "--mask-bins",
    "augmentation.time_width": "--mask-frames",
}


def _add(group: Any, cls: type, prefix: str, names: Sequence[str], defaults: dict[str, object]) -> None:
    docs = field_docs(cls)
    for name in names:
        key = prefix + name
        flags = [f"--{key}"] if prefix else [f"--{name.replace('_', '-')}"]
        if not prefix and "_" in name:
            flags.append(f"--{name}")
        if key in _SHORT:
            flags.append(_SHORT[key])
        arguments = option(cls, name, defaults.get(name))
        if "choices" not in arguments:
            arguments["metavar"] = "X"
        group.add_argument(*flags, help=docs[name], **arguments)


_LARGEST = 2**14  # bytes of a configuration file: lists nested some 30,000 levels deep end the stack of libyaml


# jsonargparse's messages about a configuration file that cannot be read, and about a value that is not of the option's
# type.
_NO_FILE = re.compile(r"""Parser key "config": (?:File|Path) (.+): '(.*)'$""")
_WRONG_TYPE = re.compile(
    r'Parser key "([\w.]+)": (?:Expected|Not of type|Does not validate)(?:.*(?:Got|Given) value: (.*))?'
)


_MOST_NODES = 2000  # of a configuration, with what its aliases stand for


def _nodes(node: yaml.Node, known: dict[int, int]) -> int:
    """Counts the nodes in a node with each alias written out: a few lines of aliases can stand for more nodes than any
    program can read.

    Raises:
        ValueError: it holds itself.
    """
    if (count := known.get(id(node))) is not None:
        if count == 0:
            raise ValueError("an alias stands for something that it is in")
        return count
    known[id(node)] = 0
    parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    count = 1 if isinstance(node, yaml.ScalarNode) else 1 + sum(_nodes(part, known) for part in parts)
    known[id(node)] = count
    return count


def _repeated_option(node: yaml.Node, prefix: str = "") -> str | None:
    """An option that a mapping has twice, of which YAML's readers take the last."""
    seen: set[str] = set()
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        name = f"{prefix}{key.value}"
        if name in seen:
            return name
        seen.add(name)
        if (inner := _repeated_option(value, f"{name}.")) is not None:
            return inner
    return None


_HINT = "; prnn train --help lists them"  # after a wrong option


class _Parser(ArgumentParser):
    _file: str | None = None  # that is being read

    def parse_path(self, cfg_path: Any, *arguments: Any, **options: Any) -> Any:
        """Reads a configuration file, unless it is too large to be one."""
        if os.path.isfile(cfg_path) and os.path.getsize(cfg_path) > _LARGEST:
            raise ValueError(f"{cfg_path}: {os.path.getsize(cfg_path)} bytes; a configuration has at most {_LARGEST}")
        self._file = str(cfg_path)
        if os.path.isfile(cfg_path):
            try:
                root = yaml.compose(Path(cfg_path).read_text(encoding="utf-8"), yaml.SafeLoader)
            except yaml.YAMLError:
                root = None  # what is wrong with it jsonargparse says
            if root is not None and _nodes(root, {}) > _MOST_NODES:
                raise ValueError(f"its aliases stand for too much; a configuration has at most {_MOST_NODES} values")
            if root is not None and (name := _repeated_option(root)) is not None:
                raise ValueError(f"{name} is there twice")
        values = super().parse_path(cfg_path, *arguments, **options)
        self._file = None
        return values

    def _check_value_key(self, action: Any, value: Any, key: str, *arguments: Any, **options: Any) -> Any:
        try:
            return super()._check_value_key(action, value, key, *arguments, **options)
        except argparse.ArgumentTypeError as error:  # to which jsonargparse adds no name
            raise TypeError(f"{key}: {error}") from error

    def format_help(self, *arguments: Any, **options: Any) -> str:
        """Without the hint of wrong options, and with words in the place of a class."""
        return re.sub(r"<class\s+'Path'>", "a path", super().format_help(*arguments, **options).replace(_HINT, "", 1))

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Ends the process as argparse does: a line of usage, one of the reason, status 2."""
        reason = " ".join(message.split())[:500]
        if reason.startswith("Unexpected config:"):
            reason = "a configuration must be a mapping of options to values"
        elif found := _NO_FILE.match(reason):
            reason = f"{found[2]}: the configuration {found[1]}"
        elif found := _WRONG_TYPE.match(reason):
            hint = next(vars(action)["_typehint"] for action in self._actions if action.dest == found[1])
            value = f"is {shown(found[2], str)}; it " if found[2] else ""
            reason = f"{found[1]} {value}must be {_accepted(hint)}"
        else:
            reason += suggestion(reason, self._option_string_actions)
        place = f"{self._file}: " if self._file is not None else ""
        sys.stderr.write(f"usage: {self.usage}\nprnn train: error: {place}{reason}\n")
        raise SystemExit(2)


def _accepted(hint: Any) -> str:
    """The values that an option accepts whose field has no range."""
    hint = next((kind for kind in get_args(hint) if kind is Path), hint)  # of Path | None
    if get_origin(hint) is tuple:
        examples = {float: "[0.9, 1.0, 1.1]", str: "[own.jsonl:5, more.jsonl]"}
        return f"a list such as {examples.get(get_args(hint)[0], '[0, 1, 2]')}"
    return {Path: "a path", float: "a number"}.get(hint, f"a {getattr(hint, '__name__', hint)}")


def train_parser() -> ArgumentParser:
    """The parser of the command's own options."""
    usage = "prnn train [--config FILE] --manifest FILE --valid FILE [OPTION ...]" + _HINT
    parser = _Parser(prog="prnn train", usage=usage, description=_DESCRIPTION, allow_abbrev=True)
    parser.add_argument("--config", action="config", metavar="FILE", help="a configuration file, in YAML")
    parser.add_argument(
        "--restart",
        action="store_true",
        default=argparse.SUPPRESS,
        help="begin anew where the output folder holds a training",
    )
    parser.add_argument("--no-progress", action="store_true", default=argparse.SUPPRESS, help="no progress line")
    for section, names in SECTIONS.items():
        _add(parser.add_argument_group(section), TrainingOptions, "", names, {})
    for name, cls in NESTED.items():
        defaults = _MODEL_DEFAULTS if name == "model" else {}
        names = tuple(field.name for field in dataclasses.fields(cls) if field.name not in DERIVED)
        group = parser.add_argument_group(name)
        _add(group, cls, f"{name}.", names, defaults)
        if name == "model":
            parser.set_defaults({"model.predictor_embedding": None})
    return parser


def _begin_with(parser: ArgumentParser, checkpoint: Path) -> None:
    """Makes a checkpoint's options of model and features the parser's defaults.

    Raises:
        InputError: it is none.
    """
    from .initial import options_of

    for prefix, values in zip(("model", "features"), options_of(checkpoint), strict=True):
        kept = {name: value for name, value in values.items() if name not in (*DERIVED, "encoder_class")}
        parser.set_defaults({f"{prefix}.{name}": value for name, value in kept.items()})


def _require_class_of_command_line(arguments: Sequence[str], encoder_class: object) -> None:
    """Raises ValueError unless the command line itself has this class, if any: a file must not choose code to run."""
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument("--encoder-class", "--model.encoder_class", dest="given")
    if encoder_class not in (None, flags.parse_known_args(list(arguments))[0].given):
        raise ValueError(
            f"model.encoder_class is {shown(encoder_class)} in a configuration file; a class is imported only if the "
            "command line has it: --encoder-class"
        )


def parse(arguments: Sequence[str]) -> tuple[TrainingOptions, bool, bool]:
    """Options, whether to restart, and whether to show progress, from the command's arguments.

    Raises:
        SystemExit: with status 0 after --help and --print_config, with 2 after the reason on stderr.
    """
    parser = train_parser()
    try:
        first = [word for word in arguments if not word.startswith("--print_config")]
        given = parser.parse_args(first)
        if given.init is not None:
            _begin_with(parser, Path(given.init).expanduser())
            given = parser.parse_args(first)
        if given.get("model.encoder_cell") != _MODEL_DEFAULTS["encoder_cell"]:
            parser.set_defaults(lr=_LR_OF_OTHER_CELLS)
        values = parser.parse_args(list(arguments)).as_dict()
        values.pop("config", None)
        restart, progress = values.pop("restart", False), not values.pop("no_progress", False)
        model = values["model"]
        if isinstance(model, dict):
            _require_class_of_command_line(arguments, model.get("encoder_class"))
            model["predictor_embedding"] = model.get("predictor_embedding") or model.get("predictor_hidden")
        return from_plain(TrainingOptions, values, "training"), restart, progress
    # ValueError: options that do not go together, a file that is not UTF-8
    except (ValueError, TypeError, argparse.ArgumentTypeError, OSError) as error:
        parser.error(shown(error, str) if isinstance(error, OSError) else str(error))
    except RecursionError:
        parser.error("the configuration is nested too deep")

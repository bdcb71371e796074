"""Dataclasses whose fields say which values they take: one check for values from Python, from the command line and from
a file.

A field's annotation is its kind: int, float (finite), str, Path, a Literal, X | None, tuple[int, ...], dict, or another
such dataclass. Annotated[int, Within(1, 100)] gives it a range, too. A dataclass calls `check_fields` in __post_init__.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import math
import os
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
_KINDS = {int: "an int", float: "a number", str: "a string", Path: "a path", dict: "a mapping"}


@dataclasses.dataclass(frozen=True)
class Within:
    """Numbers from `least` to `most`; with `above` not `least` itself, with `below` not `most` itself."""

    least: float
    most: float = math.inf
    above: bool = False
    below: bool = False

    def accepts(self, value: float) -> bool:
        """Whether the number lies within; NaN does not."""
        from_least = value > self.least if self.above else value >= self.least
        return from_least and (value < self.most if self.below else value <= self.most)

    def __str__(self) -> str:
        text = f"{'more than' if self.above else 'at least'} {self.least:.12g}"
        if self.most < math.inf:
            text += f" and {'less than' if self.below else 'at most'} {self.most:.12g}"
        return text


def shown(value: object, text_of: Callable[[object], str] = repr) -> str:
    """A value for a message: on one line, of bounded length, whatever it is."""
    try:
        text = " ".join(text_of(value).splitlines())
    except (RecursionError, ValueError):  # nested too deep, or an int of too many digits
        return f"of type {type(value).__name__}, too large to show"
    return text if len(text) <= 80 else text[:77] + "..."


def counted(count: int, noun: str) -> str:
    """ "1 symbol", "2 symbols"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _check(name: str, value: Any, hint: Any) -> None:
    origin, arguments = get_origin(hint), get_args(hint)

    def refuse(error: type[Exception], accepted: object) -> Exception:
        return error(f"{name} is {shown(value)}; it must be {accepted}")

    if origin is Annotated:
        _check(name, value, arguments[0])
        for rule in arguments[1:]:
            if value is not None and not rule.accepts(value):
                raise refuse(ValueError, rule)
    elif origin in (Union, types.UnionType):  # X | None
        if value is not None:
            _check(name, value, arguments[0])
    elif origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise refuse(ValueError, f"one of {', '.join(map(repr, arguments))}")
    elif origin is tuple:
        kinds = (int, float) if arguments[0] is float else arguments[:1]
        if not isinstance(value, tuple) or not all(type(item) in kinds for item in value):
            raise refuse(TypeError, f"a tuple of {arguments[0].__name__}s")
    else:
        kind = origin or hint
        accepted = (int, float) if kind is float else kind
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise refuse(TypeError, _KINDS.get(kind, f"a {kind.__name__}"))
        if kind is float and value in (math.inf, -math.inf):
            raise refuse(ValueError, "finite")
        if kind is Path and "\0" in str(value):
            raise ValueError(f"{name} is {shown(str(value))}; it must be a path, which has no zero byte")


_hints_of: dict[type, dict[str, Any]] = {}


def _hints(cls: type) -> dict[str, Any]:
    if cls not in _hints_of:  # a training checks its progress at every step
        hints = get_type_hints(cls, include_extras=True)
        _hints_of[cls] = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    return _hints_of[cls]


def check_fields(instance: Any) -> None:
    """Checks every field of a dataclass.

    Raises:
        TypeError, ValueError: naming the field, its value and what is accepted.
    """
    for name, hint in _hints(type(instance)).items():
        _check(name, getattr(instance, name), hint)


def from_plain(cls: type[_T], values: object, what: str) -> _T:
    """The dataclass of plain values, as JSON or a checkpoint has them. Fields left out have their defaults.

    Args:
        cls: the dataclass.
        values: a mapping of names to values; lists stand for tuples, strings for paths, mappings for dataclasses.
        what: what the dataclass describes, for messages.

    Raises:
        TypeError, ValueError: not a mapping, an unknown or missing name, or a value that is not accepted.
    """
    if not isinstance(values, dict):
        raise TypeError(f"the {what} is {shown(values)}; it must be a mapping of options to values")
    hints = _hints(cls)
    unknown = [name for name in values if name not in hints]
    if unknown:
        names = ", ".join(name if isinstance(name, str) and name.isidentifier() else shown(name) for name in unknown)
        raise ValueError(f"unknown {what} option {names[:80]}; known are {', '.join(sorted(hints))}")
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if not optional and field.name not in values:
            raise ValueError(f"{field.name} is missing from the {what}'s options")
    return cls(**{name: _from_plain(name, value, hints[name]) for name, value in values.items()})


def _from_plain(name: str, value: Any, hint: Any) -> Any:
    if isinstance(value, list) and get_origin(hint) is tuple:
        return tuple(value)
    if isinstance(value, (str, Path)) and Path in (hint, *get_args(hint)):
        return Path(os.path.expanduser(value))  # as shells do, and a configuration file is none
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return from_plain(hint, value, name)
    return value


@dataclasses.dataclass(frozen=True)
class NumberParser:
    """A parser that `number_parser` returns. Help texts show its repr."""

    kind: type[int] | type[float]
    rule: Within
    optional: bool

    def __repr__(self) -> str:
        return f"{'a whole number' if self.kind is int else 'a number'} of {self.rule}"

    def __call__(self, text: Any) -> Any:
        if self.optional and text in (None, "null"):
            return None
        try:
            value = self.kind(text) if isinstance(text, str) else text
            _check("", value, Annotated[self.kind, self.rule])
            return self.kind(value)
        except (ValueError, TypeError, OverflowError):
            raise argparse.ArgumentTypeError(f"{shown(text)} is not {self!r}") from None


def number_parser(kind: type[int] | type[float], rule: Within, optional: bool = False) -> NumberParser:
    """The `type` of a command-line option, or of a key of a configuration file, that takes a number; `optional` ones
    take null, too."""
    return NumberParser(kind, rule, optional)


def option(cls: type, name: str, default: object = None) -> dict[str, Any]:
    """Arguments for the add_argument of argparse and of jsonargparse, so that an option takes what a field of a
    dataclass takes.

    Args:
        cls: the dataclass.
        name: its field.
        default: in the place of the field's.
    """
    field = next(field for field in dataclasses.fields(cls) if field.name == name)
    hint = _hints(cls)[name]
    result: dict[str, Any] = {"default": field.default if default is None else default}
    if result["default"] is dataclasses.MISSING:
        result = {"required": True}
    if get_origin(hint) is Literal:
        return {**result, "choices": get_args(hint)}
    if get_origin(hint) is not Annotated:
        return {**result, "type": hint}
    kind, rule = get_args(hint)
    optional = get_origin(kind) in (Union, types.UnionType)
    return {**result, "type": number_parser(get_args(kind)[0] if optional else kind, rule, optional)}


def field_docs(cls: type) -> dict[str, str]:
    """Returns the descriptions of a dataclass's fields in its docstring, under "Args:" or "Attributes:"."""
    docs: dict[str, str] = {}
    name = ""
    text = inspect.cleandoc(cls.__doc__ or "")
    listed = text.partition("Args:\n")[2] or text.partition("Attributes:\n")[2]
    for line in listed.splitlines():
        if not line.startswith("    "):
            break
        head = re.match(r"    (\w+): (.*)", line)
        if head:
            name, docs[head[1]] = head[1], head[2]
        else:
            docs[name] += " " + line.strip()
    return {name: text.rstrip(".") for name, text in docs.items()}

"""Endpoint detection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from prnn._fields import Within, check_fields


@dataclass(frozen=True)
class EndpointRules:
    """Rules for the end of an utterance in a longer recording: rule2 and rule3 of sherpa-onnx.

    Args:
        silence: seconds without a symbol after the last one.
        longest: seconds from the first symbol on after which an utterance ends before its last word.

    Raises:
        ValueError, TypeError: naming the field, its value and what is accepted.
    """

    silence: Annotated[float, Within(0.1, 1e6)] = 1.2
    longest: Annotated[float, Within(1, 1e6)] = 20.0

    def __post_init__(self) -> None:
        check_fields(self)

"""Where an utterance ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from prnn._fields import Within, check_fields


@dataclass(frozen=True)
class EndpointRules:
    """Where an utterance of a longer recording ends. sherpa-onnx has the same rules as rule2 and rule3.

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

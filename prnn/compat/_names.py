"""Errors of prnn's functions with the names that the caller's package has for the arguments."""

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def names(**own: str) -> Callable[[Function], Function]:
    """For a function that calls one of prnn's: `own` has, for prnn's name of an argument, the function's. It raises
    prnn's errors with these."""
    pattern = re.compile(rf"\b(?:{'|'.join(own)})\b")

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            try:
                return function(*args, **options)
            except (ValueError, TypeError, NotImplementedError) as error:
                message = pattern.sub(lambda found: own[found[0]], str(error))
                if message == str(error):
                    raise
                raise type(error)(message) from error

        return cast(Function, call)

    return decorate

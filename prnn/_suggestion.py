"""Suggestions for an option or a value that does not exist."""

import difflib
import re
from collections.abc import Iterable

_CHOICE = re.compile(r"invalid choice: '?([^' ]+)'? \(choose from (.*)\)$", re.IGNORECASE)
_OPTION = re.compile(r"unrecognized arguments: (--[\w.-]+)", re.IGNORECASE)
_KEY = re.compile(r"Option '([\w.-]+)' is not accepted$")  # jsonargparse, of a configuration file


def suggestion(message: str, options: Iterable[str]) -> str:
    """Returns the suggestion after an error of argparse: the nearest of the choices that it lists, or, after an option
    that there is not, the nearest of ``options``, without its dashes where a configuration file has the option;
    nothing where none is near."""
    if found := _CHOICE.search(message):
        among = re.findall(r"[\w.-]+", found[2])
    elif found := _OPTION.match(message):
        among = list(options)
    elif found := _KEY.match(message):
        among = [name.lstrip("-") for name in options]
    else:
        return ""
    near = difflib.get_close_matches(found[1], among, n=1)
    return f"; did you mean {near[0]}?" if near else ""

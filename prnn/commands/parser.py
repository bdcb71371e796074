"""The parser of the command line, whose errors name what was probably meant."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from prnn._suggestion import suggestion


class Parser(argparse.ArgumentParser):
    """The parser of the program, and of each command."""

    def parse_known_args(self, *arguments: Any, **options: Any) -> tuple[Any, list[str]]:
        """Refuses what is left over here, where the command's options are known. Of a command that takes any number of
        files, those behind an option belong to them, too: `prnn transcribe model.ckpt --stream a.wav`."""
        namespace, rest = super().parse_known_args(*arguments, **options)
        files = self._get_positional_actions()[-1:]
        if rest and files and files[0].nargs == "*" and not any(len(word) > 1 and word[0] == "-" for word in rest):
            before = getattr(namespace, files[0].dest)
            setattr(namespace, files[0].dest, [*before, *self._get_values(files[0], rest)])
            return namespace, []
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return namespace, rest

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2 after a line of usage and one of the reason."""
        super().error(message + suggestion(message, self._option_string_actions))

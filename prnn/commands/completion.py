"""``prnn completion``: completion of commands, options and values in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

_DESCRIPTION = """
Print a script that completes prnn's commands, options and values in a shell. For bash, add to ~/.bashrc:
source <(prnn completion bash). For zsh, add to ~/.zshrc, after compinit: source <(prnn completion zsh).
"""

_SCRIPT = """\
_prnn() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W "{commands}" -- "$word"))
    return
  fi
  if [ "$command" = bench ]; then
    local family
    for family in "${{COMP_WORDS[@]:2:$((COMP_CWORD-2))}}"; do
      case "$family" in
        {families}) command="bench $family"; break ;;
      esac
    done
  fi
  case "$command $before" in
{values}
  esac
  case "$command $word" in
{options}
  esac
  if [ -n "$words" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _prnn prnn
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Adds the command to the command line."""
    parser = subparsers.add_parser(
        "completion", help="completion of commands and options in bash and zsh", description=_DESCRIPTION
    )
    parser.add_argument("shell", choices=("bash", "zsh"), help="which prints its script")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Prints the script."""
    zsh = "autoload -U +X bashcompinit && bashcompinit\n" if arguments.shell == "zsh" else ""
    print(zsh + _script(), end="")


def _script() -> str:
    from prnn.cli import build_parser
    from prnn.commands.bench import program_parsers

    parsers = {
        name: [parser]
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, parser in action.choices.items()
    }
    try:
        from prnn.asr.configuration import train_parser

        parsers["train"] = [train_parser()]
    except ModuleNotFoundError:  # without the extra "asr" there is no training
        pass
    commands, families = " ".join(parsers), program_parsers()
    parsers |= {f"bench {family}": programs for family, programs in families.items()}
    return _SCRIPT.format(
        commands=commands,
        families="|".join(families),
        values="\n".join(line for name, several in parsers.items() for line in _values(name, several)),
        options="\n".join(
            f'    "{name} -"*) words="{" ".join(_flags(several))}" ;;' for name, several in parsers.items()
        ),
    )


def _flags(parsers: Iterable[argparse.ArgumentParser]) -> Iterable[str]:
    """The options of programs, each once: an option's first name, and others that are not spelled with underscores for
    dashes."""
    return dict.fromkeys(
        flag
        for parser in parsers
        for action in parser._actions
        for flag in action.option_strings
        if flag.startswith("--") and (flag == action.option_strings[0] or "_" not in flag)
    )


def _values(name: str, parsers: Iterable[argparse.ArgumentParser]) -> Iterator[str]:
    """Lines of the script for what is chosen among words, those of all programs that have the option."""
    words: dict[str, dict[str, None]] = {}  # of the places where they stand
    for action in (action for parser in parsers for action in parser._actions):
        if action.choices is not None:
            places = "|".join(f'"{name} {flag}"' for flag in action.option_strings) or f'"{name} {name.split()[-1]}"'
            words.setdefault(places, {}).update(dict.fromkeys(map(str, action.choices)))
    for places, choices in words.items():
        yield f'    {places}) words="{" ".join(choices)}" ;;'

"""Whether a process needs torch, which takes seconds to import: not the one that prints the command line's help."""

import os
import resource
import sys
from collections.abc import Sequence

_LEAST_ADDRESS_SPACE = 1_000_000_000  # bytes

# All commands but `completion`, which prints, and `run`, which replaces the process by another program.
_COMPUTING = ("tokenizer", "train", "transcribe", "evaluate", "export", "info", "selftest", "bench")


def _command_line(argv: Sequence[str], orig_argv: Sequence[str]) -> Sequence[str] | None:
    """The arguments of `prnn` or `python -m prnn`, while that imports prnn; None in another program."""
    if not argv:
        return None
    is_module = argv[0] == "-m" and len(orig_argv) > len(argv) and orig_argv[-len(argv)] == "prnn"
    return argv[1:] if is_module or os.path.basename(argv[0]) == "prnn" else None


def is_computing(argv: Sequence[str], orig_argv: Sequence[str]) -> bool:
    """Whether a process with these sys.argv and sys.orig_argv may compute something."""
    arguments = _command_line(argv, orig_argv)
    if arguments is None:
        return True
    asks_for_help = arguments[1:2] in (["-h"], ["--help"]) or (
        arguments[:1] == ["bench"] and not {"-h", "--help"}.isdisjoint(arguments)
    )
    return arguments[:1] != [] and arguments[0] in _COMPUTING and not asks_for_help


def _is_imported_for(name: str) -> bool:
    """Whether the import that is under way is of that module, which brings its package first. The stack has the frames
    of Python's import system; were they others, the answer would be False."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        code = frame.f_code
        if code.co_name == "_find_and_load" and "importlib" in code.co_filename and frame.f_locals.get("name") == name:
            return True
    return False


def needs_torch() -> bool:
    """Whether this process needs torch at once. Where it is False, `import prnn` brings the version, and the rest at
    its first use: in what a command line prints without computing, and in `import prnn.jax`. A command that may use too
    little memory for torch's libraries, which would abort, ends here with a sentence."""
    argv = getattr(sys, "argv", [])
    if not is_computing(argv, sys.orig_argv):
        return False
    if "torch" not in sys.modules and _is_imported_for("prnn.jax"):
        return False
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= limit < _LEAST_ADDRESS_SPACE and _command_line(argv, sys.orig_argv) is not None:
        print(
            f"prnn: the address space of this process is limited to {limit / 1e6:.0f} MB (ulimit -v); torch and prnn "
            f"take {_LEAST_ADDRESS_SPACE / 1e6:.0f} MB at least",
            file=sys.stderr,
        )
        raise SystemExit(2)
    return True

"""Other packages' losses, and sLSTM, under their own names, over prnn's functions.

`from prnn.compat import warp_rnnt` in place of `import warp_rnnt`, or, before anything imports the package,
`prnn.compat.install("warp_rnnt")` and no further change. Each module has the original's names, argument order,
defaults, result shapes and dtypes; docs/migration.md says what differs.
"""

import importlib
import sys
from types import ModuleType

__all__ = ["install"]

# Packages of losses alone, which a module of this package replaces.
_WHOLE = ("fast_rnnt", "optimized_transducer", "warp_rnnt", "warpctc_pytorch", "warprnnt_pytorch")

# The functions that are replaced, by package and module; {}: the module's own replace() or
# _install() does it.
_PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "flashrnn": {},
    "k2": {
        "k2": (
            "do_rnnt_pruning",
            "get_rnnt_logprobs",
            "get_rnnt_logprobs_joint",
            "get_rnnt_logprobs_pruned",
            "get_rnnt_logprobs_smoothed",
            "get_rnnt_prune_ranges",
            "joint_mutual_information_recursion",
            "mutual_information_recursion",
            "rnnt_loss",
            "rnnt_loss_pruned",
            "rnnt_loss_simple",
            "rnnt_loss_smoothed",
        )
    },
    "nemo": {},
    "speechbrain": {},
    "tirex": {},
    "torchaudio": {
        "torchaudio.functional": ("forced_align", "rnnt_loss"),
        "torchaudio.transforms": ("RNNTLoss",),
    },
    "transformers": {},
    "xlstm": {},
}


def install(*names: str) -> None:
    """Puts prnn's losses and sLSTM in the place of other packages', and says on stderr what it has replaced.

    Args:
        names: "fast_rnnt", "optimized_transducer", "warp_rnnt", "warpctc_pytorch", "warprnnt_pytorch": `import NAME`
            then gives prnn.compat.NAME; the package need not be installed and must not have been imported.
            "k2", "nemo", "speechbrain", "torchaudio", "transformers": the package is imported, and its losses are
            replaced in it. What others have taken from it before by `from NAME import ...` stays as it is.
            "flashrnn", "tirex", "xlstm": likewise, and their sLSTM is replaced.

    Raises:
        ValueError: a name is none of these.
        RuntimeError: a package that would be replaced has been imported already.
        ImportError: a package whose functions would be replaced is not installed.
    """
    for name in names:
        if name not in _WHOLE and name not in _PARTS:
            known = ", ".join(map(repr, sorted([*_WHOLE, *_PARTS])))
            raise ValueError(f"{name!r} is not a package that prnn.compat has; it must be one of {known}")
    for name in names:
        module = importlib.import_module(f"prnn.compat.{name}")
        _say(_replace_package(name, module) if name in _WHOLE else _replace_parts(name, module))


def replace_in(name: str, module: ModuleType) -> None:
    """Acts for `prnn run --compat` once `module` of the package `name`, not one of losses alone, has been imported: as
    `install`, but of a package whose other modules may yet be imported, with what is in this one."""
    own = importlib.import_module(f"prnn.compat.{name}")
    _say(own.replace(module) if hasattr(own, "replace") else _replace_parts(name, own))


def _say(replaced: list[str]) -> None:
    for target in replaced:
        print(f"prnn.compat: {target} is prnn's", file=sys.stderr)


def _replace_package(name: str, module: ModuleType) -> list[str]:
    present = sys.modules.get(name)
    if present is module:
        return []
    if present is not None:
        raise RuntimeError(f"{name} has been imported already; call prnn.compat.install({name!r}) before that")
    sys.modules[name] = module
    return [name]


def _replace_parts(name: str, module: ModuleType) -> list[str]:
    try:
        if hasattr(module, "replace"):
            return _replace_in_all(name, module)
        if not _PARTS[name]:
            return list(module._install())
        targets = {target: importlib.import_module(target) for target in _PARTS[name]}
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{name} cannot be imported ({error}), and nothing can be replaced in it; "
            f"prnn.compat.{name} can be imported without it"
        ) from error
    replaced = []
    for target, functions in _PARTS[name].items():
        for function in functions:
            own = getattr(module, function)
            if getattr(targets[target], function, None) is not own:
                setattr(targets[target], function, own)
                replaced.append(f"{target}.{function}")
    return replaced


def _replace_in_all(name: str, module: ModuleType) -> list[str]:
    """`module.replace` of each of module.TRIGGERS that this version of the package has."""
    importlib.import_module(name)
    replaced = []
    for trigger in module.TRIGGERS:
        try:
            found = importlib.import_module(trigger)
        except ModuleNotFoundError as error:
            if error.name is None or not trigger.startswith(error.name):
                raise  # not a module that this version has not
            continue
        replaced += module.replace(found)
    return replaced

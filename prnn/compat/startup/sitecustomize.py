"""Imported at the start of every Python process of a program under `prnn run --compat`: when the program imports one of
the packages that PRNN_COMPAT names, prnn.compat replaces their losses or sLSTM. Until then it imports nothing of
prnn."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

# Packages of losses alone: prnn's module is imported in their place.
WHOLE = ("fast_rnnt", "optimized_transducer", "warp_rnnt", "warpctc_pytorch", "warprnnt_pytorch")
# Modules, by package, after whose import prnn.compat replaces something in them.
MODULES = {
    "flashrnn": ("flashrnn.flashrnn.flashrnn",),
    "k2": ("k2",),
    "nemo": (
        "nemo.collections.asr.losses.rnnt",
        "nemo.collections.asr.modules.rnnt",
        "nemo.collections.asr.parts.submodules.transducer_decoding.rnnt_label_looping",
        "nemo.collections.asr.parts.submodules.transducer_decoding.tdt_label_looping",
    ),
    "speechbrain": ("speechbrain.nnet.losses",),
    "tirex": ("tirex.models.slstm.cell",),
    "torchaudio": ("torchaudio",),
    "transformers": (
        "transformers.loss.loss_rnnt",
        "transformers.loss.loss_tdt",
        "transformers.loss.loss_utils",
        "transformers.models.parakeet.modeling_parakeet",
        "transformers.models.nemotron_asr_streaming.modeling_nemotron_asr_streaming",
        "transformers.models.nemotron3_5_asr.modeling_nemotron3_5_asr",
    ),
    "xlstm": ("xlstm.blocks.slstm.cell",),
}


class _Replaced(importlib.abc.Loader):
    """Loads a module of prnn.compat in the place of a package."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        _compat().install(spec.name)
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        pass


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of packages to replace, and nothing else."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._whole = {name for name in packages if name in WHOLE}
        self._packages = {module: name for name in packages for module in MODULES.get(name, ())}
        self._looks_up: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in self._whole:
            return importlib.machinery.ModuleSpec(name, _Replaced())
        if name not in self._packages or name in self._looks_up:
            return None
        self._looks_up.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looks_up.discard(name)
        if spec is not None and spec.loader is not None:
            package, load = self._packages[name], spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                _replace(package, module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_HERE = os.path.dirname(os.path.abspath(__file__))


def _compat() -> ModuleType:
    if importlib.util.find_spec("prnn") is None:  # a program in another environment than prnn's
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(_HERE))))
    if os.environ.get("PRNN_COMPAT_LOG"):
        importlib.import_module("prnn.compat._count").start()
    return importlib.import_module("prnn.compat")


def _replace(package: str, module: ModuleType) -> None:
    """A program that cannot have prnn's functions keeps its own."""
    try:
        _compat().replace_in(package, module)
    except Exception as error:
        print(f"prnn run: {package} keeps its own functions: {type(error).__name__}: {error}", file=sys.stderr)


def _import_next() -> None:
    """The sitecustomize that this one stands before, if there is one."""
    others = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Finder(os.environ.get("PRNN_COMPAT", "").split(",")))
    _import_next()

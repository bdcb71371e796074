"""prnn.compat.install, with modules in sys.modules that stand for other packages."""

import dataclasses
import functools
import importlib
import inspect
import sys
from types import ModuleType

import pytest

import prnn.compat

WHOLE = ["fast_rnnt", "optimized_transducer", "warp_rnnt", "warpctc_pytorch", "warprnnt_pytorch"]


@pytest.fixture
def module(monkeypatch):
    """Puts a module of dotted name, with these attributes, into sys.modules for a test; the packages above it too."""

    def make(name, **attributes):
        *above, last = name.split(".")
        for end in range(1, len(above) + 1):
            part = ".".join(above[:end])
            if part not in sys.modules:
                monkeypatch.setitem(sys.modules, part, ModuleType(part))
        made = ModuleType(name)
        vars(made).update(attributes)
        monkeypatch.setitem(sys.modules, name, made)
        if above:
            monkeypatch.setattr(sys.modules[".".join(above)], last, made, raising=False)
        return made

    return make


def test_packages_of_losses_alone(monkeypatch, capsys):
    for name in WHOLE:
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, name, None)  # for the fixture to take out again
        del sys.modules[name]
    prnn.compat.install(*WHOLE)
    prnn.compat.install(*WHOLE)  # once more changes and says nothing
    for name in WHOLE:
        assert importlib.import_module(name) is importlib.import_module(f"prnn.compat.{name}")
    assert capsys.readouterr().err.splitlines() == [f"prnn.compat: {name} is prnn's" for name in WHOLE]


def test_package_that_was_imported_before(module):
    own = module("warp_rnnt")
    with pytest.raises(RuntimeError, match=r"warp_rnnt has been imported already; call prnn\.compat\.install"):
        prnn.compat.install("warp_rnnt")
    assert sys.modules["warp_rnnt"] is own


def test_functions_of_larger_packages(module, capsys):
    functional = module("torchaudio.functional", rnnt_loss=0, forced_align=0, resample=1)
    transforms = module("torchaudio.transforms", RNNTLoss=0)
    k2 = module("k2", rnnt_loss=0, ctc_loss=1)
    prnn.compat.install("torchaudio", "k2")
    assert functional.rnnt_loss.__module__ == transforms.RNNTLoss.__module__ == "prnn.compat.torchaudio"
    assert functional.forced_align.__module__ == "prnn.compat.torchaudio"
    assert functional.resample == 1
    assert k2.rnnt_loss_pruned.__module__ == "prnn.compat.k2"
    assert k2.ctc_loss == 1  # takes general graphs, which prnn does not
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == [
        f"prnn.compat: torchaudio.functional.{name} is prnn's" for name in ("forced_align", "rnnt_loss")
    ]
    assert "prnn.compat: k2.rnnt_loss_pruned is prnn's" in said
    prnn.compat.install("torchaudio", "k2")
    assert capsys.readouterr().err == ""


def test_names_of_k2_are_all_there():
    own = importlib.import_module("prnn.compat.k2")
    for name in prnn.compat._PARTS["k2"]["k2"]:
        assert name in own.__all__


@pytest.mark.parametrize("has_choice", [False, True])
def test_speechbrain_has_its_versions_default(has_choice, module, capsys):
    original = (lambda a, use_torchaudio=True: None) if has_choice else (lambda a: None)
    losses = module("speechbrain.nnet.losses", transducer_loss=original)
    prnn.compat.install("speechbrain")
    prnn.compat.install("speechbrain")
    parameter = inspect.signature(losses.transducer_loss).parameters["use_torchaudio"]
    assert parameter.default is has_choice
    assert isinstance(losses.transducer_loss, functools.partial) is has_choice
    assert capsys.readouterr().err.splitlines() == ["prnn.compat: speechbrain.nnet.losses.transducer_loss is prnn's"]


def test_nemo(module, capsys):
    @dataclasses.dataclass
    class RNNTLossConfig:
        loss_name: str
        lib_name: str
        is_available: bool = False
        min_version: str | None = None
        force_float32: bool = True

    names = ("warprnnt_numba", "multiblank_rnnt", "tdt")
    losses = module(
        "nemo.collections.asr.losses.rnnt",
        RNNT_LOSS_RESOLVER={name: RNNTLossConfig(name, "numba", min_version="0.53.0") for name in names},
        resolve_rnnt_loss=lambda name, blank, options=None: losses.RNNTLossNumba(blank, "none", **options),
    )
    numba = module("nemo.collections.asr.parts.numba.rnnt_loss")
    functions = module("nemo.collections.asr.parts.numba.rnnt_loss.rnnt_pytorch")
    prnn.compat.install("nemo")
    prnn.compat.install("nemo")
    assert capsys.readouterr().err.count("is prnn's") == 13
    for name in ("warprnnt_numba", "prnn"):
        loss = losses.resolve_rnnt_loss(name, 7, {"fastemit_lambda": 0.1})
        assert isinstance(loss, importlib.import_module("prnn.compat.nemo").RNNTLossNumba)
        assert (loss.blank, loss.reduction, loss.fastemit_lambda) == (7, "none", 0.1)
    own = importlib.import_module("prnn.compat.nemo")
    assert numba.TDTLossNumba is functions.TDTLossNumba is own.TDTLossNumba
    assert functions.multiblank_rnnt_loss is own.multiblank_rnnt_loss
    assert not hasattr(numba, "rnnt_loss")
    assert sorted(losses.RNNT_LOSS_RESOLVER) == ["multiblank_rnnt", "prnn", "tdt", "warprnnt_numba"]
    assert all(entry.is_available and entry.min_version is None for entry in losses.RNNT_LOSS_RESOLVER.values())


@pytest.mark.parametrize("name", ["k2", "nemo", "speechbrain", "torchaudio"])
def test_package_that_is_not_installed(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"{name} cannot be imported .*prnn\.compat\.{name} can be imported"):
        prnn.compat.install(name)


def test_unknown_name_replaces_nothing(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "warp_rnnt", raising=False)
    with pytest.raises(
        ValueError, match=r"'espnet' is not a package that prnn\.compat has; it must be one of 'fast_rnnt'"
    ):
        prnn.compat.install("warp_rnnt", "espnet")
    assert "warp_rnnt" not in sys.modules
    assert capsys.readouterr().err == ""

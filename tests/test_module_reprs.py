"""The repr of every public module shows the options that it was made with."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import prnn
import prnn.asr.fbank
import prnn.losses
import prnn.transducer
from prnn.asr.feature_config import FeatureConfig
from prnn.compat import (
    k2,
    nemo,
    optimized_transducer,
    speechbrain,
    torchaudio,
    warpctc_pytorch,
    warprnnt_pytorch,
)

PACKAGES = [prnn, prnn.nn, prnn.losses, prnn.transducer, prnn.asr.fbank, k2, nemo, optimized_transducer, speechbrain]
PACKAGES += [torchaudio, warpctc_pytorch, warprnnt_pytorch]

# A value of each option that is no constructor's default.
VALUES: dict[str, Any] = {
    "activation": "relu",
    "average_frames": True,
    "backend": "cudnn",
    "batch_first": True,
    "bias": False,
    "bidirectional": True,
    "big_blank_durations": [3, 5],
    "blank": 2,
    "cell": "gru",
    "clamp": 0.5,
    "config": FeatureConfig(num_mel_bins=40),
    "context": 3,
    "ctc_weight": 0.4,
    "delay_penalty": 0.125,
    "dropout": 0.375,
    "durations": [0, 1, 7],
    "embedding_dim": 13,
    "encoder_dim": 17,
    "eps": 0.001,
    "fastemit": 0.25,
    "fastemit_lambda": 0.25,
    "feature_dim": 11,
    "feedforward": 21,
    "forget_bias": 1.5,
    "forget_gate": "exponential",
    "frame_stack": 5,
    "frame_stride": 2,
    "from_logits": False,
    "fused_log_softmax": False,
    "gathered": True,
    "heads": 2,
    "hidden_size": 22,
    "inplace": True,
    "input_size": 19,
    "joiner_dim": 23,
    "length_average": True,
    "loss": "pruned",
    "norm": "after",
    "normalize": "products",
    "num_layers": 3,
    "omega": 0.75,
    "output_beam": 6.0,
    "output_dim": 26,
    "predictor_dim": 29,
    "proj_size": 3,
    "prune_range": 7,
    "recurrent_dropout": 0.625,
    "reduction": "none",
    "residual": True,
    "rnnt_type": "modified",
    "sigma": 0.875,
    "simple_weight": 0.3,
    "size_average": True,
    "use_double_scores": False,
    "vocab_size": 31,
    "zero_infinity": True,
    "zoneout": 0.4375,
}
# Values of arguments without a default, and of those that options need beside them.
BASE: dict[str, Any] = {
    "big_blank_durations": [2],
    "blank": 4,
    "config": FeatureConfig(),
    "durations": [0, 1],
    "embedding_dim": 6,
    "encoder_dim": 5,
    "feature_dim": 4,
    "hidden_size": 8,
    "input_size": 3,
    "joiner_dim": 5,
    "num_layers": 2,
    "output_beam": 8.0,
    "output_dim": 7,
    "predictor_dim": 5,
    "vocab_size": 9,
}
WITH: dict[tuple[str, str], dict[str, Any]] = {
    ("Encoder", "frame_stride"): {"frame_stack": 4},
    ("StackingEncoder", "frame_stride"): {"frame_stack": 4},
}
# Where tensors are and of what type is not said by torch.nn's layers either; nor is the nonlinearity of torch.nn.RNN.
UNSAID = ("device", "dtype", "nonlinearity")


def public_modules() -> dict[str, type[nn.Module]]:
    found: dict[str, type[nn.Module]] = {}
    for package in PACKAGES:
        for name in getattr(package, "__all__", vars(package)):
            value = getattr(package, name)
            if inspect.isclass(value) and issubclass(value, nn.Module) and value.__module__.startswith("prnn"):
                found.setdefault(f"{value.__module__}.{value.__name__}", value)
    return found


MODULES = public_modules()


def transducer(**options: Any) -> prnn.Transducer:
    """A model of small parts; those of its joiner follow the loss."""
    encoder = prnn.transducer.Encoder(4, 5, 1)
    durations = len(options.get("durations", (0, 1, 2, 3, 4))) if options.get("loss") == "tdt" else 0
    joiner = prnn.transducer.Joiner(5, 6, 7, 9, durations=durations)
    return prnn.Transducer(encoder, prnn.transducer.StatelessPredictor(9, 6), joiner, **options)


def cases() -> list[Any]:
    found = []
    for path, module in MODULES.items():
        for name, parameter in inspect.signature(module).parameters.items():
            if name in UNSAID or (path.endswith(".Transducer") and parameter.default is parameter.empty):
                continue
            found.append(pytest.param(module, name, id=f"{path.removeprefix('prnn.')}-{name}"))
    return found


def made(module: type[nn.Module], **options: Any) -> nn.Module:
    if module is prnn.Transducer:
        return transducer(**options)
    required = inspect.signature(module).parameters.items()
    base = {name: BASE[name] for name, parameter in required if parameter.default is parameter.empty}
    return module(**(base | options))


@pytest.mark.parametrize(("module", "name"), cases())
def test_every_option_is_shown(module: type[nn.Module], name: str) -> None:
    value: Any = VALUES[name]
    beside: dict[str, Any] = WITH.get((module.__name__, name), {})
    if module is prnn.Transducer and name in ("durations", "sigma", "omega"):
        beside = {"loss": "tdt"}
    if module is prnn.Transducer and name == "durations":
        value = tuple(value)
    if name == "durations" and module is prnn.transducer.Joiner:
        value = 3
    if module.__module__ in ("prnn.nn", "prnn._slstm") and name == "dropout":
        beside = {"num_layers": 2}
    without, with_it = repr(made(module, **beside)), repr(made(module, **beside, **{name: value}))
    assert with_it != without
    shown = str(value) if isinstance(value, (int, float)) else repr(value)
    assert shown in with_it or name in ("cell", "loss")


def test_the_test_knows_every_module() -> None:
    """A new one is in the table of packages."""
    assert len(MODULES) >= 25
    missing = {name for parameter in cases() for name in [parameter.values[1]]} - VALUES.keys()
    assert not missing


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (prnn.RNNTLoss(), "RNNTLoss(blank=-1, reduction='mean')"),
        (
            prnn.RNNTLoss(0, 0.5, fastemit_lambda=0.01, rnnt_type="modified", inplace=True),
            "RNNTLoss(blank=0, clamp=0.5, reduction='mean', fastemit_lambda=0.01, rnnt_type='modified', inplace=True)",
        ),
        (prnn.CTCLoss(zero_infinity=True), "CTCLoss(blank=0, reduction='mean', zero_infinity=True)"),
        (transducer(), "(encoder): Encoder(\n    feature_dim=4, frame_stride=1\n"),
    ],
)
def test_what_it_looks_like(module: nn.Module, text: str) -> None:
    assert text in repr(module)


def test_a_subclass_with_arguments_of_its_own_has_a_repr() -> None:
    class Scaled(prnn.CTCLoss):
        def __init__(self, scale: float, *args: Any, **options: Any) -> None:
            super().__init__(**options)
            self.scale = scale

        def forward(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
            return self.scale * super().forward(*arguments, **keywords)

    text = "Scaled(scale=2.0, blank=0, reduction='mean', zero_infinity=True)"
    assert repr(Scaled(2.0, zero_infinity=True)) == text


def test_numpys_numbers() -> None:
    for module in (prnn.nn.LSTM, prnn.nn.LayerNormLSTM):
        assert "np." not in repr(module(3, 4, forget_bias=np.float64(0.5), zoneout=np.float32(0.25)))

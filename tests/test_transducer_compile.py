"""Encoder, predictor and joiner under torch.compile(fullgraph=True) and torch.export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from prnn.transducer import Transducer, TransducerConfig

CASES: dict[str, dict[str, Any]] = {
    "stateless": {"predictor": "stateless", "encoder_projection": 6},
    "lstm": {"predictor": "lstm", "frame_stack": 8, "frame_stride": 4, "encoder_layers": 2},
    "blocks": {
        "predictor": "stateless", "encoder_layers": 2, "encoder_projection": 6, "encoder_residual": True,
        "encoder_norm": "before", "encoder_feedforward": 9,
    },
    "normalised": {"predictor": "stateless", "encoder_cell": "layer_norm_lstm"},
    "gru": {"predictor": "gru", "encoder_cell": "gru", "frame_stack": 1},
}  # fmt: skip
BATCH, LENGTH = 3, 22


def made(case: str) -> Transducer:
    config = TransducerConfig(
        vocab_size=6,
        feature_dim=5,
        **{"encoder_layers": 1, "encoder_hidden": 16, "predictor_embedding": 8, "predictor_hidden": 8, "joiner_dim": 12}
        | CASES[case],
    )
    model = Transducer.from_config(config).eval()
    model.encoder.set_normalization(torch.linspace(-1, 1, 5), torch.linspace(1, 2, 5))
    return model


def parts(
    model: Transducer, batch: int = BATCH, length: int = LENGTH
) -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Each part and its arguments; the utterances' lengths leave the last frames to nobody, and one has none."""
    lengths = torch.tensor([length - 9, 0, *([length - 13] * (batch - 2))])
    return {
        "encoder": (model.encoder, (torch.randn(batch, length, 5), lengths)),
        "predictor": (model.predictor, (torch.randint(1, 6, (batch, 4)),)),
        "joiner": (
            model.joiner,
            (torch.randn(batch, 7, model.encoder.output_dim), torch.randn(batch, 5, model.predictor.output_dim)),
        ),
    }


def outputs(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def assert_same(found: Any, expected: Any) -> None:
    """But for frames beyond every length, which are zero."""
    for value, wanted in zip(outputs(found), outputs(expected), strict=True):
        assert bool((value[:, wanted.shape[1] :] == 0).all()) if value.dim() > 1 else True
        torch.testing.assert_close(value[:, : wanted.shape[1]] if value.dim() > 1 else value, wanted)


@pytest.mark.parametrize("part", ["encoder", "predictor", "joiner"])
@pytest.mark.parametrize("case", CASES)
def test_compiled_whole(case: str, part: str) -> None:
    """Values and gradients."""
    module, arguments = parts(made(case))[part]
    expected = outputs(module(*arguments))
    compiled = outputs(torch.compile(module, fullgraph=True, backend="aot_eager")(*arguments))
    assert_same(compiled, expected)

    parameters = list(module.parameters())
    wanted = torch.autograd.grad(expected[0].square().sum(), parameters)
    found = torch.autograd.grad(compiled[0].square().sum(), parameters)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("part", ["encoder", "predictor", "joiner"])
@pytest.mark.parametrize("case", CASES)
def test_exported_with_any_batch_and_length(case: str, part: str) -> None:
    model = made(case)
    module, arguments = parts(model)[part]
    most = 2**30  # torch before 2.7 wants a bound
    batch, symbols = Dim("batch", max=most), Dim("symbols", max=most)
    length = Dim("length", min=5, max=most)  # more than one encoder frame
    shapes: dict[str, tuple[Any, ...]] = {
        "encoder": ({0: batch, 1: length}, {0: batch}),
        "predictor": ({0: batch, 1: symbols},),
        "joiner": ({0: batch, 1: length}, {0: batch, 1: symbols}),
    }
    program = torch.export.export(module, arguments, dynamic_shapes=shapes[part])
    for other in (arguments, parts(model, batch=2, length=31)[part][1]):
        assert_same(program.module()(*other), module(*other))

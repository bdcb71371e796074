"""recipes.finetune.graphs on a GPU: the losses and gradients of the layers without graphs."""

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor

from recipes.finetune.graphs import GraphedLayers

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
FRAMES = 120, 90, 70


def make(dropout: float = 0.0) -> Any:
    from transformers import ParakeetForTDT, ParakeetTDTConfig

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    names = "dropout", "layerdrop", "activation_dropout", "attention_dropout"
    encoder = {**sizes, "subsampling_conv_channels": 4, **dict.fromkeys(names, dropout)}
    config = ParakeetTDTConfig(vocab_size=20, blank_token_id=19, decoder_hidden_size=24, encoder_config=encoder)
    return ParakeetForTDT(config).cuda().train()


def encode(model: Any, step: int) -> Tensor:
    """A loss of the encoder's output for a batch; batches have three shapes in turn."""
    frames = FRAMES[step % 3]
    generator = torch.Generator().manual_seed(step)
    features = torch.randn(3, frames, 80, generator=generator).cuda()
    mask = (torch.arange(frames) < torch.tensor([frames, frames - step, 60])[:, None]).long().cuda()
    output = model.get_audio_features(input_features=features, attention_mask=mask).pooler_output
    weights = torch.randn(output.shape, generator=generator).cuda()
    loss: Tensor = (output.float() * weights).sum() / output.numel() ** 0.5
    return loss


@pytest.mark.parametrize("autocast", [False, True])
def test_losses_and_gradients(autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where two batches' gradients are added up."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    tolerance = 2e-2 if autocast else 1e-4
    ordinary, graphed = make(), make()
    layers = GraphedLayers(graphed.encoder)
    for step in range(12):
        losses = []
        for model in (ordinary, graphed):
            if step % 4 != 3:
                model.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, autocast):
                loss = encode(model, step)
            loss.backward()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[1], losses[0], rtol=tolerance, atol=tolerance)
        for wanted, found in zip(ordinary.parameters(), graphed.parameters(), strict=True):
            if wanted.grad is not None and wanted.grad.norm() > 1e-3:
                assert (found.grad - wanted.grad).norm() <= tolerance * wanted.grad.norm()
    assert len(layers.weights) == 3  # captured
    for wanted, found in zip(ordinary.buffers(), graphed.buffers(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def test_dropout_differs_from_step_to_step() -> None:
    model = make(dropout=0.3)
    GraphedLayers(model.encoder)
    losses = set()
    for _ in range(8):
        loss = encode(model, 0)
        loss.backward()
        losses.add(loss.item())
    assert len(losses) == 8


def test_gradient_checkpointing_is_refused() -> None:
    model = make()
    names = "activation_checkpointing_enable", "gradient_checkpointing_enable"  # by the version
    next(getattr(model, name) for name in names if hasattr(model, name))()
    GraphedLayers(model.encoder)
    with pytest.raises(ValueError, match="gradient_checkpointing is on"):
        encode(model, 0)

"""A recogniser whose weights are set by hand: it spells tones, so that tests know what it finds and when."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from prnn.asr import CharTokenizer, FeatureConfig, Recogniser, Tokenizer, compute_features
from prnn.asr.checkpoint import describe
from prnn.transducer import Transducer, TransducerConfig

RATE = 16000
FRAME = 0.02  # seconds of an encoder frame
TONE = 0.1
_FREQUENCIES = np.array([250.0, 450.0, 700.0, 1100.0, 1700.0, 2600.0, 4000.0, 6000.0])


def tones(text: str, symbols: str = "ab c") -> np.ndarray:
    """Samples of 100 ms for each character: 60 ms of a symbol's tone and 40 ms of silence, or silence for ``.``. A
    symbol is spelled only if it is not the last one that was."""
    time = np.arange(round(TONE * RATE)) / RATE
    loudness = 0.3 * (time < 0.06)
    frequencies = [0.0 if c == "." else _FREQUENCIES[symbols.index(c)] for c in text]
    parts = [loudness * np.sin(2 * np.pi * frequency * time) for frequency in frequencies]
    noise = 0.001 * np.random.default_rng(0).standard_normal(len(time) * len(text))
    return (np.concatenate(parts) + noise).astype(np.float32)


def tone_recogniser(symbols: str = "ab c", tokenizer: Tokenizer | None = None, gain: float = 8.0) -> Recogniser:
    """Spells the tones of `tones` once each.

    The encoder's LSTM forgets at once: unit k says whether tone k sounds. The predictor says which symbol was last,
    which the joiner takes off. Logits are 0 to 1.4 times the gain, and the blank's is half the gain.

    Args:
        symbols: one for each tone.
        tokenizer: whose labels the tones have, one each; None makes them characters.
        gain: how sure it is.
    """
    tokenizer = tokenizer or CharTokenizer(symbols)
    size = len(tokenizer)
    model = Transducer.from_config(
        TransducerConfig(
            vocab_size=size, frame_stack=2, encoder_layers=1, encoder_hidden=size, predictor="stateless",
            predictor_context=1, predictor_hidden=size, joiner_dim=size, joiner_activation="relu",
        )
    ).eval()  # fmt: skip
    quiet = compute_features(tones("...."), RATE).mean(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        weight, bias = model.encoder.rnn.weight_ih_l0, model.encoder.rnn.bias_ih_l0
        inputs, forget, cell, output = range(4)
        for gate, value in ((inputs, 20.0), (forget, -20.0), (output, 20.0)):
            bias.view(4, size)[gate] = value
        for label in range(1, size):
            if label > len(symbols):
                break
            loud = compute_features(tones(symbols[label - 1] * 4, symbols), RATE)[2:5].mean(0)
            best = int((loud - quiet).argmax())
            for part in range(2):  # both of the frames that are stacked
                weight.view(4, size, 2, -1)[cell, label, part, best] = 1.0
            bias.view(4, size)[cell, label] = -float(loud[best] + quiet[best])
        model.predictor.embeddings[0].weight.copy_(torch.eye(size))
        model.joiner.encoder_proj.weight.copy_(2 * torch.eye(size))
        model.joiner.predictor_proj.weight.copy_(-5 * torch.eye(size))
        model.joiner.output.weight.copy_(gain * torch.eye(size))
        model.joiner.output.weight[0] = 0.0
        model.joiner.output.bias[0] = gain / 2
    return Recogniser(model, FeatureConfig(), tokenizer)


def save(recogniser: Recogniser, path: Path) -> Path:
    """Writes the checkpoint that prnn train would."""
    config = recogniser.model.config
    assert config is not None
    weights = {f"model.{name}": tensor for name, tensor in recogniser.model.state_dict().items()}
    torch.save({"prnn": describe(config, recogniser.features, recogniser.tokenizer), "state_dict": weights}, path)
    return path

"""Pictures of a training and of an alignment, and the posterior that the latter shows."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from asr_data import small_checkpoint, write_corpus

from prnn.asr import Recogniser, plots, read_manifest
from prnn.asr.augment import Augmentation
from prnn.asr.dataset import load_features
from prnn.asr.options import TrainingOptions
from prnn.asr.plots import label_posterior, plot_alignment, plot_error_rates, plot_losses
from prnn.asr.training import train


@pytest.fixture
def recogniser(tmp_path: Path) -> Recogniser:
    torch.save(small_checkpoint(), tmp_path / "model.ckpt")
    return Recogniser.load(tmp_path / "model.ckpt")


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


@pytest.mark.parametrize("labels", [[], [2], [1, 3], [2, 2, 1]], ids=str)
def test_label_posterior_is_the_sum_over_alignments(recogniser: Recogniser, labels: list[int]) -> None:
    """Every order of T blanks and U labels that ends with a blank, one after the other."""
    features, targets = torch.randn(9, 80), torch.tensor(labels, dtype=torch.int64)
    model = recogniser.model
    with torch.no_grad():
        encoded, (frames,) = model.encoder(features[None], torch.tensor([9]))
        log_probs = model.joiner(encoded, model.predictor(targets[None]))[0].double().log_softmax(-1)
    through = torch.zeros(int(frames), len(labels) + 1, dtype=torch.float64)
    total = 0.0
    steps = int(frames) + len(labels) - 1
    for places in itertools.combinations(range(steps), len(labels)):
        score, t, u, cells = 0.0, 0, 0, set()
        for step in range(steps + 1):
            cells.add((t, u))
            symbol = labels[u] if step in places else 0
            score += float(log_probs[t, u, symbol])
            t, u = (t, u + 1) if step in places else (t + 1, u)
        total += math.exp(score)
        for cell in cells:
            through[cell] += math.exp(score)
    found = label_posterior(recogniser, features, targets)
    torch.testing.assert_close(found.double(), through / total, rtol=0, atol=1e-5)
    assert found.shape == (5, len(labels) + 1)


def test_label_posterior_of_a_long_recording(recogniser: Recogniser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of all cells are never held."""
    utterance = torch.randn(101, 80), torch.randint(1, 4, (20,))
    whole = label_posterior(recogniser, *utterance)
    monkeypatch.setattr(plots, "_MOST_LOGITS", 1000)
    sizes = []
    recogniser.model.joiner.register_forward_hook(lambda *called: sizes.append(called[-1].numel()))
    torch.testing.assert_close(label_posterior(recogniser, *utterance), whole, rtol=0, atol=1e-5)
    assert sum(sizes) == 51 * 21 * 4
    assert max(sizes) <= 1000


def test_pictures(tmp_path: Path, recogniser: Recogniser) -> None:
    manifest = write_corpus(tmp_path / "data", "tones", ["ab c", "c"])
    model = {"encoder_hidden": 4, "encoder_layers": 1, "predictor": "stateless", "predictor_hidden": 4, "joiner_dim": 4}
    options = TrainingOptions(
        manifest, manifest, tmp_path / "out", model=model, accelerator="cpu", epochs=12, valid_every=4,
        augmentation=Augmentation(),
    )  # fmt: skip
    best = train(options, progress=False)
    plot_losses(options.output / "tensorboard", tmp_path / "losses.png")
    assert is_picture(tmp_path / "losses.png")
    utterance = read_manifest(manifest)[0]
    plot_alignment(
        Recogniser.load(best), load_features(utterance, recogniser.features), utterance.text, tmp_path / "alignment.png"
    )
    assert is_picture(tmp_path / "alignment.png")


@pytest.mark.filterwarnings("error:Glyph")
def test_pictures_of_any_text(tmp_path: Path) -> None:
    """Dollar signs begin no formula; characters that the font lacks are boxes."""
    texts = ["$5^ and $_6", "$\\no$", "$$ $", "\u306f\u3044 \U0001f44d"]
    manifest = write_corpus(tmp_path / "data", "tones", ["ab", "ab", "ab", "ab"])
    entries = [json.loads(line) | {"text": text} for line, text in zip(manifest.open(), texts, strict=True)]
    manifest.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    model = {"encoder_hidden": 4, "encoder_layers": 1, "predictor": "stateless", "predictor_hidden": 4, "joiner_dim": 4}
    options = TrainingOptions(
        manifest, manifest, tmp_path / "out", model=model, accelerator="cpu", epochs=1, pictures=4
    )
    recogniser = Recogniser.load(train(options, progress=False))
    for text in texts:
        plot_alignment(recogniser, torch.randn(40, 80), text, tmp_path / "alignment.png")
        assert is_picture(tmp_path / "alignment.png")


def test_a_training_that_has_logged_nothing_yet(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    plot_losses(tmp_path / "tensorboard", tmp_path / "losses.png")
    assert is_picture(tmp_path / "losses.png")
    plot_error_rates({"none": tmp_path / "tensorboard"}, tmp_path / "rates.png")
    assert is_picture(tmp_path / "rates.png")

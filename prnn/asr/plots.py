"""Pictures of a training and of an alignment, as PNG."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import matplotlib
import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

import prnn

from .recogniser import Recogniser
from .tokenizer import SPACE

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure


def _series(events: EventAccumulator, tag: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a scalar; of steps logged twice, because a training was interrupted, the later value."""
    if tag not in events.Tags()["scalars"]:
        return np.zeros(0), np.zeros(0)
    latest = {event.step: event.value for event in events.Scalars(tag)}
    steps = sorted(latest)
    return np.array(steps), np.array([latest[step] for step in steps])


def _smooth(values: np.ndarray, width: int = 9) -> np.ndarray:
    """The geometric mean of each value and its neighbours, fewer of them at the ends."""
    kernel = np.ones(min(width, len(values)))
    sums = np.convolve(np.log(np.maximum(values, 1e-9)), kernel, mode="same")
    return np.exp(sums / np.convolve(np.ones(len(values)), kernel, mode="same"))


def plot_losses(log: str | Path, path: str | Path) -> None:
    """Draws the losses and the validation error rates of a training against its steps.

    Args:
        log: the TensorBoard folder of the training.
        path: the PNG to write.
    """
    events = EventAccumulator(str(log), size_guidance={"scalars": 0})
    events.Reload()
    figure, (losses, errors) = pyplot.subplots(2, 1, figsize=(8, 7), sharex=True, layout="constrained")
    for tag, label, colour in (
        ("train/transducer", "transducer, training", "tab:blue"),
        ("train/ctc", "CTC, training", "tab:green"),
    ):
        steps, values = _series(events, tag)
        if len(steps):
            losses.plot(steps, values, color=colour, alpha=0.3, linewidth=1.0)
            losses.plot(steps, _smooth(values), color=colour, label=label)
    steps, values = _series(events, "valid/loss")
    losses.plot(steps, values, color="tab:orange", marker="o", markersize=4, label="transducer, validation")
    losses.set_yscale("log")
    losses.set_ylabel("loss per utterance (nats)")
    losses.legend()
    for tag, label in (("valid/wer", "words"), ("valid/cer", "characters")):
        steps, values = _series(events, tag)
        errors.plot(steps, 100 * values, marker="o", markersize=4, label=label)
    errors.set_ylim(0, None)
    errors.set_ylabel("validation error rate (%)")
    errors.set_xlabel("step")
    errors.legend()
    for axes in (losses, errors):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def plot_error_rates(logs: Mapping[str, str | Path], path: str | Path) -> None:
    """Draws the validation character error rates of several trainings against the share of their steps.

    Args:
        logs: the TensorBoard folder of each training, by the name that the picture gives it.
        path: the PNG, or SVG, to write.
    """
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name, log in logs.items():
        events = EventAccumulator(str(log), size_guidance={"scalars": 0})
        events.Reload()
        steps, values = _series(events, "valid/cer")
        last = max(steps, default=1)
        axes.plot(100 * steps / last, 100 * values, linewidth=1.2, label=f"{name}, {last} steps")
    axes.set_ylim(0, 100)
    axes.set_xlabel("steps (% of all)")
    axes.set_ylabel("validation character error rate (%)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


_MOST_LOGITS = 2**22  # held at once


def label_posterior(recogniser: Recogniser, features: Tensor, targets: Tensor) -> Tensor:
    """The probability, given the recording and its text, that an encoder frame is left with so many labels emitted.

    It is the occupation of the lattice's cells: a path leaves a cell by a blank or by the next label.

    Args:
        features: (frames, bins).
        targets: (U,), int64.

    Returns:
        (encoder frames, U + 1), of which a cell is the probability that a path goes through it.
    """
    model = recogniser.model
    targets = targets.to(recogniser.device)
    with torch.no_grad():
        encoder_out, lengths = model.encoder(features[None].to(recogniser.device), torch.tensor([len(features)]))
        predictor_out = model.predictor(targets[None])
        symbols = torch.full((len(targets) + 1, 2), model.blank, device=targets.device)
        symbols[:-1, 1] = targets
        scores = []
        frames = max(1, _MOST_LOGITS // (len(symbols) * len(recogniser.tokenizer)))
        for chunk in encoder_out.split(frames, dim=1):
            log_probs = model.joiner(chunk, predictor_out).log_softmax(-1)
            scores.append(log_probs.gather(-1, symbols.expand(*log_probs.shape[:2], -1, -1)))
        _, (by_label, by_blank) = prnn.rnnt_loss(
            torch.cat(scores, 1), None, lengths, torch.tensor([len(targets)]), gathered=True, return_grad=True
        )
    posterior = by_blank[0, :, : int(lengths)].clone()
    posterior[:-1] += by_label[0, :, : int(lengths)]
    return posterior.T.cpu()


@contextmanager
def boxes_for_unknown_glyphs() -> Iterator[None]:
    """Keeps matplotlib from warnings of characters that its font lacks, in whose places it draws boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        yield


def alignment_figure(recogniser: Recogniser, features: Tensor, text: str) -> Figure:
    """Draws where in a recording the symbols of its text are: frames over labels, the posterior as colour, under the
    features.

    Args:
        features: (frames, bins) of the recording.
        text: what is said in it; what no label stands for is left out.
    """
    labels, _ = recogniser.tokenizer.encode_known(text)
    targets = torch.tensor(labels, dtype=torch.int64)
    posterior = label_posterior(recogniser, features, targets)
    seconds = len(features) * recogniser.features.frame_shift_ms / 1000
    height = min(12.0, 3.0 + 0.22 * len(labels))
    figure, (spectrum, lattice) = pyplot.subplots(
        2, 1, figsize=(9, height), sharex=True, layout="constrained", height_ratios=(1, max(1.5, 0.1 * len(labels)))
    )
    bins = features.shape[1]
    spectrum.imshow(features.T.numpy(), origin="lower", aspect="auto", extent=(0, seconds, 0, bins), cmap="magma")
    spectrum.set_ylabel("mel bin")
    spectrum.set_title(f"“{text}”", parse_math=False)
    image = lattice.imshow(
        posterior.T.numpy(),
        origin="upper",
        aspect="auto",
        interpolation="nearest",
        extent=(0, seconds, len(labels) + 0.5, -0.5),
        cmap="viridis",
        vmin=0,
        vmax=1,
    )
    symbols = [recogniser.tokenizer.symbols[label].replace(SPACE, "␣") for label in labels]
    lattice.set_yticks(range(len(labels) + 1), ["start", *symbols], parse_math=False)
    lattice.set_ylabel("last label emitted")
    lattice.set_xlabel("time (s)")
    figure.colorbar(image, ax=lattice, label="posterior", fraction=0.03, pad=0.01)
    return figure


def plot_alignment(recogniser: Recogniser, features: Tensor, text: str, path: str | Path) -> None:
    """Draws that as a PNG."""
    figure = alignment_figure(recogniser, features, text)
    with boxes_for_unknown_glyphs():
        figure.savefig(path, dpi=120)
    pyplot.close(figure)

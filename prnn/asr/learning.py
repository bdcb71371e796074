"""Whether a training learns: its losses a symbol beside that of guessing symbols by how often they occur."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from prnn.transducer import LossParts

from .dataset import Batch
from .options import TrainingOptions

_FIRST_LOOK = 500  # steps after which a training is said not to learn, and after twice, four times as many
_WINDOW = 100  # steps before a look whose losses count
_AS_GUESSING = 0.85  # share of the loss of guessing above which nothing has been learnt


class _Sums:
    """Sums over batches: of the transducer's and CTC's losses, where they are computed, and, on the CPU, of symbols,
    symbols of the utterances that CTC can spell, utterances, and those that it cannot spell."""

    def __init__(self) -> None:
        self.losses = torch.zeros((), dtype=torch.float64, device="cpu")  # before the first batch; then (2,)
        self.counts = np.zeros(4, np.int64)


class Learning:
    """Sums of a training's losses, and counts of its symbols. Nothing waits for a GPU but `stuck`, when it looks.
    Losses are added up when they are asked for, or `_WINDOW` are there: most steps send no work to a GPU for them.

    Args:
        options: of the training.
        vocab_size: symbols, the blank included.
    """

    def __init__(self, options: TrainingOptions, vocab_size: int) -> None:
        self._options = options
        self._counts = np.zeros(vocab_size, np.int64)
        self._window, self._since = _Sums(), _Sums()
        self._losses: list[Tensor] = []  # of batches that the sums lack: the transducer's and CTC's, in turn
        self._sizes: list[int] = []  # utterances of these batches
        self._learnt: tuple[int, float] | None = None  # the last look at which it was below guessing, and the loss then

    def add(self, parts: LossParts, batch: Batch, frames: Tensor) -> None:
        """Counts a batch of the training: its losses, of the device, and its targets, on the CPU; frames (N,): of the
        encoder, on the CPU."""
        targets, lengths = batch.targets.numpy(), batch.target_lengths.numpy()  # torch takes longer on few numbers
        real = np.arange(targets.shape[1]) < lengths[:, None]
        self._counts += np.bincount(targets[real], minlength=len(self._counts))
        ctc = parts.transducer if parts.ctc is None else parts.ctc
        self._losses += [parts.transducer.detach(), ctc.detach()]
        self._sizes.append(len(lengths))
        spelled = np.ones(len(lengths), np.bool_) if parts.ctc is None else ctc_spells(batch, frames).numpy()
        counts = np.array([lengths.sum(), lengths[spelled].sum(), len(lengths), (~spelled).sum()])
        for sums in (self._window, self._since):
            sums.counts += counts
        if len(self._sizes) == _WINDOW:
            self._add_up()

    def _add_up(self) -> None:
        """Adds the losses that the sums lack."""
        if self._sizes:
            losses = torch.stack(self._losses).double().view(-1, 2)
            sizes = torch.tensor(self._sizes, dtype=torch.float64, device="cpu")
            found = sizes.to(losses.device, non_blocking=True) @ losses
            for sums in (self._window, self._since):
                sums.losses = sums.losses + found
            self._losses, self._sizes = [], []

    @property
    def guessing(self) -> float:
        """The mean of -log p of a symbol, in nats, with p its share of all symbols trained on so far."""
        counts = torch.from_numpy(self._counts[self._counts > 0]).double()
        return float(-(counts / counts.sum() * (counts / counts.sum()).log()).sum()) if len(counts) else 0.0

    def taken(self, device: torch.device) -> Tensor:
        """Sums since this was last called: of the transducer's losses, of CTC's, of symbols, of those of the utterances
        that CTC can spell, of utterances, of those that it cannot; (6,), float64. Without CTC the second is the first,
        and the last is 0."""
        self._add_up()
        sums, self._since = self._since, _Sums()
        return torch.cat([sums.losses.expand(2).to(device), torch.from_numpy(sums.counts).to(device)])

    def stuck(self, step: int, warmup_steps: int = 0) -> str | None:
        """The warning after a step if the loss is still that of guessing: the CTC loss, since a predictor learns to
        guess better without listening, or the transducer's if there is no CTC. While the rate rises, little is learnt:
        no warning before `warmup_steps`."""
        if step % _WINDOW:
            return None
        self._add_up()
        sums, self._window = self._window, _Sums()
        looks, rest = divmod(step, _FIRST_LOOK)
        if rest or looks & (looks - 1):
            return None
        loss, symbols, guess = float(sums.losses.expand(2)[1]), int(sums.counts[1]), self.guessing
        if not symbols:
            return None
        if loss / symbols < _AS_GUESSING * guess:
            self._learnt = step, loss / symbols
            return None
        options = self._options
        name = "CTC loss" if options.model.get("ctc_weight", 0) else "loss"
        found = (
            f"after {step} steps the {name} is {loss / symbols:.2f} a symbol, and that of guessing symbols by how "
            f"often they occur {guess:.2f}: "
        )
        if self._learnt is not None:
            return (
                f"{found}after {self._learnt[0]} steps it was {self._learnt[1]:.2f}. The training has become unstable "
                f"(train/gradient_norm in its log): begin again with a lower lr than {options.lr:g}"
            )
        if step < warmup_steps:
            return None
        return (
            f"{found}the model has not learnt to listen yet. If that stays: a lower lr than "
            f"{options.lr:g}, a longer warmup than {options.warmup:g}, augmentation from a later epoch "
            f"(augmentation.start_epoch is {options.augmentation.start_epoch}); are the texts those of the recordings?"
        )


def ctc_spells(batch: Batch, frames: Tensor) -> Tensor:
    """Which utterances have a frame for each symbol, and for the blank between equal ones: (N,), bool, on the CPU. CTC
    has no alignment of the others, which cost nothing and teach nothing.

    Args:
        batch: of N utterances.
        frames: (N,), of the encoder, on the CPU.
    """
    targets, lengths = batch.targets.numpy(), batch.target_lengths.numpy()
    second = np.arange(1, max(1, targets.shape[1])) < lengths[:, None]
    equal = ((targets[:, 1:] == targets[:, :-1]) & second).sum(1)
    return torch.from_numpy(lengths + equal <= frames.numpy())


def blank_share(logits: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """The share of frames for which the blank is the most probable symbol: logits (N, T, V), lengths (N,)."""
    real = torch.arange(logits.shape[1], device=logits.device) < lengths.to(logits.device, non_blocking=True)[:, None]
    return ((logits.argmax(dim=-1) == blank) & real).sum() / real.sum()

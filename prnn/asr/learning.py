"""Whether a training learns: its losses a symbol beside that of guessing symbols by how often they occur."""

from __future__ import annotations

import torch
from torch import Tensor

from prnn.transducer import LossParts

from .dataset import Batch
from .options import TrainingOptions

_FIRST_LOOK = 500  # steps after which a training is said not to learn, and after twice, four times as many
_WINDOW = 100  # steps before a look whose losses count
_AS_GUESSING = 0.85  # share of the loss of guessing above which nothing has been learnt


class Learning:
    """Sums of a training's losses, and counts of its symbols. Nothing waits for a GPU but `stuck`, when it looks.

    Args:
        options: of the training.
        vocab_size: symbols, the blank included.
    """

    def __init__(self, options: TrainingOptions, vocab_size: int) -> None:
        self._options = options
        self._counts = torch.zeros(vocab_size, dtype=torch.int64, device="cpu")
        self._window: Tensor | float = 0.0
        self._since: Tensor | float = 0.0
        self._learnt: tuple[int, float] | None = None  # the last look at which it was below guessing, and the loss then

    def add(self, parts: LossParts, batch: Batch) -> None:
        """Counts a batch of the training: its losses, of the device, and its targets, on the CPU."""
        real = torch.arange(batch.targets.shape[1], device="cpu") < batch.target_lengths[:, None]
        self._counts += batch.targets[real].bincount(minlength=len(self._counts))
        losses = torch.stack([parts.transducer, parts.transducer if parts.ctc is None else parts.ctc]).detach().double()
        symbols = losses.new_full((1,), int(batch.target_lengths.sum()))
        sums = torch.cat([losses * len(batch.texts), symbols])
        self._window = self._window + sums
        self._since = self._since + sums

    @property
    def guessing(self) -> float:
        """The mean of -log p of a symbol, in nats, with p its share of all symbols trained on so far."""
        counts = self._counts[self._counts > 0].double()
        return float(-(counts / counts.sum() * (counts / counts.sum()).log()).sum()) if len(counts) else 0.0

    def taken(self, device: torch.device) -> Tensor:
        """Sums since this was last called: of the transducer's losses, of CTC's, of symbols; (3,), float64. Without CTC
        the second is the first."""
        sums, self._since = self._since, 0.0
        return sums if isinstance(sums, Tensor) else torch.zeros(3, dtype=torch.float64, device=device)

    def stuck(self, step: int) -> str | None:
        """The warning after a step if the loss is still that of guessing: the CTC loss, since a predictor learns to
        guess better without listening, or the transducer's if there is no CTC."""
        if step % _WINDOW:
            return None
        sums, self._window = self._window, 0.0
        looks, rest = divmod(step, _FIRST_LOOK)
        if rest or looks & (looks - 1) or not isinstance(sums, Tensor):
            return None
        _, loss, symbols = sums.tolist()
        guess = self.guessing
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
        return (
            f"{found}the model has not learnt to listen yet. If that stays: a lower lr than "
            f"{options.lr:g}, a longer warmup than {options.warmup:g}, augmentation from a later epoch "
            f"(augmentation.start_epoch is {options.augmentation.start_epoch}); are the texts those of the recordings?"
        )


def blank_share(logits: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """The share of frames for which the blank is the most probable symbol: logits (N, T, V), lengths (N,)."""
    real = torch.arange(logits.shape[1], device=logits.device) < lengths.to(logits.device, non_blocking=True)[:, None]
    return ((logits.argmax(dim=-1) == blank) & real).sum() / real.sum()

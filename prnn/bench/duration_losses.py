"""TDT and multi-blank losses for the benchmarks: their shapes, and a plain torch version to stand beside."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import prnn

DURATIONS = [0, 1, 2, 3, 4]
BIG_BLANKS = [2, 4, 8]
Loss = Callable[[Tensor], Tensor]


def plain_loss(blanks: dict[int, Tensor], labels: dict[int, Tensor]) -> Tensor:
    """The mean loss of full-length sequences from the scores of their arcs, blanks {d: (N, T, U + 1)} and labels
    {d: (N, T, U)}, anti-diagonal by anti-diagonal, differentiated by autograd."""
    batch, frames, positions = next(iter(blanks.values())).shape
    some = next(iter(blanks.values()))
    low = torch.finfo(some.dtype).min / 16
    steps = frames + positions - 1
    t = torch.arange(steps, device=some.device).unsqueeze(1) - torch.arange(positions, device=some.device)
    inside = (t >= 0) & (t < frames)
    rows, columns = t.clamp(0, frames - 1), torch.arange(positions, device=some.device)
    # Skewed by one position a frame, so that an anti-diagonal is a row: [n, t + u, u].
    blanks = {d: s[:, rows, columns].masked_fill(~inside, low) for d, s in blanks.items()}
    labels = {d: s[:, rows[:, :-1], columns[:-1]].masked_fill(~inside[:, :-1], low) for d, s in labels.items()}
    alphas = [torch.full((batch, positions), low, device=some.device, dtype=some.dtype).index_fill(1, columns[:1], 0)]
    for step in range(1, steps):
        ways = [alphas[step - d] + s[:, step - d] for d, s in blanks.items() if step >= d]
        ways += [
            F.pad(alphas[step - d - 1][:, :-1] + s[:, step - d - 1], (1, 0), value=low)
            for d, s in labels.items()
            if step > d
        ]
        alphas.append(torch.logsumexp(torch.stack(ways), 0))
    last = [alphas[steps - d][:, -1] + s[:, steps - d, -1] for d, s in blanks.items() if d <= frames]
    return -torch.logsumexp(torch.stack(last), 0).mean()


def label_scores(log_probs: Tensor, targets: Tensor) -> Tensor:
    index = targets[:, None, :, None].expand(-1, log_probs.shape[1], -1, 1).long()
    return log_probs[:, :, :-1].gather(3, index).squeeze(3)


def tdt_losses(targets: Tensor, frames: Tensor, symbols: Tensor, classes: int) -> dict[str, Loss]:
    """From logits (N, T, U + 1, classes + len(DURATIONS)), the blank last of the classes."""

    def plain(x: Tensor) -> Tensor:
        tokens, durations = (part.log_softmax(3) for part in x.split([classes, len(DURATIONS)], 3))
        label = label_scores(tokens, targets)
        return plain_loss(
            {d: tokens[..., -1] + durations[..., i] for i, d in enumerate(DURATIONS) if d > 0},
            {d: label + durations[:, :, :-1, i] for i, d in enumerate(DURATIONS)},
        )

    return {
        "prnn": lambda x: prnn.tdt_loss(x, targets, frames, symbols, -1, DURATIONS),
        "prnn.rnnt_loss": lambda x: prnn.rnnt_loss(x, targets, frames, symbols),
        "plain torch": plain,
    }


def multi_blank_losses(targets: Tensor, frames: Tensor, symbols: Tensor, classes: int) -> dict[str, Loss]:
    """From logits (N, T, U + 1, classes + len(BIG_BLANKS)), the blanks last."""

    def plain(x: Tensor) -> Tensor:
        log_probs = x.log_softmax(3)
        return plain_loss(
            {d: log_probs[..., -1 - i] for i, d in enumerate([1, *BIG_BLANKS])}, {0: label_scores(log_probs, targets)}
        )

    return {
        "prnn": lambda x: prnn.multi_blank_rnnt_loss(x, targets, frames, symbols, -1, BIG_BLANKS),
        "prnn.rnnt_loss": lambda x: prnn.rnnt_loss(x, targets, frames, symbols),
        "plain torch": plain,
    }


FAMILIES = {
    "TDT, durations 0 to 4": (tdt_losses, len(DURATIONS)),
    "Multi-blank, 2 4 8": (multi_blank_losses, len(BIG_BLANKS)),
}


def problem(name: str, n: int, t: int, u: int, v: int, device: str) -> tuple[Tensor, dict[str, Loss]]:
    """Logits with `v` classes besides durations or big blanks, and the losses by name; rnnt_loss is another loss on the
    same logits, for a yardstick."""
    make, more = FAMILIES[name]
    logits = torch.randn(n, t, u + 1, v + more, device=device, requires_grad=True)
    targets = torch.randint(0, v - 1, (n, u), device=device, dtype=torch.int32)
    frames, symbols = (torch.full((n,), size, device=device, dtype=torch.int32) for size in (t, u))
    return logits, make(targets, frames, symbols, v)

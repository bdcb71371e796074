"""Losses on the CPU against torch's, in turns in one process (options: command_lines.losses_cpu)."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import prnn
from prnn.bench import command_lines
from prnn.bench.duration_losses import FAMILIES, problem
from prnn.bench.json_rows import processor, write_rows

CTC_SHAPES = [(n, 150, labels, classes) for labels, classes in ((40, 28), (20, 5000)) for n in (1, 16, 64)]
CTC_SHAPES += [(n, frames, frames // 4, 28) for frames in (8, 20, 50) for n in (1, 8, 32)]
RNNT_SHAPES = [
    (1, 150, 40, 28),
    (16, 150, 40, 28),
    (1, 150, 20, 5000),
    (4, 150, 20, 5000),
    (1, 1500, 300, 50),
]
DURATION_SHAPES = [(1, 150, 40, 28), (4, 150, 40, 1025)]


def plain_rnnt_loss(logits: Tensor, targets: Tensor, blank: int = 0) -> Tensor:
    """The mean RNN-T loss of full-length sequences, anti-diagonal by anti-diagonal, differentiated by autograd."""
    batch, frames, positions, _ = logits.shape
    log_probs = logits.log_softmax(3)
    blanks = log_probs[..., blank]
    index = targets[:, None, :, None].expand(-1, frames, -1, 1)
    labels = log_probs[:, :, :-1].gather(3, index).squeeze(3)
    # Skewed by one position a frame, so that an anti-diagonal is a row: [n, t + u, u].
    steps = frames + positions - 1
    t = torch.arange(steps).unsqueeze(1) - torch.arange(positions)
    inside = (t >= 0) & (t < frames)
    rows, columns = t.clamp(0, frames - 1), torch.arange(positions)
    low = torch.finfo(logits.dtype).min / 4
    blanks = blanks[:, rows, columns].masked_fill(~inside, low)
    labels = labels[:, rows[:, :-1], columns[:-1]].masked_fill(~inside[:, :-1], low)
    alpha = logits.new_full((batch, positions), low)
    alpha[:, 0] = 0
    for step in range(steps - 1):
        by_label = F.pad(alpha[:, :-1] + labels[:, step], (1, 0), value=low)
        alpha = torch.logaddexp(alpha + blanks[:, step], by_label)
    return -(alpha[:, -1] + blanks[:, -1, -1]).mean()


clock = time.perf_counter


_title = ""  # of the table that is being printed
_rows: list[dict[str, object]] = []


def begin(title: str) -> None:
    """Prints the title of a table."""
    global _title
    _title = title
    print(title)


def timed(run: Callable[[], object]) -> float:
    start = clock()
    run()
    return 1e3 * (clock() - start)


def compare(name: str, mine: Callable[[], object], rivals: dict[str, Callable[[], object]], repeats: int) -> None:
    runs = {"prnn": mine, **rivals}
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {key: [] for key in runs}
    for _ in range(repeats):
        for key, run in runs.items():
            times[key].append(timed(run))
    medians = {key: statistics.median(values) for key, values in times.items()}
    others = "".join(f"  {key} {medians[key]:9.3f} ({medians[key] / medians['prnn']:5.2f}x)" for key in rivals)
    _rows.append({"loss": _title, "shape": name, **{f"{key}_ms": median for key, median in medians.items()}})
    print(f"{name:28s} prnn {medians['prnn']:9.3f} ms{others}", flush=True)


def backward(loss: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(loss(x), x)


def without_gradient(loss: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], object]:
    return lambda: loss(x.detach())


def bench_ctc(repeats: int, quick: bool, run: Callable[..., Callable[[], object]] = backward) -> None:
    begin(f"CTC, {'forward and backward' if run is backward else 'costs alone'}, float32 logits (T, N, V)")
    for batch, frames, symbols, classes in CTC_SHAPES[::2] if quick else CTC_SHAPES:
        x = torch.randn(frames, batch, classes, requires_grad=True)
        targets = torch.randint(1, classes, (batch, symbols))
        lengths = torch.full((batch,), frames), torch.full((batch,), symbols)
        compare(
            f"N={batch} T={frames} L={symbols} V={classes}",
            run(lambda x, t=targets, n=lengths: prnn.ctc_loss(x, t, *n), x),
            {"torch": run(lambda x, t=targets, n=lengths: F.ctc_loss(x.log_softmax(2), t, *n), x)},
            repeats,
        )


def rnnt_rivals(targets: Tensor, frames: Tensor, symbols: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    rivals: dict[str, Callable[[Tensor], Tensor]] = {"plain torch": lambda x: plain_rnnt_loss(x, targets)}
    try:
        from torchaudio.functional import rnnt_loss

        rivals["torchaudio"] = lambda x: rnnt_loss(x, targets.int(), frames.int(), symbols.int(), blank=0)
    except ImportError:
        pass
    try:
        from warprnnt_numba import RNNTLossNumba

        loss = RNNTLossNumba(blank=0, reduction="mean")
        rivals["warprnnt_numba"] = lambda x: loss(x, targets.int(), frames.int(), symbols.int())
    except ImportError:
        pass
    return rivals


def bench_rnnt(repeats: int, quick: bool) -> None:
    begin("RNN-T, forward and backward, float32 logits (N, T, U + 1, V)")
    for batch, frames, symbols, classes in RNNT_SHAPES[:2] if quick else RNNT_SHAPES:
        x = torch.randn(batch, frames, symbols + 1, classes, requires_grad=True)
        targets = torch.randint(1, classes, (batch, symbols))
        lengths = torch.full((batch,), frames), torch.full((batch,), symbols)
        rivals = rnnt_rivals(targets, *lengths)
        mine = prnn.rnnt_loss(x, targets, *lengths, blank=0)
        for name, rival in rivals.items():
            torch.testing.assert_close(mine, rival(x), rtol=1e-4, atol=0, msg=f"{name} computes something else")
        compare(
            f"N={batch} T={frames} U={symbols} V={classes}",
            backward(lambda x, t=targets, n=lengths: prnn.rnnt_loss(x, t, *n, blank=0), x),
            {name: backward(rival, x) for name, rival in rivals.items()},
            repeats,
        )


def bench_durations(repeats: int, quick: bool) -> None:
    for family in FAMILIES:
        begin(f"{family}, forward and backward, float32 logits (N, T, U + 1, V and durations or big blanks)")
        for batch, frames, symbols, classes in DURATION_SHAPES[:1] if quick else DURATION_SHAPES:
            x, losses = problem(family, batch, frames, symbols, classes, "cpu")
            mine = losses.pop("prnn")
            torch.testing.assert_close(mine(x), losses["plain torch"](x), rtol=1e-4, atol=0)
            rivals = {name: backward(rival, x) for name, rival in losses.items()}
            compare(f"N={batch} T={frames} U={symbols} V={classes}", backward(mine, x), rivals, repeats)


def main() -> None:
    parser = command_lines.losses_cpu()
    options = parser.parse_args()
    if options.cpu_time:
        global clock
        clock = time.process_time
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {clock.__name__}")
    bench_ctc(options.repeats, options.quick)
    if options.ctc_costs:
        bench_ctc(options.repeats, options.quick, without_gradient)
    else:
        bench_rnnt(options.repeats, options.quick)
        bench_durations(options.repeats, options.quick)
    if options.json:
        write_rows(options.json, _rows, processor())

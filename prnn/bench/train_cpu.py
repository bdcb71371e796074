"""A training step of the digits recipe's model on the CPU, part by part (options: command_lines.train_cpu)."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import prnn
from prnn.bench import command_lines
from prnn.bench.json_rows import processor, write_rows
from prnn.transducer import Transducer, TransducerConfig

SYMBOLS = 17


def make_batch(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, their lengths, targets, their lengths."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(100, 401, (size,), generator=generator)
    target_lengths = (lengths // 16).clamp(5, 25)
    features = torch.randn(size, int(lengths.max()), 80, generator=generator)
    targets = torch.randint(1, SYMBOLS, (size, int(target_lengths.max())), generator=generator)
    return features, lengths, targets, target_lengths


def step(
    model: Transducer, optimizer: torch.optim.Optimizer, batch: tuple[torch.Tensor, ...], clock: Callable[[], float]
) -> dict[str, float]:
    """One training step; returns the seconds of its parts."""
    features, lengths, targets, target_lengths = batch
    assert model.ctc_output is not None
    times = {}

    def timed(part: str, began: float) -> float:
        now = clock()
        times[part] = now - began
        return now

    start = now = clock()
    encoder_out, encoder_lengths = model.encoder(features, lengths)
    now = timed("encoder", now)
    logits = model.joiner(encoder_out, model.predictor(targets))
    now = timed("predictor and joiner", now)
    loss = prnn.rnnt_loss(logits, targets, encoder_lengths, target_lengths, blank=0)
    now = timed("RNN-T loss", now)
    ctc_logits = model.ctc_output(encoder_out).transpose(0, 1)
    loss = loss + 0.3 * prnn.ctc_loss(ctc_logits, targets, encoder_lengths, target_lengths)
    now = timed("CTC loss", now)
    loss.backward()
    now = timed("backward", now)
    optimizer.step()
    optimizer.zero_grad()
    now = timed("AdamW", now)
    times["whole step"] = now - start
    return times


def layers_step(layers: torch.nn.Module, packed: PackedSequence) -> None:
    """Forward and backward of recurrent layers."""
    output, _ = layers(packed)
    output.data.sum().backward()


def main() -> None:
    parser = command_lines.train_cpu()
    options = parser.parse_args()
    torch.set_num_threads(1 if options.cpu_time else options.threads)
    clock = time.thread_time if options.cpu_time else time.perf_counter

    config = TransducerConfig(
        vocab_size=SYMBOLS,
        frame_stack=8,
        frame_stride=4,
        encoder_layers=2,
        encoder_hidden=options.hidden,
        predictor="stateless",
        predictor_hidden=128,
        joiner_dim=128,
        ctc_weight=0.3,
    )
    model = Transducer.from_config(config)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = make_batch(options.batch)
    step(model, optimizer, batch, clock)
    parts = defaultdict(list)
    stop = time.perf_counter() + options.seconds
    while not parts or time.perf_counter() < stop:
        for part, seconds in step(model, optimizer, batch, clock).items():
            parts[part].append(1000 * seconds)
    print(f"{options.batch} utterances, {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, ms:")
    for part, values in parts.items():
        print(f"  {part:22}{statistics.median(values):8.1f}")
    audio = float(batch[1].sum()) / 100
    print(f"  {audio / statistics.median(parts['whole step']) * 1000:.0f} seconds of audio a second")

    ours = prnn.nn.LSTM(640, options.hidden, 2)
    theirs = torch.nn.LSTM(640, options.hidden, 2)
    theirs.load_state_dict(ours.state_dict())
    lengths = (batch[1] + 3) // 4
    x = torch.randn(int(lengths.max()), options.batch, 640)
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    times: tuple[list[float], list[float]] = ([], [])
    stop = time.perf_counter() + options.seconds
    while not times[0] or time.perf_counter() < stop:
        for layers, kept in zip((ours, theirs), times, strict=True):
            began = clock()
            layers_step(layers, packed)
            kept.append(1000 * (clock() - began))
    ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    print("encoder's recurrent layers, forward and backward, ms:")
    print(f"  prnn {statistics.median(times[0]):.1f}, torch {statistics.median(times[1]):.1f}, ratio {ratio:.2f}")
    if options.json:
        row: dict[str, object] = {part: statistics.median(values) for part, values in parts.items()}
        layers = {"prnn_layers": statistics.median(times[0]), "torch_layers": statistics.median(times[1])}
        write_rows(options.json, [{"batch": options.batch, "hidden": options.hidden} | row | layers], processor())

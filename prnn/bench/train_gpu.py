"""A training step of a streaming RNN-T on the GPU: prnn against the same model on torch.nn.LSTM and torchaudio's loss
(options: command_lines.train_gpu)."""

import argparse
import copy
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed import (
    all_gather_object,
    all_reduce,
    barrier,
    destroy_process_group,
    get_world_size,
    init_process_group,
    is_initialized,
)
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import prnn
from prnn.bench import command_lines
from prnn.bench.json_rows import write_rows
from prnn.bench.options import require_gpu
from prnn.distributed import GradientMean
from prnn.transducer import Transducer, TransducerConfig

FRAMES_A_SECOND, SYMBOLS_A_SECOND, STACK = 100, 4, 4
ENCODERS: dict[str, dict[str, int]] = {
    "plain": {"encoder_layers": 5, "encoder_hidden": 1024},
    "projected": {"encoder_layers": 12, "encoder_hidden": 1024, "encoder_projection": 512},
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
Batch = tuple[Tensor, Tensor, Tensor, Tensor]


class WithTorch(nn.Module):
    """A transducer on torch.nn's recurrent layers and torchaudio's loss."""

    def __init__(self, model: Transducer) -> None:
        super().__init__()
        self.model = prnn.convert_back(model)

    def forward(self, features: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
        from torchaudio.functional import rnnt_loss

        encoder_out, lengths = self.model.encoder(features, lengths)
        targets = targets.cuda(non_blocking=True)
        logits = self.model.joiner(encoder_out, self.model.predictor(targets)).float()
        on_device = (x.int().cuda(non_blocking=True) for x in (lengths, target_lengths))
        loss: Tensor = rnnt_loss(logits, targets.int(), *on_device, blank=0)
        return loss


def make_model(encoder: str, classes: int) -> Transducer:
    torch.manual_seed(0)
    return Transducer.from_config(
        TransducerConfig(
            vocab_size=classes,
            frame_stack=STACK,
            **ENCODERS[encoder],
            predictor="lstm",
            predictor_embedding=640,
            predictor_hidden=640,
            joiner_dim=512,
        )
    ).cuda()


def make_batch(size: int, seconds: float, classes: int) -> Batch:
    """Features on the GPU; lengths, targets and their lengths on the CPU, as a data loader leaves them."""
    frames, symbols = int(seconds * FRAMES_A_SECOND), int(seconds * SYMBOLS_A_SECOND)
    features = torch.randn(size, frames, 80, device="cuda")
    targets = torch.randint(1, classes, (size, symbols))
    return features, torch.full((size,), frames), targets, torch.full((size,), symbols)


def measure(
    model: nn.Module, batch: Batch, precision: str, seconds: float, average: Callable[[], None] | None = None
) -> dict[str, float]:
    """Median milliseconds of a training step and peak MiB; `average` comes after backward."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")

    def step() -> None:
        with torch.autocast("cuda", DTYPES[precision], enabled=precision != "fp32"):
            loss = model(*batch)
        scaler.scale(loss).backward()
        if average is not None:
            average()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / 2**20
    # All processes take the same number of steps, for they wait for one another.
    began = time.monotonic()
    step()
    torch.cuda.synchronize()
    taken = torch.tensor(time.monotonic() - began, device="cuda")
    if is_initialized():
        torch.distributed.all_reduce(taken, torch.distributed.ReduceOp.MAX)
    events = [
        torch.cuda.Event(enable_timing=True) for _ in range(min(100, max(5, math.ceil(seconds / float(taken)))) + 1)
    ]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    times = [before.elapsed_time(after) for before, after in itertools.pairwise(events)]
    return {"ms": round(statistics.median(times), 2), "MiB": round(peak)}


def attempt(run: Callable[[], dict[str, float]]) -> dict[str, float] | str:
    """The measurement, or why there is none."""
    try:
        return run()
    except torch.OutOfMemoryError:
        return "out of memory"
    except (ImportError, prnn.NotSupportedError) as error:
        return str(error)
    finally:
        torch.cuda.empty_cache()


def against_torch(model: Transducer, batch: Batch, classes: int, options: argparse.Namespace) -> dict[str, object]:
    """prnn, the rival, and the ratio of their times."""

    def time_of(module: nn.Module) -> dict[str, float] | str:
        return attempt(lambda: measure(module, batch, options.precision, options.measure))

    theirs = WithTorch(copy.deepcopy(model))
    ours = time_of(model)
    size, frames, symbols = len(batch[0]), batch[1][0].item(), batch[3][0].item()
    logits = size * math.ceil(frames / STACK) * (symbols + 1) * classes
    rival = time_of(theirs) if logits < 2**31 else f"cannot index {logits / 1e9:.1f}e9 logits"
    row: dict[str, object] = {"prnn": ours, "torch, torchaudio": rival}
    if isinstance(ours, dict) and isinstance(rival, dict):
        row["ratio"] = round(rival["ms"] / ours["ms"], 2)
    return row


def milliseconds_of(call: Callable[[], object], calls: int = 20) -> float:
    """The mean of calls one after the other, on an idle GPU."""
    for _ in range(3):
        call()
    barrier()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    for _ in range(calls):
        call()
    events[1].record()
    torch.cuda.synchronize()
    return round(events[0].elapsed_time(events[1]) / calls, 3)


def together(model: Transducer, batch: Batch, options: argparse.Namespace) -> dict[str, object]:
    """This process' GPU alone and with the others."""

    def time_of(module: nn.Module, average: Callable[[], None] | None = None) -> dict[str, float] | str:
        barrier()
        return attempt(lambda: measure(module, batch, options.precision, options.measure, average))

    dtype = torch.bfloat16 if options.precision == "bf16" else None
    parameters = sum(parameter.numel() for parameter in model.parameters())
    gradients = torch.zeros(parameters, dtype=dtype or torch.float32, device="cuda")
    row: dict[str, object] = {"GPUs": get_world_size(), "parameters": parameters}
    alone = row["alone"] = time_of(copy.deepcopy(model))
    replicas = DistributedDataParallel(copy.deepcopy(model), gradient_as_bucket_view=True)
    if dtype:
        replicas.register_comm_hook(None, bf16_compress_hook)
    row["DistributedDataParallel"] = time_of(replicas)
    del replicas
    average = GradientMean(model, dtype)
    mean = row["GradientMean"] = time_of(model, average)
    row["all-reduce"] = milliseconds_of(lambda: all_reduce(gradients))
    call = row["mean"] = milliseconds_of(average)
    if isinstance(alone, dict) and isinstance(mean, dict):
        each: list[float] = [0.0] * get_world_size()
        all_gather_object(each, alone["ms"])
        row["each"] = each
        exposed = mean["ms"] - max(each)
        row["exposed"], row["hidden"] = round(exposed, 2), round(1 - exposed / call, 2)
        row["scaling"] = round(get_world_size() * statistics.harmonic_mean(each) / mean["ms"], 2)
    return row


def measure_size(encoder: str, classes: int, size: int, options: argparse.Namespace) -> dict[str, object]:
    """One line of the table."""
    model = make_model(encoder, classes)
    batch = make_batch(size, options.seconds, classes)
    case: dict[str, object] = {"encoder": encoder, "V": classes, "N": size}
    return case | (
        together(model, batch, options) if is_initialized() else against_torch(model, batch, classes, options)
    )


def main() -> None:
    parser = command_lines.train_gpu()
    options = parser.parse_args()
    require_gpu(parser)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    speaks = int(os.environ.get("RANK", 0)) == 0
    head = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, prnn {prnn.__version__}, {options.precision}"
    if speaks:
        print(f"{head}, utterances of {options.seconds:g} s: ms a step (peak MiB)")
    rows = []
    for encoder, classes, size in itertools.product(options.encoder, options.classes, options.batch):
        rows.append(measure_size(encoder, classes, size, options))
        cells = [
            f"{name} {cell['ms']:.2f} ({cell['MiB']})" if isinstance(cell, dict) else f"{name} {cell}"
            for name, cell in rows[-1].items()
        ]
        if speaks:
            print("  " + ", ".join(cells), flush=True)
            if options.json:  # after each row: what has been measured stays if a later one fails
                write_rows(options.json, rows)
    if is_initialized():
        destroy_process_group()

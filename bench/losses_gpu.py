"""Losses on the GPU, forward and backward, beside every rival that can be imported: milliseconds (median) and peak MiB.

    python bench/losses_gpu.py [--only rnnt,ctc] [--json FILE]

Rivals: torchaudio.functional.rnnt_loss, warp_rnnt, torch.nn.functional.ctc_loss (torch's own and cuDNN's). Every cell
is measured here, one after the other in one process; "ratio" is the best rival's time over prnn's.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

import prnn

RNNT_SHAPES = [
    *[(n, 150, 40, 28) for n in (1, 16, 128)],
    *[(n, 150, 20, 5000) for n in (1, 16, 64, 128)],
    *[(n, 1500, 300, 50) for n in (1, 16, 64, 128)],
]
CTC_SHAPES = [*[(n, 150, 40, 28) for n in (1, 16, 64, 128)], *[(n, 150, 20, 5000) for n in (1, 16, 64, 128)]]


def measure(step: Callable[[], None], seconds: float = 0.4) -> tuple[float, float]:
    """Median milliseconds of a step, launched as a training loop would, and peak MiB above what was held before it."""
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - held) / 2**20
    step()
    times: list[float] = []
    begin = time.monotonic()
    while len(times) < 5 or (time.monotonic() - begin < seconds and len(times) < 200):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times), peak


def attempt(name: str, step: Callable[[], None]) -> tuple[float, float] | None:
    try:
        return measure(step)
    except Exception as error:
        print(f"    {name}: {type(error).__name__}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
        return None


def rnnt_steps(n: int, t: int, u: int, v: int) -> dict[str, Callable[[], None]]:
    logits = torch.randn(n, t, u + 1, v, device="cuda", requires_grad=True)
    targets = torch.randint(1, v, (n, u), device="cuda", dtype=torch.int32)
    frames = torch.full((n,), t, device="cuda", dtype=torch.int32)
    lengths = torch.full((n,), u, device="cuda", dtype=torch.int32)

    def step(loss: Callable[..., torch.Tensor]) -> Callable[[], None]:
        def run() -> None:
            loss(logits, targets, frames, lengths).backward()
            logits.grad = None

        return run

    steps = {"prnn": step(lambda *a: prnn.rnnt_loss(*a, blank=0))}
    if importlib.util.find_spec("torchaudio") is not None:
        from torchaudio.functional import rnnt_loss

        steps["torchaudio"] = step(lambda *a: rnnt_loss(*a, blank=0))
    if importlib.util.find_spec("warp_rnnt") is not None:
        import warp_rnnt

        def gathered(x: torch.Tensor, *a: torch.Tensor) -> torch.Tensor:
            return warp_rnnt.rnnt_loss(x.log_softmax(-1), *a, blank=0, gather=True, reduction="mean")

        steps["warp_rnnt"] = step(gathered)
    return steps


def ctc_steps(n: int, t: int, u: int, v: int) -> dict[str, Callable[[], None]]:
    logits = torch.randn(t, n, v, device="cuda", requires_grad=True)
    targets = torch.randint(1, v, (n, u), device="cuda", dtype=torch.int32)
    frames = torch.full((n,), t, device="cuda", dtype=torch.int32)
    lengths = torch.full((n,), u, device="cuda", dtype=torch.int32)
    on_host = targets.cpu().flatten(), tuple(frames.tolist()), tuple(lengths.tolist())

    def ours() -> None:
        prnn.ctc_loss(logits, targets, frames, lengths).backward()
        logits.grad = None

    def native() -> None:
        torch.nn.functional.ctc_loss(logits.log_softmax(-1), targets.long(), frames, lengths).backward()
        logits.grad = None

    def cudnn() -> None:  # chosen by torch for int32 targets on the host, one after the other, with blank 0
        torch.nn.functional.ctc_loss(logits.log_softmax(-1), *on_host).backward()
        logits.grad = None

    return {"prnn": ours, "torch": native, "torch, cuDNN": cudnn}


def table(title: str, shapes: list[tuple[int, ...]], steps: Callable[..., dict[str, Callable[[], None]]]) -> list[dict]:
    rows = []
    print(f"\n{title}: ms (peak MiB)")
    for n, t, u, v in shapes:
        row: dict = {"loss": title, "N": n, "T": t, "U": u, "V": v}
        # Rivals index with 32 bits and would end the process' use of the GPU by an illegal access.
        small = n * t * (u + 1) * v < 2**31
        logits_bytes = 4 * n * t * v * (u + 1 if title.startswith("RNN-T") else 1)
        if 3.5 * logits_bytes > torch.cuda.get_device_properties(0).total_memory:
            print(f"  N={n} T={t} U={u} V={v}: does not fit")
            continue
        for name, step in steps(n, t, u, v).items():
            if name != "prnn" and not small:
                continue
            measured = attempt(name, step)
            if measured is not None:
                row[name] = {"ms": round(measured[0], 4), "MiB": round(measured[1], 1)}
        rivals = [row[name]["ms"] for name in row if isinstance(row[name], dict) and name != "prnn"]
        if rivals and "prnn" in row:
            row["ratio"] = round(min(rivals) / row["prnn"]["ms"], 2)
        cells = ", ".join(f"{k} {c['ms']:.3f} ({c['MiB']:.0f})" for k, c in row.items() if isinstance(c, dict))
        print(f"  N={n} T={t} U={u} V={v}: {cells}; ratio {row.get('ratio', '-')}", flush=True)
        rows.append(row)
        torch.cuda.empty_cache()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="rnnt,ctc", help="which tables (%(default)s)")
    parser.add_argument("--json", help="file to write the rows to")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, prnn {prnn.__version__}")
    rows = []
    if "rnnt" in options.only:
        rows += table("RNN-T from logits, float32", RNNT_SHAPES, rnnt_steps)
    if "ctc" in options.only:
        rows += table("CTC from logits, float32", CTC_SHAPES, ctc_steps)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(
                {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, file, indent=1
            )


if __name__ == "__main__":
    main()

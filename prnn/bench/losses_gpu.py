"""Losses on the GPU beside every rival that can be imported (options: command_lines.losses_gpu)."""

import importlib.util
import re
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

import prnn
from prnn.bench import command_lines
from prnn.bench.duration_losses import DURATIONS, FAMILIES, problem
from prnn.bench.json_rows import write_rows
from prnn.bench.options import require_gpu

RNNT_SHAPES = [
    *[(n, 150, 40, 28) for n in (1, 16, 128)],
    *[(n, 150, 20, 5000) for n in (1, 16, 64, 128)],
    *[(n, 1500, 300, 50) for n in (1, 16, 64, 128)],
]
CTC_SHAPES = [*[(n, 150, 40, 28) for n in (1, 16, 64, 128)], *[(n, 150, 20, 5000) for n in (1, 16, 64, 128)]]
DURATION_SHAPES = [(n, 188, 60, 1025) for n in (1, 16, 64)] + [(16, 1500, 300, 50)]
JOINT_TDT_SHAPES = [(8, 150, 40, 8193), (16, 188, 60, 1025)]  # the first: Parakeet-TDT's vocabulary


def measure(step: Callable[[], None], seconds: float = 0.3) -> tuple[float, float]:
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


def attempt(name: str, step: Callable[[], None], seconds: float = 0.3) -> tuple[float, float] | None:
    try:
        return measure(step, seconds)
    except Exception as error:
        print(f"    {name}: {type(error).__name__}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
        return None


class Given(torch.autograd.Function):
    """A tensor as if a layer had just made it, for gradients that are written in its place."""

    @staticmethod
    def forward(ctx, seed: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return values.detach()

    @staticmethod
    def backward(ctx, gradients: torch.Tensor) -> tuple[None, None]:
        return None, None


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
    if logits.numel() >= 2**28:
        seed = torch.zeros((), device="cuda", requires_grad=True)
        values = logits.detach()
        steps["prnn, in place"] = lambda: prnn.rnnt_loss(
            Given.apply(seed, values), targets, frames, lengths, blank=0, inplace=True
        ).backward()
    if importlib.util.find_spec("torchaudio") is not None:
        from torchaudio.functional import rnnt_loss

        steps["torchaudio"] = step(lambda *a: rnnt_loss(*a, blank=0))
    if importlib.util.find_spec("warp_rnnt") is not None:
        import warp_rnnt

        def warp(gather: bool) -> Callable[..., torch.Tensor]:
            options = dict(blank=0, gather=gather, reduction="mean")
            return lambda x, *a: warp_rnnt.rnnt_loss(x.log_softmax(-1), *a, **options)

        steps["warp_rnnt"], steps["warp_rnnt, gather"] = step(warp(False)), step(warp(True))
    if importlib.util.find_spec("fast_rnnt") is not None:
        import fast_rnnt

        boundary = torch.tensor([0, 0, u, t], device="cuda").expand(n, 4).contiguous()
        steps["fast_rnnt"] = step(lambda x, *_: fast_rnnt.rnnt_loss(x, targets.long(), 0, boundary))
    if importlib.util.find_spec("warprnnt_numba") is not None:
        from warprnnt_numba import RNNTLossNumba

        steps["warprnnt_numba"] = step(RNNTLossNumba(blank=0))
    if importlib.util.find_spec("apex") is not None:
        from apex.contrib.transducer import TransducerLoss

        apex = TransducerLoss()
        steps["apex"] = step(lambda *a: apex(*a, 0).mean())
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
    for name, step in steps(*shapes[0]).items():  # what a process's first calls take longer is nobody's
        attempt(name, step)
    for n, t, u, v in shapes:
        row: dict = {"loss": title, "N": n, "T": t, "U": u, "V": v}
        # Rivals index with 32 bits and would end the process' use of the GPU by an illegal access.
        small = n * t * (u + 1) * v < 2**31
        logits_bytes = 4 * n * t * v * (u + 1 if title.startswith("RNN-T") else 1)
        if 3.5 * logits_bytes > torch.cuda.get_device_properties(0).total_memory:
            print(f"  N={n} T={t} U={u} V={v}: does not fit")
            continue
        for name, step in steps(n, t, u, v).items():
            if not name.startswith("prnn") and not small:
                continue
            measured = attempt(name, step)
            if measured is not None:
                row[name] = {"ms": round(measured[0], 4), "MiB": round(measured[1], 1)}
        rivals = [row[name]["ms"] for name in row if isinstance(row[name], dict) and not name.startswith("prnn")]
        if rivals and "prnn" in row:
            row["ratio"] = round(min(rivals) / row["prnn"]["ms"], 2)
        cells = ", ".join(f"{k} {c['ms']:.3f} ({c['MiB']:.0f})" for k, c in row.items() if isinstance(c, dict))
        print(f"  N={n} T={t} U={u} V={v}: {cells}; ratio {row.get('ratio', '-')}", flush=True)
        rows.append(row)
        torch.cuda.empty_cache()
    return rows


def joint_batches(path: str) -> dict[str, list[tuple[list[int], list[int]]]]:
    """Frame and label counts of batches 8 to 23, of 30 rows, and sorted with up to 10,000 frames."""
    shapes = np.load(path)
    frames, labels = shapes["num_frames"].astype(int), shapes["num_labels"].astype(int)
    plain = [(frames[i : i + 30].tolist(), labels[i : i + 30].tolist()) for i in range(8 * 30, 24 * 30, 30)]
    frames, labels = np.sort(frames)[::-1], np.sort(labels)[::-1]
    begin, batches = 0, []
    while len(batches) < 24:
        size = max(1, 10000 // int(frames[begin]))
        batches.append((frames[begin : begin + size].tolist(), labels[begin : begin + size].tolist()))
        begin += size
    return {"batch 30": plain, "sorted": batches[8:]}


def joint_steps(frames: list[int], labels: list[int], half: bool) -> dict[str, Callable[[], None]]:
    n, t, u, d, v = len(frames), max(frames), max(labels), 512, 500
    encoder = torch.randn(n, t, d, device="cuda", requires_grad=True)
    predictor = torch.randn(n, u + 1, d, device="cuda", requires_grad=True)
    output = torch.nn.Linear(d, v).cuda()
    targets = torch.randint(1, v, (n, u), device="cuda", dtype=torch.int32)
    on_host = torch.tensor(frames), torch.tensor(labels)
    on_device = tuple(x.int().cuda() for x in on_host)
    leaves = [encoder, predictor, *output.parameters()]

    def step(loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
        def run() -> None:
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                value = loss()
            value.backward()
            for leaf in leaves:
                leaf.grad = None

        return run

    def ours() -> torch.Tensor:
        return prnn.joint_rnnt_loss(encoder, predictor, output.weight, output.bias, targets, *on_host, blank=0)

    def explicit(loss: Callable[..., torch.Tensor]) -> Callable[[], torch.Tensor]:
        return lambda: loss(
            output((encoder[:, :, None] + predictor[:, None]).tanh()).float(), targets, *on_device, blank=0
        )

    steps = {"prnn": step(ours), "prnn, explicit logits": step(explicit(prnn.rnnt_loss))}
    if importlib.util.find_spec("torchaudio") is not None:
        from torchaudio.functional import rnnt_loss

        steps["torchaudio"] = step(explicit(rnnt_loss))

    boundary = torch.zeros(n, 4, dtype=torch.int64)
    boundary[:, 2], boundary[:, 3] = on_host[1], on_host[0]
    boundary = boundary.cuda()

    def pruned() -> torch.Tensor:
        with torch.autocast("cuda", enabled=False):
            _, occupation = prnn.rnnt_loss_smoothed(
                predictor, encoder, targets, 0, 0.25, 0.0, boundary=boundary, reduction="sum", return_grad=True
            )
            ranges = prnn.get_rnnt_prune_ranges(*occupation, boundary, 5)
        return prnn.joint_rnnt_loss(
            encoder, predictor, output.weight, output.bias, targets, *on_device, blank=0, reduction="sum", ranges=ranges
        )

    steps["prnn, pruned to 5"] = step(pruned)
    return steps


def joint_error(frames: list[int], labels: list[int], half: bool) -> float:
    """The largest error of a gradient relative to float64, in norm, of the four of joint_rnnt_loss."""
    n, t, u, d, v = len(frames), max(frames), max(labels), 512, 500
    sizes = [(n, t, d), (n, u + 1, d), (v, d), (v,)]
    scales = [1, 1, d**-0.5, 1]
    leaves = [
        torch.randn(*size, device="cuda").mul_(scale).requires_grad_()
        for size, scale in zip(sizes, scales, strict=True)
    ]
    batch = torch.randint(1, v, (n, u), device="cuda"), torch.tensor(frames), torch.tensor(labels)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        ours = torch.autograd.grad(prnn.joint_rnnt_loss(*leaves, *batch, blank=0), leaves)
    wanted = torch.autograd.grad(prnn.joint_rnnt_loss(*exact, *batch, blank=0), exact)
    return max(float((x.double() - y).norm() / y.norm()) for x, y in zip(ours, wanted, strict=True))


def joint_table(path: str, every: int) -> list[dict]:
    rows = []
    print(f"\nRNN-T with its joiner, LibriSpeech shapes: ms (peak MiB), mean over {len(range(0, 16, every))} batches")
    for name, batches in joint_batches(path).items():
        for half in (False, True):
            row: dict = {"loss": "RNN-T with joiner", "batches": name, "joiner": "bf16" if half else "float32"}
            for batch in batches[::every]:
                for loss, step in joint_steps(*batch, half).items():
                    row.setdefault(loss, []).append(attempt(loss, step, 0.1))
                del step
                torch.cuda.empty_cache()
            for loss, cells in list(row.items()):
                if not isinstance(cells, list):
                    continue
                del row[loss]
                if all(cells):
                    row[loss] = {
                        "ms": round(statistics.mean(cell[0] for cell in cells), 3),
                        "MiB": round(max(cell[1] for cell in cells), 1),
                    }
            row["largest error"] = float(f"{joint_error(*batches[0], half):.1e}")
            if "torchaudio" in row:
                row["ratio"] = round(row["torchaudio"]["ms"] / row["prnn"]["ms"], 2)
            cells = ", ".join(f"{k} {c['ms']:.2f} ({c['MiB']:.0f})" for k, c in row.items() if isinstance(c, dict))
            print(
                f"  {name}, {row['joiner']}: {cells}; largest error {row['largest error']}; "
                f"ratio {row.get('ratio', '-')}",
                flush=True,
            )
            rows.append(row)
    return rows


def duration_rows(family: str) -> list[dict]:
    """TDT or multi-blank beside the plain torch version, the rival, and rnnt_loss on the same logits, a yardstick."""
    rows = []
    print(f"\n{family}, from logits, float32: ms (peak MiB)")
    for n, t, u, v in DURATION_SHAPES:
        row: dict = {"loss": family, "N": n, "T": t, "U": u, "V": v}
        logits, losses = problem(family, n, t, u, v, "cuda")

        def step(loss: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor = logits) -> Callable[[], None]:
            return lambda: torch.autograd.grad(loss(x), x) and None

        for name, loss in losses.items():
            measured = attempt(name, step(loss))
            if measured is not None:
                row[name] = {"ms": round(measured[0], 4), "MiB": round(measured[1], 1)}
        if "prnn" in row and "plain torch" in row:
            row["ratio"] = round(row["plain torch"]["ms"] / row["prnn"]["ms"], 2)
        cells = ", ".join(f"{k} {c['ms']:.3f} ({c['MiB']:.0f})" for k, c in row.items() if isinstance(c, dict))
        print(f"  N={n} T={t} U={u} V={v}: {cells}; ratio {row.get('ratio', '-')}", flush=True)
        rows.append(row)
    return rows


def joint_tdt_rows() -> list[dict]:
    """TDT with its joiner of 640 units beside the logits' product and their loss, and RNN-T with a joiner of as many
    rows."""
    rows = []
    print("\nTDT with its joiner: ms (peak MiB)")
    for n, t, u, v in JOINT_TDT_SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            row: dict = {"loss": "TDT with joiner", "N": n, "T": t, "U": u, "V": v, "joiner": str(dtype)[6:]}
            sizes = (n, t, 640), (n, u + 1, 640), (v + len(DURATIONS), 640), (v + len(DURATIONS),)
            leaves = [torch.randn(*size, device="cuda", dtype=dtype) for size in sizes]
            leaves[2] *= 640**-0.5
            leaves = [leaf.requires_grad_() for leaf in leaves]
            targets = torch.randint(0, v - 1, (n, u), device="cuda")
            batch = targets, torch.full((n,), t), torch.full((n,), u)

            def step(
                loss: Callable[..., torch.Tensor], x: list[torch.Tensor] = leaves, batch: tuple = batch, v: int = v
            ) -> Callable[[], None]:
                return lambda: torch.autograd.grad(loss(*x, *batch, v - 1), x) and None

            def from_logits(
                encoder: torch.Tensor, predictor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *rest: object
            ) -> torch.Tensor:
                active = (encoder[:, :, None] + predictor[:, None]).tanh()
                return prnn.tdt_loss(torch.nn.functional.linear(active, weight, bias), *rest, DURATIONS)

            losses = {
                "prnn": lambda *x: prnn.joint_tdt_loss(*x, DURATIONS),
                "prnn.joint_rnnt_loss": prnn.joint_rnnt_loss,
                "prnn.tdt_loss": from_logits,
            }
            for name, loss in losses.items():
                measured = attempt(name, step(loss))
                if measured is not None:
                    row[name] = {"ms": round(measured[0], 4), "MiB": round(measured[1], 1)}
            cells = ", ".join(f"{k} {c['ms']:.3f} ({c['MiB']:.0f})" for k, c in row.items() if isinstance(c, dict))
            print(f"  N={n} T={t} U={u} V={v}, {row['joiner']}: {cells}", flush=True)
            rows.append(row)
            torch.cuda.empty_cache()
    return rows


def kernel_times(step: Callable[[], None], steps: int = 5) -> dict[str, float]:
    """Microseconds of each kernel in a step, by torch's profiler."""
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for row in profile.key_averages():
        found = re.search(r"::(\w+)_kernel\b", row.key) if "prnn::" in row.key else None
        name = found[1].removeprefix("short_") if found else "torch"
        times[name] = times.get(name, 0.0) + row.device_time_total / steps
    return {name: round(time, 1) for name, time in times.items() if time > 0}


def kernel_table(
    title: str, shapes: list[tuple[int, ...]], steps: Callable[..., dict[str, Callable[[], None]]]
) -> list[dict]:
    rows = []
    print(f"\n{title}: us of each kernel")
    for n, t, u, v in shapes:
        times = kernel_times(steps(n, t, u, v)["prnn"])
        print(f"  N={n} T={t} U={u} V={v}: {', '.join(f'{name} {time}' for name, time in times.items())}", flush=True)
        rows.append({"loss": title, "N": n, "T": t, "U": u, "V": v, "kernels": times})
        torch.cuda.empty_cache()
    return rows


class Empty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.new_empty(())

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(ctx.saved_tensors[0])


def empty_step() -> Callable[[], None]:
    x = torch.randn(16, 28, device="cuda", requires_grad=True)

    def run() -> None:
        Empty.apply(x).backward()
        x.grad = None

    return run


def loop_time(step: Callable[[], None], count: int = 50) -> float:
    """Microseconds a step of `count` of them, one after the other."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count * 1e6


def replayed_time(name: str, step: Callable[[], None], count: int = 50) -> float | None:
    """Microseconds a step of a CUDA graph that is replayed, which is the GPU's time; None for a step of which no graph
    can be made, because it waits for the GPU."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(stream):
            step()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            step()
        return min(loop_time(graph.replay, count) for _ in range(5))
    except RuntimeError as error:
        print(f"    {name}, as a graph: {str(error).splitlines()[0][:120]}", file=sys.stderr)
        return None


def loop_turns(steps: dict[str, Callable[[], None]], threads: bool, turns: int) -> dict[str, list[float]]:
    """`loop_time` of each, in turns; threads: whether backward() has threads of its own for the GPU's nodes."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    with torch.autograd.set_multithreading_enabled(threads):
        for _ in range(turns + 1):  # the first is a warm-up
            for name, step in steps.items():
                times[name].append(loop_time(step))
    return {name: found[1:] for name, found in times.items()}


def loop_cells(times: dict[str, list[float]]) -> dict:
    """The least and the median of each; the ratio of the best rival's least to prnn's, and the median of a turn's."""
    cells: dict = {
        name: {"least": round(min(x), 1), "median": round(statistics.median(x), 1)} for name, x in times.items()
    }
    rivals = [found for name, found in times.items() if not name.startswith(("prnn", "an empty"))]
    if rivals:
        best = [min(found) for found in zip(*rivals, strict=True)]
        cells["ratio"] = round(min(best) / min(times["prnn"]), 2)
        ratios = [rival / ours for rival, ours in zip(best, times["prnn"], strict=True)]
        cells["ratio of a turn"] = round(statistics.median(ratios), 2)
    return cells


def host_table(
    title: str, shapes: list[tuple[int, ...]], steps: Callable[..., dict[str, Callable[[], None]]], turns: int = 24
) -> list[dict]:
    rows = []
    print(f"\n{title}: us a step of a loop that waits for nothing, the least and the median of {turns} turns")
    for n, t, u, v in shapes:
        losses = {**steps(n, t, u, v), "an empty function": empty_step()}
        row: dict = {"loss": title, "N": n, "T": t, "U": u, "V": v}
        for way, threads in (("loop", True), ("loop of one thread", False)):
            row[way] = loop_cells(loop_turns(losses, threads, turns))
        replayed = {name: replayed_time(name, step) for name, step in losses.items()}
        row["graph"] = {name: round(time, 1) for name, time in replayed.items() if time is not None}
        print(f"  N={n} T={t} U={u} V={v}")
        for way in ("loop", "loop of one thread", "graph"):
            cells = [f"{k} {' '.join(map(str, c.values())) if isinstance(c, dict) else c}" for k, c in row[way].items()]
            print(f"    {way}: {', '.join(cells)}", flush=True)
        rows.append(row)
        torch.cuda.empty_cache()
    return rows


def main() -> None:
    parser = command_lines.losses_gpu()
    options = parser.parse_args()
    tables = options.only.split(",")
    for name in tables:
        if name not in ("rnnt", "ctc", "durations", "none"):
            parser.error(f"argument --only: {name!r} is none of rnnt, ctc, durations (with commas) and none")
    require_gpu(parser)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, prnn {prnn.__version__}")
    rows = []
    alone = options.host == "alone"
    for table_name, title, shapes, steps in (
        ("rnnt", "RNN-T from logits, float32", RNNT_SHAPES, rnnt_steps),
        ("ctc", "CTC from logits, float32", CTC_SHAPES, ctc_steps),
    ):
        if table_name in tables:
            if not alone:
                rows += table(title, shapes, steps)
            if options.kernels:
                rows += kernel_table(title, shapes, steps)
            if options.host:
                rows += host_table(title, [shape for shape in shapes if shape[3] == 28], steps)
    if "durations" in tables and not alone:
        for family in FAMILIES:
            rows += duration_rows(family)
        rows += joint_tdt_rows()
    if options.shapes:
        rows += joint_table(options.shapes, options.every)
    if options.json:
        write_rows(options.json, rows)

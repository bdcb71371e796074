"""Recurrent layers on the CPU: prnn.nn's against torch.nn's (options: command_lines.rnn_cpu; sLSTM: rnn_slstm.py)."""

import statistics
import time
from collections.abc import Callable

import torch

import prnn
from prnn.bench import command_lines, rnn_slstm
from prnn.bench.json_rows import processor, write_rows

RUN = 0.5e-3  # seconds, at least

States = torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None


def inference(module: torch.nn.Module, x: torch.Tensor, states: States) -> None:
    with torch.no_grad():
        module(x, states)


def training_step(module: torch.nn.Module, x: torch.Tensor, states: States) -> None:
    module.zero_grad(set_to_none=True)
    output, _ = module(x.detach().requires_grad_(x.requires_grad), states)
    output.backward(torch.ones_like(output))


def make(package: object, cell: str, hidden: int, layers: int, frozen: int, dtype: torch.dtype) -> torch.nn.Module:
    module: torch.nn.Module = getattr(package, cell)(hidden, hidden, layers, dtype=dtype)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(int(name.rpartition("_l")[2]) >= frozen)
    return module


def measure(
    ours: Callable[[], None], theirs: Callable[[], None], seconds: float, clock: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Seconds of a call, in each run, the two in turn and the first to run changing, for about `seconds` in all."""

    def time_calls(call: Callable[[], None], count: int) -> float:
        start = clock()
        for _ in range(count):
            call()
        return (clock() - start) / count

    times: tuple[list[float], list[float]] = ([], [])
    ours(), theirs()
    count = max(1, int(RUN / max(time_calls(ours, 1), time_calls(theirs, 1))))
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(times[0]) < 3:
        order = (0, 1) if len(times[0]) % 2 == 0 else (1, 0)
        for which in order:
            times[which].append(time_calls((ours, theirs)[which], count))
    return times


def main() -> None:
    parser = command_lines.rnn_cpu()
    options = parser.parse_args()
    if not 0 <= options.frozen < options.layers:
        parser.error(f"--frozen is {options.frozen}; it must be 0 to --layers - 1 = {options.layers - 1}")
    threads = 1 if options.cpu_time else options.threads
    clock = time.thread_time if options.cpu_time else time.perf_counter
    torch.set_num_threads(threads)
    unit = "processor time" if options.cpu_time else "time"
    dtype = getattr(torch, options.dtype)
    print(f"{options.dtype}, {options.steps} timesteps, threads {threads}, torch {torch.__version__}; {unit} in ms")
    if options.cells != ["slstm"]:
        print("| cell | H | N | what | prnn | torch | ratio |\n|---|---|---|---|---|---|---|")
    rows: list[dict[str, object]] = []
    for cell in (cell for cell in options.cells if cell != "slstm"):
        for hidden in options.hidden:
            kind = (cell, hidden, options.layers, options.frozen, dtype)
            theirs, ours = make(torch.nn, *kind), make(prnn.nn, *kind)
            ours.load_state_dict(theirs.state_dict())
            for batch in options.batch:
                x = torch.randn(options.steps, batch, hidden, dtype=dtype, requires_grad=options.frozen == 0)
                state = torch.randn(options.layers, batch, hidden, dtype=dtype) if options.state else None
                states = (state, state) if state is not None and cell == "LSTM" else state
                for what in options.what:
                    step = inference if what == "inference" else training_step
                    mine, other = measure(
                        lambda: step(ours, x, states),  # noqa: B023
                        lambda: step(theirs, x, states),  # noqa: B023
                        options.seconds,
                        clock,
                    )
                    median = statistics.median(b / a for a, b in zip(mine, other, strict=True))
                    print(
                        f"| {cell} | {hidden} | {batch} | {what} | {min(mine) * 1e3:.3f} | {min(other) * 1e3:.3f} "
                        f"| {min(other) / min(mine):.2f} ({median:.2f}) |",
                        flush=True,
                    )
                    row = {"cell": cell, "hidden": hidden, "batch": batch, "steps": options.steps, "what": what}
                    times = {"prnn_ms": min(mine) * 1e3, "torch_ms": min(other) * 1e3, "median_ratio": median}
                    rows.append(row | {"dtype": options.dtype, "layers": options.layers} | times)
                    if options.json:
                        write_rows(options.json, rows, processor())
    if "slstm" in options.cells:
        sizes = (options.hidden, options.batch, options.steps, options.what, dtype)
        for row in rnn_slstm.compare_on_cpu(*sizes, lambda *calls: measure(*calls, options.seconds, clock)):
            rows.append(row | {"dtype": options.dtype})
            if options.json:
                write_rows(options.json, rows, processor())

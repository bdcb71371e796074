"""An sLSTM's recurrence on gate inputs, with 4 heads, beside other packages': `prnn bench rnn --cells slstm`.

On the CPU beside the same formulas in torch operations, a loop over the timesteps, and beside xlstm's backend "vanilla"
where xlstm is installed: milliseconds of inference and of a training step, with the gradients of everything, as the
other cells. On a GPU beside flashrnn's backends where it is installed, in microseconds a timestep, prnn's replayed from
a CUDA graph and launched call by call, theirs launched. A backend that cannot be built has its error in its place.
"""

import importlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prnn._slstm import run_gates
from prnn.bench.timing import per_step, time_calls, time_graph

HEADS = 4
FLASHRNN = ("cuda_fused", "cuda", "triton_fused")


def optional(name: str) -> Any:
    """A module, or None where its package is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


class Data:
    """Gate inputs (T, N, 4, heads, D), recurrent weights (heads, 4, D, D), bias (heads, 4, D), and a gradient."""

    def __init__(self, steps: int, batch: int, hidden: int, dtype: torch.dtype, device: str) -> None:
        if hidden % HEADS != 0:
            raise SystemExit(f"--hidden is {hidden}; it must be a multiple of the {HEADS} heads")
        new = {"dtype": dtype, "device": device}
        units = hidden // HEADS
        self.gates = torch.randn(steps, batch, 4, HEADS, units, **new)
        self.recurrent = torch.randn(HEADS, 4, units, units, **new) * units**-0.5 / 2
        self.bias = torch.zeros(HEADS, 4, units, **new)
        self.bias[:, 1] = torch.linspace(3, 6, units, **new)
        self.dy = torch.randn(steps, batch, hidden, **new)

    def leaves(self) -> list[Tensor]:
        return [tensor.detach().requires_grad_() for tensor in (self.gates, self.recurrent, self.bias)]


def ours(data: Data, training: bool) -> Callable[[], None]:
    return _step(data, lambda *leaves: run_gates(*leaves)[0], training)


def written_out(gates: Tensor, recurrent: Tensor, bias: Tensor) -> Tensor:
    """In torch operations."""
    steps, batch, _, heads, units = gates.shape
    x = (gates + bias.transpose(0, 1)).unbind(0)
    kernel = recurrent.flatten(1, 2).transpose(1, 2)  # (heads, D, 4 D)
    h = c = n = m = gates.new_zeros(batch, heads, units)
    outputs = []
    for t in range(steps):
        products = torch.bmm(h.transpose(0, 1), kernel).view(heads, batch, 4, units)
        i, f, z, o = (x[t] + products.permute(1, 2, 0, 3)).unbind(1)
        kept = m + functional.logsigmoid(f)
        m = i if t == 0 else torch.maximum(i, kept)
        forget, new = torch.exp(kept - m).clamp(max=1), torch.exp(i - m)
        c, n = forget * c + new * z.tanh(), forget * n + new
        h = o.sigmoid() * c / n
        outputs.append(h)
    return torch.stack(outputs).flatten(2)


def _step(data: Data, run: Callable[..., Tensor], training: bool) -> Callable[[], None]:
    leaves = data.leaves()

    def infer() -> None:
        with torch.no_grad():
            run(*leaves)

    def train() -> None:
        for leaf in leaves:
            leaf.grad = None
        run(*leaves).backward(data.dy)

    return train if training else infer


def vanilla(data: Data, training: bool) -> Callable[[], None] | None:
    """xlstm's cell, on its own layouts; None where xlstm is not installed."""
    package = optional("xlstm.blocks.slstm.cell")
    if package is None:
        return None
    dtype = str(data.gates.dtype).removeprefix("torch.")
    hidden = data.dy.size(-1)
    options = {"backend": "vanilla", "input_shape": "SBGNH", "output_shape": "SBH", "dtype": dtype}
    cell = package.sLSTMCell(package.sLSTMCellConfig(hidden, HEADS, **options)).to(data.gates.dtype)
    with torch.no_grad():
        cell._recurrent_kernel_.copy_(data.recurrent.flatten(1, 2))
        cell._bias_.copy_(data.bias.transpose(0, 1).flatten())

    def run(gates: Tensor, *_: Tensor) -> Tensor:
        cell.zero_grad(set_to_none=True)
        return cell(gates.flatten(2))[0]

    return _step(data, run, training)


def compare_on_cpu(
    hidden: Sequence[int],
    batches: Sequence[int],
    steps: int,
    kinds: Sequence[str],
    dtype: torch.dtype,
    measure: Callable[[Callable[[], None], Callable[[], None]], tuple[list[float], list[float]]],
) -> Iterator[dict[str, object]]:
    """Prints a table and gives its rows. measure: rnn_cpu.measure() of two calls."""
    print("\n| cell | H | N | what | prnn | beside | ms | ratio |\n|---|---|---|---|---|---|---|---|")
    for size, batch, what in product(hidden, batches, kinds):
        torch.manual_seed(0)
        data = Data(steps, batch, size, dtype, "cpu")
        training = what == "training"
        others = {"torch operations": _step(data, written_out, training), "xlstm vanilla": vanilla(data, training)}
        for name, other in others.items():
            if other is None:
                continue
            mine, theirs = measure(ours(data, training), other)
            median = statistics.median(b / a for a, b in zip(mine, theirs, strict=True))
            row = {"cell": "slstm", "hidden": size, "batch": batch, "steps": steps, "what": what, "beside": name}
            times = {"prnn_ms": min(mine) * 1e3, "other_ms": min(theirs) * 1e3, "median_ratio": median}
            print(
                f"| slstm | {size} | {batch} | {what} | {times['prnn_ms']:.3f} | {name} | {times['other_ms']:.3f} "
                f"| {min(theirs) / min(mine):.2f} ({median:.2f}) |",
                flush=True,
            )
            yield row | times


def compare_on_gpu(
    hidden: Sequence[int], batches: Sequence[int], steps: int, dtype: torch.dtype, repeats: int
) -> Iterator[dict[str, object]]:
    """Prints a table and gives its rows."""
    package = optional("flashrnn")
    names = FLASHRNN if package is not None else ()
    print("\n| cell | H | N | prnn replayed | prnn launched |" + "".join(f" flashrnn {name} |" for name in names))
    print("|---|---|---|---|---|" + "---|" * len(names))
    for size, batch in product(hidden, batches):
        torch.manual_seed(0)
        data = Data(steps, batch, size, dtype, "cuda")
        found: dict[str, tuple[float, float] | str] = {}
        for name, timed in (("replayed", time_graph), ("launched", time_calls)):
            found[name] = tuple(timed(ours(data, training), repeats) for training in (False, True))  # type: ignore[assignment]
        for name in names:
            try:
                calls = [_flashrnn(package, data, name, training) for training in (False, True)]
                for call in calls:
                    call()  # which builds the kernels
                found[name] = tuple(time_calls(call, repeats) for call in calls)  # type: ignore[assignment]
            except Exception as error:  # of compilers, among others
                found[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
        texts = [value if isinstance(value, str) else per_step(value, steps) for value in found.values()]
        print(f"| slstm | {size} | {batch} | {' | '.join(texts)} |", flush=True)
        yield {"cell": "slstm", "hidden": size, "batch": batch, "steps": steps} | found


def _flashrnn(package: Any, data: Data, backend: str, training: bool) -> Callable[[], None]:
    gates = data.gates.transpose(0, 1).contiguous()  # (B, T, G, N, D)
    dtype = str(gates.dtype).removeprefix("torch.")
    leaves = [gates, data.recurrent.transpose(0, 1).contiguous(), data.bias.transpose(0, 1).contiguous()]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    dy = data.dy.transpose(0, 1).unflatten(2, (HEADS, -1)).contiguous()

    def run() -> Tensor:
        return package.flashrnn(*leaves, function="slstm", backend=backend, dtype=dtype)[0][0]

    def infer() -> None:
        with torch.no_grad():
            run()

    def train() -> None:
        for leaf in leaves:
            leaf.grad = None
        run().backward(dy)

    return train if training else infer

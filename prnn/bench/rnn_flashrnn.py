"""Recurrent layers on a GPU: prnn beside FlashRNN in bfloat16 (options: command_lines.rnn_flashrnn)."""

import importlib.util
import math
import sys
from collections.abc import Callable

import torch

import prnn
from prnn._ops._handles import handle
from prnn.bench import command_lines
from prnn.bench.json_rows import write_rows
from prnn.bench.options import MODULES, require_gpu
from prnn.bench.timing import Times, per_step, time_calls, time_graph

POINTS = [("lstm", 512), ("lstm", 768), ("lstm", 1024), ("lstm", 1536), ("rnn", 1024)]
MODES = {"lstm": prnn._C.LSTM, "rnn": prnn._C.RNN_TANH}
FUNCTIONS = {"lstm": "lstm", "rnn": "elman"}  # FlashRNN's names
GATES = {"lstm": 4, "rnn": 1}
BACKENDS = {"cuda_fused": "fused", "cuda": "alternating"}
DTYPE, DEVICE = torch.bfloat16, torch.device("cuda:0")


def time_in_a_row(run: Callable[[], object], repeats: int, calls: int = 5) -> float:
    """Median microseconds of a call that is launched while the one before it runs."""
    run()

    def row() -> None:
        for _ in range(calls):
            run()

    return time_calls(row, repeats) / calls


def time_both(forward: Callable[[], object], train: Callable[[], object], repeats: int) -> Times:
    return time_graph(forward, repeats), time_graph(train, repeats)


def time_module(module: torch.nn.Module, x: torch.Tensor, dy: torch.Tensor, repeats: int) -> Times:
    def forward() -> None:
        with torch.no_grad():
            module(x)

    def train() -> None:
        torch.autograd.grad(module(x)[0], [x, *module.parameters()], dy)

    return time_both(forward, train, repeats)


def time_recurrence(cell: str, x: torch.Tensor, dy: torch.Tensor, repeats: int) -> Times:
    """prnn's layer with PRNN_SKIP_INPUT, through the binding of the C API."""
    steps, batch, hidden = x.shape
    sizes = [batch] * steps
    rnn = prnn._C.Rnn(MODES[cell], prnn._C.BFLOAT16, hidden, 1, hidden, False, skip_input=True)
    rnn.set_backend(prnn._C.PERSISTENT_BACKEND)
    w = (torch.rand(rnn.params_size(), device=DEVICE) - 0.5).mul_(2 / hidden**0.5).to(DTYPE)
    dw, y, dx = torch.zeros_like(w), torch.empty_like(x), torch.empty_like(x)
    hy, cy, dhx, dcx = torch.empty(4, batch, hidden, device=DEVICE, dtype=DTYPE)
    work = torch.empty(rnn.workspace_size(handle(DEVICE), sizes), dtype=torch.uint8, device=DEVICE)
    kept = torch.empty(rnn.reserve_size(handle(DEVICE), sizes), dtype=torch.uint8, device=DEVICE)
    is_lstm = cell == "lstm"
    ends = hy.data_ptr(), cy.data_ptr() if is_lstm else 0
    starts = dhx.data_ptr(), dcx.data_ptr() if is_lstm else 0
    x_, w_, y_, dy_, dx_ = (tensor.data_ptr() for tensor in (x, w, y, dy, dx))
    space, reserve = (work.data_ptr(), work.numel()), (kept.data_ptr(), kept.numel())

    def forward(reserve: tuple[int, int] = (0, 0)) -> None:
        rnn.forward(handle(DEVICE), sizes, x_, 0, 0, w_, y_, *ends, *space, *reserve)

    def train() -> None:
        forward(reserve)
        rnn.backward_data(handle(DEVICE), sizes, y_, dy_, 0, 0, w_, 0, 0, dx_, *starts, *space, *reserve)
        dw.zero_()
        rnn.backward_weights(handle(DEVICE), sizes, x_, 0, y_, dw.data_ptr(), *space, *reserve)

    return time_both(forward, train, repeats)


def flashrnn_runs(cell: str, backend: str, x: torch.Tensor, dy: torch.Tensor) -> list[Callable[[], object]]:
    """Forward and train of the recurrence, then of the layer with its input product."""
    from flashrnn import FlashRNNConfig, flashrnn

    steps, batch, hidden = x.shape
    gates, fused = GATES[cell], backend == "cuda_fused"
    config = FlashRNNConfig(
        backend=backend, function=FUNCTIONS[cell], head_dim=hidden, num_heads=1, batch_size=batch, dtype="bfloat16"
    )
    layout = dict(input_shape="TBHDG", recurrent_shape="HDGP", bias_shape="HDG")
    if not fused:
        layout = dict(input_shape="TBHGD", recurrent_shape="HPGD", bias_shape="HGD")
    shapes = FlashRNNConfig(
        **{name: getattr(config, name) for name in ("backend", "function", "head_dim", "num_heads", "batch_size")},
        **layout,
        output_shape="STBHD",
    )

    def random(*shape: int) -> torch.Tensor:
        values = (torch.rand(shape, device=DEVICE) - 0.5).mul_(2 / hidden**0.5)
        return values.to(DTYPE).requires_grad_()

    last = (hidden, gates) if fused else (gates, hidden)
    wx = random(steps, batch, 1, *last)
    r = random(1, hidden, gates, hidden)  # {head, unit, gate, K} or {head, K, gate, unit}
    b = random(1, *last)
    states = torch.zeros(config.num_states, 1, batch, 1, hidden, device=DEVICE, dtype=DTYPE)
    dstates = torch.zeros(config.num_states, steps, batch, 1, hidden, device=DEVICE, dtype=DTYPE)
    dstates[0, :, :, 0] = dy
    w = random(gates * hidden, hidden)

    def recurrence(given: torch.Tensor) -> torch.Tensor:
        return flashrnn(given, r, b, states, config=shapes)[0]

    def layer() -> torch.Tensor:
        return recurrence(torch.nn.functional.linear(x, w).view(steps, batch, 1, *last))

    def without_grad(run: Callable[[], torch.Tensor]) -> Callable[[], object]:
        return torch.no_grad()(run)

    return [
        without_grad(lambda: recurrence(wx)),
        lambda: torch.autograd.grad(recurrence(wx), (wx, r, b), dstates),
        without_grad(layer),
        lambda: torch.autograd.grad(layer(), (x, w, r, b), dstates),
    ]


def time_flashrnn(cell: str, x: torch.Tensor, dy: torch.Tensor, repeats: int) -> tuple[list[float], list[str]]:
    """Microseconds of the four runs, each of the faster backend, and that backend."""
    best = [(math.inf, "")] * 4
    for backend, name in BACKENDS.items():
        try:
            runs = flashrnn_runs(cell, backend, x, dy)
            best = [min(old, (time_in_a_row(run, repeats), name)) for old, run in zip(best, runs, strict=True)]
        except Exception as error:
            print(f"    {name}: {type(error).__name__}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
            torch.cuda.synchronize()
    return [time for time, _ in best], [name for _, name in best]


def main() -> None:
    parser = command_lines.rnn_flashrnn()
    arguments = parser.parse_args()
    require_gpu(parser)
    if importlib.util.find_spec("flashrnn") is None:
        sys.exit("flashrnn is not importable: pip install flashrnn")
    steps, batch, repeats = arguments.steps, arguments.batch, arguments.repeats
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, N = {batch}, T = {steps}\n")
    titles = ("cell", "H", "recurrence: prnn", "FlashRNN", "ratio", "with input: prnn", "FlashRNN", "ratio", "backends")
    print(f"| {' | '.join(titles)} |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows = []
    for cell, hidden in POINTS:
        torch.manual_seed(0)
        x = torch.randn(steps, batch, hidden, device=DEVICE, dtype=DTYPE, requires_grad=True)
        dy = torch.randn_like(x)
        module = getattr(prnn.nn, MODULES[cell])(hidden, hidden, device=DEVICE, dtype=DTYPE, backend="persistent")
        ours = [*time_recurrence(cell, x.detach(), dy, repeats), *time_module(module, x, dy, repeats)]
        theirs, backends = time_flashrnn(cell, x, dy, repeats)
        if math.inf in theirs:
            print(f"| {cell} | {hidden} | FlashRNN did not run | | | | | | |", flush=True)
            continue
        cells = []
        for first in (0, 2):
            mine, rival = (times[first : first + 2] for times in (ours, theirs))
            ratio = " / ".join(f"{b / a:.2f}" for a, b in zip(mine, rival, strict=True))
            cells += [per_step((mine[0], mine[1]), steps), per_step((rival[0], rival[1]), steps), ratio]
        print(f"| {cell} | {hidden} | {' | '.join(cells)} | {', '.join(backends)} |", flush=True)
        row = {"cell": cell, "H": hidden, "N": batch, "T": steps, "backends": backends}
        rows.append(row | {"prnn us": [round(t, 2) for t in ours], "FlashRNN us": [round(t, 2) for t in theirs]})
    if arguments.json:
        write_rows(arguments.json, rows)

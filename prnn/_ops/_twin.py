"""Kernels of a GPU against the CPU's: the same layer on both, of random numbers. `prnn selftest` compares layers that
need every kernel. A GPU whose row of the table has never run (docs/adding_a_gpu.md) has each layer compared before its
first call, and layers that differ run on cuDNN. Losses and the search are compared on a small problem, and are refused
where they differ."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import math
import os
import pathlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from prnn import _C
from prnn._errors import NotSupportedError
from prnn._modes import GATES
from prnn._ops._call import Call, Data, Weights
from prnn._ops._handles import handle
from prnn._ops._layer import BACKENDS, MODES, Config, Layer, layer

__all__ = [
    "Difference",
    "compare",
    "compare_layer",
    "describe_gpu",
    "fails",
    "few_threads",
    "require_agreement",
    "verdict",
]

Outputs = Mapping[str, Tensor]  # by name

# Tolerances are shares of an output's root mean square; a single number may be off _PEAK times as much. tf32 has
# float16's, which has as many digits.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
TF32_TOLERANCE = TOLERANCE[torch.float16]
_PEAK = 16

# Timesteps of a comparison: the fewest of these with which the layer has the plan that it has. Fewer than 5 have, in
# inference, kernels of their own.
_STEPS = (5, 33, 65, 129)

# Numbers after which those of a large array begin anew: a prime, so that no row, tile or gate is like another.
_PERIOD = 1_000_003

_INFERRED = " of inference"  # ends the names of outputs

# Products of a layer's input and recurrent matrices, forward, that take a thread a tenth of a second with the backward
# pass.
_LARGE = 10**9

# Two plans of one engine differ in these.
_TOGETHER = ("layers_together", "layers_together_backward", "layers_together_inference")
_OF_A_PLAN = (
    "forward_engine",
    "backward_engine",
    "blocks",
    "replicas",
    "units_per_block",
    "batch_per_pass",
    *_TOGETHER,
)

_lock = threading.Lock()
_verdicts: dict[str, str] = {}  # by problem and GPU: "" or what differs


@dataclasses.dataclass(frozen=True)
class Difference:
    """The output that is furthest from the CPU's, for its tolerance."""

    output: str  # "y", "dw"
    error: float  # relative to the output's root mean square; infinite where there is NaN
    tolerance: float

    @property
    def is_good(self) -> bool:
        return self.error <= self.tolerance


def compare(found: Outputs, wanted: Outputs, tolerance: float, most: float = _PEAK) -> Difference:
    """Compares the outputs that are wanted. A number that is off by `most` times the tolerance, in root mean squares of
    its output, counts as an output that is off by the tolerance: one wrong number among many shows. Those that are
    larger than the others may be off by as much of themselves: numbers of few digits are rounded so."""
    worst = Difference("", 0.0, tolerance)
    for name, value in wanted.items():
        expected = value.to(found[name].device).float()
        wrong = found[name].float() - expected
        count = wrong.numel() ** 0.5
        off, scale = (torch.linalg.vector_norm(x, dtype=torch.float64).item() / count for x in (wrong, expected))
        scale = max(scale, 1e-6)
        peak = (wrong.abs() / (expected.abs() + most * scale)).max().item()
        error = max(off / scale, peak)
        if not error < worst.error:  # NaN, too
            worst = Difference(name, error if error == error else float("inf"), tolerance)
    return worst


def compare_layer(stack: Layer, sizes: Sequence[int]) -> tuple[Difference, Difference]:
    """The resident kernels of a layer's GPU against the CPU: what differs in the outputs of the forward pass, in
    training and, where there is such a call, in inference, and in gradients. sizes: sequences of each timestep.

    Raises:
        NotSupportedError: the resident kernels do not serve the layer.
        RuntimeError: a kernel failed.
    """
    config = stack.config._replace(frozen_layers=0)
    if not stack.takes_gates:  # whose kernels need not be resident
        config = config._replace(backend=BACKENDS["persistent"])
    tested = layer(config, stack.dtype, stack.input_size, stack.device)
    tested.follow_precision()
    wide = torch.float64 if stack.dtype == torch.float64 else torch.float32
    twin = layer(config, wide, stack.input_size, torch.device("cpu"))
    with torch.no_grad():
        infers = not config.return_cells and config.dropout == 0  # else no such call computes what one of training does
        found = _results(tested, sizes, _random_data(tested, sizes, stack.dtype), infers)
        with few_threads(sum(sizes) * twin.params_size):
            wanted = _results(twin, sizes, _random_data(twin, sizes, stack.dtype))
    wanted |= {name: wanted[name.removesuffix(_INFERRED)] for name in found if name.endswith(_INFERRED)}
    tolerance = TF32_TOLERANCE if tested.math == _C.TF32_MATH else TOLERANCE.get(stack.dtype, TOLERANCE[torch.float32])
    tolerance *= 1 + (config.num_layers - 1) / 10  # of six layers, the CPU's own 16-bit kernels take 3/4 of one layer's
    tolerance *= 2 if stack.takes_gates else 1  # of sums over a layer's units
    gradients = {name: value for name, value in wanted.items() if name.startswith("d")}
    outputs = {name: value for name, value in wanted.items() if name not in gradients}
    # sLSTM's gradients of f are differences of larger numbers, through c and n and through m, in 16 bits.
    wider = tolerance * (2 if stack.cell_states > stack.states and stack.dtype != torch.float32 else 1)
    # Units that keep c for long add up the roundings of all timesteps: few numbers are far off, and their mean is not.
    most = _PEAK * max(1.0, len(sizes) / 33) ** 0.5
    differences = compare(found, outputs, tolerance), compare(found, gradients, wider, most)
    if stack.device.type == "cuda" and not all(difference.is_good for difference in differences):
        _forget_failures(stack)
    return differences


@contextlib.contextmanager
def few_threads(products: int = 0) -> Iterator[None]:
    """One thread for the CPU's part of a small problem, four where each weight is multiplied with so many rows that one
    would take tenths of a second: where other work has the cores, or a container has fewer than the machine, threads
    wait for one another after each timestep, for longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, 4 if products > _LARGE else 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _forget_failures(stack: Layer) -> None:
    """A kernel that gave up waiting for other blocks makes the handle's next call fail: this one, on cuDNN."""
    config = Config(MODES["LSTM"], 8, 0, 1, False, 0.0, BACKENDS["cudnn"])
    small = layer(config, torch.float32, 8, stack.device)
    numbers = torch.zeros(small.params_size, dtype=torch.float32, device=stack.device)
    with contextlib.suppress(NotSupportedError, RuntimeError):
        Call(small, _C.Sequences([1]), False).forward(_C.Sequences([1]), (numbers[:8].view(1, 8), None, None), numbers)


def _random_data(stack: Layer, sizes: Sequence[int], dtype: torch.dtype) -> dict[str, Tensor]:
    """Numbers that `dtype` has, in the type and on the device of `stack`: the same for the same layer and sizes."""
    generator = torch.Generator().manual_seed(sum(sizes) + stack.params_size)
    rows, batch, config = sum(sizes), sizes[0], stack.config

    def made(numbers: Tensor) -> Tensor:
        return numbers.to(dtype).to(device=stack.device, dtype=stack.dtype)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        count = math.prod(shape)
        numbers = torch.empty(min(count, _PERIOD), dtype=torch.float32, device="cpu")
        numbers = made(numbers.uniform_(-scale, scale, generator=generator))
        return numbers.repeat(-(-count // numbers.numel()))[:count].view(shape) if count > 0 else numbers.view(shape)

    def chance(probability: float, *shape: int) -> Tensor:
        drawn = torch.empty(shape, dtype=torch.float32, device="cpu").uniform_(generator=generator)
        return drawn < probability

    h = (2 if config.has_reset else 1, stack.states, batch, stack.state_size)
    c = (h[0], stack.cell_states, batch, stack.hidden_size)
    name = next(name for name, mode in MODES.items() if mode == config.mode)
    less = {"RNN_RELU": 4, "sLSTM_EXP": 2}.get(name, 1)  # exponential gates make numbers uneven
    weights = random(stack.params_size, scale=1.5 / less / max(stack.hidden_size, stack.input_size) ** 0.5)
    matrices = math.prod(stack.gates_shapes[0]) if stack.takes_gates else 0
    biases = weights[matrices or -2 * stack.states * GATES[name] * stack.hidden_size :]  # behind all matrices
    if name == "RNN_RELU":
        # Units clearly on or off: at the kink, rounding decides about a gradient.
        signs = chance(0.5, stack.states, 1, stack.hidden_size).expand(-1, 2, -1).reshape(-1)
        biases.copy_(torch.where(signs, 2.0, -2.0))
    else:  # large enough for each to show
        drawn = random(biases.numel()).float()
        biases.copy_(((drawn + drawn.sign()) / (2 * less)).to(dtype))
    data = {
        "weights": weights,
        "x": random(rows, stack.input_size),
        "hx": random(*h),
        "dy": random(rows, stack.output_size),
        "dhy": random(*h[1:]),
    }
    if stack.cell_states > 0:
        data |= {"cx": random(*c), "dcy": random(*c[1:])}
    if stack.cell_states > stack.states:  # c, n and m: n is the sum that c is divided by
        sums = data["cx"][:, 1::3]
        sums.copy_((sums.float() + 2).to(dtype))
    if config.return_cells:
        data["dcells"] = random(rows, stack.cells_size)
    if config.has_reset:
        data["reset"] = chance(0.3, rows).to(stack.device)
    if stack.takes_gates:
        ends = torch.randint(1, len(sizes) + 1, (batch,), generator=generator, device="cpu", dtype=torch.int32)
        data["lengths"] = ends.to(stack.device)
    if config.mask_kinds & 1:
        data["zoneout"] = chance(0.3, rows, stack.states * stack.hidden_size).to(stack.device)
    if config.mask_kinds & 2:
        data["recurrent"] = made(chance(0.7, stack.states, batch, stack.hidden_size) / 0.7)
    if config.dropout > 0:
        data["seed"] = torch.tensor([7, 0], dtype=torch.int64, device=stack.device)
    if not config.has_reset:
        data |= {name: data[name].squeeze(0) for name in ("hx", "cx") if name in data}
    return data


def _results(stack: Layer, sizes: Sequence[int], data: Mapping[str, Tensor], infers: bool = False) -> dict[str, Tensor]:
    """All outputs, packed. infers: those of inference, too."""
    sequences = _C.Sequences(list(sizes))
    given: Data = (data["x"], data["hx"], data.get("cx"))
    weights: Weights = data["weights"]
    if stack.takes_gates:  # of padded data
        parts = data["weights"].split([math.prod(shape) for shape in stack.gates_shapes])
        weights = [part.view(shape) for part, shape in zip(parts, stack.gates_shapes, strict=True)]
        data = {k: v.unflatten(0, (-1, sizes[0])) if k in ("x", "dy", "zoneout") else v for k, v in data.items()}
        given = (data["x"], data["hx"], data["cx"])
    found: dict[str, Tensor | None] = {}

    options = (data.get("reset"), data.get("zoneout"), data.get("recurrent"), data.get("seed"), data.get("lengths"))
    if infers:
        y, hy, cy, *_ = Call(stack, sequences, False).forward(sequences, given, weights, options)
        found |= {f"{name}{_INFERRED}": value for name, value in zip(("y", "hy", "cy"), (y, hy, cy), strict=True)}
    call = Call(stack, sequences, True)
    y, hy, cy, reserve, cells = call.forward(sequences, given, weights, options)
    assert reserve is not None
    dcy = data.get("dcy")
    if stack.cell_states > stack.states:
        # The gradients of c, n and m are those of a function of c e^m and n e^m: others depend on which of two numbers
        # m is the maximum of, and rounding changes that. They are small: what m adds to the gradients of gates is the
        # difference of larger numbers.
        assert dcy is not None
        assert cy is not None
        dcy = dcy / 4
        dcy[2::3] = dcy[0::3] * cy[0::3] + dcy[1::3] * cy[1::3]
    gradients = (data["dy"], data["dhy"], dcy, data.get("dcells"))
    dx, dhx, dcx, dw = call.backward(sequences, gradients, given, weights, options, y, reserve, [True] * 4)
    found |= {"y": y, "hy": hy, "cy": cy, "cells": cells, "dx": dx, "dhx": dhx, "dcx": dcx, "dw": dw}
    return {name: value for name, value in found.items() if value is not None and value.numel() > 0}


# ---- Of a row that has never run ----


def fails(stack: Layer, sequences: Sequence[int] | _C.Sequences) -> bool:
    """Whether a layer on a GPU that is_unproven() has to run on cuDNN, since its kernels differ from the CPU's. The
    first call of a size compares; what it found is kept for the process and in a file of the user's cache. Warns where
    kernels differ.

    sequences: the sequences of each timestep of the call.

    Raises:
        NotSupportedError: the kernels differ, and cuDNN cannot take their place.
    """
    if stack.config.backend == BACKENDS["cudnn"] or _here.compares:
        return False
    plan = stack.plan(handle(stack.device), sequences)
    if not plan["supported"]:
        return False
    sentence = _verdict(stack, sequences, plan)
    if not sentence:
        return False
    if not stack.is_served_by_cudnn():
        raise NotSupportedError(sentence)
    if sentence not in _told:
        _told.add(sentence)
        warnings.warn(f"prnn: cuDNN runs a layer: {sentence}", stacklevel=3)
    return True


_told: set[str] = set()


class _Thread(threading.local):
    """compares: whether the calling thread runs what is compared."""

    compares = False


_here = _Thread()
_agreed: set[tuple[str, torch.device, torch.dtype]] = set()


def require_agreement(kernels: str, device: torch.device, dtype: torch.dtype) -> None:
    """On a GPU that is_unproven(), the kernels of a loss, or of the search, are compared with the CPU's in a type, on a
    small problem, before their first call. What was found is kept as `fails` keeps it.

    kernels: as prnn._selftest.differences names them.

    Raises:
        NotSupportedError: they differ.
    """
    if (kernels, device, dtype) in _agreed or _here.compares:
        return
    if sentence := verdict(device, f"{kernels}, {dtype}", kernels, lambda: _in_a_thread(kernels, device, dtype)):
        raise NotSupportedError(sentence)
    _agreed.add((kernels, device, dtype))


def _in_a_thread(kernels: str, device: torch.device, dtype: torch.dtype) -> list[Difference]:
    """A thread of its own: the caller's may be below autograd, in a transform or an autocast region."""
    from prnn import _selftest  # which calls losses

    def compared() -> list[Difference]:
        _here.compares = True
        return _selftest.differences(kernels, device, dtype)

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        return threads.submit(compared).result()


def _verdict(stack: Layer, sequences: Sequence[int] | _C.Sequences, plan: Mapping[str, Any]) -> str:
    tested, sizes = _reduced(stack, sequences, plan)
    problem = f"{tested.config}, {tested.dtype}, input size {tested.input_size}, sequences {sizes}, math {stack.math}"
    kernels = f"{plan['forward_engine']} forward and {plan['backward_engine']} backward"
    return verdict(stack.device, problem, kernels, functools.partial(compare_layer, tested, sizes))


def verdict(device: torch.device, problem: str, kernels: str, differences: Callable[[], Iterable[Difference]]) -> str:
    """ "" where kernels agree with the CPU's on a GPU that is_unproven(); else a sentence. What was found is kept under
    the problem and the GPU.

    kernels: what runs there. differences: compares.
    """
    where = f"the kernels ({kernels}) have never run on {torch.cuda.get_device_name(device)} before, and"
    key = hashlib.sha256(f"{describe_gpu(device)}; {problem}".encode()).hexdigest()
    with _lock:
        sentence = _verdicts.get(key)
        if sentence is None and (sentence := _read(key)) is None:
            if torch.cuda.is_current_stream_capturing():
                return f"{where} nothing can be compared while a CUDA graph is captured; make such a call once before"
            sentence = _find_verdict(where, differences)
            _keep(key, sentence)
        return _verdicts.setdefault(key, sentence)


def _find_verdict(where: str, differences: Callable[[], Iterable[Difference]]) -> str:
    try:
        found = list(differences())
    except RuntimeError as error:
        return f"{where} fail there: {error}"
    for wrong in found:
        if not wrong.is_good:
            off = f"differs from the CPU's by {wrong.error:.1e}"
            return f"{where} {wrong.output} {off}; prnn selftest prints a report to send"
    return ""


def _reduced(stack: Layer, sequences: Sequence[int] | _C.Sequences, plan: Mapping[str, Any]) -> tuple[Layer, list[int]]:
    """A smaller layer with the same plan, of fewer layers and timesteps, and its sequences."""
    batch, last, steps = sequences[0], sequences[-1], len(sequences)
    together = max(plan[name] for name in _TOGETHER)
    for layers in range(together, stack.config.num_layers + 1):
        dropout = stack.config.dropout if layers > 1 else 0.0
        config = stack.config._replace(num_layers=layers, dropout=dropout, frozen_layers=0)
        smaller = layer(config, stack.dtype, stack.input_size, stack.device)
        smaller.follow_precision()
        for count in sorted({min(steps, fewer) for fewer in _STEPS}):
            sizes = [*[batch] * (count - 1), last]
            found = smaller.plan(handle(stack.device), sizes)
            if found["supported"] and all(found[name] == plan[name] for name in _OF_A_PLAN):
                return smaller, sizes
    return stack, [*[batch] * (min(steps, _STEPS[-1]) - 1), last]


@functools.cache
def describe_gpu(device: torch.device) -> str:
    """The GPU, its driver, and the build of the library: what a verdict is about."""
    properties = torch.cuda.get_device_properties(device)
    with torch.cuda.device(device):
        row = _C.Rnn(_C.LSTM, _C.FLOAT, 64, 1, 64, False).query(handle(device), [1])["device"]
    library = sorted((pathlib.Path(_C.__file__).parent / "lib").glob("libprnn.so.*"))[0].stat()
    build = f"build of {library.st_size} bytes, {library.st_mtime_ns}"
    return f"{properties.name}, {properties.multi_processor_count} SMs, planned as {row}; {driver()}; {build}"


def driver() -> str:
    """The driver's version as its kernel module has it, "580.65.06"; "unknown" where it does not tell."""
    try:
        text = pathlib.Path("/sys/module/nvidia/version").read_text()
    except OSError:
        return "unknown"
    return text.strip()


def _file(key: str) -> pathlib.Path:
    top = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return top / "prnn" / "kernels_compared" / key


def _read(key: str) -> str | None:
    """A verdict of another process; None where there is none, or no cache: the kernels are compared again."""
    with contextlib.suppress(OSError, RuntimeError, UnicodeDecodeError):  # RuntimeError: no home folder
        return _file(key).read_text()
    return None


def _keep(key: str, sentence: str) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        file = _file(key)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written = file.with_suffix(f".{os.getpid()}")  # an empty file would be a verdict, too
        written.write_text(sentence)
        written.replace(file)

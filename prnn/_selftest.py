"""Every kernel that a device's plans take, on small problems, against the CPU: what `prnn selftest` prints."""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

import prnn
from prnn._ops._handles import handle
from prnn._ops._layer import BACKENDS, MODES, Config, layer
from prnn._ops._twin import TF32_TOLERANCE, TOLERANCE, Difference, compare, compare_layer, few_threads

__all__ = ["TYPES", "Outcome", "differences", "selftest"]

TYPES = {  # by name: the type, and whether products are rounded to tf32
    "float32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "float16": (torch.float16, False),
    "bfloat16": (torch.bfloat16, False),
}
_CELLS = ("LSTM", "GRU", "RNN_TANH", "sLSTM", "sLSTM_EXP")
_STEPS = 5  # fewer have kernels of their own
# Units and sequences of LayerNormLSTM: clusters, with one column tile and two, and the grid.
_LAYER_NORM_SIZES = ((64, 4), (512, 40), (1060, 3))
# Losses are sums over a lattice.
_LOSS_TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of one pass of one family of kernels on one problem."""

    kernels: str  # the engine, or what else runs: "mma", "CTC loss"
    options: str  # what the problem has beyond a plain layer: "", "resets", "masks", ...
    direction: str  # "forward", "backward"
    type: str  # of TYPES
    problem: str  # "LSTM 512, N = 8"
    output: str  # the one that is furthest from the CPU's
    error: float  # relative to its root mean square
    tolerance: float
    failure: str = ""  # what the call raised

    @property
    def is_good(self) -> bool:
        return not self.failure and self.error <= self.tolerance


def selftest(device: torch.device) -> Iterator[Outcome]:
    """Compares, one after the other, on the current GPU, or on the CPU with itself."""
    for name, (dtype, tf32) in TYPES.items():
        if device.type == "cpu" and tf32:
            continue
        with _tf32(tf32):
            yield from _layers(device, name, dtype)
            yield from _layer_norm(device, name, dtype)
    yield from _losses(device)


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn
    before = cudnn.allow_tf32
    cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        cudnn.allow_tf32 = before


# ---- Recurrent layers ----


def _candidates(mode: str) -> Iterator[tuple[str, dict[str, Any], int, int]]:
    """Options, fields of Config, sequences and timesteps: more problems than there are kernels, small ones first."""
    is_lstm = mode == "LSTM"
    sizes = (64, 256, 512, 768, 1024, 1536, 2048, 3072)
    kinds: dict[str, dict[str, Any]] = {
        "": {},
        "two directions": {"bidirectional": True},
        "heads": {"heads": 2},
        "resets": {"has_reset": True, "return_cells": is_lstm},
        "masks": {"mask_kinds": 2 if mode == "RNN_TANH" else 3},
    }
    if mode.startswith("sLSTM"):
        del kinds["resets"], kinds["masks"]
    if is_lstm:
        kinds["projection"] = {"proj_size": 48}
    for options, fields in kinds.items():
        for hidden in sizes:
            for batch in (1, 4, 8, 16, 33, 64):
                yield options, {"hidden_size": hidden, **fields}, batch, _STEPS
    for hidden in (96, 544, 768, 1024):
        for batch in (3, 8, 20):
            for steps in (_STEPS, 33, 65, 129):
                yield "stack", {"hidden_size": hidden, "num_layers": 3}, batch, steps


def _layers(device: torch.device, type_name: str, dtype: torch.dtype) -> Iterator[Outcome]:
    covered: set[tuple[str, ...]] = set()
    for mode in _CELLS:
        for options, fields, batch, steps in _candidates(mode):
            plain = Config(MODES[mode], 0, 0, 1, False, 0.0, BACKENDS["persistent"])
            config = plain._replace(**fields)
            stack = layer(config, dtype, 24, device)
            stack.follow_precision()
            plan = stack.plan(handle(device), [batch] * steps)
            if not plan["supported"]:
                continue
            engines = {direction: plan[f"{direction}_engine"] for direction in ("forward", "backward")}
            new = {(mode, options, direction, engine) for direction, engine in engines.items()} - covered
            if not new:
                continue
            covered |= new
            layers = f", {config.num_layers} layers" if config.num_layers > 1 else ""
            problem = f"{mode.removesuffix('_TANH')} {config.hidden_size}{layers}, N = {batch}, T = {steps}"
            sizes = [*[batch] * (steps - 1), (batch + 1) // 2]
            differences, failure = _tried(functools.partial(compare_layer, stack, sizes))
            for (direction, engine), found in zip(engines.items(), differences, strict=True):
                yield _outcome(engine, options, direction, type_name, problem, found, failure)


def _tried(run: Callable[[], tuple[Difference, Difference]]) -> tuple[tuple[Difference, Difference], str]:
    """The differences forward and backward, and the error that was raised."""
    try:
        return run(), ""
    except RuntimeError as error:  # a kernel that gave up, or one that the GPU has no room for
        nothing = Difference("", 0.0, 0.0)
        return (nothing, nothing), str(error)


def _outcome(
    kernels: str, options: str, direction: str, type_name: str, problem: str, found: Difference, failure: str
) -> Outcome:
    return Outcome(kernels, options, direction, type_name, problem, found.output, found.error, found.tolerance, failure)


# ---- What else has kernels: outputs by name, of gradients "d...", computed on a device ----


class _Place(NamedTuple):
    """Where something is computed, and in which type, from numbers of which type."""

    device: torch.device
    computed: torch.dtype
    numbers: torch.dtype


_Compute = Callable[[_Place], dict[str, Tensor]]


def _differences(
    device: torch.device, dtype: torch.dtype, compute: _Compute, tolerances: tuple[float, float]
) -> tuple[Difference, Difference]:
    """In outputs and in gradients, each with its tolerance."""
    found = compute(_Place(device, dtype, dtype))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    with few_threads():
        wanted = compute(_Place(torch.device("cpu"), wide, dtype))
    gradients = {name: value for name, value in wanted.items() if name.startswith("d")}
    outputs = {name: value for name, value in wanted.items() if name not in gradients}
    return compare(found, outputs, tolerances[0]), compare(found, gradients, tolerances[1])


def _compared(
    kernels: str,
    type_name: str,
    problem: str,
    device: torch.device,
    compute: _Compute,
    tolerances: tuple[float, float],
) -> Iterator[Outcome]:
    dtype = TYPES[type_name][0]
    (forward, backward), failure = _tried(functools.partial(_differences, device, dtype, compute, tolerances))
    yield _outcome(kernels, "", "forward", type_name, problem, forward, failure)
    if backward.output or failure:
        yield _outcome(kernels, "", "backward", type_name, problem, backward, failure)


def _random(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cpu").normal_(generator=generator)


def _moved(value: Tensor, place: _Place) -> Tensor:
    """A leaf there."""
    return value.to(place.numbers).to(place.device, place.computed).detach().clone().requires_grad_()


def _layer_norm(device: torch.device, type_name: str, dtype: torch.dtype) -> Iterator[Outcome]:
    tolerance = TF32_TOLERANCE if type_name == "tf32" else TOLERANCE[dtype]
    # Normalisation and gradients are sums over a layer's units, which several blocks have, and over all timesteps.
    tolerance *= 5 if type_name == "float32" else 2
    for hidden, batch in _LAYER_NORM_SIZES:

        def compute(place: _Place, hidden: int = hidden, batch: int = batch) -> dict[str, Tensor]:
            generator = torch.Generator().manual_seed(hidden)
            module = prnn.nn.LayerNormLSTM(24, hidden, device="cpu")
            with torch.no_grad():
                for weight in module.parameters():
                    weight.copy_((_random(generator, *weight.shape) * hidden**-0.5).to(place.numbers))
                    if weight.dim() == 1:
                        weight.add_(0.5)
            module = module.to(place.device, place.computed)
            x = _moved(_random(generator, _STEPS, batch, 24), place)
            y, (hy, cy) = module(x)
            found = {"y": y, "hy": hy, "cy": cy}
            (y.float() * _random(generator, *y.shape).to(place.device)).sum().backward()
            return (
                found
                | {"dx": cast(Tensor, x.grad)}
                | {f"d{name}": cast(Tensor, weight.grad) for name, weight in module.named_parameters()}
            )

        problem = f"LayerNormLSTM {hidden}, N = {batch}, T = {_STEPS}"
        yield from _compared("layer norm LSTM", type_name, problem, device, compute, (tolerance, tolerance))


# Frames, symbols and classes: as many as a warp has lanes, and more than a block has threads. The latter in float32
# alone: of many classes, gradients are so uneven that rounding them to 16 bits is more than the tolerance.
_LATTICE, _WIDE_LATTICE = (24, 10, 28), (20, 12, 600)
_DURATIONS = (0, 1, 2, 3, 4)


class _Lattice(NamedTuple):
    """Targets, and lengths of frames and targets, of three sequences, and leaves that a loss is computed from."""

    on: tuple[Tensor, Tensor, Tensor]
    leaves: dict[str, Tensor]


class _LossCall(NamedTuple):
    """The loss's function, the names of leaves that it is computed from, and its arguments behind the lengths."""

    function: Callable[..., Tensor]
    leaves: tuple[str, ...]
    others: dict[str, Any]


_JOINER, _JOINER_TDT = (("encoder", "predictor", f"weight{of}", f"bias{of}") for of in ("", " of durations"))
_LOSSES = {
    "CTC loss": _LossCall(prnn.ctc_loss, ("logits",), {}),
    "RNN-T loss": _LossCall(prnn.rnnt_loss, ("lattice",), {"blank": 0}),
    "TDT loss": _LossCall(prnn.tdt_loss, ("durations",), {"blank": 0, "durations": _DURATIONS}),
    "multi-blank loss": _LossCall(
        prnn.multi_blank_rnnt_loss, ("lattice",), {"blank": -1, "big_blank_durations": (2, 4)}
    ),
    "joint RNN-T loss": _LossCall(prnn.joint_rnnt_loss, _JOINER, {"blank": 0}),
    "joint TDT loss": _LossCall(prnn.joint_tdt_loss, _JOINER_TDT, {"blank": 0, "durations": _DURATIONS}),
}


def _lattice(place: _Place, names: tuple[str, ...], frames: int, symbols: int, classes: int) -> _Lattice:
    generator = torch.Generator().manual_seed(3)
    with_durations = classes + len(_DURATIONS)
    shapes: dict[str, tuple[int, ...]] = {
        "logits": (frames, 3, classes),
        "lattice": (3, frames, symbols + 1, classes),
        "durations": (3, frames, symbols + 1, with_durations),
        "encoder": (3, frames, 64),
        "predictor": (3, symbols + 1, 64),
        "weight": (classes, 64),
        "bias": (classes,),
        "weight of durations": (with_durations, 64),
        "bias of durations": (with_durations,),
    }
    targets = torch.randint(1, classes - 3, (3, symbols), generator=generator, device="cpu")
    lengths = ((frames, frames * 2 // 3, frames // 2), (symbols, symbols // 2, 0))
    on = (targets.to(place.device), *(torch.tensor(values, device=place.device) for values in lengths))
    scales = {name: 0.2 if name.startswith("weight") else 1.0 for name in names}
    leaves = {name: _moved(_random(generator, *shapes[name]) * scales[name], place) for name in names}
    return _Lattice(on, leaves)  # type: ignore[arg-type]


def _loss(name: str, sizes: tuple[int, int, int], place: _Place) -> dict[str, Tensor]:
    function, names, others = _LOSSES[name]
    on, leaves = _lattice(place, names, *sizes)
    found = function(*leaves.values(), *on, **others, reduction="none").float()
    (found * torch.tensor([1.0, 0.5, 2.0], device=place.device)).sum().backward()
    return {"costs": found} | {f"d{leaf}": cast(Tensor, value.grad) for leaf, value in leaves.items()}


def _search(place: _Place) -> dict[str, Tensor]:
    """Returns the symbols found in float32, and how far the path's probabilities are from the CPU's, and from those of
    the most probable symbols: in 16 bits another path may be as good."""
    from prnn.transducer import Joiner, RecurrentPredictor

    generator = torch.Generator().manual_seed(5)
    predictor, joiner = RecurrentPredictor(30, 16, 64), Joiner(40, 64, 64, 30)
    with torch.no_grad():
        for part in (predictor, joiner):
            for weight in part.parameters():
                # With larger weights the LSTM is chaotic: roundings grow without bound.
                weight.copy_((_random(generator, *weight.shape) * 0.2).to(place.numbers))
    x = _random(generator, 4, 30, 40).to(place.numbers).float()
    searched = copy.deepcopy(predictor).to(place.device, place.computed)
    joined = copy.deepcopy(joiner).to(place.device, place.computed)
    with _tf32(False):
        encoded = x.to(place.device, place.computed)
        found = prnn.transducer_search(encoded, predictor=searched, joiner=joined)
    symbols, frames, counts = found.symbols.cpu().long(), found.frames.cpu().long(), found.counts.cpu().long()
    room = symbols.new_zeros(4, 30 * 8)
    room[:, : symbols.size(1)] = symbols
    with torch.no_grad():
        lattice = joiner(x, predictor(symbols[:, : int(counts.max())])).log_softmax(-1)
    row, symbol = (torch.arange(int(counts.max()), device="cpu") < counts[:, None]).nonzero(as_tuple=True)
    cells = lattice[row, frames[row, symbol], symbol]
    taken = cells.gather(-1, symbols[row, symbol, None]).squeeze(1)
    exact, best = torch.ones(room.shape, device="cpu"), torch.ones(room.shape, device="cpu")
    exact[row, symbol] = (found.log_probs.cpu().float()[row, symbol] - taken).exp()
    best[row, symbol] = (taken - cells.amax(-1)).exp()
    result = {"probabilities": exact, "probabilities beside the best": best}
    if place.numbers in (torch.float32, torch.float64):
        result |= {"symbols": room, "scores": found.scores}
    return result


_SEARCH = "greedy search"


def _problems(name: str, dtype: torch.dtype) -> Iterator[tuple[str, _Compute]]:
    """Yields the problems on which a loss or the search is compared."""
    if name == _SEARCH:
        yield "N = 4, 30 frames", _search
        return
    is_wide = dtype in (torch.float32, torch.float64) and not name.startswith("joint")
    for sizes in (_LATTICE, _WIDE_LATTICE) if is_wide else (_LATTICE,):
        yield f"N = 3, T = {sizes[0]}, U = {sizes[1]}, V = {sizes[2]}", functools.partial(_loss, name, sizes)


def _tolerances(name: str, dtype: torch.dtype) -> tuple[float, float]:
    """Returns the tolerances of costs, which are of float32 but where products of 16-bit numbers are in them, and of
    gradients."""
    wide, narrow = _LOSS_TOLERANCE, 2 * TOLERANCE.get(dtype, 0)
    if dtype in (torch.float32, torch.float64):
        return wide, wide
    return (wide if name.endswith("loss") and not name.startswith("joint") else narrow), narrow


def _losses(device: torch.device) -> Iterator[Outcome]:
    for name in (*_LOSSES, _SEARCH):
        for type_name in ("float32", "float16", "bfloat16"):
            dtype = TYPES[type_name][0]
            for problem, compute in _problems(name, dtype):
                with _tf32(False):
                    yield from _compared(name, type_name, problem, device, compute, _tolerances(name, dtype))


def differences(name: str, device: torch.device, dtype: torch.dtype) -> list[Difference]:
    """The differences between a device and the CPU of a loss, named as in _LOSSES, or of "greedy search", in a type."""
    with _tf32(False):
        return [
            difference
            for _, compute in _problems(name, dtype)
            for difference in _differences(device, dtype, compute, _tolerances(name, dtype))
        ]

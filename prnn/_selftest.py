"""Every kernel that a device's plans take, on small problems, against the CPU: what `prnn selftest` prints."""

import contextlib
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

__all__ = ["TYPES", "Outcome", "selftest"]

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
    yield from _search(device)


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
            for steps in (_STEPS, 33, 129):
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


def _compared(
    kernels: str, type_name: str, problem: str, device: torch.device, compute: _Compute, tolerance: float
) -> Iterator[Outcome]:
    def run() -> tuple[Difference, Difference]:
        dtype = TYPES[type_name][0]
        found = compute(_Place(device, dtype, dtype))
        with few_threads():
            wanted = compute(_Place(torch.device("cpu"), torch.float32, dtype))
        gradients = {name: value for name, value in wanted.items() if name.startswith("d")}
        outputs = {name: value for name, value in wanted.items() if name not in gradients}
        return compare(found, outputs, tolerance), compare(found, gradients, tolerance)

    (forward, backward), failure = _tried(run)
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
        yield from _compared("layer norm LSTM", type_name, problem, device, compute, tolerance)


def _losses(device: torch.device) -> Iterator[Outcome]:
    frames, lengths = torch.tensor([24, 17, 9]), torch.tensor([10, 5, 0])
    generator = torch.Generator().manual_seed(3)
    targets = torch.randint(1, 28, (3, 10), generator=generator, device="cpu")
    lattice, sequence = _random(generator, 3, 24, 11, 28), _random(generator, 24, 3, 28)
    durations = _random(generator, 3, 24, 11, 33)
    encoder, predictor = _random(generator, 3, 24, 64), _random(generator, 3, 11, 64)
    weight, bias = _random(generator, 28, 64) * 0.2, _random(generator, 28)

    def on(place: _Place) -> tuple[Tensor, Tensor, Tensor]:
        return targets.to(place.device), frames.to(place.device), lengths.to(place.device)

    def gradients(cost: Tensor, **leaves: Tensor) -> dict[str, Tensor]:
        (cost * torch.tensor([1.0, 0.5, 2.0], device=cost.device)).sum().backward()
        return {"costs": cost} | {f"d{name}": cast(Tensor, leaf.grad) for name, leaf in leaves.items()}

    def ctc(place: _Place) -> dict[str, Tensor]:
        x = _moved(sequence, place)
        return gradients(prnn.ctc_loss(x, *on(place), reduction="none"), logits=x)

    def rnnt(place: _Place) -> dict[str, Tensor]:
        x = _moved(lattice, place)
        return gradients(prnn.rnnt_loss(x, *on(place), blank=0, reduction="none"), logits=x)

    def tdt(place: _Place) -> dict[str, Tensor]:
        x = _moved(durations, place)
        return gradients(prnn.tdt_loss(x, *on(place), 0, (0, 1, 2, 3, 4), reduction="none"), logits=x)

    def joint(place: _Place) -> dict[str, Tensor]:
        x, labels, w, b = (_moved(value, place) for value in (encoder, predictor, weight, bias))
        cost = prnn.joint_rnnt_loss(x, labels, w, b, *on(place), blank=0, reduction="none")
        return gradients(cost.float(), encoder=x, predictor=labels, weight=w, bias=b)

    for name, compute in (("CTC loss", ctc), ("RNN-T loss", rnnt), ("TDT loss", tdt), ("joint RNN-T loss", joint)):
        with _tf32(False):
            yield from _compared(name, "float32", "N = 3, 24 frames", device, compute, _LOSS_TOLERANCE)
    tolerance = 2 * TOLERANCE[torch.bfloat16]
    yield from _compared("joint RNN-T loss", "bfloat16", "N = 3, 24 frames", device, joint, tolerance)


def _search(device: torch.device) -> Iterator[Outcome]:
    from prnn.transducer import Joiner, RecurrentPredictor

    def compute(place: _Place) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(5)
        predictor, joiner = RecurrentPredictor(30, 16, 64), Joiner(40, 64, 64, 30)
        with torch.no_grad():
            for part in (predictor, joiner):
                for weight in part.parameters():
                    weight.copy_(_random(generator, *weight.shape) * 0.4)
        x = _random(generator, 4, 30, 40).to(place.device)
        with _tf32(False):
            found = prnn.transducer_search(
                x, predictor=predictor.to(place.device).eval(), joiner=joiner.to(place.device)
            )
        symbols = torch.nn.functional.pad(found.symbols, (0, 30 * 8 - found.symbols.size(1)))
        return {"symbols": symbols, "scores": found.scores}

    yield from _compared("greedy search", "float32", "N = 4, 30 frames", device, compute, _LOSS_TOLERANCE)

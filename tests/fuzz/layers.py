"""prnn.nn against torch.nn and against the float64 recursion: random configurations, values and gradients."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import nn_pairs
import torch
from hypothesis import strategies as st
from reference import rnn as reference
from torch import Tensor
from torch.nn.utils import rnn as packing

from fuzz.case import Case, Finding
from fuzz.explore import explore

MODES = {"RNN": reference.RNN_TANH, "RNN_RELU": reference.RNN_RELU, "GRU": reference.GRU, "LSTM": reference.LSTM}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 3e-4, torch.bfloat16: 4e-2}


@dataclass(frozen=True)
class Config:
    """batch None: one sequence without a batch dimension. form: how lengths are given. way: how it is called."""

    cell: str
    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    bidirectional: bool
    projected: bool
    dtype: torch.dtype
    steps: int
    batch: int | None
    lengths: tuple[int, ...]
    form: str
    states: bool
    strided: bool
    way: str


@st.composite
def configs(draw: st.DrawFn) -> Config:
    batch = draw(st.sampled_from((None, 1, 2, 3, 3, 5, 17)))
    steps = draw(st.sampled_from((1, 2, 3, 5, 8, 13)))
    form = "none" if batch is None else draw(st.sampled_from(("none", "lengths", "lengths", "packed", "sorted")))
    lengths = draw(st.lists(st.integers(1, steps), min_size=batch or 1, max_size=batch or 1))
    cell = draw(st.sampled_from(nn_pairs.CELLS))
    hidden = draw(st.sampled_from((1, 2, 3, 4, 7, 8, 16, 31, 40)))
    return Config(
        cell=cell,
        input_size=draw(st.sampled_from((1, 2, 3, 8, 20))),
        hidden_size=hidden,
        num_layers=draw(st.sampled_from((1, 1, 2, 3))),
        bias=draw(st.booleans()),
        batch_first=draw(st.booleans()),
        bidirectional=draw(st.booleans()),
        projected=cell == "LSTM" and hidden > 1 and draw(st.booleans()),
        dtype=draw(st.sampled_from((torch.float64, torch.float32))),
        steps=steps,
        batch=batch,
        lengths=tuple(sorted(lengths, reverse=True) if form == "sorted" else lengths),
        form=form,
        states=draw(st.booleans()),
        strided=draw(st.booleans()),
        way=draw(st.sampled_from(["train"] * 20 + ["recursion"] * 12 + ["eval"] * 2 + ["autocast"] * 2 + ["compile"])),
    )


def off(found: Tensor, expected: Tensor) -> float:
    """The largest difference, in units of the largest value if that is above 1. NaN if there is one."""
    if found.shape != expected.shape:
        raise Finding(f"shape {tuple(found.shape)} in place of {tuple(expected.shape)}")
    if found.numel() == 0:
        return 0.0
    found, expected = found.double(), expected.double()
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1))


def require_same(found: nn_pairs.Result, expected: nn_pairs.Result, tolerance: float) -> None:
    for name, value in expected.items():
        if found[name].dtype != value.dtype:
            raise Finding(f"{name} is of {found[name].dtype} in place of {value.dtype}")
        difference = off(found[name], value)
        if not difference <= tolerance:
            raise Finding(f"{name} is off by {difference:g}")


def make_input(config: Config) -> Tensor:
    size = config.input_size
    shape = (config.steps, size) if config.batch is None else (config.steps, config.batch, size)
    if config.strided:
        values = torch.randn(*reversed(shape), dtype=config.dtype).permute(*reversed(range(len(shape))))
    else:
        values = torch.randn(shape, dtype=config.dtype)
    return values.transpose(0, 1) if config.batch_first and config.batch is not None else values


def torch_with_lengths(module: torch.nn.Module, lengths: Tensor) -> Any:
    """torch's module called as prnn's with lengths=."""

    def run(input: Tensor, states: Any = None) -> Any:
        packed = packing.pack_padded_sequence(input, lengths, batch_first=module.batch_first, enforce_sorted=False)
        output, last = module(packed, states)
        steps = input.shape[1 if module.batch_first else 0]
        padded, _ = packing.pad_packed_sequence(output, batch_first=module.batch_first, total_length=steps)
        return padded, last

    return run


def check(config: Config) -> None:
    options: dict[str, Any] = {"num_layers": config.num_layers, "bias": config.bias, "batch_first": config.batch_first}
    options |= {"bidirectional": config.bidirectional, "dtype": config.dtype}
    if config.projected:
        options["proj_size"] = max(1, config.hidden_size // 2)
    if config.num_layers > 1 and config.way == "eval":
        options["dropout"] = 0.5  # which does nothing there
    theirs, ours = nn_pairs.make_pair(config.cell, config.input_size, config.hidden_size, **options)
    input, lengths = make_input(config), torch.tensor(config.lengths)
    states = nn_pairs.make_states(theirs, config.batch) if config.states else None
    call_theirs: Any = theirs
    call_ours: Any = ours
    given: Any = input.clone(memory_format=torch.preserve_format).requires_grad_()
    other: Any = given
    if config.form == "lengths":
        call_theirs = torch_with_lengths(theirs, lengths)
        with torch.no_grad():  # padding is not looked at
            time_first = given.transpose(0, 1) if config.batch_first else given
            for n, length in enumerate(config.lengths):
                time_first[length:, n] = float("nan")
        form = config.lengths if config.steps % 2 else lengths

        def call_ours(input: Tensor, states: Any = None) -> Any:
            return ours(input, states, lengths=form)

        other = input.clone(memory_format=torch.preserve_format).requires_grad_()
    elif config.form in ("packed", "sorted"):
        leaf = input.detach().requires_grad_()
        packed = packing.pack_padded_sequence(
            leaf, lengths, batch_first=config.batch_first, enforce_sorted=config.form == "sorted"
        )
        given = other = packing.PackedSequence(packed.data.detach().requires_grad_(), *packed[1:])
    if config.way == "recursion":
        compare_with_recursion(config, ours, call_ours, given, states)
        return
    if config.way == "eval":
        theirs.eval(), ours.eval()
    tolerance = TOLERANCE[config.dtype]
    if config.way == "autocast":
        compare_autocast(call_theirs, call_ours, other, given, states)
        return
    if config.way == "compile":
        torch._dynamo.reset()
        call_ours = torch.compile(call_ours, backend="aot_eager")
    expected = nn_pairs.train_step(call_theirs, dict(theirs.named_parameters()), other, states)
    require_same(nn_pairs.train_step(call_ours, dict(ours.named_parameters()), given, states), expected, tolerance)


def compare_autocast(theirs: Any, ours: Any, other: Any, given: Any, states: Any) -> None:
    """Outputs alone: their types are torch's, their values those of bfloat16."""
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            expected = nn_pairs.flat(theirs(other, states))
        except RuntimeError:
            return  # torch does not take all combinations of types
        found = nn_pairs.flat(ours(given, states))
    names = [f"output{index}" for index in range(len(expected))]
    expected_by_name, found_by_name = (dict(zip(names, values, strict=True)) for values in (expected, found))
    require_same(found_by_name, expected_by_name, TOLERANCE[torch.bfloat16])


def packed_weights(module: torch.nn.Module) -> list[Tensor]:
    """The parameters in the order of the packed weights, zeros for missing biases."""
    places = [f"_l{n}{way}" for n in range(module.num_layers) for way in ("", "_reverse")[: 1 + module.bidirectional]]
    named = dict(module.named_parameters())
    weights = [
        named[kind + place]
        for place in places
        for kind in ("weight_ih", "weight_hh", "weight_hr")
        if kind + place in named
    ]
    if module.bias:
        return weights + [named[kind + place] for place in places for kind in ("bias_ih", "bias_hh")]
    rows = sum(2 * named[f"weight_ih{place}"].shape[0] for place in places)
    return [*weights, weights[0].new_zeros(rows)]


def compare_with_recursion(config: Config, module: torch.nn.Module, call: Any, given: Any, states: Any) -> None:
    """Outputs and the gradient of the input against tests/reference/rnn.py."""
    stack = reference.Stack(
        MODES[config.cell], config.input_size, config.hidden_size, config.num_layers, 1 + config.bidirectional,
        projection=module.proj_size,
    )  # fmt: skip
    batch = config.batch or 1
    lengths = list(config.lengths) if config.form != "none" else [config.steps] * batch
    order = sorted(range(batch), key=lambda n: -lengths[n])
    batch_sizes = [sum(length > t for length in lengths) for t in range(max(lengths))]
    w = torch.cat([weight.detach().double().reshape(-1) for weight in packed_weights(module)])
    leaf = given.data if isinstance(given, packing.PackedSequence) else given
    if isinstance(given, packing.PackedSequence):
        order = list(range(batch)) if given.sorted_indices is None else given.sorted_indices.tolist()
        rows = leaf.detach().double()
    else:
        padded = leaf.detach().double()
        if config.batch is None:
            padded = padded.unsqueeze(1)
        elif config.batch_first:
            padded = padded.transpose(0, 1)
        rows = torch.cat([padded[t, order[:size]] for t, size in enumerate(batch_sizes)])
    initial = [None, None]
    if states is not None:
        three = [
            s.detach().double() if config.batch else s.detach().double().unsqueeze(1) for s in nn_pairs.flat(states)
        ]
        initial[: len(three)] = [state[:, order] for state in three]
    rows.requires_grad_()
    y, hy, cy = reference.forward(stack, rows, batch_sizes, w, *initial)
    outputs = nn_pairs.flat(call(given, states))
    expected = [y, hy, cy][: len(outputs)]
    weight = torch.linspace(-1, 1, y.shape[1], dtype=torch.float64)
    (wanted,) = torch.autograd.grad((y * weight).sum(), rows)
    (gradient,) = torch.autograd.grad((outputs[0] * weight.to(config.dtype)).sum(), leaf)

    def to_rows(value: Tensor) -> Tensor:
        if isinstance(given, packing.PackedSequence):
            return value
        if config.batch is None:
            value = value.unsqueeze(1)
        elif config.batch_first:
            value = value.transpose(0, 1)
        for n, length in enumerate(lengths):
            if value[length:, n].any():
                raise Finding("not zero in padding")
        return torch.cat([value[t, order[:size]] for t, size in enumerate(batch_sizes)])

    found = [to_rows(outputs[0]), *(s if config.batch else s.unsqueeze(1) for s in outputs[1:])]
    found[1:] = [state[:, order] for state in found[1:]]
    for name, ours, exact in zip(("output", "hy", "cy"), found, expected, strict=False):
        if not off(ours.detach(), exact.detach()) <= TOLERANCE[config.dtype]:
            raise Finding(f"{name} is off by {off(ours.detach(), exact.detach()):g} from the recursion")
    if not off(to_rows(gradient), wanted) <= TOLERANCE[config.dtype]:
        raise Finding(f"the gradient of the input is off by {off(to_rows(gradient), wanted):g} from the recursion")


def run(case: Case) -> None:
    warnings.simplefilter("ignore")
    explore(case, configs(), check)

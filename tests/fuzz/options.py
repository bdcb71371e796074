"""Options of prnn.nn's layers that torch.nn's have not: heads, zoneout, recurrent dropout, resets, cells of every
timestep and frozen layers, beside the float64 recursion; and modules that change between calls, beside new ones."""

from __future__ import annotations

import copy
import io
import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from masked_layer_case import layer_of, weight_gradients, written_out
from torch import Tensor

import prnn
from fuzz.case import Case, Finding
from fuzz.explore import explore
from fuzz.layers import off

CELLS = ("RNN", "GRU", "LSTM")
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}


@dataclass(frozen=True)
class Config:
    """frozen: layers from the lowest on whose weights want no gradient."""

    cell: str
    input_size: int
    units: int  # of a head
    heads: int
    num_layers: int
    bidirectional: bool
    bias: bool
    zoneout: float
    recurrent_dropout: float
    training: bool
    dtype: torch.dtype
    steps: int
    batch: int
    states: bool
    reset: float | None  # probability of a flag
    reset_states: bool
    cells: bool
    frozen: int


@st.composite
def configs(draw: st.DrawFn) -> Config:
    layers = draw(st.sampled_from((1, 1, 2, 3)))
    reset = draw(st.sampled_from((None, 0.0, 0.1, 0.5, 1.0)))
    cell = draw(st.sampled_from(CELLS))
    return Config(
        cell=cell,
        input_size=draw(st.sampled_from((1, 3, 8))),
        units=draw(st.sampled_from((1, 2, 4, 9))),
        heads=draw(st.sampled_from((1, 1, 2, 3))),
        num_layers=layers,
        bidirectional=draw(st.booleans()),
        bias=draw(st.booleans()),
        zoneout=0.0 if cell == "RNN" else draw(st.sampled_from((0.0, 0.0, 0.1, 0.6))),
        recurrent_dropout=draw(st.sampled_from((0.0, 0.0, 0.3))),
        training=draw(st.booleans()),
        dtype=draw(st.sampled_from((torch.float64, torch.float32))),
        steps=draw(st.sampled_from((1, 2, 5, 9))),
        batch=draw(st.sampled_from((1, 2, 5))),
        states=draw(st.booleans()),
        reset=reset,
        reset_states=reset is not None and draw(st.booleans()),
        cells=draw(st.booleans()),
        frozen=draw(st.integers(0, layers - 1)),
    )


def make(config: Config) -> Any:
    options: dict[str, Any] = {"bidirectional": config.bidirectional, "heads": config.heads, "bias": config.bias}
    options |= {"recurrent_dropout": config.recurrent_dropout, "dtype": config.dtype}
    options |= {} if config.cell == "RNN" else {"zoneout": config.zoneout}
    sizes = (config.input_size, config.heads * config.units, config.num_layers)
    return getattr(prnn.nn, config.cell)(*sizes, **options).train(config.training)


def states_of(config: Config) -> Any:
    shape = (config.num_layers * (1 + config.bidirectional), config.batch, config.heads * config.units)
    pair = tuple(torch.randn(shape, dtype=config.dtype) for _ in range(2))
    return pair if config.cell == "LSTM" else pair[0]


def doubled(states: Any) -> Any:
    if states is None or isinstance(states, Tensor):
        return states if states is None else states.double()
    return tuple(state.double() for state in states)


def require_near(name: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    if not (difference := off(found.detach(), expected.detach())) <= tolerance:
        raise Finding(f"{name} is off by {difference:g} from the recursion")


def check(config: Config) -> None:
    """One call beside the recursion: results, and the gradients of the input and of weights that are trained."""
    module = make(config)
    x = torch.randn(config.steps, config.batch, config.input_size, dtype=config.dtype, requires_grad=config.frozen == 0)
    states = states_of(config) if config.states else None
    reset = None if config.reset is None else torch.rand(config.steps, config.batch) < config.reset
    reset_hx = states_of(config) if config.reset_states else None
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(int(name.partition("_l")[2].partition("_")[0]) >= config.frozen)
    is_lstm = config.cell == "LSTM"
    options: dict[str, Any] = {"reset": reset, "reset_hx": reset_hx}
    if is_lstm and config.cells:
        options["return_cells"] = True
    torch.manual_seed(3)
    y, last, *cells = module(x, states, **options)
    weight = torch.linspace(-1, 1, y.size(-1), dtype=y.dtype)
    ((y * weight).sum() + sum((value * weight[: value.size(-1)]).sum() for value in cells)).backward()

    plain = layer_of(module).requires_grad_()
    exact = x.detach().double().requires_grad_()
    torch.manual_seed(3)
    given = (doubled(states), reset, doubled(reset_hx))
    expected = written_out(module, exact, *given, weights=plain)
    weight = weight.double()
    loss = (expected[0] * weight).sum()
    if cells:
        loss = loss + (expected[3] * weight[: expected[3].size(-1)]).sum()
    loss.backward()

    tolerance = TOLERANCE[config.dtype]
    require_near("output", y.flatten(0, 1), expected[0], tolerance)
    for name, found, value in zip(("hy", "cy"), last if is_lstm else (last,), expected[1:3], strict=False):
        require_near(name, found, value, tolerance)
    for value in cells:
        require_near("cells", value.flatten(0, 1), expected[3], tolerance)
    if x.requires_grad:
        require_near("the gradient of the input", x.grad, exact.grad, tolerance)
        for found, value in weight_gradients(module, plain):
            require_near("the gradient of a weight", found, value, tolerance)
    elif config.heads == 1:
        for (name, found), value in zip(module.named_parameters(), plain.parameters(), strict=True):
            if found.requires_grad:
                require_near(f"the gradient of {name}", found.grad, value.grad, tolerance)
            elif found.grad is not None:
                raise Finding(f"{name} is frozen and has a gradient")


def run(case: Case) -> None:
    warnings.simplefilter("ignore")
    explore(case, configs(), check)


# Modules that change


def moved(module: Any) -> Any:
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()
    return module


def replaced(module: Any) -> Any:
    for name, parameter in list(module.named_parameters())[::2]:
        setattr(module, name, torch.nn.Parameter(parameter.detach() * 2))
    return module


def stepped(module: Any) -> Any:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.5)
    return module


def loaded(module: Any) -> Any:
    state = {name: torch.randn_like(value) for name, value in module.state_dict().items()}
    module.load_state_dict(state, assign=bool(torch.rand(()) < 0.5))
    return module


def saved(module: Any) -> Any:
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    return torch.load(stored, weights_only=False)


def there_and_back(module: Any) -> Any:
    has_own = isinstance(module, prnn.nn.LayerNormLSTM) or module.heads > 1
    has_own = has_own or max(module.zoneout, module.recurrent_dropout) > 0
    return module if has_own else prnn.convert(prnn.convert_back(module))


def tied(module: Any) -> Any:
    if isinstance(module, torch.nn.RNNBase) and module.bias:
        module.bias_ih_l0 = module.bias_hh_l0
    return module


def flattened(module: Any) -> Any:
    if isinstance(module, torch.nn.RNNBase):
        module.flatten_parameters()
    return module


CHANGES = {
    "moved": moved,
    "replaced": replaced,
    "stepped": stepped,
    "loaded": loaded,
    "saved": saved,
    "copied": copy.deepcopy,
    "there and back": there_and_back,
    "tied": tied,
    "shared": lambda module: module.share_memory(),
    "there and back in type": lambda module: module.float().double(),
    "flattened": flattened,
    "frozen": lambda module: module.requires_grad_(False),
    "thawed": lambda module: module.requires_grad_(True),
    "evaluated": lambda module: module.eval(),
    "trained": lambda module: module.train(),
}


@dataclass(frozen=True)
class Life:
    """A module's calls, each after a change. kind: of call."""

    cell: str
    layers: int
    normalize: str | None
    lengths: tuple[int, ...]
    events: tuple[tuple[str, str], ...]


@st.composite
def lives(draw: st.DrawFn) -> Life:
    cell = draw(st.sampled_from((*CELLS, "LayerNormLSTM")))
    kinds = st.sampled_from(("plain", "lengths", "packed", "reset", "one"))
    return Life(
        cell=cell,
        layers=draw(st.sampled_from((1, 2))),
        normalize=draw(st.sampled_from(("gates", "products"))) if cell == "LayerNormLSTM" else None,
        lengths=tuple(draw(st.lists(st.integers(1, 5), min_size=3, max_size=3))),
        events=tuple(draw(st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), kinds), min_size=1, max_size=6))),
    )


def call(life: Life, module: Any, x: Tensor, reset: Tensor, kind: str) -> list[Tensor]:
    """Results, and gradients where any is wanted."""
    lengths = torch.tensor(life.lengths)
    x = x.clone().requires_grad_()
    if kind == "packed":
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        y, last = module(packed)
        y = y.data
    elif kind == "one":
        y, last = module(x[:1])
    else:
        options: dict[str, Any] = {"lengths": {"lengths": lengths}, "reset": {"reset": reset}}.get(kind, {})
        y, last = module(x, **options)
    results = [y, *(last if isinstance(last, tuple) else (last,))]
    leaves = [x, *(parameter for parameter in module.parameters() if parameter.requires_grad)]
    return [*results, *torch.autograd.grad(y.square().sum(), leaves)]


def check_life(life: Life) -> None:
    """After each change a call equals that of a new module with the same parameters, which has no past; and on
    LayerNormLSTM's kernels each sequence equals the same one alone."""
    options: dict[str, Any] = {} if life.normalize is None else {"normalize": life.normalize}
    kind = getattr(prnn.nn, life.cell)
    module = kind(3, 4, life.layers, dtype=torch.float64, **options)
    x, reset = torch.randn(5, 3, 3, dtype=torch.float64), torch.rand(5, 3) < 0.3
    for change, form in life.events:
        module = CHANGES[change](module)
        new = kind(3, 4, life.layers, dtype=torch.float64, **options).train(module.training)
        if change == "tied" or len(list(module.parameters())) < len(list(new.parameters())):
            new = tied(new)
        new.load_state_dict(module.state_dict())
        for own, value in zip(new.parameters(), module.parameters(), strict=True):
            own.requires_grad_(value.requires_grad)
        for _ in range(2):
            found, expected = (call(life, one, x, reset, form) for one in (module, new))
            for place, (value, wanted) in enumerate(zip(found, expected, strict=True)):
                if not off(value.detach(), wanted.detach()) <= 1e-12:
                    raise Finding(f"result {place} of a {form} call after {change} is another than a new module's")
        check_alone(life, module, x, reset)


def check_alone(life: Life, module: Any, x: Tensor, reset: Tensor) -> None:
    """Lengths and resets: each sequence, and each of its pieces, as if it were alone."""
    with torch.no_grad():
        y, _ = module(x, lengths=life.lengths)
        again, _ = module(x, reset=reset)
        for n, length in enumerate(life.lengths):
            if off(y[:length, n], module(x[:length, n])[0]) > 1e-12:
                raise Finding(f"sequence {n} of a call with lengths is another than alone")
            begins = [0, *(t for t in range(1, 5) if reset[t, n]), 5]
            for begin, end in itertools.pairwise(begins):
                if off(again[begin:end, n], module(x[begin:end, n])[0]) > 1e-12:
                    raise Finding(f"timesteps {begin} to {end} of sequence {n} of a call with resets are others")


def run_lives(case: Case) -> None:
    warnings.simplefilter("ignore")
    explore(case, lives(), check_life)

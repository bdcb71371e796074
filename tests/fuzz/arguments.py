"""One wrong argument in a call of each public function: a TypeError, ValueError or NotSupportedError that speaks of the
function's arguments, or a result."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from reference import transducer as slow
from torch import Tensor

import prnn
from fuzz.case import Case, Finding
from prnn.losses import pruned
from prnn.transducer import Transducer, TransducerConfig

CALLS = 60
REFUSALS = (TypeError, ValueError, prnn.NotSupportedError)
N, T, U, V, D = 2, 5, 3, 4, 3
NUMBERS: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 7, 2**31, 2**63, -(2**63) - 1, 2**70, 0.5, 1.0, -0.5, 1e308, 5e-324,
    float("nan"), float("inf"), -float("inf"), complex(1, 1),
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    "", "mean", "x" * 200, "\ud800", b"none", [], [1], [[1], [2]], [None], [2**70], (), (1.5, 2.5), {}, {"a": 1},
    {1, 2}, range(2), object(), int, len, np.float32(1), np.int64(3), np.zeros(2), np.array([3, 2]), np.array(["a"]),
)  # fmt: skip
DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.bool, torch.uint8, torch.int8,
    torch.int16, torch.int32, torch.int64,
)  # fmt: skip
NUMERIC_LIMITS = ("clamp", "delay_penalty", "fastemit_lambda", "sigma", "omega", "dropout")


def lengths() -> dict[str, Any]:
    return {"logit_lengths": torch.tensor([T, 3]), "target_lengths": torch.tensor([U, 1])}


def targets() -> Tensor:
    return torch.randint(1, V, (N, U))


def lattice() -> Tensor:
    return torch.randn(N, T, U + 1, V, requires_grad=True)


def boundary() -> Tensor:
    return torch.tensor([[0, 0, U, T], [0, 0, 1, 3]])


def added() -> dict[str, Any]:
    shared = {"symbols": targets(), "termination_symbol": 0, "boundary": boundary(), "rnnt_type": "regular"}
    return {
        "lm": torch.randn(N, U + 1, V),
        "am": torch.randn(N, T, V),
        **shared,
        "delay_penalty": 0.1,
        "reduction": "sum",
    }


def ranges() -> Tensor:
    begins = torch.tensor([[0, 0, 1, 2, 2], [0, 0, 0, 0, 0]])
    return begins.unsqueeze(2) + torch.arange(2)


def layer_options() -> dict[str, Any]:
    options = {"input_size": 3, "hidden_size": 4, "num_layers": 2, "bias": True, "batch_first": False, "dropout": 0.1}
    return options | {"bidirectional": True, "device": "cpu", "dtype": torch.float32, "backend": "best"}


def model(**options: Any) -> Transducer:
    return slow.tiny_model(0, dtype=torch.float32, **options)


def batch() -> dict[str, Any]:
    shared = {"features": torch.randn(N, 8, 4), "feature_lengths": torch.tensor([8, 5])}
    return {**shared, "targets": torch.randint(1, 5, (N, U)), "target_lengths": torch.tensor([U, 1])}


def config_values() -> dict[str, Any]:
    return TransducerConfig(
        vocab_size=5, feature_dim=4, encoder_layers=1, encoder_hidden=6, predictor_hidden=5, joiner_dim=4
    ).to_dict()


def build(**values: Any) -> None:
    """A model of a configuration, if that is taken, so that one that is can be built."""
    config = TransducerConfig(**values)
    sizes = [value for value in values.values() if isinstance(value, int)]
    if all(size <= 64 for size in sizes):
        Transducer.from_config(config)


CONSTRUCTORS = (prnn.nn.RNN, prnn.nn.GRU, prnn.nn.LSTM)
FUNCTIONS: dict[str, Callable[[], tuple[Callable[..., Any], dict[str, Any]]]] = {
    "ctc_loss": lambda: (
        prnn.ctc_loss,
        {
            "log_probs": torch.randn(T, N, V, requires_grad=True),
            "targets": targets(),
            "input_lengths": torch.tensor([T, 3]),
            "target_lengths": torch.tensor([2, 1]),
            "blank": 0,
            "reduction": "none",
            "zero_infinity": False,
            "from_logits": True,
            "inplace": False,
            "max_target_length": None,
        },
    ),
    "rnnt_loss": lambda: (
        prnn.rnnt_loss,
        {
            "logits": lattice(),
            "targets": targets(),
            **lengths(),
            "blank": 0,
            "clamp": 0.5,
            "reduction": "none",
            "fused_log_softmax": True,
            "fastemit_lambda": 0.1,
            "delay_penalty": 0.1,
            "rnnt_type": "regular",
            "gathered": False,
            "average_frames": True,
            "zero_infinity": True,
            "inplace": False,
            "max_frames": None,
            "max_target_length": None,
            "return_grad": True,
        },
    ),
    "tdt_loss": lambda: (
        prnn.tdt_loss,
        {
            "logits": lattice(),
            "targets": targets(),
            **lengths(),
            "blank": 0,
            "durations": [0, 1, 2],
            "reduction": "sum",
            "fastemit_lambda": 0.1,
            "clamp": 0.5,
            "sigma": 0.05,
            "omega": 0.1,
            "duration_logits": torch.randn(N, T, U + 1, 3),
            "zero_infinity": False,
        },
    ),
    "multi_blank_rnnt_loss": lambda: (
        prnn.multi_blank_rnnt_loss,
        {
            "logits": torch.randn(N, T, U + 1, V + 2, requires_grad=True),
            "targets": targets() - 1,
            **lengths(),
            "blank": V + 1,
            "big_blank_durations": [2, 3],
            "reduction": "mean",
            "fastemit_lambda": 0.1,
            "clamp": 0.5,
            "sigma": 0.05,
            "zero_infinity": False,
        },
    ),
    "joint_rnnt_loss": lambda: (
        prnn.joint_rnnt_loss,
        {
            "encoder_out": torch.randn(N, T, D, requires_grad=True),
            "predictor_out": torch.randn(N, U + 1, D),
            "weight": torch.randn(V, D),
            "bias": torch.randn(V),
            "targets": targets(),
            **lengths(),
            "blank": 0,
            "clamp": 0.5,
            "reduction": "sum",
            "activation": "tanh",
            "dropout": 0.1,
            "fastemit_lambda": 0.1,
            "delay_penalty": 0.1,
            "rnnt_type": "modified",
            "zero_infinity": False,
            "ranges": ranges(),
            "block_elements": 50,
        },
    ),
    "joint_tdt_loss": lambda: (
        prnn.joint_tdt_loss,
        {
            "encoder_out": torch.randn(N, T, D, requires_grad=True),
            "predictor_out": torch.randn(N, U + 1, D),
            "weight": torch.randn(V + 2, D),
            "bias": torch.randn(V + 2),
            "targets": targets(),
            **lengths(),
            "blank": 0,
            "durations": [0, 1],
            "reduction": "sum",
            "fastemit_lambda": 0.1,
            "clamp": 0.5,
            "sigma": 0.05,
            "omega": 0.1,
            "activation": "tanh",
            "dropout": 0.1,
            "zero_infinity": False,
            "block_elements": 50,
        },
    ),
    "rnnt_loss_simple": lambda: (prnn.rnnt_loss_simple, {**added(), "return_grad": True}),
    "rnnt_loss_smoothed": lambda: (
        prnn.rnnt_loss_smoothed,
        {**added(), "lm_only_scale": 0.1, "am_only_scale": 0.2, "return_grad": False},
    ),
    "rnnt_loss_pruned": lambda: (
        prnn.rnnt_loss_pruned,
        {
            "logits": torch.randn(N, T, 2, V, requires_grad=True),
            "symbols": targets(),
            "ranges": ranges(),
            "termination_symbol": 0,
            "boundary": boundary(),
            "rnnt_type": "modified",
            "delay_penalty": 0.1,
            "reduction": "sum",
            "return_grad": False,
        },
    ),
    "pruned.rnnt_loss": lambda: (
        pruned.rnnt_loss,
        {
            "logits": lattice(),
            "symbols": targets(),
            "termination_symbol": 0,
            "boundary": boundary(),
            "rnnt_type": "regular",
            "delay_penalty": 0.1,
            "reduction": "sum",
            "return_grad": False,
        },
    ),
    "mutual_information_recursion": lambda: (
        prnn.mutual_information_recursion,
        {"px": torch.randn(N, U, T + 1), "py": torch.randn(N, U + 1, T), "boundary": boundary(), "return_grad": True},
    ),
    "get_rnnt_prune_ranges": lambda: (
        prnn.get_rnnt_prune_ranges,
        {"px_grad": torch.rand(N, U, T + 1), "py_grad": torch.rand(N, U + 1, T), "boundary": boundary(), "s_range": 2},
    ),
    "do_rnnt_pruning": lambda: (
        prnn.do_rnnt_pruning,
        {"am": torch.randn(N, T, D), "lm": torch.randn(N, U + 1, D), "ranges": ranges()},
    ),
    "forced_align": lambda: (
        prnn.forced_align,
        {
            "activations": lattice(),
            "targets": targets(),
            "input_lengths": torch.tensor([T, 3]),
            "target_lengths": torch.tensor([U, 1]),
            "blank": 0,
            "from_logits": True,
            "rnnt_type": "regular",
            "delay_penalty": 0.1,
        },
    ),
    "LSTM": lambda: (prnn.nn.LSTM, {**layer_options(), "proj_size": 2}),
    "GRU": lambda: (prnn.nn.GRU, layer_options()),
    "RNN": lambda: (prnn.nn.RNN, {**layer_options(), "nonlinearity": "relu"}),
    "GRU.forward": lambda: (
        prnn.nn.GRU(3, 4, 2).forward,
        {"input": torch.randn(T, N, 3), "hx": torch.randn(2, N, 4), "lengths": torch.tensor([T, 2])},
    ),
    "LSTM.forward": lambda: (
        prnn.nn.LSTM(3, 4, 2, proj_size=2).forward,
        {"input": torch.randn(T, N, 3), "hx": (torch.randn(2, N, 2), torch.randn(2, N, 4)), "lengths": [T, 2]},
    ),
    "Transducer.loss_parts": lambda: (model(ctc_weight=0.3).loss_parts, batch()),
    "Transducer.loss_parts, pruned": lambda: (model(loss="pruned", prune_range=2).loss_parts, batch()),
    "Transducer.loss_parts, tdt": lambda: (model(loss="tdt").loss_parts, batch()),
    "Transducer.greedy_search": lambda: (
        model().greedy_search,
        {"features": torch.randn(N, 8, 4), "feature_lengths": torch.tensor([8, 5]), "max_symbols": 2},
    ),
    "Transducer.beam_search": lambda: (
        model().beam_search,
        {
            "features": torch.randn(N, 8, 4),
            "feature_lengths": torch.tensor([8, 5]),
            "beam": 2,
            "mode": "standard",
            "nbest": 2,
            "max_symbols": 2,
            "length_norm": False,
        },
    ),
    "Transducer.stream_init": lambda: (
        model().stream_init,
        {"batch": 2, "search": "modified", "beam": 2, "max_symbols": 2},
    ),
    "Transducer.stream_step": lambda: stream_step(),
    "TransducerConfig": lambda: (build, config_values()),
    "convert": lambda: (prnn.convert, {"model": torch.nn.Sequential(torch.nn.GRU(2, 3)), "backend": "best"}),
}


def stream_step() -> tuple[Callable[..., Any], dict[str, Any]]:
    made = model()
    chunk = {"chunk": torch.randn(N, 4, 4), "chunk_lengths": torch.tensor([4, 2])}
    return made.stream_step, {**chunk, "state": made.stream_init(N)}


def wrong_tensor(case: Case, value: Tensor) -> Tensor:
    """A tensor that is not as `value` in one respect."""
    random, plain = case.random, value.detach()
    how = random.choice(("dtype", "dtype", "shape", "shape", "values", "meta", "strides", "empty"))
    if how == "dtype":
        return plain.to(random.choice(DTYPES))
    if how == "shape":
        ways = (
            plain.unsqueeze(0),
            plain[..., None],
            plain[:1],
            plain[..., :1],
            torch.cat((plain, plain)),
            plain.flatten(),
        )
        return random.choice((*ways, plain.reshape(-1)[0], plain.T if plain.dim() == 2 else plain[None]))
    if how == "meta":
        return plain.to("meta")
    if how == "empty":
        shape = list(plain.shape)
        shape[random.randrange(len(shape))] = 0
        return plain.new_zeros(shape)
    if how == "strides":
        return plain.flip(0)[..., :].mT.contiguous().mT if plain.dim() > 1 else plain.expand(plain.shape)
    changed = plain.clone()
    if plain.is_floating_point():
        extremes: tuple[Any, ...] = (float("nan"), float("inf"), -float("inf"), 3e38, 0.0)
    else:
        extremes = (-1, V, 2**31 - 1, -(2**31), 2**62, -(2**62), 100)
        extremes = tuple(v for v in extremes if torch.iinfo(plain.dtype).min <= v <= torch.iinfo(plain.dtype).max)
    changed.view(-1)[random.randrange(changed.numel())] = random.choice(extremes)
    return changed


def wrong_value(case: Case, value: Any) -> Any:
    if isinstance(value, Tensor) and case.random.random() < 0.75:
        return wrong_tensor(case, value)
    if isinstance(value, tuple) and all(isinstance(item, Tensor) for item in value) and case.random.random() < 0.75:
        index = case.random.randrange(len(value))
        return (*value[:index], wrong_value(case, value[index]), *value[index + 1 :])
    if isinstance(value, list) and case.random.random() < 0.5:
        return [*value[:-1], case.random.choice((*NUMBERS, *OTHERS))]
    if isinstance(value, bool):
        return case.random.choice([item for item in (*NUMBERS, *OTHERS) if not isinstance(item, np.ndarray)])
    pool = NUMBERS if isinstance(value, int | float) and case.random.random() < 0.7 else OTHERS
    return case.random.choice(pool if case.random.random() < 0.8 else NUMBERS)


def described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {value.dtype}, {value.layout}, on {value.device}"
    return repr(value)[:100].encode(errors="backslashreplace").decode()


def on_meta(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(on_meta, value))
    return isinstance(value, Tensor) and value.device.type == "meta"


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def attempt(case: Case) -> None:
    name = case.random.choice(list(FUNCTIONS))
    function, arguments = FUNCTIONS[name]()
    argument = case.random.choice(list(arguments))
    value = wrong_value(case, arguments[argument])
    if argument == "num_layers" and isinstance(value, int) and value > 100:
        return  # torch makes them, one after the other
    what = f"{name} with {argument} {described(value)}"
    case.note(what)
    case.counts["calls"] += 1
    must_fail = on_meta(value) or (isinstance(value, Tensor) and value.is_complex())
    must_fail = must_fail or (argument in NUMERIC_LIMITS and is_nan(value))
    try:
        function(**{**arguments, argument: value})
    except REFUSALS as error:
        case.counts["refused"] += 1
        if not on_meta(value):
            require_message(what, str(error), argument, function)
    except Exception as error:
        by_torch = function in CONSTRUCTORS and torch_refuses(function, arguments, argument, value, type(error))
        too_much = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
        if by_torch or too_much or on_meta(value):  # torch's own words for a device on which there are no values
            case.counts["refused"] += 1
            return
        raise Finding(f"{what}: {type(error).__name__}: {error}") from error
    else:
        if must_fail:
            raise Finding(f"{what} was taken")


def torch_refuses(function: Any, arguments: dict[str, Any], name: str, value: Any, error: type[Exception]) -> bool:
    """Whether torch's own layer ends just so."""
    changed = {key: item for key, item in {**arguments, name: value}.items() if key != "backend"}
    try:
        getattr(torch.nn, function.__name__)(**changed)
    except error:
        return True
    except Exception:
        return False
    return False


def require_message(what: str, message: str, argument: str, function: Callable[..., Any]) -> None:
    """The message names an argument of the function, and none of the C API's."""
    if function in CONSTRUCTORS and argument != "backend":
        return  # torch's own words
    foreign = re.search(r"\b(?!NoneType\b)[a-z]+[A-Z]\w*", message)
    names = list(TransducerConfig.__dataclass_fields__ if function is build else inspect.signature(function).parameters)
    named = any(re.search(rf"\b{name}\b", message) for name in names)
    if foreign or not named or not message.isprintable():
        raise Finding(f"{what}: the message is {message!r}")


def run(case: Case) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(case.random.getrandbits(32))
    findings: dict[str, str] = {}
    for _ in range(CALLS):
        try:
            attempt(case)
        except Finding as finding:
            findings.setdefault(str(finding), str(finding))
    if findings:
        raise Finding("\n".join(findings))

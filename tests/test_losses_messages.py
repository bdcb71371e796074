"""Each argument of each public loss wrong in turn: the error names the argument as Python has it, and the value."""

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import prnn
from prnn.losses import pruned

N, T, U, V, D, R = 2, 7, 3, 6, 4, 3
TARGETS = torch.tensor([[1, 2, 3], [4, 4, 1]])
FRAMES, SYMBOLS = torch.tensor([7, 6]), torch.tensor([3, 2])
BOUNDARY = torch.tensor([[0, 0, 3, 7], [0, 0, 2, 6]])
RANGES = (torch.arange(T) // 3).clamp(max=1).expand(N, -1)[:, :, None] + torch.arange(R)
LOGITS = torch.randn(N, T, U + 1, V)
PX, PY = torch.randn(N, U, T + 1), torch.randn(N, U + 1, T)

BATCH = {"targets": TARGETS, "logit_lengths": FRAMES, "target_lengths": SYMBOLS}
SIMPLE: dict[str, Any] = {
    "lm": torch.randn(N, U + 1, V),
    "am": torch.randn(N, T, V),
    "symbols": TARGETS,
    "termination_symbol": 0,
    "boundary": BOUNDARY,
}
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "ctc_loss": (
        prnn.ctc_loss,
        {
            "log_probs": torch.randn(T, N, V),
            "targets": TARGETS,
            "input_lengths": FRAMES,
            "target_lengths": SYMBOLS,
        },
    ),
    "rnnt_loss": (prnn.rnnt_loss, {"logits": LOGITS, **BATCH, "blank": 0}),
    "tdt_loss": (
        prnn.tdt_loss,
        {"logits": LOGITS, **BATCH, "blank": 0, "durations": [0, 1], "duration_logits": torch.randn(N, T, U + 1, 2)},
    ),
    "multi_blank_rnnt_loss": (
        prnn.multi_blank_rnnt_loss,
        {"logits": torch.randn(N, T, U + 1, V + 1), **BATCH, "blank": 6, "big_blank_durations": [2]},
    ),
    "joint_rnnt_loss": (
        prnn.joint_rnnt_loss,
        {
            "encoder_out": torch.randn(N, T, D),
            "predictor_out": torch.randn(N, U + 1, D),
            "weight": torch.randn(V, D),
            "bias": torch.randn(V),
            **BATCH,
            "blank": 0,
        },
    ),
    "joint_tdt_loss": (
        prnn.joint_tdt_loss,
        {
            "encoder_out": torch.randn(N, T, D),
            "predictor_out": torch.randn(N, U + 1, D),
            "weight": torch.randn(V + 2, D),
            "bias": torch.randn(V + 2),
            **BATCH,
            "blank": 0,
            "durations": [0, 1],
        },
    ),
    "joint_rnnt_loss, ranges": (
        prnn.joint_rnnt_loss,
        {
            "encoder_out": torch.randn(N, T, D),
            "predictor_out": torch.randn(N, U + 1, D),
            "weight": torch.randn(V, D),
            "bias": torch.randn(V),
            **BATCH,
            "blank": 0,
            "ranges": RANGES,
        },
    ),
    "forced_align, CTC": (
        prnn.forced_align,
        {
            "activations": torch.randn(N, T, V),
            "targets": TARGETS,
            "input_lengths": FRAMES,
            "target_lengths": SYMBOLS,
            "blank": 0,
        },
    ),
    "forced_align, RNN-T": (
        prnn.forced_align,
        {
            "activations": LOGITS,
            "targets": TARGETS,
            "input_lengths": FRAMES,
            "target_lengths": SYMBOLS,
            "blank": 0,
        },
    ),
    "rnnt_loss_simple": (prnn.rnnt_loss_simple, SIMPLE),
    "rnnt_loss_smoothed": (prnn.rnnt_loss_smoothed, SIMPLE),
    "get_rnnt_logprobs": (pruned.get_rnnt_logprobs, SIMPLE),
    "get_rnnt_logprobs_smoothed": (pruned.get_rnnt_logprobs_smoothed, SIMPLE),
    "get_rnnt_logprobs_joint": (
        pruned.get_rnnt_logprobs_joint,
        {"logits": LOGITS, "symbols": TARGETS, "termination_symbol": 0, "boundary": BOUNDARY},
    ),
    "get_rnnt_logprobs_pruned": (
        pruned.get_rnnt_logprobs_pruned,
        {
            "logits": LOGITS[:, :, :R],
            "symbols": TARGETS,
            "ranges": RANGES,
            "termination_symbol": 0,
            "boundary": BOUNDARY,
        },
    ),
    "pruned.rnnt_loss": (
        pruned.rnnt_loss,
        {"logits": LOGITS, "symbols": TARGETS, "termination_symbol": 0, "boundary": BOUNDARY},
    ),
    "rnnt_loss_pruned": (
        prnn.rnnt_loss_pruned,
        {
            "logits": LOGITS[:, :, :R],
            "symbols": TARGETS,
            "ranges": RANGES,
            "termination_symbol": 0,
            "boundary": BOUNDARY,
        },
    ),
    "get_rnnt_prune_ranges": (
        prnn.get_rnnt_prune_ranges,
        {"px_grad": PX.sigmoid(), "py_grad": PY.sigmoid(), "boundary": BOUNDARY, "s_range": R},
    ),
    "do_rnnt_pruning": (
        prnn.do_rnnt_pruning,
        {"am": torch.randn(N, T, D), "lm": torch.randn(N, U + 1, D), "ranges": RANGES},
    ),
    "mutual_information_recursion": (
        prnn.mutual_information_recursion,
        {"px": PX, "py": PY, "boundary": BOUNDARY},
    ),
    "joint_mutual_information_recursion": (
        pruned.joint_mutual_information_recursion,
        {"px": [PX, PX], "py": [PY, PY], "boundary": BOUNDARY},
    ),
}

Row = tuple[Any, type[Exception], str]  # a bad value, what is raised, and how the message shows the value


def changed(tensor: torch.Tensor, *places: tuple[Any, int]) -> torch.Tensor:
    result = tensor.clone()
    for place, value in places:
        result[place] = value
    return result


def activations(good: torch.Tensor) -> list[Row]:
    shape = tuple(good.shape)
    return [
        ([1.0], TypeError, "a list"),
        (None, TypeError, "a NoneType"),
        (good.long(), TypeError, "torch.int64"),
        (good.to(torch.complex64), TypeError, "torch.complex64"),
        (good.to_sparse(), TypeError, "torch.sparse_coo"),
        (good[None, None], ValueError, str((1, 1, *shape))),
        (good[:0], ValueError, str((0, *shape[1:]))),
        (good.to("meta"), ValueError, "meta"),
    ]


def integers(good: torch.Tensor) -> list[Row]:
    shape = tuple(good.shape)
    return [
        ("abc", TypeError, "a str"),
        ({}, TypeError, "a dict"),
        (good.float(), TypeError, "torch.float32"),
        (good.to(torch.complex64), TypeError, "torch.complex64"),
        (good.bool(), TypeError, "torch.bool"),
        (good.to_sparse(), TypeError, "torch.sparse_coo"),
        ([1.5, 2.5], TypeError, "torch.float32"),
        ([1j, 2j], TypeError, "torch.complex64"),
        (["a", "b"], ValueError, "['a', 'b']"),
        ([[1, 2], [3]], ValueError, "[[1, 2], [3]]"),
        ([2**70, 1], ValueError, str(2**70)),
        (good[:1], ValueError, str((1, *shape[1:]))),
        (good[..., None], ValueError, str((*shape, 1))),
        (good.to("meta"), ValueError, "meta"),
    ]


def lengths(good: torch.Tensor, most: int, least: int) -> list[Row]:
    return [
        *integers(good),
        (changed(good, (0, most + 1)), ValueError, f"[0] is {most + 1}; it must be {least} to {most}"),
        (changed(good, (1, least - 1)), ValueError, f"[1] is {least - 1}; it must be {least} to {most}"),
        (changed(good, (1, -100)), ValueError, "[1] is -100"),
        (changed(good, (1, 2**40)), ValueError, "[1] is 2147483647"),
        (np.array([1.0, 2.0]), TypeError, "torch.float64"),
    ]


def targets(good: torch.Tensor, bad: tuple[int, ...]) -> list[Row]:
    return [
        *integers(good),
        *((changed(good, ((1, 1), symbol)), ValueError, f"{symbol}") for symbol in (*bad, -100)),
        (good[:, :-1], ValueError, str((N, U - 1))),
    ]


BOUNDARIES: list[Row] = [
    *integers(BOUNDARY),
    (changed(BOUNDARY, ((1, 0), -1)), ValueError, "[1] has s_begin -1 and s_end 2"),
    (changed(BOUNDARY, ((1, 2), -100)), ValueError, "[1] has s_begin 0 and s_end -100"),
    (changed(BOUNDARY, ((1, 0), 3)), ValueError, "[1] has s_begin 3 and s_end 2"),
    (changed(BOUNDARY, ((0, 2), 4)), ValueError, "[0] has s_begin 0 and s_end 4; they must rise from 0 to at most 3"),
    (changed(BOUNDARY, ((0, 1), 9)), ValueError, "[0] has t_begin 9 and t_end 7"),
    (changed(BOUNDARY, ((0, 3), 8)), ValueError, "[0] has t_begin 0 and t_end 8; they must rise from 0 to at most 7"),
]
WRONG_INTEGERS: list[Row] = [(value, TypeError, repr(value)) for value in (1.0, True, "1", None, 1j)]
WRONG_NUMBERS: list[Row] = [
    *((value, TypeError, repr(value)) for value in ("0.1", None, True, 1j)),
    (math.nan, ValueError, "nan"),
    (10**400, ValueError, "beyond what a float holds"),
]
INFINITIES: list[Row] = [(math.inf, ValueError, "inf"), (-math.inf, ValueError, "-inf")]
FLAGS: list[Row] = [(value, TypeError, repr(value)) for value in ("no", None, 2, [])]
NAMES: list[Row] = [(value, ValueError, repr(value)) for value in ("other", None, True, 0)]


def blanks(classes: int, least: int | None = None) -> list[Row]:
    low = -classes if least is None else least
    rows: list[Row] = [(value, ValueError, str(value)) for value in (classes, low - 1)]
    return rows + WRONG_INTEGERS


def rows_of(case: str, arguments: dict[str, Any], name: str) -> list[Row]:
    good = arguments.get(name)
    if name in ("px", "py") and isinstance(good, list):
        return [
            (None, TypeError, "a NoneType"),
            ([1.0], TypeError, "a list"),
            ([], ValueError, "[]"),
            ([good[0], good[1].double()], ValueError, "torch.float64"),
            ([good[0]], ValueError, "1 "),
        ]
    if name in ("px", "py", "px_grad", "py_grad"):
        return [row for row in activations(good) if row[2] not in ("torch.sparse_coo",)] + [
            (good.double(), TypeError, "torch.float64"),
            (good[:, :-1], ValueError, str(tuple(good[:, :-1].shape))),
        ]
    if name in ("lm", "am"):
        return [*activations(good), (good[:1], ValueError, str((1, *good.shape[1:])))]
    if name in ("logits", "activations"):
        rows = activations(good)
        if good.dim() == 4 and "ranges" not in arguments:
            rows.append((good[:, :, :-1], ValueError, str((N, T, U, good.shape[3]))))
        return rows
    if name in ("log_probs", "encoder_out", "predictor_out", "weight", "duration_logits", "bias"):
        rows = [row for row in activations(good) if not (row[0] is None and name in ("bias", "duration_logits"))]
        if name not in ("log_probs", "encoder_out"):
            rows.append((good[:-1], ValueError, str((good.shape[0] - 1, *good.shape[1:]))))
        if name == "predictor_out":
            rows.append((good[:, :-1], ValueError, str((N, U, D))))
        return rows
    if name in ("logit_lengths", "input_lengths"):
        return lengths(good, T, 0 if "log_probs" in arguments or case == "forced_align, CTC" else 1)
    if name == "target_lengths":
        return lengths(good, U, 0)
    if name == "targets":
        classes = 7 if "big_blank_durations" in arguments else V
        bad = (-1, classes, *((6, 5) if "big_blank_durations" in arguments else (0,)))
        return [row for row in targets(good, bad) if not (case in FREE_WIDTH and row[2] == str((N, U - 1)))]
    if name == "symbols":
        return [row for row in targets(good, (-1, V)) if "ranges" not in arguments or row[2] != str((N, U - 1))]
    if name == "boundary":
        return BOUNDARIES
    if name == "ranges" and good is None:
        good = RANGES
    if name == "ranges":
        return [
            *integers(good),
            (good[:, :-1], ValueError, str((N, T - 1, R))),
            (good - 1, ValueError, "-1"),
            (good - 100, ValueError, "-100"),
            (good + 3, ValueError, "4" if case.startswith("joint") else "6"),
        ]
    if name in ("durations", "big_blank_durations"):
        return [
            (3, TypeError, "a int"),
            ("01", TypeError, "a str"),
            ([1.0, 2], TypeError, "[0] is 1.0"),
            ([-1, 2], ValueError, "[0] is -1"),
            ([2, 2], ValueError, "are both 2"),
            ([*range(2, 20)], ValueError, "18"),
        ]
    if name == "blank":
        rows = blanks(7 if "big_blank_durations" in arguments else V)
        return [row for row in rows if not (row[0] is None and case.startswith("forced_align"))]
    if name == "termination_symbol":
        return blanks(V)
    if name == "clamp":
        return WRONG_NUMBERS
    if name in ("delay_penalty", "sigma", "lm_only_scale", "am_only_scale"):
        return WRONG_NUMBERS + INFINITIES
    if name == "fastemit_lambda":
        return [*WRONG_NUMBERS, *INFINITIES, (-0.5, ValueError, "-0.5")]
    if name == "dropout":
        return [*WRONG_NUMBERS, *INFINITIES, (-0.5, ValueError, "-0.5"), (1.0, ValueError, "1.0")]
    if name == "omega":
        return [*WRONG_NUMBERS, *INFINITIES, (-0.5, ValueError, "-0.5"), (1.5, ValueError, "1.5")]
    if name in ("reduction", "rnnt_type", "activation"):
        return NAMES
    if name in ("s_range", "block_elements"):
        rows = [row for row in WRONG_INTEGERS if row[0] is not None]
        return [*rows, (0, ValueError, "0"), (-3, ValueError, "-3")]
    if name in ("max_frames", "max_target_length"):
        rows = [row for row in WRONG_INTEGERS if row[0] is not None]
        return [*rows, (-1, ValueError, "-1"), (3, ValueError, "3")]
    assert name in FLAG_NAMES, f"{name} of {case} has no rows"
    return FLAGS


FREE_WIDTH = ("ctc_loss", "forced_align, CTC")  # targets (N, L) of any L
FLAG_NAMES = (
    "zero_infinity",
    "from_logits",
    "inplace",
    "return_grad",
    "gathered",
    "average_frames",
    "fused_log_softmax",
)


@pytest.mark.parametrize(
    ("case", "name"),
    [(case, name) for case, (function, _) in CASES.items() for name in inspect.signature(function).parameters],
)
def test_messages_name_the_argument_and_its_value(case: str, name: str) -> None:
    function, arguments = CASES[case]
    for value, error, shown in rows_of(case, arguments, name):
        with pytest.raises(error) as caught:
            function(**{**arguments, name: value})
        message = str(caught.value)
        if shown == "meta" and name in ("log_probs", "logits", "activations"):
            assert "on meta" in message  # where the others are not
            continue
        assert re.search(rf"(?<!\w){name}(?!\w)", message), (value, message)
        assert shown in message, (value, message)


def test_every_public_function_has_rows() -> None:
    functions = {function for function, _ in CASES.values()}
    for module in (prnn.losses, pruned):
        for name in module.__all__:
            value = getattr(module, name)
            assert value in functions or inspect.isclass(value), name


@pytest.mark.parametrize("case", CASES)
def test_the_cases_are_good(case: str) -> None:
    function, arguments = CASES[case]
    function(**arguments)


@pytest.mark.parametrize("case", [name for name, (_, arguments) in CASES.items() if "target_lengths" in arguments])
@pytest.mark.parametrize("kind", [np.array, list, lambda x: torch.tensor(x, dtype=torch.uint16), "numbers"])
def test_lengths_of_any_kind(case: str, kind: Any) -> None:
    function, arguments = CASES[case]
    wanted = function(**arguments)

    def convert(x: torch.Tensor) -> Any:
        return [np.int64(value) for value in x.tolist()] if kind == "numbers" else kind(x.tolist())

    names = [name for name in arguments if name.endswith("lengths")] + ["targets"] * (kind != "numbers")
    got = function(**{**arguments, **{name: convert(arguments[name]) for name in names}})
    assert torch.equal(wanted[0] if isinstance(wanted, tuple) else wanted, got[0] if isinstance(got, tuple) else got)


def test_numbers_of_numpy() -> None:
    wanted = prnn.rnnt_loss(LOGITS, **BATCH, blank=0, clamp=0.5, fastemit_lambda=0.25, zero_infinity=True)
    got = prnn.rnnt_loss(
        LOGITS,
        **BATCH,
        blank=np.int64(0),
        clamp=np.float32(0.5),
        fastemit_lambda=np.float64(0.25),
        zero_infinity=np.bool_(True),
    )
    assert torch.equal(wanted, got)


@pytest.mark.parametrize("loss", [prnn.ctc_loss, prnn.rnnt_loss])
def test_options_like_those_of_an_earlier_call_are_checked(loss: Callable[..., torch.Tensor]) -> None:
    """1 and True are equal, and a call with 1 was fine; a list has no hash."""
    shape = (4, 1, 3) if loss is prnn.ctc_loss else (1, 4, 2, 3)
    arguments = torch.zeros(shape), torch.tensor([[2]]), [4], [1]
    loss(*arguments, blank=1, zero_infinity=1)
    for blank, said in ((True, "blank is True"), (1.0, r"blank is 1\.0"), ([1], r"blank is \[1\]")):
        with pytest.raises(TypeError, match=said):
            loss(*arguments, blank=blank, zero_infinity=1)
    with pytest.raises(TypeError, match=r"zero_infinity is \[1\]; it must be True or False"):
        loss(*arguments, blank=1, zero_infinity=[1])
    assert not loss(*arguments, blank=1, zero_infinity=1).isnan()

"""The resident beam search: the kernels' own source, run on the CPU under random schedules, finds what the library's
beam search on the CPU does."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import pytest
import torch
from decode_case import DecodeCase, assert_beams
from kernels_on_cpu import build
from kernels_on_cpu.build import Builder, Edit, first_of_each, is_found
from kernels_on_cpu.decode import beam_search

pytestmark = build.marks("kernels_on_cpu_beam")

TOLERANCE = 2e-4
MODELS: list[dict[str, Any]] = [
    {},
    {"layers": 2, "blank": 4, "activation": "relu"},
    {"predictor": "gru", "layers": 2, "hidden": 33, "joiner": 64},
    {"predictor": "stateless", "context": 3, "classes": 90, "blank": 89},
    {"classes": 300, "hidden": 40, "joiner": 48, "blank": 150},
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return Builder(tmp_path_factory, "-fsanitize=undefined", "-fno-sanitize-recover=undefined").run_beam("beam")


def make_case(dtype: torch.dtype = torch.float32, blank_bias: float = 1.5, **options: Any) -> DecodeCase:
    case = DecodeCase(dtype=dtype, projected=True, **options)
    assert case.weights["outputBias"] is not None
    case.weights["outputBias"][case.blank] += blank_bias
    return case


@pytest.mark.parametrize(
    ("beam", "options"),
    first_of_each(
        lambda beam, options: beam,
        [(4, model) for model in MODELS]
        + [(beam, MODELS[n]) for beam, models in ((1, (0, 2)), (7, (0, 4)), (16, (0, 1, 3))) for n in models],
    ),
    ids=str,
)
def test_as_on_the_cpu(program: pathlib.Path, beam: int, options: dict[str, Any]) -> None:
    case = make_case(**options)
    frames, lengths = case.frames(4, 11), [11, 0, 1, 9]
    found = beam_search(program, case, frames, lengths, beam, blocks=3, utterances=2)
    assert_beams(found, case.beam_search(frames, lengths, beam), TOLERANCE)


@pytest.mark.parametrize("blank_bias", [6.0, 12.0])
@pytest.mark.parametrize("options", MODELS[:2], ids=str)
def test_windows(program: pathlib.Path, options: dict[str, Any], blank_bias: float) -> None:
    """Windows of four and of two frames, of which most have blanks alone."""
    case = make_case(blank_bias=blank_bias, **options)
    frames, lengths = case.frames(3, 30), [30, 17, 29]
    expected = case.beam_search(frames, lengths)
    assert any(h.symbols for h in expected[0])
    for utterances, column_tiles in ((1, 2), (1, 1), (4, 2)):
        where = {"blocks": 2, "utterances": utterances, "column_tiles": column_tiles}
        assert_beams(beam_search(program, case, frames, lengths, **where), expected, TOLERANCE)


@pytest.mark.parametrize("options", MODELS[1:], ids=str)
def test_models(program: pathlib.Path, options: dict[str, Any]) -> None:
    case = make_case(**options)
    frames, lengths = case.frames(2, 8), [8, 7]
    found = beam_search(program, case, frames, lengths, 3, blocks=2, utterances=2)
    assert_beams(found, case.beam_search(frames, lengths, 3), TOLERANCE)


def test_results_do_not_depend_on_the_batch(program: pathlib.Path) -> None:
    case = make_case(torch.bfloat16, blank_bias=4.0, classes=150)
    frames, lengths = case.frames(7, 13), [13, 7, 0, 1, 13, 12, 5]
    together = beam_search(program, case, frames, lengths, 3, blocks=2, utterances=10)
    for n in (0, 3, 5):
        alone = beam_search(program, case, frames[n : n + 1], lengths[n : n + 1], 3, blocks=1 + n, seed=n)
        assert alone == [together[n]]
    for groups, blocks, utterances, column_tiles in ((2, 3, 1, 1), (4, 1, 2, 2), (1, 4, 5, 2)):
        where = {"groups": groups, "blocks": blocks, "utterances": utterances, "column_tiles": column_tiles, "seed": 3}
        assert beam_search(program, case, frames, lengths, 3, **where) == together


def make_bias(case: DecodeCase) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    after = torch.randint(0, 4, (4, case.classes), generator=generator, dtype=torch.int32)
    return after, 2 * torch.randn(4, case.classes, generator=generator)


@pytest.mark.parametrize(
    ("options", "biased"),
    [({}, True), ({"layers": 2}, False), ({"predictor": "gru"}, False), ({"predictor": "stateless"}, True)],
    ids=str,
)
def test_streams(program: pathlib.Path, options: dict[str, Any], biased: bool) -> None:
    check_streams(program, make_case(**options), biased, None)


def check_streams(program: pathlib.Path, case: DecodeCase, biased: bool, max_symbols: int | None) -> None:
    """Chunks of streams in slots of a pool, whose states are those of the library's search on the CPU, too."""
    slots = [4, 0, 2]
    frames, bias = case.frames(3, 12), make_bias(case) if biased else None
    own, expected = case.beam_state(5, 4), case.beam_state(5, 4)
    for state in (own, expected):
        if biased:
            state["node"] = torch.full((5, 4), -5, dtype=torch.int32)
    on_cpu = expected | {"slots": torch.tensor(slots, dtype=torch.int32)}
    for first, last, lengths in ((0, 4, None), (4, 5, [1, 0, 1]), (5, 12, [7, 3, 0])):
        chunk = frames[:, first:last]
        where = {"slots": slots, "seed": first, "blocks": 3, "max_symbols": max_symbols}
        found = beam_search(program, case, chunk, lengths, state=own, bias=bias, **where)
        wanted = case.beam_search(chunk, lengths, state=on_cpu, bias=bias, max_symbols=max_symbols)
        assert_beams(found, wanted, TOLERANCE)
        for name, values in expected.items():
            for slot, hypotheses in zip(slots, wanted, strict=True):
                some = own[name][slot, : len(hypotheses)], values[slot, : len(hypotheses)]
                torch.testing.assert_close(*some, rtol=0, atol=10 * TOLERANCE)
    for state in (own, expected):
        assert (state["ahead"][1::2] == -1).all()


def test_a_bias(program: pathlib.Path) -> None:
    for options in ({}, {"predictor": "stateless", "blank": 6}):
        case = make_case(**options)
        frames, bias = case.frames(3, 10), make_bias(case)
        found = beam_search(program, case, frames, bias=bias, utterances=3)
        assert_beams(found, case.beam_search(frames, bias=bias), TOLERANCE)


def test_equal_scores(program: pathlib.Path) -> None:
    """Every symbol is as probable as every other: of equal hypotheses, those first in order stay."""
    case = DecodeCase(dtype=torch.float32, projected=True)
    for name in ("outputWeight", "outputBias"):
        case.weights[name].zero_()  # type: ignore[union-attr]
    frames = case.frames(2, 7)
    assert_beams(beam_search(program, case, frames, utterances=2), case.beam_search(frames), TOLERANCE)


def test_scores_that_are_no_numbers(program: pathlib.Path) -> None:
    for value in (math.nan, math.inf, -math.inf):
        case = make_case(activation="relu")
        frames = case.frames(3, 7)
        frames[0, 4] = frames[2, 0] = value
        for state in (False, True):
            own, expected = (case.beam_state(3, 4) if state else None for _ in range(2))
            found = beam_search(program, case, frames, utterances=2, state=own)
            assert_beams(found, case.beam_search(frames, state=expected), TOLERANCE)
            if own is not None and expected is not None:
                torch.testing.assert_close(own["score"], expected["score"], rtol=0, atol=10 * TOLERANCE)


# ---- by levels: several symbols a frame, or durations ----

# Models, and the most symbols of a frame; None: PRNN_BEAM_MODIFIED.
BY_LEVELS: list[tuple[dict[str, Any], int | None]] = [
    ({}, 3),
    ({"durations": (0, 1, 2, 4)}, 3),
    ({"durations": (0, 1, 2, 4), "layers": 2, "blank": 4, "activation": "relu"}, None),
    ({"durations": (3, 1), "predictor": "gru", "layers": 2, "hidden": 33, "joiner": 64}, 2),
    ({"durations": tuple(range(16)), "predictor": "stateless", "context": 3, "classes": 90, "blank": 89}, 4),
    ({"classes": 300, "hidden": 40, "joiner": 48, "blank": 150}, 1),
    ({"durations": (5, 0), "classes": 300, "hidden": 40, "joiner": 48, "blank": 299}, 2),
]


@pytest.mark.parametrize(
    ("beam", "options", "max_symbols"),
    first_of_each(
        lambda beam, options, max_symbols: len(options.get("durations", ())) if beam == 4 else str(beam > 4),
        [(4, *model) for model in BY_LEVELS]
        + [(beam, *BY_LEVELS[n]) for beam, models in ((1, (0, 1, 4)), (7, (0, 2, 3)), (16, (1, 5, 6))) for n in models],
    ),
    ids=str,
)
def test_levels(program: pathlib.Path, beam: int, options: dict[str, Any], max_symbols: int | None) -> None:
    case = make_case(blank_bias=0.5, **options)
    frames, lengths = case.frames(4, 9), [9, 0, 1, 7]
    found = beam_search(program, case, frames, lengths, beam, blocks=3, utterances=2, max_symbols=max_symbols)
    expected = case.beam_search(frames, lengths, beam, max_symbols=max_symbols)
    assert any(h.symbols for h in expected[0])
    assert_beams(found, expected, TOLERANCE)


def test_levels_in_any_batch(program: pathlib.Path) -> None:
    case = make_case(torch.bfloat16, durations=(0, 1, 3), classes=150)
    frames, lengths = case.frames(7, 10), [10, 7, 0, 1, 10, 9, 5]
    together = beam_search(program, case, frames, lengths, 3, blocks=2, utterances=5, max_symbols=2)
    for n in (0, 3, 5):
        one = {"blocks": 1 + n, "seed": n, "max_symbols": 2}
        assert beam_search(program, case, frames[n : n + 1], lengths[n : n + 1], 3, **one) == [together[n]]
    for groups, blocks, utterances in ((2, 3, 1), (4, 1, 2)):
        where = {"groups": groups, "blocks": blocks, "utterances": utterances, "seed": 3, "max_symbols": 2}
        assert beam_search(program, case, frames, lengths, 3, **where) == together


@pytest.mark.parametrize(
    ("options", "max_symbols", "biased"),
    [
        ({"durations": (0, 1, 4)}, 2, True),
        ({}, 2, False),
        ({"durations": (2, 1), "predictor": "gru", "layers": 2}, None, False),
        ({"durations": (0, 1, 3), "predictor": "stateless"}, 3, True),
    ],
    ids=str,
)
def test_streams_by_levels(
    program: pathlib.Path, options: dict[str, Any], max_symbols: int | None, biased: bool
) -> None:
    """Durations pass over chunks, and hypotheses that are at different frames have one state."""
    case = make_case(blank_bias=0.5, **options)
    check_streams(program, case, biased, max_symbols)


def test_a_bias_by_levels(program: pathlib.Path) -> None:
    for options in ({"durations": (0, 1, 3)}, {"predictor": "stateless", "blank": 6}):
        case = make_case(**options)
        frames, bias = case.frames(3, 10), make_bias(case)
        found = beam_search(program, case, frames, bias=bias, utterances=3, max_symbols=2)
        assert_beams(found, case.beam_search(frames, bias=bias, max_symbols=2), TOLERANCE)


def test_equal_scores_by_levels(program: pathlib.Path) -> None:
    """Every symbol and duration is as probable as every other."""
    for durations in ((), (0, 1, 2)):
        case = DecodeCase(dtype=torch.float32, projected=True, durations=durations)
        for name in ("outputWeight", "outputBias"):
            case.weights[name].zero_()  # type: ignore[union-attr]
        frames = case.frames(2, 5)
        found = beam_search(program, case, frames, utterances=2, max_symbols=2)
        expected = case.beam_search(frames, max_symbols=2)
        for beams, others in zip(found, expected, strict=True):
            assert [h.score for h in beams] == pytest.approx([h.score for h in others], abs=10 * TOLERANCE)


def test_scores_by_levels_that_are_no_numbers(program: pathlib.Path) -> None:
    for value, durations in ((math.nan, (0, 1, 3)), (math.inf, ()), (-math.inf, (0, 1, 3))):
        case = make_case(activation="relu", durations=durations)
        frames = case.frames(3, 7)
        frames[0, 4] = frames[2, 0] = value
        for state in (False, True):
            own, expected = (case.beam_state(3, 4) if state else None for _ in range(2))
            found = beam_search(program, case, frames, utterances=2, state=own, max_symbols=2)
            assert_beams(found, case.beam_search(frames, state=expected, max_symbols=2), TOLERANCE)
            if own is not None and expected is not None:
                torch.testing.assert_close(own["score"], expected["score"], rtol=0, atol=10 * TOLERANCE)


@pytest.fixture(scope="module")
def plain_builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory)


def unordered(
    program: pathlib.Path, options: dict[str, Any], streams: bool = False, max_symbols: int | None = None
) -> list[tuple[str, str]]:
    """Pairs of accesses without an order in a search, of whole utterances or of streams."""
    case, found = make_case(torch.bfloat16, **options), []
    frames, state = case.frames(4, 6), case.beam_state(4, 3) if streams else None
    where = {"blocks": 3, "utterances": 2, "column_tiles": 2, "max_symbols": max_symbols}
    beam_search(program, case, frames, [6, 0, 1, 6], 3, state=state, unordered=found, **where)
    return found


@pytest.mark.full
def test_accesses_are_ordered(plain_builder: Builder) -> None:
    """But for a GRU's states, as in greedy search."""
    program = plain_builder.run_beam("ordered", order=True)
    for options, max_symbols in [*((options, None) for options in MODELS[:4]), *BY_LEVELS[:4]]:
        for streams in (False, True):
            pairs = unordered(program, options, streams, max_symbols)
            if options.get("predictor") == "gru":
                pairs = [p for p in pairs if "step_cells<PRNN_GRU>" not in p[0] or "gather_rows(" not in p[1]]
            assert pairs == [], (options, streams)


@pytest.mark.full
def test_a_barrier_that_is_missing(plain_builder: Builder) -> None:
    """Between the lanes that read which places are free and those that fill them."""
    barrier = "  __syncwarp();  // all lanes have read the slots, which are written now\n"
    edit = Edit("decode/cuda/beam_utterances.cuh", barrier, "")
    pairs = unordered(plain_builder.run_beam("unordered", (edit,), order=True), {})
    assert is_found("read const unsigned used = slots_that(", "write ", pairs)

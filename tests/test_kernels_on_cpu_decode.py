"""The resident transducer search: the kernels' own source, run on the CPU under random schedules: kernels_on_cpu/."""

import math
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from decode_case import DecodeCase, assert_greedy
from kernels_on_cpu import build
from kernels_on_cpu.build import Builder, Edit, is_found
from kernels_on_cpu.decode import search
from reference.transducer_search import Found

pytestmark = build.marks("kernels_on_cpu_decode")

TOLERANCES = {torch.float32: 2e-4, torch.bfloat16: 0.25}
SHARED = {torch.float32: 46000, torch.bfloat16: 28000}  # bytes: most models take several blocks
MODELS: list[tuple[torch.dtype, dict[str, Any]]] = [
    (torch.float32, {}),
    (torch.bfloat16, {"durations": (0, 1, 2, 3, 4)}),
    (torch.bfloat16, {"layers": 2, "blank": 12, "activation": "relu"}),
    (torch.float32, {"layers": 2, "durations": (0, 1, 3), "blank": 4}),
    (torch.bfloat16, {"predictor": "gru", "blank": 5}),
    (torch.float32, {"predictor": "gru", "layers": 2, "hidden": 33, "joiner": 64, "durations": (3, 1)}),
    (torch.bfloat16, {"predictor": "stateless", "classes": 70}),
    (torch.float32, {"predictor": "stateless", "relu": True, "context": 1, "classes": 90, "durations": (0, 2)}),
    (torch.bfloat16, {"classes": 300, "hidden": 40, "joiner": 48, "blank": 299}),
]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory, "-fsanitize=undefined", "-fno-sanitize-recover=undefined")


@pytest.fixture(scope="module")
def program(builder: Builder) -> pathlib.Path:
    return builder.run_decode("decode")


PLANS = [
    "type=bfloat16 predictor=lstm layers=1 hidden=640 joiner=640 classes=1025",
    "type=float32 predictor=lstm layers=1 hidden=640 joiner=640 classes=1025 durations=5",
    "type=bfloat16 predictor=lstm layers=2 hidden=640 joiner=640 classes=8193 durations=5",
    "type=float32 predictor=lstm layers=2 hidden=640 joiner=640 classes=8193",
    "type=bfloat16 predictor=gru layers=2 hidden=1024 joiner=1024 classes=16384",
    "type=float32 predictor=gru layers=1 hidden=1 joiner=1 classes=2",
    "type=bfloat16 predictor=stateless hidden=512 joiner=512 classes=500",
    "type=float32 predictor=stateless hidden=33 joiner=1000 classes=65536 durations=16",
]


@pytest.fixture(scope="module")
def plans(builder: Builder) -> Callable[[str], dict[str, str]]:
    program = builder.decode_plan()

    def found(model: str) -> dict[str, str]:
        """The plan of the search on each GPU, by its name."""
        done = subprocess.run([program, *model.split()], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{model}: {done.stdout}{done.stderr}"
        return dict(line.split(": ", 1) for line in done.stdout.splitlines())

    return found


@pytest.mark.parametrize("model", PLANS)
def test_plans_of_all_gpus(plans: Callable[[str], dict[str, str]], model: str) -> None:
    """Shares, layouts of shared memory and batches are as the kernel takes them to be."""
    assert "no room" not in plans(model).values()


def test_the_plan_that_docs_tell_of(plans: Callable[[str], dict[str, str]]) -> None:
    assert plans(PLANS[0])["H200"].split("; ")[0] == (
        "1 x 33 blocks, 1 slots of 8 frames, 4 x 33 blocks, 4 slots of 4 frames, 16 x 8 blocks, 8 slots of 3 frames"
    )


@pytest.mark.parametrize("size", [8000, 2**29, 2**31 - 1])
@pytest.mark.parametrize("name", ["hidden", "joiner"])
def test_sizes_without_room(plans: Callable[[str], dict[str, str]], name: str, size: int) -> None:
    model = "type=float32 predictor=lstm layers=2 hidden=64 joiner=64 classes=100"
    assert set(plans(model.replace(f"{name}=64", f"{name}={size}")).values()) == {"no room"}


@pytest.fixture(scope="module")
def plain_builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(tmp_path_factory)


@pytest.fixture(scope="module")
def ordered(plain_builder: Builder) -> pathlib.Path:
    return plain_builder.run_decode("ordered", order=True)


def make_case(dtype: torch.dtype = torch.float32, blank_bias: float = 2.5, **options: Any) -> DecodeCase:
    """One whose blank is so probable that most windows have several."""
    case = DecodeCase(dtype=dtype, projected=True, **options)
    assert case.weights["outputBias"] is not None
    case.weights["outputBias"][case.blank] += blank_bias
    return case


@pytest.mark.parametrize(("dtype", "options"), MODELS, ids=str)
def test_a_greedy_search(program: pathlib.Path, dtype: torch.dtype, options: dict[str, Any]) -> None:
    case = make_case(dtype, **options)
    frames, lengths = case.frames(5, 23), [23, 0, 1, 9, 22]
    where = {"blocks": 3, "shared": SHARED[dtype]}
    all_found = search(program, case, frames, lengths, max_symbols=3, **where)
    assert sum(len(found.symbols) for found in all_found) > 8
    for found, utterance, length in zip(all_found, frames, lengths, strict=True):
        assert_greedy(case, utterance[:length], found, TOLERANCES[dtype], max_symbols=3)


@pytest.mark.parametrize("options", [{}, {"durations": (0, 1, 2)}, {"predictor": "stateless"}], ids=str)
def test_results_do_not_depend_on_the_batch(program: pathlib.Path, options: dict[str, Any]) -> None:
    """Nor on how many blocks have the model, of which some have several pieces of the output layer, and some none."""
    case = make_case(torch.bfloat16, classes=150, **options)
    frames, lengths = case.frames(11, 19), [19, 7, 12, 19, 1, 0, 18, 3, 19, 15, 4]
    where = {"blocks": 2, "shared": 2 * SHARED[torch.bfloat16]}
    together = search(program, case, frames, lengths, **where)  # in one group, more than it has slots
    assert sum(len(found.symbols) for found in together) > 20
    for n in (0, 6, 9, 10):
        where["blocks"] = 1 + n
        assert search(program, case, frames[n : n + 1], lengths[n : n + 1], seed=n, **where) == [together[n]]
    for groups, blocks, column_tiles in ((2, 3, 1), (4, 1, 2), (1, 4, 3)):
        where |= {"groups": groups, "blocks": blocks, "column_tiles": column_tiles}
        assert search(program, case, frames, lengths, seed=3, **where) == together


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.bfloat16, {}),
        (torch.float32, {"layers": 2, "durations": (0, 1, 4)}),
        (torch.bfloat16, {"predictor": "gru"}),
        (torch.float32, {"predictor": "stateless", "context": 3}),
    ],
    ids=str,
)
def test_streams(program: pathlib.Path, dtype: torch.dtype, options: dict[str, Any]) -> None:
    case = make_case(dtype, **options)
    frames, where = case.frames(3, 18), {"blocks": 3, "shared": SHARED[dtype]}
    whole = search(program, case, frames, **where)
    state, found = case.state(5), [Found([], [], [], [], [], 0.0) for _ in range(3)]
    for first, last in ((0, 7), (7, 8), (8, 9), (9, 18)):
        part = search(program, case, frames[:, first:last], state=state, slots=[4, 0, 2], seed=first, **where)
        for n, piece in enumerate(part):
            shifted = piece._replace(frames=[first + t for t in piece.frames])
            sums = [a + b for a, b in zip(found[n][:5], shifted[:5], strict=True)]
            found[n] = Found(*sums, found[n].score + piece.score)
    for n in range(3):
        assert found[n][:5] == whole[n][:5]
        assert found[n].score == pytest.approx(whole[n].score, abs=1e-9)
    assert state["ahead"].tolist()[1::2] == [-1, -1]


@pytest.mark.parametrize("column_tiles", [1, 2, 3])
def test_many_columns(program: pathlib.Path, column_tiles: int) -> None:
    """As many slots as a group has, with windows of one, two and three frames, and longer ones as utterances end."""
    case = make_case(torch.bfloat16, classes=300, hidden=40, joiner=48)
    frames, lengths = case.frames(9, 25), [25, 24, 9, 13, 25, 2, 0, 17, 25]
    all_found = search(program, case, frames, lengths, max_symbols=2, blocks=1, column_tiles=column_tiles)
    for found, utterance, length in zip(all_found, frames, lengths, strict=True):
        assert_greedy(case, utterance[:length], found, TOLERANCES[torch.bfloat16], max_symbols=2)


def test_a_bias(program: pathlib.Path) -> None:
    for options in ({}, {"predictor": "stateless", "durations": (0, 1, 2), "blank": 6}):
        case = make_case(**options)
        generator = torch.Generator().manual_seed(4)
        after = torch.randint(0, 4, (4, case.classes), generator=generator, dtype=torch.int32)
        bias = (after, 3 * torch.randn(4, case.classes, generator=generator))
        frames = case.frames(3, 15)
        for found, utterance in zip(search(program, case, frames, bias=bias), frames, strict=True):
            assert_greedy(case, utterance, found, TOLERANCES[torch.float32], bias=bias)


def test_weights_that_do_not_fit(program: pathlib.Path) -> None:
    case = make_case(torch.bfloat16, classes=200, hidden=64, joiner=96)
    frames = case.frames(4, 12)
    for found, utterance in zip(search(program, case, frames, shared=40000, blocks=2), frames, strict=True):
        assert_greedy(case, utterance, found, TOLERANCES[torch.bfloat16])


@pytest.mark.parametrize("durations", [(), (2, 1, 0)], ids=str)
def test_scores_that_are_no_numbers(program: pathlib.Path, durations: tuple[int, ...]) -> None:
    for value in (math.nan, math.inf, -math.inf):
        case = make_case(durations=durations, activation="relu")
        frames = case.frames(2, 9)
        frames[0, 4] = value
        found, other = search(program, case, frames, max_symbols=2)
        assert_greedy(case, frames[1], other, TOLERANCES[torch.float32], max_symbols=2)
        expected = case.reference(frames[0], max_symbols=2)
        assert (found.symbols, found.frames) == (expected.symbols, expected.frames)
        assert found.score == expected.score or found.score == pytest.approx(expected.score, abs=1e-2)


def unordered(
    program: pathlib.Path, dtype: torch.dtype, options: dict[str, Any], streams: bool = False
) -> list[tuple[str, str]]:
    """Pairs of accesses without an order in a search, of whole utterances or of streams."""
    case, found = make_case(dtype, **options), []
    frames, where = case.frames(5, 12), {"blocks": 3, "shared": SHARED[dtype]}
    state = case.state(5) if streams else None
    search(program, case, frames, [12, 0, 1, 9, 11], max_symbols=2, state=state, unordered=found, **where)
    return found


@pytest.mark.parametrize("streams", [False, True], ids=["", "streams"])
@pytest.mark.parametrize(("dtype", "options"), MODELS[:7], ids=str)
def test_accesses_are_ordered(
    ordered: pathlib.Path, dtype: torch.dtype, options: dict[str, Any], streams: bool
) -> None:
    """But for a GRU's states, which are gathered after a word that depends on what they replace: no barrier is there,
    and dependences of values are not followed."""
    pairs = unordered(ordered, dtype, options, streams)
    if options.get("predictor") == "gru":
        pairs = [pair for pair in pairs if "step_cells<PRNN_GRU>" not in pair[0] or "gather_rows(" not in pair[1]]
    assert pairs == []


def test_a_barrier_that_is_missing(plain_builder: Builder) -> None:
    """Between the states that a block gathers and their products."""
    before = "      p.timed_out, timed_out);\n"
    old, new = f"{before}  return !sync_threads_or(timed_out);\n", f"{before}  return true;\n"
    edit = Edit("decode/cuda/group_predictor.cuh", old, new)
    pairs = unordered(plain_builder.run_decode("unordered", (edit,), order=True), *MODELS[0])
    assert is_found("write *reinterpret_cast<uint2*>(to + row", "read states[c] = load_shared(columns.own", pairs)

"""The transducer search on a GPU, through the C API: greedy to float64, the same in any batch and any chunks."""

import ctypes
from typing import Any

import capi
import pytest
import torch
from decode_case import BeamFound, BeamOptions, DecodeCase, assert_beams, assert_greedy
from reference.transducer_search import Found

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

TOLERANCES = {torch.float32: 5e-4, torch.float16: 5e-2, torch.bfloat16: 0.3}
LARGE: dict[str, Any] = {"classes": 1025, "blank": 1024, "hidden": 640, "joiner": 640, "embedding": 640}
MODELS: list[tuple[torch.dtype, dict[str, Any]]] = [
    (torch.float32, {}),
    (torch.bfloat16, {"durations": (0, 1, 2, 3, 4)}),
    (torch.float16, {"layers": 2, "blank": 12, "activation": "relu"}),
    (torch.bfloat16, {"predictor": "gru", "blank": 5}),
    (torch.float32, {"predictor": "gru", "layers": 2, "hidden": 33, "joiner": 64, "durations": (3, 1)}),
    (torch.float16, {"predictor": "stateless", "hidden": 512, "joiner": 512, "classes": 500}),
    (torch.bfloat16, LARGE),
    (torch.float32, LARGE),
    (torch.float16, LARGE | {"durations": (0, 1, 2, 3, 4)}),
    (torch.bfloat16, LARGE | {"layers": 2, "durations": (0, 1, 2, 3, 4), "classes": 8193, "blank": 8192}),
    (torch.float32, LARGE | {"layers": 2, "classes": 8193, "blank": 0}),
]


def make_case(dtype: torch.dtype, blank_bias: float = 2.5, **options: Any) -> DecodeCase:
    case = DecodeCase(dtype=dtype, projected=True, device="cuda", **options)
    assert case.weights["outputBias"] is not None
    case.weights["outputBias"][case.blank] += blank_bias
    return case


@pytest.mark.parametrize(("dtype", "options"), MODELS, ids=str)
def test_a_greedy_search(dtype: torch.dtype, options: dict[str, Any]) -> None:
    case = make_case(dtype, **options)
    frames, lengths = case.frames(5, 40), [40, 0, 1, 9, 39]
    all_found = case.search(frames, lengths, max_symbols=3)
    assert sum(len(found.symbols) for found in all_found) > 8
    for found, utterance, length in zip(all_found, frames, lengths, strict=True):
        assert_greedy(case, utterance[:length], found, TOLERANCES[dtype], max_symbols=3)


@pytest.mark.parametrize(("dtype", "options"), MODELS[:9], ids=str)
def test_same_bits_in_any_batch_and_in_chunks(dtype: torch.dtype, options: dict[str, Any]) -> None:
    case = make_case(dtype, **options)
    frames, lengths = case.frames(140, 25), [25 - n % 26 for n in range(140)]
    together = case.search(frames, lengths)
    assert case.search(frames, lengths) == together
    for n in (0, 1, 17, 138):
        assert case.search(frames[n : n + 1], lengths[n : n + 1]) == [together[n]]
    state = case.state(200)
    slots = torch.randperm(200)[:140].int().cuda()
    state["slots"] = slots
    found = [Found([], [], [], [], [], 0.0) for _ in range(140)]
    for first, last in ((0, 1), (1, 12), (12, 25)):
        here = [max(0, min(length, last) - first) for length in lengths]
        for n, piece in enumerate(case.search(frames[:, first:last], here, state=state)):
            shifted = piece._replace(frames=[first + t for t in piece.frames])
            found[n] = Found(*(a + b for a, b in zip(found[n][:5], shifted[:5], strict=True)), 0.0)
    assert [f[:5] for f in found] == [f[:5] for f in together]


def test_a_bias() -> None:
    case = make_case(torch.float32, durations=(0, 1, 2))
    generator = torch.Generator().manual_seed(4)
    after = torch.randint(0, 4, (4, case.classes), generator=generator, dtype=torch.int32).cuda()
    bias = (after, (3 * torch.randn(4, case.classes, generator=generator)).cuda())
    frames = case.frames(3, 15)
    for found, utterance in zip(case.search(frames, bias=bias), frames, strict=True):
        assert_greedy(case, utterance, found, TOLERANCES[torch.float32], bias=bias)


# ---- beams ----


def on_cpu(case: DecodeCase, options: dict[str, Any]) -> DecodeCase:
    """The model in float32 on the CPU."""
    copied = DecodeCase(dtype=torch.float32, projected=True, **options)
    copied.weights = {name: None if w is None else w.float().cpu() for name, w in case.weights.items()}
    copied.layer_weights = [{name: w.float().cpu() for name, w in layer.items()} for layer in case.layer_weights]
    return copied


BEAM_MODELS: list[tuple[torch.dtype, dict[str, Any]]] = [
    (torch.float32, {}),
    (torch.float32, {"layers": 2, "blank": 12, "activation": "relu"}),
    (torch.float32, {"predictor": "gru", "layers": 2, "hidden": 33, "joiner": 64}),
    (torch.float32, {"predictor": "stateless", "hidden": 512, "joiner": 512, "classes": 500}),
    (torch.float32, LARGE),
    (torch.bfloat16, LARGE),
    (torch.float16, {"predictor": "gru", "classes": 300, "hidden": 64, "joiner": 64}),
    (torch.bfloat16, LARGE | {"layers": 2, "classes": 8193, "blank": 8192}),
]


@pytest.mark.parametrize("beam", [1, 2, 4, 7, 16])
@pytest.mark.parametrize(("dtype", "options"), BEAM_MODELS, ids=str)
def test_beams(dtype: torch.dtype, options: dict[str, Any], beam: int) -> None:
    check_beams(dtype, options, beam, None)


# Models whose hypotheses go on by levels, and the most symbols of a frame; None: PRNN_BEAM_MODIFIED.
LEVEL_MODELS: list[tuple[torch.dtype, dict[str, Any], int | None]] = [
    (torch.float32, {}, 3),
    (torch.float32, {"durations": (0, 1, 2, 4)}, 3),
    (torch.float32, {"durations": (3, 1), "predictor": "gru", "layers": 2, "hidden": 33, "joiner": 64}, 2),
    (torch.float32, {"durations": tuple(range(16)), "predictor": "stateless", "classes": 500, "context": 3}, 8),
    (torch.float32, LARGE | {"durations": (0, 1, 2, 3, 4)}, None),
    (torch.float32, LARGE | {"durations": (0, 1, 2, 3, 4)}, 8),
    (torch.bfloat16, LARGE | {"durations": (0, 1, 2, 3, 4)}, 8),
    (torch.float16, LARGE, 8),
    (torch.bfloat16, LARGE | {"layers": 2, "classes": 8193, "blank": 8192, "durations": (0, 1, 2, 3, 4)}, 8),
]


def most_beam(dtype: torch.dtype, options: dict[str, Any]) -> int:
    """By levels, of so many hypotheses the states of a model fit a block's shared memory."""
    is_wide = options.get("hidden") == 640 and (dtype == torch.float32 or options.get("layers") == 2)
    return 7 if is_wide else 16


@pytest.mark.parametrize(
    ("dtype", "options", "max_symbols", "beam"),
    [(*model, beam) for model in LEVEL_MODELS for beam in (1, 4, 7, 16) if beam <= most_beam(*model[:2])],
    ids=str,
)
def test_beams_by_levels(dtype: torch.dtype, options: dict[str, Any], max_symbols: int | None, beam: int) -> None:
    check_beams(dtype, options, beam, max_symbols)


def check_beams(dtype: torch.dtype, options: dict[str, Any], beam: int, max_symbols: int | None) -> None:
    """As on the CPU; in 16 bits, where symbols differ, the best has about the same score."""
    case = make_case(dtype, **options)
    frames, lengths = case.frames(6, 30), [30, 0, 1, 9, 29, 30]
    found = case.beam_search(frames, lengths, beam, max_symbols=max_symbols)
    cpu = on_cpu(case, options)
    expected = cpu.beam_search(frames.float().cpu(), lengths, beam, max_symbols=max_symbols)
    assert sum(len(beams[0].symbols) for beams in expected) > 8
    if dtype == torch.float32:
        assert_beams(found, expected, TOLERANCES[dtype])
        return
    for beams, others, length in zip(found, expected, lengths, strict=True):
        assert len(beams) == len(others)
        assert beams[0].score == pytest.approx(others[0].score, abs=TOLERANCES[dtype] * (1 + length) / 2)


@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
@pytest.mark.parametrize(
    ("dtype", "options", "max_symbols"), [*((*model, None) for model in BEAM_MODELS[:7]), *LEVEL_MODELS[:7]], ids=str
)
def test_beams_have_the_same_bits_in_any_batch_and_in_chunks(
    dtype: torch.dtype, options: dict[str, Any], max_symbols: int | None, biased: bool
) -> None:
    case, bias = make_case(dtype, **options), None
    if biased:
        generator = torch.Generator().manual_seed(4)
        after = torch.randint(0, 4, (4, case.classes), generator=generator, dtype=torch.int32).cuda()
        bias = (after, (2 * torch.randn(4, case.classes, generator=generator)).cuda())
    frames, lengths = case.frames(140, 17), [17 - n % 18 for n in range(140)]
    where: dict[str, Any] = {"bias": bias, "max_symbols": max_symbols}
    together = case.beam_search(frames, lengths, **where)
    assert case.beam_search(frames, lengths, **where) == together
    for n in (0, 1, 17, 138):
        assert case.beam_search(frames[n : n + 1], lengths[n : n + 1], **where) == [together[n]]
    state = case.beam_state(200, 4)
    state["slots"] = torch.randperm(200)[:140].int().cuda()
    if biased:
        state["node"] = torch.full((200, 4), -5, dtype=torch.int32, device="cuda")
    found = [[BeamFound([], [], [], 0.0, 0)] for _ in range(140)]
    for first, last in ((0, 1), (1, 9), (9, 17)):
        here = [max(0, min(length, last) - first) for length in lengths]
        for n, beams in enumerate(case.beam_search(frames[:, first:last], here, state=state, **where)):
            found[n] = [
                BeamFound(
                    found[n][h.origin].symbols + h.symbols,
                    found[n][h.origin].frames + [first + t for t in h.frames],
                    found[n][h.origin].confidences + h.confidences,
                    h.score,
                    0,
                )
                for h in beams
            ]
    assert found == together


@pytest.mark.parametrize(
    ("options", "sizes", "named"),
    [
        ({}, (4, 30, 1, 17, 0), "beam is 17"),
        ({}, (4, 30, 3, 17, 1), "beam is 17"),
        ({}, (4, 30, 2**17, 4, 1), "maxSymbols 131072"),
        ({"durations": (0, 1)}, (4, 2**24, 8, 4, 1), "maxFrames is 16777216 and maxSymbols 8"),
        ({}, (4, 2**28, 1, 4, 0), "maxFrames is 268435456"),
        (LARGE | {"durations": (0, 1)}, (4, 30, 8, 16, 1), "the hypotheses do not fit the shared memory"),
    ],
    ids=str,
)
def test_beams_that_there_are_not(options: dict[str, Any], sizes: tuple[int, ...], named: str) -> None:
    case = make_case(torch.float32, **options)
    arguments = {"options": ctypes.byref(BeamOptions(*sizes)), "sizeInBytes": ctypes.byref(ctypes.c_size_t())}
    assert case.call("GetTransducerBeamSearchWorkspaceSize", **arguments) == capi.NOT_SUPPORTED
    assert named in capi.message(case.handle.pointer)


@pytest.mark.parametrize("changes", [{"durations": (1, 2**31 - 1)}, {"joiner": 20_000}, {"classes": 70_000}], ids=str)
def test_models_that_have_no_search(changes: dict[str, Any]) -> None:
    case = make_case(torch.float32, **changes)
    status = case.call("GetTransducerPreparedSize", sizeInBytes=ctypes.byref(ctypes.c_size_t()))
    assert status == capi.NOT_SUPPORTED
    (name, value), *_ = changes.items()
    assert (f"{name}[1] is {value[1]}" if name == "durations" else str(value)) in capi.message(case.handle.pointer)

"""The two sizes of a CPU handle's reserve space: with the smaller one gradients lie where the gates were."""

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import capi
import pytest
import torch
from reference import rnn as reference
from rnn_case import DATA_TYPES, RnnCase, dropout_descriptor
from test_rnn_extras import ExtrasCase, extras_of
from test_rnn_masks import MasksCase, ResetMasksCase, masks_of

import prnn
from prnn import _C
from prnn._ops import _layer
from prnn._ops._call import Call, pack_weights

MODES = {"relu": reference.RNN_RELU, "tanh": reference.RNN_TANH, "lstm": reference.LSTM, "gru": reference.GRU}
GATED = (reference.LSTM, reference.GRU)
BATCHES = {"even": [4] * 7, "ragged": [6, 6, 4, 3, 3, 1], "one": [1], "wide": [60, 51, 51]}
STACKS = {
    "one": {},
    "stack": {"layers": 3, "directions": 2},
    "projected": {"layers": 2, "directions": 2, "projection": 7},
    "skip": {"layers": 2, "skip_input": True},
}
SPENT = "has written gradients over the gates"


def filled(size: int) -> torch.Tensor:
    return torch.full((size,), 0x5A, dtype=torch.uint8)


def take_least(case: RnnCase) -> None:
    case.reserve = filled(case.least_reserve_size())


def assert_same_bits(case: RnnCase, before: Callable[[], None] = lambda: None) -> None:
    """A training step with each size. before() is called before each."""
    results = []
    for size in (case.size("GetRNNTrainingReserveSize"), case.least_reserve_size()):
        case.reserve = filled(size)
        case.data["dw"].zero_()
        before()
        case.train()
        results.append({name: value.clone() for name, value in case.results().items()})
    for name, value in results[0].items():
        assert torch.equal(results[1][name], value), name


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        (mode, of)
        for mode in MODES.values()
        for of in STACKS.values()
        if mode == reference.LSTM or "projection" not in of
    ],
)
def test_the_same_bits(mode: int, options: dict[str, Any]) -> None:
    for batches, dtype in itertools.product(BATCHES.values(), DATA_TYPES):
        assert_same_bits(RnnCase(reference.Stack(mode, 19, 19, **options), batches, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_same_bits_with_extras_and_masks(mode: int, dtype: torch.dtype) -> None:
    options, batches = {"layers": 2, "directions": 2}, BATCHES["ragged"]
    stack = reference.Stack(mode, 6, 19, **options)
    case: Any = ExtrasCase(stack, batches, dtype)
    case.set_extras(extras_of(mode))
    assert_same_bits(case)
    for names, make in itertools.product(masks_of(mode), (MasksCase, ResetMasksCase)):
        case = make(stack, batches, dtype)
        case.set_masks(names)
        assert_same_bits(case)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_same_bits_with_dropout(mode: int) -> None:
    states = ctypes.create_string_buffer(1024)
    case = RnnCase(
        reference.Stack(mode, 6, 19, 3),
        BATCHES["ragged"],
        torch.float32,
        dropout_descriptor(capi.cpu_handle(), 0.4, states, seed=3),
    )
    start = states.raw
    assert_same_bits(case, lambda: setattr(states, "raw", start))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_larger_one_serves_again_and_again(mode: int, dtype: torch.dtype) -> None:
    case = RnnCase(reference.Stack(mode, 5, 19, 3, 2), [3, 2], dtype)
    case.train()
    first = case.results()
    case.data["dw"].zero_()
    for _ in range(2):
        case.check("RNNBackwardData")
    case.check("RNNBackwardWeights")
    for name, value in case.results().items():
        assert torch.equal(value, first[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("mode", GATED)
def test_the_smaller_one_serves_once(mode: int, layers: int, dtype: torch.dtype) -> None:
    case = RnnCase(reference.Stack(mode, 5, 19, layers), [3, 2], dtype)
    take_least(case)
    case.train()
    expected = case.results()
    names = ("dx", "dhx", "dcx")
    for name in names:
        case.data[name].fill_(case.UNTOUCHED)
    kept = case.reserve.clone()
    assert case.call("RNNBackwardData") == capi.BAD_PARAM
    message = capi.message(case.handle.pointer)
    for part in ("reserveSpace", SPENT, "prnnRNNForwardTraining", "prnnGetRNNTrainingReserveSize"):
        assert part in message
    assert torch.equal(case.reserve, kept)
    for name in names:
        assert torch.all(case.data[name] == case.UNTOUCHED)
    # Gradients of the weights can still be had, and all others after a forward call.
    case.data["dw"].zero_()
    case.check("RNNBackwardWeights")
    assert torch.equal(case.data["dw"], expected["dw"])
    case.data["dw"].zero_()
    case.train()
    for name, value in case.results().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_spaces_of_other_sizes_in_the_backward_calls(mode: int) -> None:
    """The reserve space knows where its arrays lie: a larger size than the forward call's changes nothing."""
    case = RnnCase(reference.Stack(mode, 5, 19, 2), [3, 2], torch.float32)
    case.train()
    expected = case.results()
    case.data["dw"].zero_()
    case.check("RNNForwardTraining", reserveSpaceSizeInBytes=case.least_reserve_size())
    case.check("RNNBackwardData")
    case.check("RNNBackwardWeights")
    for name, value in case.results().items():
        assert torch.equal(value, expected[name]), name
    if mode not in GATED:
        return
    assert case.call("RNNBackwardData") == capi.BAD_PARAM
    assert SPENT in capi.message(case.handle.pointer)
    case.check("RNNForwardTraining")
    size, needed = case.least_reserve_size(), case.size("GetRNNTrainingReserveSize")
    for name in ("RNNBackwardData", "RNNBackwardWeights"):
        assert case.call(name, reserveSpaceSizeInBytes=size) == capi.BAD_PARAM
        message = capi.message(case.handle.pointer)
        assert f"reserveSpaceSizeInBytes is {size}, less than the {needed} bytes" in message
        case.check(name)


@pytest.mark.parametrize("mode", GATED)
def test_the_smaller_one_can_be_moved(mode: int) -> None:
    case = RnnCase(reference.Stack(mode, 5, 19, 2, 2), [3, 2], torch.float32)
    case.train()
    expected, size = case.results(), case.least_reserve_size()
    case.data["dw"].zero_()
    room = filled(size + 192)
    line = -room.data_ptr() % 64
    places = [room[line + offset : line + offset + size] for offset in (0, 16, 3)]
    take_least(case)
    for name, place in zip(("RNNForwardTraining", "RNNBackwardData", "RNNBackwardWeights"), places, strict=True):
        place.copy_(case.reserve.clone())
        case.reserve = place
        case.check(name)
    assert torch.all(room[line + size + 16 :] == 0x5A)
    for name, value in case.results().items():
        assert torch.equal(value, expected[name]), name


# Arrays of [T N][H] that a direction of a layer keeps, with each size.
ARRAYS = {reference.LSTM: (9, 5), reference.GRU: (8, 4), reference.RNN_TANH: (1, 1)}


@pytest.mark.parametrize(("dtype", "bytes_each"), [(torch.float32, 4), (torch.float64, 8), (torch.bfloat16, 4)])
@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize("mode", ARRAYS)
def test_what_the_sizes_are(mode: int, layers: int, dtype: torch.dtype, bytes_each: int) -> None:
    case = RnnCase(reference.Stack(mode, 16, 16, layers), [4] * 8, dtype)
    outputs = layers - 1 + (dtype == torch.bfloat16)  # in 16 bits also the last layer's, in float
    for size, arrays in zip(
        (case.size("GetRNNTrainingReserveSize"), case.least_reserve_size()), ARRAYS[mode], strict=True
    ):
        of_arrays = (layers * arrays + outputs) * 8 * 4 * 16 * bytes_each
        assert 0 < size - of_arrays <= 4 * 64


# prnn.nn, whose eager calls take the smaller one


def module_of(cell: str, layers: int, **options: Any) -> torch.nn.Module:
    torch.manual_seed(layers)
    made: torch.nn.Module = getattr(prnn.nn, cell)(5, 8, layers, **options)
    return made


CELLS = ("LSTM", "GRU", "RNN")
OPTIONS = {
    "plain": {},
    "heads": {"heads": 2},
    "both": {"bidirectional": True},
    "dropout": {"dropout": 0.5},  # between layers
    "masks": {"zoneout": 0.2, "recurrent_dropout": 0.3},
    "half": {"dtype": torch.bfloat16},
}
CASES = [
    (cell, layers, name)
    for cell, layers, name in itertools.product(CELLS, (1, 2, 3), OPTIONS)
    if (name != "dropout" or layers > 1) and (name != "masks" or cell != "RNN")  # an RNN has no zoneout
]


def gradients(output: torch.Tensor, inputs: list[torch.Tensor], **options: Any) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(output, inputs, torch.ones_like(output), **options)


def assert_equal(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> None:
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("lengths", [None, [2, 6, 1]])
@pytest.mark.parametrize(("cell", "layers", "options"), CASES)
def test_a_retained_graph(
    cell: str, layers: int, options: str, lengths: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second backward pass runs forward again, with the same masks; all compute with the same bits."""
    calls: list[int] = []
    forward = Call.forward

    def spy(*arguments: Any) -> Any:
        calls.append(1)
        return forward(*arguments)

    monkeypatch.setattr(Call, "forward", spy)
    module = module_of(cell, layers, **OPTIONS[options])
    dtype = next(module.parameters()).dtype
    x = torch.randn(6, 3, 5, dtype=dtype, requires_grad=True)
    output, inputs = module(x, lengths=lengths)[0], [x, *module.parameters()]
    first, *others = (gradients(output, inputs, retain_graph=True) for _ in range(3))
    for other in others:
        assert_equal(first, other)
    assert len(calls) == (1 if cell == "RNN" else 2)


@pytest.mark.parametrize(("cell", "layers", "options"), CASES)
def test_gradients_are_those_of_the_larger_one(
    cell: str, layers: int, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, sizes = module_of(cell, layers, **OPTIONS[options]), []
    x = torch.randn(6, 3, 5, dtype=next(module.parameters()).dtype, requires_grad=True)
    spaces = _C.Rnn.spaces

    def larger(rnn: Any, handle: Any, training: bool, sequences: Any) -> tuple[int, int]:
        workspace, reserve = spaces(rnn, handle, training, sequences)
        sizes.append((reserve, rnn.reserve_size(handle, sequences)))
        return workspace, sizes[-1][1]

    def step() -> tuple[torch.Tensor, ...]:
        torch.manual_seed(1)
        output = module(x)[0]
        return output.detach(), *gradients(output, [x, *module.parameters()])

    small = step()
    vars(module).pop("_calls", None)
    monkeypatch.setattr(_C.Rnn, "spaces", larger)
    assert_equal(small, step())
    is_smaller = [least < kept for least, kept in sizes]
    assert is_smaller
    assert set(is_smaller) == {cell != "RNN"}


@pytest.mark.parametrize("cell", CELLS)
def test_two_calls_in_one_graph(cell: str) -> None:
    module = module_of(cell, 2)
    x = torch.randn(6, 3, 5, dtype=torch.float32, requires_grad=True)
    pieces = [x[:3], x[3:]]
    apart = [gradients(module(piece)[0], list(module.parameters())) for piece in pieces]
    output = torch.cat([module(piece)[0] for piece in pieces])
    for _ in range(2):
        both = gradients(output, list(module.parameters()), retain_graph=True)
        for sum_, a, b in zip(both, *apart, strict=True):
            torch.testing.assert_close(sum_, a + b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_checkpoints(cell: str, reentrant: bool) -> None:
    module = module_of(cell, 2, dropout=0.5)
    x = torch.randn(6, 3, 5, requires_grad=True)

    def step(run: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        module.zero_grad()
        x.grad = None
        run(x).sum().backward()
        return [x.grad, *(parameter.grad for parameter in module.parameters())]

    def of_module(input: torch.Tensor) -> torch.Tensor:
        return module(input)[0]

    expected = step(of_module)
    again = step(lambda x: torch.utils.checkpoint.checkpoint(of_module, x, use_reentrant=reentrant))
    assert_equal(tuple(expected), tuple(again))


def test_the_compiled_backward_pass_runs_twice() -> None:
    module = module_of("LSTM", 2, proj_size=4)
    torch.compiler.reset()
    run = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(6, 3, 5, requires_grad=True)
    output = run(x)[0]
    first, second = (gradients(output, [x], retain_graph=True) for _ in range(2))
    assert_equal(first, second)


def test_the_operator_leaves_a_smaller_reserve_space_as_it_is() -> None:
    """Its schema says that it does: a second call with the same one has the same gradients."""
    stack = reference.Stack(reference.LSTM, 5, 8, 2)
    weights = [p.detach() for p in module_of("LSTM", 2).parameters()]
    config = _layer.Config(stack.mode, 8, 0, 2, False, 0.0, _layer.BACKENDS["best"])
    x, wanted = torch.randn(6, 3, 5), [True, False, False, True]
    layer = _layer.layer(config, x.dtype, 5, x.device)
    sequences = prnn._C.Sequences.even(6, 3)
    packed = pack_weights(weights, layer, x)
    y, _, _, reserve, _ = Call(layer, sequences, True).forward(sequences, (x, None, None), packed)
    assert reserve is not None
    kept = reserve.clone()
    given = (torch.ones_like(y), None, None, None, x, None, None, weights, None, None, None, [], y, reserve)
    first, second = (torch.ops.prnn.rnn_backward(*given, *config, wanted) for _ in range(2))
    assert torch.equal(reserve, kept)
    assert_equal((first[0], first[3]), (second[0], second[3]))

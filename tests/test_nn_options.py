"""Options of prnn.nn that torch.nn's layers do not have, the cells, and 16-bit layers on the CPU."""

import copy
from typing import Any

import pytest
import torch
from nn_pairs import CELLS, assert_same, flat, make, make_pair, make_states, train_step
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import prnn
from prnn import _options

# The forget gate's bias


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 2}])
def test_forget_bias_of_every_layer(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    plain = prnn.nn.LSTM(3, 4, **options)
    torch.manual_seed(1)
    module = prnn.nn.LSTM(3, 4, forget_bias=1.5, **options)
    for reset in (False, True):
        if reset:
            module.reset_parameters()
        for name, bias_ih in module.named_parameters():
            if name.startswith("bias_ih"):
                bias = bias_ih + getattr(module, name.replace("ih", "hh"))
                assert (bias[4:8] == 1.5).all()
                assert (torch.cat([bias[:4], bias[8:]]) != 1.5).all()
            if not reset and name.startswith("weight"):
                assert torch.equal(bias_ih, getattr(plain, name))
    assert "forget_bias=1.5" in repr(module)
    assert "forget_bias" not in repr(plain)


def test_forget_bias_survives_copying_and_leaves_with_convert_back() -> None:
    module = prnn.nn.LSTM(3, 4, forget_bias=0)
    again = copy.deepcopy(module)
    again.reset_parameters()
    assert ((again.bias_ih_l0 + again.bias_hh_l0)[4:8] == 0).all()
    assert vars(prnn.convert_back(module)).keys() == vars(torch.nn.LSTM(3, 4)).keys()


# Cells


@pytest.mark.parametrize("cell", ["LSTMCell", "GRUCell", "RNNCell"])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_are_torchs(cell: str, bias: bool) -> None:
    torch.manual_seed(1)
    theirs = getattr(torch.nn, cell)(3, 4, bias, dtype=torch.float64)
    torch.manual_seed(1)
    ours = getattr(prnn.nn, cell)(3, 4, bias, dtype=torch.float64)
    assert isinstance(ours, getattr(torch.nn, cell))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x, h = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    state = (h, h + 1) if cell == "LSTMCell" else h
    torch.testing.assert_close(flat(ours(x, state)), flat(theirs(x, state)), rtol=0, atol=0)


def test_a_cell_is_a_step_of_the_layer() -> None:
    layer, cell = prnn.nn.LSTM(3, 4, dtype=torch.float64), prnn.nn.LSTMCell(3, 4, dtype=torch.float64)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    output, state = layer(x)
    h = c = torch.zeros(2, 4, dtype=torch.float64)
    for t in range(5):
        h, c = cell(x[t], (h, c))
        torch.testing.assert_close(h, output[t], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close((h, c), (state[0][0], state[1][0]), rtol=1e-12, atol=1e-12)


def test_forget_bias_of_a_cell() -> None:
    cell = prnn.nn.LSTMCell(3, 4, forget_bias=1.0)
    cell.reset_parameters()
    assert ((cell.bias_ih + cell.bias_hh)[4:8] == 1).all()
    assert "forget_bias=1.0" in repr(cell)


# Sequences that start anew, and c of every timestep


def run_segments(
    module: Any, input: Tensor, states: Any = None, *, reset: Tensor, reset_hx: Any = None
) -> list[Tensor]:
    """Outputs, last states, and c of every timestep of torch's module of one layer and direction, called for each
    timestep, with zeros or reset_hx where a sequence starts anew."""
    is_lstm = module.mode == "LSTM"
    zeros = [input.new_zeros(1, input.size(1), module.hidden_size)] * (2 if is_lstm else 1)
    state = flat(states) if states is not None else zeros
    anew = flat(reset_hx) if reset_hx is not None else zeros
    outputs, cells = [], []
    for x, lost in zip(input, reset, strict=True):
        state = [torch.where(lost[None, :, None], new, old) for new, old in zip(anew, state, strict=True)]
        output, last = module(x[None], tuple(state) if is_lstm else state[0])
        state = flat(last)
        outputs.append(output)
        cells.append(state[-1])
    return [torch.cat(outputs), *state, *([torch.cat(cells)] if is_lstm else [])]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("with_states", [False, True])
def test_reset(cell: str, with_states: bool) -> None:
    theirs, ours = make_pair(cell, 3, 5)
    x = torch.randn(9, 4, 3, dtype=torch.float64, requires_grad=True)
    reset = torch.rand(9, 4) < 0.3
    reset[0, 0] = True
    states = make_states(theirs, 4) if with_states else None
    options = {"return_cells": True} if cell == "LSTM" else {}

    def segments(input: Tensor, states: Any, **_: Any) -> list[Tensor]:
        return run_segments(theirs, input, states, reset=reset)

    expected = train_step(segments, dict(theirs.named_parameters()), x, states)
    assert_same(train_step(ours, dict(ours.named_parameters()), x, states, reset=reset, **options), expected)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("with_states", [False, True])
def test_reset_to_a_given_state(cell: str, with_states: bool) -> None:
    theirs, ours = make_pair(cell, 3, 5)
    x = torch.randn(9, 4, 3, dtype=torch.float64, requires_grad=True)
    reset = torch.rand(9, 4) < 0.3
    reset[0, 0], reset[:, 1] = True, False
    given = flat(make_states(theirs, 4))
    states = make_states(theirs, 4) if with_states else None
    results = []
    for module in (theirs, ours):

        def step(input: Tensor, states: Any, module: Any = module, **_: Any) -> list[Tensor]:
            options = {"reset": reset, "reset_hx": tuple(given) if cell == "LSTM" else given[0]}
            if module is theirs:
                return run_segments(module, input, states, **options)
            return flat(module(input, states, **options, **({"return_cells": True} if cell == "LSTM" else {})))

        leaves = dict(module.named_parameters()) | {f"given{index}": each for index, each in enumerate(given)}
        results.append(train_step(step, leaves, x, states))
    assert_same(results[1], results[0])


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 2, "batch_first": True}]
)
@pytest.mark.parametrize("layout", ["padded", "lengths", "packed", "unbatched"])
def test_cut_sequences_are_what_the_kernels_do(
    options: dict[str, Any], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where kernels of a GPU know no resets, sequences are cut; those of the CPU do."""
    module = prnn.nn.LSTM(3, 5, dtype=torch.float64, **options)
    batch = None if layout == "unbatched" else 4
    x: Any = torch.randn(7, batch or 1, 3, dtype=torch.float64, requires_grad=True)
    reset, lengths = torch.rand(7, batch or 1) < 0.4, torch.tensor([3, 7, 1, 5])
    if module.batch_first:
        x, reset = x.detach().transpose(0, 1).contiguous().requires_grad_(), reset.T
    if layout == "unbatched":
        x, reset = x.detach().reshape(7, 3).requires_grad_(), reset.flatten()
    if layout == "packed":
        x = pack_padded_sequence(x.detach(), lengths, module.batch_first, enforce_sorted=False)
        x.data.requires_grad_()
        reset = pack_padded_sequence(reset, lengths, module.batch_first, enforce_sorted=False).data
    states = make_states(module, batch)
    arguments = {"reset": reset, "return_cells": True} | ({"lengths": lengths} if layout == "lengths" else {})
    results = []
    for reset_hx in (None, make_states(module, batch)):
        for in_kernels in (True, False):
            monkeypatch.setattr(_options, "resets_in_kernels", lambda *_, served=in_kernels: served)
            given = {f"given{index}": each for index, each in enumerate(flat(reset_hx or ()))}
            leaves = dict(module.named_parameters()) | given
            results.append(train_step(module, leaves, x, states, **arguments, reset_hx=reset_hx))
    assert_same(results[1], results[0])
    assert_same(results[3], results[2])


@pytest.mark.parametrize("length", [0, -1, 8])
def test_lengths_of_sequences_that_are_cut(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x, reset = prnn.nn.GRU(3, 5), torch.randn(7, 2, 3), torch.zeros(7, 2, dtype=torch.bool)
    for in_kernels in (True, False):
        monkeypatch.setattr(_options, "resets_in_kernels", lambda *_, served=in_kernels: served)
        with pytest.raises(ValueError, match=rf"^lengths\[1\] is {length}; it must lie between 1 and the 7 timesteps"):
            module(x, lengths=[3, length], reset=reset)


def test_gradcheck_of_a_given_state() -> None:
    module = prnn.nn.GRU(2, 3, 2, bidirectional=True, dtype=torch.float64)
    x = torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)
    reset = torch.tensor([[0, 1], [0, 0], [1, 0], [0, 1]]) == 1

    def function(x: Tensor, hx: Tensor, reset_hx: Tensor) -> tuple[Tensor, Tensor]:
        return module(x, hx, reset=reset, reset_hx=reset_hx)

    assert torch.autograd.gradcheck(function, (x, make_states(module, 2), make_states(module, 2)))


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 2}])
def test_segments_end_to_end_are_sequences_of_their_own(options: dict[str, Any]) -> None:
    """In both directions, for every layer."""
    module = prnn.nn.LSTM(3, 5, dtype=torch.float64, **options)
    lengths = [4, 1, 3, 2]
    pieces = [torch.randn(length, 3, dtype=torch.float64) for length in lengths]
    reset = torch.zeros(sum(lengths), dtype=torch.bool)
    reset[torch.tensor([0, *lengths]).cumsum(0)[:-1]] = True
    output, _, cells = module(torch.cat(pieces), reset=reset, return_cells=True)
    expected = [module(piece, return_cells=True) for piece in pieces]
    torch.testing.assert_close(output, torch.cat([each[0] for each in expected]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(cells, torch.cat([each[2] for each in expected]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch_first", [False, True])
def test_layouts_of_reset_and_cells(batch_first: bool) -> None:
    module = prnn.nn.LSTM(3, 5, 2, bidirectional=True, batch_first=batch_first, dtype=torch.float64)
    x, reset, lengths = torch.randn(7, 3, 3, dtype=torch.float64), torch.rand(7, 3) < 0.4, torch.tensor([5, 7, 2])
    layout = (lambda value: value.transpose(0, 1)) if batch_first else (lambda value: value)
    output, last, cells = module(layout(x), lengths=lengths, reset=layout(reset), return_cells=True)
    assert output.shape == cells.shape == layout(torch.empty(7, 3, 10)).shape
    assert (layout(cells)[5:, 0] == 0).all()
    packed = pack_padded_sequence(layout(x), lengths, batch_first, enforce_sorted=False)
    flags = pack_padded_sequence(layout(reset), lengths, batch_first, enforce_sorted=False).data
    of_packed = module(packed, reset=flags, return_cells=True)
    assert isinstance(of_packed[2], PackedSequence)
    for mine, other in ((output, of_packed[0]), (cells, of_packed[2])):
        torch.testing.assert_close(pad_packed_sequence(other, batch_first)[0], mine, rtol=0, atol=0)
    torch.testing.assert_close(of_packed[1], last, rtol=0, atol=0)
    for n, length in enumerate(lengths.tolist()):
        alone = module(x[:length, n], reset=reset[:length, n], return_cells=True)
        torch.testing.assert_close(alone[0], layout(output)[:length, n], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(alone[2], layout(cells)[:length, n], rtol=1e-12, atol=1e-12)


def test_cells_end_with_the_last_state_and_take_no_gradient() -> None:
    module = prnn.nn.LSTM(3, 5)
    x = torch.randn(6, 2, 3)
    output, (_, c), cells = module(x, return_cells=True)
    assert torch.equal(cells[-1], c[0])
    torch.testing.assert_close(output, module(x)[0], rtol=0, atol=0)
    with torch.no_grad():
        assert torch.equal(module(x, return_cells=True)[2], cells)
    grads = torch.autograd.grad(output.sum(), list(module.parameters()))
    torch.testing.assert_close(grads, torch.autograd.grad(module(x)[0].sum(), list(module.parameters())))


def test_gradcheck_of_reset_and_cells() -> None:
    module = prnn.nn.LSTM(2, 3, 2, bidirectional=True, proj_size=2, dtype=torch.float64)
    x = torch.randn(4, 2, 2, dtype=torch.float64, requires_grad=True)
    states, reset = make_states(module, 2), torch.tensor([[0, 1], [0, 0], [1, 0], [0, 1]]) == 1
    parameters = dict(module.named_parameters())

    def function(*leaves: Tensor) -> list[Tensor]:
        replaced = dict(zip(parameters, leaves[3:], strict=True))
        options = {"reset": reset, "return_cells": True}
        return flat(torch.func.functional_call(module, replaced, (leaves[0], leaves[1:3]), options))

    assert torch.autograd.gradcheck(function, (x, *states, *parameters.values()))


def test_reset_and_cells_compile() -> None:
    torch.compiler.reset()
    module = prnn.nn.LSTM(3, 5)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x, reset = torch.randn(6, 2, 3), torch.rand(6, 2) < 0.3
    results, expected = (m(x, reset=reset, return_cells=True) for m in (compiled, module))
    torch.testing.assert_close(flat(results), flat(expected), rtol=0, atol=0)
    grads = [torch.autograd.grad(each[2].sum(), list(module.parameters())) for each in (results, expected)]
    torch.testing.assert_close(*grads, rtol=0, atol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, (_, c), cells = module(x, reset=reset, return_cells=True)
    assert cells.dtype == c.dtype


@pytest.mark.parametrize(
    "types", [(torch.bfloat16,) * 2, (torch.float16,) * 2, (torch.bfloat16, torch.float32)], ids=str
)
def test_states_at_resets_of_other_types_than_autocasts(types: tuple[torch.dtype, torch.dtype]) -> None:
    """As those that are float32."""
    module, x, reset = prnn.nn.LSTM(3, 4, dtype=types[0]), torch.randn(5, 2, 3).to(types[0]), torch.rand(5, 2) < 0.5
    hx, reset_hx = (tuple(torch.randn(1, 2, 4).to(types[0]) for _ in range(2)) for _ in range(2))
    results = []
    for dtype in types[1], torch.float32:
        with torch.autocast("cpu", dtype=torch.float16 if types[0] == torch.bfloat16 else torch.bfloat16):
            given = tuple(state.to(dtype) for state in reset_hx)
            results.append(flat(module(x, hx, reset=reset, reset_hx=given)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, check_dtype=False)


def test_reset_and_cells_of_an_empty_batch() -> None:
    module = prnn.nn.LSTM(3, 5)
    for reset_hx in (None, (torch.zeros(1, 0, 5), torch.zeros(1, 0, 5))):
        options = {"reset": torch.zeros(4, 0, dtype=torch.bool), "reset_hx": reset_hx}
        output, (h, _), cells = module(torch.zeros(4, 0, 3), **options, return_cells=True)
        assert output.shape == cells.shape == (4, 0, 5)
        assert h.shape == (1, 0, 5)


# 16 bits on the CPU


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_on_the_cpu_are_float32_rounded_once(cell: str, dtype: torch.dtype) -> None:
    half = make(prnn.nn, cell, 5, 8, num_layers=2, bidirectional=True, dtype=dtype)
    single = copy.deepcopy(half).float()
    x, states = torch.randn(6, 3, 5, dtype=dtype, requires_grad=True), make_states(half, 3)
    wide = [state.detach().float().requires_grad_() for state in flat(states)]
    result = train_step(half, dict(half.named_parameters()), x, states, lengths=[6, 2, 4])
    expected = train_step(
        single,
        dict(single.named_parameters()),
        x.detach().float().requires_grad_(),
        tuple(wide) if cell == "LSTM" else wide[0],
        lengths=[6, 2, 4],
    )
    for name, value in expected.items():
        assert result[name].dtype == dtype
        if dtype == torch.float16:
            assert torch.equal(result[name], value.to(dtype)), name
        else:  # with AVX512_BF16 or AMX, of as many bits as matter
            torch.testing.assert_close(result[name].float(), value, rtol=2**-8, atol=1e-4, msg=name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_on_the_cpu_look_like_torchs(dtype: torch.dtype) -> None:
    theirs, ours = make_pair("LSTM", 3, 4, num_layers=2, dtype=dtype)
    x = torch.randn(5, 2, 3, dtype=dtype)
    for mine, reference in zip(flat(ours(x)), flat(theirs(x)), strict=True):
        assert (mine.shape, mine.dtype, mine.stride()) == (reference.shape, reference.dtype, reference.stride())
        torch.testing.assert_close(mine, reference, rtol=2e-2, atol=2e-2)
    with torch.no_grad():
        assert not ours(x)[0].requires_grad
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    torch.testing.assert_close(flat(compiled(x)), flat(ours(x)), rtol=0, atol=0)

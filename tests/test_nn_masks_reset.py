"""Zoneout and recurrent dropout of prnn.nn's layers together with reset= and with heads=, on the CPU, against the
reference with the same masks."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from masked_layer_case import flatten, layer_of, run_written_out, weight_gradients
from test_nn_state_masks import MASKED as OF_GRU_AND_RNN
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import prnn
from prnn import _options
from prnn._ops import _segments
from prnn._ops._layer import BACKENDS, MODES, Config
from prnn._ops._segments import resets_in_compiled_kernels

GRU, LSTM = prnn.nn.GRU, prnn.nn.LSTM
MASKED: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = OF_GRU_AND_RNN | {
    "lstm, zoneout": (LSTM, {"zoneout": 0.3}),
    "lstm, dropout": (LSTM, {"recurrent_dropout": 0.4}),
    "lstm, both": (LSTM, {"zoneout": 0.2, "recurrent_dropout": 0.1}),
}
EVERY = pytest.mark.parametrize(("make", "masks"), MASKED.values(), ids=MASKED)
CELLS = pytest.mark.parametrize("make", [LSTM, GRU])
BOTH = {"zoneout": 0.2, "recurrent_dropout": 0.1}
DOUBLE = {"dtype": torch.float64}


def make_states(module: Any, batch: int) -> Any:
    states = module.num_layers * (2 if module.bidirectional else 1)
    leaves = [torch.randn(states, batch, module.hidden_size, **DOUBLE, requires_grad=True) for _ in range(2)]
    return tuple(leaves) if module.mode == "LSTM" else leaves[0]


def leaves_of(*states: Any) -> list[torch.Tensor]:
    return [leaf for state in states if state is not None for leaf in (state if isinstance(state, tuple) else (state,))]


def compare(module: Any, with_states: bool, with_reset: bool = True, steps: int = 7) -> None:
    """Results and all gradients."""
    plain, batch = layer_of(module), 3
    input = torch.randn(steps, batch, module.input_size, **DOUBLE, requires_grad=True)
    options = {}
    if with_reset:
        options["reset"] = torch.rand(steps, batch) < 0.3
        options["reset"][0, 0], options["reset"][:, 1] = True, False
    states = make_states(module, batch) if with_states else None
    if with_reset and with_states:
        options["reset_hx"] = make_states(module, batch)
    found = []
    for run in (module, lambda *inputs, **given: run_written_out(module, *inputs, **given, weights=plain)):
        torch.manual_seed(5)
        results = flatten(run(input, states, **options))
        leaves = [input, *leaves_of(states, options.get("reset_hx"))]
        for leaf in leaves:
            leaf.grad = None
        sum(result.sin().sum() * (index + 1) for index, result in enumerate(results)).backward()
        found.append([*results, *(leaf.grad for leaf in leaves)])
    for own, expected in [*zip(*found, strict=True), *weight_gradients(module, plain)]:
        torch.testing.assert_close(own, expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}], ids=str)
@EVERY
def test_reset(
    make: Callable[..., Any], masks: dict[str, Any], options: dict[str, Any], with_states: bool, training: bool
) -> None:
    compare(make(5, 6, **DOUBLE, **masks, **options).train(training), with_states)


@pytest.mark.parametrize("with_states", [False, True])
@EVERY
def test_reset_in_a_call_of_one_timestep(make: Callable[..., Any], masks: dict[str, Any], with_states: bool) -> None:
    compare(make(5, 6, 2, bidirectional=True, **DOUBLE, **masks), with_states, steps=1)


@pytest.mark.parametrize("make", [LSTM, prnn.nn.LayerNormLSTM])
def test_one_timestep_waits_for_no_flag(make: Callable[..., Any]) -> None:
    torch.compiler.reset()
    module, input = make(3, 4, **BOTH).eval(), torch.randn(1, 2, 3)
    reset, anew = torch.tensor([[True, False]]), (torch.randn(1, 2, 4), torch.randn(1, 2, 4))
    expected, _ = module(input, None, reset=reset, reset_hx=anew)
    found = torch.func.vmap(lambda reset: module(input, None, reset=reset, reset_hx=anew)[0])(torch.stack([reset] * 3))
    torch.testing.assert_close(found[2], expected)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(input, None, reset=reset, reset_hx=anew)[0], expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("with_reset", [False, True])
@pytest.mark.parametrize("options", [{"num_layers": 2, "bidirectional": True}, {"bias": False}], ids=str)
@EVERY
def test_heads(
    make: Callable[..., Any], masks: dict[str, Any], options: dict[str, Any], with_reset: bool, training: bool
) -> None:
    compare(make(5, 6, heads=3, **DOUBLE, **masks, **options).train(training), True, with_reset)


@EVERY
def test_gradcheck(make: Callable[..., Any], masks: dict[str, Any]) -> None:
    module = make(2, 4, 2, bidirectional=True, heads=2, **DOUBLE, **masks)
    names = [name for name, _ in module.named_parameters()]
    reset = torch.tensor([[0, 1], [0, 0], [1, 0]]) == 1
    states, reset_hx = make_states(module, 2), make_states(module, 2)
    given = leaves_of(states, reset_hx)

    def call(input: torch.Tensor, *leaves: torch.Tensor) -> Any:
        torch.manual_seed(2)
        of_states, weights = leaves[: len(given)], leaves[len(given) :]
        half = len(given) // 2
        pairs = (of_states[:half], of_states[half:]) if module.mode == "LSTM" else of_states
        parameters = dict(zip(names, weights, strict=True))
        options = {"reset": reset, "reset_hx": pairs[1]}
        return tuple(flatten(torch.func.functional_call(module, parameters, (input, pairs[0]), options)))

    input = torch.randn(3, 2, 2, **DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(call, (input, *given, *module.parameters()), fast_mode=True)


@CELLS
def test_zoneout_at_a_reset_keeps_the_state_there(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    module = make(3, 4, zoneout=0.5, **DOUBLE)
    monkeypatch.setattr(torch.Tensor, "bernoulli", lambda mask, _: torch.ones_like(mask))
    reset = torch.tensor([0, 0, 1, 0, 0]) == 1
    states, anew = make_states(module, 1), make_states(module, 1)
    output, _ = module(torch.randn(5, 1, 3, **DOUBLE), states, reset=reset[:, None], reset_hx=anew)
    first, second = (leaves_of(state)[0][0] for state in (states, anew))
    expected = torch.stack([first, first, second, second, second])
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(
        module(torch.randn(5, 1, 3, **DOUBLE), states, reset=reset[:, None])[0][2:], expected[2:] * 0
    )


@EVERY
def test_without_a_flag_it_is_as_without_reset(make: Callable[..., Any], masks: dict[str, Any]) -> None:
    module, found = make(5, 6, 2, bidirectional=True, **DOUBLE, **masks), []
    input = torch.randn(7, 3, 5, **DOUBLE)
    for options in ({}, {"reset": torch.zeros(7, 3, dtype=torch.bool)}):
        torch.manual_seed(4)
        found.append(flatten(module(input, **options)))
    torch.testing.assert_close(*found)


@EVERY
def test_states_carried_over_calls(make: Callable[..., Any], masks: dict[str, Any]) -> None:
    """A rollout in two calls, and a timestep at a time."""
    module = make(5, 6, 2, **DOUBLE, **masks).eval()
    input, reset = torch.randn(8, 3, 5, **DOUBLE), torch.rand(8, 3) < 0.3
    expected, last = module(input, reset=reset)
    for sizes in ([5, 3], [1] * 8):
        states, outputs = None, []
        for piece, flags in zip(input.split(sizes), reset.split(sizes), strict=True):
            output, states = module(piece, states, reset=flags)
            outputs.append(output)
        torch.testing.assert_close(torch.cat(outputs), expected)
        torch.testing.assert_close(leaves_of(states), leaves_of(last))


@EVERY
@pytest.mark.parametrize("training", [True, False])
def test_lengths(make: Callable[..., Any], masks: dict[str, Any], training: bool) -> None:
    """The masks of a sequence are its own; the padding, flags there and NaN too, has no influence."""
    module = make(3, 4, 2, batch_first=True, **DOUBLE, **masks).train(training)
    input, reset, lengths = torch.randn(3, 6, 3, **DOUBLE), torch.rand(3, 6) < 0.4, [4, 1, 6]
    padded = input.clone()
    for n, length in enumerate(lengths):
        padded[n, length:] = float("nan")
    found = []
    for given, options in ((input, {}), (padded, {"lengths": lengths})):
        given.requires_grad_()
        torch.manual_seed(4)
        output, _ = module(given, reset=reset, **options)
        valid = [output[n, :length] for n, length in enumerate(lengths)]
        wanted = [given, *module.parameters()]
        found.append([*valid, *torch.autograd.grad(sum(each.sin().sum() for each in valid), wanted)])
    torch.testing.assert_close(found[1], found[0])
    assert (output[1, 1:] == 0).all()


@EVERY
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_packed_sequences(make: Callable[..., Any], masks: dict[str, Any], enforce_sorted: bool) -> None:
    module = make(3, 4, 2, bidirectional=True, **DOUBLE, **masks).eval()
    lengths = [6, 4, 1] if enforce_sorted else [4, 1, 6]
    input, reset = torch.randn(6, 3, 3, **DOUBLE), torch.rand(6, 3) < 0.4
    states, anew = make_states(module, 3), make_states(module, 3)
    packed, flags = (pack_padded_sequence(each, lengths, enforce_sorted=enforce_sorted) for each in (input, reset))
    output, last = module(packed, states, reset=flags.data, reset_hx=anew)
    expected, expected_last = module(input, states, lengths=lengths, reset=reset, reset_hx=anew)
    torch.testing.assert_close(pad_packed_sequence(output)[0], expected)
    torch.testing.assert_close(leaves_of(last), leaves_of(expected_last))
    assert torch.isfinite(module.train()(packed, reset=flags.data)[0].data).all()


@CELLS
def test_unbatched(make: Callable[..., Any]) -> None:
    module = make(3, 4, 2, bidirectional=True, **BOTH, **DOUBLE).eval()
    input, reset = torch.randn(6, 1, 3, **DOUBLE), torch.rand(6, 1) < 0.4
    output, _ = module(input[:, 0], reset=reset[:, 0])
    torch.testing.assert_close(output, module(input, reset=reset)[0][:, 0])


@EVERY
@pytest.mark.parametrize("heads", [1, 2])
def test_cut_sequences_are_what_the_kernels_do(
    make: Callable[..., Any], masks: dict[str, Any], heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where kernels of a GPU know no resets, sequences and their masks are cut; those of the CPU do."""
    module = make(3, 4, 2, bidirectional=True, heads=heads, **DOUBLE, **masks)
    input = torch.randn(7, 3, 3, **DOUBLE, requires_grad=True)
    lengths = [5, 7, 2]
    reset = torch.rand(7, 3) < 0.4
    packed, flags = (pack_padded_sequence(each, lengths, enforce_sorted=False) for each in (input, reset))
    for given, options in ((input, {"reset": reset, "lengths": lengths}), (packed, {"reset": flags.data})):
        found = []
        for in_kernels in (True, False):
            monkeypatch.setattr(_options, "resets_in_kernels", lambda *_, served=in_kernels: served)
            torch.manual_seed(6)
            output, *states = flatten(module(given, **options))
            output = output if given is input else output.data
            loss = output.sin().sum() + sum(state.cos().sum() for state in states)
            wanted = [input, *module.parameters()]
            found.append([output, *states, *torch.autograd.grad(loss, wanted, retain_graph=True)])
        torch.testing.assert_close(*found)


def test_groups_of_segments_are_half_padding_at_most() -> None:
    reset = torch.rand(60, 20) < torch.linspace(0, 1, 20)
    segments = _segments.cut(reset, None, None)
    rows = torch.arange(60 * 20)
    seen = []
    groups = _segments.groups(segments)
    for group in groups:
        assert group.rows.shape == (group.lengths.max(), group.end - group.begin)
        exists = group.rows < 60 * 20
        assert torch.equal(exists.sum(0), group.lengths)
        assert 2 * group.lengths.sum() > group.rows.numel()
        assert torch.equal(group.pad(rows[:, None])[..., 0][exists], group.rows[exists])
        seen.append(group.rows[exists])
    assert torch.equal(torch.cat(seen).sort().values, rows)
    assert [group.begin for group in groups] == [0, *(group.end for group in groups[:-1])]
    assert len(groups) == 6


def test_one_mask_of_recurrent_dropout_for_all_segments() -> None:
    """Units of a state are dropped after every reset, or after none."""
    module = LSTM(1, 8, recurrent_dropout=0.5, **DOUBLE)
    with torch.no_grad():
        module.weight_hh_l0.copy_(torch.eye(8).repeat(4, 1))
    reset = torch.ones(6, 2, dtype=torch.bool)
    anew = torch.zeros(1, 2, 8, **DOUBLE), torch.zeros(1, 2, 8, **DOUBLE)
    for state in anew:
        state.requires_grad_()
    output, _ = module(torch.zeros(6, 2, 1, **DOUBLE), reset=reset, reset_hx=anew)
    read = torch.stack([torch.autograd.grad(step.sum(), anew[0], retain_graph=True)[0] != 0 for step in output])
    assert (read == read[0]).all()
    assert 0 < read[0].sum() < 16


@pytest.mark.parametrize("training", [True, False])
@CELLS
def test_compiles(make: Callable[..., Any], training: bool) -> None:
    torch.compiler.reset()
    module = make(3, 4, 2, heads=2, **BOTH).train(training)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    input, results = torch.randn(5, 2, 3, requires_grad=True), []
    reset = torch.rand(5, 2) < 0.3
    for call in (module, compiled):
        torch.manual_seed(1)
        results.append(call(input, reset=reset)[0])
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(result.sum(), input)[0] for result in results))


@CELLS
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms(make: Callable[..., Any]) -> None:
    module = make(3, 4, **BOTH, **DOUBLE).eval()
    inputs, reset = torch.randn(4, 6, 2, 3, **DOUBLE), torch.rand(6, 2) < 0.4
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], input: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, parameters, (input,), {"reset": reset})[0].sin().sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, inputs)
    for index, input in enumerate(inputs):
        expected = torch.autograd.grad(loss(dict(module.named_parameters()), input), list(module.parameters()))
        torch.testing.assert_close([value[index] for value in found.values()], list(expected))


@pytest.mark.parametrize("make", [LSTM, GRU, prnn.nn.LayerNormLSTM])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_ensembles_draw_masks_as_dropout_does(make: Callable[..., Any]) -> None:
    """Members that are equal: with masks of their own, with one for all, or torch's error."""
    module = make(3, 4, **BOTH, **DOUBLE)
    weights, buffers = torch.func.stack_module_state([copy.deepcopy(module) for _ in range(3)])
    input = torch.randn(6, 2, 3, **DOUBLE)

    def call(weights: dict[str, torch.Tensor], input: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, (weights, buffers), (input,))[0]

    for in_dims, given in ((0, input.expand(3, -1, -1, -1)), (None, input)):
        run = partial(torch.func.vmap, call, in_dims=(0, in_dims))
        first, *others = run(randomness="different")(weights, given)
        assert not any(torch.equal(first, other) for other in others)
        first, *others = run(randomness="same")(weights, given)
        assert all(torch.equal(first, other) for other in others)
        with pytest.raises(RuntimeError, match="called random operation while in randomness error mode"):
            run()(weights, given)
        gradients = torch.func.grad(lambda weights, run=run, given=given: run(randomness="same")(weights, given).sum())
        gradient = gradients({name: weight.detach() for name, weight in weights.items()})["weight_hh_l0"]
        assert (gradient[0] != 0).any()
        torch.testing.assert_close(gradient[1], gradient[0])


@CELLS
def test_vmap_over_resets(make: Callable[..., Any]) -> None:
    module = make(3, 4, **BOTH).eval()
    input, resets = torch.randn(6, 2, 3), torch.rand(4, 6, 2) < 0.4
    found = torch.func.vmap(lambda reset: module(input, reset=reset)[0])(resets)
    torch.testing.assert_close(found, torch.stack([module(input, reset=reset)[0] for reset in resets]))


@CELLS
def test_types(make: Callable[..., Any]) -> None:
    """16 bits, and autocast, on the CPU; a batch of no sequences."""
    reset = torch.rand(5, 2) < 0.4
    for dtype in (torch.float16, torch.bfloat16):
        module = make(3, 4, dtype=dtype, **BOTH).eval()
        output, states = module(torch.randn(5, 2, 3, dtype=dtype), reset=reset)
        assert {output.dtype, *(state.dtype for state in leaves_of(states))} == {dtype}
    module = make(3, 4, **BOTH)
    plain = make(3, 4)
    input = torch.randn(5, 2, 3)
    with torch.autocast("cpu"):
        output, states = module(input, reset=reset)
        expected, expected_states = plain(input, reset=reset)
        assert output.dtype == expected.dtype
        assert [state.dtype for state in leaves_of(states)] == [state.dtype for state in leaves_of(expected_states)]
    output.float().sum().backward()
    assert module.weight_hh_l0.grad.dtype == torch.float32
    empty = {"reset": torch.zeros(5, 0, dtype=torch.bool)}
    assert module(torch.zeros(5, 0, 3), **empty)[0].shape == (5, 0, 4)


def test_retained_graph() -> None:
    for make in (LSTM, GRU):
        module, input = make(3, 4, **BOTH), torch.randn(5, 2, 3, requires_grad=True)
        output, _ = module(input, reset=torch.rand(5, 2) < 0.4)
        first, second = (torch.autograd.grad(output.sum(), input, retain_graph=True)[0] for _ in range(2))
        assert torch.equal(first, second)


def test_explain_of_heads() -> None:
    for make in (LSTM, GRU):
        (found,) = prnn.explain(make(80, 1024, heads=2, **BOTH), 4, gpu="h200", dtype=torch.float16).layers
        assert (found.forward, found.supported) == ("cluster", True)


@pytest.mark.skipif(not _segments.ASKS_WHILE_COMPILING, reason="torch before 2.11 breaks the graph at resets on a GPU")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("zoneout", [0.0, 0.2, 0.3])
def test_compiled_functions_ask_what_kernels_know(zoneout: float, dynamic: bool | None) -> None:
    """On a GPU they do; the answer is a constant of the graph."""
    torch.compiler.reset()

    class Asking(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.zoneout = zoneout

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.size(-1) == 6  # as layers check
            config = Config(MODES["GRU"], 8, 0, 1, False, 0.0, BACKENDS["best"], False, True, 1, self.zoneout, 0)
            return x + 1 if resets_in_compiled_kernels(config, x) else x

    run = torch.compile(Asking(), fullgraph=True, backend="eager", dynamic=dynamic)
    for batch in (2, 3, 5):
        assert torch.equal(run(torch.zeros(4, batch, 6)), torch.ones(4, batch, 6))

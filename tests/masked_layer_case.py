"""Checks that hold for prnn.nn's layers with zoneout or recurrent dropout and for LayerNormLSTM."""

import copy
import io
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from heads_case import gradients_of_heads, whole_layer
from reference import rnn as reference
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import prnn

MODES = {
    "LSTM": reference.LSTM,
    "GRU": reference.GRU,
    "RNN_TANH": reference.RNN_TANH,
    "RNN_RELU": reference.RNN_RELU,
}


def draw_masks(module: Any, input: torch.Tensor) -> reference.Masks:
    """The masks of a call of prnn.nn.LSTM, GRU or RNN, drawn in the module's order. input: (T, N, I)."""
    steps, batch, hidden = *input.shape[:2], module.hidden_size
    states = module.num_layers * (2 if module.bidirectional else 1)
    if not module.training:
        return reference.Masks(expectation=module.zoneout)
    kept = 1 - module.recurrent_dropout
    zoneout = recurrent = None
    if module.zoneout > 0:
        mask = torch.empty(steps, batch, states * hidden, dtype=torch.bool, device=input.device)
        zoneout = mask.bernoulli_(module.zoneout).view(steps * batch, states, hidden)
    if module.recurrent_dropout > 0:
        recurrent = input.new_empty(states, batch, hidden).bernoulli_(kept) / kept
    return reference.Masks(recurrent, zoneout)


def run_written_out(module: Any, input: torch.Tensor, *given: Any, **options: Any) -> Any:
    """prnn.nn.LSTM, GRU or RNN from the reference, with masks drawn in the module's order. As written_out()."""
    y, h, c, _ = written_out(module, input, *given, **options)
    return y.view(*input.shape[:2], -1), (h, c) if module.mode == "LSTM" else h


def written_out(
    module: Any,
    input: torch.Tensor,
    states: Any = None,
    reset: torch.Tensor | None = None,
    reset_hx: Any = None,
    weights: Any = None,
) -> tuple[torch.Tensor, ...]:
    """As reference.forward_with_cells() returns it. input: (T, N, I); reset (T, N); weights: of another module."""
    steps, batch, width = input.shape
    directions = 2 if module.bidirectional else 1
    stack = reference.Stack(MODES[module.mode], width, module.hidden_size, module.num_layers, directions)
    w = torch.cat([weight.reshape(-1) for weight in (weights or module)._packed_weights()])
    is_lstm = module.mode == "LSTM"
    hx, cx = (None, None) if states is None else states if is_lstm else (states, None)
    anew = None
    if reset_hx is not None:
        anew = reset_hx if is_lstm else (reset_hx, torch.zeros_like(reset_hx))
    return reference.forward_with_cells(
        stack,
        input.flatten(0, 1),
        [batch] * steps,
        w,
        hx,
        cx,
        reset=None if reset is None else reset.flatten(),
        reset_states=anew,
        masks=draw_masks(module, input),
    )


def layer_of(module: Any) -> Any:
    """Returns prnn.nn's layer of the same weights without heads, in float64, for run_written_out()."""
    return prnn.convert(whole_layer(module)) if module.heads > 1 else copy.deepcopy(module).double()


def weight_gradients(module: Any, plain: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns the gradients of the module's weights, each with that of layer_of() it."""
    if module.heads > 1:
        return [(own, expected) for _, own, expected in gradients_of_heads(module, plain.cpu())]
    return [(p.grad, q.grad) for p, q in zip(module.parameters(), plain.parameters(), strict=True)]


def flatten(results: Any) -> list[torch.Tensor]:
    """Output and states."""
    output, states = results
    return [output, *states] if isinstance(states, tuple) else [output, states]


def check_formulas_on_gpu(module: Any, tolerance: float, **options: Any) -> list[torch.Size]:
    """Beside the reference in float64 with the same masks, whose shapes are returned. A module on a GPU, 40 wide.
    options: of run_written_out()."""
    plain = layer_of(module).cuda()
    input = torch.randn(6, 3, 40, device="cuda", dtype=module.weight_ih_l0.dtype, requires_grad=True)
    exact = input.detach().double().requires_grad_()
    drawn: list[torch.Tensor] = []
    bernoulli = torch.Tensor.bernoulli

    def draw(tensor: torch.Tensor, probability: float) -> torch.Tensor:
        drawn.append(bernoulli(tensor, probability))
        return drawn[-1].clone()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "bernoulli", draw)
        results = flatten(module(input, **options))
    sum(result.sum() for result in results).backward()
    masks = iter(drawn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "bernoulli_", lambda tensor, _: next(masks).to(tensor).view_as(tensor))
        expected = flatten(run_written_out(module, exact, weights=plain, **options))
    sum(result.sum() for result in expected).backward()
    pairs = [*zip(results, expected, strict=True), (input.grad, exact.grad), *weight_gradients(module, plain)]
    for ours, theirs in pairs:
        assert (ours.double() - theirs).abs().max() <= tolerance * theirs.abs().max()
    return [mask.shape for mask in drawn]


def check_lengths(module: torch.nn.Module) -> None:
    """Each sequence as if it were alone, whatever the padding holds. Two layers 3 -> 4 of two directions, float64."""
    lengths = [4, 1, 6]
    input = torch.randn(6, 3, 3, dtype=torch.float64)
    padded = input.clone()
    for n, length in enumerate(lengths):
        padded[length:, n] = math.nan
    hx = tuple(torch.randn(4, 3, 4, dtype=torch.float64) for _ in range(2))
    padded = (padded.transpose(0, 1) if module.batch_first else padded).contiguous().requires_grad_()
    output, (h, c) = module(padded, hx, lengths=lengths)
    (output.sin().sum() + h.sum() + c.square().sum()).backward()
    together = [p.grad.clone() for p in module.parameters()]
    again, _ = module(padded.detach(), hx, lengths=torch.tensor(lengths))
    assert torch.equal(again, output)
    gradient = padded.grad
    if module.batch_first:
        output, gradient = output.transpose(0, 1), gradient.transpose(0, 1)
    module.zero_grad()
    for n, length in enumerate(lengths):
        own = input[:length, n].clone().requires_grad_()
        alone, (h1, c1) = module(own, tuple(x[:, n] for x in hx))
        (alone.sin().sum() + h1.sum() + c1.square().sum()).backward()
        torch.testing.assert_close((output[:length, n], h[:, n], c[:, n]), (alone, h1, c1))
        assert (output[length:, n] == 0).all()
        torch.testing.assert_close(gradient[:length, n], own.grad)
        assert (gradient[length:, n] == 0).all()
    torch.testing.assert_close(together, [p.grad for p in module.parameters()])


def check_packed_sequences(module: torch.nn.Module, enforce_sorted: bool) -> None:
    """As padded input with lengths, in the order of the caller's sequences. The module as check_lengths()'s."""
    lengths = [6, 4, 1] if enforce_sorted else [4, 1, 6]
    hx = tuple(torch.randn(4, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    input = torch.randn((3, 6, 3) if module.batch_first else (6, 3, 3), dtype=torch.float64, requires_grad=True)
    packed = pack_padded_sequence(input, lengths, module.batch_first, enforce_sorted)
    found = []
    for argument, options in ((packed, {}), (input, {"lengths": lengths})):
        output, (h, c) = module(argument, hx, **options)
        if argument is packed:
            assert torch.equal(output.batch_sizes, packed.batch_sizes)
            output, _ = pad_packed_sequence(output, module.batch_first)
        gradients = torch.autograd.grad(
            output.sin().sum() + h.sum() + c.square().sum(), [input, *hx, *module.parameters()]
        )
        found.append((output, h, c, *gradients))
    torch.testing.assert_close(*found)


def check_graph_reads_lengths_anew(module: torch.nn.Module) -> None:
    """A module on a GPU, 8 wide, in evaluation."""
    x = torch.randn(5, 3, 8, device="cuda")
    lengths = torch.tensor([5, 1, 3], device="cuda")
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        module(x, lengths=lengths)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            output, (h, c) = module(x, lengths=lengths)
    lengths.copy_(torch.tensor([2, 4, 5]))
    graph.replay()
    torch.cuda.synchronize()
    expected, states = module(x, lengths=lengths)
    assert torch.equal(output, expected)
    assert torch.equal(h, states[0])
    assert torch.equal(c, states[1])


def check_graph_keeps_lengths_of_the_host(module: torch.nn.Module, lengths: Sequence[int]) -> None:
    """As above: they are constants of the graph, with gradients, too."""
    dtype = next(module.parameters()).dtype
    x = torch.randn(5, len(lengths), 8, device="cuda", dtype=dtype, requires_grad=True)

    def run() -> list[torch.Tensor]:
        output, (h, c) = module(x, lengths=torch.tensor(lengths))
        return [output, h, c, *torch.autograd.grad(output.sum() + c.sum(), [x, *module.parameters()])]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            found = run()
    stream.synchronize()
    with torch.no_grad():
        x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(found, run())


def check_packed_sequences_on_gpu(module: torch.nn.Module) -> None:
    """As above."""
    x = torch.randn(5, 3, 8, device="cuda")
    output, states = module(pack_padded_sequence(x, [2, 5, 4], enforce_sorted=False))
    expected, expected_states = module(x, lengths=[2, 5, 4])
    torch.testing.assert_close(pad_packed_sequence(output)[0], expected)
    torch.testing.assert_close(states, expected_states)


def check_autocast_on_gpu(module: torch.nn.Module) -> None:
    """As above."""
    x = torch.randn(5, 3, 8, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output, (h, c) = module(x)
    assert output.dtype == h.dtype == c.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), module(x)[0], atol=0.05, rtol=0)
    output.sum().backward()
    assert module.weight_hh_l0.grad.dtype == torch.float32


def check_masks_follow_torchs_generator(module: torch.nn.Module) -> None:
    """A module in training, 3 wide, on the CPU."""
    input = torch.randn(6, 2, 3)

    def run() -> torch.Tensor:
        torch.manual_seed(3)
        return module(input)[0]

    first = run()
    assert torch.equal(run(), first)
    assert not torch.equal(module(input)[0], first)
    module.eval()
    assert torch.equal(module(input)[0], module(input)[0])


def check_copies_and_pickles(module: torch.nn.Module) -> None:
    """As above."""
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    input = torch.randn(5, 2, 3)
    for other in (copy.deepcopy(module), torch.load(buffer, weights_only=False)):
        assert repr(other) == repr(module)
        torch.manual_seed(1)
        expected = module(input)[0]
        torch.manual_seed(1)
        assert torch.equal(other(input)[0], expected)


def check_each_replay_draws_masks(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """A module in training on a GPU, 8 wide."""
    x = torch.randn(5, 3, 8, device="cuda", dtype=dtype, requires_grad=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        module(x)[0].sum().backward()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            x.grad = None
            output, _ = module(x)
            output.sum().backward()
    found = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        found.append((output.clone(), x.grad.clone()))
    assert not torch.equal(found[0][0], found[1][0])
    assert not torch.equal(found[0][1], found[1][1])
    assert all(torch.isfinite(tensor).all() for pair in found for tensor in pair)

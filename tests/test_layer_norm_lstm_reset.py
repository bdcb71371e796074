"""prnn.nn.LayerNormLSTM with reset=: each piece as a sequence of its own."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from reference.layer_norm_lstm import layer_norm_lstm as reference
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import prnn

DOUBLE: dict[str, Any] = {"dtype": torch.float64}
States = tuple[torch.Tensor, torch.Tensor]


def make_layer(normalize: str, num_layers: int = 1, bidirectional: bool = False, **options: Any) -> torch.nn.Module:
    module = prnn.nn.LayerNormLSTM(
        5, 6, num_layers, normalize=normalize, bidirectional=bidirectional, **DOUBLE, **options
    )
    for name, parameter in module.named_parameters():
        if name.startswith("norm"):
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    return module


def make_states(module: Any, batch: int = 3) -> States:
    count = module.num_layers * (2 if module.bidirectional else 1)
    h, c = (torch.randn(count, batch, 6, **DOUBLE, requires_grad=True) for _ in range(2))
    return h, c


def in_pieces(
    module: Any, input: torch.Tensor, hx: States | None, reset: torch.Tensor, reset_hx: States | None
) -> tuple[torch.Tensor, States]:
    """One direction, a call for each piece of each sequence. input: (T, N, I)."""
    zeros = tuple(input.new_zeros(module.num_layers, input.size(1), 6) for _ in range(2))
    first, anew = hx or zeros, reset_hx or zeros
    outputs, last = [], []
    for n in range(input.size(1)):
        starts = [0, *(t for t in range(1, len(reset)) if reset[t, n]), len(reset)]
        pieces = []
        for begin, end in pairwise(starts):
            of = anew if reset[begin, n] else first
            output, states = module(input[begin:end, n], (of[0][:, n], of[1][:, n]))
            pieces.append(output)
        outputs.append(torch.cat(pieces))
        last.append(states)
    h, c = (torch.stack(state, 1) for state in zip(*last, strict=True))
    return torch.stack(outputs, 1), (h, c)


@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("zoneout", [0.0, 0.3])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("normalize", ["gates", "products"])
def test_each_piece_is_a_sequence(
    normalize: str, steps: int, num_layers: int, zoneout: float, with_states: bool
) -> None:
    """The stack, in one direction: layers see each other's pieces as they see whole sequences."""
    module = make_layer(normalize, num_layers, zoneout=zoneout).eval()
    input = torch.randn(steps, 3, 5, **DOUBLE, requires_grad=True)
    reset = torch.rand(steps, 3) < 0.4
    reset[0, 0], reset[:, 1] = True, False
    hx, reset_hx = (make_states(module), make_states(module)) if with_states else (None, None)
    found = []
    for run in (
        lambda: module(input, hx, reset=reset, reset_hx=reset_hx),
        lambda: in_pieces(module, input, hx, reset, reset_hx),
    ):
        output, (h, c) = run()
        leaves = [input, *module.parameters(), *(hx or ()), *(reset_hx or ())]
        loss = output.sin().sum() + h.cos().sum() + c.square().sum()
        found.append((output, h, c, *torch.autograd.grad(loss, leaves, allow_unused=True)))
    for ours, theirs in zip(*found, strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs)
        else:
            assert ours is None or not ours.any()


@pytest.mark.parametrize("normalize", ["gates", "products"])
def test_two_directions_and_lengths(normalize: str) -> None:
    """Each direction as a layer of its own; padding, and flags there, have no influence."""
    module = make_layer(normalize, bidirectional=True).eval()
    forward, backward = make_layer(normalize).eval(), make_layer(normalize).eval()
    own = dict(module.named_parameters())
    for name in dict(forward.named_parameters()):
        forward.get_parameter(name).data = own[name].data
        backward.get_parameter(name).data = own[f"{name}_reverse"].data
    input, reset = torch.randn(6, 3, 5, **DOUBLE), torch.rand(6, 3) < 0.4
    hx, reset_hx = make_states(module), make_states(module)
    lengths = [4, 6, 1]
    output, (h, c) = module(input, hx, lengths=lengths, reset=reset, reset_hx=reset_hx)
    for n, length in enumerate(lengths):
        one = slice(n, n + 1)
        y, states = in_pieces(
            forward,
            input[:length, one],
            tuple(s[:1, one] for s in hx),
            reset[:length, one],
            tuple(s[:1, one] for s in reset_hx),
        )
        torch.testing.assert_close(output[:length, one, :6], y)
        torch.testing.assert_close((h[:1, one], c[:1, one]), states)
        # Backwards a flag at t cuts between t and t - 1: the piece before it starts from the states at t - 1.
        flipped = torch.cat([reset[1:length, one], reset[:0, one], torch.zeros(1, 1, dtype=torch.bool)]).flip(0)
        y, states = in_pieces(
            backward,
            input[:length, one].flip(0),
            tuple(s[1:, one] for s in hx),
            flipped,
            tuple(s[1:, one] for s in reset_hx),
        )
        torch.testing.assert_close(output[:length, one, 6:], y.flip(0))
        assert (output[length:, n] == 0).all()


@pytest.mark.parametrize("batch_first", [False, True])
def test_layouts(batch_first: bool) -> None:
    module = make_layer("gates", 2, bidirectional=True, batch_first=batch_first).eval()
    plain = make_layer("gates", 2, bidirectional=True).eval()
    plain.load_state_dict(module.state_dict())
    input, reset, lengths = torch.randn(6, 3, 5, **DOUBLE), torch.rand(6, 3) < 0.4, [4, 1, 6]
    hx, anew = make_states(plain), make_states(plain)
    expected, states = plain(input, hx, lengths=lengths, reset=reset, reset_hx=anew)
    given = (input.transpose(0, 1), reset.transpose(0, 1)) if batch_first else (input, reset)
    output, found = module(given[0], hx, lengths=lengths, reset=given[1], reset_hx=anew)
    torch.testing.assert_close(output.transpose(0, 1) if batch_first else output, expected)
    torch.testing.assert_close(found, states)
    packed, flags = (pack_padded_sequence(each, lengths, batch_first, False) for each in given)
    output, found = module(packed, hx, reset=flags.data, reset_hx=anew)
    torch.testing.assert_close(pad_packed_sequence(output)[0], expected)
    torch.testing.assert_close(found, states)
    output, _ = module(input[:, 0], reset=reset[:, 0])
    torch.testing.assert_close(output, plain(input[:, :1], reset=reset[:, :1])[0][:, 0])


def test_masks_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zoneout at a reset keeps the state there; without a flag all is as without reset."""
    module = make_layer("gates", 2, bidirectional=True, zoneout=0.3, recurrent_dropout=0.4)
    input, found = torch.randn(7, 3, 5, **DOUBLE), []
    for options in ({}, {"reset": torch.zeros(7, 3, dtype=torch.bool)}):
        torch.manual_seed(4)
        output, states = module(input, **options)
        found.append((output, *states))
    torch.testing.assert_close(*found)
    module = make_layer("products", zoneout=0.5)
    monkeypatch.setattr(torch.Tensor, "bernoulli", lambda mask, _: torch.ones_like(mask))
    reset = torch.tensor([0, 0, 1, 0, 0])[:, None] == 1
    hx, anew = make_states(module, 1), make_states(module, 1)
    output, _ = module(torch.randn(5, 1, 5, **DOUBLE), hx, reset=reset, reset_hx=anew)
    torch.testing.assert_close(output, torch.stack([*[hx[0][0]] * 2, *[anew[0][0]] * 3]))


def test_pieces_have_the_masks_of_their_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of zoneout for their timesteps, and one of the recurrence for all of a sequence."""
    module, bernoulli, drawn = make_layer("gates", zoneout=0.3, recurrent_dropout=0.4), torch.Tensor.bernoulli, []

    def draw(tensor: torch.Tensor, probability: float) -> torch.Tensor:
        drawn.append(bernoulli(tensor, probability))
        return drawn[-1].clone()

    monkeypatch.setattr(torch.Tensor, "bernoulli", draw)
    input, reset = torch.randn(9, 3, 5, **DOUBLE), torch.rand(9, 3) < torch.tensor([0.0, 0.3, 0.6])
    output, (_, c) = module(input, reset=reset)
    (zoneout, kept), (weight_ih, *weights) = drawn, module._packed_weights()
    x = input @ weight_ih.T
    for n in range(3):
        starts = [0, *(t for t in range(1, 9) if reset[t, n]), 9]
        pieces = [
            reference(x[a:b, n : n + 1], None, None, *weights, zoneout[a:b, n : n + 1].double(), kept[0, n] / 0.6)
            for a, b in pairwise(starts)
        ]
        torch.testing.assert_close(output[:, n : n + 1], torch.cat([y for y, _ in pieces]))
        torch.testing.assert_close(c[0, n : n + 1], pieces[-1][1])


def test_a_graph_breaks_where_sequences_are_cut() -> None:
    torch.compiler.reset()
    module = prnn.nn.LayerNormLSTM(3, 4, zoneout=0.2, recurrent_dropout=0.1)
    compiled = torch.compile(module, backend="eager")
    for share in (0.1, 0.8):  # other numbers of pieces
        input, reset, results = torch.randn(5, 2, 3), torch.rand(5, 2) < share, []
        for call in (module, compiled):
            torch.manual_seed(1)
            results.append(call(input, reset=reset)[0])
        torch.testing.assert_close(*results)
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="_run_cut"):
        torch.compile(module, backend="eager", fullgraph=True)(input, reset=reset)


def test_types_and_no_sequences() -> None:
    reset = torch.rand(5, 2) < 0.4
    module = prnn.nn.LayerNormLSTM(3, 4, dtype=torch.bfloat16)
    anew = tuple(torch.randn(1, 2, 4, dtype=torch.bfloat16) for _ in range(2))
    output, (h, c) = module(torch.randn(5, 2, 3, dtype=torch.bfloat16), reset=reset, reset_hx=anew)
    assert {output.dtype, h.dtype, c.dtype} == {torch.bfloat16}
    module = prnn.nn.LayerNormLSTM(3, 4)
    with torch.autocast("cpu"):
        output, _ = module(torch.randn(5, 2, 3), reset=reset, reset_hx=anew)
    assert output.dtype == torch.bfloat16
    assert module(torch.zeros(5, 0, 3), reset=torch.zeros(5, 0, dtype=torch.bool))[0].shape == (5, 0, 4)


def test_what_is_refused() -> None:
    module, input = make_layer("gates"), torch.randn(4, 2, 5, **DOUBLE)
    reset, states = torch.zeros(4, 2, dtype=torch.bool), make_states(module, 2)
    with pytest.raises(ValueError, match="reset_hx is given, but reset, which says where it is wanted, is None"):
        module(input, reset_hx=states)
    with pytest.raises(ValueError, match=r"reset has shape \(4,\); it must be \(4, 2\), input's without features"):
        module(input, reset=reset[:, 0])
    with pytest.raises(TypeError, match=r"reset has dtype torch.uint8; it must have torch.bool"):
        module(input, reset=reset.to(torch.uint8))
    with pytest.raises(ValueError, match=r"h of reset_hx has shape \(1, 3, 6\); it must be \(1, 2, 6\)"):
        module(input, reset=reset, reset_hx=make_states(module, 3))
    with pytest.raises(TypeError, match=r"reset_hx is a Tensor; it must be the pair \(h, c\)"):
        module(input, reset=reset, reset_hx=states[0])
    with pytest.raises(ValueError, match=r"c of reset_hx has dtype torch.float32, but input has torch.float64"):
        module(input, reset=reset, reset_hx=(states[0], states[1].float()))

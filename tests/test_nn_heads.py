"""heads=: layers with block-diagonal recurrent weights, beside torch's layers with the same ones as whole matrices."""

import copy
import pickle
from typing import Any

import capi
import pytest
import torch
from heads_case import gradients_of_heads, whole_layer
from nn_pairs import CELLS, flat, make
from reference import rnn as reference
from rnn_case import RnnCase
from torch.nn.utils.rnn import pack_padded_sequence

import prnn

LENGTHS = [4, 7, 1, 5]


def make_heads(cell: str, **options: Any) -> torch.nn.RNNBase:
    torch.manual_seed(1)
    return make(prnn.nn, cell, 5, 12, **{"heads": 3, "dtype": torch.float64, **options})


def make_states(layer: torch.nn.RNNBase, *batch: int) -> Any:
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    states = [torch.randn(count, *batch, 12, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    return tuple(states) if layer.mode == "LSTM" else states[0]


def compare(layer: torch.nn.RNNBase, x: Any, states: Any) -> None:
    """Outputs, last states and all gradients."""
    layer.zero_grad()
    whole = whole_layer(layer)
    found, expected = flat(layer(x, states)), flat(whole(x, states))
    leaves = [tensor for tensor in flat([x, states]) if tensor.requires_grad]
    weights = [torch.randn_like(tensor) for tensor in expected]
    results = []
    for outputs in (found, expected):
        for tensor in leaves:
            tensor.grad = None
        torch.autograd.backward(outputs, weights)
        results.append([*outputs, *(tensor.grad for tensor in leaves)])
    for own, wanted in zip(*results, strict=True):
        torch.testing.assert_close(own, wanted, atol=1e-12, rtol=1e-12)
    for name, own, wanted in gradients_of_heads(layer, whole):
        torch.testing.assert_close(own, wanted, atol=1e-12, rtol=1e-12, msg=name)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("cell", CELLS)
def test_training_step(cell: str, layers: int, bidirectional: bool) -> None:
    layer = make_heads(cell, num_layers=layers, bidirectional=bidirectional)
    x = torch.randn(7, 4, 5, dtype=torch.float64, requires_grad=True)
    compare(layer, x, make_states(layer, 4))


@pytest.mark.parametrize("heads", [1, 2, 6, 12])
def test_any_number_of_heads(heads: int) -> None:
    layer = make_heads("GRU", heads=heads, bias=False, batch_first=True)
    compare(layer, torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True), make_states(layer, 4))


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_packed_padded_and_unbatched(cell: str) -> None:
    layer = make_heads(cell, num_layers=2, bidirectional=True)
    x = torch.randn(7, 4, 5, dtype=torch.float64)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)
    states = make_states(layer, 4)
    compare(layer, packed, states)
    padded, last = layer(x, states, lengths=LENGTHS)
    expected, expected_last = layer(packed, states)
    torch.testing.assert_close(pack_padded_sequence(padded, LENGTHS, enforce_sorted=False).data, expected.data)
    for own, wanted in zip(flat(last), flat(expected_last), strict=True):
        torch.testing.assert_close(own, wanted)
    compare(layer, x[:, 0].detach().requires_grad_(), make_states(layer))


def test_heads_do_not_see_each_other() -> None:
    layer = make_heads("LSTM")
    x = torch.randn(4, 2, 5, dtype=torch.float64)
    h, c = make_states(layer, 2)
    before = layer(x, (h, c))[0]
    with torch.no_grad():
        h[..., 4:8] += 1
        layer.weight_hh_l0[2] += 1
    after = layer(x, (h, c))[0]
    assert torch.equal(before[..., :4], after[..., :4])
    assert not torch.equal(before[0, :, 4:8], after[0, :, 4:8])
    assert not torch.equal(before[0, :, 8:], after[0, :, 8:])


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("given", [False, True])
def test_reset(cell: str, given: bool) -> None:
    """As the pieces between the resets, each on its own."""
    layer = make_heads(cell)
    x = torch.randn(6, 2, 5, dtype=torch.float64)
    states = make_states(layer, 2) if given else None
    reset = torch.zeros(6, 2, dtype=torch.bool)
    reset[2] = True
    options = {"reset_hx": states} if given else {}
    found, last = layer(x, reset=reset, **options)
    torch.testing.assert_close(found[:2], layer(x[:2])[0])
    expected, expected_last = layer(x[2:], states)
    torch.testing.assert_close(found[2:], expected)
    for own, wanted in zip(flat(last), flat(expected_last), strict=True):
        torch.testing.assert_close(own, wanted)


def test_cells_of_every_timestep() -> None:
    layer = make_heads("LSTM", bidirectional=True)
    x = torch.randn(3, 2, 5, dtype=torch.float64)
    _, (_, c), cells = layer(x, return_cells=True)
    torch.testing.assert_close(cells[-1, :, :12], c[0])
    torch.testing.assert_close(cells[0, :, 12:], c[1])


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_gradcheck(cell: str) -> None:
    layer = make_heads(cell, num_layers=2)
    x = torch.randn(3, 2, 5, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def run(x: torch.Tensor, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parameters = dict(zip(names, values, strict=True))
        return tuple(flat(torch.func.functional_call(layer, parameters, (x,))))

    assert torch.autograd.gradcheck(run, (x, *layer.parameters()), fast_mode=True)


def test_shapes_and_initial_values() -> None:
    layer = make_heads("LSTM", num_layers=2)
    assert layer.weight_ih_l0.shape == (48, 5)
    assert layer.weight_ih_l1.shape == (48, 12)
    assert layer.weight_hh_l1.shape == (3, 16, 4)
    bound = max(parameter.abs().max().item() for parameter in layer.parameters())
    assert 0.45 < bound <= 0.5  # 1 / sqrt(units of a head)
    assert repr(layer) == "prnn.nn.LSTM(5, 12, num_layers=2, heads=3)"
    addresses = [getattr(layer, name).data_ptr() for name in layer._packed_names]
    assert addresses == sorted(addresses)
    assert layer._packed_weights()[0].data_ptr() == addresses[0]


def test_forget_bias_of_every_head() -> None:
    layer = make_heads("LSTM", forget_bias=2.0)
    bias = (layer.bias_ih_l0 + layer.bias_hh_l0).view(3, 4, 4)
    assert (bias[:, 1] == 2).all()
    assert (bias[:, [0, 2, 3]] != 2).all()


@pytest.mark.parametrize("how", ["copy", "pickle", "state_dict", "float and back"])
def test_the_layer_survives(how: str) -> None:
    layer = make_heads("GRU", num_layers=2)
    x = torch.randn(3, 2, 5, dtype=torch.float64)
    expected = layer(x)[0]
    if how == "copy":
        again = copy.deepcopy(layer)
    elif how == "pickle":
        again = pickle.loads(pickle.dumps(layer))
    elif how == "state_dict":
        torch.manual_seed(9)
        again = prnn.nn.GRU(5, 12, 2, heads=3, dtype=torch.float64)
        again.load_state_dict(layer.state_dict())
    else:
        again = copy.deepcopy(layer).float().double()
        again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x)[0], expected)


def test_compiled_and_exported() -> None:
    layer = make_heads("LSTM")
    x = torch.randn(3, 2, 5, dtype=torch.float64)
    expected = layer(x)[0]
    assert torch.equal(torch.compile(layer, backend="aot_eager", fullgraph=True)(x)[0], expected)
    assert torch.equal(torch.export.export(layer, (x,)).module()(x)[0], expected)


def test_16_bits_on_the_cpu() -> None:
    layer = make_heads("GRU", dtype=torch.bfloat16)
    x, states = torch.randn(4, 2, 5, dtype=torch.bfloat16), torch.randn(1, 2, 12, dtype=torch.bfloat16)
    expected = whole_layer(layer)(x.double(), states.double())[0]
    torch.testing.assert_close(layer(x, states)[0].double(), expected, atol=8e-3, rtol=8e-3)


def test_convert_back_refuses_heads_and_changes_nothing() -> None:
    model = torch.nn.Sequential(prnn.nn.GRU(3, 4), prnn.nn.LSTM(3, 4, heads=2))
    with pytest.raises(ValueError, match=r"LSTM\(3, 4, heads=2\) has heads, which torch.nn's layers have not"):
        prnn.convert_back(model)
    assert type(model[0]) is prnn.nn.GRU


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"heads": 0}, ValueError, "heads is 0; it must be at least 1 and divide hidden_size, 12"),
        ({"heads": -3}, ValueError, "heads is -3; it must be at least 1 and divide hidden_size, 12"),
        ({"heads": 5}, ValueError, "heads is 5; it must be at least 1 and divide hidden_size, 12"),
        ({"heads": 2.0}, TypeError, "heads is 2.0; it must be an integer"),
        ({"heads": True}, TypeError, "heads is True; it must be an integer"),
        ({"heads": 3, "proj_size": 2}, ValueError, "proj_size is 2, but heads is 3: heads have no projection"),
    ],
)
def test_bad_options(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        prnn.nn.LSTM(5, 12, **options)


def test_a_plan_for_a_gpu() -> None:
    layer = prnn.nn.LSTM(64, 8 * 512, heads=8, dtype=torch.bfloat16)
    explained = prnn.explain(layer, 16, gpu="H200").layers[0]
    assert explained.supported
    assert "8 heads" in str(explained)
    assert (explained.forward, explained.backward) == ("cluster", "cluster")  # in three launches
    many = prnn.explain(layer, 32, gpu="H200").layers[0]
    assert many.forward == "wgmma-multicast"  # in two, where clusters would take eight
    too_large = prnn.explain(prnn.nn.LSTM(4, 2 * 4096, heads=2, device="meta"), 4, gpu="H200").layers[0]
    assert not too_large.supported
    assert any("cuDNN has no heads" in note or "hidden size 4096" in note for note in too_large.notes)


# The C API


@pytest.mark.parametrize(
    ("options", "heads", "status", "message"),
    [
        ({}, 0, capi.BAD_PARAM, "heads is 0; it must be at least 1 and divide hiddenSize, 12"),
        ({}, 5, capi.BAD_PARAM, "heads is 5; it must be at least 1 and divide hiddenSize, 12"),
        (
            {"projection": 4},
            3,
            capi.NOT_SUPPORTED,
            "heads is 3 with projSize 4; layers with a projection have no heads",
        ),
        ({"skip_input": True}, 3, capi.NOT_SUPPORTED, "heads is 3 with PRNN_SKIP_INPUT"),
    ],
)
def test_bad_heads_in_c(options: dict[str, Any], heads: int, status: int, message: str) -> None:
    case = RnnCase(reference.Stack(reference.LSTM, 12, 12, **options), [2, 2])
    assert capi.call("SetRNNHeads", rnnDesc=case.rnn.pointer, heads=heads) == status
    assert message in capi.message()


def test_a_projection_with_heads_in_c() -> None:
    case = RnnCase(reference.Stack(reference.LSTM, 12, 12), [2, 2])
    capi.check("SetRNNHeads", rnnDesc=case.rnn.pointer, heads=3)
    assert capi.call("SetRNNProjectionSize", rnnDesc=case.rnn.pointer, projSize=4) == capi.NOT_SUPPORTED
    assert "projSize is 4 with 3 heads" in capi.message()


def test_states_have_a_place_for_every_head_in_c() -> None:
    case = RnnCase(reference.Stack(reference.GRU, 5, 12), [2, 2])
    capi.check("SetRNNHeads", rnnDesc=case.rnn.pointer, heads=3)
    with pytest.raises(AssertionError):
        case.check("RNNForwardInference")
    assert "hxDesc has dimensions {1, 2, 12}; they must be {3, 2, 4}" in capi.message(case.handle.pointer)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_where_the_weights_of_a_head_are_in_c(cell: str) -> None:
    """prnnGetRNNLinLayer*Params against the module's parameters, which lie in the packed order."""
    layer = make_heads(cell, num_layers=2, bidirectional=True)
    mode, gates, size = {"LSTM": (reference.LSTM, 4, 4), "GRU": (reference.GRU, 3, 4)}[cell]
    rnn = prnn._C.Rnn(mode, prnn._C.DOUBLE, 12, 2, 5, True, heads=3)
    packed = torch.cat([weight.reshape(-1) for weight in layer._packed_weights()])
    assert rnn.params_size() == packed.numel()
    for level in range(2):
        for direction, suffix in enumerate(("", "_reverse")):
            names = [f"{kind}_l{level}{suffix}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            for head in range(3):
                offsets = rnn.layer_offsets(level, direction * 3 + head)
                assert offsets[2] == -1
                for name, offset in zip(names, (*offsets[:2], *offsets[3:]), strict=True):
                    expected = getattr(layer, name).view(3, gates * size, -1)[head].reshape(-1)
                    assert torch.equal(packed[offset : offset + expected.numel()], expected), name
    with pytest.raises(ValueError, match="direction is 6; the layer has 6"):
        rnn.layer_offsets(0, 6)

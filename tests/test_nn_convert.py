"""prnn.convert and convert_back."""

import copy
import re
import warnings
from typing import Any

import pytest
import torch
from nn_pairs import CELLS, compare, make
from torch import nn

import prnn


class Model(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = nn.LSTM(3, 4, num_layers=2, bidirectional=True, dropout=dropout)
        self.layers = nn.ModuleList([nn.GRU(8, 4, bias=False), nn.RNN(4, 4, nonlinearity="relu")])
        self.tied = self.layers[1]
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, _: Any = None) -> torch.Tensor:
        for layer in (self.encoder, *self.layers, self.tied):
            x, _ = layer(x)
        return self.head(x)


def data() -> torch.Tensor:
    return torch.randn(5, 2, 3, requires_grad=True)


def test_swaps_every_layer_in_place() -> None:
    model = Model()
    before = copy.deepcopy(model)
    modules, parameters, text = list(model.modules()), list(model.parameters()), repr(model)
    assert prnn.convert(model) is model
    assert all(new is old for new, old in zip(model.modules(), modules, strict=True))
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert [type(m) for m in (model.encoder, *model.layers)] == [prnn.nn.LSTM, prnn.nn.GRU, prnn.nn.RNN]
    assert model.tied is model.layers[1]
    assert type(model.head) is nn.Linear
    assert re.sub(r"\b(RNN|GRU|LSTM)\(", r"prnn.nn.\1(", text) == repr(model)
    compare(before, model, data())


def test_there_and_back() -> None:
    model = Model()
    before = copy.deepcopy(model)
    parameters = list(model.parameters())
    assert prnn.convert_back(prnn.convert(model)) is model
    assert [type(m) for m in (model.encoder, *model.layers)] == [nn.LSTM, nn.GRU, nn.RNN]
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert vars(model.encoder).keys() == vars(before.encoder).keys()
    compare(before, model, data())


@pytest.mark.parametrize("cell", CELLS)
def test_root_is_a_layer(cell: str) -> None:
    layer = make(nn, cell, 3, 4)
    reference = copy.deepcopy(layer)
    converted = prnn.convert(layer, backend="persistent")
    assert type(converted).__module__ == "prnn.nn"
    assert converted.backend == "persistent"
    compare(reference, converted, data())


def test_made_by_prnn_and_given_to_torch() -> None:
    model = nn.Sequential(prnn.nn.LSTM(3, 4, num_layers=2, bias=False, dtype=torch.float64))
    reference = copy.deepcopy(model)
    assert type(prnn.convert_back(model)[0]) is nn.LSTM
    compare(reference[0], model[0], data().double().detach().requires_grad_())


def test_mode_dtype_and_hooks_are_kept() -> None:
    calls = []
    model = Model(dropout=0.5).double().eval()
    handle = model.encoder.register_forward_hook(lambda *_: calls.append("hook"))
    model.encoder.register_load_state_dict_pre_hook(lambda *_: calls.append("load"))
    model.encoder.weight_hh_l0.requires_grad_(False)
    prnn.convert(model)
    assert not model.encoder.training
    assert model.encoder.weight_ih_l0.dtype == torch.float64
    assert not model.encoder.weight_hh_l0.requires_grad
    model(data().double())
    handle.remove()
    model(data().double())
    model.load_state_dict(model.state_dict())
    assert calls == ["hook", "load"]


def test_optimizer_made_before_goes_on() -> None:
    models = [Model(), Model()]
    models[1].load_state_dict(models[0].state_dict())
    x = data().detach()
    losses = []
    for index, model in enumerate(models):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        losses.append([])
        for step in range(4):
            if step == 2 and index == 1:
                prnn.convert(model)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses[index].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_a_model_converted_under_inference_mode_can_be_trained() -> None:
    model = torch.nn.GRU(3, 4)
    with torch.inference_mode():
        prnn.convert(model)
    model(torch.randn(5, 2, 3))[0].sum().backward()
    assert model.weight_hh_l0.grad.any()


def test_a_cell_with_forget_bias_goes_back() -> None:
    model = nn.Sequential(prnn.nn.LSTMCell(3, 4, forget_bias=1.0))
    weights, x = list(model.parameters()), torch.randn(2, 3)
    expected = model(x)
    assert prnn.convert_back(model) is model
    assert type(model[0]) is nn.LSTMCell
    assert vars(model[0]).keys() == vars(nn.LSTMCell(3, 4)).keys()
    assert all(new is old for new, old in zip(model.parameters(), weights, strict=True))
    assert torch.equal(torch.fx.symbolic_trace(model)(x)[0], expected[0])


def test_subclasses_are_left_and_said() -> None:
    class Special(nn.LSTM):
        pass

    model = nn.Sequential(Special(3, 4), nn.GRU(4, 4))
    with pytest.warns(UserWarning, match=r"'0' is left as it is: .*Special is a subclass"):
        prnn.convert(model)
    assert type(model[0]) is Special
    assert type(model[1]) is prnn.nn.GRU


def test_a_model_without_recurrent_layers_is_told() -> None:
    with pytest.warns(UserWarning, match=r"model has no torch\.nn\.RNN, GRU or LSTM: nothing is converted"):
        prnn.convert(nn.Sequential(nn.Linear(3, 4)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prnn.convert(prnn.convert(nn.Sequential(nn.LSTM(3, 4))))


def test_the_exporter_to_onnx_is_told_of_convert_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.onnx.export records with torch.export, and looks its operators up after that."""
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    for layer in (prnn.nn.GRU(3, 4), prnn.nn.LayerNormLSTM(3, 4)):
        for strict in (False, True):
            with pytest.raises(Exception, match=r"torch\.onnx\.export; prnn\.convert_back"):
                torch.export.export(layer, (torch.randn(5, 2, 3),), strict=strict)
    monkeypatch.undo()
    torch.export.export(prnn.nn.GRU(3, 4), (torch.randn(5, 2, 3),), strict=True)


def test_what_cannot_be_swapped_changes_nothing() -> None:
    model = nn.Sequential(nn.GRU(3, 4), nn.LSTM(4, 4))
    nn.utils.parametrizations.weight_norm(model[1], "weight_hh_l0")
    with pytest.raises(ValueError, match="'1' carries parametrizations"):
        prnn.convert(model)
    assert type(model[0]) is nn.GRU
    model = nn.Sequential(nn.GRU(3, 4), nn.LSTM(4, 4, num_layers=2, dropout=1.0))
    with pytest.raises(ValueError, match=r"LSTM\(4, 4, num_layers=2, dropout=1.0\) has dropout 1.0"):
        prnn.convert(model)
    assert type(model[0]) is nn.GRU
    model = nn.Sequential(nn.GRU(3, 4), nn.GRU(4, 4, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"GRU\(4, 4\) has weights of torch\.complex64"):
        prnn.convert(model)
    assert type(model[0]) is nn.GRU


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="model is a dict"):
        prnn.convert({})
    with pytest.raises(TypeError, match="model is a int"):
        prnn.convert_back(3)
    with pytest.raises(ValueError, match="backend is 'fast'"):
        prnn.convert(nn.GRU(3, 4), backend="fast")


def test_converted_back_model_exports() -> None:
    model = prnn.convert_back(prnn.convert(Model())).eval()
    x = data().detach()
    expected = model(x)
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), expected)


@pytest.mark.parametrize(
    "layer",
    [prnn.nn.RNN(3, 4), prnn.nn.GRU(3, 4), prnn.nn.LSTM(3, 4, zoneout=0.1), prnn.nn.LayerNormLSTM(3, 4)],
    ids=lambda layer: type(layer).__name__,
)
def test_torchscript_is_refused_and_told_of_convert_back(layer: torch.nn.Module) -> None:
    model, x = torch.nn.Sequential(layer), torch.randn(5, 2, 3)
    with pytest.raises(
        prnn.NotSupportedError, match=rf"{type(layer).__name__} .* torch\.jit\.script; prnn\.convert_back"
    ):
        torch.jit.script(model)
    with pytest.raises(prnn.NotSupportedError, match=r"torch\.jit\.trace .*; prnn\.convert_back"):
        torch.jit.trace(model, (x,))
    model(x)


def test_a_layer_converted_back_is_taken_by_torchscript() -> None:
    model, x = torch.nn.Sequential(prnn.nn.LSTM(3, 4)), torch.randn(5, 2, 3)
    expected = model(x)
    for made in (torch.jit.script(prnn.convert_back(model)), torch.jit.trace(model, (x,))):
        torch.testing.assert_close(made(x), expected)

"""prnn.compat.transformers: the losses against enumerated paths, and models of a stand-in package."""

import importlib
import sys
from typing import Any

import pytest
import torch
import transformers_case as case
from reference import durations as paths
from torch import Tensor, nn

import prnn.compat
from prnn.compat import transformers as compat

REDUCTIONS = ("mean_volume", "mean_batch", "mean", "sum", "none")


def reduced(costs: Tensor, lengths: Tensor, reduction: str) -> Tensor:
    """Transformers' definitions."""
    return {
        "mean_volume": costs.sum() / lengths.sum(),
        "mean_batch": costs.mean(),
        "mean": (costs / lengths).mean(),
        "sum": costs.sum(),
        "none": costs,
    }[reduction]


def enumerated(logits: Tensor, batch: case.Batch, sigma: float = 0.0) -> Tensor:
    """Costs of all paths, of logits (N, T, U + 1, V) or (N, T, U + 1, V + D)."""
    costs = []
    for n, (frames, symbols) in enumerate(zip(batch.frames, batch.symbols, strict=True)):
        own, target = logits[n, :frames, : symbols + 1].detach().double(), batch.labels[n, :symbols].tolist()
        tokens, durations = own[..., : case.VOCABULARY], own[..., case.VOCABULARY :]
        arcs = (
            paths.rnnt_arcs(tokens, target, case.BLANK)
            if durations.shape[-1] == 0
            else paths.tdt_arcs(tokens, durations, target, case.BLANK, case.DURATIONS, sigma)
        )
        costs.append(paths.enumerated_cost(arcs))
    return torch.stack([torch.as_tensor(cost) for cost in costs])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_losses(reduction: str, dtype: torch.dtype) -> None:
    batch = case.Batch.make(case.PAD)
    logits = torch.randn(3, 7, 4, case.VOCABULARY + 3, dtype=dtype)
    tokens, durations = logits[..., : case.VOCABULARY], logits[..., case.VOCABULARY :]
    lengths = torch.tensor(batch.frames), torch.tensor(batch.symbols)
    found = compat.tdt_loss(
        tokens, durations, batch.labels, *lengths, case.BLANK, case.DURATIONS, sigma=0.1, reduction=reduction
    )
    assert found.dtype == torch.float32
    wanted = reduced(enumerated(logits, batch, 0.1), lengths[1], reduction)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=0)
    found = compat.rnnt_loss(tokens, batch.labels, *lengths, case.BLANK, reduction)
    wanted = reduced(enumerated(tokens, batch), lengths[1], reduction)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=0)
    names = {"labels": batch.labels, "logit_lengths": lengths[0], "label_lengths": lengths[1]}
    names |= {"blank_token_id": case.BLANK, "num_items_in_batch": 3}
    assert torch.equal(compat.ParakeetForRNNTLoss(logits=tokens, **names, reduction=reduction), found)
    own: dict[str, Any] = {"durations": case.DURATIONS}
    found = compat.ParakeetForTDTLoss(token_logits=tokens, duration_logits=durations, **names, **own)
    torch.testing.assert_close(found.double(), reduced(enumerated(logits, batch), lengths[1], "mean"))


def test_two_parts_of_one_tensor_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = case.Batch.make(case.PAD)
    given = []
    loss = prnn.tdt_loss
    monkeypatch.setattr(prnn, "tdt_loss", lambda x, *a, **k: given.append((x, k)) or loss(x, *a, **k))
    leaf = torch.randn(3, 7, 4, case.VOCABULARY + 3, requires_grad=True)
    lengths = torch.tensor(batch.frames), torch.tensor(batch.symbols)
    gradients = []
    for whole in (True, False):
        logits = leaf * 1
        tokens, durations = logits[..., : case.VOCABULARY], logits[..., case.VOCABULARY :]
        if not whole:
            durations = durations.clone()
        value = compat.tdt_loss(tokens, durations, batch.labels, *lengths, case.BLANK, case.DURATIONS)
        gradients.append(torch.autograd.grad(value, leaf)[0])
    assert given[0][0].data_ptr() != given[1][0].data_ptr()
    assert given[0][0].shape[-1] == case.VOCABULARY + 3
    assert given[0][1]["duration_logits"] is None
    assert given[1][1]["duration_logits"] is not None
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reduction": "max"}, 'Invalid reduction mode "max"'),
        ({"blank_token_id": 9}, "blank_token_id is 9"),
        ({"target_lengths": torch.tensor([4, 1, 1])}, r"target_lengths\[0\] is 4"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    batch = case.Batch.make(case.BLANK)
    arguments = {
        "logits": torch.randn(3, 7, 4, case.VOCABULARY),
        "targets": batch.labels,
        "logit_lengths": torch.tensor(batch.frames),
        "target_lengths": torch.tensor(batch.symbols),
        "blank_token_id": case.BLANK,
    }
    with pytest.raises(ValueError, match=message):
        compat.rnnt_loss(**{**arguments, **change})


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The stand-in, in sys.modules."""
    made = case.make()
    for name in made:
        parts = name.split(".")
        for end in range(1, len(parts)):
            above = ".".join(parts[:end])
            monkeypatch.setitem(sys.modules, above, sys.modules.get(above) or type(sys)(above))
            sys.modules[above].__path__ = []
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def model_of(package: dict[str, Any], name: str, **options: Any) -> Any:
    module = package[case.NEMOTRON if name.startswith("Nemotron") else case.PARAKEET]
    torch.manual_seed(1)
    return getattr(module, name)(**options)


MODELS = {
    "ParakeetForRNNT": (case.BLANK, "mean_volume"),
    "ParakeetForTDT": (case.PAD, "mean"),
    "NemotronAsrStreamingForRNNT": (case.PAD, "mean_volume"),
}


def losses_of(model: nn.Module, batch: case.Batch, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    model.zero_grad()
    output = model(**batch.arguments(), **options)
    output.loss.backward()
    return output, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh()], ids=str)
def test_training_without_logits(package: dict[str, Any], name: str, activation: nn.Module, capsys: Any) -> None:
    prnn.compat.install("transformers")
    said = capsys.readouterr().err.splitlines()
    assert f"prnn.compat: transformers.{name}.forward is prnn's" in said
    assert "prnn.compat: transformers.loss.loss_tdt.tdt_loss is prnn's" in said
    prnn.compat.install("transformers")
    assert capsys.readouterr().err == ""
    padding, reduction = MODELS[name]
    batch = case.Batch.make(padding)
    model = model_of(package, name, activation=activation)
    fused, gradients = losses_of(model, batch)
    assert fused.logits is None
    assert "logits" not in fused
    whole, wanted = losses_of(model, batch, output_logits=True)
    assert whole.logits.shape == (3, 7, 4, model.rows)
    torch.testing.assert_close(fused.loss, whole.loss)
    torch.testing.assert_close(gradients, wanted)
    costs = reduced(enumerated(whole.logits, batch), torch.tensor(batch.symbols), reduction)
    torch.testing.assert_close(fused.loss.detach().double(), costs, rtol=1e-5, atol=0)
    assert [x.shape for x in model(**batch.arguments(), return_dict=False)] == [fused.loss.shape, batch.encoder.shape]
    assert "_prnn_is_fused" not in vars(model.joint)
    assert model.eval()(**batch.arguments()).logits is not None
    assert model.train()(**{**batch.arguments(), "labels": None}).loss is None


def test_what_has_logits_after_all(package: dict[str, Any]) -> None:
    """Another activation, another loss, an adapter on the output layer."""
    prnn.compat.install("transformers")
    batch = case.Batch.make(case.PAD)
    wanted = model_of(package, "ParakeetForTDT")(**batch.arguments())
    assert model_of(package, "ParakeetForTDT", activation=nn.SiLU())(**batch.arguments()).logits is not None
    model = model_of(package, "ParakeetForTDT")
    model._loss_function = lambda token_logits, **_: token_logits.sum()
    assert model(**batch.arguments()).logits is not None
    model = model_of(package, "ParakeetForTDT")
    model.joint.head.register_forward_hook(lambda *_: None)
    hooked = model(**batch.arguments())
    assert hooked.logits is not None
    torch.testing.assert_close(hooked.loss, wanted.loss)


def test_nemotron_without_a_mask(package: dict[str, Any]) -> None:
    prnn.compat.install("transformers")
    batch = case.Batch.make(case.PAD)
    batch.frames = [7, 7, 7]
    model = model_of(package, "NemotronAsrStreamingForRNNT")
    arguments = {**batch.arguments(), "mask": None}
    whole = model(**arguments, output_logits=True)
    costs = reduced(enumerated(whole.logits, batch), torch.tensor(batch.symbols), "mean_volume")
    for output in (model(**arguments), whole):
        torch.testing.assert_close(output.loss.detach().double(), costs, rtol=1e-5, atol=0)


def test_autocast_on_the_cpu(package: dict[str, Any]) -> None:
    prnn.compat.install("transformers")
    batch = case.Batch.make(case.PAD)
    model = model_of(package, "ParakeetForTDT")
    wanted = model(**batch.arguments()).loss
    batch.encoder = batch.encoder.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = model(**batch.arguments()).loss
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=0)


def test_a_version_without_nemotron(package: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, case.NEMOTRON)
    monkeypatch.delitem(sys.modules, "transformers.models.nemotron_asr_streaming")
    prnn.compat.install("transformers")
    assert importlib.import_module("transformers.loss.loss_utils").LOSS_MAPPING["ParakeetForTDT"] is (
        compat.ParakeetForTDTLoss
    )

"""prnn.compat.nemo: the fused joint and the greedy searches in a stand-in package."""

import sys
from typing import Any

import nemo_case as case
import pytest
import torch
from torch import Tensor, nn

from prnn.compat import nemo

RNNT, TDT = "GreedyBatchedRNNTLabelLoopingComputer", "GreedyBatchedTDTLabelLoopingComputer"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Classes of the stand-in by name, their methods replaced."""
    made = case.make()
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert [nemo.replace(module) for module in made.values()] == [
        ["nemo.collections.asr.modules.rnnt.RNNTJoint.forward"],
        [f"{case.LOOPING}.rnnt_label_looping.{RNNT}.__call__"],
        [f"{case.LOOPING}.tdt_label_looping.{TDT}.__call__"],
    ]
    assert [nemo.replace(module) for module in made.values()] == [[], [], []]
    return {name: kind for module in made.values() for name, kind in vars(module).items()}


LOSSES: dict[str, tuple[nn.Module, int]] = {
    "rnnt": (nemo.RNNTLossNumba(case.VOCABULARY, "none"), 0),
    "fastemit": (nemo.RNNTLossNumba(case.VOCABULARY, "none", fastemit_lambda=0.1), 0),
    "tdt": (nemo.TDTLossNumba(case.VOCABULARY, case.DURATIONS, "none", sigma=0.05), len(case.DURATIONS)),
    "omega": (nemo.TDTLossNumba(case.VOCABULARY, case.DURATIONS, "none", omega=1.0), len(case.DURATIONS)),
}


def losses_of(joint: Any, compute_wer: bool = True, device: str = "cpu") -> tuple[Any, list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    data = [torch.randn(3, case.SIZE, n, generator=generator) for n in (9, 6)]
    encoder, decoder = (x.to(device).requires_grad_() for x in data)
    found = joint(
        encoder_outputs=encoder,
        decoder_outputs=decoder,
        encoder_lengths=torch.tensor([7, 4, 6], device=device),
        transcripts=torch.randint(0, case.VOCABULARY, (3, 5), generator=generator).to(device),
        transcript_lengths=torch.tensor([4, 2, 1], device=device),
        compute_wer=compute_wer,
    )
    gradients = torch.autograd.grad(found[0].sum(), [encoder, decoder, *joint.parameters()])
    return found, list(gradients)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("activation", [nn.ReLU(inplace=True), nn.Tanh()], ids=str)
def test_fused_joint(package: dict[str, Any], name: str, activation: nn.Module) -> None:
    loss, durations = LOSSES[name]
    results = []
    for kind in (case.RNNTJoint, package["RNNTJoint"]):
        torch.manual_seed(0)
        joint = kind(durations, activation)
        joint.loss = case.RNNTLoss(loss)
        results.append((*losses_of(joint), joint))
    (wanted, slopes, theirs), (found, own, ours) = results
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(own, slopes, rtol=1e-4, atol=1e-6)
    assert (theirs.calls, ours.calls) == (2, 0)
    assert found[1:] == (2, 2, 2)
    assert losses_of(ours, False)[0][1:] == (None, None, None)


def test_dropout_is_that_of_training(package: dict[str, Any]) -> None:
    joint = package["RNNTJoint"](0, nn.ReLU(), dropout=0.5)
    joint.loss = case.RNNTLoss(LOSSES["rnnt"][0])
    values = []
    for training in (True, True, False, False):
        values.append(float(losses_of(joint.train(training))[0][0].detach()))
    assert values[0] != values[1]
    assert values[2] == values[3]
    assert joint.calls == 0


def test_what_has_logits_after_all(package: dict[str, Any]) -> None:
    def calls(joint: Any, loss: nn.Module) -> int:
        joint.loss = case.RNNTLoss(loss)
        losses_of(joint)
        return int(joint.calls)

    rnnt, tdt = package["RNNTJoint"](0, nn.Tanh()), package["RNNTJoint"](4, nn.Tanh())
    assert calls(rnnt, nemo.RNNTLossNumba(case.VOCABULARY, "none", clamp=0.1)) == 2
    assert calls(tdt, nemo.TDTLossNumba(case.VOCABULARY, case.DURATIONS, "none", fastemit_lambda=0.1)) == 2
    assert calls(package["RNNTJoint"](0, nn.Sigmoid()), LOSSES["rnnt"][0]) == 2
    warm = package["RNNTJoint"](0, nn.Tanh())
    warm.temperature = 2.0
    assert calls(warm, LOSSES["rnnt"][0]) == 2
    multi = nemo.MultiblankRNNTLossNumba(case.VOCABULARY + 2, [2, 3], "none")
    assert calls(package["RNNTJoint"](2, nn.Tanh()), multi) == 2
    rnnt.fuse_loss_wer = False
    logits = rnnt(encoder_outputs=torch.randn(2, case.SIZE, 3), decoder_outputs=torch.randn(2, case.SIZE, 4))
    assert logits.shape == (2, 3, 4, case.VOCABULARY + 1)


def computers(package: dict[str, Any], name: str, seed: int, layers: int = 1, most: int | None = 3) -> tuple[Any, Any]:
    """The stand-in's and the replaced one, of the same weights."""
    torch.manual_seed(seed)
    durations = len(case.DURATIONS) if name == TDT else 0
    decoder, joint = case.RNNTDecoder(layers).eval(), case.RNNTJoint(durations, nn.ReLU()).eval()
    with torch.no_grad():
        joint.joint_net[-1].weight *= 4
        joint.joint_net[-1].bias[case.VOCABULARY] += 1
    return getattr(case, name)(decoder, joint, most), package[name](decoder, joint, most)


@pytest.mark.parametrize("name", [RNNT, TDT])
@pytest.mark.parametrize(("seed", "layers"), [(0, 1), (1, 2), (2, 1), (3, 2)])
def test_searches(package: dict[str, Any], name: str, seed: int, layers: int) -> None:
    theirs, ours = computers(package, name, seed, layers)
    x, lengths = 2 * torch.randn(4, 9, case.SIZE), torch.tensor([9, 4, 0, 6])
    wanted = theirs(x, lengths)
    hypotheses, state = ours(x, lengths)
    assert ours.calls == 0
    assert isinstance(hypotheses, case.BatchedHyps)
    for n, (steps, output, parts, jump) in enumerate(wanted):
        count = int(hypotheses.current_lengths[n])
        assert hypotheses.transcript[n, :count].tolist() == [symbol for symbol, *_ in steps]
        assert hypotheses.timestamps[n, :count].tolist() == [frame for _, frame, *_ in steps]
        assert float(hypotheses.scores[n]) == pytest.approx(sum(step[3] for step in steps), abs=1e-4)
        if name == TDT:
            assert hypotheses.token_durations[n, :count].tolist() == [duration for _, _, duration, _ in steps]
            assert int(state.time_jumps[n]) == jump
        last = steps[-1][:2] if steps else (case.VOCABULARY, -1)
        assert (int(state.labels[n]), int(hypotheses.last_nb_timestamp[n])) == last
        assert int(hypotheses.last_nb_timestamp_lasts[n]) == sum(frame == last[1] for _, frame, *_ in steps)
        torch.testing.assert_close(state.predictor_outputs[n], output, rtol=1e-4, atol=1e-5)
        for part, own in zip(parts, state.predictor_states, strict=True):
            torch.testing.assert_close(own[:, n], part, rtol=1e-4, atol=1e-5)
    assert torch.equal(state.decoded_lengths, lengths)


def test_nothing_is_found(package: dict[str, Any]) -> None:
    _, ours = computers(package, RNNT, 0)
    hypotheses, state = ours(torch.randn(1, 3, case.SIZE), torch.tensor([0]))
    assert int(hypotheses.current_lengths) == 0
    assert int(state.labels) == case.VOCABULARY


def test_what_the_original_searches(package: dict[str, Any]) -> None:
    x, lengths = torch.randn(1, 3, case.SIZE), torch.tensor([3])
    _, ours = computers(package, RNNT, 0)
    ours(x, lengths, object())
    ours.preserve_step_confidence = True
    ours(x, lengths)
    assert ours.calls == 2
    for change in ("joint_net.0", "pred"):
        _, ours = computers(package, TDT, 0)
        ours.joint.set_submodule(change, nn.Sequential(nn.Tanh()))
        ours(x, lengths)
        assert ours.calls == 1
    _, ours = computers(package, RNNT, 0, most=None)
    ours.joint.joint_net[-1].bias.data[case.VOCABULARY] += 50
    ours(x, lengths)
    assert ours.calls == 1

"""prnn.compat.nemo on a GPU: the fused joint and the greedy searches, against the stand-in package's own on the CPU."""

import copy
from typing import Any

import nemo_case as case
import pytest
import test_compat_nemo
import torch
from test_compat_nemo import LOSSES, RNNT, TDT, computers, losses_of
from torch import nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
package = test_compat_nemo.package  # the fixture


@pytest.fixture(params=[6, 128])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """That of all layers."""
    monkeypatch.setattr(case, "SIZE", request.param)
    return request.param


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("activation", [nn.ReLU(inplace=True), nn.Tanh()], ids=str)
def test_fused_joint(package: dict[str, Any], name: str, activation: nn.Module, size: int) -> None:
    loss, durations = LOSSES[name]
    torch.manual_seed(0)
    joint = package["RNNTJoint"](durations, activation)
    joint.loss = case.RNNTLoss(loss)
    wanted, slopes = losses_of(joint)
    on_gpu = copy.deepcopy(joint).cuda()
    found, own = losses_of(on_gpu, device="cuda")
    assert found[0].is_cuda
    torch.testing.assert_close(found[0].cpu(), wanted[0])
    torch.testing.assert_close([x.cpu() for x in own], slopes, rtol=1e-3, atol=1e-5)
    assert on_gpu.calls == 0


@pytest.mark.parametrize("name", [RNNT, TDT])
@pytest.mark.parametrize(("seed", "layers"), [(0, 1), (1, 2), (2, 1), (3, 2)])
def test_searches(package: dict[str, Any], name: str, seed: int, layers: int, size: int) -> None:
    theirs, ours = computers(package, name, seed, layers)
    x, lengths = 2 * torch.randn(4, 9, case.SIZE), torch.tensor([9, 4, 0, 6])
    wanted = theirs(x, lengths)
    for part in ("decoder", "joint"):
        setattr(ours, part, copy.deepcopy(getattr(ours, part)).cuda())
    hypotheses, state = ours(x.cuda(), lengths.cuda())
    assert ours.calls == 0
    for n, (steps, output, parts, jump) in enumerate(wanted):
        count = int(hypotheses.current_lengths[n])
        assert hypotheses.transcript[n, :count].tolist() == [symbol for symbol, *_ in steps]
        assert hypotheses.timestamps[n, :count].tolist() == [frame for _, frame, *_ in steps]
        assert float(hypotheses.scores[n]) == pytest.approx(sum(step[3] for step in steps), abs=1e-3)
        if name == TDT:
            assert hypotheses.token_durations[n, :count].tolist() == [duration for _, _, duration, _ in steps]
            assert int(state.time_jumps[n]) == jump
        torch.testing.assert_close(state.predictor_outputs[n].cpu(), output, rtol=1e-3, atol=1e-4)
        for part, own in zip(parts, state.predictor_states, strict=True):
            torch.testing.assert_close(own[:, n].cpu(), part, rtol=1e-3, atol=1e-4)

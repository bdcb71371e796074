"""prnn.compat on a GPU: the published costs and gradients, and where results lie."""

import pytest
import torch
from compat_case import BIG, CTC, SMALL_LAST, TDT

from prnn.compat import (
    k2,
    nemo,
    optimized_transducer,
    speechbrain,
    torchaudio,
    warp_rnnt,
    warpctc_pytorch,
    warprnnt_pytorch,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CLOSE = {"atol": 2e-6, "rtol": 1e-5}


def on_gpu(case):
    return case.logits.cuda().requires_grad_(), case.labels.cuda(), *(lengths.cuda() for lengths in case.lengths())


def check(costs, logits, case, factor=1.0):
    assert costs.is_cuda
    (gradients,) = torch.autograd.grad(costs.sum(), logits)
    torch.testing.assert_close(costs.detach().cpu().reshape(-1), case.costs * factor, **CLOSE)
    torch.testing.assert_close(gradients.cpu(), case.gradients * factor, **CLOSE)


def test_rnnt():
    logits, *batch = on_gpu(BIG)
    for costs in (
        warp_rnnt.rnnt_loss(logits.log_softmax(-1), *batch),
        warp_rnnt.rnnt_loss(logits.log_softmax(-1), *batch, gather=True),
        warprnnt_pytorch.rnnt_loss(logits, *batch, reduction="none"),
        torchaudio.functional.rnnt_loss(logits, *batch, 0, reduction="none"),
        torch.jit.script(torchaudio.transforms.RNNTLoss(0, -1.0, "none"))(logits, *batch),
        nemo.RNNTLossNumba(reduction=None)(logits, *batch),
        speechbrain.transducer_loss(logits, batch[0], *torch.ones(2, 2).cuda(), 0, "none", use_torchaudio=True),
    ):
        check(costs, logits, BIG)


def test_packed():
    logits, *batch = on_gpu(BIG)
    labels = batch[0].reshape(-1)
    compact = warp_rnnt.rnnt_loss(logits.reshape(-1, 3).log_softmax(-1), labels, *batch[1:], compact=True)
    check(compact, logits, BIG)
    rows = logits.reshape(-1, 3) * 1
    loss = optimized_transducer.transducer_loss(rows, *batch, 0, False, reduction="sum")
    loss.backward()
    torch.testing.assert_close(loss.detach().cpu(), BIG.costs.sum(), **CLOSE)
    torch.testing.assert_close(logits.grad.cpu(), BIG.gradients, **CLOSE)
    torch.testing.assert_close(rows.detach().cpu(), BIG.gradients.reshape(-1, 3), **CLOSE)  # where the logits were


def test_one_symbol_a_frame_is_the_same_as_on_the_cpu():
    rows, frames, lengths = torch.randn(4 * 3 + 3 * 2, 5), torch.tensor([4, 3]), torch.tensor([2, 1])
    labels, found = torch.tensor([[1, 2], [3, 0]]), {}
    for device in ("cpu", "cuda"):
        x = rows.detach().to(device).requires_grad_()
        loss = optimized_transducer.transducer_loss(
            x, labels.to(device), frames.to(device), lengths.to(device), 4, False, True, "sum"
        )
        loss.backward()
        found[device] = loss.detach().cpu(), x.grad.cpu()
    torch.testing.assert_close(found["cuda"], found["cpu"])


def test_half():
    logits, *batch = on_gpu(SMALL_LAST)
    half = logits.detach().half().requires_grad_()
    loss = torchaudio.transforms.RNNTLoss()(half, *batch)
    loss.backward()
    assert loss.dtype == half.grad.dtype == torch.float16
    torch.testing.assert_close(half.grad.float().cpu(), SMALL_LAST.gradients, atol=2e-3, rtol=2e-3)
    assert nemo.RNNTLossNumba()(half, *batch).dtype == torch.float32


@pytest.mark.parametrize("options", [{}, {"clamp": 10.0}])
def test_tdt(options):
    logits, *batch = on_gpu(TDT)
    check(nemo.TDTLossNumba(TDT.blank, [0, 1, 2], "none", sigma=0.05, **options)(logits, *batch), logits, TDT)


def test_warpctc_loss_is_on_the_cpu():
    rows = torch.nn.utils.rnn.pad_sequence([activations for activations, _, _ in CTC]).cuda().requires_grad_()
    labels = torch.tensor([label for _, labels, _ in CTC for label in labels], dtype=torch.int32)
    lengths = torch.tensor([len(activations) for activations, _, _ in CTC], dtype=torch.int32)
    label_lengths = torch.tensor([len(labels) for _, labels, _ in CTC], dtype=torch.int32)
    loss = warpctc_pytorch.CTCLoss()(rows, labels, lengths, label_lengths)
    loss.backward()
    assert loss.device.type == "cpu"
    torch.testing.assert_close(loss.detach(), torch.tensor([sum(cost for _, _, cost in CTC)]))
    costs, gradients = torch.zeros(3), torch.zeros_like(rows)
    warpctc_pytorch.gpu_ctc(rows.detach(), gradients, labels, label_lengths, lengths, 3, costs, 0)
    torch.testing.assert_close(costs, torch.tensor([cost for _, _, cost in CTC]))
    torch.testing.assert_close(gradients, rows.grad)


def test_k2_ctc_and_alignment():
    rows = torch.nn.utils.rnn.pad_sequence([activations for activations, _, _ in CTC], batch_first=True)
    log_probs, labels = rows.cuda().log_softmax(-1), [labels for _, labels, _ in CTC]
    segments = torch.tensor([[n, 0, len(case[0])] for n, case in enumerate(CTC)], dtype=torch.int32)
    loss = k2.ctc_loss(k2.ctc_graph(labels, device="cuda"), k2.DenseFsaVec(log_probs, segments), reduction="none")
    torch.testing.assert_close(loss.cpu(), torch.tensor([cost for _, _, cost in CTC]))
    targets = torch.tensor([[2, 3], [3, 2]])
    found = torchaudio.functional.forced_align(log_probs[:2], targets.cuda())
    expected = torchaudio.functional.forced_align(log_probs[:2].cpu(), targets)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)

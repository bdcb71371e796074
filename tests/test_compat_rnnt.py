"""Other packages' RNN-T losses in prnn.compat, against the costs and gradients that their own tests expect."""

import random

import compat_case
import pytest
import torch
from compat_case import BIG, SMALL, SMALL_LAST, TDT

import prnn
from prnn.compat import (
    fast_rnnt,
    k2,
    nemo,
    optimized_transducer,
    speechbrain,
    torchaudio,
    warp_rnnt,
    warpctc_pytorch,
    warprnnt_pytorch,
)

CLOSE = {"atol": 2e-6, "rtol": 1e-5}


def costs_and_gradients(loss, logits):
    logits = logits.clone().requires_grad_()
    costs = loss(logits)
    return costs.detach(), torch.autograd.grad(costs.sum(), logits)[0]


def check(loss, case, costs=None, gradients=None):
    found = costs_and_gradients(loss, case.logits)
    torch.testing.assert_close(found[0], case.costs if costs is None else costs, **CLOSE)
    torch.testing.assert_close(found[1], case.gradients if gradients is None else gradients, **CLOSE)


# ---- Errors ----

WRONG_LENGTH, WRONG_LABEL = torch.tensor([4, 9]), torch.tensor([[1, 2], [1, 3]])


@pytest.mark.parametrize(
    ("loss", "frames", "labels"),
    [
        (warp_rnnt.rnnt_loss, "frames_lengths", "labels"),
        (warprnnt_pytorch.rnnt_loss, "act_lens", "labels"),
        (warprnnt_pytorch.RNNTLoss(), "act_lens", "labels"),
        (nemo.RNNTLossNumba(), "act_lens", "labels"),
        (nemo.MultiblankRNNTLossNumba(0, []), "act_lens", "labels"),
        (speechbrain.TransducerLoss(), "T", "labels"),
    ],
)
def test_errors_have_the_names_of_the_package(loss, frames, labels):
    lengths = BIG.lengths()
    with pytest.raises(ValueError, match=rf"^{frames}\b.*\b9\b"):
        loss(BIG.logits, BIG.labels, WRONG_LENGTH, lengths[1])
    with pytest.raises(ValueError, match=rf"^{labels}\b.*\b3\b"):
        loss(BIG.logits, WRONG_LABEL, *lengths)
    with pytest.raises(TypeError, match=rf"^{frames}\b.*float"):
        loss(BIG.logits, BIG.labels, lengths[0].float(), lengths[1])


def test_errors_of_blanks():
    with pytest.raises(ValueError, match="blank_index is 3; with 3 classes"):
        speechbrain.transducer_loss(BIG.logits, BIG.labels, *torch.ones(2, 2), 3)
    with pytest.raises(ValueError, match="blank_label is 3; with 3 classes"):
        warprnnt_pytorch.cpu_rnnt(BIG.logits, BIG.labels, *BIG.lengths(), torch.zeros(2), torch.zeros(0), 3, 0)


# ---- torch.compile ----


@pytest.mark.parametrize(
    "loss", [warp_rnnt.rnnt_loss, warprnnt_pytorch.rnnt_loss, nemo.RNNTLossNumba(fastemit_lambda=0.1)]
)
def test_compiled_without_a_break(loss):
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    batch = BIG.labels, *BIG.lengths()
    found = costs_and_gradients(lambda x: compiled(x, *batch), BIG.logits)
    torch.testing.assert_close(found, costs_and_gradients(lambda x: loss(x, *batch), BIG.logits))


# ---- warp_rnnt ----


def log_prob_costs(case, **options):
    """Costs of warp_rnnt for log-probabilities of the case's logits."""
    return lambda logits: warp_rnnt.rnnt_loss(logits.log_softmax(-1), case.labels, *case.lengths(), **options)


@pytest.mark.parametrize("case", [SMALL, BIG])
@pytest.mark.parametrize("options", [{}, {"gather": True}, {"reduction": None}])
def test_warp_rnnt(case, options):
    check(log_prob_costs(case, **options), case)


def test_warp_rnnt_gradients_are_those_of_log_probabilities():
    log_probs = SMALL.logits.log_softmax(-1)
    _, gradients = costs_and_gradients(lambda x: warp_rnnt.RNNTLoss.apply(x, SMALL.labels, *SMALL.lengths()), log_probs)
    torch.testing.assert_close(gradients, compat_case.SMALL_LOG_PROB_GRADIENTS, **CLOSE)


def test_warp_rnnt_gathered():
    log_probs = SMALL.logits.log_softmax(-1)
    index = torch.zeros(1, 2, 3, 2, dtype=torch.int64)
    index[:, :, :2, 1] = SMALL.labels.unsqueeze(1)
    costs, gradients = costs_and_gradients(
        lambda x: warp_rnnt.rnnt_loss(x, SMALL.labels, *SMALL.lengths(), blank=-1), log_probs.gather(3, index)
    )
    torch.testing.assert_close(costs, SMALL.costs, **CLOSE)
    expected = compat_case.SMALL_LOG_PROB_GRADIENTS.gather(3, index)
    expected[:, :, 2, 1] = 0  # there is no label
    torch.testing.assert_close(gradients, expected, **CLOSE)


def test_warp_rnnt_compact():
    frames, lengths = torch.tensor([4, 3], dtype=torch.int32), torch.tensor([2, 1], dtype=torch.int32)
    log_probs = BIG.logits.log_softmax(-1)
    rows = torch.cat([log_probs[0].reshape(-1, 3), log_probs[1, :3, :2].reshape(-1, 3)])
    labels = torch.tensor([1, 2, 1], dtype=torch.int32)
    padded, padded_gradients = costs_and_gradients(
        lambda x: warp_rnnt.rnnt_loss(x, BIG.labels, frames, lengths, fastemit_lambda=0.3), log_probs
    )
    for function in (
        lambda x: warp_rnnt.rnnt_loss(x, labels, frames, lengths, compact=True, fastemit_lambda=0.3),
        lambda x: warp_rnnt.RNNTLossCompact.apply(x, labels, frames, lengths, 0, 0.3, True),
    ):
        packed, gradients = costs_and_gradients(function, rows)
        torch.testing.assert_close(packed, padded)
        torch.testing.assert_close(gradients[:12], padded_gradients[0].reshape(12, 3))
        torch.testing.assert_close(gradients[12:], padded_gradients[1, :3, :2].reshape(6, 3))


def test_warp_rnnt_reductions_and_fastemit():
    frames = BIG.lengths()[0]
    averaged = BIG.costs / frames
    torch.testing.assert_close(log_prob_costs(BIG, average_frames=True)(BIG.logits), averaged)
    torch.testing.assert_close(log_prob_costs(BIG, average_frames=True, reduction="mean")(BIG.logits), averaged.mean())
    torch.testing.assert_close(log_prob_costs(BIG, reduction="sum")(BIG.logits), BIG.costs.sum())
    torch.testing.assert_close(log_prob_costs(BIG, fastemit_lambda=0.5)(BIG.logits), BIG.costs)


# ---- warprnnt_pytorch ----


@pytest.mark.parametrize("case", [SMALL, BIG])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_warprnnt_pytorch(case, dtype):
    lengths = case.lengths()
    for reduction, costs, factor in (
        ("none", case.costs, 1),
        ("sum", case.costs.sum().reshape(1), 1),
        ("mean", case.costs.mean().reshape(1), 1 / len(case.costs)),
    ):
        for loss in (
            lambda x, reduction=reduction: warprnnt_pytorch.rnnt_loss(x, case.labels, *lengths, reduction=reduction),
            lambda x, reduction=reduction: warprnnt_pytorch.RNNTLoss(reduction=reduction)(x, case.labels, *lengths),
        ):
            found, gradients = costs_and_gradients(loss, case.logits.to(dtype))
            torch.testing.assert_close(found, costs.to(dtype), **CLOSE)
            torch.testing.assert_close(gradients, (case.gradients * factor).to(dtype), **CLOSE)


def test_warprnnt_pytorch_functions_that_write():
    costs, gradients = torch.zeros(2), torch.zeros_like(BIG.logits)
    frames, lengths = BIG.lengths()
    assert warprnnt_pytorch.gpu_rnnt(BIG.logits, BIG.labels, frames, lengths, costs, gradients, 0, 0) == 0
    torch.testing.assert_close(costs, BIG.costs, **CLOSE)
    torch.testing.assert_close(gradients, BIG.gradients, **CLOSE)
    costs.zero_()
    log_probs = BIG.logits.log_softmax(-1)
    assert warprnnt_pytorch.cpu_rnnt(log_probs, BIG.labels, frames, lengths, costs, torch.zeros(0), 0, 1) == 0
    torch.testing.assert_close(costs, BIG.costs, **CLOSE)


# ---- torchaudio ----


@pytest.mark.parametrize("case", [SMALL_LAST, BIG])
@pytest.mark.parametrize("fused", [True, False])
def test_torchaudio(case, fused):
    def loss(logits):
        logits = logits if fused else logits.log_softmax(-1)
        return torchaudio.functional.rnnt_loss(
            logits, case.labels, *case.lengths(), case.blank, reduction="none", fused_log_softmax=fused
        )

    check(loss, case)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_torchaudio_result_has_the_dtype_of_the_logits(dtype):
    lengths = SMALL_LAST.lengths()
    loss = torchaudio.transforms.RNNTLoss()
    found, gradients = costs_and_gradients(lambda x: loss(x, SMALL_LAST.labels, *lengths), SMALL_LAST.logits.to(dtype))
    assert found.dtype == gradients.dtype == dtype
    assert found.shape == ()
    tolerance = {"atol": 2 * torch.finfo(dtype).eps + 1e-6, "rtol": 2 * torch.finfo(dtype).eps + 1e-5}
    torch.testing.assert_close(found.float(), SMALL_LAST.costs.sum(), **tolerance)
    torch.testing.assert_close(gradients.float(), SMALL_LAST.gradients, **tolerance)


def test_a_loss_without_a_gradient_has_gradients_of_zeros():
    logits = SMALL_LAST.logits.clone().requires_grad_()
    seen = []
    logits.register_hook(lambda gradient: seen.append(gradient.clone()))  # as gradcheck's callers have them
    loss = torchaudio.rnnt_loss(logits, SMALL_LAST.labels, *SMALL_LAST.lengths())
    torch._C._functions.UndefinedGrad()(loss).backward()
    torch.testing.assert_close(seen, [torch.zeros_like(logits)])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("fused", [True, False])
def test_torchaudio_scripted(reduction, fused, tmp_path):
    module = torchaudio.transforms.RNNTLoss(0, 0.1, reduction, fused)
    torch.jit.script(module).save(tmp_path / "loss.pt")
    scripted = torch.jit.load(tmp_path / "loss.pt")
    labels, lengths = BIG.labels, BIG.lengths()
    for logits in (BIG.logits, BIG.logits.half()):
        expected = costs_and_gradients(lambda x: module(x, labels, *lengths), logits)
        found = costs_and_gradients(lambda x: scripted(x, labels, *lengths), logits)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_torchaudio_scripted_function_names_a_bad_value():
    scripted = torch.jit.script(torchaudio.rnnt_loss)
    labels, lengths = BIG.labels, BIG.lengths()
    torch.testing.assert_close(scripted(BIG.logits, labels, *lengths, 0), BIG.costs.mean(), **CLOSE)
    with pytest.raises(torch.jit.Error, match="reduction must be one of"):
        scripted(BIG.logits, labels, *lengths, 0, -1.0, "batch")
    with pytest.raises(Exception, match="targets of sequence 0 hold 3"):
        scripted(BIG.logits, labels * 0 + 3, *lengths, 0)


@pytest.mark.parametrize(
    "module",
    [
        prnn.CTCLoss(),
        prnn.RNNTLoss(),
        prnn.TDTLoss(0, [1]),
        prnn.MultiBlankRNNTLoss(2, [2]),
        prnn.JointRNNTLoss(4, 5),
        torch.nn.Sequential(prnn.RNNTLoss()),
        nemo.RNNTLossNumba(),
        optimized_transducer.TransducerLoss(0),
        speechbrain.TransducerLoss(),
        warpctc_pytorch.CTCLoss(),
        warprnnt_pytorch.RNNTLoss(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_other_modules_say_that_they_cannot_be_scripted(module):
    with pytest.raises(prnn.NotSupportedError, match=r"prnn's \w+Loss\w* cannot be compiled by torch\.jit\.script"):
        torch.jit.script(module)


def in_a_function(loss):
    def call(x: torch.Tensor):
        return loss(x)

    return call


@pytest.mark.parametrize("nested", [False, True], ids=["", "nested"])
@pytest.mark.parametrize(
    "loss",
    [
        prnn.ctc_loss,
        prnn.rnnt_loss,
        prnn.rnnt_loss_simple,
        fast_rnnt.get_rnnt_logprobs,
        k2.ctc_loss,
        nemo.rnnt_loss,
        optimized_transducer.transducer_loss,
        speechbrain.transducer_loss,
        warp_rnnt.rnnt_loss,
        warprnnt_pytorch.rnnt_loss,
    ],
    ids=lambda loss: f"{loss.__module__}.{loss.__name__}",
)
def test_other_functions_say_that_they_cannot_be_scripted(loss, nested):
    with pytest.raises(RuntimeError, match=rf"prnn's {loss.__name__} cannot be compiled by torch\.jit\.script; "):
        torch.jit.script(in_a_function(loss) if nested else loss)


# ---- optimized_transducer ----


@pytest.mark.parametrize("from_log_softmax", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_optimized_transducer(from_log_softmax, reduction):
    def loss(logits):
        rows = logits.reshape(-1, 3) * 1  # no leaf
        rows = rows.log_softmax(-1) if from_log_softmax else rows
        return optimized_transducer.transducer_loss(
            rows, BIG.labels, *BIG.lengths(), 0, from_log_softmax, reduction=reduction
        )

    factor = 0.5 if reduction == "mean" else 1.0
    check(loss, BIG, BIG.costs.sum() * factor, BIG.gradients * factor)


def test_optimized_transducer_writes_gradients_over_the_logits():
    leaf = BIG.logits.clone().requires_grad_()
    rows = leaf.reshape(-1, 3) * 1
    loss = optimized_transducer.TransducerLoss(0, "sum")(rows, BIG.labels, *BIG.lengths(), False)
    loss.backward()
    torch.testing.assert_close(rows.detach(), BIG.gradients.reshape(-1, 3), **CLOSE)
    leaf = BIG.logits.reshape(-1, 3).clone().requires_grad_()
    optimized_transducer.transducer_loss(leaf, BIG.labels, *BIG.lengths(), 0, False).backward()
    assert torch.equal(leaf.detach(), BIG.logits.reshape(-1, 3))


def test_optimized_transducer_one_symbol_a_frame():
    """Its recursion: alpha(t, u) from alpha(t - 1, u) by the blank and alpha(t - 1, u - 1) by the label; the cost is
    that of alpha(T - 1, U) and the blank there."""

    def recursion(logits):
        costs = []
        for log_probs, labels in zip(logits.log_softmax(-1), BIG.labels.tolist(), strict=True):
            alpha = [log_probs.new_zeros(())] + [log_probs.new_tensor(-1e30)] * 2
            for row in log_probs[:-1]:
                label = [alpha[u] + row[u, labels[u]] for u in range(2)]
                blank = [alpha[u] + row[u, 0] for u in range(3)]
                alpha = [blank[0]] + [torch.logaddexp(blank[u + 1], label[u]) for u in range(2)]
            costs.append(-alpha[2] - log_probs[-1, 2, 0])
        return torch.stack(costs).sum()

    def loss(logits):
        return optimized_transducer.transducer_loss(
            logits.reshape(-1, 3), BIG.labels, *BIG.lengths(), 0, False, True, "sum"
        )

    torch.testing.assert_close(costs_and_gradients(loss, BIG.logits), costs_and_gradients(recursion, BIG.logits))


@pytest.mark.parametrize("reduction", ["none", None])
def test_optimized_transducer_refuses_no_reduction(reduction):
    with pytest.raises(ValueError, match="reduction is"):
        optimized_transducer.transducer_loss(
            BIG.logits.reshape(-1, 3), BIG.labels, *BIG.lengths(), 0, False, False, reduction
        )


# ---- NeMo ----


@pytest.mark.parametrize("case", [SMALL, BIG])
@pytest.mark.parametrize("fastemit", [0.0, 0.3])
@pytest.mark.parametrize("reduction", ["none", None, "sum", "mean"])
def test_nemo_rnnt(case, fastemit, reduction):
    loss = nemo.RNNTLossNumba(reduction=reduction, fastemit_lambda=fastemit)
    found, gradients = costs_and_gradients(
        lambda x: loss(acts=x, labels=case.labels, act_lens=case.lengths()[0], label_lens=case.lengths()[1]),
        case.logits,
    )
    costs = case.costs * (1 + fastemit)
    costs = costs if reduction in ("none", None) else getattr(costs, reduction)().reshape(1)
    torch.testing.assert_close(found, costs, **CLOSE)
    _, expected = costs_and_gradients(
        lambda x: prnn.rnnt_loss(
            x, case.labels, *case.lengths(), 0, reduction=reduction or "none", fastemit_lambda=fastemit
        ),
        case.logits,
    )
    torch.testing.assert_close(gradients, expected)
    if fastemit == 0 and reduction != "mean":
        torch.testing.assert_close(gradients, case.gradients, **CLOSE)


def test_nemo_clamp():
    loss = nemo.RNNTLossNumba(reduction="sum", clamp=0.1)
    check(
        lambda x: loss(x, BIG.labels, *BIG.lengths()), BIG, BIG.costs.sum().reshape(1), BIG.gradients.clamp(-0.1, 0.1)
    )
    assert nemo.RNNTLossNumba(clamp=-3).clamp == 0


def test_nemo_result_dtypes():
    half, lengths = SMALL.logits.half(), SMALL.lengths()
    assert nemo.RNNTLossNumba()(half, SMALL.labels, *lengths).dtype == torch.float32
    assert nemo.MultiblankRNNTLossNumba(4, [2])(half, SMALL.labels, *lengths).dtype == torch.float16
    assert nemo.TDTLossNumba(0, [1, 2])(half, SMALL.labels, *lengths).dtype == torch.float16


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_nemo_tdt(reduction):
    loss = nemo.TDTLossNumba(TDT.blank, [0, 1, 2], reduction, sigma=0.05)
    check(lambda x: loss(x, TDT.labels, *TDT.lengths()), TDT)


def test_nemo_tdt_fastemit_and_clamp_leave_the_durations_alone():
    logits, labels = torch.randn(2, 5, 3, 7), torch.tensor([[0, 1], [2, 0]])
    lengths = torch.tensor([5, 4]), torch.tensor([2, 1])
    durations = [0, 1, 2]
    plain = costs_and_gradients(lambda x: prnn.tdt_loss(x, labels, *lengths, 3, durations, "none", sigma=0.05), logits)
    scaled = costs_and_gradients(
        lambda x: prnn.tdt_loss(x, labels, *lengths, 3, durations, "none", 0.4, 0.2, 0.05), logits
    )
    loss = nemo.TDTLossNumba(3, durations, "none", 0.4, 0.2, 0.05)
    costs, gradients = costs_and_gradients(lambda x: loss(x, labels, *lengths), logits)
    torch.testing.assert_close(costs, 1.4 * plain[0])
    torch.testing.assert_close(gradients[..., :4], scaled[1][..., :4])
    torch.testing.assert_close(gradients[..., 4:], plain[1][..., 4:])


def test_nemo_draws_omega():
    logits, labels = torch.randn(2, 5, 3, 7), torch.tensor([[0, 1], [2, 0]])
    lengths = torch.tensor([5, 4]), torch.tensor([2, 1])
    loss = nemo.TDTLossNumba(3, [0, 1, 2], "none", sigma=0.05, omega=0.5)
    tdt = prnn.tdt_loss(logits, labels, *lengths, 3, [0, 1, 2], "none", sigma=0.05)
    rnnt = prnn.rnnt_loss(logits[..., :4], labels, *lengths, 3, reduction="none")
    random.seed(7)
    drawn = [random.uniform(0, 1) < 0.5 for _ in range(8)]
    assert len(set(drawn)) == 2
    random.seed(7)
    for is_rnnt in drawn:
        torch.testing.assert_close(loss(logits, labels, *lengths), rnnt if is_rnnt else tdt)


@pytest.mark.parametrize("fastemit", [0.0, 0.3])
def test_nemo_multi_blank(fastemit):
    logits, labels = torch.randn(2, 6, 3, 7), torch.tensor([[0, 1], [2, 0]])
    lengths = torch.tensor([6, 4]), torch.tensor([2, 1])
    loss = nemo.MultiblankRNNTLossNumba(6, [2, 4], "sum", fastemit, 0.5, 0.05)
    expected = costs_and_gradients(
        lambda x: prnn.multi_blank_rnnt_loss(x, labels, *lengths, -1, [2, 4], "sum", fastemit, 0.5, 0.05), logits
    )
    costs, gradients = costs_and_gradients(lambda x: loss(x, labels, *lengths), logits)
    torch.testing.assert_close(costs, (1 + fastemit) * expected[0].reshape(1))
    torch.testing.assert_close(gradients, expected[1])


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize(("fastemit", "clamp"), [(0.0, 0.0), (0.3, 0.2)])
@pytest.mark.parametrize(
    ("function", "module", "options"),
    [
        (nemo.multiblank_rnnt_loss, nemo.MultiblankRNNTLossNumba, (7, [2, 4])),
        (nemo.tdt_loss, nemo.TDTLossNumba, (4, [0, 1, 3])),
    ],
)
def test_nemo_functions_are_the_modules_without_sigma(function, module, options, fastemit, clamp, reduction):
    logits, labels = torch.randn(2, 6, 3, 8), torch.tensor([[0, 1], [2, 0]])
    batch = labels, torch.tensor([6, 4]), torch.tensor([2, 1])
    options = *options, reduction, fastemit, clamp
    loss = module(*options)
    found = costs_and_gradients(lambda x: function(x, *batch, *options), logits)
    torch.testing.assert_close(found, costs_and_gradients(lambda x: loss(x, *batch), logits))
    assert found[0].shape == ((2,) if reduction == "none" else (1,))


def test_nemo_functions_without_durations():
    batch = BIG.labels, *BIG.lengths()
    check(lambda x: nemo.multiblank_rnnt_loss(x, *batch, 0, reduction="none"), BIG)
    with pytest.raises(ValueError, match="the number of durations is 0; it must be 1 to 16"):
        nemo.tdt_loss(BIG.logits, *batch, 0)


def test_infinite_costs_stay_infinite():
    """Values and gradients that come from different places must not make NaN of infinity minus infinity."""
    logits, labels, lengths = torch.randn(1, 1, 3, 6), torch.tensor([[1, 2]]), (torch.tensor([1]), torch.tensor([2]))
    loss = nemo.TDTLossNumba(3, [1, 2], "none", 0.1)  # two labels of a frame each and one frame
    costs, gradients = costs_and_gradients(lambda x: loss(x, labels, *lengths), logits)
    assert costs.tolist() == [float("inf")]
    assert not gradients.any()


# ---- speechbrain ----


def test_speechbrain():
    # Its own test expects 2.2478: the cost by the number of frames.
    ones = torch.ones(1), torch.ones(1)
    check(
        lambda x: speechbrain.transducer_loss(x, SMALL.labels, *ones, blank_index=0),
        SMALL,
        torch.tensor(2.247833),
        SMALL.gradients,
    )
    relative = torch.tensor([1.0, 0.51]), torch.tensor([1.0, 0.6])  # 4 and 2 frames, 2 and 1 labels
    exact = torch.tensor([4, 2]), torch.tensor([2, 1])
    costs, gradients = costs_and_gradients(
        lambda x: prnn.rnnt_loss(x, BIG.labels, *exact, 0, reduction="none"), BIG.logits
    )
    for reduction, value in (
        ("none", costs / exact[0]),
        ("sum", (costs / exact[0]).sum()),
        ("mean", (costs / exact[0]).mean()),
    ):
        found = costs_and_gradients(
            lambda x, reduction=reduction: speechbrain.transducer_loss(x, BIG.labels, *relative, 0, reduction),
            BIG.logits,
        )
        torch.testing.assert_close(found, (value, gradients))
        found = costs_and_gradients(
            lambda x, reduction=reduction: speechbrain.TransducerLoss(0, reduction)(x, BIG.labels, *exact), BIG.logits
        )
        torch.testing.assert_close(found, (value, gradients))
    found = costs_and_gradients(
        lambda x: speechbrain.transducer_loss(x, BIG.labels, *relative, 0, use_torchaudio=True), BIG.logits
    )
    torch.testing.assert_close(found, (costs.mean(), gradients / 2))


# ---- k2 ----


def hat_log_probs(logits):
    """HAT's distribution, as its paper has it (arXiv:2003.07705)."""
    blank = torch.nn.functional.logsigmoid(logits[..., :1])
    labels = logits[..., 1:].log_softmax(-1) + torch.nn.functional.logsigmoid(-logits[..., :1])
    return torch.cat((blank, labels), -1)


@pytest.mark.parametrize("rnnt_type", ["regular", "modified"])
def test_k2_hat(rnnt_type):
    logits, symbols = torch.randn(2, 5, 4, 6, dtype=torch.float64), torch.tensor([[1, 2, 3], [4, 5, 1]])
    ranges = torch.arange(4).expand(2, 5, 4)
    boundary = torch.tensor([[0, 0, 3, 5], [0, 0, 2, 4]])
    found = costs_and_gradients(
        lambda x: k2.rnnt_loss_pruned(x, symbols, ranges, 0, boundary, rnnt_type, 0.0, "none", True), logits
    )
    expected = costs_and_gradients(
        lambda x: prnn.rnnt_loss(
            hat_log_probs(x),
            symbols,
            boundary[:, 3],
            boundary[:, 2],
            0,
            reduction="none",
            rnnt_type=rnnt_type,
            fused_log_softmax=False,
        ),
        logits,
    )
    torch.testing.assert_close(found, expected)
    px, py = k2.get_hat_logprobs_pruned(logits, symbols, ranges, 0, boundary, rnnt_type)
    torch.testing.assert_close(-k2.mutual_information_recursion(px, py, boundary), found[0])
    with pytest.raises(ValueError, match="termination_symbol is 1"):
        k2.rnnt_loss_pruned(logits, symbols, ranges, 1, use_hat_loss=True)


@pytest.mark.parametrize("package", [fast_rnnt, k2])
def test_modified_of_earlier_versions(package):
    lm, am, symbols = torch.randn(1, 3, 5), torch.randn(1, 4, 5), torch.tensor([[1, 2]])
    logits, ranges = am.unsqueeze(2) + lm.unsqueeze(1), torch.arange(3).expand(1, 4, 3)
    for name, *given in (
        ("rnnt_loss_simple", lm, am, symbols, 0),
        ("rnnt_loss_smoothed", lm, am, symbols, 0),
        ("rnnt_loss", logits, symbols, 0),
        ("rnnt_loss_pruned", logits, symbols, ranges, 0),
        ("get_rnnt_logprobs", lm, am, symbols, 0),
        ("get_rnnt_logprobs_smoothed", lm, am, symbols, 0),
        ("get_rnnt_logprobs_joint", logits, symbols, 0),
        ("get_rnnt_logprobs_pruned", logits, symbols, ranges, 0),
    ):
        function = getattr(package, name)
        regular, modified = function(*given, modified=False), function(*given, modified=True)
        torch.testing.assert_close(modified, function(*given, rnnt_type="modified"))
        torch.testing.assert_close(regular, function(*given))
        first = [value[0] if isinstance(value, tuple) else value for value in (regular, modified)]
        assert first[0].shape != first[1].shape or not torch.equal(*first)


def test_k2_argument_order():
    logits, symbols = torch.randn(1, 4, 3, 5), torch.tensor([[1, 2]])
    boundary = torch.tensor([[0, 0, 2, 3]])
    px, py = k2.get_rnnt_logprobs_joint(logits, symbols, 0, "modified", boundary)
    assert px.shape == (1, 2, 4)
    costs = -k2.mutual_information_recursion(px, py, boundary)
    torch.testing.assert_close(costs, k2.rnnt_loss(logits, symbols, 0, boundary, "modified", 0.0, "none"))

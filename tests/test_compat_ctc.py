"""Other packages' CTC losses and alignments in prnn.compat."""

import inspect

import pytest
import torch
from compat_case import CTC
from reference import lattice

import prnn
from prnn.compat import k2, torchaudio, warpctc_pytorch

# warp-ctc, tests/test_cpu.cpp (from TensorFlow): probabilities (T, N, V), blank 5, costs, gradients p - expected
PROBABILITIES = torch.tensor(
    [
        [
            [0.633766, 0.221185, 0.0917319, 0.0129757, 0.0142857, 0.0260553],
            [0.30176, 0.28562, 0.0831517, 0.0862751, 0.0816851, 0.161508],
        ],
        [
            [0.111121, 0.588392, 0.278779, 0.0055756, 0.00569609, 0.010436],
            [0.24082, 0.397533, 0.0557226, 0.0546814, 0.0557528, 0.19549],
        ],
        [
            [0.0357786, 0.633813, 0.321418, 0.00249248, 0.00272882, 0.0037688],
            [0.230246, 0.450868, 0.0389607, 0.038309, 0.0391602, 0.202456],
        ],
        [
            [0.0663296, 0.643849, 0.280111, 0.00283995, 0.0035545, 0.00331533],
            [0.280884, 0.429522, 0.0326593, 0.0339046, 0.0326856, 0.190345],
        ],
        [
            [0.458235, 0.396634, 0.123377, 0.00648837, 0.00903441, 0.00623107],
            [0.423286, 0.315517, 0.0338439, 0.0393744, 0.0339315, 0.154046],
        ],
    ]
)
LABELS = torch.tensor([0, 1, 2, 1, 0, 0, 1, 1, 0], dtype=torch.int32)
LABEL_LENGTHS, LENGTHS = torch.tensor([5, 4], dtype=torch.int32), torch.tensor([5, 5], dtype=torch.int32)
COSTS = torch.tensor([3.34211, 5.42262])
OCCUPIED = [[0, 1, 2, 1, 0], [0, 1, 5, 1, 0]]  # the one path of each sequence


def expected_gradients():
    gradients = PROBABILITIES.clone()
    for n, path in enumerate(OCCUPIED):
        for t, label in enumerate(path):
            gradients[t, n, label] -= 1
    return gradients


# ---- warpctc_pytorch ----


@pytest.mark.parametrize(
    ("options", "divisor"), [({}, 1), ({"size_average": True}, 2), ({"length_average": True, "size_average": True}, 10)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_warpctc(options, divisor, dtype):
    logits = PROBABILITIES.log().to(dtype).requires_grad_()
    loss = warpctc_pytorch.CTCLoss(blank=5, **options)(logits, LABELS, LENGTHS, LABEL_LENGTHS)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.detach(), COSTS.sum().reshape(1) / divisor, atol=1e-4, rtol=0)
    loss.backward()
    torch.testing.assert_close(logits.grad.float(), expected_gradients() / divisor, atol=1e-5, rtol=0)


def test_warpctc_functions_that_write():
    costs, gradients = torch.zeros(2), torch.zeros_like(PROBABILITIES)
    logits = PROBABILITIES.log()
    for function in (warpctc_pytorch.cpu_ctc, warpctc_pytorch.gpu_ctc):
        assert function(logits, gradients, LABELS, LABEL_LENGTHS, LENGTHS, 2, costs.zero_(), 5) == 1
        torch.testing.assert_close(costs, COSTS, atol=1e-4, rtol=0)
        torch.testing.assert_close(gradients, expected_gradients(), atol=1e-5, rtol=0)


def test_warpctc_without_a_path_costs_nothing():
    logits = torch.randn(2, 1, 4, requires_grad=True)
    labels, lengths = torch.tensor([1, 1], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    loss = warpctc_pytorch.CTCLoss()(logits, labels, lengths, lengths)
    loss.backward()
    assert loss.tolist() == [0]
    assert not logits.grad.any()


def test_warpctc_refuses_padded_labels():
    lengths = torch.tensor([2], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"labels has the shape \(1, 2\)"):
        warpctc_pytorch.CTCLoss()(torch.randn(2, 1, 4), torch.tensor([[1, 2]]), lengths, lengths)


def test_warpctc_errors_have_its_names():
    logits, long = PROBABILITIES.log(), LENGTHS + 1
    with pytest.raises(ValueError, match=r"^act_lens\b.*\b6\b"):
        warpctc_pytorch.CTCLoss(5)(logits, LABELS, long, LABEL_LENGTHS)
    with pytest.raises(ValueError, match="the number of labels is 9, but label_sizes add up to 11"):
        warpctc_pytorch.cpu_ctc(logits, torch.zeros(0), LABELS, LABEL_LENGTHS + 1, LENGTHS, 2, torch.zeros(2), 5)
    with pytest.raises(ValueError, match="blank_label is 6"):
        warpctc_pytorch.cpu_ctc(logits, torch.zeros(0), LABELS, LABEL_LENGTHS, LENGTHS, 2, torch.zeros(2), 6)


def test_ctc_signatures():
    empty = inspect.Parameter.empty
    expected = {
        warpctc_pytorch.CTCLoss: {"blank": 0, "size_average": False, "length_average": False},
        warpctc_pytorch.CTCLoss.forward: dict.fromkeys(("self", "acts", "labels", "act_lens", "label_lens"), empty),
        k2.ctc_loss: {
            "decoding_graph": empty,
            "dense_fsa_vec": empty,
            "output_beam": 10,
            "delay_penalty": 0.0,
            "reduction": "sum",
            "use_double_scores": True,
            "target_lengths": None,
        },
        k2.CtcLoss: {"output_beam": empty, "reduction": "sum", "use_double_scores": True},
        torchaudio.functional.forced_align: {
            "log_probs": empty,
            "targets": empty,
            "input_lengths": None,
            "target_lengths": None,
            "blank": 0,
        },
    }
    for function, arguments in expected.items():
        parameters = inspect.signature(function).parameters
        assert [(name, parameter.default) for name, parameter in parameters.items()] == list(arguments.items())


# ---- k2 ----


def k2_batch():
    """The log-probabilities (N, T, V), which require gradients, the segments and the labels of k2's own cases."""
    rows = torch.nn.utils.rnn.pad_sequence([activations for activations, _, _ in CTC], batch_first=True)
    log_probs = rows.log_softmax(-1).requires_grad_()
    segments = torch.tensor([[n, 0, len(case[0])] for n, case in enumerate(CTC)], dtype=torch.int32)
    return log_probs, segments, [labels for _, labels, _ in CTC]


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_k2_ctc(reduction):
    log_probs, segments, labels = k2_batch()
    lengths, costs = torch.tensor([len(s) for s in labels]), torch.tensor([cost for _, _, cost in CTC])
    graphs = k2.ctc_graph(labels), k2.compose(k2.ctc_topo(4), k2.linear_fsa(labels)).to("cpu")
    for graph in graphs:
        loss = k2.ctc_loss(
            graph, k2.DenseFsaVec(log_probs, segments).to("cpu"), reduction=reduction, target_lengths=lengths
        )
        expected = {"none": costs, "sum": costs.sum(), "mean": (costs / lengths).mean()}[reduction]
        torch.testing.assert_close(loss.detach(), expected)
        (gradients,) = torch.autograd.grad(loss.sum(), log_probs)
        assert (gradients <= 0).all()  # of log-probabilities: minus the occupation
        weight = (1 / lengths / 3) if reduction == "mean" else torch.ones(3)
        torch.testing.assert_close(-gradients.sum((1, 2)), segments[:, 2] * weight)


def test_k2_segments():
    log_probs = torch.randn(2, 7, 4).log_softmax(-1)
    segments = torch.tensor([[1, 2, 5], [0, 1, 4], [1, 4, 4]], dtype=torch.int32)
    with pytest.raises(ValueError, match="frames 4 to 8; log_probs has 7, and allow_truncate is 0"):
        k2.DenseFsaVec(log_probs, segments)
    dense = k2.DenseFsaVec(log_probs, segments, allow_truncate=1)
    assert dense.duration.tolist() == [5, 4, 3]
    labels = [[1, 2], [3], [2, 1]]
    found = k2.CtcLoss(8.0, "none")(k2.ctc_graph(labels), dense)
    for cost, (n, begin, count), symbols in zip(found, [(1, 2, 5), (0, 1, 4), (1, 4, 3)], labels, strict=True):
        rows = log_probs[n, begin : begin + count]
        expected = -torch.stack(lattice.ctc_path_scores(rows, symbols, 0)).logsumexp(0)
        torch.testing.assert_close(cost, expected)


def test_k2_refuses_what_it_has_not():
    log_probs, segments, labels = k2_batch()
    dense, graph = k2.DenseFsaVec(log_probs, segments), k2.ctc_graph(labels)
    with pytest.raises(prnn.NotSupportedError, match="modified is True"):
        k2.ctc_graph(labels, modified=True)
    with pytest.raises(prnn.NotSupportedError, match=r"delay_penalty is 0\.1"):
        k2.ctc_loss(graph, dense, delay_penalty=0.1)
    with pytest.raises(prnn.NotSupportedError, match="decoding_graph is a list"):
        k2.ctc_loss(labels, dense)
    with pytest.raises(prnn.NotSupportedError, match="a_fsa is a CtcGraph"):
        k2.compose(graph, graph)
    with pytest.raises(ValueError, match="target_lengths is None"):
        k2.ctc_loss(graph, dense, reduction="mean")
    with pytest.raises(ValueError, match="decoding_graph has 1 sequences"):
        k2.ctc_loss(k2.ctc_graph(labels[:1]), dense)
    with pytest.raises(ValueError, match="b_fsa has the label 3"):
        k2.compose(k2.ctc_topo(2), k2.linear_fsa([3]))


# ---- torchaudio.functional.forced_align ----


@pytest.mark.parametrize("targets", [[[1, 2, 2]], [[3]], [[2, 1, 2, 1]]])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_forced_align(targets, dtype):
    log_probs = torch.randn(1, 6, 4).log_softmax(-1)
    paths, scores = torchaudio.functional.forced_align(log_probs, torch.tensor(targets, dtype=dtype))
    assert paths.dtype == dtype
    assert paths.shape == scores.shape == (1, 6)
    every = list(lattice.ctc_paths(6, 4, targets[0], 0))
    best = int(torch.stack(lattice.ctc_path_scores(log_probs[0], targets[0], 0)).argmax())
    assert paths[0].tolist() == list(every[best])
    torch.testing.assert_close(scores[0], log_probs[0, torch.arange(6), torch.tensor(every[best])])


def test_forced_align_lengths():
    log_probs = torch.randn(2, 7, 5).log_softmax(-1)
    targets, frames, lengths = torch.tensor([[0, 2, 2], [3, 1, 1]]), torch.tensor([7, 4]), torch.tensor([3, 1])
    paths, scores = torchaudio.forced_align(log_probs, targets, frames, lengths, blank=4)
    alone = torchaudio.forced_align(log_probs[1:, :4], targets[1:, :1], blank=4)
    assert paths[1].tolist() == [*alone[0][0].tolist(), 4, 4, 4]
    torch.testing.assert_close(scores[1, :4], alone[1][0])
    assert scores[1, 4:].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="blank is -1; it must be 0 to 4"):
        torchaudio.forced_align(log_probs, targets, frames, lengths, blank=-1)
    with pytest.raises(RuntimeError, match="targets length is too long for CTC: sequence 1 has too few frames"):
        torchaudio.forced_align(log_probs, targets, torch.tensor([7, 2]), torch.tensor([3, 3]), blank=4)


@pytest.mark.parametrize("lengths", [(None, None), (torch.tensor([7, 4]), torch.tensor([3, 1]))])
def test_forced_align_scripted(lengths, tmp_path):
    torch.jit.script(torchaudio.functional.forced_align).save(str(tmp_path / "align.pt"))
    scripted = torch.jit.load(tmp_path / "align.pt")
    log_probs, targets = torch.randn(2, 7, 5).log_softmax(-1), torch.tensor([[0, 2, 2], [3, 1, 1]])
    for x in (log_probs, log_probs.half()):
        expected = torchaudio.functional.forced_align(x, targets, *lengths, 4)
        torch.testing.assert_close(scripted(x, targets, *lengths, 4), expected, rtol=0, atol=0)
    with pytest.raises(torch.jit.Error, match="targets length is too long for CTC: sequence 1"):
        scripted(log_probs, targets, torch.tensor([7, 2]), None, 4)

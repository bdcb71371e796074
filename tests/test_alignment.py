"""prnn.forced_align: the best of all paths, by enumeration."""

import pytest
import torch
from reference import lattice

import prnn

BLANK = 1


def ctc_times(path, target):
    """Begin and end of each symbol in a path of classes."""
    begins, ends, before = [], [], BLANK
    for t, symbol in enumerate(path):
        if symbol != BLANK and symbol != before:
            begins.append(t)
            ends.append(t + 1)
        elif symbol != BLANK:
            ends[-1] = t + 1
        before = symbol
    assert [path[t] for t in begins] == target
    return begins, ends


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("frames", "classes", "target"),
    [(1, 3, []), (1, 3, [2]), (4, 3, [2, 2]), (5, 3, [0, 2, 0]), (6, 3, [0, 0, 2]), (5, 4, [3])],
)
def test_ctc_best_path(frames, classes, target, dtype):
    x = torch.randn(frames, classes, dtype=dtype)
    log_probs = x.log_softmax(1)
    paths = list(lattice.ctc_paths(frames, classes, target, BLANK))
    scores = torch.stack(lattice.ctc_path_scores(log_probs, target, BLANK))
    best = int(scores.argmax())
    begins, ends = ctc_times(paths[best], target)
    found = prnn.forced_align(x.unsqueeze(0), torch.tensor([target], dtype=torch.int64), blank=BLANK)
    torch.testing.assert_close(found.scores[0], scores[best])
    assert found.begins[0].tolist() == begins
    assert found.ends[0].tolist() == ends
    for i, symbol in enumerate(target):
        torch.testing.assert_close(found.token_scores[0, i], log_probs[begins[i] : ends[i], symbol].mean())


@pytest.mark.parametrize("rnnt_type", ["regular", "modified", "constrained", "final_blank"])
@pytest.mark.parametrize("delay_penalty", [0.0, 0.6])
@pytest.mark.parametrize(("frames", "classes", "target"), [(1, 3, []), (1, 3, [2]), (4, 3, [2, 2]), (5, 4, [0, 3, 2])])
def test_rnnt_best_path(frames, classes, target, rnnt_type, delay_penalty):
    frames += rnnt_type == "final_blank"  # which needs one for the blank
    x = torch.randn(frames, len(target) + 1, classes, dtype=torch.float64)
    log_probs = x.log_softmax(2)
    label = log_probs[:, torch.arange(len(target)), target]
    paths, scores = lattice.rnnt_path_scores(log_probs[..., BLANK], label, rnnt_type, delay_penalty)
    best = int(torch.stack(scores).argmax())
    times = [t for t, _, kind in paths[best] if kind == "label"]
    found = prnn.forced_align(
        x.unsqueeze(0),
        torch.tensor([target], dtype=torch.int64),
        blank=BLANK,
        rnnt_type=rnnt_type,
        delay_penalty=delay_penalty,
    )
    torch.testing.assert_close(found.scores[0], scores[best])
    assert found.begins[0].tolist() == times
    assert found.ends[0].tolist() == [t + 1 for t in times]
    for i, t in enumerate(times):
        torch.testing.assert_close(found.token_scores[0, i], label[t, i])


@pytest.mark.parametrize("kind", ["ctc", "rnnt"])
@pytest.mark.parametrize("from_logits", [True, False])
def test_a_batch_is_its_sequences(kind, from_logits):
    """Each sequence by itself, without padding, gives what it gives in a batch with NaN in the padding."""
    frames, counts = [12, 7, 9, 3], [4, 4, 0, 1]
    targets = torch.randint(1, 6, (4, 4))
    shape = (4, 12, 6) if kind == "ctc" else (4, 12, 5, 6)
    x = torch.randn(shape, dtype=torch.float64)
    if not from_logits:
        x = x.log_softmax(-1)
    spoiled, spoiled_targets = x.clone(), targets.clone()
    for n in range(4):
        spoiled[n, frames[n] :] = float("nan")
        if kind == "rnnt":
            spoiled[n, :, counts[n] + 1 :] = float("nan")
        spoiled_targets[n, counts[n] :] = -5
    options = {"blank": 0, "from_logits": from_logits}
    together = prnn.forced_align(spoiled, spoiled_targets, frames, counts, **options)
    for n in range(4):
        cells = x[n : n + 1, : frames[n]] if kind == "ctc" else x[n : n + 1, : frames[n], : counts[n] + 1]
        alone = prnn.forced_align(cells, targets[n : n + 1, : counts[n]], **options)
        assert torch.equal(together.scores[n], alone.scores[0])
        for name in ("begins", "ends", "token_scores"):
            row = getattr(together, name)[n]
            torch.testing.assert_close(row[: counts[n]], getattr(alone, name)[0], rtol=1e-14, atol=0)
            assert (row[counts[n] :] == (0 if name == "token_scores" else -1)).all()


def test_no_path():
    """Too few frames, and a forbidden symbol."""
    x = torch.randn(2, 3, 5).log_softmax(2)
    x[1, :, 2] = float("-inf")
    found = prnn.forced_align(x, torch.tensor([[1, 1, 1], [2, 3, 4]]), from_logits=False)
    assert (found.scores == float("-inf")).all()
    assert (found.begins == -1).all()
    assert (found.ends == -1).all()
    assert not found.token_scores.any()
    found = prnn.forced_align(torch.randn(1, 2, 4, 5), torch.tensor([[1, 2, 3]]), rnnt_type="modified")
    assert found.scores[0] == float("-inf")
    assert (found.begins == -1).all()


def test_nan_gives_a_nan_score_and_no_times():
    for shape in ((2, 5, 4), (2, 5, 3, 4)):
        x = torch.randn(shape)
        x[0, 2] = float("nan")
        found = prnn.forced_align(x, torch.tensor([[1, 2], [1, 2]]), blank=0)
        assert found.scores[0].isnan()
        assert (found.begins[0] == -1).all()
        assert torch.isfinite(found.scores[1])
        assert (found.begins[1] >= 0).all()


def test_best_path_is_below_the_sum_of_paths():
    x = torch.randn(3, 50, 6)
    targets = torch.randint(1, 6, (3, 9))
    costs = prnn.ctc_loss(x.transpose(0, 1), targets, [50] * 3, [9] * 3, reduction="none")
    assert (prnn.forced_align(x, targets).scores < -costs).all()


def test_half_types_and_default_blanks():
    x = torch.randn(2, 6, 3, 5).bfloat16()
    targets = torch.tensor([[0, 1], [2, 3]])
    found = prnn.forced_align(x, targets)
    assert found.scores.dtype == torch.float32
    assert torch.equal(found.begins, prnn.forced_align(x.float(), targets, blank=4).begins)
    y = torch.randn(2, 6, 5)
    assert torch.equal(prnn.forced_align(y, targets + 1).begins, prnn.forced_align(y, targets + 1, blank=0).begins)

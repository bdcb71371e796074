"""`prnn bench rnn --cells slstm` on the CPU: what is compared computes the same, and the table has a row for each."""

from collections.abc import Callable

import pytest
import torch

from prnn.bench import rnn_slstm


def once(ours: Callable[[], None], theirs: Callable[[], None]) -> tuple[list[float], list[float]]:
    ours(), theirs()
    return [1.0], [2.0]


def test_torch_operations_compute_the_same() -> None:
    data = rnn_slstm.Data(7, 3, 16, torch.float64, "cpu")
    found = []
    for run in (lambda *leaves: rnn_slstm.run_gates(*leaves)[0], rnn_slstm.written_out):
        leaves = data.leaves()
        output = run(*leaves)
        found.append([output, *torch.autograd.grad(output, leaves, data.dy)])
    for own, expected in zip(*found, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-10, atol=1e-11)


def test_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rnn_slstm, "optional", lambda name: None)  # a package that is not installed
    rows = list(rnn_slstm.compare_on_cpu([8], [1, 2], 3, ["inference", "training"], torch.float32, once))
    assert [(row["batch"], row["what"]) for row in rows] == [
        (batch, what) for batch in (1, 2) for what in ("inference", "training")
    ]
    printed = capsys.readouterr().out.strip().splitlines()
    assert printed[2:] == [
        f"| slstm | 8 | {batch} | {what} | 1000.000 | torch operations | 2000.000 | 2.00 (2.00) |"
        for batch in (1, 2)
        for what in ("inference", "training")
    ]
    with pytest.raises(SystemExit, match="--hidden is 6; it must be a multiple of the 4 heads"):
        rnn_slstm.Data(3, 1, 6, torch.float32, "cpu")

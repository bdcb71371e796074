"""prnn bench decode: rows of both searches, with the symbols of the rate that was asked for."""

import json
from pathlib import Path

import pytest
import torch

from prnn.bench.decode import main


@pytest.mark.parametrize("options", [[], ["--tdt"], ["--predictor", "stateless"]])
def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    sizes = ["--classes", "20", "--hidden", "16", "--joiner", "16", "--frames", "40", "--rate", "0.5"]
    path = tmp_path / "rows.json"
    main(["--batch", "1", "3", *sizes, "--seconds", "0.01", "--json", str(path), *options], "cpu")
    rows = json.loads(path.read_text())["rows"]
    assert [(row["batch"], row["search"]) for row in rows] == [(n, s) for n in (1, 3) for s in ("libprnn", "steps")]
    assert len(capsys.readouterr().out.splitlines()) == 5
    for row, other in zip(rows[::2], rows[1::2], strict=True):
        assert row["symbols"] == other["symbols"]
        assert 1 <= row["symbols"] <= 60
        assert row["us_a_symbol"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([], "gpu")
    assert "torch can use no GPU here" in capsys.readouterr().err

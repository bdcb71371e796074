"""prnn bench jax: a row for each layer, with times of prnn and of lax.scan, which compute the same."""

import json
from pathlib import Path

import numpy as np
import pytest
from jax_case import assert_close, jax, jnp

import prnn.jax
from prnn.bench.jax_layers import main, scanned


def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    sizes = ["--hidden", "8", "--batch", "2", "--steps", "3", "--seconds", "0.01"]
    main(["--cells", "gru", *sizes, "--json", str(path)], "cpu")
    rows = json.loads(path.read_text())["rows"]
    assert [row["what"] for row in rows] == ["forward", "training"]
    assert all(row["prnn"] > 0 and row["scan"] > 0 for row in rows)
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_the_scan_computes_the_same(cell: str) -> None:
    with jax.default_device(jax.devices("cpu")[0]):
        params = prnn.jax.init_params(jax.random.key(0), cell, 8, 8)
        x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 2, 8)), "float32")
        found = jax.jit(scanned, static_argnums=(0, 3))(cell, params, x, 1)
        assert_close(found, getattr(prnn.jax, cell)(params, x)[0], 1e-5)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([], "gpu")
    assert "jax can use no GPU here; its backend is cpu" in capsys.readouterr().err

"""The documentation: the site builds, links lead somewhere, and the picture is that of the measurements."""

import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMES = [
    "prnn.nn.LSTM",
    "prnn.convert.convert",
    "prnn.losses.rnnt_loss",
    "prnn.transducer.Transducer.greedy_search",
    "prnn.distributed.GradientMean",
]


def test_site_builds(tmp_path: pathlib.Path) -> None:
    """--strict: links and anchors between pages, pages that the navigation lacks, names that the reference misses."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / "site/api/index.html").read_text()
    for name in NAMES:
        assert f'id="{name}"' in reference


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_links_of_pages_outside_the_site(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_picture_is_of_the_measurements() -> None:
    program = runpy.run_path(str(ROOT / "bench/plot_timesteps.py"))
    drawn = program["draw"](program["read_steps"](program["RESULTS"].read_text()))
    assert program["PICTURE"].read_text() == drawn, "run python bench/plot_timesteps.py"

"""The documentation: the site builds, links lead somewhere, and the picture is that of the measurements."""

import importlib
import os
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def test_site_builds(tmp_path: pathlib.Path) -> None:
    """--strict: links and anchors between pages, pages that the navigation lacks, names that the reference misses."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (tmp_path / "site/api/index.html").read_text()
    packages = {
        "prnn",
        "prnn.nn",
        "prnn.explain",
        "prnn.losses",
        "prnn.transducer",
        "prnn.distributed",
        "prnn.asr",
        "prnn.jax",
    }
    for package in packages:
        for name in importlib.import_module(package).__all__:
            if name not in ("__version__", "nn"):
                assert re.search(rf'id="prnn\.[\w.]*\b{name}"', reference), f"{package}.{name}"
    assert 'id="prnn.compat.install"' in reference
    assert "tables.css" in reference
    for page in ("README.md", "CHANGELOG.md"):  # which are not of the site
        for target, anchor in re.findall(r"\]\(docs/(\w+)\.md#([^)]+)\)", (ROOT / page).read_text()):
            assert f'id="{anchor}"' in (tmp_path / f"site/{target}/index.html").read_text(), (
                f"{page}: {target}.md#{anchor}"
            )
    rows = reference.split('<tr class="doc-section-item">')
    several = [row for row in rows if re.match(r"\s*<td>\s*<code>[^<]*[ ,]", row)]
    assert several
    assert not any("required" in row for row in several)


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_links_of_pages_outside_the_site(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_pictures_are_of_the_measurements() -> None:
    program = runpy.run_path(str(ROOT / "scripts/plot_timesteps.py"))
    for picture, draw in program["PICTURES"].items():
        assert picture.read_text() == draw(), "run python scripts/plot_timesteps.py"

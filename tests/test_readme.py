"""The programs of README and docs/nn.md run as they stand there, and links lead somewhere."""

import re

import pytest
from c_program import ROOT


@pytest.mark.parametrize("page", ["README.md", "docs/nn.md"])
def test_python(page: str) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    exec(compile(program, page, "exec"), {"__name__": "program"})


def test_links() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}, which is not there"

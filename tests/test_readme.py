"""The README's program runs as it stands there, and its links lead somewhere."""

import re

from c_program import ROOT

TEXT = (ROOT / "README.md").read_text()


def block(language: str) -> str:
    (program,) = re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)
    return program


def test_python() -> None:
    exec(compile(block("python"), "README.md", "exec"), {})


def test_links() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}, which is not there"

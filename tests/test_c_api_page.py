"""The programs of docs/c_api.md compile without a warning and print what stands below them; its names exist."""

import pathlib
import re
import textwrap

from c_program import ROOT, output_of


def test_examples(tmp_path: pathlib.Path) -> None:
    page = (ROOT / "docs/c_api.md").read_text()
    programs = re.findall(r"```c\n(.*?)```\n\n((?:    [^\n]*\n)+)", page, flags=re.DOTALL)
    assert len(programs) == page.count("```c\n") > 1
    for number, (program, output) in enumerate(programs):
        source = tmp_path / f"example{number}.c"
        source.write_text(program)
        assert output_of(source, tmp_path) == textwrap.dedent(output)


def test_names_are_those_of_the_headers() -> None:
    headers = "".join(path.read_text() for path in (ROOT / "include").rglob("*.h"))
    for name in re.findall(r"`(prnn\w+)", (ROOT / "docs/c_api.md").read_text()):
        assert name in headers, f"docs/c_api.md names {name}, which no header declares"

"""The program in docs/c_api.md compiles without a warning and runs, and the page names what there is."""

import pathlib
import re

from c_program import ROOT, output_of


def test_example(tmp_path: pathlib.Path) -> None:
    (program,) = re.findall(r"```c\n(.*?)```", (ROOT / "docs/c_api.md").read_text(), flags=re.DOTALL)
    source = tmp_path / "example.c"
    source.write_text(program)
    assert output_of(source, tmp_path) == "PRNN_STATUS_SUCCESS \n"


def test_names_are_those_of_the_headers() -> None:
    headers = "".join(path.read_text() for path in (ROOT / "include").rglob("*.h"))
    for name in re.findall(r"`(prnn\w+)", (ROOT / "docs/c_api.md").read_text()):
        assert name in headers, f"docs/c_api.md names {name}, which no header declares"

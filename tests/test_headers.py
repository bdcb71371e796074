"""Every public header compiles alone, as strict C99 and as C++, without a warning."""

import pathlib
import subprocess

import pytest

INCLUDE = pathlib.Path(__file__).resolve().parent.parent / "include"
HEADERS = sorted(str(path.relative_to(INCLUDE)) for path in INCLUDE.rglob("*.h"))
LANGUAGES = {"c99": ["gcc", "-x", "c", "-std=c99"], "c++": ["g++", "-x", "c++", "-std=c++11"]}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("header", HEADERS)
def test_header_compiles_alone(header: str, language: str) -> None:
    command = [*LANGUAGES[language], "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{INCLUDE}", "-"]
    # Twice, for the include guard.
    done = subprocess.run(command, input=f'#include "{header}"\n' * 2, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

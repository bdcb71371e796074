"""Clients of other libraries, compiled against include/compat/ and run on the CPU, as C99 and as C++."""

import pathlib

import pytest
from c_program import LANGUAGES, ROOT, output_of


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("client", ["compat_cudnn", "compat_warp_ctc", "compat_warp_transducer"])
def test_client(client: str, language: str, tmp_path: pathlib.Path) -> None:
    source = ROOT / f"tests/c/{client}.c"
    assert output_of(source, tmp_path, language, defines=("PRNN_COMPAT_CPU",)) == "ok\n"

"""Clients of other libraries, compiled against include/compat/ and run on the CPU, as C99 and as C++."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
LANGUAGES = {"c99": ["gcc", "-x", "c", "-std=c99"], "c++": ["g++", "-x", "c++", "-std=c++11"]}
STRICT = ["-pedantic", "-Wall", "-Wextra", "-Werror"]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("client", ["compat_cudnn", "compat_warp_ctc", "compat_warp_transducer"])
def test_client(client: str, language: str, tmp_path: pathlib.Path) -> None:
    library = next((ROOT / "prnn/lib").glob("libprnn.so.*"))
    sanitizers = [
        f"-fsanitize={option.removeprefix('sanitizers=')}"
        for option in os.environ.get("PRNN_SCONS_OPTIONS", "").split()
        if option.startswith("sanitizers=")
    ]
    compile_ = [*LANGUAGES[language], *STRICT, *sanitizers, "-DPRNN_COMPAT_CPU", f"-I{ROOT / 'include'}"]
    source = ["-o", tmp_path / client, ROOT / f"tests/c/{client}.c"]
    link = ["-x", "none", library, f"-Wl,-rpath,{library.parent}", "-lm"]
    environment = {**os.environ, "LD_PRELOAD": ""}  # which is for the Python that runs the tests
    for command in ([*compile_, *source, *link], [tmp_path / client]):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "ok\n"

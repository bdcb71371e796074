"""Compiles a C or C++ program against the headers of this checkout and the library in prnn/lib, and runs it."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
LANGUAGES = {"c99": ["gcc", "-x", "c", "-std=c99"], "c++": ["g++", "-x", "c++", "-std=c++11"]}
STRICT = ["-pedantic", "-Wall", "-Wextra", "-Werror"]


def output_of(
    source: pathlib.Path,
    folder: pathlib.Path,
    language: str = "c99",
    defines: tuple[str, ...] = (),
    cuda: pathlib.Path | None = None,
) -> str:
    """Returns what the program prints. A warning, or an exit status other than 0, is a failure. `cuda`: the toolkit's
    folder, for a program that uses the CUDA runtime."""
    library = next((ROOT / "prnn/lib").glob("libprnn.so.*"))
    sanitizers = [  # the same as the library's, for the program brings their runtime
        f"-fsanitize={option.removeprefix('sanitizers=')}"
        for option in os.environ.get("PRNN_SCONS_OPTIONS", "").split()
        if option.startswith("sanitizers=")
    ]
    program = folder / source.stem
    headers = [f"-I{ROOT / 'include'}"] if cuda is None else [f"-I{ROOT / 'include'}", "-isystem", cuda / "include"]
    runtime = [] if cuda is None else [f"-L{cuda / 'lib64'}", "-lcudart_static", "-ldl", "-lrt", "-lpthread"]
    options = [*STRICT, *sanitizers, *(f"-D{name}" for name in defines), *headers, "-o", program]
    link = ["-x", "none", library, f"-Wl,-rpath,{library.parent}", *runtime, "-lm"]
    environment = {**os.environ, "LD_PRELOAD": ""}  # which is for the Python that runs the tests
    for command in ([*LANGUAGES[language], *options, source, *link], [program]):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

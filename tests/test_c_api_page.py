"""The program in docs/c_api.md compiles without a warning and runs."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def test_example(tmp_path: pathlib.Path) -> None:
    (program,) = re.findall(r"```c\n(.*?)```", (ROOT / "docs/c_api.md").read_text(), flags=re.DOTALL)
    (tmp_path / "example.c").write_text(program)
    library = next((ROOT / "prnn/lib").glob("libprnn.so.*"))
    compile_ = ["gcc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", "example.c"]
    link = ["-o", "example", str(library), f"-Wl,-rpath,{library.parent}"]
    for command in ([*compile_, *link], ["./example"]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "PRNN_STATUS_SUCCESS \n"


def test_names_are_those_of_the_headers() -> None:
    headers = "".join(path.read_text() for path in (ROOT / "include").rglob("*.h"))
    for name in re.findall(r"`(prnn\w+)", (ROOT / "docs/c_api.md").read_text()):
        assert name in headers, f"docs/c_api.md names {name}, which no header declares"

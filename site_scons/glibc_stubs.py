"""Stubs of an older glibc, with which a library is linked that runs on it: of the package ziglang, which has those of
every version."""

import os
import pathlib
import platform
import shutil
import subprocess
import sys

_LIBRARIES = {"c": 6, "m": 6, "pthread": 0, "dl": 2, "rt": 1}


def make_stubs(version: str, folder: pathlib.Path) -> pathlib.Path:
    """Puts libc.so and others of a version ("2.28") into a folder. Raises SystemExit without ziglang."""
    cache = folder / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    (folder / "empty.c").write_text("")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{platform.machine()}-linux-gnu.{version}", "-shared"]
    command += ["-o", folder / "empty.so", folder / "empty.c", *(f"-l{name}" for name in _LIBRARIES)]
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"glibc {version}: the package ziglang makes no stubs of it: {done.stderr.strip()[-500:]}")
    for name, number in _LIBRARIES.items():
        (made,) = cache.glob(f"o/*/lib{name}.so.{number}")
        shutil.copy(made, folder / (f"lib{name}.so" if name != "c" else "libc.so.6"))
    # glibc's own libc.so links libc_nonshared.a in, too; its code (atexit) calls functions of the oldest version.
    compiler = [os.environ.get("CXX", "g++"), "-print-file-name=libc_nonshared.a"]
    linked_in = subprocess.run(compiler, capture_output=True, text=True, check=True).stdout.strip()
    (folder / "libc.so").write_text(f"GROUP ( {folder / 'libc.so.6'} {linked_in} )\n")
    shutil.rmtree(cache)
    return folder

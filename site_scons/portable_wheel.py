"""Builds a wheel that runs without a toolkit, on any Linux with this one's glibc or a newer one: ./scripts/wheel.

    python site_scons/portable_wheel.py [--output DIR] [--glibc VERSION] [NAME=VALUE of the build ...]

With --glibc it is a release's: it runs on that one and newer ones, whatever this machine has, since it is linked with
stubs (glibc_stubs.py), and has the handlers for JAX.
With pythons=A,B it has an extension for each of these Pythons. auditwheel names the wheel by the oldest glibc that the
symbols in its libraries are of, and adds libgomp, which older torch wheels have under a name of their own. The CUDA
runtime is linked in; cuBLAS and cuDNN are loaded at run time, from torch's own packages. A wheel without CUDA
code has the version 0.1.0+cpu.
"""

import argparse
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

import pep517
from glibc_stubs import make_stubs

# The library in front of cuDNN needs the one beside it, and cuDNN, which a placeholder stands for.
NOT_ADDED = ["/prnn-cudnn-path*", "libprnn_cudnn.so"]
ADDED = ["libgomp"]


def _folder_of_libgomp():
    """The folder of torch's libgomp, which was built for an old glibc."""
    torch = importlib.util.find_spec("torch")
    found = pathlib.Path(torch.origin).parent / "lib/libgomp.so.1" if torch else None
    if found is None or not found.exists():
        raise SystemExit("--glibc needs the libgomp of a torch >= 2.11, in this environment")
    return found.parent


def build(output, settings, search=None):
    """Puts the wheel into a folder and returns its path. search: a folder in which auditwheel looks for libraries."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = pathlib.Path(folder, pep517.build_wheel(folder, settings, names_device=True))
        excluded = [f"--exclude={name}" for name in NOT_ADDED]
        command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", f"{folder}/repaired", *excluded, wheel]
        environment = os.environ | ({"LD_LIBRARY_PATH": str(search)} if search else {})
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise SystemExit(f"auditwheel refuses {wheel.name}:\n{done.stderr[-2000:]}")
        (repaired,) = pathlib.Path(folder, "repaired").glob("*.whl")
        if "manylinux" not in repaired.name:
            raise SystemExit(f"{repaired.name} is no manylinux wheel:\n{done.stderr[-2000:]}")
        output.mkdir(parents=True, exist_ok=True)
        return repaired.rename(output / repaired.name)


def added_libraries(wheel):
    """Names of the libraries that auditwheel has added, without what makes them unique."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(re.findall(r"^prnn\.libs/(\w+)", "\n".join(archive.namelist()), re.MULTILINE))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pep517.ROOT / "dist", help="folder (%(default)s)")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="options of the build, see scons --help")
    parser.add_argument("--glibc", metavar="VERSION", help="the oldest to run on: 2.28 (this machine's)")
    options = parser.parse_args()
    for setting in options.settings:
        if "=" not in setting:
            parser.error(f"{setting} is no option of the build; write NAME=VALUE")
    settings = dict(setting.split("=", 1) for setting in options.settings)
    if options.glibc:
        folder = pep517.ROOT / f"build/glibc-{options.glibc}"
        settings = {"jax": "on"} | settings
        settings["glibc_stubs"] = str(make_stubs(options.glibc, folder))
    wheel = build(options.output, settings, _folder_of_libgomp() if options.glibc else None)
    found = tuple(map(int, re.search(r"manylinux_(\d+)_(\d+)_", wheel.name).groups()))
    if options.glibc and found > tuple(map(int, options.glibc.split("."))):
        raise SystemExit(f"{wheel.name} needs a newer glibc than {options.glibc}")
    if added_libraries(wheel) != ADDED:
        raise SystemExit(f"{wheel} has the libraries {added_libraries(wheel)} added; {ADDED} is meant")
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

"""Builds a wheel that runs without a toolkit, on any Linux with this one's glibc or a newer one: ./scripts/wheel.

    python site_scons/portable_wheel.py [--output DIR] [NAME=VALUE of the build ...]

auditwheel names the wheel by the oldest glibc that its libraries run on, and adds libgomp, which older torch wheels
have under a name of their own. The CUDA runtime is linked in; cuBLAS and cuDNN are loaded at run time, from torch's own
packages.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

import pep517

# The library in front of cuDNN needs the one beside it, and cuDNN, which a placeholder stands for.
NOT_ADDED = ["/prnn-cudnn-path*", "libprnn_cudnn.so"]
ADDED = ["libgomp"]


def build(output, settings):
    """Puts the wheel into a folder and returns its path."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = pathlib.Path(folder, pep517.build_wheel(folder, settings))
        excluded = [f"--exclude={name}" for name in NOT_ADDED]
        command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", f"{folder}/repaired", *excluded, wheel]
        done = subprocess.run(command, capture_output=True, text=True)
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
    options = parser.parse_args()
    for setting in options.settings:
        if "=" not in setting:
            parser.error(f"{setting} is no option of the build; write NAME=VALUE")
    wheel = build(options.output, dict(setting.split("=", 1) for setting in options.settings))
    if added_libraries(wheel) != ADDED:
        raise SystemExit(f"{wheel} has the libraries {added_libraries(wheel)} added; {ADDED} is meant")
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

"""Installs a torch into the environment of this Python: python scripts/install_torch.py VERSION.

On a machine without a GPU, which calls nothing of CUDA but the runtime, it leaves out the other CUDA packages that
torch requires: 3.6 of the 5.2 GB that torch 2.6.0 installs. torch's libraries are linked to them: empty libraries of
their names take their place, and symbols are bound when they are called. A torch that does not name the package of its
CUDA runtime is installed whole.
"""

import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

PACKAGES = pathlib.Path(sysconfig.get_path("purelib"))
LAZY_BINDING = "lazy_binding.pth"


def has_gpu() -> bool:
    nvidia_smi = shutil.which("nvidia-smi")
    return nvidia_smi is not None and b"GPU" in subprocess.run([nvidia_smi, "-L"], capture_output=True).stdout


def pip_install(*arguments: str) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--no-warn-conflicts", "--retries=10"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *arguments], check=True)


def install_empty_libraries(folder: pathlib.Path) -> None:
    said = subprocess.run(["ldd", *folder.glob("lib*.so")], capture_output=True, text=True, check=True).stdout
    for name in set(re.findall(r"(\S+) => not found", said)):
        versions = folder / f"{name}.map"  # its symbols have a version that is named as the library
        versions.write_text(f"{name} {{}};\n")
        flags = ["-shared", "-nostdlib", f"-Wl,-soname,{name}", f"-Wl,--version-script={versions}"]
        subprocess.run(["gcc", *flags, "-o", folder / name, "-x", "c", "/dev/null"], check=True)
    (PACKAGES / LAZY_BINDING).write_text("import os, sys; sys.setdlopenflags(os.RTLD_LAZY)\n")


def main(version: str) -> None:
    pip_install("--no-deps", f"torch=={version}")
    required = importlib.metadata.requires("torch") or []
    if has_gpu() or not any(name.startswith("nvidia-cuda-runtime-") for name in required):
        pip_install(f"torch=={version}")
        return
    pip_install(*(name for name in required if re.match(r"nvidia-cuda-runtime-|(?!nvidia-|triton)", name)))
    install_empty_libraries(PACKAGES / "torch/lib")
    if subprocess.run([sys.executable, "-c", "import torch; torch.ones(1).sum()"]).returncode != 0:
        (PACKAGES / LAZY_BINDING).unlink()
        pip_install(f"torch=={version}")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except subprocess.CalledProcessError as error:
        sys.exit(f"torch {sys.argv[1]} was not installed: {error}")

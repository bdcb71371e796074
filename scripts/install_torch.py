"""Installs a torch into the environment of this Python: python scripts/install_torch.py VERSION.

    python scripts/install_torch.py --index   # prints the options with which pip finds the torch for this machine

On a machine without a GPU that is PyTorch's build for CPUs, from PyTorch's own package index where that answers. Where
it does not, the CUDA packages that torch requires are left out but for the runtime, since nothing else is called:
3.6 of the 5.2 GB that torch 2.6.0 installs. torch's libraries are linked to them: empty libraries of
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
import urllib.request

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PACKAGES = pathlib.Path(sysconfig.get_path("purelib"))
LAZY_BINDING = "lazy_binding.pth"


def has_gpu() -> bool:
    nvidia_smi = shutil.which("nvidia-smi")
    return nvidia_smi is not None and b"GPU" in subprocess.run([nvidia_smi, "-L"], capture_output=True).stdout


def index_options() -> list[str]:
    """pip prefers 2.13.0+cpu, which that index alone has, to 2.13.0."""
    if has_gpu():
        return []
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=10):
            return ["--extra-index-url", CPU_INDEX]
    except OSError:
        return []


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
    index = index_options()
    pip_install("--no-deps", *index, f"torch=={version}")
    required = importlib.metadata.requires("torch") or []
    if has_gpu() or not any(name.startswith("nvidia-cuda-runtime-") for name in required):
        pip_install(*index, f"torch=={version}")
        return
    pip_install(*(name for name in required if re.match(r"nvidia-cuda-runtime-|(?!nvidia-|triton)", name)))
    install_empty_libraries(PACKAGES / "torch/lib")
    if subprocess.run([sys.executable, "-c", "import torch; torch.ones(1).sum()"]).returncode != 0:
        (PACKAGES / LAZY_BINDING).unlink()
        pip_install(f"torch=={version}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--index"]:
        print(*index_options())
        sys.exit()
    try:
        main(sys.argv[1])
    except subprocess.CalledProcessError as error:
        sys.exit(f"torch {sys.argv[1]} was not installed: {error}")

"""The GPU architectures that the CUDA sources are compiled for: values of the option cuda_arch, and nvcc's flags."""

import shutil
import subprocess

ARCHITECTURES = ["80", "86", "89", "90a", "100", "120"]
# Of a machine without a GPU: every kernel exists for it.
_WITHOUT_GPU = "90a"


def _architecture_of(compute_capability: str) -> str:
    """The one whose code a GPU runs ("8.6"): its own, or the newest before it. 90a is for 9.0 alone."""
    number = int(compute_capability.replace(".", ""))
    if number == 90:
        return "90a"
    older = [arch for arch in ARCHITECTURES if arch.isdigit() and int(arch) <= number]
    return max(older, key=int) if older else _WITHOUT_GPU


def native_architectures() -> list[str]:
    """Those of this machine's GPUs."""
    if shutil.which("nvidia-smi") is None:
        return [_WITHOUT_GPU]
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True)
    capabilities = done.stdout.split() if done.returncode == 0 else []
    return sorted({_architecture_of(capability) for capability in capabilities}) or [_WITHOUT_GPU]


def arch_flags(wanted: list[str]) -> list[str]:
    """Machine code for each architecture. For the newest that is not one GPU's alone (as 90a is) intermediate code as
    well, which the driver of a later GPU translates."""
    archs = {*wanted} - {"native"} | ({*native_architectures()} if "native" in wanted else set())
    flags = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ARCHITECTURES if arch in archs]
    portable = [arch for arch in archs if arch.isdigit()]
    if portable:
        newest = max(portable, key=int)
        flags.append(f"-gencode=arch=compute_{newest},code=compute_{newest}")
    return flags

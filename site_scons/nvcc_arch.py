"""The GPU architectures that the CUDA sources are compiled for: values of the option cuda_arch, and nvcc's flags."""

import pathlib
import re
import shutil
import subprocess

ARCHITECTURES = ["75", "80", "86", "89", "90a", "100", "120"]
# Folders without code for 7.5, on which layers run on cuDNN: resident kernels and the transducer search.
_FROM_80 = ("/generated/", "src/rnn/cuda/step/", "src/rnn/cuda/layer_norm/", "src/decode/")
# The architecture to build for on a machine without a GPU: every kernel exists for it.
_WITHOUT_GPU = "90a"


def _architecture_of(compute_capability: str) -> str:
    """The one whose code a GPU runs ("8.6"): its own, or the newest before it. 90a is for 9.0 alone."""
    number = int(compute_capability.replace(".", ""))
    if number == 90:
        return "90a"
    older = [arch for arch in ARCHITECTURES if arch.isdigit() and int(arch) <= number]
    return max(older, key=int) if older else _WITHOUT_GPU


def query_gpus(what: str) -> list[str]:
    """Asks nvidia-smi for a field ("name", "compute_cap") of each of this machine's GPUs; [] where it fails."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


def native_architectures() -> list[str]:
    """The architectures of this machine's GPUs."""
    return sorted({_architecture_of(capability) for capability in query_gpus("compute_cap")}) or [_WITHOUT_GPU]


def compiled_for(wanted: list[str]) -> list[str]:
    archs = {*wanted} - {"native"} | ({*native_architectures()} if "native" in wanted else set())
    return [arch for arch in ARCHITECTURES if arch in archs]


def describe_cuda_build(wanted: list[str], toolkit_headers: str) -> str:
    """ "CUDA 13.0: 8.0, 9.0a": the toolkit and the compute capabilities that there is machine code for."""
    header = pathlib.Path(toolkit_headers, "cuda.h")
    version = re.search(r"#define CUDA_VERSION (\d+)", header.read_text() if header.exists() else "")
    toolkit = f" {int(version[1]) // 1000}.{int(version[1]) % 1000 // 10}" if version else ""
    return f"CUDA{toolkit}: " + ", ".join(re.sub(r"(\d)(a?)$", r".\1\2", arch) for arch in compiled_for(wanted))


def arch_flags(wanted: list[str], source: str = "") -> list[str]:
    """Machine code for each architecture, but for 7.5 in the sources that need 8.0. For the newest that is not one
    GPU's alone (as 90a is) intermediate code as well, which the driver of a later GPU translates."""
    archs = compiled_for(wanted)
    if any(folder in source for folder in _FROM_80):
        archs = [arch for arch in archs if arch != "75"] or ["80"]
    flags = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    portable = [arch for arch in archs if arch.isdigit()]
    if portable:
        newest = max(portable, key=int)
        flags.append(f"-gencode=arch=compute_{newest},code=compute_{newest}")
    return flags

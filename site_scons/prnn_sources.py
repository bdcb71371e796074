"""The files that are compiled, and their instruction sets."""

import dataclasses
import pathlib
import platform
from collections.abc import Sequence


@dataclasses.dataclass
class Sources:
    common: list[pathlib.Path]
    cuda: list[pathlib.Path]  # every file in a folder called cuda or cudnn, but for no_cuda.cc
    no_cuda: list[pathlib.Path]  # cuda/no_cuda.cc: stands in for its folder in a build without CUDA

    def for_build(self, cuda: bool) -> list[pathlib.Path]:
        return self.common + (self.cuda if cuda else self.no_cuda)


def needs_cuda(path: pathlib.Path) -> bool:
    return not {"cuda", "cudnn"}.isdisjoint(path.parent.parts)


def find_sources(root: str, without: Sequence[str] = ()) -> Sources:
    """The sources under a folder, but for those in the folders `without` under it."""
    sources = Sources([], [], [])
    for path in sorted(pathlib.Path(root).rglob("*.c[cu]")):
        if any(path.is_relative_to(pathlib.Path(root, name)) for name in without):
            continue
        if not needs_cuda(path):
            sources.common.append(path)
        elif path.name == "no_cuda.cc":
            sources.no_cuda.append(path)
        else:
            sources.cuda.append(path)
    return sources


_ISA_FLAGS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"],
}


def isa_flags(path: pathlib.Path) -> list[str]:
    """Flags for a file that is written for one instruction set, which its name ends in: gemm_avx2.cc."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return []
    return _ISA_FLAGS.get(path.stem.rpartition("_")[2], [])

"""Memory for C calls: each tensor ends, or begins, where the next byte is inaccessible, so that a read or write beyond
it ends the process; inputs cannot be written. On a GPU, which has no such pages, tensors lie between margins that are
looked at afterwards."""

from __future__ import annotations

import ctypes
import mmap
from random import Random

import numpy as np
import torch
from torch import Tensor

PAGE = mmap.PAGESIZE
POISON = 0xFF  # of outputs and scratch before a call, and of what lies around a block: NaN in every floating type
NONE, READ, READ_WRITE = 0, 1, 3
PRIVATE_ANONYMOUS = 0x22

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class HostBlock:
    """`size` bytes between inaccessible pages; `bytes` is a tensor of them."""

    def __init__(self, size: int, align: int, at_end: bool) -> None:
        self._inner = -(-max(size, 1) // PAGE) * PAGE
        self._length = self._inner + 2 * PAGE
        base = libc.mmap(None, self._length, NONE, PRIVATE_ANONYMOUS, -1, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"mmap of {self._length} bytes: errno {ctypes.get_errno()}")
        self._base: int = base
        self.protect(READ_WRITE)
        everything = np.ctypeslib.as_array((ctypes.c_uint8 * self._inner).from_address(base + PAGE))
        everything[:] = POISON
        start = (self._inner - size) // align * align if at_end else 0
        self._margins = [everything[:start], everything[start + size :]]
        self.bytes = torch.from_numpy(everything[start : start + size])

    def protect(self, access: int) -> None:
        if libc.mprotect(self._base + PAGE, self._inner, access):
            raise MemoryError(f"mprotect: errno {ctypes.get_errno()}")

    def intact(self) -> bool:
        return all((margin == POISON).all() for margin in self._margins)

    def free(self) -> None:
        libc.munmap(self._base, self._length)


class DeviceBlock:
    """A block of memory on the GPU, between margins."""

    MARGIN = 1024

    def __init__(self, size: int) -> None:
        everything = torch.full((size + 2 * self.MARGIN,), POISON, dtype=torch.uint8, device="cuda")
        self._margins = everything[: self.MARGIN], everything[self.MARGIN + size :]
        self.bytes = everything[self.MARGIN : self.MARGIN + size]

    def protect(self, access: int) -> None:
        pass

    def intact(self) -> bool:
        return all(bool((margin == POISON).all()) for margin in self._margins)

    def free(self) -> None:
        pass


class Memory:
    """The blocks of a case. `device`: where those of data lie."""

    def __init__(self, random: Random, device: str = "cpu") -> None:
        self._random, self.device = random, device
        self._blocks: list[HostBlock | DeviceBlock] = []

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        for block in self._blocks:
            block.free()

    def _block(self, size: int, align: int, host: bool) -> HostBlock | DeviceBlock:
        block = HostBlock(size, align, self._random.random() < 0.8) if host else DeviceBlock(size)
        self._blocks.append(block)
        return block

    def space(self, size: int, host: bool = False) -> Tensor:
        """`size` poisoned bytes, aligned to 16."""
        return self._block(size, 16, host or self.device == "cpu").bytes

    def output(self, shape: tuple[int, ...] | torch.Size, dtype: torch.dtype, host: bool = False) -> Tensor:
        """A poisoned tensor."""
        size = torch.Size(shape).numel() * dtype.itemsize
        return self._block(size, dtype.itemsize, host or self.device == "cpu").bytes.view(dtype).view(shape)

    def input(self, values: Tensor, host: bool = False) -> Tensor:
        """A tensor with these values, which cannot be written on the host."""
        block = self._block(values.nbytes, values.itemsize, host or self.device == "cpu")
        block.bytes.copy_(values.contiguous().view(-1).view(torch.uint8))
        block.protect(READ)
        return block.bytes.view(values.dtype).view(values.shape)

    def intact(self) -> bool:
        return all(block.intact() for block in self._blocks)


def poison(tensor: Tensor) -> None:
    tensor.view(-1).view(torch.uint8).fill_(POISON)


def snapshot(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.reshape(-1).view(torch.uint8).clone() for tensor in tensors]


def same(tensors: list[Tensor], before: list[Tensor]) -> bool:
    return all(
        torch.equal(tensor.reshape(-1).view(torch.uint8), old) for tensor, old in zip(tensors, before, strict=True)
    )

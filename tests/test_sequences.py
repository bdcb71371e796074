"""prnnPackSequences and prnnUnpackSequences: padded data to packed rows and back."""

import functools
import itertools
from typing import Any

import capi
import pytest
import torch
from test_rnn_cuda import why_not

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(bool(why_not()), reason=f"needs a GPU: {why_not()}")),
]
on_devices = pytest.mark.parametrize("device", DEVICES)


@functools.cache
def handle_of(device: str) -> capi.Object:
    return capi.cpu_handle() if device == "cpu" else capi.Object("Create", "Destroy")


def plan(lengths: list[int]) -> tuple[list[int], list[int]]:
    """(batch sizes, order)"""
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    return [sum(length > t for length in lengths) for t in range(max(lengths))], order


def arguments(handle: capi.Object, sizes: list[int], order: list[int] | None, row: int, **more: Any) -> dict[str, Any]:
    return {
        "handle": handle.pointer,
        "seqLength": len(sizes),
        "batchSizes": capi.ints(sizes),
        "order": None if order is None else capi.ints(order),
        "rowBytes": row,
        **more,
    }


def pack(padded: torch.Tensor, lengths: list[int], has_order: bool = True) -> torch.Tensor:
    sizes, order = plan(lengths)
    size = padded.element_size()
    packed = torch.full((sum(lengths), padded.size(-1)), 77, dtype=padded.dtype, device=padded.device)
    call = arguments(handle_of(padded.device.type), sizes, order if has_order else None, padded.size(-1) * size)
    strides = {"stepStride": padded.stride(0) * size, "sequenceStride": padded.stride(1) * size}
    capi.check("PackSequences", **call, padded=padded.data_ptr(), **strides, packed=packed.data_ptr())
    return packed


def unpack(packed: torch.Tensor, lengths: list[int], padded: torch.Tensor) -> None:
    sizes, order = plan(lengths)
    size = packed.element_size()
    call = arguments(handle_of(packed.device.type), sizes, order, packed.size(-1) * size)
    strides = {"stepStride": padded.stride(0) * size, "sequenceStride": padded.stride(1) * size}
    addresses = {"padded": padded.data_ptr(), "packed": packed.data_ptr()}
    capi.check("UnpackSequences", **call, **addresses, paddedLength=padded.size(0), **strides)


LENGTHS = [[2, 5, 1, 5, 3], [1], [4, 4], [7] * 3 + [9] * 2, [3, 2, 2, 1]]


@on_devices
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.bool], ids=str)
def test_there_and_back(dtype: torch.dtype, device: str) -> None:
    torch.manual_seed(1)
    for lengths, width in itertools.product(LENGTHS, (1, 3, 8, 24)):
        steps = max(lengths) + 2
        padded = (torch.randn(steps, len(lengths), width) * 100).to(dtype).to(device)
        _, order = plan(lengths)
        expected = torch.cat([padded[t, n][None] for t in range(steps) for n in order if t < lengths[n]])
        packed = pack(padded, lengths)
        assert torch.equal(packed, expected), (lengths, width)
        back = torch.full_like(padded, 1)
        unpack(packed, lengths, back)
        beyond = (torch.arange(steps)[:, None] >= torch.tensor(lengths))[..., None].to(device)
        assert torch.equal(back, padded.masked_fill(beyond, 0)), (lengths, width)


@on_devices
def test_strides(device: str) -> None:
    """Data that is batch first, a part of a larger array, at an odd address, or the same for all sequences."""
    torch.manual_seed(2)
    lengths = [3, 6, 2, 6]
    whole = torch.randn(4, 9, 11, device=device, dtype=torch.float16)
    for padded in (
        whole.transpose(0, 1),
        whole.transpose(0, 1)[1:8, :, 3:10],
        whole[:1].transpose(0, 1).expand(9, 4, 11),
    ):
        packed = pack(padded, lengths)
        assert torch.equal(packed, pack(padded.contiguous(), lengths))
    target, copy = torch.ones_like(whole), torch.ones_like(whole)
    packed = pack(whole.transpose(0, 1)[..., 3:10], lengths)
    unpack(packed, lengths, target.transpose(0, 1)[..., 3:10])
    back = torch.empty(9, 4, 7, device=device, dtype=torch.float16)
    unpack(packed, lengths, back)
    copy.transpose(0, 1)[..., 3:10] = back
    assert torch.equal(target, copy)


@on_devices
@pytest.mark.parametrize(("steps", "batch"), [(700, 3), (3, 900), (500, 600)])
def test_more_than_a_launch_takes(steps: int, batch: int, device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, steps + 1, (batch,), generator=generator).tolist()
    padded = torch.randn(steps, batch, 2, device=device)
    back = torch.ones_like(padded)
    unpack(pack(padded, lengths), lengths, back)
    beyond = (torch.arange(steps)[:, None] >= torch.tensor(lengths))[..., None].to(device)
    assert torch.equal(back, padded.masked_fill(beyond, 0))


@on_devices
def test_without_an_order(device: str) -> None:
    padded = torch.randn(4, 3, 5, device=device)
    assert torch.equal(pack(padded, [4, 4, 1], has_order=False), pack(padded, [4, 4, 1]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seqLength": 0}, "seqLength is 0; it must be at least 1"),
        ({"batchSizes": None}, "batchSizes is NULL"),
        ({"batchSizes": capi.ints([2, 0])}, "batchSizes[1] is 0; it must be at least 1"),
        ({"batchSizes": capi.ints([2, 3])}, "batchSizes[1] is 3, more than the 2 of the timestep before it"),
        ({"order": capi.ints([0, 2])}, "order[1] is 2; it must be a sequence, 0 to 1"),
        ({"order": capi.ints([-1, 0])}, "order[0] is -1; it must be a sequence, 0 to 1"),
        ({"order": capi.ints([1, 1])}, "order[1] is 1, which an entry before it is too"),
        ({"rowBytes": 0}, "rowBytes is 0; it must be at least 1"),
        ({"padded": None}, "padded is NULL"),
        ({"packed": None}, "packed is NULL"),
        (
            {"stepStride": 2**63},
            "rowBytes 4, stepStride 9223372036854775808 and sequenceStride 4, with 2 timesteps of 2 sequences, are "
            "more than can be addressed",
        ),
        ({"paddedLength": 1}, "paddedLength is 1; it must be at least seqLength, 2"),
        ({"sequenceStride": 3}, "stepStride is 8 and sequenceStride 3; each must be at least rowBytes, 4"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    handle = capi.cpu_handle()
    padded, packed = torch.full((4,), 5.0), torch.full((3,), 6.0)
    memory = {"padded": padded.data_ptr(), "packed": packed.data_ptr()}
    call = arguments(handle, [2, 1], [1, 0], 4, **memory, stepStride=8, sequenceStride=4, paddedLength=2) | change
    assert capi.call("UnpackSequences", **call) == capi.BAD_PARAM
    assert capi.message(handle.pointer) == message
    if "paddedLength" not in change and "sequenceStride" not in change:
        del call["paddedLength"]
        assert capi.call("PackSequences", **call) == capi.BAD_PARAM
        assert capi.message(handle.pointer) == message
    assert (padded == 5).all()
    assert (packed == 6).all()

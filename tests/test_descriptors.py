"""Tensor, filter and dropout descriptors: what is set reads back, and what is wrong is refused and changes nothing."""

import ctypes
from typing import Any

import capi
import pytest

KINDS = ["Tensor", "Filter", "Dropout", "RNN"]


def read_tensor(tensor: capi.Object, requested: int = 8) -> tuple[int, int, list[int], list[int]]:
    data_type, rank = ctypes.c_int(-5), ctypes.c_int(-5)
    dims, strides = capi.ints([-5] * 8), capi.ints([-5] * 8)
    capi.check(
        "GetTensorNdDescriptor",
        tensorDesc=tensor.pointer,
        nbDimsRequested=requested,
        dataType=ctypes.byref(data_type),
        nbDims=ctypes.byref(rank),
        dimA=dims,
        strideA=strides,
    )
    return data_type.value, rank.value, list(dims), list(strides)


def read_filter(filter_: capi.Object, requested: int = 8) -> tuple[int, int, int, list[int]]:
    data_type, layout, rank = ctypes.c_int(-5), ctypes.c_int(-5), ctypes.c_int(-5)
    dims = capi.ints([-5] * 8)
    capi.check(
        "GetFilterNdDescriptor",
        filterDesc=filter_.pointer,
        nbDimsRequested=requested,
        dataType=ctypes.byref(data_type),
        format=ctypes.byref(layout),
        nbDims=ctypes.byref(rank),
        filterDimA=dims,
    )
    return data_type.value, layout.value, rank.value, list(dims)


@pytest.mark.parametrize("data_type", [capi.FLOAT, capi.DOUBLE, capi.HALF, capi.BFLOAT16])
@pytest.mark.parametrize("rank", range(1, 9))
def test_tensor_reads_back(rank: int, data_type: int) -> None:
    dims = list(range(3, 3 + rank))
    tensor = capi.tensor(dims, data_type)
    padding = [-5] * (8 - rank)
    assert read_tensor(tensor) == (data_type, rank, dims + padding, capi.packed_strides(dims) + padding)


@pytest.mark.parametrize("rank", range(1, 9))
def test_filter_reads_back(rank: int) -> None:
    dims = list(range(3, 3 + rank))
    assert read_filter(capi.filter_(dims, capi.DOUBLE)) == (capi.DOUBLE, 0, rank, dims + [-5] * (8 - rank))


def test_reads_back_no_more_than_requested() -> None:
    assert read_tensor(capi.tensor([4, 5, 6]), requested=2)[1:] == (3, [4, 5] + [-5] * 6, [30, 6] + [-5] * 6)
    assert read_tensor(capi.tensor([4, 5, 6]), requested=0)[1:] == (3, [-5] * 8, [-5] * 8)
    assert read_filter(capi.filter_([4, 5, 6]), requested=1)[2:] == (3, [4] + [-5] * 7)


def test_a_descriptor_that_was_not_set_has_no_dimensions() -> None:
    assert read_tensor(capi.descriptor("Tensor"))[1] == 0
    assert read_filter(capi.descriptor("Filter"))[2] == 0


def test_outputs_that_are_not_wanted_may_be_null() -> None:
    tensor, filter_ = capi.tensor([2]), capi.filter_([2])
    wanted = dict(nbDimsRequested=3, dataType=None, nbDims=None)
    capi.check("GetTensorNdDescriptor", tensorDesc=tensor.pointer, dimA=None, strideA=None, **wanted)
    capi.check("GetFilterNdDescriptor", filterDesc=filter_.pointer, format=None, filterDimA=None, **wanted)


def test_setting_again_replaces() -> None:
    tensor = capi.tensor([2, 3, 4])
    capi.check(
        "SetTensorNdDescriptor",
        tensorDesc=tensor.pointer,
        dataType=capi.DOUBLE,
        nbDims=1,
        dimA=capi.ints([7]),
        strideA=capi.ints([2]),
    )
    assert read_tensor(tensor) == (capi.DOUBLE, 1, [7] + [-5] * 7, [2] + [-5] * 7)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (dict(tensorDesc=None), "tensorDesc is NULL"),
        (dict(dataType=3), "dataType is 3"),
        (dict(dataType=-1), "dataType is -1"),
        (dict(nbDims=0), "nbDims is 0"),
        (dict(nbDims=9), "nbDims is 9"),
        (dict(nbDims=-4), "nbDims is -4"),
        (dict(dimA=None), "dimA is NULL"),
        (dict(strideA=None), "strideA is NULL"),
        (dict(dimA=capi.ints([2, 0, 1])), "dimA[1] is 0"),
        (dict(dimA=capi.ints([2, 3, -7])), "dimA[2] is -7"),
        (dict(strideA=capi.ints([-1, 1, 1])), "strideA[0] is -1"),
        (dict(strideA=capi.ints([1, 1, 0])), "strideA[2] is 0"),
    ],
)
def test_bad_tensor_is_refused_and_changes_nothing(changes: dict[str, Any], text: str) -> None:
    tensor = capi.tensor([4, 5, 6], capi.HALF)
    before = read_tensor(tensor)
    good = dict(
        tensorDesc=tensor.pointer, dataType=0, nbDims=3, dimA=capi.ints([2, 3, 1]), strideA=capi.ints([3, 1, 1])
    )
    assert capi.call("SetTensorNdDescriptor", **(good | changes)) == capi.BAD_PARAM
    assert text in capi.message()
    assert read_tensor(tensor) == before


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (dict(filterDesc=None), "filterDesc is NULL"),
        (dict(dataType=4), "dataType is 4"),
        (dict(format=2), "format is 2"),
        (dict(nbDims=0), "nbDims is 0"),
        (dict(nbDims=2**31 - 1), "nbDims is 2147483647"),
        (dict(filterDimA=None), "filterDimA is NULL"),
        (dict(filterDimA=capi.ints([1, 0])), "filterDimA[1] is 0"),
    ],
)
def test_bad_filter_is_refused_and_changes_nothing(changes: dict[str, Any], text: str) -> None:
    filter_ = capi.filter_([4, 5, 6], capi.DOUBLE)
    before = read_filter(filter_)
    good = dict(filterDesc=filter_.pointer, dataType=0, format=0, nbDims=2, filterDimA=capi.ints([2, 3]))
    assert capi.call("SetFilterNdDescriptor", **(good | changes)) == capi.BAD_PARAM
    assert text in capi.message()
    assert read_filter(filter_) == before


def test_negative_number_of_dimensions_requested() -> None:
    tensor = capi.tensor([4])
    status = capi.call(
        "GetTensorNdDescriptor",
        tensorDesc=tensor.pointer,
        nbDimsRequested=-1,
        dataType=None,
        nbDims=None,
        dimA=None,
        strideA=None,
    )
    assert status == capi.BAD_PARAM
    assert "nbDimsRequested is -1" in capi.message()


@pytest.mark.parametrize("kind", KINDS)
def test_create_and_destroy(kind: str) -> None:
    parameter = capi.FUNCTIONS[f"prnnDestroy{kind}Descriptor"].parameters[0]
    assert capi.call(f"Create{kind}Descriptor", **{parameter: None}) == capi.BAD_PARAM
    assert capi.message() == f"{parameter} is NULL"
    assert capi.call(f"Destroy{kind}Descriptor", **{parameter: None}) == capi.SUCCESS


@pytest.mark.parametrize("kind", KINDS)
def test_a_destroyed_descriptor_is_refused(kind: str) -> None:
    parameter = capi.FUNCTIONS[f"prnnDestroy{kind}Descriptor"].parameters[0]
    made = ctypes.c_void_p()
    capi.check(f"Create{kind}Descriptor", **{parameter: ctypes.byref(made)})
    capi.check(f"Destroy{kind}Descriptor", **{parameter: made})
    assert capi.call(f"Destroy{kind}Descriptor", **{parameter: made}) == capi.BAD_PARAM
    assert "was destroyed" in capi.message()


@pytest.mark.parametrize("kind", KINDS)
def test_another_kind_of_descriptor_is_refused(kind: str) -> None:
    other = capi.descriptor("Filter" if kind == "Tensor" else "Tensor")
    parameter = capi.FUNCTIONS[f"prnnDestroy{kind}Descriptor"].parameters[0]
    assert capi.call(f"Destroy{kind}Descriptor", **{parameter: other.pointer}) == capi.BAD_PARAM
    assert f"is no {kind if kind == 'RNN' else kind.lower()} descriptor" in capi.message()


def test_descriptors_are_recycled_in_a_clean_state() -> None:
    for _ in range(300):  # more than are kept back before they are used again
        made = capi.descriptor("Tensor")
        assert read_tensor(made)[1] == 0
        capi.check(
            "SetTensorNdDescriptor",
            tensorDesc=made.pointer,
            dataType=0,
            nbDims=1,
            dimA=capi.ints([3]),
            strideA=capi.ints([1]),
        )


def set_dropout(function: str = "SetDropoutDescriptor", **changes: Any) -> tuple[int, list[int], capi.Object]:
    """The status, what the states (seed, number of calls) hold afterwards, and the handle."""
    handle, dropout = capi.cpu_handle(), capi.descriptor("Dropout")
    states = (ctypes.c_uint64 * 2)(111, 222)
    arguments = dict(
        dropoutDesc=dropout.pointer,
        handle=handle.pointer,
        dropout=0.5,
        states=states,
        stateSizeInBytes=16,
        seed=2**64 - 3,
    )
    return capi.call(function, **(arguments | changes)), list(states), handle


def test_dropout_writes_the_seed_to_the_states() -> None:
    assert capi.size_from("DropoutGetStatesSize", handle=capi.cpu_handle().pointer) == 16
    assert set_dropout()[:2] == (capi.SUCCESS, [2**64 - 3, 0])
    assert set_dropout(stateSizeInBytes=4096)[:2] == (capi.SUCCESS, [2**64 - 3, 0])


def test_restored_dropout_leaves_the_states() -> None:
    assert set_dropout("RestoreDropoutDescriptor")[:2] == (capi.SUCCESS, [111, 222])


DROPOUT_FUNCTIONS = ["SetDropoutDescriptor", "RestoreDropoutDescriptor"]


@pytest.mark.parametrize("function", DROPOUT_FUNCTIONS)
def test_dropout_without_states(function: str) -> None:
    for dropout in (0.0, 0.5):
        assert set_dropout(function, dropout=dropout, states=None, stateSizeInBytes=0)[0] == capi.SUCCESS


@pytest.mark.parametrize("function", DROPOUT_FUNCTIONS)
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (dict(dropoutDesc=None), "dropoutDesc is NULL"),
        (dict(dropout=-0.1), "dropout is -0.1"),
        (dict(dropout=1.0), "dropout is 1"),
        (dict(dropout=float("nan")), "dropout is nan"),
        (dict(dropout=float("inf")), "dropout is inf"),
        (dict(stateSizeInBytes=15), "stateSizeInBytes is 15; prnnDropoutGetStatesSize asks for 16"),
        (dict(stateSizeInBytes=0), "stateSizeInBytes is 0"),
        (dict(states=None), "states is NULL with stateSizeInBytes 16"),
    ],
)
def test_bad_dropout_is_refused_and_writes_nothing(function: str, changes: dict[str, Any], text: str) -> None:
    status, states, handle = set_dropout(function, **changes)
    assert status == capi.BAD_PARAM
    assert text in capi.message(handle.pointer)
    assert states == [111, 222]


def test_dropout_needs_a_handle() -> None:
    for function in DROPOUT_FUNCTIONS:
        assert set_dropout(function, handle=None)[:2] == (capi.NOT_INITIALIZED, [111, 222])
    status = capi.call("DropoutGetStatesSize", handle=None, sizeInBytes=ctypes.byref(ctypes.c_size_t()))
    assert status == capi.NOT_INITIALIZED
    handle = capi.cpu_handle()
    assert capi.call("DropoutGetStatesSize", handle=handle.pointer, sizeInBytes=None) == capi.BAD_PARAM
    assert capi.message(handle.pointer) == "sizeInBytes is NULL"
